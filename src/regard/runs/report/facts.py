"""What a report and a model card state about a run; the card as Markdown for the Hub."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.costs import Cost, cost
from regard.errors import RegardError, counted
from regard.ops.maybe_none import MaybeNone
from regard.runs.contents import BASELINE, RunContents
from regard.runs.evaluate import EvaluatedAnswer, Evaluation, evaluate_model
from regard.runs.settings import iter_settings
from regard.runs.text_model import TextModel
from regard.tasks import DataReport, LanguageTask, inspect_data
from regard.tasks.pipeline import require_verb
from regard.tasks.tagging import TaggedText
from regard.tasks.verb import Prompt, Text

CARD_FILE = "CARD.md"
SETTINGS = ("lr", "schedule", "warmup", "weight_decay", "seed", "monitor", "final", "precision")
MAX_DATA_BYTES = 50_000_000  # larger data is not read again for the data section
MAX_CLASSES = 40  # of a confusion table
COST_TOKENS = 64  # input and output length that the cost of a text model is stated for


@dataclass(frozen=True)
class RunFacts:
    """A run with its evaluation on the test split, its data and its cost.

    `evaluation` and `data` are None where the data cannot be read any more (`problem` says why);
    `data` also for tasks without files of their own, and for large ones.

    >>> run = rg.load("glyphs", device="cpu")
    >>> collect_facts(run, rg.runs.Evaluation("test", {}, [])).parameters > 100_000
    True
    """

    run: RunContents
    evaluator: Any
    evaluation: Evaluation | MaybeNone
    data: DataReport | None
    cost: Cost | None
    problem: str = ""

    @property
    def title(self) -> str:
        """The name of the run's folder."""
        return self.run.folder.name if self.run.folder else self.run.recipe.name

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        return sum(p.numel() for p in self.run.model.parameters())

    @property
    def answers(self) -> list[EvaluatedAnswer]:
        """The answers to all test examples; none for a task without single answers."""
        return self.evaluation.answers if self.evaluation else []

    @property
    def mistakes(self) -> list[EvaluatedAnswer]:
        """The incorrect answers, those of the highest confidence first."""
        wrong = self.evaluation.mistakes if self.evaluation else []
        return sorted(wrong, key=lambda answer: -(answer.confidence or 0.0))

    @property
    def verdict(self) -> str:
        """Whether the model is better than its baseline, and what twice the data may bring."""
        baseline = self.run.result.get("baseline", {})
        lines = [line for x in ("verdict", "curve") if (line := baseline.get(x))]
        rows = [row for row in self.score_rows() if row[0] != "loss" and row[1]]
        if not lines and rows:
            name, value, edges, _ = rows[0]
            interval = f" ({edges})" if edges else ""
            lines = [f"{name} {value}{interval} on the test split, compared with no baseline"]
        return " ".join(f"{line[0].upper()}{line[1:]}." for line in lines)

    def score_rows(self) -> list[tuple[str, str, str, str]]:
        """Name, test score, its 95% interval and validation score, as text."""
        result = self.run.result
        test = self.evaluation.scores if self.evaluation else result.get("test", {})
        valid, rows = result.get("valid", {}), []
        intervals = self.evaluation.intervals if self.evaluation else {}
        for name, value in test.items():
            if isinstance(value, int | float):
                edges = "{:.4g} to {:.4g}".format(*intervals[name]) if name in intervals else ""
                other = f"{valid[name]:.4g}" if isinstance(valid.get(name), int | float) else ""
                rows.append((name, f"{value:.4g}", edges, other))
        return rows

    def confusion(self) -> tuple[list[str], list[list[int]]] | None:
        """Names of the classes and counts by (reference, prediction); None without classes."""
        pairs = [(answer.reference, answer.prediction) for answer in self.answers]
        if pairs and isinstance(pairs[0][0], TaggedText):
            words = ((a, b) for row in pairs for a, b in zip(*row, strict=True))
            pairs = [(a[1], b[1]) for a, b in words]
        names: list[str] = list(getattr(self.run.data, "class_names", ()))
        if not names or len(names) > MAX_CLASSES or not {x for y in pairs for x in y} <= {*names}:
            return None
        counts = [[0] * len(names) for _ in names]
        for reference, prediction in pairs:
            counts[names.index(reference)][names.index(prediction)] += 1
        return (names, counts) if pairs else None

    def limits(self) -> list[str]:
        """What the model was not trained for, and what its confidence flags."""
        lines, config = [], getattr(self.run.model, "config", object())
        if isinstance(self.run.data, LanguageTask):
            length = getattr(self.run.data, "length", None)
            lines += [f"Trained on windows of {length} tokens."] if length else []
        elif self.data:
            longest = {name: x["train"] for name, x in self.data.lengths.items() if "train" in x}
            sizes = (f"{x.max:,g} {self.data.units[name]} ({name})" for name, x in longest.items())
            lines += [f"Longest training example: {', '.join(sizes)}."] if longest else []
        if getattr(config, "positions", "") == "learned":
            count = getattr(config, "max_positions", 0)
            lines.append(f"At most {counted(count, 'token')}: it has no positions beyond.")
        names = getattr(self.run.data, "class_names", ())
        if names:
            shown = ", ".join(names[:MAX_CLASSES]) + (" …" if len(names) > MAX_CLASSES else "")
            lines.append(f"Every input is given one of {len(names)} classes: {shown}.")
        lines.append(self._confidence())
        test = len(self.answers)
        if 0 < test < 200:
            lines.append(f"The test split has {test} examples only: see the intervals.")
        lines += [f"Training: {line}." for line in self.run.result.get("warnings", [])]
        if self.data:
            lines += [f"Data: {line}." for line in self.data.warnings()]
        return lines

    def _confidence(self) -> str:
        calibration = self.run.calibration
        if calibration is None:
            return "Its confidence is not calibrated: no answer is flagged as doubtful."
        text = f"Answers with a confidence below {calibration.threshold:.2f} are flagged"
        known = [x for x in self.answers if x.confidence is not None]
        flagged = [x for x in known if (x.confidence or 0) < calibration.threshold]
        if not known:
            return f"{text}."
        wrong, right = (sum(x.is_correct == kind for x in known) for kind in (False, True))
        caught = sum(not x.is_correct for x in flagged)
        return (
            f"{text}: on the test split {caught} of {wrong} incorrect answers and "
            f"{len(flagged) - caught} of {right} correct ones."
        )

    def usage(self) -> tuple[str, str]:
        """How to use the run: a command, and Python."""
        task, place = self.run.data, self.run.folder or self.title
        given, options = task.example(self.run)
        shown = json.dumps(given, ensure_ascii=False)
        is_list = isinstance(task.reads, Text) and not isinstance(task.reads, Prompt)
        values = "".join(f", {name}={json.dumps(x)}" for name, x in options.items())
        flags = "".join(f" --{name} {x}" for name, x in options.items())
        return (
            f"regard {task.verb} {place} {given if task.reads.is_file else shown}{flags}",
            f'import regard as rg\n\nrun = rg.load("{place}")\n'
            f"run.{task.verb}({f'[{shown}]' if is_list else shown}{values})",
        )


def collect_facts(
    run: RunContents, evaluation: Evaluation | None = None, evaluator: Any = None
) -> RunFacts:
    """The facts of a run; its model is evaluated on the test split unless `evaluation` is given.

    >>> run = rg.load("glyphs", device="cpu")
    >>> collect_facts(run, rg.runs.Evaluation("test", {"accuracy": 0.9}, [])).title
    'glyphs'
    """
    require_verb(run, "evaluate")
    problem = ""
    try:
        known = evaluation
        if known is None and run.result:
            intervals = run.result.get("intervals", {})
            known = Evaluation("test", run.result["test"], [], intervals=intervals)
        if isinstance(run.data, LanguageTask) and known is not None:
            # without single answers: the scores of the training are enough
            evaluator, evaluation = run.data.evaluator(run.tokenizer, "valid"), known
        elif evaluator is None:
            evaluator = run.data.evaluator(run.tokenizer, "test")
        if evaluation is None:
            evaluation = evaluate_model(
                run.model, evaluator, "test", run.data.is_correct, run.calibration
            )
    except RegardError as error:  # such as data that has moved
        problem = str(error)
    data = None if problem else _inspect(run)
    return RunFacts(run, evaluator, evaluation, data, _cost(run), problem)


def _inspect(run: RunContents) -> DataReport | None:
    try:
        files = run.data.contents().files
        if sum(size for path in files for size in _sizes(Path(path))) > MAX_DATA_BYTES:
            return None
        return inspect_data(run.data)
    except RegardError:  # a task without files of its own
        return None


def _sizes(path: Path) -> Iterator[int]:
    files = path.rglob("*") if path.is_dir() else [path]
    yield from (file.stat().st_size for file in files if file.is_file())


def _cost(run: RunContents) -> Cost | None:
    reads_tokens = TextModel.supports(run.model)
    length = getattr(run.data, "length", COST_TOKENS) if reads_tokens else None
    try:
        return cost(run.model, length, COST_TOKENS)
    except RegardError:  # a model of an own kind
        return None


def model_card(facts: RunFacts) -> str:
    """What a model is, what it was trained and tested on, its limits and its use.

    >>> scores = rg.runs.Evaluation("test", {"accuracy": 0.9}, [])
    >>> card = model_card(rg.runs.collect_facts(rg.load("glyphs", device="cpu"), scores))
    >>> card.splitlines()[0], "## Limits" in card
    ('---', True)
    """
    run, recipe = facts.run, facts.run.recipe
    tag = run.data.hub_tag
    head = ["library_name: regard", *([f"pipeline_tag: {tag}"] if tag else [])]
    command, code = facts.usage()
    result = run.result
    training = [f"- {facts.parameters:,} parameters, {type(run.model).__name__}"]
    training += [f"- {x.summary}" for x in run.model.modules() if hasattr(x, "summary")]
    changed, names = dict(iter_settings(recipe.train)), SETTINGS
    if result.get("reason") == BASELINE:
        training.append(f"- fitted in {result['seconds']:,.0f} s")
        names = ("seed", "monitor")
    elif result:
        training.append(f"- {result['step']:,} updates in {result['seconds']:,.0f} s")
    training += [f"- {name}: {json.dumps(changed[name])}" for name in names]
    data = [f"Task `{run.data.name}`, recipe `{recipe.name}`."]
    if facts.data is not None:
        data += ["", "```text", facts.data.summary(), "```"]
    scores = _table(("score", "test", "95% interval", "valid"), facts.score_rows())
    examples = f" of {counted(len(facts.answers), 'example')}" if facts.answers else ""
    sections = {
        "Use": ["```sh", command, "```", "", "```python", code, "```"],
        "Scores": [f"On the test split{examples}.", "", *scores],
        "Data": data,
        "Limits": [f"- {line}" for line in facts.limits()],
        "Training": [*training, "", "All settings are in `recipe.json`."],
    }
    lines = ["---", *head, "---", "", f"# {facts.title}"]
    lines += ["", facts.verdict] if facts.verdict else []
    for name, body in sections.items():
        lines += ["", f"## {name}", "", *body]
    return "\n".join(lines) + "\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]
