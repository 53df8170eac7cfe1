"""Token tagging: one tag per word, such as the names in a text (BIO tags) or parts of speech."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.data import (
    ByteTokenizer,
    LoadReport,
    TaggedTokens,
    Tokenizer,
    read_tagged_tokens,
    split_words,
)
from regard.data.batches import Encoded
from regard.data.text.words import MeasuredSplit, WordSplit, measure_word_split
from regard.errors import ConfigError, FileError
from regard.models import ClassifierConfig
from regard.ops import TagChain, crf_decode, crf_marginals
from regard.tasks.annotated_text import (
    MAX_TOKENS,
    AnnotatedTextEvaluator,
    AnnotatedTextTask,
    compute_logits,
)
from regard.tasks.annotated_verb import Tag, TagOptions
from regard.tasks.base import Baseline, EvalSplit
from regard.tasks.baselines.tag_chain import fit_crf_tagger
from regard.tasks.registry import task
from regard.train import make_objective, register_objective
from regard.train.losses import Batch, ModelOutputs, label_smoothed_cross_entropy
from regard.train.metrics import Tally

OUTSIDE = "O"  # the tag of words outside of any span


class Span(NamedTuple):
    """A run of words with one tag: `start` is its first word, `end` the one after its last."""

    tag: str
    start: int
    end: int
    text: str


class TaggedText(list[tuple[str, str]]):
    """The words of a text with their tags, as (word, tag).

    >>> text = TaggedText([("in", "O"), ("New", "B-CITY"), ("York", "I-CITY")])
    >>> text.spans
    [Span(tag='CITY', start=1, end=3, text='New York')]
    >>> print(text)
    in New/B-CITY York/I-CITY
    """

    confidence: float = 1.0  # the lowest probability of a tag

    @property
    def spans(self) -> list[Span]:
        """BIO tags joined to spans; a word with a plain tag other than O is a span of its own."""
        spans: list[Span] = []
        for at, (word, tag) in enumerate(self):
            prefix, _, kind = tag.partition("-") if tag[:2] in ("B-", "I-") else ("", "", tag)
            last = spans[-1] if spans else None
            # as conlleval: an I- that continues nothing begins a span
            if prefix == "I" and last and (last.tag, last.end) == (kind, at):
                spans[-1] = last._replace(end=at + 1, text=f"{last.text} {word}")
            elif tag != OUTSIDE:
                spans.append(Span(kind, at, at + 1, word))
        return spans

    def __str__(self) -> str:
        return " ".join(word if tag == OUTSIDE else f"{word}/{tag}" for word, tag in self)


@task("tagging")
@dataclass(frozen=True, kw_only=True)
class TaggingTask(Tag, AnnotatedTextTask):
    """Sentences in CoNLL-like files or JSON lines, see `data.read_tagged_tokens`.

    Words are split into subword tokens; the first of each word predicts its tag. Of a longer
    sentence the first `max_tokens` are trained on; it is tagged in pieces.

    Args:
        token_column, tag_column: columns of a CoNLL-like file, from 1; -1 is the last.
        word_split: how a text to tag is split into words, see `data.split_words`; "" takes the
            split that best reproduces the words of the data. A run keeps it.

    >>> TaggingTask(train="train.conll").verb
    'tag'
    """

    objective: ClassVar[str] = "tag"
    unit: ClassVar[str] = "words"
    fitted: ClassVar[dict[str, Any]] = {"names": (), "word_split": ""}

    token_column: int = 1
    tag_column: int = -1
    word_split: Literal["", WordSplit] = ""

    def read(self, path: str, report: LoadReport) -> Iterator[TaggedTokens]:
        columns = {"token_column": self.token_column, "tag_column": self.tag_column}
        return read_tagged_tokens(path, report, **columns)

    def text(self, example: TaggedTokens) -> str:
        """The words, each after a space, as they are encoded."""
        return "".join(f" {word}" for word in example.tokens)

    def labels(self, example: TaggedTokens) -> Sequence[str]:
        return example.tags

    def fit(self, seed: int) -> "TaggingTask":
        """With the tags of the data, and the split that reproduces its words."""
        fitted: Any = super().fit(seed)
        return fitted if self.word_split else replace(fitted, word_split=self.measure_split().name)

    def measure_split(self) -> MeasuredSplit:
        """The split that best reproduces the words of the train split."""
        return measure_word_split(self.load().examples["train"])

    def _measure_again(self) -> MeasuredSplit:
        """For a run from before the setting."""
        try:
            return self.measure_split()
        except FileError as error:
            raise ConfigError(
                f"word_split: needs to be given for a run without it whose data is gone, got none "
                f"({error}); try word_split=punctuation"
            ) from error

    def resolve(self, model: ClassifierConfig, tokenizer: Tokenizer) -> ClassifierConfig:
        return replace(super().resolve(model, tokenizer), pooling="none")

    def encoder(self, tokenizer: Tokenizer) -> Callable[[TaggedTokens], Encoded]:
        """Subword tokens, and per token the number of its tag from 1, or 0 for no target."""
        split = word_splitter(tokenizer)
        numbers = {name: number for number, name in enumerate(self.class_names, 1)}

        def encode(example: TaggedTokens) -> Encoded:
            words = [split(word) for word in example.tokens]
            pairs = zip(words, example.tags, strict=True)
            tags = [x for word, tag in pairs for x in (numbers[tag], *[0] * (len(word) - 1))]
            tokens = [token for word in words for token in word]
            return {"tokens": tokens[: self.max_tokens], "tags": tags[: self.max_tokens]}

        return encode

    def evaluator(self, tokenizer: Tokenizer, split: EvalSplit) -> "TaggingEvaluator":
        return TaggingEvaluator(self, tokenizer, split)

    def fit_baseline(self) -> Baseline:
        """A CRF that is linear in the words, their shapes, affixes and neighbours."""
        names, train = list(self.class_names), self.load().examples["train"]
        tags = [[names.index(tag) for tag in x.tags] for x in train]
        model = fit_crf_tagger([x.tokens for x in train], tags, len(names))
        return Baseline("CRF on words and their shapes", model, self.over_bytes(), ByteTokenizer())

    def tag(
        self, model: nn.Module, tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]
    ) -> list[TaggedText]:
        """The most probable tag of each word."""
        names, split = self.class_names, word_splitter(tokenizer)
        tagged = [TaggedText() for _ in sentences]
        pieces = [
            (n, x)
            for n, words in enumerate(sentences)
            for x in cut_words(words, split, self.max_tokens)
        ]
        rows = [[token for _, tokens in piece for token in tokens] for _, piece in pieces]
        outputs = compute_logits(model, rows)
        best_tags = [logits.argmax(-1) for logits in outputs]
        if hasattr(model, "decode"):  # of a chain: the best sequence
            best_tags = compute_logits(model, rows, "decode")
        chain: TagChain | None = getattr(model, "tag_chain", None)
        for (n, piece), logits, tags in zip(pieces, outputs, best_tags, strict=True):
            starts = [0, *accumulate(len(tokens) for _, tokens in piece[:-1])]
            best, share = tags[starts].long(), logits[starts].softmax(-1)
            if chain is not None:
                best, share = _decode(logits[starts], chain)
            probabilities = share.gather(1, best[:, None])[:, 0].tolist()
            best = best.tolist()
            tagged[n].confidence = min(tagged[n].confidence, *probabilities)
            tagged[n].extend((word, names[i]) for (word, _), i in zip(piece, best, strict=True))
        return tagged

    def apply(
        self, run: Any, inputs: Sequence[str | Sequence[str]], options: TagOptions
    ) -> list[TaggedText]:
        """The tags of each input: a list of words, or a text that is split into words."""
        split = options.word_split or self.word_split or self._measure_again().name
        sentences = [split_words(x, split) if isinstance(x, str) else list(x) for x in inputs]
        return self.tag(run.model, run.tokenizer, sentences)


def word_splitter(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """Splits a word, after a space as within a text, into subword tokens; frequent ones once."""
    return lru_cache(1 << 16)(lambda word: tokenizer.encode_input(f" {word}"))


def cut_words(
    words: Sequence[str], split: Callable[[str], list[int]], size: int = MAX_TOKENS
) -> Iterator[list[tuple[str, list[int]]]]:
    """Words with their tokens, in pieces of at most `size` tokens.

    >>> [[word for word, _ in piece] for piece in cut_words(["a", "bc", "d"], list, 2)]
    [['a'], ['bc'], ['d']]
    """
    piece, used = [], 0
    for word in words:
        tokens = split(word)[:size]
        if used + len(tokens) > size:
            yield piece
            piece, used = [], 0
        piece.append((word, tokens))
        used += len(tokens)
    if piece:
        yield piece


class TaggingEvaluator(AnnotatedTextEvaluator):
    """Loss, accuracy per word and F1 of spans (micro average) of a tagger on a split.

    F1 = 2 · spans predicted exactly / (spans predicted + spans in the reference)
    """

    @property
    def sources(self) -> list[str]:
        return [" ".join(sentence.tokens) for sentence in self.examples]

    @property
    def references(self) -> list[TaggedText]:
        return [TaggedText(zip(*sentence, strict=True)) for sentence in self.examples]

    def predict(self, model: nn.Module) -> list[TaggedText]:
        return self.data.tag(model, self.tokenizer, [s.tokens for s in self.examples])

    def tally(self, answers: Sequence[TaggedText]) -> Tally:
        return tag_tally(answers, self.references)


def tag_tally(answers: Sequence[TaggedText], references: Sequence[TaggedText]) -> Tally:
    """Accuracy per word, and F1 of spans; 1 where there are none.

    >>> reference = TaggedText([("in", "O"), ("New", "B-CITY"), ("York", "I-CITY"), ("I", "B-PER")])
    >>> answer = TaggedText([("in", "O"), ("New", "B-CITY"), ("York", "O"), ("I", "B-PER")])
    >>> tag_tally([answer], [reference]).scores()  # 1 of 2 spans predicted, of 2 in the reference
    {'accuracy': 0.75, 'f1': 0.5}
    """
    rows = []
    for answer, reference in zip(answers, references, strict=True):
        correct = sum(a == b for a, b in zip(answer, reference, strict=True))
        exact = len(set(answer.spans) & set(reference.spans))
        rows.append((correct, len(reference), exact, len(answer.spans) + len(reference.spans)))

    def score(sums: list[float]) -> dict[str, float]:
        correct, words, exact, spans = sums
        return {"accuracy": correct / max(1, words), "f1": 2 * exact / spans if spans else 1.0}

    return Tally(torch.tensor(rows, dtype=torch.float), score)


def _decode(emissions: Tensor, chain: TagChain) -> tuple[Tensor, Tensor]:
    """The best tags of a sentence, and the probabilities of all tags of each word."""
    scores = emissions[None], TagChain(*(x.cpu() for x in chain)), torch.tensor([len(emissions)])
    return crf_decode(*scores)[0], crf_marginals(*scores)[0]


def _outputs(model: nn.Module, batch: Batch) -> ModelOutputs:
    return ModelOutputs(model(batch["tokens"], batch.get("tokens_lengths")), batch["tags"] > 0)


def _loss(outputs: ModelOutputs, batch: Batch, label_smoothing: float) -> Tensor:
    tags = batch["tags"]
    return label_smoothed_cross_entropy(outputs.logits, tags - 1, label_smoothing, tags > 0)


register_objective("tag", make_objective(lambda batch: (batch["tags"] > 0).sum(), _outputs, _loss))
