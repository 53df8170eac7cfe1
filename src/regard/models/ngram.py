"""N-gram language model with interpolated Kneser-Ney smoothing: tables of counts, no training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.config import check_positive, register_model

MAX_ORDER = 12
MAX_LOGITS = 1 << 24  # that are computed at once: 64 MB of float32


@dataclass(frozen=True, kw_only=True)
class NgramConfig:
    """Config of an n-gram model.

    `entries` is the number of n-grams of each order, from 1; `symbols` that of the tokens that
    occur in them.

    >>> NgramConfig(vocab=260, symbols=60, entries=(60, 900)).order
    2
    """

    vocab: int
    symbols: int
    entries: tuple[int, ...]

    def __post_init__(self) -> None:
        check_positive(self, "vocab", "symbols")
        most = max_order(self.symbols)
        if not 0 < self.order <= most or min(self.entries) < 1:
            raise ConfigError(
                f"entries: needs 1 to {most} positive numbers for {self.symbols} symbols, got "
                f"{list(self.entries)}"
            )

    @property
    def order(self) -> int:
        """The longest n-grams."""
        return len(self.entries)


def max_order(symbols: int) -> int:
    """The longest n-grams of so many symbols whose codes are 64-bit integers.

    >>> max_order(255)
    7
    """
    return min(MAX_ORDER, int(62 / math.log2(symbols + 1)))


def _table(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


@register_model(NgramConfig)
class NgramModel(nn.Module):
    """Next-token logits of an n-gram model.

    p(w | c) = max(count(c w) - d, 0) / count(c) + γ(c) p(w | c without its first token)

    The weights are tables without gradients, made by `fit_ngrams`.

    >>> model = fit_ngrams([torch.tensor([0, 1, 0, 1, 0, 1])], vocab=3, order=2)
    >>> model(torch.tensor([[1]])).argmax()
    tensor(0)
    """

    def __init__(self, config: NgramConfig):
        super().__init__()
        self.config = config
        base = config.symbols + 1
        self.symbols = _table(torch.zeros(config.vocab, dtype=torch.long))
        self.tokens = _table(torch.zeros(base, dtype=torch.long))
        self.unigram_backoff = _table(torch.ones(()))
        codes = [torch.zeros(size, dtype=torch.long) for size in config.entries]
        self.codes = nn.ParameterList(map(_table, codes))
        self.weights = nn.ParameterList(_table(torch.zeros(size)) for size in config.entries)
        self.backoffs = nn.ParameterList(_table(torch.ones(size)) for size in config.entries)

    def level(self, order: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of the n-grams of one order: codes in order, weights, and γ of each as a context."""
        return self.codes[order - 1], self.weights[order - 1], self.backoffs[order - 1]

    @torch.no_grad()
    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab"]:
        """Next-token logits: log-probabilities."""
        symbols = self.symbols[tokens]
        contexts = torch.stack([self._codes(symbols, n) for n in range(self.config.order)], -1)
        rows = contexts.flatten(0, 1).split(max(1, MAX_LOGITS // self.config.vocab))
        return torch.cat([self._log_probs(row) for row in rows]).unflatten(0, tokens.shape)

    @torch.no_grad()
    def log_probs(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time"]:
        """The log-probability of each token, without those of the others."""
        symbols = self.symbols[tokens]
        p = self.unigram_backoff.expand(tokens.shape) / self.config.vocab
        for n in range(1, self.config.order + 1):
            codes, weights, _ = self.level(n)
            if n > 1:
                # of the context: the symbols before this one
                context = F.pad(self._codes(symbols, n - 1)[:, :-1], (1, 0), value=-1)
                p = p * self._backoff(context, n)
            code = self._codes(symbols, n)
            at = torch.searchsorted(codes, code).clamp(max=len(codes) - 1)
            p = p + torch.where(codes[at] == code, weights[at], 0.0)
        return p.log()

    @torch.no_grad()
    def known(self, tokens: Int[Tensor, "batch time"]) -> Int[Tensor, "batch time"]:
        """How many of the last tokens, at most those of a context, occur in a row in the text."""
        symbols, count = self.symbols[tokens], torch.zeros_like(tokens)
        for n in range(1, self.config.order):
            codes, code = self.level(n)[0], self._codes(symbols, n)
            count += codes[torch.searchsorted(codes, code).clamp(max=len(codes) - 1)] == code
        return count

    def _backoff(self, context: Tensor, order: int) -> Tensor:
        """γ of contexts of one order; 1 for those that were never seen."""
        known, _, backoffs = self.level(order - 1)
        at = torch.searchsorted(known, context).clamp(max=len(known) - 1)
        return torch.where(known[at] == context, backoffs[at], 1.0)

    def _codes(self, symbols: Tensor, n: int) -> Tensor:
        """The codes of the n symbols that end at each position; -1 where there are fewer."""
        code, base = torch.zeros_like(symbols), self.config.symbols + 1
        for k in range(n):
            code[:, n - 1 :] += symbols[:, n - 1 - k : symbols.shape[1] - k] * base**k
        code[:, : max(0, n - 1)] = -1
        return code

    def _log_probs(self, contexts: Tensor) -> Tensor:
        """Log-probabilities of all tokens after contexts of 0, 1, … symbols."""
        vocab, base = self.config.vocab, self.config.symbols + 1
        p = self.unigram_backoff.expand(len(contexts), vocab) / vocab
        for n, context in enumerate(contexts.mT.contiguous(), 1):
            codes, weights, _ = self.level(n)
            if n > 1:
                p = p * self._backoff(context, n)[:, None]
            first = torch.searchsorted(codes, context * base)
            counts = torch.searchsorted(codes, context * base + base) - first
            rows = torch.repeat_interleave(counts)
            within = torch.arange(len(rows), device=p.device) - (counts.cumsum(0) - counts)[rows]
            entries = first[rows] + within
            p = p.contiguous().index_put(
                (rows, self.tokens[codes[entries] % base]), weights[entries], True
            )
        return p.log()


class NgramMixture(nn.Module):
    """Next-token log-probabilities of a network and of n-grams of the same tokens, mixed.

    p = mix_k softmax(logits) + (1 - mix_k) p_n-grams,   k: known tokens of the context

    Nothing here is trained by gradients: `mix` is fitted to the valid split.

    >>> mixture = NgramMixture(NgramConfig(vocab=3, symbols=2, entries=(2, 2)))
    >>> mixture(torch.zeros(1, 1, 3), torch.tensor([[0, 1]])).exp()
    tensor([[[0.3333, 0.3333, 0.3333]]])
    """

    def __init__(self, config: NgramConfig):
        super().__init__()
        self.tables, self.mix = NgramModel(config), _table(torch.full((config.order,), 0.5))

    @property
    def summary(self) -> str:
        """How much of each, for the card."""
        shares = ", ".join(f"{x:.2f}" for x in self.mix.tolist())
        return f"share of the network by known tokens of a context, the rest is n-grams: {shares}"

    def forward(
        self, logits: Float[Tensor, "batch last vocab"], tokens: Int[Tensor, "batch time"]
    ) -> Float[Tensor, "batch last vocab"]:
        """Log-probabilities after the last tokens, from the logits of the network there."""
        last = slice(-logits.shape[1], None)
        mix = self.mix[self.tables.known(tokens)[:, last]][..., None]
        network = logits.float().log_softmax(-1) + mix.log()
        ngrams = self.tables.forward(tokens)[:, last]  # no call: a part of this module, to `look`
        return torch.logaddexp(network, ngrams + (1 - mix).log())


def fit_ngrams(rows: Sequence[Int[Tensor, " _"]], *, vocab: int, order: int) -> NgramModel:
    """An n-gram model with interpolated modified Kneser-Ney smoothing (Chen and Goodman 1998).

    The longest n-grams are counted, of shorter ones the different tokens before them. Three
    discounts per order are estimated from how many n-grams occur once, twice, three and four times.

    Args:
        rows: texts as tokens.
        vocab: size of the vocabulary.
        order: of the longest n-grams, at most `max_order` of the different tokens.

    >>> fit_ngrams([torch.tensor([0, 1, 0, 1])], vocab=3, order=2).config.entries
    (2, 2)
    """
    text = torch.cat(list(rows)).long()
    known = text.unique()
    symbols = torch.zeros(vocab, dtype=torch.long)
    symbols[known] = torch.arange(1, len(known) + 1)
    base, order = len(known) + 1, min(order, max_order(len(known)), len(text))
    text, code, levels = symbols[text], torch.zeros(len(text), dtype=torch.long), []
    for n in range(1, order + 1):  # the code of the n-gram that begins at each position
        code = code[: len(text) - n + 1] * base + text[n - 1 :]
        levels.append(torch.unique_consecutive(code.sort()[0], return_counts=True))
    model = NgramModel(
        NgramConfig(vocab=vocab, symbols=len(known), entries=tuple(len(x) for x, _ in levels))
    )
    model.symbols.copy_(symbols)
    model.tokens[1:] = known
    for n, (codes, counts) in enumerate(levels, 1):
        if n < order:
            shorter = (levels[n][0] % base**n).sort()[0]
            shorter, counts_before = torch.unique_consecutive(shorter, return_counts=True)
            counts = torch.ones_like(counts)  # of the start of the text, which nothing is before
            counts[torch.searchsorted(codes, shorter)] = counts_before
        discount = _discounts(counts)[counts.clamp(max=3)]
        contexts, index = torch.unique_consecutive(codes // base, return_inverse=True)
        sums = torch.zeros(2, len(contexts), dtype=torch.double)
        sums = sums.index_add_(1, index, torch.stack([counts.double(), discount]))
        model.level(n)[0].copy_(codes)
        model.level(n)[1].copy_((counts - discount) / sums[0][index])
        backoff = sums[1] / sums[0]
        if n == 1:
            model.unigram_backoff.copy_(backoff[0])
        else:
            shorter, _, backoffs = model.level(n - 1)
            backoffs[torch.searchsorted(shorter, contexts)] = backoff.float()
    return model.eval()


def _discounts(counts: Tensor) -> Tensor:
    """The discounts of counts 0, 1, 2, and 3 or more.

    Y = n1 / (n1 + 2 n2),   d_k = k - (k + 1) Y n_(k+1) / n_k
    """
    n = counts.clamp(max=5).bincount(minlength=6).double()
    y = n[1] / (n[1] + 2 * n[2]).clamp(min=1)
    values = [k - (k + 1) * y * n[k + 1] / n[k].clamp(min=1) for k in (1, 2, 3)]
    # a text of few n-grams has none of some counts: half of a count, as in absolute discounting
    return torch.stack([y * 0, *(x if 0 < x < k else y * 0 + 0.5 for k, x in enumerate(values, 1))])
