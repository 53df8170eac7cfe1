"""One token after the other, handed over as it comes."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decode.constraints import TokenConstraint, allowed_mask, mask_logits
from regard.decode.sampling import Sampling, row_uniforms, sample_tokens
from regard.decode.search.beam import chunked_logsumexp, grouped_topk
from regard.decode.search.result import DecodeResult, check_max_new_tokens
from regard.decode.stepper import Stepper
from regard.decode.steppers.language import LanguageStepper


class GenerationStep(NamedTuple):
    """The next token of each row, how likely the model found it, and which rows are done.

    A row that ended before writes `end` again, at no cost.

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
    """Tokens as they come, until all rows have ended or `limit` is reached: likeliest, or drawn.

    y_t = argmax_y p(y | y_1 … y_{t-1}, what was read),   or y_t drawn from it, as `how` says

    `rules` narrow the choice; a log-probability is the model's own, whatever the choice was.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> stepper, prompt = rg.decode.make_stepper(model), torch.tensor([[3, 4]])
    >>> steps = stream(stepper, stepper.start(prompt), prompt[:, -1], end=2, max_new_tokens=5)
    >>> next(steps).tokens.shape
    torch.Size([1])
    """
    check_max_new_tokens(max_new_tokens)
    if isinstance(stepper, LanguageStepper):
        steps = stepper.generate(
            first,
            state,
            end=end,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            constraints=constraints,
        )
        if steps is not None:  # a GPU takes many steps without a question
            yield from (GenerationStep(*step) for step in steps)
            return
    ended = torch.zeros_like(first, dtype=torch.bool)
    luck = (
        None
        if sampling is None
        else row_uniforms(sampling.seed, len(first), max_new_tokens).to(first.device)
    )
    written = first.new_empty(len(first), 0)
    for at in range(max_new_tokens):
        with torch.no_grad():  # not around the whole: the caller has the word between two tokens
            logits, state = stepper.step(first, state)
            total = chunked_logsumexp(logits)
            if constraints:
                logits = mask_logits(
                    logits, allowed_mask(constraints, written, logits.shape[-1], ~ended)
                )
            if sampling is None or luck is None:
                chosen, first = (x[:, 0] for x in grouped_topk(logits, 1))
            else:
                first = sample_tokens(logits, sampling, luck[:, at])
                chosen = logits.gather(1, first[:, None])[:, 0]
        log_prob = (chosen - total).masked_fill(ended, 0)
        first = first.masked_fill(ended, end)
        ended = ended | (first == end)
        if constraints:
            written = torch.cat([written, first[:, None]], 1)
        yield GenerationStep(first, log_prob, ended)
        if ended.all():
            return


def collect_steps(steps: Iterator[GenerationStep]) -> DecodeResult:
    """All that a stream gives, as one.

    >>> one = GenerationStep(*map(torch.tensor, ([4], [-0.5], [False])))
    >>> two = GenerationStep(*map(torch.tensor, ([1], [-0.25], [True])))
    >>> collect_steps(iter([one, two])).log_prob
    tensor([-0.7500])
    """
    tokens, log_probs, ends = zip(*steps, strict=True)
    lengths = (~torch.stack(ends)).sum(0)
    return DecodeResult(torch.stack(tokens, 1), lengths, torch.stack(log_probs).sum(0), ends[-1])


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
    """From `first` on, tokens drawn by their probability, until `end` or `limit` tokens.

    y_t ~ p(y | y_1 … y_{t-1}, what was read), sharpened and cut as `how` says

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> stepper, prompt = rg.decode.make_stepper(model), torch.tensor([[3, 4]])
    >>> state, how = stepper.start(prompt), rg.decode.Sampling(top_k=3, seed=1)
    >>> sample(stepper, state, prompt[:, -1], end=2, max_new_tokens=4, sampling=how).tokens.shape[0]
    1
    """
    sampling = Sampling() if sampling is None else sampling
    return collect_steps(
        stream(
            stepper,
            state,
            first,
            end=end,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            constraints=constraints,
        )
    )
