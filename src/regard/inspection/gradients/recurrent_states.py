"""Runs recurrent cells step by step, so that every state is a node of the autograd graph."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.inspection.adapters import torch_recurrent
from regard.inspection.record.gates import CellScope
from regard.ops.recurrence import CellStep, RecurrenceResult, State
from regard.ops.recurrence.intercept import SequenceCall, StepCall, intercepting_recurrence
from regard.ops.recurrence.op import reverse_sequences


@dataclass
class CellRun:
    """One run of one cell: its states in the order they were computed."""

    name: str
    states: list[State] = field(default_factory=list)
    reverse: bool = False
    lengths: Tensor | None = None


class StepRecorder:
    """Interceptor that runs every cell step by step and records its states."""

    def __init__(self, cells: CellScope):
        self.runs: list[CellRun] = []
        self.skipped: dict[str, str] = {}
        self.cells = cells
        self._thread = threading.get_ident()
        self._current: CellRun | None = None

    def on_sequence(
        self, call: SequenceCall, proceed: Callable[[SequenceCall], RecurrenceResult]
    ) -> RecurrenceResult:
        lengths = None if call.lengths is None else call.lengths.reshape(-1)
        self._current = CellRun(self.cells.name(call.weights.u), [], call.reverse, lengths)
        self.runs.append(self._current)
        try:
            return proceed(replace(call, backend="reference"))
        finally:
            self._current = None

    def on_step(self, call: StepCall, proceed: Callable[[StepCall], CellStep]) -> CellStep:
        step = proceed(call)
        run = self._current
        if run is None:
            self.runs.append(run := CellRun(self.cells.name(call.weights.u)))
        run.states.append(step.state)
        return step

    def on_torch_module(
        self, path: str, module: nn.Module, args: Any, kwargs: Any, out: Any
    ) -> Any:
        if threading.get_ident() != self._thread:  # another run of the same model
            return out
        if reason := torch_recurrent.refusal(module):
            self.skipped[path] = reason
            return out
        with self.cells.rerun_as(path, module):
            return torch_recurrent.rerun(module, *args, **kwargs)

    @property
    def all_states(self) -> list[Tensor]:
        """Every state tensor, by run and time."""
        return [s for run in self.runs for state in run.states for s in state]

    def norms(self, grads: list[Tensor | None]) -> dict[str, tuple[Tensor, ...]]:
        """‖∂J/∂s‖ per state tensor of each cell, (batch, time); `grads` are of `all_states`."""

        def norm(state: Tensor, grad: Tensor | None) -> Tensor:
            grad = torch.zeros_like(state) if grad is None else grad
            return grad.detach().reshape(-1, grad.shape[-1]).norm(dim=-1)

        remaining, norms = iter(grads), {}
        for run in self.runs:
            times = [tuple(norm(s, next(remaining)) for s in state) for state in run.states]
            rows = [torch.stack(values, 1) for values in zip(*times, strict=True)]
            if run.reverse:
                rows = [reverse_sequences(row[..., None], run.lengths)[..., 0] for row in rows]
            # runs of another batch size than the last one belong to another input
            same = [old for old in norms.get(run.name, []) if len(old[0]) == len(rows[0])]
            norms[run.name] = [*same, rows]
        return {
            name: tuple(torch.cat(rows, 1) for rows in zip(*runs, strict=True))
            for name, runs in norms.items()
        }


@contextmanager
def record_steps(model: nn.Module) -> Iterator[StepRecorder]:
    """Record every state of every recurrent cell of a model inside the `with` block."""
    steps = StepRecorder(CellScope(model))
    with (
        steps.cells.hooks(),
        torch_recurrent.hook_outputs(model, steps.on_torch_module),
        intercepting_recurrence(steps, steps.cells, other_threads=False),
    ):
        yield steps
