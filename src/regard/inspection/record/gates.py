"""Gates and states of recurrent layers over time, for cells of regard and torch."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError, ShapeError
from regard.inspection.adapters import torch_recurrent
from regard.inspection.adapters.module_tracker import ModuleTracker, check_glob, matches
from regard.nn import AttentiveRecurrent, Recurrent, RecurrentCell
from regard.ops.recurrence import CellStep, GRUStep, LSTMStep, RecurrenceResult
from regard.ops.recurrence.op import compute_recurrence
from regard.ops.recurrence.reference import SequenceCall, StepCall, intercepting_recurrence


class Gates(Mapping[str, CellStep]):
    """Gates and states per recurrent cell, each tensor (batch, time, hidden).

    Repeated calls of a cell, as in decoding, are joined along time; the single calls are in
    `calls`. `skipped` maps modules that could not be recorded to the reason.

    >>> model = rg.nn.Recurrent(3, 4, kind="lstm", layers=2)
    >>> with rg.inspection.record_gates(model) as gates:
    ...     _ = model(torch.randn(1, 7, 3))
    >>> list(gates), gates["1"].f.shape
    (['0', '1'], torch.Size([1, 7, 4]))
    """

    def __init__(self) -> None:
        self.calls: dict[str, list[CellStep]] = defaultdict(list)
        self.skipped: dict[str, str] = {}

    def __getitem__(self, name: str) -> Any:  # a CellStep; which one, only the model says
        if name not in self.calls:
            known = ", ".join(self.calls) or "none: no recurrent cell has run"
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
        parts = (f"{name}: {type(x).__name__}{tuple(x.h.shape)}" for name, x in self.items())
        return f"Gates({', '.join(parts)})"


@contextmanager
def record_gates(model: nn.Module, at: str = "*") -> Iterator[Gates]:
    """Record all gates and states of a model's recurrent cells while it runs.

    Cells are named by module path and layer: "encoder.0", and "encoder.0.back" for the reverse
    direction. Works with cells of regard and with torch's nn.RNN, nn.GRU, nn.LSTM and their cells.
    The outputs of the model do not change by a bit; gates are recomputed beside them. `at` is a
    glob over the names.

    >>> cell = rg.nn.RecurrentCell(1, 3, "gru")
    >>> with rg.inspection.record_gates(cell) as gates:
    ...     _ = cell(torch.ones(2, 1))
    >>> gates["cell"].z.shape
    torch.Size([2, 1, 3])
    """
    check_glob("at", at)
    gates, cells = Gates(), CellScope(model)
    collector = _Collector(gates, cells, at)
    with (
        cells.hooks(),
        torch_recurrent.hook_outputs(model, collector.on_torch_module),
        intercepting_recurrence(collector, cells),
    ):
        yield gates


def memory_retention(step: CellStep) -> Float[Tensor, "batch time hidden"]:
    """Share of the memory at each time that remains at the end, along the direct path.

    ∂C_T/∂C_t = Π_{s>t} f_s for an LSTM, Π_{s>t} (1 - z_s) for a GRU, with h held fixed

    A forget gate of 0.9 retains 3e-5 over 100 steps: f ≈ 1 helps only if 1 - f is well below 1/T.

    >>> f = torch.tensor([0.5, 0.5, 0.9]).view(1, 3, 1)
    >>> memory_retention(rg.ops.LSTMStep(i=f, f=f, o=f, candidate=f, c=f, h=f)).flatten()
    tensor([0.4500, 0.9000, 1.0000])
    """
    if not isinstance(step, LSTMStep | GRUStep):
        raise ConfigError(
            f"step: needs the gates of an LSTM or a GRU, got {type(step).__name__}; "
            "try gradient_norms, as an RNN has no direct path"
        )
    forget = step.f if isinstance(step, LSTMStep) else 1 - step.z
    later = torch.cat([forget[:, 1:], torch.ones_like(forget[:, :1])], 1)
    return later.flip(1).cumprod(1).flip(1)


def _layer_names(path: str, layers: int, bidirectional: bool) -> list[str]:
    """The names of the cells of a stack, in the order they run."""
    names = [f"{path}.{i}" if path else str(i) for i in range(layers)]
    return [name + end for name in names for end in ("", ".back")[: 1 + bidirectional]]


class CellScope(ModuleTracker):
    """Scope of interception: the recurrent cells of one model, in every thread, and their names."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        names: dict[int, str] = {}  # of the cells of regard, by the id of their recurrent weight U
        for path, module in self.modules.items():
            if isinstance(module, Recurrent | AttentiveRecurrent):
                bidirectional = getattr(module, "bidirectional", False)
                layers = _layer_names(path, len(module.cells) // (1 + bidirectional), bidirectional)
                names |= {id(cell.u): name for name, cell in zip(layers, module.cells, strict=True)}
            elif isinstance(module, RecurrentCell):
                names.setdefault(id(module.u), path or "cell")
        self.cell_names = names

    def includes_call(self, call: SequenceCall | StepCall) -> bool:
        """Whether the cell belongs to the model; it may run without a call of its module."""
        if rerun := _rerun.get():  # received by one collector only
            return rerun[0] is self
        return id(call.weights.u) in self.cell_names or super().includes_call(call)

    def name(self, u: Tensor) -> str:
        """The name of the cell with recurrent weight u."""
        rerun = _rerun.get()
        return next(rerun[1]) if rerun else self.cell_names.get(id(u), "elsewhere")

    @contextmanager
    def rerun_as(self, path: str, module: nn.Module) -> Iterator[None]:
        """Attribute recurrences inside the `with` block to a recurrent torch module."""
        names = [path or "cell"]
        if isinstance(module, nn.RNNBase):
            names = _layer_names(path, module.num_layers, module.bidirectional)
        token = _rerun.set((self, iter(names)))
        try:
            yield
        finally:
            _rerun.reset(token)


# of the recurrent torch module that is being rerun in this thread: its scope, names of its cells
_rerun: ContextVar[tuple[CellScope, Iterator[str]] | None] = ContextVar("rerun", default=None)


class _Collector:
    """Interceptor that records the gates of each sequence and step."""

    def __init__(self, gates: Gates, cells: CellScope, at: str):
        self.gates, self.cells, self.at = gates, cells, at
        self._here = threading.local()  # .in_sequence: steps inside a sequence are not recorded
        self._lock = threading.RLock()

    def on_sequence(
        self, call: SequenceCall, proceed: Callable[[SequenceCall], RecurrenceResult]
    ) -> RecurrenceResult:
        if hasattr(self._here, "in_sequence"):
            return proceed(call)
        self._here.in_sequence = True
        try:
            result = with_gates = proceed(call)
            if not call.gates:
                with torch.no_grad():
                    with_gates = compute_recurrence(replace(call, gates=True, backend="auto"))
        finally:
            del self._here.in_sequence
        self._record(self.cells.name(call.weights.u), with_gates.gates)
        return result

    def on_step(self, call: StepCall, proceed: Callable[[StepCall], CellStep]) -> CellStep:
        step = proceed(call)
        if not hasattr(self._here, "in_sequence"):
            with_time = (values[..., None, :] for values in step)
            self._record(self.cells.name(call.weights.u), type(step)(*with_time))
        return step

    def on_torch_module(
        self, path: str, module: nn.Module, args: Any, kwargs: Any, out: Any
    ) -> None:
        reason = torch_recurrent.refusal(module)
        layers = getattr(module, "num_layers", 1)
        if layers > 1 and module.training and module.dropout:
            reason = "dropout between its layers cannot be repeated; try eval()"
        if reason:
            self.gates.skipped[path] = reason
            return
        with self.cells.rerun_as(path, module), torch.no_grad():
            torch_recurrent.rerun(module, *args, **kwargs)

    def _record(self, name: str, step: CellStep) -> None:
        if matches(self.at, name):
            tensors = (v.detach().reshape(-1, *v.shape[-2:]) for v in step)
            with self._lock:
                self.gates.calls[name].append(type(step)(*tensors))
