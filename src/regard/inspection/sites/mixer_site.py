"""Recorded calls of linear mixers: linear attention, state spaces and short convolutions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.errors import LookError, ShapeError, counted
from regard.inspection.sites.labels import slice_tokens, strip_marks
from regard.inspection.sites.site import MAX_MAP_WEIGHTS, Tokens
from regard.ops import mixers
from regard.ops.indices import as_int_pair, resolve_index, resolve_slice
from regard.ops.maybe_none import MaybeNone
from regard.ops.mixers.chunked import slice_heads
from regard.ops.mixers.short_convolution import ShortConvolution
from regard.ops.mixers.statistics import check_mixer_statistics

SignedReduce = Literal["sum", "mean", "mass"]
CONVOLUTION_STATISTICS = ("mass", "received", "reach")
ATTENTION_ONLY = frozenset(
    ("q", "k", "v", "lse", "terms", "breakdown", "attention_record", "term_kwargs")
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MixerSite:
    """One recorded call of a linear mixer, from which its signed map and its states follow.

    y = W v plus what is read of the initial state: W is lower triangular and signed, so nothing
    here is a probability. Of a generated text every call has all tokens so far, as the keys of an
    attention: `offset` of them came before this call.

    >>> one = torch.ones(1, 1, 2, 1)
    >>> mixer = rg.ops.mixers.LinearMixer(q=one, k=one, v=one, log_decay=None, delta=True)
    >>> MixerSite(name="layers.0.mixer", path="layers.0.mixer", mixer=mixer, out=one)
    layers.0.mixer: delta rule, 1 head, 2 tokens
    """

    name: str
    path: str
    call: int = 0
    mixer: mixers.LinearMixer
    out: Float[Tensor, "batch head query value"]
    offset: int = 0
    tokens: Tokens | MaybeNone = None
    # of the convolution that made q, k and v, so that each of them reads a few tokens
    taps: Float[Tensor, "channel width"] | MaybeNone = None

    @property
    def kind(self) -> str:
        """What it computes, in words."""
        m = self.mixer
        gated = m.log_decay is not None
        channels = ", a decay per key channel" if gated and m.decays.shape[-1] > 1 else ""
        if m.delta:
            return ("gated delta rule" if gated else "delta rule") + channels
        if m.q.shape[-1] == m.v.shape[-1] == 1:
            return "recurrence per channel"
        return ("state space" if m.own is not None else "linear attention") + channels

    @property
    def batch(self) -> int:
        """Batch size."""
        return self.out.shape[0]

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.out.shape[1]

    @property
    def queries(self) -> int:
        """Number of tokens of this call."""
        return self.out.shape[2]

    @property
    def keys(self) -> int:
        """Number of tokens so far."""
        return self.mixer.time

    @property
    def decay(self) -> Float[Tensor, "batch head time channels"]:
        """Share of the state that each token keeps, e^{g_t}: one per head or per key channel."""
        return self.mixer.decays.exp()

    @property
    def write(self) -> Float[Tensor, "batch head time"]:
        """Write strength β_t of each token; of a state space its step size Δ_t."""
        return self.mixer.writes

    def window(
        self,
        head: int | None = None,
        rows: slice | int = slice(None),
        keys: slice | int = slice(None),
        pool: tuple[int, int] = (1, 1),
        reduce: SignedReduce = "mean",
    ) -> Float[Tensor, "batch *head row column"]:
        """Exact signed weights of a rectangle of the map, or cells of them.

        Args:
            head, pool: As in `Site.window`.
            rows: Tokens of this call, as a slice or one index; the axis stays.
            keys: Tokens so far, as a slice or one index; the axis stays.
            reduce: "sum" and "mean" are signed; "mass" is the mean of |w|.

        >>> one = torch.ones(1, 1, 2, 1)
        >>> mixer = rg.ops.mixers.LinearMixer(q=one, k=one, v=one, log_decay=None, delta=True)
        >>> MixerSite(name="mixer", path="mixer", mixer=mixer, out=one).window(head=0)
        tensor([[[1., 0.],
                 [0., 1.]]])
        """
        head = head if head is None else resolve_index("head", head, self.heads)
        heads = slice(None) if head is None else slice(head, head + 1)
        row = resolve_slice(rows, self.queries, "rows")
        key = resolve_slice(keys, self.keys, "keys")
        row = range(row.start + self.offset, row.stop + self.offset)
        w = _pool(self._window(heads, row, key), pool, reduce)
        return w if head is None else w[:, 0]

    def weights(self) -> Float[Tensor, "batch head query key"]:
        """The whole signed map, for short inputs."""
        count = self.out.shape[:3].numel() * self.keys
        if count > MAX_MAP_WEIGHTS:
            raise ShapeError(
                f"weights: needs at most {MAX_MAP_WEIGHTS} weights, got {count}; "
                "try window(rows=…, keys=…, pool=…) or survey()"
            )
        return self.window()

    def survey(self, *, statistics: Collection[str] | None = None) -> mixers.MixerSurvey:
        """Statistics of map, gates and states: mass, reach, half-life, surprise, rank …

        Statistics of queries are those of the tokens of this call; others are of the whole text.
        """
        result = mixers.mix_survey(self.mixer, statistics=statistics)
        rows = {
            f.name: x[..., self.offset :]
            for f in fields(result)
            if (x := getattr(result, f.name)) is not None and f.metadata["axis"] == "query"
        }
        return replace(result, **rows)

    def influence(self) -> mixers.MixerInfluence:
        """How far each output moves if a token is not written, exactly; summed both ways."""
        if not self.offset:
            return mixers.mix_influence(self.mixer)
        e = mixers.mix_influence_window(self.mixer, slice(self.offset, None))
        return mixers.MixerInfluence(effect_on_query=e.sum(-1), effect_of_key=e.sum(-2))

    def state(self, token: int = -1) -> Float[Tensor, "batch head key_dim value"]:
        """The state after a token, which counts from the start of the text."""
        return mixers.mix_state(self.mixer, token)

    def _window(self, heads: slice, rows: range, keys: range) -> Tensor:
        mixer = slice_heads(self.mixer, heads)
        return mixers.mix_window(mixer, slice(rows.start, rows.stop), slice(keys.start, keys.stop))

    def __getattr__(self, name: str) -> Any:
        if name in ATTENTION_ONLY:
            raise LookError(
                f"{name}: needs an attention, got {self.name}, a {self.kind}; "
                "try window, survey, influence or mixer"
            )
        raise AttributeError(name)

    def __repr__(self) -> str:
        call = f" (call {self.call})" if self.call else ""
        tokens = counted(self.queries, "token") + (f" after {self.offset}" if self.offset else "")
        taps = "" if self.taps is None else f", inputs from {self.taps.shape[-1]} tokens"
        batch = f", batch of {self.batch}" if self.batch > 1 else ""
        heads = counted(self.heads, "head")
        return f"{self.name}{call}: {self.kind}, {heads}, {tokens}{taps}{batch}"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ConvolutionSite(MixerSite):
    """One recorded call of a short causal convolution; each channel is a head.

    >>> convolution = ShortConvolution(x=torch.ones(1, 1, 3), taps=torch.tensor([[0.5, -1.0]]))
    >>> out = convolution.output()[..., None]
    >>> ConvolutionSite(name="conv", path="conv", mixer=convolution, out=out).window(head=0)
    tensor([[[-1.0000,  0.0000,  0.0000],
             [ 0.5000, -1.0000,  0.0000],
             [ 0.0000,  0.5000, -1.0000]]])
    """

    mixer: ShortConvolution  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def kind(self) -> str:
        return f"convolution over {self.mixer.width} tokens"

    def _window(self, heads: slice, rows: range, keys: range) -> Tensor:
        taps = self.mixer.taps[heads]
        lag = torch.arange(rows.start, rows.stop, device=taps.device)[:, None]
        lag = lag - torch.arange(keys.start, keys.stop, device=taps.device)
        inside = (lag >= 0) & (lag < self.mixer.width)
        w = taps[:, (self.mixer.width - 1 - lag).clamp(0, self.mixer.width - 1)]
        return w.where(inside, 0).expand(self.batch, -1, -1, -1)

    def survey(self, *, statistics: Collection[str] | None = None) -> mixers.MixerSurvey:
        """Mass, received mass and reach; a convolution has no state."""
        names = CONVOLUTION_STATISTICS if statistics is None else statistics
        names = check_mixer_statistics(names)
        if wrong := sorted(set(names) - set(CONVOLUTION_STATISTICS)):
            known = ", ".join(CONVOLUTION_STATISTICS)
            raise LookError(f"statistics: needs {known} of a convolution, got {wrong[0]!r}")
        width, t = self.mixer.width, torch.arange(self.keys, device=self.out.device)
        w = self.mixer.taps.detach().flip(-1).abs()  # by lag
        total = F.pad(w.cumsum(-1), (1, 0))
        count = (t[self.offset :] + 1).clamp(max=width)  # of visible tokens
        first, last = ((end - t).clamp(0, width) for end in (self.offset, self.keys))
        distance = F.pad((w * t.new_tensor(range(width))).cumsum(-1), (1, 0))[:, count]
        result = {
            "mass": total[:, count],
            "received": total[:, last] - total[:, first],
            "reach": distance / total[:, count].clamp(min=torch.finfo(w.dtype).tiny),
        }
        return mixers.MixerSurvey(
            **{name: result[name].expand(self.batch, -1, -1) for name in names}
        )

    def influence(self) -> mixers.MixerInfluence:
        """How far each output moves if a token is left out, before an activation."""
        x, taps = self.mixer.x.abs(), self.mixer.taps.abs()
        received = self.survey(statistics=["received"]).received
        on_query = ShortConvolution(x=x, taps=taps).output()[..., self.offset :]
        return mixers.MixerInfluence(effect_on_query=on_query, effect_of_key=received * x)

    def state(self, token: int = -1) -> Tensor:
        """The tokens that later outputs still read, (batch, channel, at most width - 1, 1)."""
        last = resolve_index("token", token, self.keys) + 1
        return self.mixer.x[..., max(0, last - self.mixer.width + 1) : last, None]

    @property
    def decay(self) -> Tensor:
        raise LookError(f"decay: needs a state, got {self.name}, a {self.kind}; try mixer.taps")

    @property
    def write(self) -> Tensor:
        return torch.ones_like(self.mixer.x)


def first_heads(site: MixerSite, count: int) -> MixerSite:
    """A site of the first heads alone, as a recurrence per channel has thousands."""
    if isinstance(site, ConvolutionSite):  # whose maps are bands
        return site
    mixer = slice_heads(site.mixer, slice(0, count))
    return replace(site, mixer=mixer, out=site.out[:, :count])


def label_mixers(
    sites: Sequence[MixerSite], tokens: Tokens | None, *, allow_longer: bool = False
) -> list[MixerSite]:
    """Label the tokens of sites where their number fits."""
    return [
        replace(site, tokens=slice_tokens(tokens, site.batch, 0, site.keys, allow_longer))
        for site in sites
    ]


def mixer_labels(site: MixerSite, batch: int = 0) -> tuple[list[str], list[str]]:
    """The labels of queries and keys: tokens, or positions if the tokens are unknown."""
    batch = resolve_index("batch", batch, site.batch)
    rows = None if site.tokens is None else site.tokens[batch]
    keys = [strip_marks(x) for x in rows] if rows else [str(i) for i in range(site.keys)]
    return keys[site.offset :], keys


def join_mixers(calls: Sequence[MixerSite]) -> MixerSite:
    """One site with the tokens of all calls, each of which continues the previous one."""
    first, last = calls[0], calls[-1]
    ends = [site.offset + site.queries for site in calls]
    starts = [first.offset, *ends[:-1]]
    if any(x.batch != first.batch for x in calls) or starts != [x.offset for x in calls]:
        raise LookError(
            f"{first.name}: needs calls that continue each other, got others; "
            f"try sight[{first.name!r}, 0] by itself"
        )
    out = torch.cat([site.out for site in calls], 2)
    return replace(last, call=0, offset=first.offset, out=out)


def _pool(w: Tensor, pool: tuple[int, int], reduce: SignedReduce) -> Tensor:
    """Cells of some rows and columns; the last may be smaller."""
    if reduce not in get_args(SignedReduce):
        raise ShapeError(
            f"reduce: needs one of {', '.join(get_args(SignedReduce))}, got {reduce!r}; "
            "weights of a linear mixer are signed"
        )
    w = w.abs() if reduce == "mass" else w
    for axis, size in zip((-2, -1), as_int_pair("pool", pool), strict=True):
        if size > 1 and w.shape[axis]:
            parts = w.split(size, axis)
            cells = [x.sum(axis) if reduce == "sum" else x.mean(axis) for x in parts]
            w = torch.stack(cells, axis)
    return w
