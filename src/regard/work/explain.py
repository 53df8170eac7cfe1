"""One weight of a model that ran, worked step by step with the model's own numbers."""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import sympy

from regard.errors import WorkError
from regard.work.rules import M, Matrix
from regard.work.solution import Solution, SolutionBuilder

if TYPE_CHECKING:
    from torch import Tensor

    from regard.look.cell import Cell
    from regard.look.site import Site

DIGITS = 17  # of a float64
MAX_TERMS = 16  # terms that stand by themselves


@dataclass(frozen=True)
class Explanation(Solution):
    """The steps of one weight, a solution like any other; printed, it is text.

    >>> site = rg.site_of(torch.eye(2), torch.eye(2), tokens=["a", "b"], scale=1.0)
    >>> rg.explain(site, head=0, query=0, key=1).title
    "attention, head 0: query 0 'a' gives key 1 'b' the weight 0.268941"
    """

    title: str = ""
    cell: Any = None  # the same numbers as tensors

    def __str__(self) -> str:
        from regard.work.show.text import as_text

        return f"{self.title}\n\n{as_text(self)}"

    def _repr_html_(self) -> str:
        from regard.work.show.html import html_body

        return f"<h3>{escape(self.title)}</h3>{html_body(self)}"

    def _repr_markdown_(self) -> str:
        from regard.work.show.latex import as_markdown

        return f"# {self.title}\n\n{as_markdown(self)}"

    def to_json(self) -> dict[str, Any]:
        """The explanation as JSON can hold it."""
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
    """The arithmetic of one weight, and what that weight does to the output.

    The `most` largest terms stand by themselves, the rest is summed. With `w_out`, as
    `rg.output_weights` finds it, the way out through the output projection is told too.

    >>> site = rg.site_of(torch.eye(2), torch.eye(2), scale=1.0)
    >>> told = rg.explain(site, head=0, query=0, key=1)
    >>> [step.name for step in told.steps]
    ['P', 'd', 's', 'w', 'c']
    """
    if not 1 <= max_terms <= MAX_TERMS:
        raise WorkError(f"max_terms: needs 1 to {MAX_TERMS} terms, got {max_terms}")
    cell = site.cell(head, query, key, batch)
    head, query, key, batch = head % site.heads, query % site.queries, key % site.keys, batch
    working = SolutionBuilder("explain", {})
    score = _score(working, site, cell, (batch, head, query, key), max_terms)
    working.add_given("L", _row([cell.lse]))
    says = "the weight: divided by what all keys of this query add up to, which is exp(L)"
    working.add_step("w", "weight", score, "L", title=says)
    _output(working, cell, max_terms)
    if w_out is not None:
        _way_out(working, site, cell, w_out, head, max_terms)
    for sentence in _sentences(site, cell, (batch, head, query, key)):
        working.add_remark(sentence)
    done = working.build()
    title = _title(site, (batch, head, query, key), cell.weight)
    return Explanation(done.family, done.given, done.steps, done.remarks, title=title, cell=cell)


CellIndex = tuple[int, int, int, int]  # of a sequence, a head, a query, a key


def _score(working: SolutionBuilder, site: "Site", cell: "Cell", at: CellIndex, most: int) -> str:
    """From the products to the score; the name of the last step comes back."""
    if cell.products is None:
        name = working.add_given("s", _row([cell.scaled]))  # a score of the model's own making
    else:
        name = _dot(working, site, cell.products, at, most)
        working.add_given("β", _row([cell.scale]))
        name = working.add_step("s", "scale", name, "β", title="scaled")
    if cell.softcap is not None:
        working.add_given("cap", _row([cell.softcap]))
        name = working.add_step("z", "softcap", name, "cap", title="held between -cap and cap")
    if site.terms.bias is not None:
        working.add_given("b", _row([cell.bias]))
        name = working.add_step("t", "add", name, "b", title="with the bias of these two positions")
    if site.terms.mask is not None:
        working.add_given("m", M([[int(cell.allowed)]]))
        says = "the mask lets this key be seen" if cell.allowed else "the mask hides this key"
        name = working.add_step("r", "mask", name, "m", title=says)
    return name


def _dot(
    working: SolutionBuilder, site: "Site", products: "Tensor", at: CellIndex, most: int
) -> str:
    batch, head, query, key = at
    first = products.abs().argsort(descending=True)[:most]
    own = head // (site.heads // site.k.shape[1])  # a group of heads shares a key head
    working.add_given("f", M([first.tolist()]))
    working.add_given(
        "q", _row(site.q[batch, head, query].double()[first.to(site.q.device)].tolist())
    )
    working.add_given("k", _row(site.k[batch, own, key].double()[first.to(site.k.device)].tolist()))
    says = "query times key, the features f with the largest products"
    name = working.add_step("P", "elementwise product", "q", "k", title=says)
    if len(first) == len(products):
        return working.add_step(
            "d", "sum over rows", name, title="the dot product, all of its terms"
        )
    working.add_given("rest", _row([(products.sum() - products[first].sum()).item()]))
    says = f"the dot product, with the sum of the other {len(products) - len(first)} terms"
    return working.add_step("d", "sum with remainder", name, "rest", title=says)


def _output(working: SolutionBuilder, cell: "Cell", most: int) -> None:
    first = cell.share.abs().argsort(descending=True)[:most]
    working.add_given("g", M([first.tolist()]))
    working.add_given("v", _row(cell.value[first].tolist()))
    working.add_given("h", _row(cell.out[first].tolist()))
    says = "what this key adds to the output, at the features g, where the output is h"
    working.add_step("c", "scale", "v", "w", title=says)


def _way_out(
    working: SolutionBuilder, site: "Site", cell: "Cell", w_out: "Tensor", head: int, most: int
) -> None:
    from regard.look.output_weights import check_weights

    check_weights(site, w_out)
    sent = cell.value @ w_out[head].detach().double().cpu()
    first = sent.abs().argsort(descending=True)[:most]
    working.add_given("n", M([first.tolist()]))
    working.add_given("u", _row(sent[first].tolist()))
    says = "the same after the output projection, v W_O = u, at its largest features n"
    working.add_step("y", "scale", "u", "w", title=says)


def _sentences(site: "Site", cell: "Cell", at: CellIndex) -> list[str]:
    """What the numbers say: the rivals of this key, its part of the output, and of a sink."""
    batch, head, query, key = at
    row = site.window(head=head, rows=slice(query, query + 1))[batch, 0].double()
    order = row.argsort(descending=True).tolist()
    said = [f"Of {site.keys} keys this one is number {order.index(key) + 1} by weight."]
    others = [n for n in order if n != key][:3]
    if others:
        told = (f"{n}{_word(site.key_tokens, batch, n)} {row[n].item():.4g}" for n in others)
        said.append(f"The others with the most: {', '.join(told)}.")
    if site.terms.sinks is not None:
        sink = (site.terms.sinks[head].double().cpu() - cell.lse).exp().item()
        said.append(f"A sink takes {sink:.4g} of this query's weight and gives nothing.")
    size = (cell.out @ cell.out).item()
    if size > 0:
        part = (cell.share @ cell.out).item() / size
        said.append(f"Along the output's own direction this key gives {part:.1%} of it.")
    return said


def _title(site: "Site", at: CellIndex, weight: float) -> str:
    batch, head, query, key = at
    asks = f"query {query}{_word(site.query_tokens, batch, query)}"
    answers = f"key {key}{_word(site.key_tokens, batch, key)}"
    return f"{site.name}, head {head}: {asks} gives {answers} the weight {weight:.6g}"


def _word(tokens: list[list[str]] | None, batch: int, at: int) -> str:
    return "" if tokens is None else f" {tokens[batch][at]!r}"


def _row(numbers: list[float]) -> Matrix:
    return M([[_float(x) for x in numbers]])


def _float(x: float) -> Any:
    if abs(x) == float("inf"):
        return sympy.oo if x > 0 else -sympy.oo
    return sympy.Float(x, DIGITS)
