"""A linear-chain CRF on the features of words."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.text.word_features import word_features
from regard.ops import TagChain, crf_decode, crf_log_likelihood

ITERATIONS, PENALTY = 60, 1.0
GROUP_GROWTH = 1.25  # the longest sentence of a batch, against the shortest
Words = Sequence[str]


class _Batch(NamedTuple):
    """Sentences of about one length: where they stand in the data, and their features in a row."""

    sentences: list[int]
    features: Tensor
    starts: Tensor  # of the features of each word
    places: Tensor  # of the words in the padded batch
    lengths: Tensor

    def emissions(self, weight: Tensor) -> Tensor:
        rows = F.embedding_bag(self.features, weight, self.starts, mode="sum")
        size = len(self.lengths), int(self.lengths.max()), weight.shape[1]
        return rows.new_zeros(size).flatten(0, 1).index_copy(0, self.places, rows).view(size)


class CRFTagger:
    """A tagger whose emissions are linear in the features of the words.

    minimise -Σ log p(tags | words) + penalty / 2 · ‖weights‖²,   by L-BFGS

    Args:
        sentences: words.
        tags: number of the tag of each.
        classes: how many tags there are.

    >>> CRFTagger([["in", "York"], ["in", "Bonn"]], [[0, 1], [0, 1]], 2).tag([["in", "Rome"]])
    [[0, 1]]
    """

    def __init__(self, sentences: Sequence[Words], tags: Sequence[Sequence[int]], classes: int):
        self.numbers: dict[str, int] = {}  # of the features
        batches = []
        for batch in self._batches(sentences, grow=True):
            target = torch.zeros(len(batch.lengths), int(batch.lengths.max()), dtype=torch.long)
            for row, n in enumerate(batch.sentences):
                target[row, : len(tags[n])] = torch.tensor(tags[n])
            batches.append((batch, target))
        sizes = (len(self.numbers), classes), (classes, classes), (classes,), (classes,)
        parameters = [torch.zeros(size, requires_grad=True) for size in sizes]
        self.weight, *chain = parameters
        self.chain = TagChain(*chain)
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
                emissions = batch.emissions(self.weight)
                part = -crf_log_likelihood(emissions, target, self.chain, batch.lengths).sum()
                part.backward()
                value += part.item()
            return value

        optimizer.step(loss)

    @torch.no_grad()
    def tag(self, sentences: Sequence[Words]) -> list[list[int]]:
        """The numbers of the most probable tags of each sentence."""
        tags: list[list[int]] = [[] for _ in sentences]
        for batch in self._batches(sentences):
            best = crf_decode(batch.emissions(self.weight), self.chain, batch.lengths).tolist()
            for row, n in enumerate(batch.sentences):
                tags[n] = best[row][: len(sentences[n])]
        return tags

    def _batches(self, sentences: Sequence[Words], grow: bool = False) -> Iterator[_Batch]:
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
                    features += self._numbers_of(names, grow)
            rows = [features, starts, places, [len(sentences[n]) for n in group]]
            yield _Batch(group, *map(torch.tensor, rows))

    def _numbers_of(self, names: Sequence[str], grow: bool) -> list[int]:
        if grow:
            return [self.numbers.setdefault(name, len(self.numbers)) for name in names]
        return [self.numbers[name] for name in names if name in self.numbers]
