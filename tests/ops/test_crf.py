"""The CRF: sums and the best sequence over all sequences, written out."""

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.errors import ShapeError
from regard.ops import TagChain, crf_decode, crf_log_likelihood, crf_log_partition, crf_marginals

sizes = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))


def problem(batch, time, tag, scale=1.0):
    chain = TagChain(*(scale * torch.randn(s).double() for s in ((tag, tag), (tag,), (tag,))))
    lengths = torch.randint(1, time + 1, (batch,))
    return scale * torch.randn(batch, time, tag).double(), chain, lengths


def written_out(emissions, chain, length):
    """Every sequence of tags with its score."""
    for tags in product(range(emissions.shape[1]), repeat=length):
        score = chain.start[tags[0]] + chain.end[tags[-1]]
        score = score + sum(emissions[t, tag] for t, tag in enumerate(tags))
        yield tags, score + sum(chain.transitions[i, j] for i, j in pairwise(tags))


@given(sizes, st.sampled_from([0.1, 1.0, 30.0]))
def test_probabilities_are_those_of_all_sequences(size, scale):
    emissions, chain, lengths = problem(*size, scale)
    for row, length in enumerate(lengths.tolist()):
        sequences = dict(written_out(emissions[row], chain, length))
        scores = torch.stack(list(sequences.values()))
        one = emissions[row : row + 1], chain, lengths[row : row + 1]
        assert_close(crf_log_partition(*one)[0], scores.logsumexp(0))
        best = crf_decode(*one)[0, :length]
        assert_close(sequences[tuple(best.tolist())], scores.max())
        shares = scores.softmax(0)
        for tags, share in zip(sequences, shares, strict=True):
            padded = torch.tensor([[*tags, *[-100] * (size[1] - length)]])
            assert_close(crf_log_likelihood(one[0], padded, chain, one[2])[0].exp(), share)
        marginals = torch.zeros_like(emissions[row])
        for tags, share in zip(sequences, shares, strict=True):
            for t, tag in enumerate(tags):
                marginals[t, tag] += share
        assert_close(crf_marginals(*one)[0], marginals)


@given(sizes)
def test_a_batch_is_its_sequences_one_by_one_and_padding_does_not_matter(size):
    emissions, chain, lengths = problem(*size)
    decoded, total = (
        crf_decode(emissions, chain, lengths),
        crf_log_partition(emissions, chain, lengths),
    )
    for row, length in enumerate(lengths.tolist()):
        alone = emissions[row : row + 1, :length], chain, lengths[row : row + 1]
        assert torch.equal(decoded[row, :length], crf_decode(*alone)[0])
        assert not decoded[row, length:].any()
        assert_close(total[row], crf_log_partition(*alone)[0])


def test_gradients_are_right():
    emissions, chain, lengths = problem(2, 3, 3)
    tags = torch.tensor([[0, 1, 2], [2, 2, 0]])

    def likelihood(emissions, *chain):
        return crf_log_likelihood(emissions, tags, TagChain(*chain), lengths)

    torch.autograd.gradcheck(likelihood, [x.requires_grad_() for x in (emissions, *chain)])


def test_a_sequence_that_is_forbidden_has_no_probability():
    chain = TagChain(torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]), torch.zeros(2), torch.zeros(2))
    logits = torch.tensor([[[0.0, 0.0], [0.0, 9.0]]])
    assert crf_decode(logits, chain, torch.tensor([2])).tolist() == [[1, 1]]
    assert crf_marginals(logits, chain, torch.tensor([2])).isfinite().all()
    assert (
        crf_log_likelihood(logits, torch.tensor([[0, 1]]), chain, torch.tensor([2])) == -torch.inf
    )


@pytest.mark.parametrize("lengths", [[0], [3]])
def test_lengths_need_to_fit(lengths):
    chain = TagChain(torch.zeros(2, 2), torch.zeros(2), torch.zeros(2))
    with pytest.raises(ShapeError, match="lengths: needs 1 to 2"):
        crf_decode(torch.zeros(1, 2, 2), chain, torch.tensor(lengths))
