"""One description of every linear mixer: what each token reads, forgets and writes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.indices import as_ints, resolve_index
from regard.ops.terms import upcast


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearMixer:
    """The quantities of each token in a layer whose state is a matrix S, (key_dim, value_dim).

    S_t = diag(e^{g_t}) S_{t-1} + β_t k_t r_tᵀ,   y_t = S_tᵀ q_t + own_t v_t
    r_t = v_t, or with the delta rule  r_t = v_t - (diag(e^{g_t}) S_{t-1})ᵀ k_t

    So y = W v plus what is read of the initial state, with a lower triangular, signed map W per
    head. A layer that adapts one of these forms: gated delta rule, KDA (a decay per key channel),
    Mamba-2 (`delta=False`, β the step size), lightning attention and retention (a constant decay),
    RG-LRU and Mamba-1 (each channel is a head with one value), RWKV-5 and 6 (`reads_before`).
    RWKV-7 is none: it erases along another direction than it writes.

    >>> one = torch.ones(1, 1, 2, 1)
    >>> mixer = LinearMixer(q=one, k=one, v=one, log_decay=torch.full((1, 1, 2), 0.5).log())
    >>> rg.ops.mixers.mix(mixer).out.flatten()  # 1, then 0.5 · 1 + 1
    tensor([1.0000, 1.5000])
    """

    q: Float[Tensor, "batch head time key_dim"]
    k: Float[Tensor, "batch head time key_dim"]
    v: Float[Tensor, "batch head time value"]
    # g_t ≤ 0, one per head or one per key channel; None forgets nothing
    log_decay: Float[Tensor, "batch head time"] | Float[Tensor, "batch head time key_dim"] | None
    beta: Float[Tensor, "batch head time"] | None = None  # write strength, None is 1
    delta: bool = False  # write the prediction error instead of the value
    # y_t reads the state before the decay and the write of token t
    reads_before: bool = False
    # weight of a token's own value beside the state: D of Mamba-2, q · (u ∘ k) of RWKV
    own: Float[Tensor, "batch head time"] | None = None
    state: Float[Tensor, "batch head key_dim value"] | None = None  # initial, None is zeros
    resets: Bool[Tensor, "batch time"] | None = None  # the state is cleared before this token

    def __post_init__(self) -> None:
        if self.delta and self.reads_before:
            raise ShapeError("reads_before: needs delta=False, got delta=True")
        shape, value = self.q.shape, self.v.shape[-1]
        if len(shape) != 4:
            raise ShapeError(f"q: needs (batch, head, time, key_dim), got {tuple(shape)}")
        batch, head, time, dim = shape
        rows, state = (batch, head, time), (batch, head, dim, value)
        rules = {
            "k": [shape], "v": [(*rows, value)], "log_decay": [rows, shape], "beta": [rows],
            "own": [rows], "state": [state], "resets": [(batch, time)],
        }  # fmt: skip
        for name, shapes in rules.items():
            x = getattr(self, name)
            if x is not None and tuple(x.shape) not in map(tuple, shapes):
                needs = " or ".join(str(tuple(s)) for s in shapes)
                raise ShapeError(f"{name}: needs {needs}, got {tuple(x.shape)}")

    @property
    def time(self) -> int:
        """The number of tokens."""
        return self.q.shape[-2]

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.q.device

    @property
    def writes(self) -> Float[Tensor, "batch head time"]:
        """β, ones where every token is written in full."""
        return torch.ones_like(self.q[..., 0]) if self.beta is None else self.beta

    @property
    def decays(self) -> Float[Tensor, "batch head time channels"]:
        """The logarithms of the decay, one per key channel or a single one for all."""
        if self.log_decay is None:
            return torch.zeros_like(self.q[..., :1])
        return self.log_decay if self.log_decay.ndim == 4 else self.log_decay[..., None]

    def map_tensors(
        self, change: Callable[[str, Tensor], Tensor], **others: Tensor | None
    ) -> "LinearMixer":
        """The same with each tensor changed, given its name; `others` are replaced."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in others}
        changed = {name: change(name, x) for name, x in named.items() if torch.is_tensor(x)}
        return replace(self, **changed, **others)

    def upcast(self) -> "LinearMixer":
        """The same in float32, where a tensor is of half precision."""
        return self.map_tensors(lambda _, x: upcast(x))

    def without_writes(self, tokens: int | Iterable[int]) -> "LinearMixer":
        """The mixer if these tokens were not written: β = 0."""
        beta = self.writes.clone()
        for token in as_ints("tokens", tokens):
            beta[..., resolve_index("tokens", token, self.time)] = 0
        return replace(self, beta=beta)
