"""Token-by-token generation: as a stream, and in a batch that sequences join and leave."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decode.sampling import (
    AllowedTokens,
    Sampling,
    SuppressTokens,
    TokenConstraint,
    constrain_logits,
    row_uniforms,
    sample_tokens,
)
from regard.decode.search.beam import (
    DecodeResult,
    check_max_new_tokens,
    chunked_logsumexp,
    grouped_topk,
)
from regard.decode.stepper import Stepper, last_tokens


class GenerationStep(NamedTuple):
    """The next token of each row, its log-probability, and which rows have ended.

    A row that has ended repeats `end` with log-probability 0.
    """

    tokens: Int[Tensor, " batch"]
    log_prob: Float[Tensor, " batch"]
    ended: Bool[Tensor, " batch"]


def stream(
    stepper: Stepper, state: Any, first: Int[Tensor, " batch"], *, end: int, max_new_tokens: int,
    sampling: Sampling | None = None, constraints: Sequence[TokenConstraint] = (),
) -> Iterator[GenerationStep]:  # fmt: skip
    """Generate tokens one step at a time until all rows have ended.

    y_t = argmax_y p(y | y_1 … y_{t-1}, input),   or sampled from it

    Log-probabilities are those of the unconstrained model.

    Args:
        stepper: The model, from `make_stepper`.
        state: The state after the source or prompt, from `stepper.start`.
        first: The token of each row to continue from.
        end: The end token.
        max_new_tokens: Upper limit on generated tokens.
        sampling: How to sample; greedy if None.
        constraints: Restrict which tokens may come next.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> stepper, prompt = rg.decode.make_stepper(model), torch.tensor([[3, 4]])
    >>> steps = stream(stepper, stepper.start(prompt), prompt[:, -1], end=2, max_new_tokens=5)
    >>> next(steps).tokens.shape
    torch.Size([1])
    """
    check_max_new_tokens(max_new_tokens)
    generate = getattr(stepper, "generate", None)
    if generate is not None:
        steps = generate(first, state, end, max_new_tokens, sampling, constraints)
        if steps is not None:  # many steps per synchronisation on a GPU
            yield from (GenerationStep(*step) for step in steps)
            return
    ended = torch.zeros_like(first, dtype=torch.bool)
    uniforms: Tensor | None = None
    if sampling is not None:
        uniforms = row_uniforms(sampling.seed, len(first), max_new_tokens).to(first.device)
    generated = first.new_empty(len(first), 0)
    for at in range(max_new_tokens):
        with torch.no_grad():  # not around the loop: the caller runs between two tokens
            logits, state = stepper.step(first, state)
            total = chunked_logsumexp(logits)
            if constraints:
                logits = constrain_logits(logits, constraints, generated, ~ended)
            if sampling is None or uniforms is None:
                chosen, first = (x[:, 0] for x in grouped_topk(logits, 1))
            else:
                first = sample_tokens(logits, sampling, uniforms[:, at])
                chosen = logits.gather(1, first[:, None])[:, 0]
        log_prob = (chosen - total).masked_fill(ended, 0)
        first = first.masked_fill(ended, end)
        ended = ended | (first == end)
        if constraints:
            generated = torch.cat([generated, first[:, None]], 1)
        yield GenerationStep(first, log_prob, ended)
        if ended.all():
            return


def collect_steps(steps: Sequence[GenerationStep]) -> DecodeResult:
    """The steps of a stream as one result."""
    tokens, log_probs, ends = zip(*steps, strict=True)
    lengths = (~torch.stack(ends)).sum(0)
    return DecodeResult(torch.stack(tokens, 1), lengths, torch.stack(log_probs).sum(0), ends[-1])


def greedy(
    stepper: Stepper, state: Any, first: Int[Tensor, " batch"], *, end: int, max_new_tokens: int,
    constraints: Sequence[TokenConstraint] = (),
) -> DecodeResult:  # fmt: skip
    """Greedy search: the most likely token at each step; arguments as in `stream`.

    y_t = argmax_y p(y | y_1 … y_{t-1}, input)

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=9)).eval()
    >>> stepper = rg.decode.make_stepper(model)
    >>> state = stepper.start(torch.tensor([[3, 4, 5], [6, 7, 8]]))
    >>> result = greedy(stepper, state, torch.tensor([1, 1]), end=2, max_new_tokens=4)
    >>> bool((result.lengths <= 4).all())
    True
    """
    limits: dict[str, Any] = {"end": end, "max_new_tokens": max_new_tokens}
    return collect_steps([*stream(stepper, state, first, constraints=constraints, **limits)])


def sample(
    stepper: Stepper, state: Any, first: Int[Tensor, " batch"], *, end: int, max_new_tokens: int,
    sampling: Sampling | None = None, constraints: Sequence[TokenConstraint] = (),
) -> DecodeResult:  # fmt: skip
    """Sample tokens until `end` or `max_new_tokens`; arguments as in `stream`.

    y_t ~ p(y | y_1 … y_{t-1}, input), with temperature and truncation as in `sampling`

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> stepper, prompt = rg.decode.make_stepper(model), torch.tensor([[3, 4]])
    >>> state, top_3 = stepper.start(prompt), rg.decode.Sampling(top_k=3, seed=1)
    >>> result = sample(stepper, state, prompt[:, -1], end=2, max_new_tokens=4, sampling=top_3)
    >>> result.tokens.shape[0]
    1
    """
    limits: dict[str, Any] = {"end": end, "max_new_tokens": max_new_tokens}
    sampling = Sampling() if sampling is None else sampling
    steps = stream(stepper, state, first, **limits, sampling=sampling, constraints=constraints)
    return collect_steps([*steps])


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
        stepper: Any,
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
