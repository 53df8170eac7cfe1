"""Logistic regression on the n-grams of texts."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.text.ngrams import hash_ngrams
from regard.train.linear import LinearModel, SparseRows, fit_best_linear

BUCKETS = 1 << 18  # of the n-grams of words, and as many of those of characters


class NgramFeatures:
    """Tf-idf features of n-grams of words and characters, each kind with norm 1.

    idf(n-gram) = log((1 + texts) / (1 + texts with it)) + 1

    N-grams of no text that it was made from are left out.

    >>> NgramFeatures(["I see", "I go"])(["I"]).values.square().sum()  # words 1, characters 1
    tensor(2.0000)
    """

    def __init__(self, texts: Sequence[str]):
        counts = np.zeros(2 * BUCKETS, dtype=np.int64)
        for text in texts:
            for part in self._buckets(text):
                counts[part] += 1
        buckets = np.flatnonzero(counts)
        self.numbers = np.full(2 * BUCKETS, -1)  # of the features, by bucket
        self.numbers[buckets] = np.arange(len(buckets))
        self.idf = np.log((1 + len(texts)) / (1 + counts[buckets])) + 1

    def __call__(self, texts: Sequence[str]) -> SparseRows:
        starts, columns, values = [0], list[np.ndarray](), list[np.ndarray]()
        for text in texts:
            for part in self._buckets(text):
                features = self.numbers[part]
                features = features[features >= 0]
                idf = self.idf[features]
                columns.append(features)
                values.append(idf / max(1.0, np.linalg.norm(idf)))  # idf is 1 or more
            starts.append(starts[-1] + len(columns[-2]) + len(columns[-1]))
        return SparseRows(
            torch.from_numpy(np.concatenate([*columns, np.zeros(0, np.int64)])),
            torch.tensor(starts[:-1]),
            torch.from_numpy(np.concatenate([*values, np.zeros(0)])).float(),
            len(self.idf),
        )

    def _buckets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        words, characters = hash_ngrams(text, BUCKETS)
        return np.array(words, np.int64), np.array(characters, np.int64) + BUCKETS


class LinearTextModel:
    """A text classifier of one linear layer on n-grams.

    Args:
        train, valid: texts with the numbers of their classes; the second choose the penalty.
        classes: how many there are.

    >>> data = ["good film", "bad film"], [1, 0]
    >>> LinearTextModel(data, data, classes=2).logits(["a good one"]).argmax(-1)
    tensor([1])
    """

    def __init__(
        self,
        train: tuple[Sequence[str], Sequence[int]],
        valid: tuple[Sequence[str], Sequence[int]],
        classes: int,
    ):
        self.features = NgramFeatures(train[0])
        data = [(self.features(texts), torch.tensor(labels)) for texts, labels in (train, valid)]
        self.model: LinearModel = fit_best_linear(data[0], data[1], classes)

    def logits(self, texts: Sequence[str]) -> Float[Tensor, "text class"]:
        """The logits of each text."""
        return self.model.logits(self.features(texts))
