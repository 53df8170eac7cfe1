"""Token-by-token generation, greedy or sampled, as a stream."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decode.constraints import TokenConstraint, constrain_logits
from regard.decode.sampling import Sampling, row_uniforms, sample_tokens
from regard.decode.search.beam import (
    DecodeResult,
    check_max_new_tokens,
    chunked_logsumexp,
    grouped_topk,
)
from regard.decode.stepper import Stepper


class GenerationStep(NamedTuple):
    """The next token of each row, its log-probability, and which rows have ended.

    A row that has ended repeats `end` with log-probability 0.

    >>> GenerationStep(*map(torch.tensor, ([4, 1], [-0.5, 0.0], [False, True]))).tokens.tolist()
    [4, 1]
    """

    tokens: Int[Tensor, " batch"]
    log_prob: Float[Tensor, " batch"]
    ended: Bool[Tensor, " batch"]


def stream(
    stepper: Stepper,
    state: Any,
    first: Int[Tensor, " batch"],
    *,
    end: int,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    constraints: Sequence[TokenConstraint] = (),
) -> Iterator[GenerationStep]:
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


def collect_steps(steps: Iterator[GenerationStep]) -> DecodeResult:
    """The steps of a stream as one result."""
    tokens, log_probs, ends = zip(*steps, strict=True)
    lengths = (~torch.stack(ends)).sum(0)
    return DecodeResult(torch.stack(tokens, 1), lengths, torch.stack(log_probs).sum(0), ends[-1])


def greedy(
    stepper: Stepper,
    state: Any,
    first: Int[Tensor, " batch"],
    *,
    end: int,
    max_new_tokens: int,
    constraints: Sequence[TokenConstraint] = (),
) -> DecodeResult:
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
    return collect_steps(stream(stepper, state, first, **limits, constraints=constraints))


def sample(
    stepper: Stepper,
    state: Any,
    first: Int[Tensor, " batch"],
    *,
    end: int,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    constraints: Sequence[TokenConstraint] = (),
) -> DecodeResult:
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
    return collect_steps(steps)
