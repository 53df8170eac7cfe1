"""The attention that callers see: one signature, several forms."""

from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import BackendError, ShapeError
from regard.ops.attend import flex, fused, reference, tiled
from regard.ops.autocast import cast_to_autocast, disable_autocast, is_autocast
from regard.ops.biases import Bias
from regard.ops.intercept import AttentionCall, AttentionResult, dispatch
from regard.ops.masks import Mask
from regard.ops.terms import ScoreFunction, make_terms

AttendBackend = Literal["auto", "reference", "tiled", "fused", "flex"]

MAX_REFERENCE_SCORES = 1 << 22  # up to this many scores the whole map is cheaper than streaming it


def attend(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*keys_batch key other"],
    v: Float[Tensor, "*keys_batch key value"],
    *,
    mask: Mask | Bool[Tensor, "... _ _"] | None = None,
    bias: Bias | Float[Tensor, "... _ _"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    score: ScoreFunction | None = None,
    offset: int = 0,
    dropout: float = 0.0,
    backend: AttendBackend = "auto",
) -> tuple[Float[Tensor, "*batch query value"], Float[Tensor, "*batch query"]]:
    """What each query takes from the values, and the log of what it divided by.

    out_i = Σ_j exp(s_ij - lse_i) v_j,   lse_i = log Σ_j exp(s_ij),   s_ij = scale · q_i · k_j + …

    Heads are the last leading axis; q may have a multiple of k's heads (grouped heads). `Terms`
    says how mask, bias, softcap, sinks, score and offset enter the score. With lse kept, any weight
    can be had later as exp(s_ij - lse_i). A query that may see no key gets zeros and lse = -inf.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(4, 2), torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    >>> attend(q, k, v)
    (tensor([[3.]]), tensor([1.3863]))
    """
    _check_values(q, k, v, dropout)
    terms = make_terms(
        q,
        k,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        score=score,
        offset=offset,
    )
    if score is None and is_autocast(q):
        # as torch's own attention: cast once, so that a look changes no bit of a model
        q, k, v = cast_to_autocast(q, k, v)
        with disable_autocast(q):
            return dispatch(AttentionCall(q, k, v, terms, dropout, backend), _compute)
    return dispatch(AttentionCall(q, k, v, terms, dropout, backend), _compute)


def _compute(call: AttentionCall) -> AttentionResult:
    match call.backend:
        case "auto":
            return _pick(call)
        case "reference":
            return reference.attend(call)
        case "tiled":
            return tiled.attend(call)
        case "fused" | "flex":
            form = fused if call.backend == "fused" else flex
            if reason := form.refusal(call):
                raise BackendError(
                    f"backend: {call.backend} cannot run here, {reason}; try backend='auto'"
                )
            return form.attend(call)
        case other:
            raise BackendError(
                f"backend: needs auto, reference, tiled, fused or flex, got {other!r}; try auto"
            )


def _pick(call: AttentionCall) -> AttentionResult:
    if fused.refusal(call) is None:
        return fused.attend(call)
    scores = call.q.shape[:-1].numel() * call.k.shape[-2]
    if scores <= MAX_REFERENCE_SCORES:
        return reference.attend(call)
    if call.q.is_cuda and flex.refusal(call) is None:
        return flex.attend(call)
    return tiled.attend(call)


def _check_values(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> None:
    if v.ndim != k.ndim or v.shape[:-1] != k.shape[:-1]:
        raise ShapeError(
            f"v: needs one value for each key, {tuple(k.shape[:-1])}, got {tuple(v.shape[:-1])}"
        )
    if not 0 <= dropout < 1:
        raise ShapeError(f"dropout: needs at least 0 and less than 1, got {dropout}")
    if not (q.device == k.device == v.device):
        raise ShapeError(
            f"q, k, v: need one device, got {q.device}, {k.device}, {v.device}; try .to(q.device)"
        )
