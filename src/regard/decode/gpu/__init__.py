"""Fast decoding path on GPUs: Triton kernels in CUDA graphs."""
