"""`run.apply`, and what a job writes for each input, computed here or in forked processes."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from regard.errors import ConfigError, RegardError
from regard.runs.contents import Device, RunContents
from regard.tasks import Answer, JobInput, Pipeline
from regard.tasks.pipeline import outputs_of


def apply_run(
    run: RunContents, inputs: Any, *, device: Device | None = None, **options: Any
) -> list[Any]:
    """What the task of a run returns for inputs, one output per input.

    Args:
        run: a run of any task.
        inputs: texts, or names of files for a task that reads images or sounds.
        device: where to compute, on a copy of the model; None is where the model is.
        options: of the task, such as `to=["de"]`.

    >>> apply_run(rg.load("phrases", device="cpu"), ["3 days"], to=["de", "es"])
    [{'de': '3 Tage', 'es': '3 días'}]
    """
    items: Sequence[Any] = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    return outputs_of(run.on(device).pipeline(**options), items)


class TaskAnswers:
    """The answers of a job, a batch of inputs at a time; an input that fails stops no other.

    Args:
        run: a run of any task, or its pipeline.
        confidence: whether to write the confidence after each output.
        options: of the task.

    >>> answers = TaskAnswers(rg.load("phrases", device="cpu"), to=["de"])
    >>> answers([JobInput(1, "3 days", "line 1")])[0].rows
    [('3 Tage',)]
    """

    def __init__(self, run: RunContents | Pipeline, *, confidence: bool = False, **options: Any):
        self.pipeline = run if isinstance(run, Pipeline) else run.pipeline(**options)
        self.confidence = confidence
        self.batch_size, self.refusal = self.pipeline.batch_size, self.pipeline.refusal
        self.columns = self.pipeline.columns(confidence)
        self.takes_files = self.pipeline.task.reads.is_file

    def check(self, file_format: str, inputs: int) -> None:
        """Raise for a format of a job, or a number of inputs, that it has no answers for."""
        self.pipeline.check(file_format, inputs)
        if self.confidence and file_format not in ("inputs", "lines", "tsv"):
            raise ConfigError(
                f"confidence: needs lines or a .tsv to be written to, got a .{file_format}"
            )

    def __call__(self, inputs: Sequence[JobInput]) -> list[Answer]:
        """One answer per input."""
        try:
            outputs = self.pipeline([x.text for x in inputs])
        except RegardError as error:
            if len(inputs) > 1:  # one bad input must not fail the others
                return [self([x])[0] for x in inputs]
            outputs = [error]
        return [self._answer(*pair) for pair in zip(inputs, outputs, strict=True)]

    def _answer(self, given: JobInput, output: Any) -> Answer:
        if not isinstance(output, RegardError):
            return self.pipeline.answer(given, output, confidence=self.confidence)
        if self.takes_files:  # whose name stands in the message
            return Answer(problems=(str(output),))
        return Answer([("",) * self.columns], (f"{given.name}: {output}",))


_inherited: TaskAnswers | None = None  # by forked processes: models are not sent to them


@contextmanager
def submitter(
    answers: TaskAnswers, jobs: int
) -> Iterator[Callable[[list[JobInput]], Callable[[], list[Answer]]]]:
    """A function that starts to compute answers, and returns the function that waits for them."""
    global _inherited
    if jobs == 1:
        yield lambda given: lambda: answers(given) if given else []
        return
    _inherited = answers
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a forked process cannot use the threads of its parent
    fork = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(jobs, mp_context=fork, initializer=_start_process)
    try:
        yield lambda given: pool.submit(_answer_inherited, given).result
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
        _inherited = None


def _start_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the job
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)


def _answer_inherited(given: list[JobInput]) -> list[Answer]:
    assert _inherited is not None
    return _inherited(given) if given else []
