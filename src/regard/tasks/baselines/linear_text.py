"""Logistic regression on the n-grams of texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.data import ByteTokenizer
from regard.data.text.words import hash_ngrams
from regard.models.config import check_positive, register_model
from regard.train.linear import LinearModel, SparseRows, fit_best_linear

BUCKETS = 1 << 18  # of the n-grams of words, and as many of those of characters
BYTES = ByteTokenizer()
Texts = Sequence[str]


@dataclass(frozen=True, kw_only=True)
class LinearTextConfig:
    """Config of a linear text classifier; `features` is the number of its n-grams."""

    features: int
    classes: int

    def __post_init__(self) -> None:
        check_positive(self, "features", "classes")


@register_model(LinearTextConfig)
class LinearTextModel(nn.Module):
    """A text classifier of one linear layer on n-grams, made by `fit_linear_text`.

    logits = tf-idf(text) W + b,   idf(n-gram) = log((1 + texts) / (1 + texts with it)) + 1

    N-grams of words and of characters have norm 1 each; those of no text that it was fitted to are
    left out. As any model it takes tokens: the bytes of a text.
    """

    def __init__(self, config: LinearTextConfig):
        super().__init__()
        self.config = config
        self.buckets = nn.Buffer(torch.zeros(config.features, dtype=torch.long))  # in order
        self.idf = nn.Buffer(torch.zeros(config.features))
        self.weight = nn.Parameter(torch.zeros(config.features, config.classes))
        self.bias = nn.Parameter(torch.zeros(config.classes))

    def forward(
        self, tokens: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Logits of texts, as ids of `ByteTokenizer`."""
        return self.logits([BYTES.decode(row) for row in tokens.tolist()])  # padding is skipped

    def logits(self, texts: Texts) -> Float[Tensor, "text classes"]:
        """The logits of each text."""
        return LinearModel(self.weight, self.bias).logits(self.features(texts))

    def features(self, texts: Texts) -> SparseRows:
        """The tf-idf of each text."""
        buckets, idf = self.buckets.cpu().numpy(), self.idf.double().cpu().numpy()
        starts, columns, values = [0], [np.zeros(0, np.int64)], [np.zeros(0)]
        for text in texts:
            for part in _buckets(text):
                places = np.searchsorted(buckets, part).clip(max=len(buckets) - 1)
                places = places[buckets[places] == part]
                columns.append(places)
                values.append(idf[places] / max(1.0, np.linalg.norm(idf[places])))  # idf ≥ 1
            starts.append(starts[-1] + len(columns[-2]) + len(columns[-1]))
        rows = np.concatenate(columns), np.array(starts[:-1]), np.concatenate(values)
        device, dtype = self.weight.device, self.weight.dtype
        numbers, begins, weights = (torch.from_numpy(x).to(device) for x in rows)
        return SparseRows(numbers, begins, weights.to(dtype), len(buckets))


def fit_linear_text(
    train: tuple[Texts, Sequence[int]], valid: tuple[Texts, Sequence[int]], classes: int
) -> LinearTextModel:
    """Logistic regression on n-grams, with the penalty of the lowest loss on the valid split.

    Args:
        train, valid: texts with the numbers of their classes.
        classes: how many there are.

    >>> data = ["good film", "bad film"], [1, 0]
    >>> model = fit_linear_text(data, data, classes=2)
    >>> model.logits(["a good one"]).argmax(-1)
    tensor([1])
    >>> model.features(["good"]).values.square().sum()  # words 1, characters 1
    tensor(2.)
    """
    counts = np.zeros(2 * BUCKETS, dtype=np.int64)
    for text in train[0]:
        for part in _buckets(text):
            counts[part] += 1
    buckets = np.flatnonzero(counts) if counts.any() else np.zeros(1, np.int64)
    model = LinearTextModel(LinearTextConfig(features=len(buckets), classes=classes))
    model.buckets.copy_(torch.from_numpy(buckets))
    idf = np.log((1 + len(train[0])) / (1 + counts[buckets])) + 1
    model.idf.copy_(torch.from_numpy(idf))
    data = [(model.features(texts), torch.tensor(labels)) for texts, labels in (train, valid)]
    best = fit_best_linear(data[0], data[1], classes)
    model.weight.data, model.bias.data = best.weight, best.bias
    return model.eval()


def _buckets(text: str) -> tuple[np.ndarray, np.ndarray]:
    words, characters = hash_ngrams(text, BUCKETS)
    return np.array(words, np.int64), np.array(characters, np.int64) + BUCKETS
