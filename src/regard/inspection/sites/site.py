"""One recorded attention call, from which any weight can be recomputed."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from html import escape
from operator import and_
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import LookError, ShapeError, counted
from regard.inspection.sites.breakdown import WeightBreakdown, compute_breakdown
from regard.ops import Influence
from regard.ops.attend import attend
from regard.ops.attend.reference import PoolReduce, compute_window
from regard.ops.grid import to_4d
from regard.ops.indices import resolve_index
from regard.ops.influence.effect import AttentionRecord, Effect
from regard.ops.influence.op import influence
from regard.ops.masks import ChosenKeys
from regard.ops.maybe_none import MaybeNone
from regard.ops.survey.op import compute_survey
from regard.ops.survey.statistics import (
    DEFAULT_STATISTICS,
    Survey,
    check_statistics,
    make_survey_options,
)
from regard.ops.terms import Terms, make_terms
from regard.tables import html_table

Tokens = list[list[str]]  # one list per sequence of the batch
MAX_MAP_WEIGHTS = 1 << 26  # of `weights`: 256 MB of float32
MAX_HTML_WEIGHTS = 1 << 24  # surveyed for display; takes well under a second


class PatchGrid(NamedTuple):
    """The keys that are the patches of one picture, or of one crop: row by row from `first`.

    >>> PatchGrid(first=1, rows=14, columns=14).stop
    197
    """

    first: int  # after a class token, registers or words
    rows: int
    columns: int
    batch: int = 0  # the sequence
    picture: int = 0
    merge: int = 1  # patches come in squares of so many rows and columns

    @property
    def stop(self) -> int:
        """The key after the last patch."""
        return self.first + self.rows * self.columns


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Site:
    """One recorded attention call: queries, keys, values, output, log-sum-exp and score terms.

    w_ij = exp(s_ij - lse_i), for any query i and key j, recomputed on demand

    `name` is short and readable, `path` is the module's path, `call` counts the calls of the
    module. `patches` says which keys are patches of pictures. If only a survey was recorded, it is
    in `recorded_survey` and the tensors are on the meta device.

    >>> rg.make_site(*torch.zeros(2, 2, 3, 8))
    attention: self, 2 heads, 3 queries, 3 keys
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
    query_tokens: Tokens | MaybeNone = None
    key_tokens: Tokens | MaybeNone = None
    recorded_survey: Survey | None = None
    patches: tuple[PatchGrid, ...] = ()

    @property
    def batch(self) -> int:
        """Batch size."""
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.q.shape[1]

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.k.shape[2]

    @property
    def has_tensors(self) -> bool:
        """Whether the tensors were recorded, not only a survey."""
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
        """Statistics of the attention weights, with the options of `rg.survey`.

        By default its statistics, or those recorded if only a survey was recorded.

        >>> rg.make_site(*torch.zeros(2, 4, 2)).survey(statistics=["received"]).received
        tensor([[[1., 1., 1., 1.]]])
        """
        if not self.has_tensors and self.recorded_survey is not None:
            recorded = [name for name, x in vars(self.recorded_survey).items() if x is not None]
            names = () if statistics is None else check_statistics(statistics)
            if missing := set(names).difference(recorded):
                raise LookError(
                    f"statistics: needs some of those recorded, {', '.join(recorded)}, got "
                    f"{min(missing)!r}; try look(model, survey=…) with it"
                )
            return replace(self.recorded_survey)
        self.require_tensors()
        names = DEFAULT_STATISTICS if statistics is None else statistics
        options = make_survey_options(names, first_keys, radius, top_k, pooled_size)
        return compute_survey(self.q, self.k, self.lse, self.terms, options, backend)

    def window(
        self,
        head: int | None = None,
        rows: slice | int = slice(None),
        keys: slice | int = slice(None),
        pool: tuple[int, int] = (1, 1),
        reduce: PoolReduce = "mean",
    ) -> Float[Tensor, "batch *head row column"]:
        """Exact or pooled attention weights of a rectangle of the map.

        Args:
            head: One head, whose axis is dropped; all heads by default.
            rows: Queries, as a slice or one index; the axis stays.
            keys: Keys, as a slice or one index; the axis stays.
            pool: Rows and columns per pooled cell.
            reduce: How a cell is pooled.

        >>> rg.make_site(*torch.zeros(2, 4, 2)).window(head=0, rows=slice(0, 1)).shape
        torch.Size([1, 1, 4])
        """
        self.require_tensors()
        if head is None:
            return compute_window(self.q, self.k, self.lse, self.terms, rows, keys, pool, reduce)
        head = resolve_index("head", head, self.heads)
        terms = select_head(self.terms, head)
        if terms is None:  # a custom mask is only defined for all heads together
            return self.window(None, rows, keys, pool, reduce)[:, head]
        kv_head = head // (self.heads // self.k.shape[1])
        q, k = self.q[:, head : head + 1], self.k[:, kv_head : kv_head + 1]
        lse = self.lse[:, head : head + 1]
        return compute_window(q, k, lse, terms, rows, keys, pool, reduce)[:, 0]

    def influence(
        self,
        *,
        effect: Effect = "remove",
        alpha: float = 2.0,
        backend: Literal["auto", "reference", "tiled", "kernel"] = "auto",
    ) -> Influence:
        """Effect of removing or scaling each key on each output, as `rg.influence`.

        >>> rg.make_site(*torch.zeros(2, 4, 2)).influence().effect_of_key.shape
        torch.Size([1, 1, 4])
        """
        self.require_tensors()
        tensors = (self.q, self.k, self.v, self.out, self.lse)
        return influence(*tensors, effect=effect, alpha=alpha, backend=backend, **self.term_kwargs)

    def weights(self) -> Float[Tensor, "batch head query key"]:
        """All attention weights, for short inputs.

        >>> rg.make_site(*torch.zeros(2, 2, 2)).weights()
        tensor([[[[0.5000, 0.5000],
                  [0.5000, 0.5000]]]])
        """
        count = self.q.shape[:-1].numel() * self.keys
        if count > MAX_MAP_WEIGHTS:
            raise ShapeError(
                f"weights: needs at most {MAX_MAP_WEIGHTS} weights, got {count}; "
                "try window(rows=…, keys=…, pool=…) or survey()"
            )
        return self.window()

    def left_out(self) -> Float[Tensor, "batch head query"]:
        """Share of the attention to all visible keys that an indexer's choice leaves out.

        1 - exp(lse - lse_all),   lse_all over the keys that the mask without the indexer allows

        >>> chosen = rg.ops.masks.ChosenKeys(torch.tensor([[True, True, False, False]]))
        >>> rg.make_site(torch.zeros(1, 2), torch.zeros(4, 2), mask=chosen).left_out()
        tensor([[[0.5000]]])
        """
        self.require_tensors()
        parts = [] if self.terms.mask is None else self.terms.mask.parts
        others = [mask for mask in parts if not isinstance(mask, ChosenKeys)]
        if len(others) == len(parts):
            raise LookError(f"left_out: needs keys chosen by an indexer, got none in {self.name}")
        mask = reduce(and_, others) if others else None
        terms = {**self.term_kwargs, "mask": mask}
        every = attend(self.q, self.k, self.k[..., :1], **terms)[1]
        return -torch.expm1((self.lse - every).nan_to_num(0).clamp(max=0))

    def breakdown(self, head: int, query: int, key: int, batch: int = 0) -> WeightBreakdown:
        """Every term of one weight: products, scale, softcap, bias, mask, score, lse, value.

        >>> rg.make_site(*torch.zeros(2, 4, 2)).breakdown(head=0, query=1, key=2).allowed
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
        """The tensors and terms as an `AttentionRecord` of ops."""
        return AttentionRecord(self.q, self.k, self.v, self.out, self.lse, self.terms)

    @property
    def term_kwargs(self) -> dict[str, Any]:
        """The terms as keyword arguments of `rg.survey`, `rg.window`, `rg.influence` …"""
        kwargs = {f.name: getattr(self.terms, f.name) for f in fields(self.terms)}
        return kwargs | ({} if self.terms.score is None else {"scale": None})

    def require_tensors(self) -> None:
        """Raise unless the tensors were recorded."""
        if not self.has_tensors:
            raise LookError(
                f"{self.name}: needs its queries and keys for this, got only its survey; "
                "try look(model) without survey="
            )

    def __repr__(self) -> str:
        call = f" (call {self.call})" if self.call else ""
        batch = f", batch of {self.batch}" if self.batch > 1 else ""
        sizes = (self.heads, "head"), (self.queries, "query"), (self.keys, "key")
        return f"{self.name}{call}: {self.kind}, {', '.join(counted(*x) for x in sizes)}{batch}"

    def _repr_html_(self) -> str:
        """The repr and, for short inputs, the mean of each query statistic per head."""
        title = f"<p>{escape(repr(self))}</p>"
        if not self.has_tensors or self.q.shape[:-1].numel() * self.keys > MAX_HTML_WEIGHTS:
            return title
        names = ("entropy", "peak", "mean_distance", "self_share", "first_share", "local_share")
        survey = self.survey(statistics=names)
        means = [getattr(survey, name).detach().mean((0, 2)).tolist() for name in names]
        return title + html_table(("head", *names), zip(range(self.heads), *means, strict=True))


Tree = TypeVar("Tree")


def map_tensors(x: Tree, fn: Callable[[Tensor], Tensor]) -> Tree:
    """Apply `fn` to every tensor of a mask, bias or terms, recursively.

    >>> map_tensors(rg.Padding(torch.tensor(2)) & rg.Causal(), lambda x: x + 1)
    Both(a=Padding(lengths=tensor(3), left_padding=None), b=Causal())
    """
    if isinstance(x, Tensor):
        return fn(x)  # type: ignore[return-value]
    changed = {}
    for name in getattr(type(x), "__dataclass_fields__", ()):
        old = getattr(x, name)
        if old is not None and (new := map_tensors(old, fn)) is not old:
            changed[name] = new
    return replace(x, **changed) if changed else x  # type: ignore[type-var, return-value]


def is_same(a: object, b: object) -> bool:
    """Whether two masks, biases or terms are equal, their tensors by value.

    >>> is_same(rg.Padding(torch.tensor([2, 3])), rg.Padding(torch.tensor([2, 3])))
    True
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    names = getattr(type(a), "__dataclass_fields__", ())
    if type(a) is not type(b) or not names:
        return a is b or a == b
    return all(is_same(getattr(a, name), getattr(b, name)) for name in names)


def select_head(terms: Terms, head: int) -> Terms | None:
    """The terms of one head; None if a custom mask or bias cannot be split by head.

    >>> select_head(Terms(scale=1.0, sinks=torch.tensor([1.0, 2.0])), 1).sinks
    tensor([2.])
    """
    mask = terms.mask and terms.mask.head_view(head)
    bias = terms.bias and terms.bias.head_view(head)
    if (mask is None) != (terms.mask is None) or (bias is None) != (terms.bias is None):
        return None
    sinks = None if terms.sinks is None else terms.sinks[head : head + 1]
    return replace(terms, mask=mask, bias=bias, sinks=sinks)


def make_site(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*keys_batch key other"],
    v: Float[Tensor, "*keys_batch key value"] | None = None,
    *,
    name: str = "attention",
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    **terms,
) -> Site:
    """Make a site from queries, keys and values, as if a model had computed them.

    Args:
        q, k, v: Queries, keys and values; the values are the keys by default.
        name: Name of the site.
        tokens: One label per query; also of the keys, unless `key_tokens` is given.
        key_tokens: One label per key; makes it a cross-attention.
        terms: mask, bias, scale, softcap, sinks, score, offset, as in `rg.attend`.

    >>> q = k = torch.zeros(2, 4)
    >>> rg.make_site(q, k, tokens=["a", "b"]).weights()
    tensor([[[[0.5000, 0.5000],
              [0.5000, 0.5000]]]])
    """
    q, k = to_4d(q), to_4d(k)
    v = k if v is None else to_4d(v)
    for side, given, x in (("tokens", tokens, q), ("key_tokens", key_tokens, k)):
        if given is not None and len(given) != x.shape[-2]:
            raise ShapeError(f"{side}: needs {x.shape[-2]}, one per position, got {len(given)}")
    crosses = key_tokens is not None or q.shape[-2] + terms.get("offset", 0) != k.shape[-2]
    labels, batch = key_tokens if crosses else tokens, q.shape[0]
    out, lse = attend(q, k, v, **terms)
    return Site(
        name=name,
        path=name,
        kind="cross" if crosses else "self",
        q=q,
        k=k,
        v=v,
        out=out,
        lse=lse,
        terms=make_terms(q, k, **terms),
        query_tokens=None if tokens is None else [list(tokens)] * batch,
        key_tokens=None if labels is None else [list(labels)] * batch,
    )
