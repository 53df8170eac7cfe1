"""What a model is doing: looking at every attention while fused kernels run."""

__all__: list[str] = []
