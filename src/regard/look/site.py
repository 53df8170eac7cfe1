"""One attention that ran, kept so that anything can be asked of it later."""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from regard.errors import LookError, ShapeError
from regard.look.cell import Cell, cell_of
from regard.look.pieces import one_head
from regard.ops.indices import index_of
from regard.ops.influence.effect import Deed, Seen
from regard.ops.influence.op import influence
from regard.ops.influence.statistics import Influence
from regard.ops.survey.op import measure as measure_survey
from regard.ops.survey.statistics import QUICK_AND_RECEIVED, Survey, make_question, named
from regard.ops.terms import Terms
from regard.ops.window import Reduce, cut_window

Tokens = list[list[str]]  # one list a sequence of the batch
WHOLE_MAP = 1 << 26  # numbers in a map given whole, 256 MB of float32


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
    q: Float[Tensor, "batch head query feat"]
    k: Float[Tensor, "batch key_head key other"]
    v: Float[Tensor, "batch key_head key value"]
    out: Float[Tensor, "batch head query value"]
    lse: Float[Tensor, "batch head query"]
    terms: Terms
    query_tokens: Tokens | None = None
    key_tokens: Tokens | None = None
    found: Survey | None = None

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
    def kept(self) -> bool:
        """Whether the tensors are here, not only what a survey found."""
        return not self.q.is_meta

    def survey(
        self,
        *,
        ask: Collection[str] | None = None,
        first: int = 4,
        radius: int = 8,
        most: int = 8,
        cells: int | tuple[int, int] = 256,
        form: Literal["auto", "reference", "tiled", "kernel"] = "auto",
    ) -> Survey:
        """What the weights are like, as `rg.survey` finds it: entropy, reach, received mass …

        Without `ask` the statistics of `rg.survey`, or those that were found while looking, where
        only these were kept.

        >>> layer = rg.nn.MultiHeadAttention(2, 1)
        >>> with rg.look(layer) as sight:
        ...     _ = layer(torch.ones(1, 4, 2))
        >>> sight.sites[0].survey(ask=["received"]).received
        tensor([[[1., 1., 1., 1.]]])
        """
        if not self.kept and self.found is not None:
            return replace(self.found) if ask is None else self._recall(named(ask))
        self.need()
        asked = QUICK_AND_RECEIVED if ask is None else ask
        question = make_question(asked, first, radius, most, cells)
        return measure_survey(self.q, self.k, self.lse, self.terms, question, form)

    def window(
        self,
        head: int | None = None,
        rows: slice | int = slice(None),
        keys: slice | int = slice(None),
        pool: tuple[int, int] = (1, 1),
        reduce: Reduce = "mean",
    ) -> Float[Tensor, "batch *head row column"]:
        """The exact weights of some rows and keys, or pooled; of one head, or of all.

        `rows` and `keys` are slices; a number is that one alone, and its axis stays.

        >>> layer = rg.nn.MultiHeadAttention(2, 1)
        >>> with rg.look(layer) as sight:
        ...     _ = layer(torch.ones(1, 4, 2))
        >>> sight.sites[0].window(head=0, rows=slice(0, 1)).shape
        torch.Size([1, 1, 4])
        """
        self.need()
        if head is None:
            return cut_window(self.q, self.k, self.lse, self.terms, rows, keys, pool, reduce)
        head = index_of("head", head, self.heads)
        terms = one_head(self.terms, head)
        if terms is None:  # a mask of the caller's own, which only knows all heads
            return self.window(None, rows, keys, pool, reduce)[:, head]
        own = head // (self.heads // self.k.shape[1])
        q, k = self.q[:, head : head + 1], self.k[:, own : own + 1]
        lse = self.lse[:, head : head + 1]
        return cut_window(q, k, lse, terms, rows, keys, pool, reduce)[:, 0]

    def influence(
        self,
        *,
        deed: Deed = "remove",
        alpha: float = 2.0,
        form: Literal["auto", "reference", "tiled", "kernel"] = "auto",
    ) -> Influence:
        """What removing or scaling each key does to each output, as `rg.influence` finds it.

        >>> layer = rg.nn.MultiHeadAttention(2, 1)
        >>> with rg.look(layer) as sight:
        ...     _ = layer(torch.ones(1, 4, 2))
        >>> sight.sites[0].influence().caused.shape
        torch.Size([1, 1, 4])
        """
        self.need()
        seen = (self.q, self.k, self.v, self.out, self.lse)
        return influence(*seen, deed=deed, alpha=alpha, form=form, **self.asked)

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
        if count > WHOLE_MAP:
            raise ShapeError(
                f"weights: needs at most {WHOLE_MAP} numbers, got {count}; "
                "try window(rows=…, keys=…, pool=…) or survey()"
            )
        return self.window()

    def cell(self, head: int, query: int, key: int, batch: int = 0) -> Cell:
        """Every term of one weight: products, scale, softcap, bias, mask, score, lse, value.

        >>> layer = rg.nn.MultiHeadAttention(2, 1)
        >>> with rg.look(layer) as sight:
        ...     _ = layer(torch.ones(1, 4, 2))
        >>> sight.sites[0].cell(head=0, query=1, key=2).allowed
        True
        """
        self.need()
        return cell_of(
            self.seen,
            index_of("batch", batch, self.batch),
            index_of("head", head, self.heads),
            index_of("query", query, self.queries),
            index_of("key", key, self.keys),
        )

    @property
    def seen(self) -> Seen:
        """The same as the closed forms of influence take it."""
        return Seen(self.q, self.k, self.v, self.out, self.lse, self.terms)

    @property
    def asked(self) -> dict[str, Any]:
        """The terms as keywords of `rg.survey`, `rg.window`, `rg.influence` …"""
        named = {f.name: getattr(self.terms, f.name) for f in fields(self.terms)}
        return named | ({} if self.terms.score is None else {"scale": None})

    def need(self) -> None:
        """Raise unless the tensors were kept."""
        if not self.kept:
            raise LookError(
                f"{self.name}: needs its queries and keys for this, got only its survey; "
                "try look(model) without survey="
            )

    def _recall(self, ask: Collection[str]) -> Survey:
        for name in ask:
            if getattr(self.found, name) is None:
                known = [f.name for f in fields(Survey) if getattr(self.found, f.name) is not None]
                raise LookError(
                    f"ask: needs what was asked while looking, {', '.join(known)}, got {name!r}; "
                    "try look(model, survey=…) with it"
                )
        assert self.found is not None
        return replace(self.found)

    def __repr__(self) -> str:
        again = f" (call {self.call})" if self.call else ""
        sequences = f", batch of {self.batch}" if self.batch > 1 else ""
        return (
            f"{self.name}{again}: {self.kind}, {self.heads} heads, {self.queries} queries, "
            f"{self.keys} keys{sequences}"
        )
