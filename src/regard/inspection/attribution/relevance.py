"""Gradient-weighted attention (relevance), and attention weighted by projected value norms."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import LookError, ShapeError, check_choice
from regard.inspection.adapters.block_layout import input_width, is_linear, linear_matrix
from regard.inspection.adapters.module_tracker import Caller
from regard.inspection.attribution.propagation import (
    Attribution,
    Scalar,
    propagate,
    run_with_gradient,
)
from regard.inspection.edits.base import Indices
from regard.inspection.sites.labels import check_site
from regard.inspection.sites.site import Site
from regard.ops.grid import slice_axis, to_4d
from regard.ops.indices import resolve_slice
from regard.ops.intercept import AttentionCall, AttentionResult
from regard.ops.terms import repeat_kv, upcast, weights_from_scores

_NAMES = ("to_out", "o_proj", "out_proj", "c_proj", "out_lin", "dense", "wo", "o")
# BERT has it in a sibling module
_BESIDE = ("output.dense", "output", "o_proj", "out_proj", "dense")


def relevance(
    model: nn.Module, score: Scalar, token: Indices | None = None, at: str = "*"
) -> Attribution:
    """Relevance of each position to a score: gradient times attention (Chefer et al. 2021).

    Ā = mean over heads of (∂score/∂W ⊙ W)⁺,   R = (I + Ā_L) … (I + Ā_1)

    ∂score/∂w_ij = g_i · v_j with g the gradient of the output, so no map is stored. The ⁺ drops
    negative relevance.

    Args:
        model: The model.
        score: Runs the model and returns the scalar to explain, such as a logit summed over the
            sequences.
        token: Position or positions whose rows of R are returned; all by default.
        at: Glob over the names or paths of attention modules.

    >>> layer, x = rg.nn.MultiHeadAttention(4, 2), torch.randn(1, 3, 4)
    >>> rg.inspection.relevance(layer, lambda layer: layer(x)[0, 0, 0], token=0).own.shape
    torch.Size([1, 1, 3])
    """
    pairs: list[tuple[Site, Tensor]] = []  # with the output in the autograd graph

    def record(call: AttentionCall, result: AttentionResult, caller: Caller) -> Tensor:
        out, lse = result
        if not out.requires_grad:  # nothing below is trainable: the graph starts here
            out = out.detach().requires_grad_()
        site = Site(
            name=caller.name, path=caller.path, kind=caller.kind, q=to_4d(call.q.detach()),
            k=to_4d(call.k.detach()), v=to_4d(call.v.detach()), out=to_4d(out.detach()),
            lse=to_4d(lse.detach()[..., None])[..., 0], terms=call.terms,
        )  # fmt: skip
        pairs.append((site, out))
        return out

    value = run_with_gradient(model, score, "score", at, record)
    sites, outs = zip(*pairs, strict=True)
    gradients = torch.autograd.grad(value, outs, allow_unused=True, materialize_grads=True)
    grads = {id(site): to_4d(grad) for site, grad in zip(sites, gradients, strict=True)}

    def rows(site: Site, rows: range, keys: range) -> Tensor:
        g = slice_axis(grads[id(site)], -2, rows)
        v = repeat_kv(slice_axis(site.v, -2, keys), site.q)
        lse = site.lse[..., rows.start : rows.stop]
        w = weights_from_scores(site.terms.score_tile(site.q, site.k, rows, keys), lse)
        return (w * (upcast(g) @ upcast(v).mT)).clamp(min=0).mean(1)

    with torch.no_grad():
        return propagate(sites, token, rows, residual_weight=1.0, attention_weight=1.0)


def weighted_value_norms(
    site: Site,
    w_out: Float[Tensor, "head value dim"],
    *,
    rows: slice | int = slice(None),
    keys: slice | int = slice(None),
    heads: Literal["each", "together"] = "each",
) -> Float[Tensor, "batch *head row column"]:
    """Norms of the weighted value vectors (Kobayashi et al. 2020).

    each: |w_ij v_j W_O| for every head;   together: |Σ_h w_ij v_j W_O|, where heads may cancel

    Args:
        site: The site.
        w_out: W_O by head, from `output_projection`.
        rows: Queries.
        keys: Keys.
        heads: One norm per head, or one of the sum over heads.

    >>> values = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> site = rg.make_site(torch.zeros(1, 2), torch.zeros(2, 2), values)
    >>> rg.inspection.weighted_value_norms(site, torch.eye(2)[None])  # weights ½ and ½
    tensor([[[[2.5000, 0.0000]]]])
    """
    check_output_projection(site, w_out)
    check_choice("heads", heads, ("each", "together"), ShapeError)
    key_range = resolve_slice(keys, site.keys, "keys")
    w = site.window(rows=rows, keys=keys)
    if heads == "each":
        return w * value_norms(site, w_out)[:, :, None, key_range.start : key_range.stop]
    v = upcast(repeat_kv(slice_axis(site.v, -2, key_range), site.q))
    grams = torch.einsum("hdx,gex->hgde", w_out.to(v), w_out.to(v))
    products = torch.einsum("bhjd,hgde,bgje->bhgj", v, grams, v)  # f_h · f_g for each key
    return torch.einsum("bhij,bhgj,bgij->bij", w, products, w).clamp(min=0).sqrt()


def value_norms(
    site: Site, w_out: Float[Tensor, "head value dim"]
) -> Float[Tensor, "batch head key"]:
    """Norm of the projected value vector of each key, per head.

    |v_j W_O|, from v_j (W_O W_Oᵀ) v_j

    Times `received` of a survey, it is the total contribution of a key, for any input length.

    >>> site = rg.make_site(torch.zeros(1, 2), torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))
    >>> rg.inspection.value_norms(site, 2 * torch.eye(2)[None])
    tensor([[[10.]]])
    """
    check_output_projection(site, w_out)
    v = upcast(repeat_kv(site.v, site.q))
    gram = w_out.to(v) @ w_out.to(v).mT
    return torch.linalg.vecdot(v @ gram, v).clamp(min=0).sqrt()


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
        if module is not None and is_linear(module) and input_width(module) == width:
            return linear_matrix(module, site.v).unflatten(0, (site.heads, -1))
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
