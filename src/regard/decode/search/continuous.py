"""Continuous batching: sequences join and leave a batch between two steps (Yu et al. 2022)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.decode.constraints import AllowedTokens, SuppressTokens, constrain_logits
from regard.decode.language_stepper import LanguageStepper
from regard.decode.sampling import Sampling, row_uniforms, sample_tokens
from regard.decode.search.beam import check_max_new_tokens, grouped_topk
from regard.decode.stepper import last_tokens


class TokenScore(NamedTuple):
    """The log probability of a token that was chosen, and the most likely tokens with theirs.

    log softmax(logits), before temperature, truncation and constraints

    >>> TokenScore.of(torch.zeros(4), 3, count=0)
    TokenScore(logprob=-1.3862943649291992, top={})
    """

    logprob: float
    top: dict[int, float]

    @staticmethod
    def of(logits: Float[Tensor, " vocab"], token: int, *, count: int) -> "TokenScore":
        """The score of a token, and those of the `count` most likely ones."""
        logprobs = logits.float().log_softmax(-1)
        values, tokens = logprobs.topk(min(count, len(logprobs)))
        top = dict(zip(tokens.tolist(), values.tolist(), strict=True))
        return TokenScore(float(logprobs[token]), top)


@dataclass(eq=False)
class GeneratedRow:
    """One sequence of a `ContinuousBatch`: its prompt and what was generated so far.

    >>> GeneratedRow([3, 4], max_new_tokens=2).total_length
    4
    """

    prompt: Sequence[int]
    max_new_tokens: int
    sampling: Sampling | None = None
    top_logprobs: int | None = None  # score each token, beside as many of the most likely ones
    tokens: list[int] = field(default_factory=list, init=False)
    scores: list[TokenScore] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        check_max_new_tokens(self.max_new_tokens)
        seed = 0 if self.sampling is None else self.sampling.seed
        self.uniforms = row_uniforms(seed, 1, self.max_new_tokens)[0]  # as `stream` draws them

    @property
    def total_length(self) -> int:
        """Tokens that it has at most, with those of the prompt."""
        return len(self.prompt) + self.max_new_tokens


class ContinuousBatch:
    """Generates several sequences together; each may begin and end at any step.

    Each gets the tokens that `stream` gives it alone, whatever else is in the batch.

    Args:
        stepper: of a language model.
        end: the end token.
        constraints: on all sequences.
        max_cache: tokens in the cache, padding included; a sequence that does not fit is refused.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> batch = ContinuousBatch(rg.decode.make_stepper(model), end=2)
    >>> row = GeneratedRow([3, 4], max_new_tokens=2)
    >>> batch.add(row)
    True
    >>> (first, token, ended), = batch.step()
    >>> first is row, ended
    (True, False)
    """

    def __init__(
        self,
        stepper: LanguageStepper,
        *,
        end: int,
        constraints: Sequence[AllowedTokens | SuppressTokens] = (),
        max_cache: int = 1 << 16,
    ):
        self.stepper, self.end, self.constraints = stepper, end, constraints
        self.max_cache = max_cache
        self.rows: list[GeneratedRow] = []  # those with a state, then those that join
        self.state: Any = None
        self.last: Tensor | None = None  # token of each row with a state

    def add(self, row: GeneratedRow) -> bool:
        """Let a sequence join at the next step; False if it does not fit beside the others."""
        longest = max(x.total_length for x in (row, *self.rows))
        if self.rows and longest * (len(self.rows) + 1) > self.max_cache:
            return False
        self.rows.append(row)
        return True

    def remove(self, row: GeneratedRow) -> None:
        """Drop a sequence before its end."""
        if row in self.rows:
            self._keep([n for n, x in enumerate(self.rows) if x is not row])

    @torch.no_grad()
    def step(self) -> list[tuple[GeneratedRow, int, bool]]:
        """One more token of each sequence, and whether it has ended there."""
        if not self.rows:
            return []
        self._join()
        assert self.last is not None
        scored, self.state = self.stepper.step(self.last, self.state)
        logits = scored
        if self.constraints:
            none, live = self.last.new_empty(len(self.rows), 0), self.last.new_ones(len(self.rows))
            logits = constrain_logits(logits, self.constraints, none, live.bool())
        self.last = self._choose(logits)
        results = []
        for n, (row, token) in enumerate(zip(self.rows, self.last.tolist(), strict=True)):
            row.tokens.append(token)
            if row.top_logprobs is not None:
                row.scores.append(TokenScore.of(scored[n], token, count=row.top_logprobs))
            ended = token == self.end or len(row.tokens) == row.max_new_tokens
            results.append((row, token, ended))
        if any(ended for _, _, ended in results):
            self._keep([n for n, (_, _, ended) in enumerate(results) if not ended])
        return results

    def _join(self) -> None:
        old = 0 if self.last is None else len(self.last)
        if old == len(self.rows):
            return
        device = next(self.stepper.model.parameters()).device
        prompts = [torch.tensor(row.prompt) for row in self.rows[old:]]
        tokens = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True).to(device)
        sizes = torch.tensor([len(x) for x in prompts], device=device)
        lengths = None if bool((sizes == tokens.shape[1]).all()) else sizes
        state, last = self.stepper.start(tokens, lengths), last_tokens(tokens, lengths)
        if self.last is None:
            self.state, self.last = state, last
        else:
            self.state = self.stepper.concatenate([self.state, state], [old, len(prompts)])
            self.last = torch.cat([self.last, last])

    def _choose(self, logits: Tensor) -> Tensor:
        chosen, groups = grouped_topk(logits, 1)[1][:, 0], defaultdict[Sampling, list[int]](list)
        for n, row in enumerate(self.rows):
            if row.sampling is not None:
                groups[replace(row.sampling, seed=0)].append(n)
        for sampling, rows in groups.items():
            drawn = [row.uniforms[len(row.tokens)] for row in map(self.rows.__getitem__, rows)]
            uniform = torch.stack(drawn).to(logits.device)
            chosen[rows] = sample_tokens(logits[rows], sampling, uniform)
        return chosen

    def _keep(self, rows: list[int]) -> None:
        old = 0 if self.last is None else len(self.last)
        self.rows, staying = [self.rows[n] for n in rows], [n for n in rows if n < old]
        if not staying:
            self.state = self.last = None
        elif len(staying) < old:
            assert self.last is not None
            index = torch.tensor(staying, device=self.last.device)
            self.state, self.last = self.stepper.select(self.state, index), self.last[index]
