"""Answers of a job in this process, or in several that inherit the model by a fork."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import torch

from regard.runs.apply.answers import TaskAnswers
from regard.tasks import Answer, JobInput

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
