"""One token after the other, handed over as it comes."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decode.beam import largest, log_total
from regard.decode.decoded import Decoded, check_limit
from regard.decode.language import LanguageStepper
from regard.decode.rules import Rule, allowed, narrowed
from regard.decode.sampling import Sampling, draw, fortunes
from regard.decode.stepper import Stepper


class Step(NamedTuple):
    """The next token of each row, how likely the model found it, and which rows are done.

    A row that ended before writes `end` again, at no cost.

    >>> Step(*map(torch.tensor, ([4, 1], [-0.5, 0.0], [False, True]))).tokens.tolist()
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
    limit: int,
    how: Sampling | None = None,
    rules: Sequence[Rule] = (),
) -> Iterator[Step]:
    """Tokens as they come, until all rows have ended or `limit` is reached: likeliest, or drawn.

    y_t = argmax_y p(y | y_1 … y_{t-1}, what was read),   or y_t drawn from it, as `how` says

    `rules` narrow the choice; a log-probability is the model's own, whatever the choice was.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> stepper, prompt = rg.decode.make_stepper(model), torch.tensor([[3, 4]])
    >>> steps = stream(stepper, stepper.start(prompt), prompt[:, -1], end=2, limit=5)
    >>> next(steps).tokens.shape
    torch.Size([1])
    """
    check_limit(limit)
    if isinstance(stepper, LanguageStepper):
        steps = stepper.write(first, state, end=end, limit=limit, how=how, rules=rules)
        if steps is not None:  # a GPU takes many steps without a question
            yield from (Step(*step) for step in steps)
            return
    ended = torch.zeros_like(first, dtype=torch.bool)
    luck = None if how is None else fortunes(how.seed, len(first), limit).to(first.device)
    written = first.new_empty(len(first), 0)
    for at in range(limit):
        with torch.no_grad():  # not around the whole: the caller has the word between two tokens
            logits, state = stepper.step(first, state)
            total = log_total(logits)
            if rules:
                logits = narrowed(logits, allowed(rules, written, logits.shape[-1], ~ended))
            if how is None or luck is None:
                chosen, first = (x[:, 0] for x in largest(logits, 1))
            else:
                first = draw(logits, how, luck[:, at])
                chosen = logits.gather(1, first[:, None])[:, 0]
        log_prob = (chosen - total).masked_fill(ended, 0)
        first = first.masked_fill(ended, end)
        ended = ended | (first == end)
        if rules:
            written = torch.cat([written, first[:, None]], 1)
        yield Step(first, log_prob, ended)
        if ended.all():
            return


def collect(steps: Iterator[Step]) -> Decoded:
    """All that a stream gives, as one.

    >>> one = Step(*map(torch.tensor, ([4], [-0.5], [False])))
    >>> two = Step(*map(torch.tensor, ([1], [-0.25], [True])))
    >>> collect(iter([one, two])).log_prob
    tensor([-0.7500])
    """
    tokens, log_probs, ends = zip(*steps, strict=True)
    lengths = (~torch.stack(ends)).sum(0)
    return Decoded(torch.stack(tokens, 1), lengths, torch.stack(log_probs).sum(0), ends[-1])


def sample(
    stepper: Stepper,
    state: Any,
    first: Int[Tensor, " batch"],
    *,
    end: int,
    limit: int,
    how: Sampling | None = None,
    rules: Sequence[Rule] = (),
) -> Decoded:
    """From `first` on, tokens drawn by their probability, until `end` or `limit` tokens.

    y_t ~ p(y | y_1 … y_{t-1}, what was read), sharpened and cut as `how` says

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> stepper, prompt = rg.decode.make_stepper(model), torch.tensor([[3, 4]])
    >>> state, how = stepper.start(prompt), rg.decode.Sampling(top_k=3, seed=1)
    >>> sample(stepper, state, prompt[:, -1], end=2, limit=4, how=how).tokens.shape[0]
    1
    """
    how = Sampling() if how is None else how
    return collect(stream(stepper, state, first, end=end, limit=limit, how=how, rules=rules))
