"""Attention weighed by what it leads to: by the gradient of an answer, or by what values bring."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import LookError, ShapeError
from regard.inspection.adapters.module_tracker import ModuleTracker
from regard.inspection.attribution.output_projection import check_output_projection
from regard.inspection.attribution.propagation import Attribution, Indices, propagate
from regard.inspection.edits.base import CallSite
from regard.inspection.edits.what_if import matches_glob
from regard.inspection.record.look import patched
from regard.inspection.sites.site import Site
from regard.ops.grid import slice_axis, to_4d
from regard.ops.indices import resolve_slice
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting
from regard.ops.survey.reference import weights_from_scores
from regard.ops.terms import repeat_kv, upcast


def relevance(
    model: nn.Module,
    score: Callable[[nn.Module], Tensor],
    token: Indices | None = None,
    at: str = "*",
) -> Attribution:
    """What each position brings to one answer: gradient times attention (Chefer et al. 2021).

    Ā = mean over heads of (∂score/∂W ⊙ W)⁺,   R = (I + Ā_L) … (I + Ā_1), of which rows are given

    `score` runs the model and returns the number to be explained, such as a logit, summed over the
    sequences. `token` is the position it is read from. ∂score/∂w_ij = g_i · v_j with g the gradient
    to the output, so no map is kept. What speaks against the answer is cut off by the ⁺.

    >>> layer, x = rg.nn.MultiHeadAttention(4, 2), torch.randn(1, 3, 4)
    >>> rg.relevance(layer, lambda layer: layer(x)[0, 0, 0], token=0).own.shape
    torch.Size([1, 1, 3])
    """
    with patched(model) as running:
        tape = _Tape(running, at)
        with intercepting(tape, running, other_threads=False), torch.enable_grad():
            value = score(model)
    if not tape.pairs:
        raise LookError(f"at: needs an attention that ran, got {at!r}; try '*'")
    if value.numel() != 1 or not value.requires_grad:
        raise ShapeError(
            f"score: needs to return one number with its graph, got {tuple(value.shape)}"
            f"{'' if value.requires_grad else ' without'}; try the sum of the logits explained"
        )
    sites, outs = zip(*tape.pairs, strict=True)
    slopes = torch.autograd.grad(value, outs, allow_unused=True)
    pairs = zip(sites, outs, slopes, strict=True)
    felt = {id(s): to_4d(torch.zeros_like(out) if g is None else g) for s, out, g in pairs}

    def rows(site: Site, rows: range, keys: range) -> Tensor:
        g, v = slice_axis(felt[id(site)], -2, rows), repeat_kv(slice_axis(site.v, -2, keys), site.q)
        lse = site.lse[..., rows.start : rows.stop]
        w = weights_from_scores(site.terms.score_tile(site.q, site.k, rows, keys), lse)
        return (w * (upcast(g) @ upcast(v).mT)).clamp(min=0).mean(1)

    with torch.no_grad():
        return propagate(sites, token, rows, residual_weight=1.0, attention_weight=1.0)


class _Tape:
    """Stands at the door and keeps each attention, with its output as it is in the graph."""

    def __init__(self, running: ModuleTracker, at: str):
        self.running, self.at = running, at
        self.pairs: list[tuple[Site, Tensor]] = []

    def __call__(self, call: AttentionCall, proceed: Proceed) -> AttentionResult:
        out, lse = proceed(call)
        caller = self.running.caller
        if not matches_glob(self.at, CallSite(caller.path, caller.name)):
            return out, lse
        if not out.requires_grad:  # nothing below learns: the graph begins here
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
    """How long a vector each key brings to each query, not how much weight (Kobayashi et al. 2020).

    each: |w_ij v_j W_O| for every head;   together: |Σ_h w_ij v_j W_O|, where heads may cancel

    A weight on a value that is nearly zero brings nothing. `output_projection` has W_O. The cost grows
    with the window.

    >>> values = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> site = rg.make_site(torch.zeros(1, 2), torch.zeros(2, 2), values)
    >>> rg.weighted_value_norms(site, torch.eye(2)[None])  # weights ½ and ½
    tensor([[[[2.5000, 0.0000]]]])
    """
    check_output_projection(site, w_out)
    if heads not in ("each", "together"):
        raise ShapeError(f"heads: needs each or together, got {heads!r}")
    across = resolve_slice(keys, site.keys, "keys")
    w = site.window(rows=rows, keys=keys)
    if heads == "each":
        return w * value_norms(site, w_out)[:, :, None, across.start : across.stop]
    v = upcast(repeat_kv(slice_axis(site.v, -2, across), site.q))
    grams = torch.einsum("hdx,gex->hgde", w_out.to(v), w_out.to(v))
    meet = torch.einsum("bhjd,hgde,bgje->bhgj", v, grams, v)  # f_h · f_g for each key
    return torch.einsum("bhij,bhgj,bgij->bij", w, meet, w).clamp(min=0).sqrt()


def value_norms(
    site: Site, w_out: Float[Tensor, "head value dim"]
) -> Float[Tensor, "batch head key"]:
    """How long the vector is that each key has to give, head by head.

    |v_j W_O|, from v_j (W_O W_Oᵀ) v_j

    Times the received mass of a survey, it is all that a key brings, for any length of input.

    >>> site = rg.make_site(torch.zeros(1, 2), torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))
    >>> rg.value_norms(site, 2 * torch.eye(2)[None])
    tensor([[[10.]]])
    """
    check_output_projection(site, w_out)
    v = upcast(repeat_kv(site.v, site.q))
    gram = w_out.to(v) @ w_out.to(v).mT
    return torch.linalg.vecdot(v @ gram, v).clamp(min=0).sqrt()
