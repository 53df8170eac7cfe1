"""Token vectors at any depth, their neighbours, and one word in two contexts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import LookError, ShapeError
from regard.inspection.adapters.block_stacks import BlockStack, record_stacks
from regard.inspection.adapters.module_tracker import check_not_compiled
from regard.models import nearest_by_cosine
from regard.ops.indices import as_int

TokenIndex = tuple[int, int]  # which sequence, which token


def hidden_states(
    model: nn.Module, inputs: Any, depth: int = -1, *, stack: str | None = None
) -> Float[Tensor, "batch time dim"]:
    """What a model has made of each token at some depth, of our models and transformers ones.

    depth 0: what enters the first block (embedding and position),   l: the stream after block l

    `inputs` is what the model is called with: a tensor, a tuple or a mapping. A model with two
    stacks is seen in its first (the encoder's) unless `stack` names another, "decoder" for example.

    >>> model = rg.models.Classifier(rg.models.classifier_tiny(vocab=10, classes=2)).eval()
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> torch.equal(rg.hidden_states(model, tokens, depth=0), model.embedding(tokens))
    True
    >>> rg.hidden_states(model, tokens, depth=2).shape
    torch.Size([1, 3, 64])
    """
    found = all_hidden_states(model, inputs, stack=stack)
    if not -len(found) <= as_int("depth", depth) < len(found):
        raise ShapeError(f"depth: needs 0 to {len(found) - 1}, or -1 for the last, got {depth}")
    return found[depth]


def all_hidden_states(
    model: nn.Module, inputs: Any, *, stack: str | None = None
) -> list[Float[Tensor, "batch time dim"]]:
    """The vectors of all depths in one run: before the first block, and after each.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> len(rg.all_hidden_states(model, torch.tensor([[1, 2, 3]])))
    3
    """
    check_not_compiled(model)
    with torch.no_grad(), record_stacks(model) as stacks:
        if isinstance(inputs, Mapping):
            model(**inputs)
        else:
            model(*(inputs if isinstance(inputs, tuple) else (inputs,)))
    found = _chosen(stacks, stack, model).hidden_states()
    if found[0].ndim != 3:
        raise LookError(
            f"model: needs blocks over (batch, time, dim), got {tuple(found[0].shape)}; "
            "try stack= to name another"
        )
    return found


def nearest_neighbours(
    query: Float[Tensor, " dim"],
    candidates: Float[Tensor, "*many dim"],
    labels: Sequence[Any] | None = None,
    count: int = 5,
) -> list[tuple[Any, float]]:
    """The vectors most alike a query, with the cosine of their angle, the most alike first.

    cos(a, b) = a · b / (|a| |b|)

    `words` names the vectors, one each; without them they are told by their place.

    >>> among = torch.tensor([[0.0, 1.0], [3.0, 0.0], [1.0, 1.0]])
    >>> rg.nearest_neighbours(torch.tensor([2.0, 0.0]), among, ["up", "right", "both"], count=2)
    [('right', 1.0), ('both', 0.7071)]
    """
    rows = candidates.reshape(-1, candidates.shape[-1])
    if labels is not None and len(labels) != len(rows):
        raise ShapeError(f"words: needs one for each of {len(rows)} vectors, got {len(labels)}")
    alike, which = nearest_by_cosine(query, rows, count)
    named = which.tolist() if labels is None else [labels[i] for i in which.tolist()]
    return [(word, round(cosine, 4)) for word, cosine in zip(named, alike.tolist(), strict=True)]


@dataclass(frozen=True)
class ContextSimilarity:
    """One word in two places, depth by depth, as cosines of angles.

    `apart[l]`: between the two,   `first[l]`, `second[l]`: of each to the static vector at depth 0
    of its own place

    >>> same = ContextSimilarity(between=[1.0, 0.5], first=[1.0, 0.8], second=[1.0, 0.7])
    >>> print(same)
    depth  each other  first to static  second to static
        0       1.000            1.000             1.000
        1       0.500            0.800             0.700
    """

    between: list[float]
    first: list[float]
    second: list[float]

    def __str__(self) -> str:
        rows = zip(self.between, self.first, self.second, strict=True)
        lines = ["depth  each other  first to static  second to static"]
        lines += [f"{i:5}  {a:10.3f}  {b:15.3f}  {c:16.3f}" for i, (a, b, c) in enumerate(rows)]
        return "\n".join(lines)


def compare_contexts(
    model: nn.Module,
    inputs: Any,
    first: TokenIndex,
    second: TokenIndex,
    *,
    other: Any = None,
    stack: str | None = None,
) -> ContextSimilarity:
    """How far context moves a word: the same word in two places, against its static vector.

    cos(x_l at one place, x_l at the other),   cos(x_l, x_0) at each,   for every depth l

    A place is (sequence, token). The second place is in `other` if it is given, inputs of their
    own, else in the same batch. At depth 0 the two differ by their positions alone.

    >>> model = rg.models.Classifier(rg.models.classifier_tiny(vocab=10, classes=2)).eval()
    >>> found = rg.compare_contexts(model, torch.tensor([[7, 1], [7, 2]]), (0, 0), (1, 0))
    >>> round(found.between[0], 4), found.between[1] < 1
    (1.0, True)
    """
    here = all_hidden_states(model, inputs, stack=stack)
    there = here if other is None else all_hidden_states(model, other, stack=stack)
    one = [_at(x, first, "first") for x in here]
    two = [_at(x, second, "second") for x in there]
    return ContextSimilarity(
        between=[_cosine(a, b) for a, b in zip(one, two, strict=True)],
        first=[_cosine(a, one[0]) for a in one],
        second=[_cosine(b, two[0]) for b in two],
    )


def _chosen(stacks: list[BlockStack], name: str | None, model: nn.Module) -> BlockStack:
    ran = [stack for stack in stacks if stack.is_complete]
    wanted = [stack for stack in ran if name is None or name in stack.path]
    tokens = [stack for stack in wanted if stack.inputs[-1].ndim == 3]
    if not wanted:
        known = ", ".join(stack.path for stack in ran) or "no blocks in a row"
        raise LookError(f"stack: needs one of {known} in {type(model).__name__}, got {name!r}")
    # convolutions in front of an encoder also stand in a row, but have no tokens yet
    deep = [stack for stack in tokens if not isinstance(stack.blocks[0], nn.Conv1d)]
    return (deep or wanted)[0]


def _at(x: Tensor, place: TokenIndex, name: str) -> Tensor:
    batch, time = x.shape[:2]
    if not (0 <= place[0] < batch and 0 <= place[1] < time):
        raise ShapeError(
            f"{name}: needs (sequence, token) below ({batch}, {time}), got {tuple(place)}"
        )
    return x[place]


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a, b, dim=0))
