"""What a block of a Transformer consists of: its linear layers, norms, heads and experts."""

import inspect
import re
from collections.abc import Mapping
from contextvars import Context

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from regard.inspection.adapters.block_stacks import first_tensor
from regard.inspection.adapters.module_tracker import is_cross_attention
from regard.inspection.adapters.replica import replicate
from regard.nn import Norm

ATTENTION = re.compile(r"att(n|ention)", re.IGNORECASE)
ATTENTION_CLASS = re.compile(r"Attention\d*$")
MOE_CLASS = re.compile(r"(MoE|MOE|Moe|MoeBlock)$")
MLP_CHILD = re.compile(r"mlp|moe|ffn?|feed_?forward", re.IGNORECASE)
MIXTURE = re.compile(r"expert|router|moe", re.IGNORECASE)
PER_LAYER = re.compile(r"per_layer_")
ROUTER = re.compile(r"(^|[._])(gate|router)(\.|$)")
LATENT = re.compile(r"(^|_)(kv|q)(_|$)")  # DeepSeek's kv_a_layernorm
UNITS_AT_ONCE = 1024
HEAD_COUNTS = ("heads", "num_heads", "n_heads", "num_attention_heads", "n_head")


def find_projections(block: nn.Module) -> dict[str, list[str]]:
    """Paths of the linear layers of attention and feed-forward, in order.

    "mixer" has the paths of the modules that mix positions otherwise (state spaces, convolutions).
    """
    groups: dict[str, list[str]] = {"self": [], "cross": [], "mlp": [], "per_layer": []}
    mixers, last = find_mixers(block), None
    for path, module in block.named_modules():
        inside = last is not None and path.startswith(f"{last}.")  # the matrices of an adapter
        if inside or not is_linear(module):
            continue
        last, parents = path, path.rpartition(".")[0]
        if PER_LAYER.match(path):
            groups["per_layer"].append(path)
        elif any(path.startswith(f"{mixer}.") for mixer in mixers):
            continue
        elif not ATTENTION.search(parents) and not ATTENTION_CLASS.search(
            _class_name(block, path.partition(".")[0])  # Nemotron-H
        ):
            groups["mlp"].append(path)
        elif any(is_cross_attention(p, _class_name(block, p)) for p in path_prefixes(parents)):
            groups["cross"].append(path)
        else:
            groups["self"].append(path)
    # Gemma 3n has other linear layers beside the one that is named so
    named = [path for path in groups["mlp"] if MLP_CHILD.search(path.partition(".")[0])]
    return groups | {"mlp": named or groups["mlp"], "mixer": mixers}


def _class_name(block: nn.Module, path: str) -> str:
    return type(block.get_submodule(path)).__name__


def find_mixers(block: nn.Module, prefix: str = "") -> list[str]:
    """Paths of the modules in a block that mix positions and are no attention, by what they do."""
    paths: list[str] = []
    for name, child in block.named_children():
        named = ATTENTION.search(name) or ATTENTION_CLASS.search(type(child).__name__)
        if not (named or MLP_CHILD.search(name) or is_norm(child) or PER_LAYER.match(name)):
            role = _role_of(child)
            paths += [f"{prefix}{name}"] if role == "mixer" else []
            paths += find_mixers(child, f"{prefix}{name}.") if role == "residual" else []
    return paths


_roles = WeakIdKeyDictionary()  # of modules that were tried


@torch.no_grad()
def _role_of(module: nn.Module) -> str:
    """What a part of a block does alone with a random sequence.

    "residual": adds a part of its own to its input, as a block in a block does (Zamba 2);
    "mixer": changes outputs at positions other than that whose input changes; "" else.
    """
    if module in _roles:
        return _roles[module]
    linear = next((m for m in module.modules() if is_linear(m)), None)
    if linear is None or module is linear:
        return ""
    like = next(iter(linear.parameters()), torch.zeros(()))
    generator, dim = torch.Generator().manual_seed(0), input_width(linear)
    x = torch.randn(1, 7, dim, generator=generator).to(like)
    try:
        if like.is_meta or not like.is_floating_point():
            raise TypeError("needs parameters of floating point")
        inputs = (x, x.index_fill(1, torch.tensor(3, device=x.device), 0.5), 2 * x)
        copy = replicate(module)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            # without the interceptors of this thread
            y, changed, doubled = (first_tensor(Context().run(copy, z)) for z in inputs)
    except Exception:  # whatever a module raises that needs other arguments
        role = "mixer" if any(isinstance(m, nn.Conv1d) for m in module.modules()) else ""
    else:
        role = ""
        if y is not None and changed is not None and y.shape == x.shape:
            moved = (changed - y).abs()
            elsewhere = float(moved[:, [0, 1, 2, 4, 5, 6]].max())
            role = "mixer" if elsewhere > 1e-4 * float(moved.max()) else ""
            adds = doubled is not None and (doubled - y - x).abs().max() < 1e-2 * x.abs().max()
            role = "residual" if role and adds else role
    _roles[module] = role
    return role


def find_latents(
    modules: Mapping[str, nn.Module], projections: list[str], writer: str
) -> list[tuple[str, str]]:
    """The norms of compressed queries, and of keys and values: "q" or "kv", and their paths.

    A norm inside an attention that is as wide as what one of its other projections reads.
    """
    readers = [path for path in projections if path != writer]
    inner = {input_width(modules[p]) for p in readers} - {input_width(modules[readers[0]])}
    around = parent_path(readers[0]) if readers else ""
    norms = {
        path: word[2]
        for path, module in modules.items()
        if path.startswith(f"{around}.") and is_norm(module)
        if (word := LATENT.search(path.rpartition(".")[2]))
    }
    return [(word, path) for path, word in norms.items() if norm_width(modules[path]) in inner]


def parent_path(path: str) -> str:
    """The module around a linear layer, or the layer itself if that is the block."""
    return path.rpartition(".")[0] or path


def path_prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def is_mixture(path: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a child of a block is a feed-forward layer with several experts."""
    inside = (name for name in modules if name.startswith(f"{path}."))
    kinds = " ".join((type(modules[path]).__name__, *(n.removeprefix(path) for n in inside)))
    is_named = MLP_CHILD.search(path) or MOE_CLASS.search(type(modules[path]).__name__)
    return "." not in path and bool(is_named and MIXTURE.search(kinds))


def _rows(module: nn.Module) -> int:
    weight = module._parameters.get("weight")
    return 0 if weight is None or weight.ndim != 2 else weight.shape[0]


def expert_count(module: nn.Module) -> int:
    """The number of experts whose matrices a module has in one tensor each; 0 for others."""
    stored = (p for p in module._parameters.values() if p is not None and p.ndim == 3)
    return next((int(getattr(module, "num_experts", p.shape[0])) for p in stored), 0)


def find_experts(modules: Mapping[str, nn.Module]) -> dict[str, str | None]:
    """The modules that compute chosen experts, and the layer that scores all of them.

    Called with tokens, indices of experts and their weights, by every implementation (a loop,
    grouped or batched products); the layer has one row per expert.
    """
    scores: dict[str, str | None] = {}
    for path, module in modules.items():
        count = expert_count(module)
        names = list(inspect.signature(type(module).forward).parameters)[2:4]
        if not count or len(names) < 2 or not re.search("ind|expert", names[0]):
            continue
        scorers = (p for p, m in modules.items() if ROUTER.search(p) and _rows(m) == count)
        scores[path] = next(scorers, None)
    return scores


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a layer norm or RMS norm, by its class.

    >>> is_norm(torch.nn.LayerNorm(2)), is_norm(torch.nn.Linear(2, 2))
    (True, False)
    """
    if isinstance(module, Norm):
        return module.kind != "none"
    return "norm" in type(module).__name__.lower() and not module._modules


def norm_width(norm: nn.Module) -> int | None:
    weight, shape = next(norm.parameters(), None), getattr(norm, "normalized_shape", None)
    shape = shape if weight is None else weight.shape
    return shape[-1] if shape else None


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
