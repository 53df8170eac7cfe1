"""The baselines of a text: n-grams of bytes with Kneser-Ney smoothing, and xz."""

import lzma
import math
from collections.abc import Iterable, Sequence
from itertools import count

import torch
from torch import Tensor

from regard.data import ByteTokenizer
from regard.models import NgramModel, fit_ngrams
from regard.tasks.language.windows import ByteLosses

MAX_CHARS = 10_000_000  # of the train split that a baseline reads
MAX_PACKED = 4_000_000  # bytes of it that xz reads before the held-out text
MIN_ORDER = 2


def take_texts(texts: Iterable[str], limit: int = MAX_CHARS) -> list[str]:
    """The first texts, so many characters in all.

    >>> take_texts(["to be", "or not"], 7)
    ['to be', 'or']
    """
    taken = list[str]()
    for text in texts:
        taken.append(text[:limit])
        limit -= len(text)
        if limit <= 0:
            break
    return taken


def fit_byte_ngrams(train: Sequence[str], valid: Sequence[str]) -> NgramModel:
    """N-grams of bytes, as long as they make the loss on the valid split smaller.

    Each text begins after an end token.

    >>> fit_byte_ngrams(["to be or not to be"] * 9, ["to be or not"]).config.order
    3
    """
    splits = [[_tokens(text) for text in texts] for texts in (train, valid)]
    return fit_best_ngrams(*splits, vocab=ByteTokenizer().vocab)


def fit_best_ngrams(train: Sequence[Tensor], valid: Sequence[Tensor], *, vocab: int) -> NgramModel:
    """N-grams of tokens, as long as they make the loss on the valid split smaller."""
    best, lowest = None, math.inf
    for order in count(MIN_ORDER):
        model = fit_ngrams(train, vocab=vocab, order=order)
        loss = -sum(float(model.log_probs(row[None])[0, 1:].sum()) for row in valid)
        if best is not None and (loss >= lowest or model.config.order == best.config.order):
            break
        best, lowest = model, loss
    assert best is not None
    return best


def byte_losses(model: NgramModel, text: str) -> Tensor:
    """The loss of each byte of a text, in nats."""
    return -model.log_probs(_tokens(text)[None])[0, 1:]


def text_baseline(
    train: Sequence[str], valid: Sequence[str], test: Sequence[str]
) -> tuple[str, ByteLosses]:
    """The better of n-grams and xz: its name, and the loss of each byte of the test texts.

    >>> name, losses = text_baseline(["to be or not to be "] * 99, ["to be "], ["or not to be "])
    >>> name, len(losses.nats)
    ('Kneser-Ney n-grams of 3 bytes', 13)
    """
    model = fit_byte_ngrams(train, valid)
    ngrams = torch.cat([byte_losses(model, text) for text in test])
    packed = xz_bits(train, test) / len(ngrams) * math.log(2)
    if packed < float(ngrams.mean()):
        return "xz after the train text", ByteLosses(torch.full_like(ngrams, packed))
    return ngrams_name(model), ByteLosses(ngrams)


def ngrams_name(model: NgramModel) -> str:
    """What a model over bytes is, with its order."""
    return f"Kneser-Ney n-grams of {model.config.order} bytes"


def name_beside_xz(model: NgramModel, train: Sequence[str], valid: Sequence[str]) -> str:
    """The name of a model, which says if xz is better: a baseline that cannot be applied."""
    nats = sum(float(byte_losses(model, text).sum()) for text in valid)
    is_better = xz_bits(train, valid) * math.log(2) < nats
    return ngrams_name(model) + "; xz is better and cannot be applied" * is_better


def xz_bits(train: Sequence[str], test: Sequence[str]) -> int:
    """Bits that xz -9e needs for the test texts when it has read train texts, 4 MB at most.

    >>> xz_bits(["abcdefgh" * 50], ["abcdefgh" * 50]) < 8 * 20
    True
    """
    before = "".join(train).encode()[-MAX_PACKED:]
    sizes = [
        len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
        for text in (before, before + "".join(test).encode())
    ]
    return 8 * (sizes[1] - sizes[0])


def _tokens(text: str) -> Tensor:
    """An end token, then the bytes of a text."""
    tokenizer = ByteTokenizer()
    return torch.tensor([tokenizer.eos_id, *tokenizer.encode(text)])
