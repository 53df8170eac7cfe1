"""Linear mixers of published layers, from the quantities that their code computes."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.mixers.linear_mixer import LinearMixer
from regard.ops.mixers.op import compute_mix
from regard.ops.terms import upcast

Rows = Float[Tensor, "batch head time"]
State = Float[Tensor, "batch head key_dim value"]
Resets = Bool[Tensor, "batch time"]


def delta_rule(
    q: Float[Tensor, "batch group time key_dim"],
    k: Float[Tensor, "batch group time key_dim"],
    v: Float[Tensor, "batch head time value"],
    log_decay: Rows | Float[Tensor, "batch head time key_dim"] | None,
    beta: Rows | None,
    *,
    state: State | None = None,
    resets: Resets | None = None,
) -> LinearMixer:
    """Gated delta rule (Qwen3-Next; no decay is DeltaNet), or KDA with a decay per key channel.

    S_t = e^{g_t} S_{t-1} (I - β_t k_t k_tᵀ) + β_t v_t k_tᵀ. q and k are those of the products:
    normalised and scaled; each of their heads may serve several heads of values.

    >>> x = torch.eye(2)[None, None]
    >>> delta_rule(x, x, x.expand(1, 4, 2, 2), None, None).q.shape
    torch.Size([1, 4, 2, 2])
    """
    q, k = _expand_heads(q, v), _expand_heads(k, v)
    given: dict[str, Any] = {"beta": beta, "state": state, "resets": resets}
    return LinearMixer(q=q, k=k, v=v, log_decay=log_decay, delta=True, **given)


def linear_attention(
    q: Float[Tensor, "batch group time key_dim"],
    k: Float[Tensor, "batch group time key_dim"],
    v: Float[Tensor, "batch head time value"],
    log_decay: Rows | Float[Tensor, "batch head time key_dim"] | Float[Tensor, " head"] | None,
    *,
    bonus: Float[Tensor, "head key_dim"] | None = None,
    state: State | None = None,
    resets: Resets | None = None,
) -> LinearMixer:
    """Linear attention: S_t = e^{g_t} S_{t-1} + k_t v_tᵀ; y_t = S_tᵀ q_t.

    One decay per head is lightning attention and retention; one per head and step, or per key
    channel, gated linear attention. With RWKV's bonus u, y_t = (S_{t-1} + (u ∘ k_t) v_tᵀ)ᵀ q_t.

    >>> x = torch.ones(1, 2, 3, 4)
    >>> linear_attention(x, x, x, torch.tensor([-0.5, -0.1])).log_decay.shape
    torch.Size([1, 2, 3])
    """
    q, k = _expand_heads(q, v), _expand_heads(k, v)
    if log_decay is not None and log_decay.ndim == 1:
        log_decay = log_decay[:, None].expand(v.shape[:-1])
    own = None if bonus is None else (q * bonus[:, None] * k).sum(-1)
    given: dict[str, Any] = {"own": own, "state": state, "resets": resets}
    return LinearMixer(q=q, k=k, v=v, log_decay=log_decay, reads_before=bonus is not None, **given)


def mamba2(
    c: Float[Tensor, "batch group time key_dim"],
    b: Float[Tensor, "batch group time key_dim"],
    x: Float[Tensor, "batch head time value"],
    dt: Rows,
    a: Float[Tensor, " head"] | Float[Tensor, "head key_dim"],
    d: Float[Tensor, " head"] | None = None,
    *,
    state: State | None = None,
    resets: Resets | None = None,
) -> LinearMixer:
    """Mamba-2: w_tj = (C_t · B_j) exp(Σ_{s=j+1..t} A Δ_s) Δ_j, and D on the diagonal.

    Args:
        c, b: what each token reads and writes, one per group of heads.
        x: the values.
        dt: the step size Δ, after softplus and its limits.
        a: the negative number A of each head; Mamba-1, whose heads are channels of one value, has
            one per key channel.
        d: the weight of a token's own value.
        state: the initial state.
        resets: tokens before which the state is cleared.

    >>> x = torch.ones(1, 2, 3, 1)
    >>> mixer = mamba2(x[:, :1], x[:, :1], x, 0.5 * x[..., 0], torch.tensor([-1.0, -2.0]))
    >>> mixer.log_decay[0, :, 0], mixer.beta[0, 0, 0]
    (tensor([-0.5000, -1.0000]), tensor(0.5000))
    """
    decay = dt * a[:, None] if a.ndim == 1 else dt[..., None] * a[:, None]
    own = None if d is None else d[:, None].expand(dt.shape)
    q, k = _expand_heads(c, x), _expand_heads(b, x)
    given: dict[str, Any] = {"own": own, "state": state, "resets": resets}
    return LinearMixer(q=q, k=k, v=x, log_decay=decay, beta=dt, **given)


def diagonal_recurrence(
    x: Float[Tensor, "batch time dim"],
    log_decay: Float[Tensor, "batch time dim"],
    *,
    state: Float[Tensor, "batch dim"] | None = None,
    resets: Resets | None = None,
) -> LinearMixer:
    """A recurrence per channel, each channel a head: h_t = a_t h_{t-1} + x_t (RG-LRU).

    x is the gated input. A decay of 0 at the start of a document is a reset instead.

    >>> diagonal_recurrence(torch.ones(1, 2, 3), torch.zeros(1, 2, 3)).v.shape
    torch.Size([1, 3, 2, 1])
    """
    v = x.mT[..., None]
    one = torch.ones_like(v)
    first = None if state is None else state[..., None, None]
    return LinearMixer(q=one, k=one, v=v, log_decay=log_decay.mT, state=first, resets=resets)


def mlstm(
    q: Float[Tensor, "batch head time key_dim"],
    k: Float[Tensor, "batch head time key_dim"],
    v: Float[Tensor, "batch head time value"],
    input_gate: Rows,
    forget_gate: Rows,
    *,
    eps: float = 1e-6,
) -> LinearMixer:
    """The mLSTM of xLSTM, from gates before their exponential and sigmoid.

    S_t = σ(f_t) S_{t-1} + e^{i_t} k_t v_tᵀ,   y_t = S_tᵀ q_t / max(|n_tᵀ q_t|, 1), n the sum of
    decayed keys. The map is exact; influence leaves the normaliser as it is.

    >>> x, zero = torch.ones(1, 1, 2, 1), torch.zeros(1, 1, 2)
    >>> rg.ops.mixers.mix(mlstm(x, x, x, zero, zero, eps=0.0)).out.flatten()
    tensor([1., 1.])
    """
    q, k = upcast(q) * q.shape[-1] ** -0.5, upcast(k)
    log_f = torch.nn.functional.logsigmoid(forget_gate.double())
    # m_t = max(log f_t + m_{t-1}, i_t), for all t at once: what keeps the exponentials below 1
    total = log_f.cumsum(-1)
    m = total + (input_gate - total).cummax(-1)[0]
    before = torch.cat([m[..., :1] - log_f[..., :1], m[..., :-1]], -1)
    # at most 0, but for rounding
    decay = (log_f + before - m).clamp(max=0).to(q.dtype)
    beta = (input_gate - m).exp().to(q.dtype)
    one = torch.ones_like(v[..., :1], dtype=q.dtype)
    sums = compute_mix(LinearMixer(q=q, k=k, v=one, log_decay=decay, beta=beta)).out
    normaliser = torch.maximum(sums.abs(), (-m).exp()[..., None].to(q.dtype)) + eps
    return LinearMixer(q=q / normaliser, k=k, v=v, log_decay=decay, beta=beta)


def _expand_heads(x: Tensor, v: Tensor) -> Tensor:
    """Repeat each head of x for consecutive heads of v, as a view where there is one head."""
    groups, heads = x.shape[1], v.shape[1]
    if groups == heads:
        return x
    if heads % groups:
        raise ShapeError(f"v: needs a multiple of {groups} heads, got {heads}")
    return x[:, :, None].expand(-1, -1, heads // groups, -1, -1).flatten(1, 2)
