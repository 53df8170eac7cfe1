"""What a job writes for each input: the outputs of any task, translations, classes, transcripts."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from regard.data import Pair
from regard.errors import ConfigError, FileError, RegardError
from regard.runs.alignment import align
from regard.runs.apply.any_task import apply_run, has_own_apply
from regard.runs.apply.classify import ClassifiedFile, classify_files
from regard.runs.apply.report import Reporter, SilentReporter, confidence_warning
from regard.runs.apply.transcribe import TranscribeJob, TranscriptChunk
from regard.runs.apply.translate import TranslationPipeline
from regard.runs.contents import RunContents
from regard.tasks import Translation

Row = tuple[str, ...]


class JobInput(NamedTuple):
    """One input of a job: a text or a file name, and how messages name it.

    >>> JobInput(3, "3 days", "line 3").name
    'line 3'
    """

    number: int
    text: str
    name: str


class Answer(NamedTuple):
    """The lines that are written for one input, as columns, with problems, warnings and notes.

    >>> Answer([("3 Tage", "0.9800")]).problems
    ()
    """

    rows: Sequence[Row] = ()
    problems: tuple[str, ...] = ()  # why there is no output, or not all of it
    warnings: tuple[str, ...] = ()  # about low confidence
    notes: tuple[str, ...] = ()


@runtime_checkable
class Answerer(Protocol):
    """Computes the answers of a job, a batch of inputs at a time.

    >>> isinstance(rg.runs.make_answers(rg.load("phrases", device="cpu"), to=["de"]), Answerer)
    True
    """

    batch_size: int  # inputs per call
    columns: int  # of the row of an input that is refused
    takes_files: bool = False  # inputs are names of files, not texts

    def check(self, file_format: str, inputs: int) -> None:
        """Raise for a format of a job, or a number of inputs, that it has no answers for."""
        if file_format == "po":
            raise ConfigError("format: needs lines or tsv for this task, got po")

    def refusal(self, text: str) -> str:
        """Why a text cannot be an input; empty if it can."""
        return ""

    def __call__(self, inputs: Sequence[JobInput]) -> list[Answer]:
        """One answer per input."""
        ...


class TaskAnswers(Answerer):
    """Answers of any task: its outputs, formatted by the task, one line each.

    Args:
        run: a run of any task.
        confidence: whether to write the confidence after each output.
        options: of the task's `apply`.

    >>> answers = TaskAnswers(rg.load("phrases", device="cpu"), to=["de"])
    >>> answers([JobInput(1, "3 days", "line 1")])[0].rows
    [('3 Tage',)]
    """

    def __init__(self, run: RunContents, *, confidence: bool = False, **options: Any):
        self.run, self.confidence, self.options = run, confidence, options
        self.batch_size = 32 if run.data.verb == "generate" else 512
        self.columns = 1 + confidence

    def __call__(self, inputs: Sequence[JobInput]) -> list[Answer]:
        try:
            outputs = apply_run(self.run, [x.text for x in inputs], **self.options)
        except TypeError as error:  # an option that the task does not have
            task = self.run.data.name
            raise ConfigError(f"option: needs one of the task {task}, got {error}") from error
        except RegardError as error:
            if len(inputs) > 1:  # one bad input must not fail the others
                return [self([x])[0] for x in inputs]
            return [Answer([("",) * self.columns], (f"{inputs[0].name}: {error}",))]
        data = self.run.data
        return [
            Answer([(one_line(data.format_output(x)), *self._confidence(data.confidence(x)))])
            for x in outputs
        ]

    def _confidence(self, value: float | None) -> Row:
        return format_confidence(value) if self.confidence else ()


class TranslationAnswers(Answerer):
    """Translations: one column per language, or one row per language, rank or aligned word.

    Args:
        pipeline: with the languages and the search.
        confidence: whether to write the confidence after each translation.
        by_language: write one row per language, after its name, where there are several.
        align: write the word alignment below each translation.
        plot: draw the alignment of one text into this file.
        reporter: gets the note about the plot.

    >>> pipeline = TranslationPipeline(rg.load("phrases", device="cpu"), ["de", "cs"])
    >>> TranslationAnswers(pipeline)([JobInput(1, "3 days", "line 1")])[0].rows
    [('3 Tage', '3 dny')]
    """

    batch_size = 512  # sorted into batches by length

    def __init__(
        self,
        pipeline: TranslationPipeline,
        *,
        confidence: bool = False,
        by_language: bool = False,
        align: bool = False,
        plot: Path | None = None,
        reporter: Reporter | None = None,
    ):
        self.pipeline, self.confidence, self.align, self.plot = pipeline, confidence, align, plot
        self.by_language = by_language and len(pipeline.languages) > 1
        self.reporter = reporter or SilentReporter()
        self.columns = len(pipeline.languages) * (1 + confidence)

    def check(self, file_format: str, inputs: int) -> None:
        languages = self.pipeline.languages
        if self.plot is not None and (inputs != 1 or len(languages) != 1):
            raise ConfigError("plot: needs one text and one language, got others; try fewer")
        if file_format in ("tsv", "po") and (self.align or self.pipeline.n_best > 1):
            raise ConfigError(f"format: needs lines for --align and --n-best, got {file_format}")
        if file_format == "po" and self.confidence:
            raise ConfigError("confidence: needs lines or a .tsv to be written to, got a .po")
        if file_format == "po" and len(languages) > 1:
            raise ConfigError(
                f"to: needs one language for a .po, got {' '.join(languages)}; "
                "try one file per language"
            )

    def refusal(self, text: str) -> str:
        return self.pipeline.refusal(text)

    def __call__(self, inputs: Sequence[JobInput]) -> list[Answer]:
        rows = self.pipeline.translate([x.text for x in inputs])
        return [self._answer(x, row) for x, row in zip(inputs, rows, strict=True)]

    def _answer(self, given: JobInput, found: list[list[Translation]]) -> Answer:
        rows, problems, warnings = list[Row](), list[str](), list[str]()
        ranked = list(zip(self.pipeline.languages, found, strict=True))
        if self.pipeline.n_best == 1 and not self.by_language:
            rows.append(tuple(x for _, (best, *_) in ranked for x in self._columns(best)))
        for to, translations in ranked:
            best = translations[0]
            if self.pipeline.n_best > 1:
                start = str(given.number), to
                rows += [(*start, f"{x.score:.4f}", *self._columns(x)) for x in translations]
            elif self.by_language:
                rows.append((to, *self._columns(best)))
            rows += self._alignment(given.text, to, best.text)
            if not best.ended:
                limit = f"{self.pipeline.max_new_tokens} tokens"
                problems.append(f"{given.name}: the translation into {to} was cut at {limit}")
            elif self.pipeline.is_unsure(best):
                warnings.append(self.warning(f"{given.name} ({to})", best))
        return Answer(rows, tuple(problems), tuple(warnings))

    def _columns(self, translation: Translation) -> Row:
        sure = format_confidence(translation.confidence) if self.confidence else ()
        return (one_line(translation.text), *sure)

    def warning(self, name: str, translation: Translation) -> str:
        """The low-confidence warning of a translation."""
        has_text = bool(translation.text.strip())
        consequence = "the translation may be wrong" if has_text else "no translation"
        confidence, threshold = translation.confidence, self.pipeline.threshold
        return confidence_warning(name, confidence, threshold, consequence)

    def _alignment(self, text: str, to: str, translation: str) -> list[Row]:
        if not (self.align or self.plot) or not translation.strip():
            return []
        pair = Pair(text, translation, to)
        alignment = align(self.pipeline.model, self.pipeline.tokenizer, pair)
        if self.plot:
            from regard.inspection.figures.maps import draw_alignment  # imports matplotlib

            try:
                draw_alignment(alignment.site, alignment.head, path=self.plot)
            except FileError:
                raise
            except ValueError as error:
                raise FileError(f"{self.plot}: cannot be drawn, {error}") from error
            head = f"{alignment.site.name}, head {alignment.head}"
            self.reporter.message(f"{self.plot}: {head}")
        links = alignment.links if self.align else []
        return [("", link.target, link.source, f"{link.weight:.2f}") for link in links]


class ImageAnswers(Answerer):
    """Classes of image files, one row each: file, class, probability.

    Args:
        run: a run of a vision model.
        confidence: whether to write the calibrated confidence of the first class after each.
        options: of `classify_files`.

    >>> answers = ImageAnswers(rg.load("glyphs", device="cpu"))
    >>> answers([JobInput(1, "none.png", "none.png")])[0].problems
    ('none.png: needs to be an image, got no such file',)
    """

    batch_size, columns, takes_files = 32, 0, True

    def __init__(self, run: RunContents, *, confidence: bool = False, **options: Any):
        self.run, self.confidence, self.options = run, confidence, options
        classify_files(run, [], **options)  # checks the options

    def __call__(self, inputs: Sequence[JobInput]) -> list[Answer]:
        files = classify_files(self.run, [x.text for x in inputs], **self.options)
        return [self._answer(file) for file in files]

    def _answer(self, file: ClassifiedFile) -> Answer:
        if file.error is not None:
            return Answer(problems=(str(file.error),))
        sure = format_confidence(file.prediction.confidence) if self.confidence else ()
        rows = [(str(file.path), name, f"{p:.4f}", *sure) for name, p in file.prediction]
        return Answer(rows, warnings=(file.warning,) if file.warning else ())


class AudioAnswers(Answerer):
    """Texts of audio files, one row each: file, text.

    Args:
        job: the recogniser with its options.
        confidence: whether to write the calibrated confidence after each text.

    >>> answers = AudioAnswers(TranscribeJob(rg.load("morse", device="cpu")))
    >>> answers([JobInput(1, "none.wav", "none.wav")])[0].problems
    ('none.wav: needs to be a sound file, got no such file',)
    """

    batch_size, columns, takes_files = 16, 0, True

    def __init__(self, job: TranscribeJob, *, confidence: bool = False):
        self.job, self.confidence = job, confidence

    def __call__(self, inputs: Sequence[JobInput]) -> list[Answer]:
        answers, text = list[Answer](), ""
        for chunk in self.job.files([x.text for x in inputs]):
            text += chunk.text
            if chunk.is_last:
                answers.append(self._answer(chunk, text))
                text = ""
        return answers

    def _answer(self, chunk: TranscriptChunk, text: str) -> Answer:
        if chunk.error is not None:
            return Answer(problems=(str(chunk.error),))
        sure = format_confidence(chunk.confidence) if self.confidence else ()
        notes = tuple(f"{chunk.path}: {note}" for note in chunk.notes)
        problems, notes = ((), notes) if chunk.is_complete else (notes, ())
        warnings = (chunk.warning,) if chunk.warning else ()
        return Answer([(str(chunk.path), text, *sure)], problems, warnings, notes)


def make_answers(run: RunContents, *, confidence: bool = False, **options: Any) -> Answerer:
    """The answers of a run, by the verb of its task; options are those of the verb.

    >>> type(make_answers(rg.load("morse", device="cpu"))).__name__
    'AudioAnswers'
    """
    if run.recipe is None or has_own_apply(run) or run.data.verb == "generate":
        return TaskAnswers(run, confidence=confidence, **options)
    make: dict[str, Callable[..., Answerer]] = {
        "translate": lambda to=(), **x: TranslationAnswers(
            TranslationPipeline(run, to, **x), confidence=confidence
        ),
        "classify": partial(ImageAnswers, run, confidence=confidence, top=1),
        "transcribe": lambda **x: AudioAnswers(TranscribeJob(run, **x), confidence=confidence),
    }
    try:
        return make[run.data.verb](**options)
    except TypeError as error:  # an option that the task does not have
        raise ConfigError(f"option: needs one of {run.data.verb}, got {error}") from error


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
