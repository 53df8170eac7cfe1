"""Where a model keeps the map that mixes its heads."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import LookError, ShapeError
from regard.inspection.sites.labels import check_site
from regard.inspection.sites.site import Site

_NAMES = ("to_out", "o_proj", "out_proj", "c_proj", "out_lin", "dense", "wo", "o")
_BESIDE = ("output.dense", "output", "o_proj", "out_proj", "dense")  # BERT keeps it next door


def output_projection(model: nn.Module, site: Site) -> Float[Tensor, "head value dim"]:
    """W_O of one attention, cut by head: y = Σ_h out_h W_h.

    It is looked for by the names that our layers, torch and transformers use.

    >>> layer = rg.nn.MultiHeadAttention(6, 2)
    >>> with rg.look(layer) as sight:
    ...     y = layer(torch.randn(1, 3, 6))
    >>> w, bias = rg.output_projection(layer, sight.sites[0]), layer.to_out.bias
    >>> torch.allclose(torch.einsum("bhiv,hvd->bid", sight.sites[0].out, w) + bias, y, atol=1e-6)
    True
    """
    wide = site.heads * site.v.shape[-1]
    for module in _candidates(model, site.path):
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim != 2:
            continue
        if type(module).__name__ != "Conv1D":  # GPT-2's way of a linear map, the other way round
            weight = weight.mT
        if weight.shape[0] == wide:
            return weight.detach().unflatten(0, (site.heads, -1))
    raise LookError(
        f"site: needs an output map that we know by name, got none at {site.path!r}; "
        "try a weight of your own, (head, value, dim)"
    )


def _candidates(model: nn.Module, path: str) -> list[nn.Module]:
    around = path.rpartition(".")[0]
    inside = [f"{path}.{name}" if path else name for name in _NAMES]
    beside = [f"{around}.{name}" if around else name for name in _BESIDE]
    modules = dict(model.named_modules())
    return [modules[name] for name in inside + beside if name in modules]


def check_output_projection(site: Site, w_out: Tensor) -> None:
    """Raise unless there is a matrix for each head, as wide as its values."""
    check_site(site)
    site.require_tensors()
    want = site.heads, site.v.shape[-1]
    if not isinstance(w_out, Tensor) or not w_out.is_floating_point():
        raise ShapeError(
            f"w_out: needs a tensor of numbers, got a {type(w_out).__name__}; "
            "try output_weights(model, site)"
        )
    if w_out.ndim != 3 or tuple(w_out.shape[:2]) != want:
        raise ShapeError(
            f"w_out: needs (head, value, dim) = {(*want, '…')}, got {tuple(w_out.shape)}; "
            "try output_weights(model, site)"
        )
    if w_out.device != torch.device(site.v.device):
        raise ShapeError(f"w_out: needs the device {site.v.device}, got {w_out.device}")
