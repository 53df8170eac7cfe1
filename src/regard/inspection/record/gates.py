"""Gates and states of recurrent layers over time, of our models and of torch's modules."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError, ShapeError
from regard.inspection.adapters import torch_recurrent
from regard.inspection.adapters.module_tracker import ModuleTracker, check_glob
from regard.nn import AttentiveRecurrent, Recurrent, RecurrentCell
from regard.ops.recurrence import CellStep, GRUStep, LSTMStep, RecurrenceResult
from regard.ops.recurrence.intercept import SequenceCall, StepCall, intercepting_recurrence
from regard.ops.recurrence.op import compute_recurrence as compute


class Gates(Mapping[str, CellStep]):
    """What every recurrent cell did: a step by name, whose tensors are (batch, time, hidden).

    A cell that was called again and again (a decoder writing a text) comes joined along time; its
    single calls are in `calls`. What could not be seen stands in `skipped`, with the reason.

    >>> model = rg.nn.Recurrent(3, 4, kind="lstm", layers=2)
    >>> with rg.record_gates(model) as seen:
    ...     _ = model(torch.randn(1, 7, 3))
    >>> list(seen), seen["1"].f.shape
    (['0', '1'], torch.Size([1, 7, 4]))
    """

    def __init__(self) -> None:
        self.calls: dict[str, list[CellStep]] = defaultdict(list)
        self.skipped: dict[str, str] = {}

    def __getitem__(self, name: str) -> CellStep:
        if name not in self.calls:
            known = ", ".join(self.calls) or "none: nothing recurrent has run"
            raise ConfigError(f"name: needs one of {known}, got {name!r}")
        calls = self.calls[name]
        batches = sorted({call.h.shape[0] for call in calls})
        if len(batches) > 1:
            raise ShapeError(
                f"{name}: needs calls of one batch size to be joined, got {batches}; "
                f"try calls[{name!r}]"
            )
        return type(calls[0])(*(torch.cat(values, 1) for values in zip(*calls, strict=True)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.calls)

    def __len__(self) -> int:
        return len(self.calls)

    def __repr__(self) -> str:
        parts = (
            f"{name}: {type(step).__name__}{tuple(step.h.shape)}" for name, step in self.items()
        )
        return f"Gates({', '.join(parts)})"


@contextmanager
def record_gates(model: nn.Module, at: str = "*") -> Iterator[Gates]:
    """Keep all gates and states of a model's recurrent cells while it runs.

    Names are those of the modules, the layer behind: "encoder.0", and "encoder.0.back" for the
    cell that reads from the right. Also nn.RNN, nn.GRU and nn.LSTM of torch and their cells. The
    model's outputs stay as they are to the last bit; its gates are computed beside them.

    >>> cell = rg.nn.RecurrentCell(1, 1, "gru")
    >>> torch.nn.init.zeros_(cell.w), torch.nn.init.zeros_(cell.u)  # doctest: +ELLIPSIS
    (...)
    >>> with rg.record_gates(cell) as seen:
    ...     _ = cell(torch.ones(2, 1))
    >>> seen["cell"].z
    tensor([[[0.5000]],
    <BLANKLINE>
            [[0.5000]]])
    """
    check_glob("at", at)
    running, seen = ModuleTracker(model), Gates()
    collector = _Collector(seen, CellScope(running), at)
    with (
        running.hooks(),
        torch_recurrent.hook_outputs(model, collector.theirs),
        intercepting_recurrence(collector, collector.cells),
    ):
        yield seen


def memory_retention(step: CellStep) -> Float[Tensor, "batch time hidden"]:
    """How much of the memory at each time is still there at the end, by the direct path alone.

    ∂C_T/∂C_t = Π_{s>t} f_s for an LSTM, Π_{s>t} (1 - z_s) for a GRU, with h held fixed

    A forget gate of 0.9 keeps 3e-5 over 100 steps: f ≈ 1 helps if 1 - f is well below 1/T.

    >>> f = torch.tensor([0.5, 0.5, 0.9]).view(1, 3, 1)
    >>> memory_retention(rg.LSTMStep(i=f, f=f, o=f, candidate=f, c=f, h=f)).flatten()
    tensor([0.4500, 0.9000, 1.0000])
    """
    match step:
        case LSTMStep():
            forget = step.f
        case GRUStep():
            forget = 1 - step.z
        case _:
            raise ConfigError(
                f"step: needs the gates of an LSTM or a GRU, got {type(step).__name__}; "
                "try rg.gradients, an RNN has no direct path"
            )
    later = torch.cat([forget[:, 1:], torch.ones_like(forget[:, :1])], 1)
    return later.flip(1).cumprod(1).flip(1)


def cell_names(model: nn.Module) -> dict[int, str]:
    """The name of each cell of ours, found by the identity of its U."""
    found: dict[int, str] = {}
    for path, module in model.named_modules():
        if isinstance(module, Recurrent | AttentiveRecurrent):
            ways = 2 if getattr(module, "bidirectional", False) else 1
            for i, cell in enumerate(module.cells):
                assert isinstance(cell, RecurrentCell)
                found[id(cell.u)] = _join(path, str(i // ways), "back" if i % ways else "")
        elif isinstance(module, RecurrentCell):
            found.setdefault(id(module.u), path or "cell")
    return found


def _join(*words: str) -> str:
    return ".".join(word for word in words if word)


class CellScope:
    """The recurrent cells of a model: the calls of its own, in every thread, and their names."""

    def __init__(self, tracker: ModuleTracker):
        self.tracker, self.cell_names = tracker, cell_names(tracker.model)

    def includes_call(self, call: SequenceCall | StepCall) -> bool:
        """Whether a cell is the model's; one may also be walked without a call of its module."""
        if _rerun.cells is not None:  # by a collector for itself, whoever else is there
            return _rerun.cells is self
        return id(call.weights.u) in self.cell_names or self.tracker.includes_call(call)

    def includes_model(self, model: nn.Module) -> bool:
        """Whether a model has some module in common with this one."""
        return self.tracker.includes_model(model)

    def name(self, u: Tensor) -> str:
        """What the cell that is walked now is called."""
        return next(_rerun.names) if _rerun.cells else self.cell_names.get(id(u), "elsewhere")

    @contextmanager
    def rerun_as(self, path: str, module: nn.Module) -> Iterator[None]:
        """While this lasts, walks are those of a recurrent module of torch's."""
        _rerun.cells, _rerun.names = self, iter(torch_cell_names(path, module))
        try:
            yield
        finally:
            _rerun.cells = None


class _Rerun(threading.local):
    """The recurrent module of torch's that is walked by our ops in this thread, if one is."""

    cells: CellScope | None = None
    names: Iterator[str] = iter(())


_rerun = _Rerun()


class _Collector:
    """Stands at the door and keeps what passes."""

    def __init__(self, seen: Gates, cells: CellScope, at: str):
        self.seen, self.cells, self.at = seen, cells, at
        self._here = threading.local()  # .walking: a walk is being made, its steps are its own
        self._lock = threading.RLock()

    def on_sequence(
        self, call: SequenceCall, proceed: Callable[[SequenceCall], RecurrenceResult]
    ) -> RecurrenceResult:
        if hasattr(self._here, "walking"):
            return proceed(call)
        self._here.walking = True
        try:
            answer = proceed(call)
            with torch.no_grad():
                opened = (
                    answer if call.gates else compute(replace(call, gates=True, backend="auto"))
                )
        finally:
            del self._here.walking
        assert opened.gates is not None
        self._keep(self.cells.name(call.weights.u), opened.gates)
        return answer

    def on_step(self, call: StepCall, proceed: Callable[[StepCall], CellStep]) -> CellStep:
        answer = proceed(call)
        if not hasattr(self._here, "walking"):
            with_time = (values[..., None, :] for values in answer)
            self._keep(self.cells.name(call.weights.u), type(answer)(*with_time))
        return answer

    def theirs(self, path: str, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        reason = torch_recurrent.refusal(module)
        layers = getattr(module, "num_layers", 1)
        if layers > 1 and module.training and module.dropout:
            reason = "dropout between its layers, which cannot be drawn again; try eval()"
        if reason:
            self.seen.skipped[path] = reason
            return
        with self.cells.rerun_as(path, module), torch.no_grad():
            torch_recurrent.rerun(module, *args, **kwargs)

    def _keep(self, name: str, step: CellStep) -> None:
        if fnmatchcase(name, self.at):
            whole = (v.detach().reshape(-1, *v.shape[-2:]) for v in step)
            with self._lock:
                self.seen.calls[name].append(type(step)(*whole))


def torch_cell_names(path: str, module: nn.Module) -> list[str]:
    """The names of the cells in a recurrent module of torch's, in the order they are walked."""
    if not isinstance(module, nn.RNNBase):
        return [path or "cell"]
    ways = ("", "back") if module.bidirectional else ("",)
    return [_join(path, str(layer), way) for layer in range(module.num_layers) for way in ways]
