"""Scores of every head, and the texts on which each shows a pattern most."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from heapq import nlargest
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import LookError, ShapeError, check_choice, counted
from regard.inspection.adapters.model_calls import run_model
from regard.inspection.heads.head_table import SCORE_COLUMNS, HeadTable, Thresholds, with_type
from regard.inspection.heads.measures import measure_heads, merge_layers
from regard.inspection.heads.patterns import (
    PATTERNS,
    PatternScores,
    informative_queries,
    pattern_scores,
    visible_key_counts,
)
from regard.inspection.record.look import look
from regard.inspection.record.sight import Sight, format_skipped
from regard.inspection.sites.site import Site
from regard.ops.survey.statistics import STATISTICS
from regard.tables import text_table

DEFAULT_LENGTH = 32
COPIES = ("induction", "duplicate", "retrieval")


class IdTokenizer:
    """Labels token ids with their numbers, for `look(model, tokens=…)`."""

    @staticmethod
    def convert_ids_to_tokens(ids: Sequence[int]) -> list[str]:
        return [str(i) for i in ids]


@torch.no_grad()
def score_heads(
    model: nn.Module,
    inputs: Any = None,
    *,
    at: str = "*",
    vocab: int | None = None,
    length: int | None = None,
    batch: int = 4,
    seed: int = 0,
    needle: slice = slice(None),
    answer: slice = slice(None),
) -> HeadTable:
    """Score every self-attention head: how far it copies, looks back or rests on the first token.

    x_i is the token at query i and w_ij its weight on key j. Each score is a mean over queries:

    induction (Olsson et al. 2022)   Σ w_ij over j < i with x_{j-1} = x_i: what followed a copy
    duplicate (Wang et al. 2022)     Σ w_ij over j < i with x_j = x_i: the copy itself
    previous                         w_{i,i-1}
    retrieval (Wu et al. 2024)       1 if j = argmax w_ij < i has x_j = x_{i+1}, the next token
    sink (Xiao et al. 2023)          weight on the first key, and on learned sinks

    A query counts if it sees such a key, and another one. Without inputs the model reads random
    tokens that are repeated once, after the `bos_token_id` of its config if that has one.

    Args:
        model: The model, ours or of transformers.
        inputs: Token ids that the model is called with: a tensor (batch, time), a tuple of
            arguments or a mapping.
        at: Glob over the names or paths of attention modules.
        vocab: Random tokens are drawn uniformly from 0 to vocab - 1; by default all tokens.
        length: Number of random tokens before the repetition; 32 by default, or as many as the
            positions of the model have room for.
        batch: Number of sequences of random tokens.
        seed: Random seed of the tokens.
        needle: Positions that retrieval may copy from; all by default.
        answer: Positions of the tokens whose prediction counts for retrieval; all by default.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=50)).eval()
    >>> heads = rg.inspection.score_heads(model, length=8)
    >>> len(heads), heads.top(1, by="induction")[0].induction < 0.5  # untrained
    (8, True)
    """
    inputs = _repeated_tokens(model, vocab, length, batch, seed) if inputs is None else inputs
    with look(model, at, tokens=IdTokenizer()) as sight:
        run_model(model, inputs)
    rows, thresholds = [], Thresholds()
    for site, layers in merge_layers(self_attentions(sight)):
        patterns = pattern_scores(site, COPIES, needle=needle, answer=answer)
        scores = {name: x.means() for name, x in patterns.items()}
        measured = measure_heads(site, frozenset(), thresholds, None, layers, scores)
        rows += [with_type(row, thresholds) for row in measured]
    return HeadTable(rows, SCORE_COLUMNS)


def self_attentions(sight: Sight) -> list:
    """The self-attentions of a sight, calls joined; an error if one could not be recorded."""
    sites = [site for site in sight.join_all() if site.kind == "self"]
    if sight.missing or not sites:
        reasons = "; ".join(format_skipped(sight.skipped)) or "none"
        raise LookError(f"at: needs self-attentions that can be recorded, got {reasons}")
    return sites


def _repeated_tokens(
    model: nn.Module, vocab: int | None, length: int | None, batch: int, seed: int
) -> Tensor:
    """Random tokens repeated once, after the first token that the config names."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):  # of transformers, which may read images too
        config = config.get_text_config()
    known = getattr(config, "vocab_size", getattr(config, "vocab", None))
    vocab = known if vocab is None else vocab
    if vocab is None or getattr(config, "is_encoder_decoder", False):
        raise ShapeError(
            f"inputs: needs the token ids that {type(model).__name__} is called with, got none; "
            "try score_heads(model, (source, target))"
        )
    positions = getattr(config, "max_position_embeddings", None)
    if getattr(config, "positions", None) == "learned":
        positions = config.max_positions
    if length is None:
        length = min(DEFAULT_LENGTH, (positions - 1) // 2 if positions else DEFAULT_LENGTH)
    if length < 2 or vocab < 2:
        raise ShapeError(f"length, vocab: need 2 or more, got {length} and {vocab}")
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(vocab, (batch, length), generator=generator)
    tokens, first = torch.cat([half, half], 1), getattr(config, "bos_token_id", None)
    if isinstance(first, int) and 0 <= first < (known or vocab):
        tokens = torch.nn.functional.pad(tokens, (1, 0), value=first)
    return tokens.to(next((p.device for p in model.parameters()), tokens.device))


OF_QUERIES = [name for name, x in STATISTICS.items() if x.axes == ("query",) and not x.is_index]
MAX_SHOWN = 10
AROUND = 8  # tokens of context on each side

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class HeadExample:
    """A query of a text on which a head shows a pattern, and the key that it looks at.

    `context` is the text around both, with the key in «» and the query in [].
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
        head += sum(name == site for name, _ in self.means) if head < 0 else 0
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
        numbers = ("head", "mean", self.by if self.by in OF_QUERIES else "weight", "text")
        table = text_table(("site", *numbers, context), rows, right=numbers, fold=context)
        size = f"{counted(len(self.means), 'head')} on {counted(self.tokens, 'token')}"
        return f"{size}, largest mean {self.by} first\n{table}"


@torch.no_grad()
def search_heads(
    model: nn.Module, tokenizer: Any, texts: Iterable[str | Sequence[int]], by: str = "induction",
    *, at: str = "*", count: int = 3, max_length: int = 256, batch_size: int = 8,
    progress: bool = False,
) -> HeadSearch:  # fmt: skip
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
    check_choice("by", by, [*PATTERNS, *OF_QUERIES], ShapeError)
    if min(count, batch_size, max_length - 1) < 1:
        raise ShapeError(
            "count, batch_size, max_length: need 1, 1 and 2 or more, "
            f"got {count}, {batch_size} and {max_length}"
        )
    from rich.progress import Progress

    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    best: dict[str, _Best] = {}
    tokens = 0
    with Progress(transient=True, disable=not progress) as bar:
        task = bar.add_task("searching", total=None)
        for batch in _batches(_windows(texts, tokenizer, max_length), batch_size):
            ids = torch.tensor([window.ids for window in batch], device=device)
            with look(model, at, tokens=IdTokenizer()) as sight:
                model(ids)
            for site in self_attentions(sight):
                best.setdefault(site.name, _Best(site, count)).add(*_score(site, by), batch)
            tokens += ids.numel()
            bar.update(task, advance=ids.numel(), description=f"searching, {tokens} tokens")
    if not best:
        raise LookError("texts: needs one with two tokens or more, got none")
    means = {(name, head): mean for name, x in best.items() for head, mean in x.means().items()}

    def decode(ids: Sequence[int]) -> str:
        return " ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(list(ids))

    order = sorted(means, key=lambda head: -means[head])
    examples = [x for site, head in order for x in best[site].examples(site, head, decode)]
    return HeadSearch(by, means, examples, tokens)


@dataclass(frozen=True)
class _Window:
    """Consecutive tokens of a text."""

    text: int
    start: int
    ids: Sequence[int]


class _Cell(NamedTuple):
    """A weight of one head on a window."""

    value: float
    weight: float
    query: int
    key: int
    window: _Window


class _Best:
    """The best examples of the heads of one site, and the sums for their means."""

    def __init__(self, site: Site, count: int):
        self.count = count
        self.total = torch.zeros(2, site.heads, dtype=torch.double)  # score, queries
        self.cells: list[list[_Cell]] = [[] for _ in range(site.heads)]

    def add(self, scores: PatternScores, value: Tensor, windows: Sequence[_Window]) -> None:
        """Add the queries of a batch, by their values: the best one of each window."""
        self.total += scores.totals().cpu()
        value, query = value.masked_fill(~scores.counted, -torch.inf).max(-1)
        weight, key = (x.gather(-1, query[..., None])[..., 0] for x in (scores.weight, scores.key))
        columns = (x.mT.tolist() for x in (value.float(), weight.float(), query, key))
        for head, numbers in enumerate(zip(*columns, strict=True)):
            cells = (_Cell(*cell) for cell in zip(*numbers, windows, strict=True))
            new = [cell for cell in cells if cell.value > -torch.inf]
            self.cells[head] = nlargest(self.count, self.cells[head] + new, key=lambda x: x.value)

    def means(self) -> dict[int, float]:
        """The mean of each head where any query counted."""
        return {head: x / n for head, (x, n) in enumerate(self.total.mT.tolist()) if n}

    def examples(self, site: str, head: int, decode: Decode) -> Iterator[HeadExample]:
        """The examples of one head."""
        for value, weight, query, key, window in self.cells[head]:
            yield HeadExample(
                site=site, head=head, value=round(value, 6), weight=round(weight, 6),
                text=window.text, query=window.start + query, key=window.start + key,
                query_token=decode([window.ids[query]]), key_token=decode([window.ids[key]]),
                context=_mark(decode, window.ids, query, key),
            )  # fmt: skip


def _score(site: Site, by: str) -> tuple[PatternScores, Tensor]:
    """Score, weight and key of each query, and the value that examples are chosen by."""
    if by in PATTERNS:
        scores = pattern_scores(site, [by])[by]
        return scores, scores.weight
    survey = site.survey(statistics=[by, "peak", "peak_key"], first_keys=1)
    counted, value = informative_queries(site, visible_key_counts(site)), getattr(survey, by)
    return PatternScores(value, counted, survey.peak, survey.peak_key), value


def _windows(
    texts: Iterable[str | Sequence[int]], tokenizer: Any, length: int
) -> Iterator[_Window]:
    for number, text in enumerate([texts] if isinstance(texts, str) else texts):
        if not isinstance(text, str):
            ids = [int(i) for i in text]
        elif tokenizer is None:
            raise ShapeError(f"texts: needs token ids without a tokenizer, got {text[:40]!r}")
        elif hasattr(tokenizer, "encode_input"):  # of Regard
            ids = tokenizer.encode_input(text)
        else:
            ids = tokenizer(text, verbose=False).input_ids  # no warning about texts of many windows
        for start in range(0, len(ids), length):
            if len(window := ids[start : start + length]) > 1:
                yield _Window(number, start, window)


def _batches(windows: Iterable[_Window], size: int) -> Iterator[list[_Window]]:
    """Windows of one length each, so that no padding is needed."""
    waiting: dict[int, list[_Window]] = {}
    for window in windows:
        same = waiting.setdefault(len(window.ids), [])
        same.append(window)
        if len(same) == size:
            yield waiting.pop(len(window.ids))
    yield from waiting.values()


def _mark(decode: Decode, ids: Sequence[int], query: int, key: int) -> str:
    """The text around a query and a key, on one line, the key in «» and the query in []."""
    low, high = sorted((query, key))
    near = high - low <= 2 * AROUND
    centres = [(low, high)] if near else [(low, low), (high, high)]
    marks = {key: "«»"} | ({} if key == query else {query: "[]"})
    parts = []
    for first, last in centres:
        start, stop = max(0, first - AROUND), min(len(ids), last + AROUND + 1)
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
