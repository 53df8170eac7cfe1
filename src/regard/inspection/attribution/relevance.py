"""Gradient-weighted attention (relevance), and attention weighted by value norms."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import LookError, ShapeError
from regard.inspection.adapters.module_tracker import ModuleTracker, check_glob, matches
from regard.inspection.attribution.output_projection import check_output_projection
from regard.inspection.attribution.propagation import Attribution, propagate
from regard.inspection.edits.base import Indices
from regard.inspection.record.look import patched
from regard.inspection.sites.site import Site
from regard.ops.grid import slice_axis, to_4d
from regard.ops.indices import resolve_slice
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting
from regard.ops.terms import repeat_kv, upcast, weights_from_scores


def relevance(
    model: nn.Module,
    score: Callable[[nn.Module], Tensor],
    token: Indices | None = None,
    at: str = "*",
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
    check_glob("at", at)
    with patched(model) as tracker:
        recorder = _OutputRecorder(tracker, at)
        with intercepting(recorder, tracker, other_threads=False), torch.enable_grad():
            value = score(model)
    if not recorder.pairs:
        raise LookError(f"at: needs an attention that ran, got {at!r}; try '*'")
    if value.numel() != 1 or not value.requires_grad:
        raise ShapeError(
            f"score: needs to return a scalar that requires a gradient, got {tuple(value.shape)}"
            f"{'' if value.requires_grad else ', detached'}; try the sum of the logits to explain"
        )
    sites, outs = zip(*recorder.pairs, strict=True)
    found = torch.autograd.grad(value, outs, allow_unused=True, materialize_grads=True)
    grads = {id(site): to_4d(grad) for site, grad in zip(sites, found, strict=True)}

    def rows(site: Site, rows: range, keys: range) -> Tensor:
        g, v = (
            slice_axis(grads[id(site)], -2, rows),
            repeat_kv(slice_axis(site.v, -2, keys), site.q),
        )
        lse = site.lse[..., rows.start : rows.stop]
        w = weights_from_scores(site.terms.score_tile(site.q, site.k, rows, keys), lse)
        return (w * (upcast(g) @ upcast(v).mT)).clamp(min=0).mean(1)

    with torch.no_grad():
        return propagate(sites, token, rows, residual_weight=1.0, attention_weight=1.0)


class _OutputRecorder:
    """Interceptor that stores each attention with its output in the autograd graph."""

    def __init__(self, tracker: ModuleTracker, at: str):
        self.tracker, self.at = tracker, at
        self.pairs: list[tuple[Site, Tensor]] = []

    def __call__(self, call: AttentionCall, proceed: Proceed) -> AttentionResult:
        out, lse = proceed(call)
        caller = self.tracker.caller
        if not matches(self.at, caller.name, caller.path):
            return out, lse
        if not out.requires_grad:  # nothing below is trainable: the graph starts here
            out = out.detach().requires_grad_()
        q, k, v = (to_4d(x.detach()) for x in (call.q, call.k, call.v))
        site = Site(
            name=caller.name,
            path=caller.path,
            kind=caller.kind,
            q=q,
            k=k,
            v=v,
            out=to_4d(out.detach()),
            lse=to_4d(lse.detach()[..., None])[..., 0],
            terms=call.terms,
        )
        self.pairs.append((site, out))
        return out, lse


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

    The cost grows with the window.

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
    if heads not in ("each", "together"):
        raise ShapeError(f"heads: needs each or together, got {heads!r}")
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
