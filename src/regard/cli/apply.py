"""Commands that apply a run, derived from what each task declares: `regard VERB` and `apply`."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.tasks.verb import (
    InputKind,
    Option,
    Prompt,
    SoundFile,
    TaskOptions,
    Text,
    Verb,
    options_of,
)

if TYPE_CHECKING:
    from regard.runs import Run
    from regard.tasks import Pipeline

RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="Run folder or name of a pretrained model.")
]
Values = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="Option of the task: to=de,fr or max_new_tokens=50."),
]
Out = Annotated[Path | None, typer.Option(help="Output file; standard output if not given.")]
Format = Annotated[
    str | None,
    typer.Option("--format", help="lines, tsv or po; by the file's suffix if not given."),
]
Jobs = Annotated[int, typer.Option(help="Processes, of one thread each, for files.")]
Confidence = Annotated[
    bool, typer.Option("--confidence", help="Write the confidence after each output.")
]
Prompts = Annotated[
    str | None,
    typer.Option(help="File with one prompt per line, or -: writes one JSON string per line."),
]
Rate = Annotated[
    int | None, typer.Option(help="Sample rate of standard input; the model's if not given.")
]
Chunk = Annotated[float, typer.Option(help="Seconds of live audio per chunk.")]


def apply(
    run_name: RunName,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INPUT]…",
            help="Texts, one file of lines, or - for standard input; images or sounds by name.",
        ),
    ] = None,
    values: Values = None,
    out: Out = None,
    file_format: Format = None,
    jobs: Jobs = 1,
    confidence: Confidence = False,
) -> None:
    """Apply a run of any task to inputs. Prints one line per input.

    The command of the task, such as `regard translate` or `tag`, does the same, with more options.
    A .tsv gets more columns. After Ctrl-C the same command continues an output file.
    """
    from regard.runs import load

    run = load(run_name)
    pipeline = run.parse_pipeline(_texts(values))
    source = read_inputs(pipeline.task.reads, inputs or [], file_format)
    raise typer.Exit(run_job(run, pipeline, source, out, file_format, jobs, confidence))


def command_from(verb: type[Verb]) -> Callable[..., None]:
    """The command of a verb: its parameters are the run, the inputs, the options, and the job's."""
    parameters = {x.name: _parameter(x) for x in options_of(verb.Options)}
    shared = [*_shared_parameters(verb).items()]  # the run and the inputs first

    def command(**given: Any) -> None:
        texts = _texts(given.pop("values"))
        values = {name: given.pop(name) for name in parameters}
        for x in options_of(verb.Options):
            values[x.name] = x.parse(values[x.name]) if x.is_list else values[x.name]
            if x.name in texts:
                values[x.name] = x.parse(texts.pop(x.name))
        verb.Options.make(f"task {verb.verb}", texts)  # refuses what is left
        raise typer.Exit(_run_verb(verb, verb.Options(**values), **given))

    command.__doc__ = verb.help()
    signature = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, (hint, default) in [*shared[:2], *parameters.items(), *shared[2:]]
    ]
    command.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    return command


def _parameter(x: Option) -> tuple[Any, Any]:
    """Annotation and default of an option on the command line."""
    flag = f"--{(x.flag or x.name).replace('_', '-')}"
    if x.type is bool and not x.is_list:
        flag = f"{flag}/--no-{flag[2:]}" if x.default else flag
    default = x.default if x.command is None else x.command
    kind: Any = str if x.is_list or x.choices else x.type
    if x.is_list:
        default = ",".join(map(str, default or ()))
    elif x.is_optional and default is None:
        kind = kind | None
    hint = Annotated[kind, typer.Option(flag, help=x.help)]
    return hint, inspect.Parameter.empty if x.is_required else default


def _shared_parameters(verb: type[Verb]) -> dict[str, tuple[Any, Any]]:
    """Annotations and defaults of what commands have beside the options, by kind of input."""
    kind, required = verb.reads, inspect.Parameter.empty
    argument = typer.Argument(metavar=kind.metavar, help=kind.help)
    jobs: dict[str, Any] = {"out": (Out, None), "jobs": (Jobs, 1), "values": (Values, None)}
    if isinstance(kind, Prompt):
        own = {"inputs": (Annotated[str, argument], ""), "prompts": (Prompts, None)}
    elif kind.is_file:
        own = {"inputs": (Annotated[list[str], argument], required)}
        own |= {"rate": (Rate, None), "chunk": (Chunk, 0.1)} if _is_live(verb) else {}
        jobs |= {"confidence": (Confidence, False)}
    else:
        own = {"inputs": (Annotated[list[str] | None, argument], None)}
        jobs |= {"confidence": (Confidence, False), "file_format": (Format, None)}
    return {"run_name": (RunName, required), **own, **jobs}


def _is_live(verb: type[Verb]) -> bool:
    """Whether it reads a stream of sound."""
    return verb.can_stream and isinstance(verb.reads, SoundFile)


def _run_verb(
    verb: type[Verb],
    options: TaskOptions,
    run_name: str,
    inputs: Any,
    out: Path | None,
    jobs: int,
    *,
    confidence: bool = False,
    file_format: str | None = None,
    prompts: str | None = None,
    rate: int | None = None,
    chunk: float = 0.1,
) -> int:
    """Apply a run with options; the exit code."""
    from regard.errors import ConfigError
    from regard.runs import load
    from regard.tasks.pipeline import require_verb

    kind = verb.reads
    if isinstance(kind, Prompt):
        if prompts is not None and inputs:
            raise ConfigError("prompt: needs to be unset with --prompts, got a text")
        if prompts is None and out is not None:
            raise ConfigError("out: needs --prompts FILE, got a prompt alone; try > FILE")
    is_job = prompts is not None or not isinstance(kind, Prompt)
    listed = inputs or [] if prompts is None else [prompts]
    source = read_inputs(kind, listed, file_format) if is_job else {}
    is_text = isinstance(kind, Text) and not isinstance(kind, Prompt)
    run = load(run_name, device=None if is_text else "cpu")
    require_verb(run, verb.verb)
    if _is_live(verb):
        import torch

        from regard.cli.output import print_live, print_transcript

        torch.set_num_threads(1)  # the work per chunk is too small to share
        pipeline = run.data.pipeline(run, options)
        if "-" in inputs:
            return print_live(pipeline, inputs, rate, chunk)
        if len(inputs) == 1 and out is None and not confidence:
            return print_transcript(pipeline, inputs[0])
    pipeline = run.data.pipeline(run, options)
    if not is_job:
        return _continue(pipeline, inputs)
    return run_job(run, pipeline, source, out, file_format, jobs, confidence)


def _continue(pipeline: "Pipeline", prompt: str) -> int:
    """Print a text with its continuation, as it is generated."""
    import sys

    from regard.files import read_text

    if prompt == "-":
        prompt = read_text("standard input", sys.stdin.buffer.read())
    pieces = pipeline.stream(prompt)
    print(prompt, end="", flush=True)
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    finally:  # also on Ctrl-C
        print()
    return 0


def run_job(
    run: "Run",
    pipeline: "Pipeline",
    source: dict[str, Any],
    out: Path | None,
    file_format: str | None,
    jobs: int,
    confidence: bool,
) -> int:
    """Answer the inputs that `read_inputs` gives; the exit code."""
    import sys

    from regard.cli.output import TerminalReporter, exit_code, print_message
    from regard.files import file_descriptor
    from regard.runs import FileJob, TaskAnswers, run_identity

    job = FileJob(
        answers=TaskAnswers(pipeline, confidence=confidence),
        out=sys.stdout if out is None or file_descriptor(out) == 1 else out,
        file_format=file_format,
        jobs=jobs,
        identity=run_identity(run, confidence=confidence, **pipeline.options.as_dict()),
        verb=pipeline.task.verb,
        reporter=TerminalReporter(),
        **source,
    )
    report = job.run()
    if summary := pipeline.summary():
        print_message(summary)
    return exit_code(report.inputs, report.failed, report.problems + report.warnings)


def read_inputs(kind: InputKind, arguments: list[str], file_format: str | None) -> dict[str, Any]:
    """`inputs` or `file` of a FileJob: files by name; texts, one file, or - for standard input."""
    import sys

    from regard.errors import ConfigError, FileError
    from regard.runs.apply.file_job import FORMATS

    if kind.is_file or len(arguments) > 1:
        return {"inputs": arguments}
    if not arguments and sys.stdin.isatty():
        raise ConfigError("text: needs a text, a file or - for standard input, got none")
    if arguments in ([], ["-"]):
        return {"file": sys.stdin.buffer}
    file = Path(arguments[0])
    if _is_file(file):
        return {"file": file}
    if file.suffix in (".po", ".tsv", ".txt") or file_format in FORMATS:
        raise FileError(f"{file}: needs to be a file, got no such file")
    return {"inputs": arguments}


def read_input(text: str) -> str:
    """A text, or that of a file or of standard input for -, without its last line break."""
    import sys

    from regard.files import read_text

    if text == "-":
        return read_text("standard input", sys.stdin.buffer.read()).removesuffix("\n")
    is_named = text.endswith(".txt") and not any(map(str.isspace, text))
    return read_text(text).removesuffix("\n") if is_named or _is_file(Path(text)) else text


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text too long to be a file name
        return False


def _texts(values: list[str] | None) -> dict[str, str]:
    """Options that were given as name=value."""
    from regard.errors import ConfigError

    pairs = dict[str, str]()
    for text in values or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"option: needs name=value, got {text!r}; try {name}=…")
        pairs[name] = value
    return pairs
