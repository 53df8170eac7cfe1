"""Composition scores: how strongly one head reads what an earlier head writes."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import LookError
from regard.inspection.attribution.residual_parts import record_stream
from regard.inspection.attribution.score_split import AttentionReplay, attention_inputs

Reads = Literal["query", "key", "value"]


@dataclass(frozen=True, eq=False)
class Composition:
    """Composition scores of all pairs of heads of one model.

    `scores[a, b]` is that of writing head a and reading head b; 0 where b is not in a later block.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=2)).eval()
    >>> rg.inspection.composition_scores(model, "key").heads[:2]
    [('decoder.0.self', 0), ('decoder.0.self', 1)]
    """

    heads: list[tuple[str, int]]
    scores: Float[Tensor, "head head"]

    def top(self, count: int = 10) -> list[tuple[tuple[str, int], tuple[str, int], float]]:
        """The pairs with the largest scores: writing head, reading head, score."""
        flat, n = self.scores.flatten(), len(self.heads)
        values, order = flat.topk(min(count, len(flat)))
        pairs = zip(values.tolist(), order.tolist(), strict=True)
        return [(self.heads[i // n], self.heads[i % n], round(x, 4)) for x, i in pairs]


@torch.no_grad()
def composition_scores(model: nn.Module, reads: Reads = "key") -> Composition:
    """How strongly each head reads the output of each earlier head, from the weights alone.

    ‖W_OV^a R^b‖ / (‖W_OV^a‖ ‖R^b‖) (Frobenius norms; Elhage et al. 2021), R^b = W_QK^b of the
    reading head for queries, its transpose for keys, W_OV^b for values; gains of norms included

    Two random heads score about 1/√dim. Rotary positions are left out.

    Args:
        model: A decoder-only language model with pre-norm blocks, ours or of transformers.
        reads: Which input of the reading head is meant.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=2)).eval()
    >>> rg.inspection.composition_scores(model, "query").scores.shape
    torch.Size([8, 8])
    """
    if reads not in ("query", "key", "value"):
        raise LookError(f"reads: needs query, key or value, got {reads!r}")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    token = torch.zeros(1, 1, dtype=torch.long, device=device)  # position 0 is not rotated
    stream = record_stream(model, token)
    names = [f"{stream.stack}.{block}.self" for block in range(stream.depth)]
    layers = [_head_matrices(model, token, name) for name in names]
    heads = [(name, h) for name, *_, w_o in layers for h in range(len(w_o))]
    scores = torch.zeros(len(heads), len(heads))
    rows = 0
    for a, (_, _, _, v_a, o_a) in enumerate(layers):
        columns = sum(len(layer[-1]) for layer in layers[: a + 1])
        for _, q, k, v, o in layers[a + 1 :]:
            first, last = {"query": (q, k), "key": (k, q), "value": (v, o.mT)}[reads]
            block = _ratios(v_a, o_a, first, last)
            scores[rows : rows + len(o_a), columns : columns + len(o)] = block
            columns += len(o)
        rows += len(o_a)
    return Composition(heads, scores)


def _ratios(v_a: Tensor, o_a: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """‖V O F Lᵀ‖ / (‖V O‖ ‖F Lᵀ‖) for all pairs, by products of the size of a head."""
    middle = torch.einsum("avd,bdh->abvh", o_a, first)
    left, right = v_a.mT @ v_a, last.mT @ last  # Gram matrices
    norm = torch.einsum("avw,abwh,bhg,abvg->ab", left, middle, right, middle).clamp(min=0).sqrt()
    writes = torch.einsum("avw,awd,avd->a", left, o_a, o_a).sqrt()
    reads = torch.einsum("bdh,bhg,bdg->b", first, right, first).sqrt()
    return (norm / (writes[:, None] * reads)).cpu()


def _head_matrices(
    model: nn.Module, token: Tensor, at: str
) -> tuple[str, Tensor, Tensor, Tensor, Tensor]:
    """Name, W_Q, W_K, W_V (head, dim, width) and W_O (head, width, dim) of one attention."""
    with attention_inputs(model, at) as seen:
        stream = record_stream(model, token, at="*")
    replay = AttentionReplay(stream, at, 0, seen)
    if replay.inner:
        raise LookError(
            f"model: needs queries and keys that are linear in the residual stream, got {at} "
            "with norms inside; try split_score, which holds their scale fixed"
        )
    dim = stream.state(0).shape[-1]
    basis = torch.eye(dim, device=token.device)[:, None]
    zero = replay.project(torch.zeros_like(basis[:1]))
    found = replay.project(basis if replay.before is None else basis / replay.before.scale[0])
    q, k, v = ((x - z)[:, :, 0].transpose(0, 1).float() for x, z in zip(found, zero, strict=True))
    o = stream.writer_weight(f"{at}.heads").float().unflatten(0, (len(q), -1))
    k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
    return at, q, k, v, o
