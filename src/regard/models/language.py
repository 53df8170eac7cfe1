"""A decoder-only Transformer: read what came so far, score what may come next."""

from dataclasses import dataclass, replace

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.models.config import TokenConfig, check_positive, make_embedding, make_encoder
from regard.nn import CacheUpdate, Readout
from regard.ops import Causal, Local, Mask, Padding, masks


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(TokenConfig):
    """A language model; `window` tokens are visible to each (None: all before it).

    >>> LanguageConfig(vocab=100, layers=2, dim=64, heads=4, kv_heads=1, window=16).tied
    True
    """

    vocab: int
    window: int | None = None
    tied: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "vocab", "window")


class LanguageModel(nn.Module):
    """Which token comes next, at every position at once.

    p(token_{t+1} | token_1 … token_t) = softmax(logits_t)

    >>> model = LanguageModel(language_tiny(vocab=10))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 10])
    """

    def __init__(self, config: LanguageConfig):
        super().__init__()
        self.config = config
        self.embedding = make_embedding(config, config.vocab)
        self.decoder = make_encoder(config, bidirectional=False)
        self.readout = Readout(config.dim, config.vocab, tied=config.tied)

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        mask: Mask | Bool[Tensor, "... _ _"] | None = None,
        positions: Int[Tensor, "*_ time"] | None = None,
        offset: int = 0,
        cache: CacheUpdate | None = None,
    ) -> Float[Tensor, "batch time vocab"]:
        """The logits. A `mask` narrows what the causal one allows; `offset` tokens came before."""
        x = self.hidden_states(
            tokens, lengths, mask=mask, positions=positions, offset=offset, cache=cache
        )
        return self.readout(x, self.embedding.token_embeddings)

    def hidden_states(
        self,
        tokens: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        mask: Mask | Bool[Tensor, "... _ _"] | None = None,
        positions: Int[Tensor, "*_ time"] | None = None,
        offset: int = 0,
        cache: CacheUpdate | None = None,
    ) -> Float[Tensor, "batch time dim"]:
        """What the blocks make of each token, before any is scored; a prompt needs no more.

        x = block_L(… block_1(embed(tokens)) …);   logits = readout(x)

        >>> LanguageModel(language_tiny(vocab=10)).hidden_states(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 64])
        """
        x = self.embedding(tokens, positions=positions, offset=offset)
        return self.decoder(
            x,
            mask=self.mask(lengths, mask),
            positions=positions,
            offset=offset,
            cache=cache,
        )

    def mask(
        self,
        lengths: Int[Tensor, " batch"] | None = None,
        extra_mask: Mask | Bool[Tensor, "... _ _"] | None = None,
    ) -> Mask:
        """What each token may see: what came before, inside the window, and not the padding.

        >>> LanguageModel(language_tiny(vocab=10)).mask()
        Causal()
        """
        seen: Mask = Causal()
        if self.config.window is not None:
            seen = seen & Local(self.config.window - 1)
        if lengths is not None:
            seen = seen & Padding(lengths)
        if extra_mask is not None:
            seen = seen & (
                masks.DenseMask(extra_mask) if isinstance(extra_mask, Tensor) else extra_mask
            )
        return seen


def language_tiny(vocab: int, **changes) -> LanguageConfig:
    """For tests and lectures: 2 layers of 64.

    >>> language_tiny(vocab=10).dim
    64
    """
    preset = LanguageConfig(vocab=vocab, layers=2, dim=64, heads=4, dropout=0.1)
    return replace(preset, **changes)


def language_small(vocab: int, **changes) -> LanguageConfig:
    """Trains on a CPU: 6 layers of 256, rotary positions, RMS norm, gated feed-forward.

    >>> language_small(vocab=10).rope_theta
    10000.0
    """
    preset = LanguageConfig(
        vocab=vocab,
        layers=6,
        dim=256,
        heads=4,
        kv_heads=2,
        ffn_dim=704,
        activation="silu",
        gated=True,
        norm="rms",
        bias=False,
        positions="none",
        scale_embedding=False,
        rope_theta=10000.0,
        dropout=0.1,
    )
    return replace(preset, **changes)


def language_base(vocab: int, **changes) -> LanguageConfig:
    """The sizes and choices of GPT-2: 12 layers of 768, learned positions.

    >>> language_base(vocab=10).max_positions
    1024
    """
    preset = LanguageConfig(
        vocab=vocab,
        layers=12,
        dim=768,
        heads=12,
        activation="gelu_tanh",
        positions="learned",
        max_positions=1024,
        scale_embedding=False,
        dropout=0.1,
        attention_dropout=0.1,
    )
    return replace(preset, **changes)
