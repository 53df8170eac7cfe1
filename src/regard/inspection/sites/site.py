"""One attention that ran, kept so that anything can be asked of it later."""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from regard.errors import LookError, ShapeError
from regard.inspection.sites.breakdown import WeightBreakdown, compute_breakdown
from regard.inspection.sites.term_tensors import select_head
from regard.ops.indices import resolve_index
from regard.ops.influence.effect import AttentionRecord, Effect
from regard.ops.influence.op import influence
from regard.ops.influence.statistics import Influence
from regard.ops.survey.op import compute_survey as measure_survey
from regard.ops.survey.statistics import (
    DEFAULT_STATISTICS,
    Survey,
    check_statistics,
    make_survey_options,
)
from regard.ops.terms import Terms
from regard.ops.window import PoolReduce, compute_window

Tokens = list[list[str]]  # one list a sequence of the batch
MAX_MAP_WEIGHTS = 1 << 26  # numbers in a map given whole, 256 MB of float32


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Site:
    """One attention that ran: its queries, keys, values, output and log-sum-exp, and on what terms.

    w_ij = exp(s_ij - lse_i), for any query i and key j, whenever it is asked

    `name` is short and for people, `path` is the module's, `call` counts the calls of the module.
    If only a survey was kept, it is in `found` and the tensors have shapes but no numbers.

    >>> layer = rg.nn.MultiHeadAttention(8, 2)
    >>> with rg.look(layer) as sight:
    ...     _ = layer(torch.randn(1, 3, 8))
    >>> sight.sites[0]
    MultiHeadAttention: self, 2 heads, 3 queries, 3 keys
    """

    name: str
    path: str
    call: int = 0
    kind: Literal["self", "cross"] = "self"
    q: Float[Tensor, "batch head query head_dim"]
    k: Float[Tensor, "batch kv_head key other"]
    v: Float[Tensor, "batch kv_head key value"]
    out: Float[Tensor, "batch head query value"]
    lse: Float[Tensor, "batch head query"]
    terms: Terms
    query_tokens: Tokens | None = None
    key_tokens: Tokens | None = None
    recorded_survey: Survey | None = None

    @property
    def batch(self) -> int:
        """How many sequences ran side by side."""
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        """How many heads ask."""
        return self.q.shape[1]

    @property
    def queries(self) -> int:
        """How many positions ask."""
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        """How many positions answer."""
        return self.k.shape[2]

    @property
    def has_tensors(self) -> bool:
        """Whether the tensors are here, not only what a survey found."""
        return not self.q.is_meta

    def survey(
        self,
        *,
        statistics: Collection[str] | None = None,
        first_keys: int = 4,
        radius: int = 8,
        top_k: int = 8,
        pooled_size: int | tuple[int, int] = 256,
        backend: Literal["auto", "reference", "tiled", "kernel"] = "auto",
    ) -> Survey:
        """What the weights are like, as `rg.survey` finds it: entropy, reach, received mass …

        Without `ask` the statistics of `rg.survey`, or those that were found while looking, where
        only these were kept.

        >>> layer = rg.nn.MultiHeadAttention(2, 1)
        >>> with rg.look(layer) as sight:
        ...     _ = layer(torch.ones(1, 4, 2))
        >>> sight.sites[0].survey(statistics=["received"]).received
        tensor([[[1., 1., 1., 1.]]])
        """
        if not self.has_tensors and self.recorded_survey is not None:
            return (
                replace(self.recorded_survey)
                if statistics is None
                else self._recall(check_statistics(statistics))
            )
        self.require_tensors()
        asked = DEFAULT_STATISTICS if statistics is None else statistics
        question = make_survey_options(asked, first_keys, radius, top_k, pooled_size)
        return measure_survey(self.q, self.k, self.lse, self.terms, question, backend)

    def window(
        self,
        head: int | None = None,
        rows: slice | int = slice(None),
        keys: slice | int = slice(None),
        pool: tuple[int, int] = (1, 1),
        reduce: PoolReduce = "mean",
    ) -> Float[Tensor, "batch *head row column"]:
        """The exact weights of some rows and keys, or pooled; of one head, or of all.

        `rows` and `keys` are slices; a number is that one alone, and its axis stays.

        >>> layer = rg.nn.MultiHeadAttention(2, 1)
        >>> with rg.look(layer) as sight:
        ...     _ = layer(torch.ones(1, 4, 2))
        >>> sight.sites[0].window(head=0, rows=slice(0, 1)).shape
        torch.Size([1, 1, 4])
        """
        self.require_tensors()
        if head is None:
            return compute_window(self.q, self.k, self.lse, self.terms, rows, keys, pool, reduce)
        head = resolve_index("head", head, self.heads)
        terms = select_head(self.terms, head)
        if terms is None:  # a mask of the caller's own, which only knows all heads
            return self.window(None, rows, keys, pool, reduce)[:, head]
        own = head // (self.heads // self.k.shape[1])
        q, k = self.q[:, head : head + 1], self.k[:, own : own + 1]
        lse = self.lse[:, head : head + 1]
        return compute_window(q, k, lse, terms, rows, keys, pool, reduce)[:, 0]

    def influence(
        self,
        *,
        effect: Effect = "remove",
        alpha: float = 2.0,
        backend: Literal["auto", "reference", "tiled", "kernel"] = "auto",
    ) -> Influence:
        """What removing or scaling each key does to each output, as `rg.influence` finds it.

        >>> layer = rg.nn.MultiHeadAttention(2, 1)
        >>> with rg.look(layer) as sight:
        ...     _ = layer(torch.ones(1, 4, 2))
        >>> sight.sites[0].influence().effect_of_key.shape
        torch.Size([1, 1, 4])
        """
        self.require_tensors()
        seen = (self.q, self.k, self.v, self.out, self.lse)
        return influence(*seen, effect=effect, alpha=alpha, backend=backend, **self.term_kwargs)

    def weights(self) -> Float[Tensor, "batch head query key"]:
        """The whole map, for short inputs.

        >>> layer = rg.nn.MultiHeadAttention(2, 1)
        >>> with rg.look(layer) as sight:
        ...     _ = layer(torch.ones(1, 2, 2))
        >>> sight.sites[0].weights()
        tensor([[[[0.5000, 0.5000],
                  [0.5000, 0.5000]]]])
        """
        count = self.q.shape[:-1].numel() * self.keys
        if count > MAX_MAP_WEIGHTS:
            raise ShapeError(
                f"weights: needs at most {MAX_MAP_WEIGHTS} numbers, got {count}; "
                "try window(rows=…, keys=…, pool=…) or survey()"
            )
        return self.window()

    def breakdown(self, head: int, query: int, key: int, batch: int = 0) -> WeightBreakdown:
        """Every term of one weight: products, scale, softcap, bias, mask, score, lse, value.

        >>> layer = rg.nn.MultiHeadAttention(2, 1)
        >>> with rg.look(layer) as sight:
        ...     _ = layer(torch.ones(1, 4, 2))
        >>> sight.sites[0].breakdown(head=0, query=1, key=2).allowed
        True
        """
        self.require_tensors()
        return compute_breakdown(
            self.attention_record,
            resolve_index("batch", batch, self.batch),
            resolve_index("head", head, self.heads),
            resolve_index("query", query, self.queries),
            resolve_index("key", key, self.keys),
        )

    @property
    def attention_record(self) -> AttentionRecord:
        """The same as the closed forms of influence take it."""
        return AttentionRecord(self.q, self.k, self.v, self.out, self.lse, self.terms)

    @property
    def term_kwargs(self) -> dict[str, Any]:
        """The terms as keywords of `rg.survey`, `rg.window`, `rg.influence` …"""
        named = {f.name: getattr(self.terms, f.name) for f in fields(self.terms)}
        return named | ({} if self.terms.score is None else {"scale": None})

    def require_tensors(self) -> None:
        """Raise unless the tensors were kept."""
        if not self.has_tensors:
            raise LookError(
                f"{self.name}: needs its queries and keys for this, got only its survey; "
                "try look(model) without survey="
            )

    def _recall(self, ask: Collection[str]) -> Survey:
        for name in ask:
            if getattr(self.recorded_survey, name) is None:
                known = [
                    f.name
                    for f in fields(Survey)
                    if getattr(self.recorded_survey, f.name) is not None
                ]
                raise LookError(
                    f"ask: needs what was asked while looking, {', '.join(known)}, got {name!r}; "
                    "try look(model, survey=…) with it"
                )
        assert self.recorded_survey is not None
        return replace(self.recorded_survey)

    def __repr__(self) -> str:
        again = f" (call {self.call})" if self.call else ""
        sequences = f", batch of {self.batch}" if self.batch > 1 else ""
        return (
            f"{self.name}{again}: {self.kind}, {self.heads} heads, {self.queries} queries, "
            f"{self.keys} keys{sequences}"
        )
