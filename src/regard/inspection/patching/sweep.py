"""A patching sweep: every layer, head or position in turn, exactly or by one gradient."""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from regard.errors import FileError, LookError, ShapeError
from regard.files import parse_json, write_text
from regard.inspection.adapters.activation_point import ActivationPoint
from regard.inspection.adapters.activation_points import find_activations
from regard.inspection.adapters.block_stacks import PrefixReplay, is_close
from regard.inspection.adapters.model_calls import get_output, run_model
from regard.inspection.adapters.module_tracker import check_eval_mode, uncompiled_modules
from regard.inspection.gradients import activation_gradients
from regard.inspection.record.activations import Activations
from regard.inspection.record.look import look
from regard.tables import text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SHOWN = 12


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PatchingResult:
    """The metric of the corrupt run with one activation of the clean run put in, for every place.

    `effect` is 0 where patching changes nothing and 1 where it restores the clean metric.

    >>> result = PatchingResult(
    ...     axes=("layer", "position"), labels=(["decoder.0", "decoder.1"], ["a", "b"]),
    ...     values=torch.tensor([[1.0, 2.0], [1.0, 3.0]]), clean=3.0, corrupt=1.0, method="exact",
    ... )  # fmt: skip
    >>> result.effect
    tensor([[0.0000, 0.5000],
            [0.0000, 1.0000]])
    >>> result.top(1), result.draw().axes[0].get_xlabel()
    ([('decoder.1', 'b', 1.0)], 'position')
    """

    axes: tuple[str, ...]  # of values: layer, head, position
    labels: tuple[list[str], ...]  # one list per axis
    values: Tensor  # the metric; NaN where it is not computed yet
    clean: float
    corrupt: float
    method: str  # exact, or gradient: a first-order estimate

    @property
    def effect(self) -> Tensor:
        """(value - corrupt) / (clean - corrupt)."""
        return (self.values - self.corrupt) / (self.clean - self.corrupt)

    def top(self, count: int = 10) -> list[tuple]:
        """The places with the largest effect, by absolute value: the label of each axis, effect."""
        flat = self.effect.flatten()
        order = flat.nan_to_num(0).abs().topk(min(count, len(flat))).indices
        places = list(product(*self.labels))
        return [(*places[i], round(float(flat[i]), 4)) for i in order.tolist()]

    def to_dicts(self) -> list[dict]:
        """One dict per place: its labels, the metric and the effect."""
        numbers = zip(self.values.flatten().tolist(), self.effect.flatten().tolist(), strict=True)
        return [
            {**dict(zip(self.axes, names, strict=True)), "value": value, "effect": effect}
            for names, (value, effect) in zip(product(*self.labels), numbers, strict=True)
        ]

    def draw(self, *, path: str | Path | None = None) -> "Figure":
        """A heat map of the effects; a head axis becomes rows `layer head`."""
        from regard.inspection.figures.panels import draw_effects

        labels, effect = list(self.labels), self.effect
        if effect.ndim == 1:
            effect, labels = effect[:, None], [labels[0], [""]]
        if effect.ndim == 3:
            rows = [f"{layer} {head}" for layer in labels[0] for head in labels[1]]
            effect, labels = effect.flatten(0, 1), [rows, labels[2]]
        y = " and ".join(self.axes[: max(1, len(self.axes) - 1)])
        x = self.axes[-1] if len(self.axes) > 1 else ""
        estimate = ", first-order estimate" if self.method == "gradient" else ""
        title = f"metric {self.corrupt:.3g} (0) → {self.clean:.3g} (1){estimate}"
        return draw_effects(effect, labels[0], labels[1], x, y, title, path=path)

    def __repr__(self) -> str:
        rows = ((*names, f"{effect:+.4f}") for *names, effect in self.top(MAX_SHOWN))
        table = text_table((*self.axes, "effect"), rows, right=["effect"])
        size = " × ".join(str(n) for n in self.values.shape)
        title = f"{size} places, metric {self.corrupt:.4g} corrupt, {self.clean:.4g} clean"
        return f"{title} ({self.method})\n{table}"


Metric = Callable[[Tensor], Tensor]  # of the logits, (batch, time, vocab)
KINDS = {"residual": "residual_in", "attention": "self.out", "mixer": "mixer.out"}
KINDS |= {"mlp": "mlp.out", "head": "self.heads"}


@torch.no_grad()
def sweep(
    model: nn.Module, clean: Any, corrupt: Any, metric: Metric, *, over: str = "head×position",
    method: Literal["exact", "gradient"] = "exact", stack: str | None = None,
    batch_size: int = 16, labels: Sequence[str] | None = None, progress: bool = False,
    resume: str | Path | None = None,
) -> PatchingResult:  # fmt: skip
    """Patch every activation of a clean run into a corrupt run, one place at a time.

    value[place] = metric(logits of the corrupt run with activation[place] of the clean run)
    gradient: value ≈ metric(corrupt) + ∂metric/∂activation · (clean - corrupt), one backward pass

    Args:
        model: The model, ours or of transformers, in eval mode; it must not be compiled.
        clean: Inputs of the clean run: a tensor, a tuple of arguments or a mapping.
        corrupt: Inputs of the corrupt run, of the same shape.
        metric: Scalar of the logits of one run, such as a difference of two logits.
        over: What is patched: residual (the stream before each block), attention, mixer, mlp or
            head; with "×position" (or "x position") each position separately, else all at once.
        method: "exact" runs the model once per place, batched; "gradient" estimates all places
            from one backward pass (attribution patching).
        stack: "encoder" or "decoder"; the last stack by default.
        batch_size: Places per forward pass.
        labels: Names of the positions, such as tokens.
        progress: Show a progress bar.
        resume: A JSON file that keeps finished layers: an interrupted sweep continues there.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=2)).eval()
    >>> clean, corrupt = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 5, 3]])
    >>> metric = lambda logits: logits[0, -1, 4] - logits[0, -1, 7]
    >>> result = rg.patching.sweep(model, clean, corrupt, metric, over="residual×position")
    >>> result.effect[0].abs().round(decimals=3)  # the inputs differ at position 1 only
    tensor([0., 1., 0.])
    """
    uncompiled_modules(model)  # raises if one is compiled
    check_eval_mode(model)
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ShapeError(f"batch_size: needs 1 or more, got {batch_size!r}")
    kind, by_position = _parse(over)
    points = _points(model, kind, stack)
    names_of_points = [point.name for point in points]
    with look(model, "", activations=names_of_points, max_bytes=1 << 40) as sight:
        clean_value = metric_value(metric, run_model(model, clean))
    source = sight.activations
    replay = PrefixReplay(model)
    with (
        look(model, "", activations=names_of_points[:1], max_bytes=1 << 40) as other,
        replay.recording(),
    ):
        corrupt_logits = get_output(run_model(model, corrupt))
    corrupt_value = metric_value(metric, corrupt_logits)
    shape = source[points[0].name].shape
    if other.activations[points[0].name].shape != shape:
        raise ShapeError(
            f"corrupt: needs the shape of clean, {tuple(shape)}, got "
            f"{tuple(other.activations[points[0].name].shape)}; try inputs with as many tokens"
        )
    place = _Places(shape, by_head=kind == "head", by_position=by_position)
    values = torch.full((len(points), *place.sizes), torch.nan)
    runs = _Runs(model, corrupt, metric, place, replay, corrupt_logits)
    if method == "gradient":
        _estimate(runs, points, source, values, corrupt_value)
    elif method == "exact":
        key = zlib.crc32(repr((over, names_of_points, clean_value, corrupt_value)).encode())
        saved = None if resume is None else _Saved(Path(resume), key)
        _run_all(runs, points, source, values, batch_size, progress, saved)
    else:
        raise LookError(f"method: needs exact or gradient, got {method!r}")
    axes, names = place.axes_and_labels(labels)
    blocks = [name.removesuffix(f".{KINDS[kind]}") for name in names_of_points]
    return PatchingResult(
        axes=("layer", *axes), labels=(blocks, *names), values=values,
        clean=clean_value, corrupt=corrupt_value, method=method,
    )  # fmt: skip


@dataclass(frozen=True)
class _Places:
    """The places inside an activation, (batch, time, …): heads, positions, both, or all at once."""

    shape: torch.Size
    by_head: bool
    by_position: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        heads = (self.shape[2],) if self.by_head else ()
        return (*heads, self.shape[1]) if self.by_position else heads

    def mask(self, places: range, device: torch.device) -> Tensor:
        """(place, 1, time, head, 1), True where each place is patched."""
        time, heads = self.shape[1], self.shape[2] if self.by_head else 1
        mask = torch.zeros(len(places), 1, time, heads, 1, dtype=torch.bool, device=device)
        for row, place in enumerate(places):
            head, position = divmod(place, time if self.by_position else 1)
            mask[row, 0, position if self.by_position else slice(None), head] = True
        return mask if self.by_head else mask[..., 0]

    def sum(self, x: Tensor) -> Tensor:
        """The sum of x, of an activation's shape, over each place."""
        x = x if self.by_head else x.flatten(2)
        x = x.float().sum((0, -1))  # (time,) or (time, head)
        x = x.mT if self.by_head else x
        return x if self.by_position else x.sum(-1)

    def axes_and_labels(self, labels: Sequence[str] | None) -> tuple[list[str], list[list[str]]]:
        """The axes after the layer, and the label of each index."""
        time = self.shape[1]
        if labels is not None and len(labels) != time:
            raise ShapeError(f"labels: needs one per position, {time}, got {len(labels)}")
        positions = [str(i) for i in range(time)] if labels is None else [str(x) for x in labels]
        heads = [f"head {h}" for h in range(self.shape[2])] if self.by_head else []
        axes = [("head", heads)] * self.by_head + [("position", positions)] * self.by_position
        return [name for name, _ in axes], [names for _, names in axes]


def _run_all(
    runs: "_Runs", points: Sequence[ActivationPoint], source: Activations, values: Tensor,
    batch_size: int, progress: bool, saved: "_Saved | None",
) -> None:  # fmt: skip
    from rich.progress import Progress

    sizes = runs.place.sizes
    count = max(1, torch.Size(sizes).numel())
    done = saved.read() if saved else {}
    with Progress(transient=True, disable=not progress) as bar:
        task = bar.add_task("patching", total=count * len(points))
        for row, point in enumerate(points):
            if point.name in done:
                values[row] = torch.tensor(done[point.name]).view(sizes)
                bar.advance(task, count)
                continue
            metrics: list[float] = []
            for start in range(0, count, batch_size):
                chunk = range(start, min(start + batch_size, count))
                metrics += runs.run_chunk(point, source[point.name], chunk)
                bar.advance(task, len(chunk))
            values[row] = torch.tensor(metrics).view(sizes)
            done[point.name] = metrics
            if saved:
                saved.write(done)


@dataclass
class _Runs:
    """Patched runs; they share the blocks before the patched one, which the patch cannot change."""

    model: nn.Module
    corrupt: Any
    metric: Metric
    place: _Places
    replay: PrefixReplay | None
    logits: Tensor  # of the corrupt run

    def run_chunk(self, point: ActivationPoint, clean: Tensor, chunk: range) -> list[float]:
        """The metric of each place, from one forward pass of as many copies of the inputs."""
        batch, mask = len(clean), self.place.mask(chunk, clean.device)
        # the first chunk of a layer has an unpatched copy, to check the shared blocks
        checks = self.replay is not None and bool(self.replay.paths_before(point.path))
        checks = checks and chunk.start == 0
        copies = len(chunk) + checks
        mask = torch.cat([mask, torch.zeros_like(mask[:1])]) if checks else mask

        def patch(x: Tensor) -> Tensor:
            if len(x) != copies * batch:
                raise LookError(
                    f"model: needs activations with the batch first, got {tuple(x.shape)} of "
                    f"{point.name} for a batch of {copies * batch}"
                )
            parts = x.unflatten(0, (copies, batch))
            # parallel residual streams are an axis behind the positions
            more = (1,) * (parts.ndim - mask.ndim)
            return torch.where(mask.view(*mask.shape, *more), clean.to(x), parts).flatten(0, 1)

        def repeat(x: Tensor) -> Tensor:
            is_batched = x.ndim and len(x) == batch
            return x.repeat(copies, *(1,) * (x.ndim - 1)) if is_batched else x

        skipping = nullcontext()
        if self.replay is not None:
            skipping = self.replay.skipping(point.path, copies, batch)
        try:
            with point.hook(patch, first=True), skipping:
                inputs = map_inputs(self.corrupt, repeat)
                logits = get_output(run_model(self.model, inputs)).split(batch)
        except Exception:  # such as a block that reads what a skipped one left behind
            if self.replay is None:
                raise
            logits = None
        if logits is None or checks and not is_close(logits[-1], self.logits):
            self.replay = None
            return self.run_chunk(point, clean, chunk)
        return [metric_value(self.metric, part) for part in logits[: len(chunk)]]


def _estimate(
    runs: _Runs, points: Sequence[ActivationPoint], source: Activations, values: Tensor,
    corrupt_value: float,
) -> None:  # fmt: skip
    names = [point.name for point in points]

    def score(model: nn.Module) -> Tensor:
        return runs.metric(get_output(run_model(model, runs.corrupt)))

    result = activation_gradients(runs.model, score, names)
    for row, name in enumerate(names):
        change = source[name].float() - result.activations[name].float()
        values[row] = corrupt_value + runs.place.sum(result.gradients[name].float() * change).cpu()


@dataclass(frozen=True)
class _Saved:
    """Finished layers of a sweep on disk; `key` says of which sweep."""

    file: Path
    key: int

    def read(self) -> dict[str, list[float]]:
        if not self.file.exists():
            return {}
        try:
            data = parse_json(self.file.read_text(encoding="utf-8"))
            key, layers = data["sweep"], data["layers"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FileError(f"{self.file}: needs a saved sweep, got {error!r}") from error
        if key != self.key:
            raise FileError(
                f"{self.file}: needs the layers of this sweep, got those of other inputs, metric "
                "or over=; try another file"
            )
        return dict(layers)

    def write(self, layers: Mapping[str, list[float]]) -> None:
        write_text(self.file, json.dumps({"sweep": self.key, "layers": layers}) + "\n")


def _parse(over: object) -> tuple[str, bool]:
    parts = [p.strip() for p in str(over).replace("×", " x ").split(" x ")]
    kind, *rest = parts
    if kind not in KINDS or rest not in ([], ["position"]):
        rule = "residual, attention, mixer, mlp or head, alone or with ×position"
        raise LookError(f"over: needs {rule}, got {over!r}")
    return kind, bool(rest)


def _points(model: nn.Module, kind: str, stack: str | None) -> list[ActivationPoint]:
    points = [p for name, p in find_activations(model).items() if name.endswith(f".{KINDS[kind]}")]
    stacks = list(dict.fromkeys(_stack(point) for point in points))
    if not stacks:
        got = f"none in {type(model).__name__}"
        raise LookError(f"over: needs activations *.{KINDS[kind]}, got {got}; try 'residual'")
    if stack is not None and stack not in stacks:
        raise LookError(f"stack: needs one of {', '.join(stacks)}, got {stack!r}")
    return [point for point in points if _stack(point) == (stack or stacks[-1])]


def _stack(point: ActivationPoint) -> str:
    return point.name.rsplit(".", 3 if point.name.count(".") > 2 else 2)[0]


def map_inputs(inputs: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """What a model is called with, a tensor, tuple or mapping, with `fn` applied to its tensors."""

    def apply(x: Any) -> Any:
        return fn(x) if isinstance(x, Tensor) else x

    if isinstance(inputs, Mapping):
        return {name: apply(x) for name, x in inputs.items()}
    return apply(inputs) if isinstance(inputs, Tensor) else tuple(apply(x) for x in inputs)


def metric_value(metric: Metric, output: Any) -> float:
    """The metric of one output of the model, as a number."""
    value = metric(get_output(output))
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ShapeError(f"metric: needs to return a scalar, got {got}; try .mean()")
    return float(value.detach())
