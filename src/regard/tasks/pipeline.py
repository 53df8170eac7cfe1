"""`Pipeline`: a trained model applied to inputs, and what is written for each output."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import asdict, is_dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn

from regard.errors import ConfigError, RegardError
from regard.tasks.verb import TaskOptions, Verb

Device = str | torch.device
Row = tuple[str, ...]


@runtime_checkable
class TrainedRun(Protocol):
    """What a pipeline needs of a run.

    >>> isinstance(rg.load("phrases", device="cpu"), TrainedRun)
    True
    """

    @property
    def recipe(self) -> Any: ...  # its `data` is the task; None for a model without one
    @property
    def model(self) -> Any: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def calibration(self) -> Any: ...


class JobInput(NamedTuple):
    """One input of a job: a text or a file name, and how messages name it."""

    number: int
    text: str
    name: str
    is_listed: bool = False  # one of several arguments, rather than a line


class Answer(NamedTuple):
    """The lines that are written for one input, as columns, with problems, warnings and notes."""

    rows: Sequence[Row] = ()
    problems: tuple[str, ...] = ()  # why there is no output, or not all of it
    warnings: tuple[str, ...] = ()  # about low confidence
    notes: tuple[str, ...] = ()


class Document(Protocol):
    """A file that is answered as a whole, such as a catalog: batches of its texts, then its text.

    What `compute` returns for a batch is JSON; an interrupted job hands it to `restore`.
    """

    total: int  # texts

    @property
    def warnings(self) -> int: ...  # about low confidence, so far

    def compute(self, texts: list[str]) -> Any: ...

    def restore(self, texts: list[str], record: Any) -> list[str | None]: ...

    def fill(self, answer: Any) -> tuple[list[str], str]:
        """Fill the file by `answer(texts)`; its problems and a summary."""
        ...


class Pipeline:
    """The model of a run with the options of its task, called with a batch of inputs at a time.

    The outputs are what `run.apply` returns, one per input; a `RegardError` in place of one says
    what is wrong with that input alone.

    Args:
        run: with the model, its tokenizer and its task.
        options: of the task; None makes them of `values`.
        device: where to compute, on a copy of the model; None is where the model is.
        values: options by name.

    >>> pipeline = rg.load("phrases", device="cpu").pipeline(to=["de"])
    >>> (output,) = pipeline(["3 days"])
    >>> output, pipeline.answer(JobInput(1, "3 days", "line 1"), output).rows
    ({'de': '3 Tage'}, [('3 Tage',)])
    """

    declares: ClassVar[type[Verb]] = Verb
    batch_size: int = 512  # inputs per call of a job
    formats: ClassVar[tuple[str, ...]] = ("lines", "tsv")

    def __init__(
        self,
        run: TrainedRun,
        options: TaskOptions | None = None,
        *,
        device: Device | None = None,
        **values: Any,
    ):
        if self.declares.verb:
            require_verb(run, self.declares.verb)
        self.run, self.task = run_on(run, device), run.recipe.data
        self.model = self.run.model
        self.options: Any = options or self.task.Options(**values)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        return list(self.task.apply(self.run, inputs, self.options))

    def check(self, file_format: str, inputs: int) -> None:
        """Raise for a format of a job, or a number of inputs, that there are no answers for."""
        if file_format not in (*self.formats, "inputs"):
            known = " or ".join(self.formats)
            raise ConfigError(f"format: needs {known} for this task, got {file_format}")

    def refusal(self, text: str) -> str:
        """Why a text cannot be an input; empty if it can."""
        return ""

    def columns(self, confidence: bool) -> int:
        """Columns of the row of an input that is refused."""
        return 0 if self.task.reads.is_file else 1 + confidence

    def answer(self, given: JobInput, output: Any, *, confidence: bool = False) -> Answer:
        """What is written for an output."""
        return Answer([(one_line(self.task.format_output(output)), *self.sure(output, confidence))])

    def sure(self, output: Any, confidence: bool) -> Row:
        """The column of the confidence, if it is requested."""
        return format_confidence(self.task.confidence(output)) if confidence else ()

    def as_json(self, output: Any) -> Any:
        """An output in the response of a request."""
        return plain(output)

    def stream(self, source: Any) -> Iterator[Any]:
        """The output for one input, a piece at a time, if the verb `can_stream`."""
        raise NotImplementedError

    def generator(self) -> Any:
        """What several streams of texts advance in together, such as a `TextGenerator`."""
        raise NotImplementedError

    def stream_options(self) -> dict[str, Any]:
        """The options of a stream of `generator`."""
        raise NotImplementedError

    def document(self, name: Any, content: bytes | None) -> Document:
        """A file of a format other than lines and tsv."""
        raise NotImplementedError

    def summary(self) -> str:
        """What is worth to be known after all inputs, for people."""
        return ""


def require_verb(run: Any, verb: str) -> None:
    """Raise a ConfigError that lists the verbs of a run, unless `verb` is one of them.

    >>> require_verb(rg.load("morse"), "classify")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: run: needs a model that can classify, got a Recogniser; try ...
    """
    if verb not in run.verbs:
        kind, verbs = type(run.model).__name__, ", ".join(run.verbs) or "rg.look(model)"
        raise ConfigError(f"run: needs a model that can {verb}, got a {kind}; try {verbs}")


def model_on(model: nn.Module, device: Device | None) -> nn.Module:
    """The model on a device: itself if it is there, else a copy; never moved in place.

    >>> model = torch.nn.Linear(1, 1)
    >>> model_on(model, None) is model, model_on(model, "cpu") is model
    (True, True)
    """
    if device is None:
        return model
    device, current = torch.device(device), next(model.parameters()).device
    if device.type == current.type and device.index in (None, current.index):
        return model
    return copy.deepcopy(model).to(device)


def run_on(run: Any, device: Device | None) -> Any:
    """The run with its model on a device, as `model_on` gives it."""
    model = run.model if device is None else model_on(run.model, device)
    return run if model is run.model else replace(run, model=model)


def outputs_of(pipeline: Pipeline, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of inputs, all of them good: the first error is raised."""
    outputs = pipeline(inputs)
    for output in outputs:
        if isinstance(output, RegardError):
            raise output
    return outputs


def format_confidence(value: float | None) -> tuple[str]:
    """A confidence as a column; raises where the model has none.

    >>> format_confidence(0.98765)
    ('0.9877',)
    """
    if value is None:
        hint = "try a run with a calibration.json, or a task with probabilities"
        raise ConfigError(f"confidence: needs a model that has one, got none; {hint}")
    return (f"{value:.4f}",)


def one_line(text: str) -> str:
    """The text without line breaks; those of Unicode that are no ASCII stay.

    >>> one_line("a\\nb")
    'a b'
    """
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


def shorten(text: str, width: int) -> str:
    """The text, cut to a width."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def plain(value: Any) -> Any:
    """An output as JSON has it: dataclasses as objects, tensors and arrays as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, dict | list | tuple | str | int | float | bool | None):
        return value
    to_list = getattr(value, "tolist", None)
    return str(value) if to_list is None else to_list()
