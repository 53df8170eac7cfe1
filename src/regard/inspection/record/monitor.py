"""Attention watched while a model is trained: a few numbers a head, every so many steps."""

import json
import math
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, FileError
from regard.inspection.record.look import patched
from regard.ops.grid import to_4d
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting
from regard.ops.survey.op import compute_survey
from regard.ops.survey.statistics import make_survey_options

COLLAPSE_RATIO = 0.1  # of the highest entropy that the head had so far
SCORE_LIMIT = 100.0  # a score beyond this saturates softmax: where MuonClip starts to clip
MONITORED = ("entropy", "max_score", "first_share", "gradient")

Record = dict[str, Any]


class AttentionMonitor:
    """Writes entropy, largest score, sink share and gradient norm of every head during training.

    entropy: mean of -Σ w log w over the queries,   max_score: max_ij s_ij,   sink: mean share of
    the first 4 keys,   gradient: ‖∂J/∂out‖ over the whole batch, before the heads are mixed

    Call `step` once a training step, after backward. Every `every`-th step is watched, all others
    run untouched. A record is a dict with one number a head, given to `sink`: a function, or a
    file that gets one JSON line each; without one they stay in `records`. `alerts` collects what
    looks wrong: a head below a tenth of the highest entropy it had, a score above 100, a number
    that is none. Passes without gradients (validation) are not counted.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10))
    >>> with rg.AttentionMonitor(model, every=10) as monitor:
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
        self.model, self.every, self.at = model, every, at
        self.step_count = start_step  # how many steps were made
        self.records: list[Record] = []
        self.alerts: list[str] = []
        self._sink = self.records.append if output is None else _writer(output)
        self._highest: dict[tuple[str, int], float] = {}
        self._watch: _Watch | None = None
        self._open: ExitStack | None = None

    def __enter__(self) -> "AttentionMonitor":
        self._look_if_due()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def step(self) -> list[Record]:
        """End a training step: what was seen in it is written, and comes back."""
        records = [] if self._watch is None else self._watch.records(self.step_count)
        self._close()
        for record in records:
            record["alerts"] = self._judge(record)
            self.alerts += record["alerts"]
            self._sink(record)
        self.step_count += 1
        self._look_if_due()
        return records

    def _look_if_due(self) -> None:
        if self.step_count % self.every:
            return
        # Hooks and doors are there for this one step: the others pay nothing.
        self._open = ExitStack()
        running = self._open.enter_context(patched(self.model))
        self._watch = _Watch(running, self.at)
        self._open.enter_context(intercepting(self._watch, running))

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
        self._open = self._watch = None

    def _judge(self, record: Record) -> list[str]:
        found, site = [], record["site"]
        for head, numbers in enumerate(zip(*(record[name] for name in MONITORED), strict=True)):
            entropy, score, *_ = numbers
            where = f"step {record['step']}, {site}, head {head}"
            # a row that sees no key at all has the score -inf, which is nothing to worry about
            if any(x is not None and (math.isnan(x) or x == math.inf) for x in numbers):
                found.append(f"{where}: not finite")
                continue
            highest = max(entropy, self._highest.get((site, head), entropy))
            self._highest[site, head] = highest
            if entropy < COLLAPSE_RATIO * highest:
                found.append(f"{where}: entropy collapsed to {entropy:.3g} from {highest:.3g}")
            if score > SCORE_LIMIT:
                found.append(f"{where}: score {score:.3g} above {SCORE_LIMIT:g}")
        return found


@dataclass
class _Sums:
    """What the calls of one site in one step add up to, a number a head, still on the device."""

    queries: Tensor
    entropy: Tensor
    sink: Tensor
    max_score: Tensor
    squares: Tensor | None = None  # of the gradient


class _Watch:
    """Stands at the door for one training step."""

    def __init__(self, running: Any, at: str):
        self.running, self.at = running, at
        self.question = make_survey_options(("entropy", "first_share", "max_score"), 4, 8, 8, 256)
        self.sums: dict[str, _Sums] = {}
        self.lock = threading.RLock()

    def __call__(self, call: AttentionCall, proceed: Proceed) -> AttentionResult:
        out, lse = proceed(call)
        if torch.is_grad_enabled():
            name = self.running.caller.name
            if fnmatchcase(name, self.at):
                self._see(name, call, lse)
                if out.requires_grad:
                    out.register_hook(lambda grad: self._feel(name, grad))
        return out, lse

    @torch.no_grad()
    def _see(self, name: str, call: AttentionCall, lse: Tensor) -> None:
        q, k, lse = (x.detach() for x in (call.q, call.k, lse))
        found = compute_survey(q, k, lse, call.terms, self.question)
        assert found.entropy is not None
        assert found.first_share is not None
        assert found.max_score is not None
        real = _rows(lse) > -torch.inf  # a query that sees nothing has no say in the mean
        new = _Sums(
            real.sum((0, 2)),
            (_rows(found.entropy) * real).sum((0, 2)),
            (_rows(found.first_share) * real).sum((0, 2)),
            to_4d(found.max_score[..., None, None]).amax((0, 2, 3)),
        )
        with self.lock:
            old = self.sums.get(name)
            self.sums[name] = new if old is None else _added(old, new)

    @torch.no_grad()
    def _feel(self, name: str, grad: Tensor) -> None:
        squares = to_4d(grad).float().square().sum((0, 2, 3))
        with self.lock:
            sums = self.sums[name]
            sums.squares = squares if sums.squares is None else sums.squares + squares

    def records(self, step: int) -> list[Record]:
        return [_record(step, name, sums) for name, sums in self.sums.items()]


def _record(step: int, name: str, sums: _Sums) -> Record:
    queries = sums.queries.clamp(min=1)
    return {
        "step": step,
        "site": name,
        "entropy": (sums.entropy / queries).tolist(),
        "max_score": sums.max_score.tolist(),
        "first_share": (sums.sink / queries).tolist(),
        "gradient": [None] * len(queries) if sums.squares is None else sums.squares.sqrt().tolist(),
    }


def _rows(x: Tensor) -> Tensor:
    """(batch, head, query), whatever the axes in front."""
    return to_4d(x[..., None])[..., 0]


def _added(old: _Sums, new: _Sums) -> _Sums:
    return _Sums(
        old.queries + new.queries,
        old.entropy + new.entropy,
        old.sink + new.sink,
        torch.maximum(old.max_score, new.max_score),
        old.squares,
    )


def _writer(sink: Callable[[Record], Any] | str | Path) -> Callable[[Record], Any]:
    if callable(sink):
        return sink
    path = Path(sink)
    if not path.parent.is_dir():
        raise FileError(f"{path}: needs a folder that exists, got {path.parent}; try mkdir")

    def write(record: Record) -> None:
        # opened for each record: a run that is killed leaves whole lines behind
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_plain(record)) + "\n")
        except OSError as error:
            raise FileError(f"{path}: cannot be written, {error.strerror or error}") from error

    return write


def _plain(record: Record) -> Record:
    """JSON has no NaN and no infinity: they become words."""

    def word(x: Any) -> Any:
        return str(x) if isinstance(x, float) and not math.isfinite(x) else x

    return {
        key: [word(x) for x in value] if isinstance(value, list) else value
        for key, value in record.items()
    }
