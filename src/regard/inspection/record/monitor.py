"""Attention statistics per head during training, every few steps."""

import json
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, FileError
from regard.inspection.adapters.module_tracker import ModuleTracker, check_glob
from regard.inspection.record.look import patched
from regard.ops.grid import to_4d
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting
from regard.ops.survey.op import compute_survey
from regard.ops.survey.statistics import make_survey_options

COLLAPSE_RATIO = 0.1  # of the highest entropy of the head so far
SCORE_LIMIT = 100.0  # larger scores saturate the softmax; MuonClip clips from here
MONITORED = ("entropy", "max_score", "first_share", "gradient")

Record = dict[str, Any]


class AttentionMonitor:
    """Monitors entropy, largest score, sink share and gradient norm of every head during training.

    entropy: mean of -Σ w log w over queries,   max_score: max_ij s_ij,   first_share: mean weight
    on the first 4 keys,   gradient: ‖∂J/∂out‖ over the batch, before the output projection

    Call `step` once per training step, after backward. Steps that are not monitored run without
    hooks. A record is a dict with one number per head. `alerts` collects heads whose entropy fell
    below a tenth of its maximum, scores above 100, and values that are not finite. Forward passes
    without gradients (validation) do not count.

    Args:
        model: The model in training.
        every: Monitor every n-th step.
        output: Receives the records: a function, or a path of a JSONL file; without it they are
            appended to `records`.
        at: Glob over the names or paths of attention modules.
        start_step: Number of the first step, after a resume.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10))
    >>> with rg.inspection.AttentionMonitor(model, every=10) as monitor:
    ...     for _ in range(11):
    ...         model(torch.tensor([[1, 2, 3]])).sum().backward()
    ...         _ = monitor.step()
    >>> [(r["step"], r["site"], len(r["entropy"])) for r in monitor.records][:2]
    [(0, 'decoder.0.self', 4), (0, 'decoder.1.self', 4)]
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 100,
        output: Callable[[Record], Any] | str | Path | None = None,
        *,
        at: str = "*",
        start_step: int = 0,
    ):
        if every < 1:
            raise ConfigError(f"every: needs 1 or more, got {every}")
        check_glob("at", at)
        self.model, self.every, self.at = model, every, at
        self.step_count = start_step
        self.records: list[Record] = []
        self.alerts: list[str] = []
        self._write = self.records.append if output is None else _make_writer(output)
        self._max_entropy: dict[tuple[str, int], float] = {}
        self._step_monitor: _StepMonitor | None = None
        self._contexts = ExitStack()

    def __enter__(self) -> "AttentionMonitor":
        self._open_if_due()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def step(self) -> list[Record]:
        """End a training step; write and return its records."""
        records = [*self._step_monitor.records(self.step_count)] if self._step_monitor else []
        self._close()
        for record in records:
            record["alerts"] = self._find_alerts(record)
            self.alerts += record["alerts"]
            self._write(record)
        self.step_count += 1
        self._open_if_due()
        return records

    def _open_if_due(self) -> None:
        if self.step_count % self.every == 0:
            tracker = self._contexts.enter_context(patched(self.model))
            self._step_monitor = _StepMonitor(tracker, self.at)
            self._contexts.enter_context(intercepting(self._step_monitor, tracker))

    def _close(self) -> None:
        self._contexts.close()
        self._step_monitor = None

    def _find_alerts(self, record: Record) -> list[str]:
        alerts, site = [], record["site"]
        for head, numbers in enumerate(zip(*(record[name] for name in MONITORED), strict=True)):
            entropy, score, *_ = numbers
            where = f"step {record['step']}, {site}, head {head}"
            # -inf is normal: the largest score of a row without visible keys
            if any(x is not None and (math.isnan(x) or x == math.inf) for x in numbers):
                alerts.append(f"{where}: not finite")
                continue
            highest = max(entropy, self._max_entropy.get((site, head), entropy))
            self._max_entropy[site, head] = highest
            if entropy < COLLAPSE_RATIO * highest:
                alerts.append(f"{where}: entropy collapsed to {entropy:.3g} from {highest:.3g}")
            if score > SCORE_LIMIT:
                alerts.append(f"{where}: score {score:.3g} above {SCORE_LIMIT:g}")
        return alerts


class _StepMonitor:
    """Interceptor of one training step.

    `sums` has, per site, sums over its calls with one number per head, on the model's device.
    """

    def __init__(self, tracker: ModuleTracker, at: str):
        self.tracker, self.at = tracker, at
        self.options = make_survey_options(("entropy", "first_share", "max_score"), 4, 8, 8, 256)
        self.sums: dict[str, dict[str, Tensor]] = defaultdict(dict)
        self.lock = threading.RLock()

    def __call__(self, call: AttentionCall, proceed: Proceed) -> AttentionResult:
        def squares(grad: Tensor) -> Tensor:
            return to_4d(grad.detach()).float().square().sum((0, 2, 3))

        out, lse = proceed(call)
        if torch.is_grad_enabled():
            caller = self.tracker.caller
            if caller.matches(self.at):
                self._add_call(caller.name, call, lse)
                if out.requires_grad:
                    out.register_hook(lambda grad: self._add(caller.name, squares=squares(grad)))
        return out, lse

    @torch.no_grad()
    def _add_call(self, name: str, call: AttentionCall, lse: Tensor) -> None:
        q, k, lse = (x.detach() for x in (call.q, call.k, lse))
        survey = compute_survey(q, k, lse, call.terms, self.options)
        counted = _rows(lse) > -torch.inf  # queries without visible keys do not enter the mean
        self._add(
            name,
            queries=counted.sum((0, 2)),
            entropy=(_rows(survey.entropy) * counted).sum((0, 2)),
            first_share=(_rows(survey.first_share) * counted).sum((0, 2)),
            max_score=to_4d(survey.max_score[..., None, None]).amax((0, 2, 3)),
        )

    def _add(self, name: str, **numbers: Tensor) -> None:
        with self.lock:
            sums = self.sums[name]
            for key, x in numbers.items():
                add = torch.maximum if key == "max_score" else torch.add
                sums[key] = add(sums[key], x) if key in sums else x

    def records(self, step: int) -> Iterator[Record]:
        for name, sums in self.sums.items():
            queries, squares = sums["queries"].clamp(min=1), sums.get("squares")
            yield {
                "step": step,
                "site": name,
                "entropy": (sums["entropy"] / queries).tolist(),
                "max_score": sums["max_score"].tolist(),
                "first_share": (sums["first_share"] / queries).tolist(),
                "gradient": [None] * len(queries) if squares is None else squares.sqrt().tolist(),
            }


def _rows(x: Tensor) -> Tensor:
    """Reshape to (batch, head, query)."""
    return to_4d(x[..., None])[..., 0]


def _make_writer(output: Callable[[Record], Any] | str | Path) -> Callable[[Record], Any]:
    if callable(output):
        return output
    path = Path(output)
    if not path.parent.is_dir():
        raise FileError(f"{path}: needs an existing folder, got {path.parent}; try mkdir")

    def write(record: Record) -> None:
        # opened per record: a killed run leaves whole lines behind
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({name: _to_json(x) for name, x in record.items()}) + "\n")
        except OSError as error:
            raise FileError(f"{path}: cannot be written, {error.strerror or error}") from error

    return write


def _to_json(x: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by strings."""
    if isinstance(x, list):
        return [_to_json(value) for value in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x
