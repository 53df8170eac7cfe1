"""Encoder-only Transformer for classifying sequences."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError, ShapeError
from regard.models.config import (
    TokenConfig,
    check_positive,
    make_embedding,
    make_encoder,
    register_model,
)
from regard.models.ngram_logits import NgramLogits
from regard.nn import xavier_linear
from regard.ops import Padding, TagChain

TokenIds = Int[Tensor, "batch time"]
Lengths = Int[Tensor, " batch"] | None


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(TokenConfig):
    """Config of a sequence classifier; with `classes=0` it has no head and returns a vector.

    With `pooling="none"` it classifies every token. With `ngrams` the logits of a linear model on
    so many hashed features of the text, or of each word, see `models.ngram_logits`, are mixed in.

    >>> ClassifierConfig(vocab=9, classes=2, layers=1, dim=8, heads=2).pooling
    'first'
    """

    vocab: int
    classes: int
    pooling: Literal["first", "mean", "none"] = "first"
    pooler: bool = False  # a tanh layer after pooling (BERT)
    ngrams: int = 0  # hash buckets of the features

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "vocab")
        if self.classes < 0:
            raise ConfigError(f"classes: needs 0 or more, got {self.classes}")
        if self.pooler and self.pooling == "none":
            raise ConfigError("pooler: needs pooling first or mean, got pooling none")
        if self.ngrams and (self.ngrams < 2 or not self.classes):
            raise ConfigError(f"ngrams: needs classes and 2 buckets or more, got {self.ngrams}")


@register_model(ClassifierConfig)
class Classifier(nn.Module):
    """Bidirectional Transformer encoder, pooling and a linear head.

    logits = W pool(encode(tokens)) + b,   pool: the first token (CLS), the mean of all, or none:
    logits per token

    In training these are all. Else, with n-grams, two models are mixed by weights that are fitted
    to the valid split:  logits = mix₀ · log softmax(logits) + mix₁ · n-gram logits

    >>> model = Classifier(classifier_tiny(vocab=10, classes=3))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3])
    """

    def __init__(self, config: ClassifierConfig):
        super().__init__()
        self.config = config
        self.embedding = make_embedding(config, config.vocab)
        self.encoder = make_encoder(config)
        self.pooler = xavier_linear(config.dim, config.dim) if config.pooler else None
        self.dropout = nn.Dropout(config.dropout)
        self.head = xavier_linear(config.dim, config.classes) if config.classes else None
        sizes, words = (config.vocab, config.ngrams, config.classes), config.pooling == "none"
        self.ngrams = NgramLogits(*sizes, words=words) if config.ngrams else None
        if config.ngrams:
            self.mix = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(
        self, tokens: TokenIds, lengths: Lengths = None, *, segments: TokenIds | None = None
    ) -> Float[Tensor, "batch classes"] | Float[Tensor, "batch time classes"]:
        x = self.encode(tokens, lengths, segments=segments)
        if self.config.pooling != "none":
            x = self.pool(x, lengths)
        if self.pooler is not None:
            x = torch.tanh(self.pooler(x))
        logits = x if self.head is None else self.head(self.dropout(x))
        if self.ngrams is None or self.training:
            return logits
        log_probs, linear = logits.float().log_softmax(-1), self.ngrams(tokens, lengths)
        return self.mix[0] * log_probs + self.mix[1] * linear

    @property
    def tag_chain(self) -> TagChain | None:
        """Scores of tags in a row for `ops.crf_decode`, of a model of words with n-grams."""
        if self.ngrams is None or not self.ngrams.words:
            return None
        return TagChain(*(self.mix[1] * x for x in self.ngrams.chain))

    def encode(
        self, tokens: TokenIds, lengths: Lengths = None, *, segments: TokenIds | None = None
    ) -> Float[Tensor, "batch time dim"]:
        """Encoder output, one vector per token."""
        x = self.embedding(tokens, segments=segments)
        return self.encoder(x, mask=None if lengths is None else Padding(lengths))

    def pool(
        self, x: Float[Tensor, "batch time dim"], lengths: Lengths = None
    ) -> Float[Tensor, "batch dim"]:
        """One vector per sequence: that of the first token, or the mean without padding.

        >>> mean = Classifier(classifier_tiny(vocab=9, classes=2, dim=2, heads=1))
        >>> mean.pool(torch.tensor([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]]), torch.tensor([2]))
        tensor([[2., 3.]])
        """
        if x.shape[-2] == 0:
            raise ShapeError(f"tokens: needs at least one to pool, got {tuple(x.shape[:-1])}")
        if self.config.pooling == "first":
            return x[:, 0]
        if lengths is None:
            return x.mean(1)
        real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        return (x * real[..., None]).sum(1) / lengths.clamp(min=1)[:, None]


def nearest_by_cosine(
    query: Float[Tensor, "*batch dim"], vectors: Float[Tensor, "many dim"], count: int = 1
) -> tuple[Float[Tensor, "*batch count"], Int[Tensor, "*batch count"]]:
    """The nearest vectors of a query by cosine similarity: similarities and indices.

    cos(a, b) = a · b / (|a| |b|)

    >>> nearest_by_cosine(torch.tensor([2.0, 0.0]), torch.tensor([[0.0, 1.0], [3.0, 0.0]]))
    (tensor([1.]), tensor([1]))
    """
    if not 1 <= count <= len(vectors):
        raise ShapeError(f"count: needs 1 to {len(vectors)}, the number of vectors, got {count}")
    similarity = F.normalize(query, dim=-1) @ F.normalize(vectors, dim=-1).mT
    values, indices = similarity.topk(count)
    return values, indices


def classifier_tiny(vocab: int, classes: int, **changes) -> ClassifierConfig:
    """Preset for tests and lectures: 2 layers of width 64.

    >>> classifier_tiny(vocab=10, classes=2).dim
    64
    """
    preset = ClassifierConfig(
        vocab=vocab, classes=classes, layers=2, dim=64, heads=4, dropout=0.1, pooling="mean"
    )
    return replace(preset, **changes)


def classifier_base(vocab: int, classes: int, **changes) -> ClassifierConfig:
    """Preset of BERT base: 12 post-LN layers of width 768.

    >>> classifier_base(vocab=10, classes=2).segments
    2
    """
    sizes = {"layers": 12, "dim": 768, "heads": 12, "segments": 2, "attention_dropout": 0.1}
    post_ln = {"norm_first": False, "final_norm": False, "eps": 1e-12}
    embedding = {"positions": "learned", "scale_embedding": False, "embedding_norm": True}
    head = {"pooling": "first", "pooler": True}
    return classifier_tiny(vocab, classes, **sizes | post_ln | embedding | head | changes)
