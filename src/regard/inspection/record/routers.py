"""Which experts a mixture chose for each token, and statistics of the choice.

with rg.look(model, activations="*.router.*") as sight:
    model(ids)
sight.routers                                   # one row per layer
router = sight.routers["decoder.1"]
router.load, router.entropy, router.co_routing, router.tokens(expert=3)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import LookError, ShapeError
from regard.ops.indices import resolve_index
from regard.ops.maybe_none import MaybeNone
from regard.tables import text_table


class RoutedToken(NamedTuple):
    """A token that an expert got: its place, its label if it has one, and the expert's weight."""

    batch: int
    position: int
    label: str
    weight: float


@dataclass(frozen=True, eq=False, repr=False)
class Router:
    """The experts of one mixture that each token was sent to, with their weights.

    output of a token = Σ over its experts of weight · expert(token)

    >>> chosen, weights = torch.tensor([[[0, 2], [2, 1]]]), torch.full((1, 2, 2), 0.5)
    >>> router = Router("decoder.0", chosen, weights, 4)
    >>> router.load  # share of the choices per expert
    tensor([0.2500, 0.2500, 0.5000, 0.0000])
    """

    name: str
    experts: Int[Tensor, "batch time chosen"]
    weights: Float[Tensor, "batch time chosen"]
    count: int  # of experts
    logits: Float[Tensor, "batch time expert"] | MaybeNone = None
    valid: Bool[Tensor, "batch time"] | MaybeNone = None  # tokens that count; all by default
    labels: list[list[str]] | MaybeNone = None

    def where(self, valid: Tensor) -> "Router":
        """The router with statistics over some tokens alone, such as those of `attention_mask`."""
        if valid.shape != self.experts.shape[:2]:
            raise ShapeError(
                f"valid: needs one per token, {tuple(self.experts.shape[:2])}, got "
                f"{tuple(valid.shape)}"
            )
        return replace(self, valid=valid.bool().to(self.experts.device))

    @cached_property
    def map(self) -> Float[Tensor, "batch time expert"]:
        """The weight of every expert for every token; 0 where it was not chosen."""
        rows = torch.zeros(*self.experts.shape[:2], self.count + 1, device=self.weights.device)
        chosen = self.experts.long().clamp(max=self.count)  # beyond: a token without expert
        rows.scatter_add_(-1, chosen, self.weights.float())
        return rows[..., : self.count]

    @cached_property
    def _chosen(self) -> Float[Tensor, "token expert"]:
        """1 where a counted token was sent to an expert."""
        one = replace(self, weights=(self.weights != 0).float()).map.clamp(max=1)
        return one.flatten(0, 1) if self.valid is None else one[self.valid]

    @property
    def load(self) -> Float[Tensor, " expert"]:
        """Share of all choices that each expert got; 1 / count each is balanced."""
        return self._chosen.sum(0) / self._chosen.sum().clamp(min=1)

    @property
    def entropy(self) -> Float[Tensor, "batch time"]:
        """Entropy of each token's weights over its experts, in nats: 0 if one has all."""
        total = self.weights.float().sum(-1, keepdim=True)
        return torch.special.entr(self.weights.float() / total.where(total != 0, 1)).sum(-1)

    @property
    def balance(self) -> float:
        """Entropy of the load relative to that of balanced experts: 1 is balanced, 0 one expert."""
        if self.count < 2:
            return 1.0
        return float(torch.special.entr(self.load).sum() / torch.tensor(self.count).log())

    @property
    def co_routing(self) -> Float[Tensor, "expert expert"]:
        """Share of the tokens that both experts got; on the diagonal those that one got."""
        return self._chosen.mT @ self._chosen / max(1, len(self._chosen))

    def tokens(self, expert: int, count: int = 10) -> list[RoutedToken]:
        """The tokens for which an expert has the largest weights, in descending order."""
        expert = resolve_index("expert", expert, self.count)
        weights = self.map[..., expert]
        weights = weights if self.valid is None else weights.masked_fill(~self.valid, 0)
        values, places = weights.flatten().sort(descending=True, stable=True)
        routed = []
        for value, place in zip(values[:count].tolist(), places[:count].tolist(), strict=True):
            batch, position = divmod(place, weights.shape[1])
            label = "" if self.labels is None else self.labels[batch][position]
            if value:
                routed.append(RoutedToken(batch, position, label, value))
        return routed

    def __repr__(self) -> str:
        chosen, top = self.experts.shape[-1], int(self.load.argmax())
        unused = int((self.load == 0).sum())
        return (
            f"{self.name}: {chosen} of {self.count} experts per token, largest load "
            f"{float(self.load.max()):.3f} (expert {top}), {unused} unused, balance "
            f"{self.balance:.3f}"
        )


class Routers(dict[str, Router]):
    """The routers of a sight by the name of their block; printed as a table.

    >>> chosen, weights = torch.tensor([[[0, 2], [2, 1]]]), torch.full((1, 2, 2), 0.5)
    >>> routers = Routers({"decoder.0": Router("decoder.0", chosen, weights, 4)})
    >>> list(routers), routers["decoder.0"].count
    (['decoder.0'], 4)
    """

    def __missing__(self, name: str) -> Router:
        known = ", ".join(self) or "none; try look(model, activations='*.router.*')"
        raise LookError(f"name: needs a block with a recorded router, got {name!r}: {known}")

    def where(self, valid: Tensor) -> "Routers":
        """As `Router.where`, for every layer."""
        return Routers({name: router.where(valid) for name, router in self.items()})

    columns = ("router", "experts", "per token", "largest load", "unused", "balance", "entropy")

    def texts(self) -> list[list[str]]:
        """The cells of the table."""
        return [
            [
                name, str(x.count), str(x.experts.shape[-1]), f"{float(x.load.max()):.3f}",
                str(int((x.load == 0).sum())), f"{x.balance:.3f}", f"{float(x.entropy.mean()):.3f}",
            ]
            for name, x in self.items()
        ]  # fmt: skip

    def __repr__(self) -> str:
        return text_table(self.columns, self.texts(), right=self.columns[1:])


def join_steps(calls: list[Tensor]) -> Tensor:
    """The calls of one activation along time; the last where batches or widths differ."""
    alike = {(len(x), *x.shape[2:]) for x in calls}
    return torch.cat(calls, 1) if len(alike) == 1 else calls[-1]


def find_routers(activations: Mapping[str, Tensor], labels: list[list[str]]) -> Routers:
    """The routers among recorded activations, "S.i.router.choice" and "S.i.router.logits"."""
    routed = Routers()
    for key, choice in activations.items():
        name, _, last = key.rpartition(".router.")
        if last != "choice":
            continue
        sizes, logits = choice.shape[:2], activations.get(f"{name}.router.logits")
        is_labelled = [*map(len, labels)] == [sizes[1]] * sizes[0]
        routed[name] = Router(
            name,
            choice[..., 0].long(),
            choice[..., 1],
            int(choice[..., 2].max()) if choice.numel() else 0,
            None if logits is None else logits.view(*sizes, -1),
            labels=labels if is_labelled else None,
        )
    return routed
