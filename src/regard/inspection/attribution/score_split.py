"""Why a head attends: a score split by parts of the residual stream, and composition scores."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import LookError, check_choice
from regard.inspection.adapters.activation_points import find_activations, name_of_part
from regard.inspection.adapters.block_layout import is_norm, norm_width
from regard.inspection.adapters.block_stacks import first_tensor
from regard.inspection.adapters.short_call import Call, first_calls
from regard.inspection.attribution.residual_parts import (
    By,
    FrozenNorm,
    ResidualStream,
    freeze_norm,
    record_stream,
)
from regard.inspection.record.look import patched
from regard.ops.indices import resolve_index
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting
from regard.tables import text_table

MAX_SHOWN = 12
PARTS_AT_ONCE = 16  # sequences per run of the attention


@dataclass(frozen=True, eq=False, repr=False)
class ScoreSplit:
    """The score of a query and a key as a sum over pairs of parts of the residual stream.

    scale · q_i · k_j = Σ_ab pairs[a, b],   pairs[a, b] = scale · q(part a at i) · k(part b at j)

    `score` is the whole score before bias, mask and softcap; `error` is the difference by rounding.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=2)).eval()
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> split = rg.inspection.split_score(model, tokens, "decoder.1.self", head=0, query=2, key=1)
    >>> split.names, abs(split.error) < 1e-4
    (['embedding', 'decoder.0.self', 'decoder.0.mlp', 'bias'], True)
    """

    names: list[str]  # parts, for queries and keys; the last is the biases of norm and projection
    pairs: Float[Tensor, "part part"]
    score: float

    @property
    def by_query(self) -> dict[str, float]:
        """The score by part of the query."""
        return dict(zip(self.names, self.pairs.sum(1).tolist(), strict=True))

    @property
    def by_key(self) -> dict[str, float]:
        """The score by part of the key."""
        return dict(zip(self.names, self.pairs.sum(0).tolist(), strict=True))

    @property
    def error(self) -> float:
        """The score minus the sum of all pairs."""
        return self.score - float(self.pairs.sum())

    def top(self, count: int = 10) -> list[tuple[str, str, float]]:
        """Query part, key part and value of the largest pairs, by absolute value."""
        flat = self.pairs.flatten()
        order = flat.abs().topk(min(count, len(flat))).indices.tolist()
        n = len(self.names)
        return [(self.names[i // n], self.names[i % n], float(flat[i])) for i in order]

    def __repr__(self) -> str:
        pairs = [*self.top(MAX_SHOWN), ("all pairs", "", self.score)]
        rows = ((query, key, f"{value:+.4f}") for query, key, value in pairs)
        return text_table(("query part", "key part", "score"), rows, right=["score"])


@torch.no_grad()
def split_score(
    model: nn.Module, inputs: Any, at: str, *, head: int, query: int, key: int, batch: int = 0,
    by: By = "part",
) -> ScoreSplit:  # fmt: skip
    """Split one attention score by the parts of the residual stream at the query and the key.

    x_i = Σ_a part_a,   q_i = Σ_a q(part_a) + q(0),   likewise k_j

    Queries and keys of the parts are computed by the model's attention (with its rotary
    positions and norms of queries and keys), the scale of every norm held fixed.

    Args:
        model: A model with pre-norm blocks, ours or of transformers, in eval mode.
        inputs: What the model is called with: a tensor, a tuple of arguments or a mapping.
        at: The attention, such as "decoder.3.self", or its path in the model.
        head: Head whose score is split.
        query: Position of the query.
        key: Position of the key.
        batch: Sequence of the batch.
        by: "part" has one entry per attention and MLP of earlier blocks, "head" one per head.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=2)).eval()
    >>> split_score(model, torch.tensor([[1, 2, 3]]), "decoder.7.self", head=0, query=2, key=1)
    Traceback (most recent call last):
        ...
    regard.errors.LookError: at: needs a self-attention from 0 to 1, got 'decoder.7.self'
    """
    points = find_activations(model)
    at = name_of_part(points, at)
    stack, _, rest = at.removesuffix(".self").rpartition(".")
    point = points.get(f"{at}.in")
    with first_calls({} if point is None else {"": point.module}) as calls:
        stream = record_stream(model, inputs, stack=stack or None, at="*")
    if not (rest.isdecimal() and int(rest) < stream.depth and f"{at}.in" in stream.points):
        raise LookError(f"at: needs a self-attention from 0 to {stream.depth - 1}, got {at!r}")
    block, site = int(rest), stream.site(at)
    if site is None:
        raise LookError(f"at: needs an attention that is recorded, got {at!r} which is not")
    batch = resolve_index("batch", batch, site.batch)
    head = resolve_index("head", head, site.heads)
    i, j = resolve_index("query", query, site.queries), resolve_index("key", key, site.keys)
    replay = AttentionReplay(stream, at, batch, calls[""])
    names, parts = zip(*stream.parts(block, by=by), strict=True)
    kv_head = head // (site.heads // site.k.shape[1])
    queries, keys = [], []
    inputs = [*(x[batch] for x in parts), torch.zeros_like(stream.state(block)[batch])]
    for start in range(0, len(inputs), PARTS_AT_ONCE):
        q, k, _ = replay.project(torch.stack(inputs[start : start + PARTS_AT_ONCE]))
        queries.append(q[:, head, i])
        keys.append(k[:, kv_head, j])
    q, k = torch.cat(queries).float(), torch.cat(keys).float()
    q, k = (torch.cat([x[:-1] - x[-1:], x[-1:]]) for x in (q, k))  # the last is the bias
    scale = site.terms.scale
    whole = scale * float(site.q[batch, head, i].float() @ site.k[batch, kv_head, j].float())
    return ScoreSplit([*names, "bias"], scale * (q @ k.mT), whole)


class _Stop(Exception):
    """Ends a run of an attention once its queries and keys are known."""


class AttentionReplay:
    """Runs the norms and projections of one attention on parts of its residual stream."""

    def __init__(self, stream: ResidualStream, at: str, batch: int, call: Call):
        self.stream, self.module = stream, stream.points[f"{at}.in"].module
        self.args, self.kwargs = call[0], dict(call[1])
        for name in ("past_key_values", "past_key_value", "layer_past", "cache"):
            if name in self.kwargs:
                self.kwargs[name] = None
        self.batch = batch
        self.whole = first_tensor(self.args or self.kwargs)
        block = int(at.removesuffix(".self").rpartition(".")[2])
        before = stream.state(block)
        assert self.whole is not None
        self.before = _norm_between(stream, block, before, self.whole)
        self.inner: dict[nn.Module, FrozenNorm] = {}
        if norms := [m for m in self.module.modules() if is_norm(m)]:
            inputs: dict[nn.Module, Tensor] = {}
            with ExitStack() as hooks:
                for norm in norms:
                    read = norm.register_forward_pre_hook
                    hooks.enter_context(read(lambda m, args: inputs.__setitem__(m, args[0])))
                self._run(self.whole[batch : batch + 1])
            self.inner = {m: freeze_norm(m, x) for m, x in inputs.items()}

    def project(self, parts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (part, head, time, dim), of parts (part, time, dim)."""
        x = parts
        if self.before is not None:
            frozen = self.before.at(self.batch)
            x = frozen.apply(parts.float()) + frozen.bias
        with ExitStack() as hooks:
            for norm, frozen in self.inner.items():
                change = norm.register_forward_hook
                hooks.enter_context(
                    change(
                        lambda m, args, out, f=frozen: (f.apply(args[0].float()) + f.bias).to(out)
                    )
                )
            try:
                return self._run(x)
            except LookError:  # an argument with batch and heads in one axis, as Bloom's ALiBi
                q, k, v = zip(*(self._run(part[None]) for part in x), strict=True)
                return torch.cat(q), torch.cat(k), torch.cat(v)

    def _run(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        calls: list[tuple[Tensor, Tensor, Tensor]] = []

        def stop(call: AttentionCall, proceed: Proceed) -> AttentionResult:
            calls.append((call.q, call.k, call.v))
            raise _Stop

        assert self.whole is not None
        args, kwargs = self._replaced(x.to(self.whole.dtype))
        with (
            patched(self.stream.model) as tracker,
            intercepting(stop, tracker, other_threads=False),
        ):
            try:
                self.module(*args, **kwargs)
            except _Stop:
                return calls[0]
            except (RuntimeError, ValueError, TypeError) as error:
                raise LookError(
                    f"at: needs an attention that runs on parts of its input, got one that does "
                    f"not: {error}"
                ) from error
        raise LookError("at: needs an attention that calls attend, got one that does not")

    def _replaced(self, x: Tensor) -> tuple[tuple, dict[str, Any]]:
        """The arguments of the attention with another input; per-sequence ones are cut."""

        def cut(value: Any) -> Any:
            if value is self.whole:
                return x
            if isinstance(value, tuple):
                return tuple(cut(item) for item in value)
            size = 0 if self.whole is None else len(self.whole)
            if isinstance(value, Tensor) and value.ndim > 1 and len(value) == size > 1:
                return value[self.batch : self.batch + 1]
            return value

        return cut(self.args), {name: cut(value) for name, value in self.kwargs.items()}


def _norm_between(
    stream: ResidualStream, block: int, before: Tensor, inside: Tensor
) -> FrozenNorm | None:
    """The norm between the residual stream and an attention, frozen; None if there is none."""
    if torch.equal(before, inside):
        return None
    module = stream.points[f"{stream.stack}.{block}.residual_in"].module
    for norm in module.modules():
        if is_norm(norm) and norm_width(norm) in (None, before.shape[-1]):
            with torch.no_grad():
                y = norm(before).to(inside)
                if y.shape == inside.shape and torch.allclose(y, inside, rtol=1e-3, atol=1e-4):
                    return freeze_norm(norm, before)
    raise LookError(
        f"at: needs an attention whose input is a norm of the residual stream, got block {block} "
        "of a model where it is not"
    )


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
    check_choice("reads", reads, ("query", "key", "value"), LookError)
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
    with first_calls({"": find_activations(model)[f"{at}.in"].module}) as calls:
        stream = record_stream(model, token, at="*")
    replay = AttentionReplay(stream, at, 0, calls[""])
    if replay.inner:
        raise LookError(
            f"model: needs queries and keys that are linear in the residual stream, got {at} "
            "with norms inside; try split_score, which holds their scale fixed"
        )
    dim = stream.state(0).shape[-1]
    basis = torch.eye(dim, device=token.device)[:, None]
    zero = replay.project(torch.zeros_like(basis[:1]))
    projected = replay.project(basis if replay.before is None else basis / replay.before.scale[0])
    q, k, v = (
        (x - z)[:, :, 0].transpose(0, 1).float() for x, z in zip(projected, zero, strict=True)
    )
    o = stream.writer_weight(f"{at}.heads").float().unflatten(0, (len(q), -1))
    k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
    return at, q, k, v, o
