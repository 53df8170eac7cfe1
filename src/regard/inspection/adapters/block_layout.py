"""What a block of a Transformer consists of: its linear layers, norms, heads and experts."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from regard.inspection.adapters.module_tracker import is_cross_attention
from regard.nn import Norm

ATTENTION = re.compile(r"att(n|ention)", re.IGNORECASE)
MLP_CHILD = re.compile(r"mlp|moe|ffn?|feed_?forward", re.IGNORECASE)
MIXTURE = re.compile(r"expert|router|moe", re.IGNORECASE)
PER_LAYER = re.compile(r"per_layer_")
UNITS_AT_ONCE = 1024
HEAD_COUNTS = ("heads", "num_heads", "n_heads", "num_attention_heads", "n_head")


def find_projections(block: nn.Module) -> dict[str, list[str]]:
    """Paths of the linear layers of attention and feed-forward, in order."""
    groups: dict[str, list[str]] = {"self": [], "cross": [], "mlp": [], "per_layer": []}
    last = None
    for path, module in block.named_modules():
        inside = last is not None and path.startswith(f"{last}.")  # the matrices of an adapter
        if inside or not is_linear(module):
            continue
        last, parents = path, path.rpartition(".")[0]
        if PER_LAYER.match(path):
            groups["per_layer"].append(path)
        elif not ATTENTION.search(parents):
            groups["mlp"].append(path)
        elif any(_crosses(part, block) for part in path_prefixes(parents)):
            groups["cross"].append(path)
        else:
            groups["self"].append(path)
    # Gemma 3n has other linear layers beside the one that is named so
    named = [path for path in groups["mlp"] if MLP_CHILD.search(path.partition(".")[0])]
    return groups | {"mlp": named or groups["mlp"]}


def parent_path(path: str) -> str:
    """The module around a linear layer, or the layer itself if that is the block."""
    return path.rpartition(".")[0] or path


def path_prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _crosses(path: str, block: nn.Module) -> bool:
    return is_cross_attention(path, type(block.get_submodule(path)).__name__)


def is_mixture(path: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a child of a block is a feed-forward layer with several experts."""
    inside = (name for name in modules if name.startswith(f"{path}."))
    kinds = " ".join((type(modules[path]).__name__, *(n.removeprefix(path) for n in inside)))
    return "." not in path and bool(MLP_CHILD.search(path) and MIXTURE.search(kinds))


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a layer norm or RMS norm, by its class.

    >>> is_norm(torch.nn.LayerNorm(2)), is_norm(torch.nn.Linear(2, 2))
    (True, False)
    """
    if isinstance(module, Norm):
        return module.kind != "none"
    return "norm" in type(module).__name__.lower() and not module._modules


def norm_width(norm: nn.Module) -> int | None:
    weight = next(norm.parameters(), None)
    return None if weight is None or not weight.ndim else weight.shape[-1]


def head_count(block: nn.Module, writer: str) -> int | None:
    """The number of heads that the input of an output projection consists of."""
    width = input_width(block.get_submodule(writer))
    parts = path_prefixes(writer)[:-1]
    # BERT has the attention beside its output projection
    beside = [n for n, _ in block.named_modules() if n.rpartition(".")[0] in parts]
    for path in (*reversed(parts), *beside):
        module = block.get_submodule(path)
        for source in (module, getattr(module, "config", None)):
            for name in HEAD_COUNTS:
                count = getattr(source, name, None)
                if isinstance(count, int) and count > 0 and width % count == 0:
                    return count
    return None


def is_linear(module: nn.Module | None) -> bool:
    """Whether a module is a linear layer: by its matrix, or, quantized, by its features.

    >>> is_linear(torch.nn.Linear(2, 3)), is_linear(torch.nn.Embedding(2, 3))
    (True, False)
    """
    weight = getattr(module, "weight", None)
    features = (getattr(module, name, None) for name in ("in_features", "out_features"))
    is_matrix = isinstance(weight, Tensor) and weight.ndim == 2
    is_other = module is None or isinstance(module, nn.Embedding) or is_norm(module)
    return not is_other and (is_matrix or all(isinstance(count, int) for count in features))


@torch.no_grad()
def linear_matrix(linear: nn.Module, like: Tensor) -> Tensor:
    """The matrix W of a linear layer y = x W + b, (input, output).

    Where it is not stored as such (quantized, LoRA), the layer is applied to unit vectors of the
    dtype and device of `like`.

    >>> linear_matrix(torch.nn.Linear(2, 3), torch.zeros(1)).shape
    torch.Size([2, 3])
    """
    weight = getattr(linear, "weight", None)
    is_plain = type(weight) in (Tensor, nn.Parameter)
    if isinstance(weight, Tensor) and is_plain and weight.is_floating_point():
        if type(linear).__name__ == "Conv1D":  # GPT-2 stores the transpose
            return weight.detach()
        if type(linear).forward is nn.Linear.forward or isinstance(linear, nn.Embedding):
            return weight.detach().mT
    units = torch.eye(input_width(linear), dtype=like.dtype, device=like.device)
    zero = linear(torch.zeros_like(units[:1]))
    return torch.cat([linear(rows) - zero for rows in units.split(UNITS_AT_ONCE)])


def input_width(linear: nn.Module) -> int:
    width = getattr(linear, "in_features", None)
    if isinstance(width, int):
        return width
    rows, columns = getattr(linear, "weight").shape  # noqa: B009
    return rows if type(linear).__name__ == "Conv1D" else columns
