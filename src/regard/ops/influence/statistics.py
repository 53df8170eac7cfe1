"""The result of an influence pass."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Influence:
    """Effects of changing keys: e_ij is the norm of the change of output i by key j.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(3, 2), torch.tensor([[0.0], [0.0], [9.0]])
    >>> rg.influence(q, k, v, *rg.attend(q, k, v)).strongest_key
    tensor([2])
    """

    strongest: Float[Tensor, "*batch query"]  # max_j e_ij
    strongest_key: Int[Tensor, "*batch query"]  # its key, -1 if no key has an effect
    effect_on_query: Float[Tensor, "*batch query"]  # Σ_j e_ij, the effect of all keys on a query
    effect_of_key: Float[Tensor, "*batch key"]  # Σ_i e_ij, the effect of a key on all queries
