"""The residual stream as a sum of what each part added, through norms with a fixed scale."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.errors import LookError
from regard.inspection.adapters.activation_point import ActivationPoint, hook_activations
from regard.inspection.adapters.activation_points import find_activations, match_activations
from regard.inspection.adapters.block_layout import is_norm, linear_matrix
from regard.inspection.adapters.model_calls import run_model
from regard.inspection.adapters.module_tracker import check_model, uncompiled_modules
from regard.inspection.adapters.snapshot import snapshot
from regard.inspection.record.activations import Activations
from regard.inspection.record.look import look
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site
from regard.ops.indices import as_int, resolve_index
from regard.ops.terms import upcast

NORM_TOLERANCE = 1e-3  # of the reproduced output, relative to its largest number; bf16 gets 2e-2
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the sum, relative; half precision 3e-2
MODULES = ("self", "cross", "mixer", "mlp", "shared", "per_layer")
INNER = ("heads", "hidden")


@dataclass(frozen=True, eq=False)
class FrozenNorm:
    """y = scale · (x - mean(x)) ⊙ gain + bias (without the mean for RMS norms), scale held fixed.

    With its scale fixed a norm is linear, so the parts of its input have parts of its output.

    >>> x = torch.tensor([[1.0, 2.0, 6.0]])
    >>> norm = torch.nn.LayerNorm(3)
    >>> frozen = freeze_norm(norm, x)
    >>> torch.allclose(frozen.apply(0.25 * x) + frozen.apply(0.75 * x) + frozen.bias, norm(x))
    True
    """

    scale: Tensor  # (*batch, 1)
    gain: Tensor  # (dim,)
    bias: Tensor  # (dim,)
    is_centred: bool

    def at(self, *index: int) -> "FrozenNorm":
        """The map of one position."""
        return replace(self, scale=self.scale[index])

    def apply(self, part: Tensor) -> Tensor:
        """What a part of the input adds to the output."""
        if self.is_centred:
            part = part - part.mean(-1, keepdim=True)
        return self.scale * part * self.gain

    def pull_back(self, direction: Tensor) -> Tensor:
        """The direction a with a · part = direction · apply(part)."""
        back = self.scale * direction * self.gain
        return back - back.mean(-1, keepdim=True) if self.is_centred else back


def freeze_norm(norm: nn.Module, x: Tensor) -> FrozenNorm:
    """The linear map that a layer norm or RMS norm of any library applied to an input.

    Which of the known formulas it computes (centred or not, gain w or 1 + w) is found by
    comparing with its output.

    >>> freeze_norm(torch.nn.RMSNorm(2, eps=0.0), torch.tensor([[3.0, 4.0]])).scale  # 1 / √12.5
    tensor([[0.2828]])
    """
    check_model(norm)
    x = x.detach()
    try:
        with torch.no_grad():
            y = norm(x).to(upcast(x).dtype)
    except TypeError as error:  # Zaya's norm of queries and keys together
        raise LookError(f"model: needs norms of one input, got {type(norm).__name__}") from error
    x = upcast(x)
    gains = (getattr(norm, name, None) for name in ("weight", "gain", "scale"))
    weight = next((x for x in gains if isinstance(x, Tensor)), None)
    bias = getattr(norm, "bias", None)
    names = [n for n in ("eps", "variance_epsilon", "epsilon") if hasattr(norm, n)]
    # OLMo has it in its code only
    known = [getattr(norm, n) for n in names[:1]] or [0.0, 1e-5, 1e-6, 1e-12]
    known = [torch.finfo(x.dtype).eps if eps is None else eps for eps in known]  # torch's RMSNorm
    ones = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
    weight = ones if weight is None else weight.detach().to(x)
    bias = bias.detach().to(x) if isinstance(bias, Tensor) else torch.zeros_like(ones)
    errors: list[Tensor] = []
    candidates: list[FrozenNorm] = []
    for is_centred, eps in product((True, False), known):
        centred = x - x.mean(-1, keepdim=True) if is_centred else x
        scale = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
        for gain in (weight, 1 + weight):
            candidates.append(FrozenNorm(scale, gain, bias, is_centred))
            errors.append((candidates[-1].apply(x) + bias - y).abs().max())
    relative = torch.stack(errors) / y.abs().max().clamp(min=1e-30)  # one transfer for all
    error, frozen = min(zip(relative.tolist(), candidates, strict=True), key=lambda pair: pair[0])
    dtype = next((p.dtype for p in norm.parameters()), y.dtype)
    allowed = 2e-2 if dtype in (torch.float16, torch.bfloat16) else NORM_TOLERANCE
    if not error < allowed:
        raise LookError(
            f"model: needs layer norms or RMS norms to be split into parts, got a "
            f"{type(norm).__name__} that computes something else (relative error {error:.2g})"
        )
    return frozen


By = Literal["part", "head"]


@dataclass(frozen=True, eq=False)
class ResidualStream:
    """One forward pass of a stack: what each of its blocks added to the residual stream.

    x_l = embedding + Σ over earlier blocks of attention, cross-attention and MLP outputs

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=2)).eval()
    >>> stream = record_stream(model, torch.tensor([[1, 2, 3]]))
    >>> parts = dict(stream.parts(2, by="part"))
    >>> list(parts)[:3]
    ['embedding', 'decoder.0.self', 'decoder.0.mlp']
    >>> torch.allclose(sum(parts.values()), stream.state(2), atol=1e-5)
    True
    """

    model: nn.Module
    stack: str
    points: dict[str, ActivationPoint]
    sight: Sight  # activations of the stack, and attentions that match `at`
    _factors: dict[int, dict[str, float]] = field(default_factory=dict)  # "in": of the state before
    _post_norms: dict[str, FrozenNorm | None] = field(default_factory=dict)

    @property
    def activations(self) -> Activations:
        """The recorded activations of the stack."""
        return self.sight.activations

    @property
    def logits(self) -> Tensor:
        """The output of the model."""
        return self.activations[next(reversed(self.points))]

    @cached_property
    def depth(self) -> int:
        """The number of blocks."""
        start, end = f"{self.stack}.", ".residual_out"
        return sum(name.startswith(start) and name.endswith(end) for name in self.points)

    def state(self, depth: int) -> Tensor:
        """The residual stream before block `depth`; the number of blocks stands for the end."""
        depth = as_int("depth", depth)
        if depth == self.depth:
            return self.activations[f"{self.stack}.{depth - 1}.residual_out"].detach()
        return self.activations[f"{self.stack}.{depth}.residual_in"].detach()

    def parts(self, depth: int, *, by: By = "part") -> Iterator[tuple[str, Tensor]]:
        """The parts of the residual stream before block `depth`; their sum is `state(depth)`."""
        yield "embedding", _scaled(self.state(0), self.carried(0, depth))
        for block in range(depth):
            factor = self.carried(block + 1, depth)
            for name, part in self.block_parts(block, by=by):
                yield name, _scaled(part, factor)

    def carried(self, start: int, end: int) -> float:
        """The factor of `state(start)` in `state(end)`; 1 in most models."""
        return prod(self._block_factors(block)["in"] for block in range(start, end))

    def block_parts(self, block: int, *, by: By = "part") -> Iterator[tuple[str, Tensor]]:
        """What each part of one block added."""
        prefix = f"{self.stack}.{block}"
        for module, factor in self._block_factors(block).items():
            if module == "in":
                continue
            name = f"{prefix}.{module}"
            out = _scaled(self.activations[f"{name}.out"].detach(), factor)
            if by == "head" and f"{name}.heads" in self.activations:
                heads = self.activations[f"{name}.heads"].detach()
                weight = self.writer_weight(f"{name}.heads").unflatten(0, heads.shape[-2:])
                pieces = torch.einsum("bthv,hvd->hbtd", upcast(heads), upcast(weight))
                post = self.post_norm(name)
                pieces = list(pieces if post is None else post.apply(pieces))
                yield from ((f"{name} head {h}", factor * x) for h, x in enumerate(pieces))
                yield f"{name} bias", out - factor * sum(pieces)
            else:
                yield name, out

    def _block_factors(self, block: int) -> dict[str, float]:
        """The factor of each part of a block, 1 in most models; found by least squares if not."""
        if not self._factors:
            self._factors.update(self._unit_factors())
        if block in self._factors:
            return self._factors[block]
        prefix = f"{self.stack}.{block}"
        names = [m for m in MODULES if f"{prefix}.{m}.out" in self.activations]
        outs = [upcast(self.activations[f"{prefix}.{m}.out"].detach()) for m in names]
        before, after = (
            upcast(self.activations[f"{prefix}.residual_{s}"].detach()) for s in ("in", "out")
        )
        if outs and after.shape != outs[0].shape:
            raise LookError(
                "model: needs one residual stream to be split into parts, got states "
                f"{tuple(after.shape[2:])} of parallel streams per token"
            )
        # single numbers of the block itself, as that which Gemma 4 multiplies its output by
        module = self.points[f"{prefix}.residual_in"].module
        numbers = (*module._parameters.values(), *module._buffers.values())
        scales = [float(x) for x in numbers if x is not None and x.numel() == 1]
        for carry in (1.0, *scales):
            factors = _sum_factors(outs, after - carry * before, after)
            if factors is not None:
                self._factors[block] = dict(zip(names, factors, strict=True), **{"in": carry})
                return self._factors[block]
        raise LookError(
            "model: needs blocks that add their parts to the residual stream, got "
            f"{prefix} whose parts do not sum up (a norm after the sum, as in BERT)"
        )

    def _unit_factors(self) -> dict[int, dict[str, float]]:
        """Factors of 1 for the blocks that are plain sums, compared all at once."""
        prefixes = [f"{self.stack}.{block}" for block in range(self.depth)]
        names = [m for m in MODULES if f"{prefixes[0]}.{m}.out" in self.activations]
        suffixes = ["residual_in", *(f"{m}.out" for m in names), "residual_out"]
        if any(f"{p}.{s}" not in self.activations for p in prefixes for s in suffixes):
            return {}
        before, *outs, after = (
            torch.stack([self.activations[f"{p}.{s}"] for p in prefixes]).detach().flatten(1)
            for s in suffixes
        )
        if any(x.shape != after.shape for x in outs):
            return {}
        error = sum((upcast(x) for x in outs), upcast(before)) - upcast(after)
        allowed = TOLERANCE.get(after.dtype, 3e-2) * after.abs().amax(1)
        close = (error.abs().amax(1) <= allowed).tolist()
        names.append("in")
        return {block: dict.fromkeys(names, 1.0) for block, ok in enumerate(close) if ok}

    def factor(self, name: str) -> float:
        """The factor of a part, such as "decoder.3.mlp", in the last state; 1 in most models."""
        block, module = name.removeprefix(f"{self.stack}.").split(".")
        later = self.carried(int(block) + 1, self.depth)
        return later * self._block_factors(int(block))[module]

    def site(self, name: str) -> Site | None:
        """The recorded attention of a part, such as "decoder.3.self"."""
        if f"{name}.out" not in self.points or f"{name}.in" not in self.points:
            return None
        path = self.points[f"{name}.in"].path
        inside = [x for x in self.sight.sites if x.path == path or x.path.startswith(f"{path}.")]
        return inside[0] if inside else None

    def writer_weight(self, name: str) -> Tensor:
        """The matrix after an activation, (input, dim): W_O, or the last one of an MLP."""
        return linear_matrix(self.points[name].module, self.activations[name])

    def post_norm(self, name: str) -> FrozenNorm | None:
        """The norm between a part and the residual stream, frozen; None in most models."""
        if name not in self._post_norms:
            module = self.points[f"{name}.out"].module
            inner = next(s for s in (*INNER, "in") if f"{name}.{s}" in self.points)
            frozen = None
            if is_norm(module):
                linear = self.points[f"{name}.{inner}"].module
                x = self.activations[f"{name}.{inner}"].detach()
                with torch.no_grad():
                    frozen = freeze_norm(module, linear(x.reshape(*x.shape[:2], -1)))
            self._post_norms[name] = frozen
        return self._post_norms[name]


def record_stream(
    model: nn.Module, inputs: Any, *, stack: str | None = None, at: str = "",
    only: tuple[int, int] | None = None, skip: Collection[str] = (),
) -> ResidualStream:  # fmt: skip
    """Run a model once and record its residual stream with all parts.

    Args:
        model: The model, in eval mode; it must not be compiled.
        inputs: What the model is called with: a tensor, a tuple of arguments or a mapping.
        stack: "encoder" or "decoder"; the last stack by default.
        at: Glob over attentions whose q, k and v are recorded too.
        only: Sequence and position to record; batch and time have size 1 then. All by default.
        skip: Last words of names that are not recorded.

    >>> record_stream(rg.nn.Recurrent(2, 2), torch.zeros(1, 3, 2))
    Traceback (most recent call last):
        ...
    regard.errors.LookError: model: needs a stack of Transformer blocks, got none in Recurrent
    """
    points = find_activations(model, uncompiled_modules(model))
    start = ".0.residual_in"
    stacks = [name.removesuffix(start) for name in points if name.endswith(start)]
    if not stacks:
        raise LookError(
            f"model: needs a stack of Transformer blocks, got none in {type(model).__name__}"
        )
    if stack is not None and stack not in stacks:
        raise LookError(f"stack: needs one of {', '.join(stacks)}, got {stack!r}")
    chosen = stacks[-1] if stack is None else stack
    globs = [f"{chosen}.*", next(reversed(points))]
    with ExitStack() as contexts:
        contexts.enter_context(torch.no_grad())
        sight = Sight()
        if at:
            sight = contexts.enter_context(look(model, at, max_bytes=1 << 40))

        def record(name: str, x: Tensor) -> None:
            if only is not None and x.ndim > 2:
                i = resolve_index("batch", only[0], x.shape[0])
                j = resolve_index("position", only[1], x.shape[1])
                x = x[i : i + 1, j : j + 1].clone()
            else:
                x = snapshot(x)
            sight.activations.append(name, x)

        def is_read(point: ActivationPoint) -> bool:
            before, _, last = point.name.rpartition(".")
            inside = only and last == "in" and any(f"{before}.{x}" in points for x in INNER)
            return not (last in skip or inside)

        matched = filter(is_read, match_activations(points, globs, "stack"))
        contexts.enter_context(hook_activations(matched, record))
        run_model(model, inputs)
    return ResidualStream(model, chosen, points, sight)


def _sum_factors(outs: list[Tensor], change: Tensor, after: Tensor) -> list[float] | None:
    """Factors with change = Σ factor · out: all 1, or by least squares; None if there are none."""
    if not outs or _is_close(sum(outs), change, after):
        return [1.0] * len(outs) if outs else None
    columns = torch.stack([x.flatten() for x in outs], 1).double()
    solution = torch.linalg.lstsq(columns, change.flatten()[:, None].double()).solution
    factors = solution[:, 0].tolist()
    total = sum(f * x for f, x in zip(factors, outs, strict=True))
    return factors if _is_close(total, change, after) else None


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else factor * x


def _is_close(total: Any, change: Tensor, after: Tensor) -> bool:
    allowed = TOLERANCE.get(after.dtype, 3e-2)
    return bool((total - change).abs().max() <= allowed * after.abs().max())
