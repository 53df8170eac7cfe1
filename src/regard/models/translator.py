"""Encoder-decoder Transformer for translation and other sequence-to-sequence tasks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.config import (
    TokenConfig,
    check_positive,
    check_shared_vocab,
    make_decoder,
    make_embedding,
    make_encoder,
    register_model,
)
from regard.models.phrase_table import PhraseTable
from regard.nn import CacheUpdate, KeysValues, Readout
from regard.ops import Causal, Padding


@dataclass(frozen=True, kw_only=True)
class TranslatorConfig(TokenConfig):
    """Config of a translator; `layers` counts the encoder's. One table may embed both sides.

    `phrase_table` has the sizes of a `PhraseTable`, which `PairsTask.phrase_table` fills.

    >>> translator_tiny(vocab=9, decoder_layers=1).shared_embedding
    True
    """

    source_vocab: int
    target_vocab: int
    decoder_layers: int
    shared_embedding: bool = True
    tied: bool = True
    output_bias: bool = False
    output_scale: float = 1.0
    phrase_table: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "source_vocab", "target_vocab", "decoder_layers")
        check_shared_vocab(self)
        sizes = self.phrase_table
        if len(sizes) not in (0, 3) or min(sizes, default=1) < 1:
            raise ConfigError(f"phrase_table: needs three sizes, or none, got {list(sizes)}")


@register_model(TranslatorConfig)
class Translator(nn.Module):
    """Encoder-decoder Transformer.

    memory = encode(source);   p(target_{t+1} | target_1 … target_t, source) = softmax(logits_t)

    >>> model = Translator(translator_tiny(vocab=10))
    >>> model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])).shape
    torch.Size([1, 2, 10])
    """

    def __init__(self, config: TranslatorConfig):
        super().__init__()
        self.config = config
        self.source_embedding = self.target_embedding = make_embedding(config, config.source_vocab)
        if not config.shared_embedding:
            self.target_embedding = make_embedding(config, config.target_vocab)
        self.encoder = make_encoder(config)
        self.decoder = make_decoder(config, config.decoder_layers)
        self.readout = Readout(
            config.dim, config.target_vocab, tied=config.tied, bias=config.output_bias,
            scale=config.output_scale,
        )  # fmt: skip
        self.phrase_table = PhraseTable(*config.phrase_table) if config.phrase_table else None

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
        source_lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch target vocab"]:
        return self.decode(target, self.encode(source, source_lengths), source_lengths)

    def encode(
        self, source: Int[Tensor, "batch source"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch source dim"]:
        """Encoder output (memory) of a source; it can be decoded any number of times."""
        x = self.source_embedding(source)
        return self.encoder(x, mask=None if lengths is None else Padding(lengths))

    def decode(
        self,
        target: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch source dim"] | Sequence[KeysValues],
        source_lengths: Int[Tensor, " batch"] | None = None,
        *,
        offset: int = 0,
        cache: CacheUpdate | None = None,
    ) -> Float[Tensor, "batch target vocab"]:
        """Logits after each target token.

        Args:
            target: Target tokens, shifted right.
            memory: Output of `encode`, or the keys and values of `decoder.project_memory`.
            source_lengths: Real tokens per source; all by default.
            offset: Number of target tokens already in the cache.
            cache: Stores the new keys and values of each layer and returns all of them.
        """
        x = self.target_embedding(target, offset=offset)
        padding = None if source_lengths is None else Padding(source_lengths)
        x = self.decoder(x, memory, mask=Causal(), memory_mask=padding, offset=offset, cache=cache)
        return self.readout(x, self.target_embedding.token_embeddings)


def translator_tiny(vocab: int, **changes) -> TranslatorConfig:
    """Preset for tests and lectures: 2 + 2 layers of width 64.

    >>> translator_tiny(vocab=10).dim
    64
    """
    preset = TranslatorConfig(
        source_vocab=vocab, target_vocab=vocab, layers=2, decoder_layers=2, dim=64, heads=4,
        dropout=0.1,
    )  # fmt: skip
    return replace(preset, **changes)


def translator_small(vocab: int, **changes) -> TranslatorConfig:
    """Preset that trains on a CPU: 3 + 3 layers of width 256.

    >>> translator_small(vocab=10).layers
    3
    """
    sizes = {"layers": 3, "decoder_layers": 3, "dim": 256, "heads": 8}
    return translator_tiny(vocab, **sizes | changes)


def translator_base(vocab: int, **changes) -> TranslatorConfig:
    """Preset of the base model of Vaswani et al. (2017): 6 + 6 post-LN layers of width 512.

    >>> translator_base(vocab=10).norm_first
    False
    """
    sizes = {"layers": 6, "decoder_layers": 6, "dim": 512, "heads": 8}
    post_ln = {"activation": "relu", "norm_first": False, "final_norm": False}
    return translator_tiny(vocab, **sizes | post_ln | changes)
