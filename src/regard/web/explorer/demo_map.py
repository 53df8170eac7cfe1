"""Synthetic attention of any length, whose log-sum-exp needs no n × n scores."""

import math
import re

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ConfigError
from regard.inspection import Site
from regard.ops.masks import Causal
from regard.ops.terms import make_terms

PREFIX = "demo:"
MIN_LENGTH, MAX_LENGTH = 16, 1 << 18  # q and k of four heads: 128 MiB
HEADS = ("same word", "near tokens", "first token and full stops", "every period")
WORDS, CONTENT, HEAD_DIM = 64, 12, 16  # words, their features, and features of position beside them
START, STOP = 0, 1  # ids of the first token and of the full stop
LOCAL_DECAY, SHARPNESS, AMPLITUDE = 0.03, 9.0, 6.0
CHUNK = 128


def is_demo(model: str) -> bool:
    """Whether a name of a model is that of a synthetic map.

    >>> is_demo("demo:100000"), is_demo("phrases")
    (True, False)
    """
    return model.startswith(PREFIX)


def demo_length(model: str) -> int:
    """The length in the name of a synthetic map.

    >>> demo_length("demo:100000")
    100000
    """
    text = model.removeprefix(PREFIX)
    if not re.fullmatch(r"[0-9]{1,7}", text) or not MIN_LENGTH <= int(text) <= MAX_LENGTH:
        raise ConfigError(
            f"model: needs demo: and a length from {MIN_LENGTH} to {MAX_LENGTH}, "
            f"got {model[:40]!r}; try demo:100000"
        )
    return int(text)


def make_demo_site(length: int, seed: int = 0) -> Site:
    """Four causal heads over random words: equal words, near tokens, sinks, and a period.

    s_ij = T[word_i, word_j] - m (i - j), or a · cos(2π (i - j) / period)

    A score depends on two words and on the distance alone, so a row's sum has one term per word.
    There are no values: only weights are shown.

    >>> make_demo_site(100)
    synthetic: self, 4 heads, 100 queries, 100 keys
    """
    generator = torch.Generator().manual_seed(seed)
    words = _draw_words(length, generator)
    vectors = torch.randn(WORDS, CONTENT, generator=generator)
    vectors = vectors / vectors.norm(dim=-1, keepdim=True)
    q, k, lse = (torch.zeros(4, length, *x) for x in ((HEAD_DIM,), (HEAD_DIM,), ()))
    position = torch.arange(length, dtype=torch.float32)
    strength = torch.zeros(WORDS)  # of the keys that take what nothing else gets
    strength[START], strength[STOP] = math.log(length), 3.0

    for head, factor, decay in ((0, SHARPNESS, 0.0), (1, 1.0, LOCAL_DECAY), (2, 0.7, 0.0)):
        q[head, :, :CONTENT], k[head, :, :CONTENT] = factor * vectors[words], vectors[words]
        sinks = strength if head == 2 else torch.zeros(WORDS)
        q[head, :, -1], k[head, :, -1] = 1.0, sinks[words]
        q[head, :, -2], k[head, :, -2] = decay, position
        table = factor * vectors @ vectors.T + sinks
        lse[head] = (_word_lse(words, table, decay) + decay * position.double()).float()

    turn = 2 * math.pi * position.double() / demo_period(length)
    waves = torch.stack([turn.cos(), turn.sin()], -1)
    q[3, :, :2], k[3, :, :2] = AMPLITUDE * waves, waves
    lse[3] = (AMPLITUDE * turn.cos()).exp().cumsum(0).log()

    q, k, lse, empty = q[None], k[None], lse[None], torch.zeros(1, 4, length, 0)
    names = ["<start>", ".", *(a + b for a in "bdfklmnprst" for b in "aeiouy")][:WORDS]
    tokens = [[names[i] for i in words.tolist()]]
    return Site(
        name="synthetic",
        path="synthetic",
        q=q,
        k=k,
        v=empty,
        out=empty,
        lse=lse,
        terms=make_terms(q, k, mask=Causal(), scale=1.0),
        query_tokens=tokens,
        key_tokens=tokens,
    )


def demo_period(length: int) -> int:
    """The distance after which the last head repeats.

    >>> demo_period(100_000)
    2500
    """
    return max(8, length // 40)


def _draw_words(length: int, generator: torch.Generator) -> Int[Tensor, " length"]:
    """Random words by topic: passages of different length prefer different words."""
    topics = torch.rand(24, WORDS, generator=generator) ** 6 + 1e-3
    topics[:, START], topics[:, STOP] = 0.0, 0.06 * topics.sum(-1)
    cuts = (torch.rand(23, generator=generator) * length).long().sort().values.tolist()
    parts = [
        torch.multinomial(topic, end - start, replacement=True, generator=generator)
        for topic, start, end in zip(topics, [0, *cuts], [*cuts, length], strict=True)
        if end > start
    ]
    words = torch.cat(parts)
    words[0] = START
    return words


def _word_lse(
    words: Int[Tensor, " length"], table: Float[Tensor, "word other"], decay: float
) -> Float[Tensor, " length"]:
    """log Σ_j≤i exp(T[word_i, word_j] - decay · (i - j)), chunk by chunk.

    >>> _word_lse(torch.tensor([0, 1, 0]), torch.zeros(2, 2), 0.0).exp().round().tolist()
    [1.0, 2.0, 3.0]
    """
    step = torch.arange(CHUNK, dtype=torch.float64)
    within = torch.exp(-decay * (step[:, None] - step)).tril()
    kernel, carried, parts = table.double().exp(), torch.zeros(len(table)).double(), []
    for chunk in words.split(CHUNK):
        count = len(chunk)
        words_seen = torch.nn.functional.one_hot(chunk, len(table)).double()
        sums = within[:count, :count] @ words_seen  # decayed counts of each word, up to each query
        sums += torch.exp(-decay * (step[:count, None] + 1)) * carried
        parts.append((kernel[chunk] * sums).sum(-1).log())
        carried = sums[-1]
    return torch.cat(parts)
