"""Decoder-only Transformer language model."""

from dataclasses import dataclass, replace
from typing import Unpack

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.config import (
    TokenConfig,
    check_positive,
    make_embedding,
    make_encoder,
    register_model,
)
from regard.models.ngram import NgramConfig, NgramMixture
from regard.nn import BlockOptions, Readout
from regard.nn.attention import TokenInputs
from regard.ops import Causal, Local, Mask, Padding, masks


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(TokenConfig):
    """Config of a language model.

    `window` is the number of tokens that each position attends to, itself included (None: all up to
    it); a tuple gives one per layer. `local_rope_theta` is the base of rotary positions, unscaled,
    in layers with a window (None: as in the others); `output_softcap` bounds the logits. `ngrams`,
    the `entries` of a model of n-grams, mixes one in: `TextTask.ngrams` fits it.

    >>> LanguageConfig(vocab=100, layers=2, dim=64, heads=4, kv_heads=1, window=16).tied
    True
    """

    vocab: int
    window: int | None | tuple[int | None, ...] = None
    tied: bool = True
    local_rope_theta: float | None = None
    output_softcap: float | None = None
    ngrams: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "vocab")
        if isinstance(self.window, tuple) and len(self.window) != self.layers:
            raise ConfigError(
                f"window: needs one or layers={self.layers} of them, got {len(self.window)}"
            )
        # of many layers in a damaged file, not one entry each
        for window in self.window if isinstance(self.window, tuple) else (self.window,):
            if window is not None and (not isinstance(window, int) or window < 1):
                raise ConfigError(f"window: needs a whole number of 1 or more, got {window!r}")

    def layer_options(self, layer: int) -> BlockOptions:
        """The options of one layer."""
        if self.resolved_window[layer] is None or self.local_rope_theta is None:
            return self
        return replace(self, rope_theta=self.local_rope_theta, rope_scaling=None)

    @property
    def resolved_window(self) -> tuple[int | None, ...]:
        """The window of each layer."""
        return self.window if isinstance(self.window, tuple) else (self.window,) * self.layers


@register_model(LanguageConfig)
class LanguageModel(nn.Module):
    """Next-token logits at every position.

    p(token_{t+1} | token_1 … token_t) = softmax(logits_t)

    With n-grams these are the log-probabilities of a `NgramMixture`, but the logits of the network
    in training, and with a cache, where a stepper mixes.

    >>> model = LanguageModel(language_tiny(vocab=10))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 10])
    """

    def __init__(self, config: LanguageConfig):
        super().__init__()
        self.config = config
        self.embedding = make_embedding(config, config.vocab)
        self.decoder = make_encoder(config, bidirectional=False)
        softcap = config.output_softcap
        self.readout = Readout(config.dim, config.vocab, tied=config.tied, softcap=softcap)
        self.ngrams = None
        if sizes := config.ngrams:
            tables = NgramConfig(vocab=config.vocab, symbols=sizes[0], entries=sizes)
            self.ngrams = NgramMixture(tables)

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        mask: Mask | Bool[Tensor, "... _ _"] | None = None,
        **inputs: Unpack[TokenInputs],
    ) -> Float[Tensor, "batch time vocab"]:
        """Next-token logits.

        Args:
            lengths: Real tokens per row; the rest is padding. All by default.
            mask: Combined with the causal mask.
            positions: Position ids; by default `offset`, `offset` + 1, …
            offset: Number of tokens already in the cache.
            cache: Stores the new keys and values of each layer and returns all of them.
        """
        x = self.hidden_states(tokens, lengths, mask=mask, **inputs)
        logits = self.readout(x, self.embedding.token_embeddings)
        if self.ngrams is None or self.training or inputs.get("cache") is not None:
            return logits
        return self.ngrams(logits, tokens)

    def hidden_states(
        self,
        tokens: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        mask: Mask | Bool[Tensor, "... _ _"] | None = None,
        **inputs: Unpack[TokenInputs],
    ) -> Float[Tensor, "batch time dim"]:
        """Output of the last block, before the readout; arguments as in `forward`.

        x = block_L(… block_1(embed(tokens)) …);   logits = readout(x)
        """
        positions, offset = inputs.get("positions"), inputs.get("offset", 0)
        x = self.embedding(tokens, positions=positions, offset=offset)
        # one mask for all layers, or one per layer where their windows differ
        layers = range(self.config.layers if len(set(self.config.resolved_window)) > 1 else 1)
        masks = [self.mask(lengths, mask, layer=n) for n in layers]
        return self.decoder(x, mask=masks if len(masks) > 1 else masks[0], **inputs)

    def mask(
        self,
        lengths: Int[Tensor, " batch"] | None = None,
        extra_mask: Mask | Bool[Tensor, "... _ _"] | None = None,
        *,
        layer: int = 0,
    ) -> Mask:
        """The attention mask of a layer: causal, inside its window, without padding.

        >>> LanguageModel(language_tiny(vocab=10)).mask()
        Causal()
        """
        mask: Mask = Causal()
        window = self.config.resolved_window[layer]
        if window is not None:
            mask = mask & Local(window - 1)
        if lengths is not None:
            mask = mask & Padding(lengths)
        if isinstance(extra_mask, Tensor):
            extra_mask = masks.DenseMask(extra_mask)
        return mask if extra_mask is None else mask & extra_mask


def language_tiny(vocab: int, **changes) -> LanguageConfig:
    """Preset for tests and lectures: 2 layers of width 64.

    >>> language_tiny(vocab=10).dim
    64
    """
    preset = LanguageConfig(vocab=vocab, layers=2, dim=64, heads=4, dropout=0.1)
    return replace(preset, **changes)


def language_small(vocab: int, **changes) -> LanguageConfig:
    """Preset that trains on a CPU: 6 layers of width 256, RoPE, RMSNorm, gated feed-forward.

    >>> language_small(vocab=10).rope_theta
    10000.0
    """
    sizes = {"layers": 6, "dim": 256, "kv_heads": 2, "ffn_dim": 704, "rope_theta": 10000.0}
    block = {"activation": "silu", "gated": True, "norm": "rms", "bias": False}
    embedding = {"positions": "none", "scale_embedding": False}
    return language_tiny(vocab, **sizes | block | embedding | changes)


def language_delta(vocab: int, **changes) -> LanguageConfig:
    """Preset without attention: `language_small` with the gated delta rule in each block.

    >>> language_delta(vocab=10).mixer
    'gated_delta'
    """
    block = {"mixer": "gated_delta", "kv_heads": None, "rope_theta": None}
    return language_small(vocab, **block | changes)


def language_base(vocab: int, **changes) -> LanguageConfig:
    """Preset of GPT-2's architecture: 12 layers of width 768, learned positions.

    >>> language_base(vocab=10).max_positions
    1024
    """
    sizes = {"layers": 12, "dim": 768, "heads": 12, "max_positions": 1024}
    block = {"activation": "gelu_tanh", "attention_dropout": 0.1}
    embedding = {"positions": "learned", "scale_embedding": False}
    return language_tiny(vocab, **sizes | block | embedding | changes)
