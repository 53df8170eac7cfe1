"""Hidden states at any depth, their nearest neighbours, and one token in two contexts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import LookError, ShapeError
from regard.inspection.adapters.block_stacks import BlockStack, record_stacks
from regard.inspection.adapters.model_calls import run_model
from regard.inspection.adapters.module_tracker import uncompiled_modules
from regard.models import nearest_by_cosine
from regard.ops.indices import as_int
from regard.tables import text_table

TokenIndex = tuple[int, int]  # sequence, position


def hidden_states(
    model: nn.Module, inputs: Any, depth: int = -1, *, stack: str | None = None
) -> Float[Tensor, "batch time dim"]:
    """Hidden states of a model at one depth; works with models of regard and transformers.

    depth 0: input of the first block (embedding and position),   l: output of block l

    Args:
        model: The model; it must not be compiled.
        inputs: What the model is called with: a tensor, a tuple of arguments or a mapping.
        depth: 0 to the number of blocks, or -1 for the last.
        stack: Part of the path of the block stack, such as "decoder"; the first stack by default.

    >>> model = rg.models.Classifier(rg.models.classifier_tiny(vocab=10, classes=2)).eval()
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> torch.equal(rg.inspection.hidden_states(model, tokens, depth=0), model.embedding(tokens))
    True
    """
    states = all_hidden_states(model, inputs, stack=stack)
    if not -len(states) <= as_int("depth", depth) < len(states):
        raise ShapeError(f"depth: needs 0 to {len(states) - 1}, or -1 for the last, got {depth}")
    return states[depth]


def all_hidden_states(
    model: nn.Module, inputs: Any, *, stack: str | None = None
) -> list[Float[Tensor, "batch time dim"]]:
    """Hidden states of all depths from one forward pass: before the first block, and after each.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> len(rg.inspection.all_hidden_states(model, torch.tensor([[1, 2, 3]])))
    3
    """
    uncompiled_modules(model)  # raises if one is compiled
    with torch.no_grad(), record_stacks(model) as stacks:
        run_model(model, inputs)
    states = _select_stack(stacks, stack, model).hidden_states()
    if states[0].ndim != 3:
        raise LookError(
            f"model: needs blocks over (batch, time, dim), got {tuple(states[0].shape)}; "
            "try another stack="
        )
    return states


def nearest_neighbours(
    query: Float[Tensor, " dim"],
    candidates: Float[Tensor, "*many dim"],
    labels: Sequence[Any] | None = None,
    count: int = 5,
) -> list[tuple[Any, float]]:
    """The candidates with the largest cosine similarity to a query vector, in descending order.

    cos(a, b) = a · b / (|a| |b|)

    Returns (label, cosine) pairs; without `labels` the index is the label.

    >>> candidates = torch.tensor([[0.0, 1.0], [3.0, 0.0], [1.0, 1.0]])
    >>> nearest_neighbours(torch.tensor([2.0, 0.0]), candidates, ["up", "right", "both"], 2)
    [('right', 1.0), ('both', 0.7071)]
    """
    rows = candidates.reshape(-1, candidates.shape[-1])
    if labels is not None and len(labels) != len(rows):
        raise ShapeError(f"labels: needs one per vector, {len(rows)}, got {len(labels)}")
    cosines, indices = nearest_by_cosine(query, rows, count)
    names = indices.tolist() if labels is None else [labels[i] for i in indices.tolist()]
    return [(name, round(x, 4)) for name, x in zip(names, cosines.tolist(), strict=True)]


@dataclass(frozen=True)
class ContextSimilarity:
    """Cosine similarities of one token in two contexts, per depth l.

    `between[l]`: of the two hidden states,   `first[l]`, `second[l]`: of each to its embedding
    (depth 0)

    >>> print(ContextSimilarity(between=[1.0, 0.5], first=[1.0, 0.8], second=[1.0, 0.7]))
    depth  each other  first to static  second to static
        0       1.000            1.000             1.000
        1       0.500            0.800             0.700
    """

    between: list[float]
    first: list[float]
    second: list[float]

    def __str__(self) -> str:
        rows = enumerate(zip(self.between, self.first, self.second, strict=True))
        columns = ("depth", "each other", "first to static", "second to static")
        return text_table(columns, ((i, *(f"{x:.3f}" for x in row)) for i, row in rows), columns)


def compare_contexts(
    model: nn.Module,
    inputs: Any,
    first: TokenIndex,
    second: TokenIndex,
    *,
    other: Any = None,
    stack: str | None = None,
) -> ContextSimilarity:
    """Compare the hidden states of one token in two contexts, and with its embedding.

    cos(x_l of the first, x_l of the second),   cos(x_l, x_0) of each,   for every depth l

    Args:
        model: The model; it must not be compiled.
        inputs: What the model is called with.
        first: (sequence, position) of the first occurrence in `inputs`.
        second: (sequence, position) of the second, in `other` if given, else in `inputs`.
        other: Separate inputs for the second occurrence.
        stack: Part of the path of the block stack; the first stack by default.

    >>> model = rg.models.Classifier(rg.models.classifier_tiny(vocab=10, classes=2)).eval()
    >>> similarity = compare_contexts(model, torch.tensor([[7, 1], [7, 2]]), (0, 0), (1, 0))
    >>> round(similarity.between[0], 4), similarity.between[1] < 1
    (1.0, True)
    """
    states = all_hidden_states(model, inputs, stack=stack)
    others = states if other is None else all_hidden_states(model, other, stack=stack)
    one = [_select_token(x, first, "first") for x in states]
    two = [_select_token(x, second, "second") for x in others]

    def cosine(a: Tensor, b: Tensor) -> float:
        return float(F.cosine_similarity(a, b, dim=0))

    return ContextSimilarity(
        between=[cosine(a, b) for a, b in zip(one, two, strict=True)],
        first=[cosine(a, one[0]) for a in one],
        second=[cosine(b, two[0]) for b in two],
    )


def _select_stack(stacks: list[BlockStack], name: str | None, model: nn.Module) -> BlockStack:
    complete = [stack for stack in stacks if stack.is_complete]
    matching = [stack for stack in complete if name is None or name in stack.path]
    tokens = [stack for stack in matching if stack.inputs[-1].ndim == 3]
    if not matching:
        known = ", ".join(stack.path for stack in complete) or "no stack of blocks"
        raise LookError(f"stack: needs one of {known} in {type(model).__name__}, got {name!r}")
    # convolutions before an encoder are a stack too, but not over tokens
    deep = [stack for stack in tokens if not isinstance(stack.blocks[0], nn.Conv1d)]
    return (deep or matching)[0]


def _select_token(x: Tensor, index: TokenIndex, name: str) -> Tensor:
    batch, time = x.shape[:2]
    if not (0 <= index[0] < batch and 0 <= index[1] < time):
        raise ShapeError(
            f"{name}: needs (sequence, position) below ({batch}, {time}), got {tuple(index)}"
        )
    return x[index]
