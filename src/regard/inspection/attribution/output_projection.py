"""Finds the output projection W_O of an attention module."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import LookError, ShapeError
from regard.inspection.sites.labels import check_site
from regard.inspection.sites.site import Site

_NAMES = ("to_out", "o_proj", "out_proj", "c_proj", "out_lin", "dense", "wo", "o")
# BERT has it in a sibling module
_BESIDE = ("output.dense", "output", "o_proj", "out_proj", "dense")


def output_projection(model: nn.Module, site: Site) -> Float[Tensor, "head value dim"]:
    """The output projection W_O of one attention, split by head: y = Σ_h out_h W_h.

    Found by the names that regard, torch and transformers use.

    >>> layer = rg.nn.MultiHeadAttention(6, 2)
    >>> with rg.look(layer) as sight:
    ...     y = layer(torch.randn(1, 3, 6))
    >>> w, bias = rg.inspection.output_projection(layer, sight.sites[0]), layer.to_out.bias
    >>> torch.allclose(torch.einsum("bhiv,hvd->bid", sight.sites[0].out, w) + bias, y, atol=1e-6)
    True
    """
    width, modules = site.heads * site.v.shape[-1], dict(model.named_modules())
    parent = site.path.rpartition(".")[0]
    paths = [f"{site.path}.{name}" for name in _NAMES] + [f"{parent}.{name}" for name in _BESIDE]
    for path in paths:
        module = modules.get(path.removeprefix("."))
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim != 2:
            continue
        if type(module).__name__ != "Conv1D":  # GPT-2's Conv1D stores the transpose of nn.Linear
            weight = weight.mT
        if weight.shape[0] == width:
            return weight.detach().unflatten(0, (site.heads, -1))
    raise LookError(
        f"site: needs an output projection with a known name, got none at {site.path!r}; "
        "try the weight itself, (head, value, dim)"
    )


def check_output_projection(site: Site, w_out: Tensor) -> None:
    """Raise unless w_out is (head, value, dim) of the site."""
    check_site(site)
    site.require_tensors()
    shape, hint = (site.heads, site.v.shape[-1]), "try output_projection(model, site)"
    if not isinstance(w_out, Tensor) or not w_out.is_floating_point():
        raise ShapeError(f"w_out: needs a float tensor, got a {type(w_out).__name__}; {hint}")
    if w_out.ndim != 3 or tuple(w_out.shape[:2]) != shape:
        needs = f"(head, value, dim) = {(*shape, '…')}"
        raise ShapeError(f"w_out: needs {needs}, got {tuple(w_out.shape)}; {hint}")
    if w_out.device != torch.device(site.v.device):
        raise ShapeError(f"w_out: needs the device {site.v.device}, got {w_out.device}")
