"""Recurrent cells made to walk in single steps, so that each state is a point of the graph."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.inspection.adapters import torch_recurrent
from regard.inspection.adapters.module_tracker import ModuleTracker
from regard.inspection.record.gates import CellScope
from regard.ops.recurrence import CellStep, RecurrenceResult, State
from regard.ops.recurrence.intercept import SequenceCall, StepCall, intercepting_recurrence
from regard.ops.recurrence.op import reverse_sequences


@dataclass
class CellRun:
    """One walk of one cell: the states in the order they were made."""

    name: str
    states: list[State] = field(default_factory=list)
    reverse: bool = False
    lengths: Tensor | None = None


class StepRecorder:
    """Stands at the door of recurrence, lets every cell go step by step, and keeps its states."""

    def __init__(self, cells: CellScope):
        self.runs: list[CellRun] = []
        self.skipped: dict[str, str] = {}
        self.cells = cells
        self._thread = threading.get_ident()
        self._walking: CellRun | None = None

    def on_sequence(
        self, call: SequenceCall, proceed: Callable[[SequenceCall], RecurrenceResult]
    ) -> RecurrenceResult:
        lengths = None if call.lengths is None else call.lengths.reshape(-1)
        self._walking = CellRun(self.cells.name(call.weights.u), [], call.reverse, lengths)
        self.runs.append(self._walking)
        try:
            return proceed(replace(call, backend="reference"))
        finally:
            self._walking = None

    def on_step(self, call: StepCall, proceed: Callable[[StepCall], CellStep]) -> CellStep:
        answer = proceed(call)
        run = self._walking
        if run is None:
            run = CellRun(self.cells.name(call.weights.u))
            self.runs.append(run)
        run.states.append(answer.state)
        return answer

    def on_torch_module(
        self, path: str, module: nn.Module, args: Any, kwargs: Any, out: Any
    ) -> Any:
        if threading.get_ident() != self._thread:  # somebody else's run of the same model
            return out
        if reason := torch_recurrent.refusal(module):
            self.skipped[path] = reason
            return out
        with self.cells.rerun_as(path, module):
            return torch_recurrent.rerun(module, *args, **kwargs)

    @property
    def all_states(self) -> list[Tensor]:
        """Every state, run by run and time by time."""
        return [s for run in self.runs for state in run.states for s in state]

    @property
    def reversed_cells(self) -> set[str]:
        """The cells that read from the right."""
        return {run.name for run in self.runs if run.reverse}

    def norms(self, grads: list[Tensor | None]) -> dict[str, tuple[Tensor, ...]]:
        """‖∂J/∂s‖ for each state tensor of each cell, (batch, time), from what `points` got."""
        left, found = iter(grads), {}
        for run in self.runs:
            times = [tuple(_norm(s, next(left)) for s in state) for state in run.states]
            rows = (torch.stack(values, 1) for values in zip(*times, strict=True))
            if run.reverse:
                rows = (reverse_sequences(row[..., None], run.lengths)[..., 0] for row in rows)
            found.setdefault(run.name, []).append(tuple(rows))
        # calls of other batch sizes are another text: the last ones are told
        return {name: _joined(runs) for name, runs in found.items()}


@contextmanager
def record_steps(model: nn.Module) -> Iterator[StepRecorder]:
    """While this lasts, every recurrent cell of a model walks in steps that are kept."""
    running = ModuleTracker(model)
    steps = StepRecorder(CellScope(running))
    with (
        running.hooks(),
        torch_recurrent.hook_outputs(model, steps.on_torch_module),
        intercepting_recurrence(steps, steps.cells, other_threads=False),
    ):
        yield steps


def _norm(state: Tensor, grad: Tensor | None) -> Tensor:
    grad = torch.zeros_like(state) if grad is None else grad
    return grad.detach().reshape(-1, grad.shape[-1]).norm(dim=-1)


def _joined(runs: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    batch = runs[-1][0].shape[0]
    same = [run for run in runs if run[0].shape[0] == batch]
    return tuple(torch.cat(rows, 1) for rows in zip(*same, strict=True))
