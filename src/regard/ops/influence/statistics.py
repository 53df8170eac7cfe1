"""The words for what an influence pass finds."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Influence:
    """How far outputs move, as the length of the change, when something is done to a key.

    e_ij is what doing it to key j does to the output of query i.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(3, 2), torch.tensor([[0.0], [0.0], [9.0]])
    >>> found = rg.influence(q, k, v, *rg.attend(q, k, v))
    >>> found.strongest_key
    tensor([2])
    """

    strongest: Float[Tensor, "*batch query"]  # max_j e_ij
    strongest_key: Int[Tensor, "*batch query"]  # its key, -1 if no key moves the output
    effect_on_query: Float[Tensor, "*batch query"]  # Σ_j e_ij, what a query feels of all keys
    effect_of_key: Float[Tensor, "*batch key"]  # Σ_i e_ij, what a key does to all queries
