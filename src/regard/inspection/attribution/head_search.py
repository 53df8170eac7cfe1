"""Search of a text collection for the examples on which each head shows a pattern most."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import LookError, ShapeError, suggestion
from regard.inspection.attribution.head_scores import IdTokenizer, self_attentions
from regard.inspection.heads.offsets import informative_queries, visible_key_counts
from regard.inspection.heads.patterns import PATTERNS, PatternScores, pattern_scores
from regard.inspection.record.look import look
from regard.inspection.sites.site import Site
from regard.ops import Survey
from regard.tables import text_table

QUERY_STATISTICS = [
    f.name for f in fields(Survey)
    if (x := f.metadata["statistic"]).axes == ("query",) and not x.is_index
]  # fmt: skip
MAX_SHOWN = 10
AROUND = 8  # tokens of context on each side

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class HeadExample:
    """A query of a text on which a head shows a pattern, and the key that it looks at.

    `context` is the text around both, with the key in «» and the query in [].

    >>> HeadExample("decoder.0.self", 3, 0.9, 0.9, 0, 7, 2, " cat", " sat", "«cat» … [sat]").key
    2
    """

    site: str
    head: int
    value: float  # the weight on the key, or the statistic
    weight: float
    text: int  # index of the text
    query: int  # position in the text
    key: int
    query_token: str
    key_token: str
    context: str


@dataclass(frozen=True, repr=False)
class HeadSearch:
    """The examples of every head, the strongest first, and the mean score over all texts.

    >>> example = HeadExample("a", 0, 0.9, 0.9, 0, 2, 1, "a", "b", "a «b» [a]")
    >>> HeadSearch("induction", {("a", 0): 0.4, ("a", 1): 0.1}, [example], 3).top(1)
    [('a', 0, 0.4)]
    """

    by: str
    means: dict[tuple[str, int], float]  # of each site and head
    examples: list[HeadExample]
    tokens: int  # read in all

    def top(self, count: int = 10) -> list[tuple[str, int, float]]:
        """The heads with the largest mean: site, head, mean."""
        order = sorted(self.means.items(), key=lambda item: -item[1])
        return [(*head, round(mean, 4)) for head, mean in order[:count]]

    def of(self, site: str, head: int) -> list[HeadExample]:
        """The examples of one head; a negative one counts from the last."""
        count = sum(name == site for name, _ in self.means)
        head = head + count if head < 0 else head
        if (site, head) not in self.means:
            raise LookError(f"site, head: needs a head that was searched, got {site!r}, {head}")
        return [x for x in self.examples if (x.site, x.head) == (site, head)]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per example, with the mean of its head."""
        return [asdict(x) | {"mean": self.means[x.site, x.head]} for x in self.examples]

    def __repr__(self) -> str:
        rows, context = [], "key in «», query in []"
        for site, head, mean in self.top(MAX_SHOWN):
            first = [site, str(head), f"{mean:.3f}"]
            for x in self.of(site, head):
                rows.append([*first, f"{x.value:.3f}", x.text, x.context])
                first = ["", "", ""]
        numbers = ("head", "mean", self.by if self.by in QUERY_STATISTICS else "weight", "text")
        table = text_table(("site", *numbers, context), rows, right=numbers, fold=context)
        title = f"{len(self.means)} heads on {self.tokens} tokens, largest mean {self.by} first"
        return f"{title}\n{table}"


@torch.no_grad()
def search_heads(
    model: nn.Module,
    tokenizer: Any,
    texts: Iterable[str | Sequence[int]],
    by: str = "induction",
    *,
    at: str = "*",
    count: int = 3,
    max_length: int = 256,
    batch_size: int = 8,
    progress: bool = False,
) -> HeadSearch:
    """Find where in a text collection each head shows a pattern or a statistic most.

    Texts are read in windows of `max_length` tokens, and each window gives at most one example per
    head. Only the best examples are stored, so memory does not grow with the collection.

    Args:
        model: A model with one stack, called with token ids.
        tokenizer: Of transformers or of Regard; None if the texts are token ids.
        texts: The texts, or their token ids; read once, one after the other.
        by: A score of `score_heads` (induction, previous, duplicate, retrieval, sink), for which
            examples are those with the largest weight, or a statistic of each query (entropy,
            peak, mean_distance, …), for which the key is the one with the largest weight.
        at: Glob over the names or paths of attention modules.
        count: Examples per head.
        max_length: Tokens per window.
        batch_size: Windows of the same length that run together.
        progress: Show a progress bar.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=50)).eval()
    >>> search = rg.inspection.search_heads(model, None, [[7, 8, 9, 7], [3, 4]], count=1)
    >>> search.examples[0].context  # what followed the first 7
    '7 «8» 9 [7]'
    """
    if by not in (known := [*PATTERNS, *QUERY_STATISTICS]):
        raise ShapeError(f"by: needs one of {', '.join(known)}, got {by!r}{suggestion(by, known)}")
    if min(count, batch_size, max_length - 1) < 1:
        raise ShapeError(
            "count, batch_size, max_length: need 1, 1 and 2 or more, "
            f"got {count}, {batch_size} and {max_length}"
        )
    from rich.progress import Progress

    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    best: dict[str, _Best] = {}
    windows: dict[int, _Window] = {}  # those that an example is in
    tokens = number = 0
    with Progress(transient=True, disable=not progress) as bar:
        task = bar.add_task("searching", total=None)
        for batch in _batches(_windows(texts, tokenizer, max_length), batch_size):
            ids = torch.tensor([window.ids for window in batch], device=device)
            windows |= {number + i: window for i, window in enumerate(batch)}
            with look(model, at, tokens=IdTokenizer()) as sight:
                model(ids)
            for site in self_attentions(sight):
                best.setdefault(site.name, _Best(site, count)).add(*_score(site, by), number)
            number, tokens = number + len(batch), tokens + ids.numel()
            used = {n for x in best.values() for n in x.place[..., 0].unique().tolist()}
            windows = {n: window for n, window in windows.items() if n in used}
            bar.update(task, advance=ids.numel(), description=f"searching, {tokens} tokens")
    if not best:
        raise LookError("texts: needs one with two tokens or more, got none")
    means = {(name, head): mean for name, heads in best.items() for head, mean in heads.means()}
    decode = _decoder(tokenizer)
    order = sorted(means, key=lambda head: -means[head])
    examples = [x for site, head in order for x in best[site].examples(site, head, windows, decode)]
    return HeadSearch(by, means, examples, tokens)


@dataclass(frozen=True)
class _Window:
    """Consecutive tokens of a text."""

    text: int
    start: int
    ids: Sequence[int]


class _Best:
    """The best examples of the heads of one site, and the sums for their means."""

    def __init__(self, site: Site, count: int):
        self.total = torch.zeros(2, site.heads, dtype=torch.double)  # score, queries
        self.value = torch.full((site.heads, count), -torch.inf)
        self.weight = torch.zeros(site.heads, count)
        self.place = torch.full((site.heads, count, 3), -1)  # window, query, key

    def add(self, scores: PatternScores, value: Tensor, first: int) -> None:
        """Add the queries of a batch, by their values; its windows are numbered from `first`."""
        sums = (scores.score * scores.counted).sum((0, 2)), scores.counted.sum((0, 2))
        self.total += torch.stack([x.double().cpu() for x in sums])
        value, query = value.masked_fill(~scores.counted, -torch.inf).max(-1)  # one per window
        weight, key = (x.gather(-1, query[..., None])[..., 0] for x in (scores.weight, scores.key))
        window = first + torch.arange(len(value), device=value.device)[:, None].expand_as(query)
        place = torch.stack([window, query, key], -1)
        values = torch.cat([self.value, value.mT.float().cpu()], 1)
        self.value, order = values.topk(self.value.shape[1])
        self.weight = torch.cat([self.weight, weight.mT.float().cpu()], 1).gather(1, order)
        places = torch.cat([self.place, place.transpose(0, 1).cpu()], 1)
        self.place = places.gather(1, order[..., None].expand(-1, -1, 3))

    def means(self) -> Iterator[tuple[int, float]]:
        """Each head and its mean, where any query counted."""
        for head, (total, count) in enumerate(self.total.mT.tolist()):
            if count:
                yield head, total / count

    def examples(
        self, site: str, head: int, windows: dict[int, _Window], decode: Decode
    ) -> Iterator[HeadExample]:
        """The examples of one head."""
        columns = (x[head].tolist() for x in (self.value, self.weight, self.place))
        for value, weight, (number, query, key) in zip(*columns, strict=True):
            if value > -torch.inf:
                window = windows[number]
                yield HeadExample(
                    site=site,
                    head=head,
                    value=round(value, 6),
                    weight=round(weight, 6),
                    text=window.text,
                    query=window.start + query,
                    key=window.start + key,
                    query_token=decode([window.ids[query]]),
                    key_token=decode([window.ids[key]]),
                    context=_mark(decode, window.ids, query, key),
                )


def _score(site: Site, by: str) -> tuple[PatternScores, Tensor]:
    """Score, weight and key of each query, and the value that examples are chosen by."""
    if by in PATTERNS:
        scores = pattern_scores(site, [by])[by]
        return scores, scores.weight
    survey = site.survey(statistics=[by, "peak", "peak_key"], first_keys=1)
    counted = informative_queries(site, visible_key_counts(site))
    value = getattr(survey, by)
    return PatternScores(value, counted, survey.peak, survey.peak_key), value


def _windows(
    texts: Iterable[str | Sequence[int]], tokenizer: Any, length: int
) -> Iterator[_Window]:
    for number, text in enumerate([texts] if isinstance(texts, str) else texts):
        ids = _encode(text, tokenizer)
        for start in range(0, len(ids), length):
            if len(window := ids[start : start + length]) > 1:
                yield _Window(number, start, window)


def _encode(text: str | Sequence[int], tokenizer: Any) -> Sequence[int]:
    if not isinstance(text, str):
        return [int(i) for i in text]
    if tokenizer is None:
        raise ShapeError(f"texts: needs token ids without a tokenizer, got {text[:40]!r}")
    if hasattr(tokenizer, "encode_input"):  # of Regard
        return tokenizer.encode_input(text)
    return tokenizer(text, verbose=False).input_ids  # no warning about texts of many windows


def _batches(windows: Iterable[_Window], size: int) -> Iterator[list[_Window]]:
    """Windows of one length each, so that no padding is needed."""
    waiting: dict[int, list[_Window]] = {}
    for window in windows:
        same = waiting.setdefault(len(window.ids), [])
        same.append(window)
        if len(same) == size:
            yield waiting.pop(len(window.ids))
    yield from waiting.values()


def _decoder(tokenizer: Any) -> Decode:
    if tokenizer is None:
        return lambda ids: " ".join(map(str, ids))
    return lambda ids: tokenizer.decode(list(ids))


def _mark(decode: Decode, ids: Sequence[int], query: int, key: int) -> str:
    """The text around a query and a key, on one line, the key in «» and the query in []."""
    low, high = sorted((query, key))
    spans = [(low - AROUND, low + AROUND), (high - AROUND, high + AROUND)]
    if high - low <= 2 * AROUND:
        spans = [(low - AROUND, high + AROUND)]
    marks = {key: "«»"} | ({} if key == query else {query: "[]"})
    parts = []
    for start, stop in spans:
        start, stop = max(0, start), min(len(ids), stop + 1)
        text = decode(ids[start:stop]).replace("\n", "↵")
        for at in sorted((p for p in marks if start <= p < stop), reverse=True):
            # the length of what comes before a token places it in any tokenizer's text
            a, b = (len(decode(ids[start:p])) for p in (at, at + 1))
            token = text[a:b]
            left, right = marks[at]
            marked = token[: len(token) - len(token.lstrip())] + left + token.strip() + right
            text = text[:a] + marked + text[b:]
        parts.append(" ".join(text.split()))
    return " … ".join(parts)
