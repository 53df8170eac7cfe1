"""A linear-chain CRF on the features of words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.data import ByteTokenizer
from regard.data.text.words import word_features
from regard.models.config import check_positive, register_model
from regard.ops import TagChain, crf_decode, crf_log_likelihood, crf_marginals

ITERATIONS, PENALTY = 60, 1.0
GROUP_GROWTH = 1.25  # the longest sentence of a batch, against the shortest
BYTES = ByteTokenizer()
SPACE = BYTES.encode(" ")[0]  # before each word
Words = Sequence[str]


@dataclass(frozen=True, kw_only=True)
class CRFTaggerConfig:
    """Config of a linear CRF; `features` is the number of different features of words."""

    features: int
    classes: int

    def __post_init__(self) -> None:
        check_positive(self, "features", "classes")


class WordBatch(NamedTuple):
    """Sentences of about one length: where they stand in the data, and their features in a row."""

    sentences: list[int]
    features: Tensor
    starts: Tensor  # of the features of each word
    places: Tensor  # of the words in the padded batch
    lengths: Tensor


@register_model(CRFTaggerConfig)
class CRFTagger(nn.Module):
    """A tagger whose emissions are linear in the features of the words, made by `fit_crf_tagger`.

    p(tags | words) ∝ exp(Σ_t W[features of word t, tag_t] + transitions[tag_{t-1}, tag_t])

    As any model it takes tokens: the bytes of words, each after a space.
    """

    def __init__(self, config: CRFTaggerConfig):
        super().__init__()
        self.config, classes = config, config.classes
        self.codes = nn.Buffer(torch.zeros(config.features, dtype=torch.long))  # of the features
        self.weight = nn.Parameter(torch.zeros(config.features, classes))
        self.transitions = nn.Parameter(torch.zeros(classes, classes))
        self.start = nn.Parameter(torch.zeros(classes))
        self.end = nn.Parameter(torch.zeros(classes))
        self._numbers: dict[int, int] = {}  # of the features, by their codes

    @property
    def chain(self) -> TagChain:
        """The scores of two tags in a row, of the first and of the last."""
        return TagChain(self.transitions, self.start, self.end)

    @torch.no_grad()
    def forward(
        self, tokens: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch time classes"]:
        """Log-probabilities of the tags at the first byte of each word; 0 at the others."""
        logits = self.weight.new_zeros((*tokens.shape, self.config.classes))
        places, sentences = split_bytes(tokens)
        for batch in make_batches(sentences, self.numbers, device=self.weight.device):
            marginals = crf_marginals(self.emissions(batch), self.chain, batch.lengths)
            log_probability = marginals.clamp(min=torch.finfo(marginals.dtype).tiny).log()
            for row, n in enumerate(batch.sentences):
                logits[n, places[n]] = log_probability[row, : len(places[n])]
        return logits

    def decode(
        self, tokens: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Int[Tensor, "batch time"]:
        """The most probable sequence of tags, at the first byte of each word."""
        best = torch.zeros_like(tokens)
        places, sentences = split_bytes(tokens)
        for n, tags in enumerate(self.tag(sentences)):
            best[n, places[n]] = torch.tensor(tags, device=best.device, dtype=best.dtype)
        return best

    @torch.no_grad()
    def tag(self, sentences: Sequence[Words]) -> list[list[int]]:
        """The numbers of the most probable tags of each sentence."""
        tags: list[list[int]] = [[] for _ in sentences]
        for batch in make_batches(sentences, self.numbers, device=self.weight.device):
            best = crf_decode(self.emissions(batch), self.chain, batch.lengths).tolist()
            for row, n in enumerate(batch.sentences):
                tags[n] = best[row][: len(sentences[n])]
        return tags

    def emissions(self, batch: WordBatch) -> Tensor:
        """The scores of the tags of each word, without those of their neighbours."""
        rows = F.embedding_bag(batch.features, self.weight, batch.starts, mode="sum")
        size = len(batch.lengths), int(batch.lengths.max()), self.config.classes
        return rows.new_zeros(size).flatten(0, 1).index_copy(0, batch.places, rows).view(size)

    @property
    def numbers(self) -> dict[int, int]:
        """The numbers of the features by their codes."""
        if not self._numbers:
            self._numbers = {code: n for n, code in enumerate(self.codes.tolist())}
        return self._numbers


class Buckets(dict[int, int]):
    """Numbers of features that are hashed."""

    def __init__(self, count: int):
        self.count = count

    def setdefault(self, key: int, default: int = 0) -> int:
        return key % self.count


def fit_crf_tagger(
    sentences: Sequence[Words], tags: Sequence[Sequence[int]], classes: int, buckets: int = 0
) -> CRFTagger:
    """A linear CRF of tagged sentences.

    minimise -Σ log p(tags | words) + penalty / 2 · ‖weights‖²,   by L-BFGS

    Args:
        sentences: words.
        tags: number of the tag of each.
        classes: how many tags there are.
        buckets: of a hash that replaces the table of features; the tagger has only weights then.

    >>> tagger = fit_crf_tagger([["in", "York"], ["in", "Bonn"]], [[0, 1], [0, 1]], 2)
    >>> tagger.tag([["in", "Rome"]])
    [[0, 1]]
    """
    numbers, batches = Buckets(buckets) if buckets else dict[int, int](), []
    for batch in make_batches(sentences, numbers, grow=True):
        target = torch.zeros(len(batch.lengths), int(batch.lengths.max()), dtype=torch.long)
        for row, n in enumerate(batch.sentences):
            target[row, : len(tags[n])] = torch.tensor(tags[n])
        batches.append((batch, target))
    features = buckets or max(1, len(numbers))
    model = CRFTagger(CRFTaggerConfig(features=features, classes=classes))
    model.codes[: len(numbers)] = torch.tensor(list(numbers), dtype=torch.long)
    parameters = list(model.parameters())
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=ITERATIONS, history_size=6, line_search_fn="strong_wolfe",
        tolerance_grad=1e-2, tolerance_change=1e-5,
    )  # fmt: skip

    def loss() -> float:
        optimizer.zero_grad()
        total = PENALTY / 2 * torch.stack([x.square().sum() for x in parameters]).sum()
        total.backward()
        value = total.item()
        for batch, target in batches:  # one after the other: less memory than their sum
            emissions = model.emissions(batch)
            part = -crf_log_likelihood(emissions, target, model.chain, batch.lengths).sum()
            part.backward()
            value += part.item()
        return value

    optimizer.step(loss)
    return model.requires_grad_(False).eval()


def split_bytes(tokens: Int[Tensor, "batch time"]) -> tuple[list[list[int]], list[list[str]]]:
    """The words of each row, and where they begin: each with the space before it.

    >>> split_bytes(torch.tensor([BYTES.encode(" in York")]))
    ([[0, 3]], [['in', 'York']])
    """
    rows = tokens.tolist()
    places = [[n for n, token in enumerate(row) if token == SPACE] for row in rows]
    words = [
        [BYTES.decode(row[a + 1 : b]) for a, b in zip(x, [*x[1:], len(row)], strict=True)]
        for row, x in zip(rows, places, strict=True)
    ]
    return places, words


def make_batches(
    sentences: Sequence[Words],
    numbers: dict[int, int],
    *,
    grow: bool = False,
    device: torch.device | None = None,
) -> Iterator[WordBatch]:
    """Sentences by their length; `grow` numbers features that are new, others are left out."""
    order = sorted((n for n, x in enumerate(sentences) if x), key=lambda n: len(sentences[n]))
    while order:
        limit = GROUP_GROWTH * len(sentences[order[0]]) + 1
        count = next((i for i, n in enumerate(order) if len(sentences[n]) > limit), len(order))
        group, order = order[:count], order[count:]
        features, starts, places = list[int](), list[int](), list[int]()
        longest = len(sentences[group[-1]])
        for row, n in enumerate(group):
            for place, names in enumerate(word_features(sentences[n])):
                starts.append(len(features))
                places.append(row * longest + place)
                codes = map(_code, names)
                if grow:
                    features += [numbers.setdefault(code, len(numbers)) for code in codes]
                else:
                    features += [numbers[code] for code in codes if code in numbers]
        rows = [features, starts, places, [len(sentences[n]) for n in group]]
        yield WordBatch(group, *(torch.tensor(x, dtype=torch.long, device=device) for x in rows))


@lru_cache(1 << 18)
def _code(feature: str) -> int:
    return crc32(feature.encode(errors="surrogatepass"))
