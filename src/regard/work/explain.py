"""Arithmetic of one attention weight of a recorded model, step by step."""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import sympy

from regard.errors import WorkError
from regard.work.rules import M, Matrix
from regard.work.show.formats import as_markdown
from regard.work.solution import Solution, SolutionBuilder

if TYPE_CHECKING:
    from torch import Tensor

    from regard.inspection.sites.breakdown import WeightBreakdown
    from regard.inspection.sites.site import Site

DIGITS = 17  # significant digits of a float64
MAX_TERMS = 16  # terms shown separately


@dataclass(frozen=True)
class Explanation(Solution):
    """Solution that derives one attention weight; prints as text, renders as HTML in notebooks.

    >>> site = rg.make_site(torch.eye(2), torch.eye(2), tokens=["a", "b"], scale=1.0)
    >>> rg.explain(site, head=0, query=0, key=1).title
    "attention, head 0: query 0 'a' gives key 1 'b' the weight 0.268941"
    """

    title: str = ""
    breakdown: Any = None  # regard.inspection WeightBreakdown: the same numbers as tensors

    def __str__(self) -> str:
        return f"{self.title}\n\n{super().__str__()}"

    def _repr_html_(self) -> str:
        return f"<h3>{escape(self.title)}</h3>{super()._repr_html_()}"

    def _repr_markdown_(self) -> str:
        return f"# {self.title}\n\n{as_markdown(self)}"

    def to_json(self) -> dict[str, Any]:
        """JSON-serialisable dict: the title and the solution."""
        return {"title": self.title} | super().to_json()


def explain(
    site: "Site",
    head: int,
    query: int,
    key: int,
    *,
    batch: int = 0,
    max_terms: int = 4,
    w_out: "Tensor | None" = None,
) -> Explanation:
    """Derive one attention weight from q, k and lse, and its contribution to the output.

    Args:
        site: recorded attention.
        head, query, key: indices of the weight; negative ones count from the end.
        batch: index of the sequence.
        max_terms: number of largest products shown separately; the others are summed.
        w_out: output projection per head, as `output_projection` returns it; adds the contribution
            after the projection.

    >>> site = rg.make_site(torch.eye(2), torch.eye(2), scale=1.0)
    >>> explanation = rg.explain(site, head=0, query=0, key=1)
    >>> [step.name for step in explanation.steps]
    ['P', 'd', 's', 'w', 'c']
    """
    from regard.inspection.attribution.relevance import check_output_projection

    if not 1 <= max_terms <= MAX_TERMS:
        raise WorkError(f"max_terms: needs 1 to {MAX_TERMS} terms, got {max_terms}")
    breakdown = site.breakdown(head, query, key, batch)
    index = (batch, head % site.heads, query % site.queries, key % site.keys)
    builder = SolutionBuilder("explain", {})
    score = _add_score(builder, site, breakdown, index, max_terms)
    builder.add_given("L", _row([breakdown.lse]))
    title = "the weight: divided by exp(L), the sum over all keys of this query"
    builder.add_step("w", "weight", score, "L", title=title)
    first = _add_largest(builder, "g", breakdown.contribution, max_terms)
    builder.add_given("v", _row(breakdown.value[first].tolist()))
    builder.add_given("h", _row(breakdown.out[first].tolist()))
    title = "contribution of this key to the output h, at its largest features g"
    builder.add_step("c", "scale", "v", "w", title=title)
    if w_out is not None:
        check_output_projection(site, w_out)
        projected = breakdown.value @ w_out[index[1]].detach().double().cpu()
        first = _add_largest(builder, "n", projected, max_terms)
        builder.add_given("u", _row(projected[first].tolist()))
        title = "the contribution after the output projection, u = v W_O, at its largest features n"
        builder.add_step("y", "scale", "u", "w", title=title)
    builder.remarks += _remarks(site, breakdown, index)
    title = _title(site, index, breakdown.weight)
    return Explanation(**vars(builder.build()), title=title, breakdown=breakdown)


CellIndex = tuple[int, int, int, int]  # batch, head, query, key


def _add_score(
    builder: SolutionBuilder,
    site: "Site",
    breakdown: "WeightBreakdown",
    index: CellIndex,
    max_terms: int,
) -> str:
    """Add the steps from the products to the score; return the name of the last one."""
    if breakdown.products is None:
        # a custom score function has no products
        name = builder.add_given("s", _row([breakdown.scaled]))
    else:
        name = _add_dot(builder, site, breakdown.products, index, max_terms)
        builder.add_given("β", _row([breakdown.scale]))
        name = builder.add_step("s", "scale", name, "β", title="scaled")
    if breakdown.softcap is not None:
        builder.add_given("cap", _row([breakdown.softcap]))
        name = builder.add_step("z", "softcap", name, "cap", title="soft-capped to (-cap, cap)")
    if site.terms.bias is not None:
        builder.add_given("b", _row([breakdown.bias]))
        name = builder.add_step("t", "add", name, "b", title="with the bias of this pair")
    if site.terms.mask is not None:
        builder.add_given("m", M([[int(breakdown.allowed)]]))
        title = "the mask allows this key" if breakdown.allowed else "the mask hides this key"
        name = builder.add_step("r", "mask", name, "m", title=title)
    return name


def _add_dot(
    builder: SolutionBuilder, site: "Site", products: "Tensor", index: CellIndex, max_terms: int
) -> str:
    batch, head, query, key = index
    first = _add_largest(builder, "f", products, max_terms)
    kv_head = head // (site.heads // site.k.shape[1])  # grouped-query attention
    for name, x in (("q", site.q[batch, head, query]), ("k", site.k[batch, kv_head, key])):
        builder.add_given(name, _row(x.double()[first.to(x.device)].tolist()))
    title = "query times key at the features f with the largest products"
    name = builder.add_step("P", "elementwise product", "q", "k", title=title)
    if len(first) == len(products):
        return builder.add_step("d", "sum over rows", name, title="the dot product")
    builder.add_given("rest", _row([(products.sum() - products[first].sum()).item()]))
    title = f"the dot product, with the sum of the other {len(products) - len(first)} terms"
    return builder.add_step("d", "sum with remainder", name, "rest", title=title)


def _add_largest(builder: SolutionBuilder, name: str, x: "Tensor", max_terms: int) -> "Tensor":
    """Indices of the largest entries of a vector, added to the given matrices."""
    first = x.abs().argsort(descending=True)[:max_terms]
    builder.add_given(name, M([first.tolist()]))
    return first


def _remarks(site: "Site", breakdown: "WeightBreakdown", index: CellIndex) -> list[str]:
    """Rank of this key, its competitors, the sink's share, and its share of the output."""
    batch, head, query, key = index
    row = site.window(head=head, rows=slice(query, query + 1))[batch, 0].double()
    order = row.argsort(descending=True).tolist()
    remarks = [f"Rank {order.index(key) + 1} of {site.keys} keys by weight."]
    others = [n for n in order if n != key][:3]
    weights = [f"{n}{_token(site.key_tokens, batch, n)} {row[n].item():.4g}" for n in others]
    if weights:
        remarks.append(f"Largest other weights: {', '.join(weights)}.")
    if site.terms.sinks is not None:
        sink = (site.terms.sinks[head].double().cpu() - breakdown.lse).exp().item()
        text = f"A sink takes {sink:.4g} of this query's weight and adds nothing to the output."
        remarks.append(text)
    size = (breakdown.out @ breakdown.out).item()
    if size > 0:
        part = (breakdown.contribution @ breakdown.out).item() / size
        text = f"This key contributes {part:.1%} of the output, projected on its direction."
        remarks.append(text)
    return remarks


def _title(site: "Site", index: CellIndex, weight: float) -> str:
    batch, head, query, key = index
    query_text = f"query {query}{_token(site.query_tokens, batch, query)}"
    key_text = f"key {key}{_token(site.key_tokens, batch, key)}"
    return f"{site.name}, head {head}: {query_text} gives {key_text} the weight {weight:.6g}"


def _token(tokens: list[list[str]] | None, batch: int, index: int) -> str:
    return "" if tokens is None else f" {tokens[batch][index]!r}"


def _row(numbers: list[float]) -> Matrix:
    infinite = {float("inf"): sympy.oo, float("-inf"): -sympy.oo}
    return M([[infinite.get(x) or sympy.Float(x, DIGITS) for x in numbers]])
