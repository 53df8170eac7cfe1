"""Linear-chain conditional random field: probabilities of whole sequences of tags.

score(y | x) = start[y_1] + Σ_t emissions[t, y_t] + Σ_t transitions[y_{t-1}, y_t] + end[y_T]
p(y | x) = exp(score(y | x)) / Σ over all sequences y' of exp(score(y' | x))
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import ShapeError

Emissions = Float[Tensor, "batch time tag"]
Tags = Int[Tensor, "batch time"]
Lengths = Int[Tensor, " batch"]


class TagChain(NamedTuple):
    """Scores of two tags in a row, of the first tag and of the last."""

    transitions: Float[Tensor, "tag tag"]  # from a row to a column
    start: Float[Tensor, " tag"]
    end: Float[Tensor, " tag"]


def crf_log_likelihood(
    emissions: Emissions, tags: Tags, chain: TagChain, lengths: Lengths
) -> Float[Tensor, " batch"]:
    """Log-probability of each sequence of tags: its score less the log of the partition function.

    >>> even = TagChain(torch.zeros(2, 2), torch.zeros(2), torch.zeros(2))
    >>> one = torch.tensor([[0, 1, 0]]), even, torch.tensor([3])
    >>> crf_log_likelihood(torch.zeros(1, 3, 2), *one).exp()  # 1 of 2³ sequences
    tensor([0.1250])
    """
    real, last = _real(emissions, lengths), (lengths - 1)[:, None]
    tags = tags.where(real, 0)  # padding may hold any number
    emitted = emissions.gather(2, tags[..., None])[..., 0].where(real, 0).sum(1)
    moved = chain.transitions[tags[:, :-1], tags[:, 1:]].where(real[:, 1:], 0).sum(1)
    ends = chain.start[tags[:, 0]] + chain.end[tags.gather(1, last)[:, 0]]
    return emitted + moved + ends - crf_log_partition(emissions, chain, lengths)


def crf_log_partition(
    emissions: Emissions, chain: TagChain, lengths: Lengths
) -> Float[Tensor, " batch"]:
    """Log of the sum over all sequences of tags, by the forward algorithm.

    α_1 = start + emissions_1
    α_t[j] = emissions_t[j] + log Σ_i exp(α_{t-1}[i] + transitions[i, j])

    Its gradient by an emission is the probability of that tag at that place.

    >>> even = TagChain(torch.zeros(2, 2), torch.zeros(2), torch.zeros(2))
    >>> crf_log_partition(torch.zeros(1, 3, 2), even, torch.tensor([3])).exp()  # 2³ sequences
    tensor([8.])
    """
    real = _real(emissions, lengths)
    alpha = chain.start + emissions[:, 0]
    for t in range(1, emissions.shape[1]):
        after = torch.logsumexp(alpha[..., None] + chain.transitions, 1) + emissions[:, t]
        alpha = torch.where(real[:, t, None], after, alpha)
    return torch.logsumexp(alpha + chain.end, 1)


@torch.no_grad()
def crf_decode(emissions: Emissions, chain: TagChain, lengths: Lengths) -> Tags:
    """The most probable sequence of tags, by the Viterbi algorithm; 0 in the padding.

    >>> alternate = torch.tensor([[-9.0, 0.0], [0.0, -9.0]])
    >>> chain = TagChain(alternate, torch.zeros(2), torch.zeros(2))
    >>> crf_decode(torch.tensor([[[1.0, 0.0]] * 3]), chain, torch.tensor([3]))
    tensor([[0, 1, 0]])
    """
    real = _real(emissions, lengths)
    alpha, best = chain.start + emissions[:, 0], list[Tensor]()
    stay = torch.arange(emissions.shape[2], device=emissions.device)
    for t in range(1, emissions.shape[1]):
        after, before = (alpha[..., None] + chain.transitions).max(1)
        inside = real[:, t, None]
        best.append(torch.where(inside, before, stay))  # in the padding a path stays where it is
        alpha = torch.where(inside, after + emissions[:, t], alpha)
    path = [(alpha + chain.end).argmax(1)]
    for before in reversed(best):
        path.append(before.gather(1, path[-1][:, None])[:, 0])
    return torch.stack(path[::-1], 1).where(real, 0)


@torch.enable_grad()
def crf_marginals(emissions: Emissions, chain: TagChain, lengths: Lengths) -> Emissions:
    """The probability of each tag at each place, whatever the others are; 0 in the padding.

    p(y_t = k | x) = ∂ log Z / ∂ emissions[t, k]

    >>> even = TagChain(torch.zeros(2, 2), torch.zeros(2), torch.zeros(2))
    >>> crf_marginals(torch.tensor([[[0.0, 0.0]]]), even, torch.tensor([1]))
    tensor([[[0.5000, 0.5000]]])
    """
    emissions = emissions.detach().requires_grad_()
    chain = TagChain(*(x.detach() for x in chain))
    total = crf_log_partition(emissions, chain, lengths).sum()
    return torch.autograd.grad(total, emissions)[0]


def _real(emissions: Emissions, lengths: Lengths) -> Bool[Tensor, "batch time"]:
    """Whether a place is before the end of its sequence."""
    time = emissions.shape[1]
    if not time or bool(((lengths < 1) | (lengths > time)).any()):
        raise ShapeError(f"lengths: needs 1 to {time}, the length of emissions, got {lengths}")
    return torch.arange(time, device=emissions.device) < lengths[:, None]
