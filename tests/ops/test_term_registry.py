"""Every mask and bias is registered and can be stored."""

import pytest
import torch
from term_cases import AHEAD, EXAMPLES, FEAT, B, H, K, Q

from regard import ops
from regard.errors import ConfigError
from regard.ops import biases, masks
from regard.ops.term_registry import TERMS, term_from_dict, term_to_dict

# a caller writes a & b, a | b, a + b, or a tensor
WRITTEN = {masks.Both, masks.Either, masks.DenseMask, biases.DenseBias, biases.SumBias}
WRITTEN |= {masks.ChosenKeys}  # by an indexer
each_term = pytest.mark.parametrize("cls", TERMS, ids=lambda cls: cls.__name__)


def scores(term):
    q, k = torch.ones(B, H, Q, FEAT), torch.ones(B, H, K, FEAT)
    name = "mask" if isinstance(term, masks.Mask) else "bias"
    return ops.Terms(scale=1.0, offset=AHEAD, **{name: term}).score_tile(q, k)


def test_every_mask_and_bias_of_the_library_is_registered_and_exported():
    for base, module in ((masks.Mask, masks), (biases.Bias, biases)):
        public = [c for name, c in vars(module).items() if not name.startswith("_")]
        ours = {c for c in public if isinstance(c, type) and issubclass(c, base)} - {base}
        assert ours <= set(TERMS)
    exported = {getattr(ops, name) for name in ops.__all__}
    assert set(TERMS) - exported == WRITTEN, "add it to ops/__init__.py"


@each_term
def test_it_can_be_stored_and_read_back(cls):
    tensors = []

    def pack(x):
        tensors.append(x)
        return len(tensors) - 1

    description = term_to_dict(EXAMPLES[cls], pack)
    again = term_from_dict(description, tensors.__getitem__)
    assert type(again) is cls
    assert torch.equal(scores(again), scores(EXAMPLES[cls]))


def test_an_unregistered_mask_is_refused():
    class Even(masks.Mask):
        pass

    with pytest.raises(ConfigError, match="got Even; try it as a tensor"):
        term_to_dict(Even(), id)
