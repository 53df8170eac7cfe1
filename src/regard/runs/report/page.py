"""The report of a run, a document of the page; what a task does not have is left out."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from regard.decode import Sampling
from regard.errors import counted
from regard.files import read_text, write_text
from regard.page.document import (
    Block,
    bullets,
    chart,
    code,
    confusions,
    document_page,
    heat_map,
    mark,
    picture,
    table,
    text,
    tiles,
)  # fmt: skip
from regard.runs.contents import BASELINE, RECIPE_TOML, RunContents
from regard.runs.evaluate import EvaluatedAnswer
from regard.runs.report.attention import attention_examples
from regard.runs.report.facts import CARD_FILE, RunFacts, collect_facts, model_card
from regard.runs.settings import iter_settings
from regard.tasks import LanguageTask, generate_run
from regard.tasks.data_report import MAX_VALUES
from regard.tasks.pipeline import shorten
from regard.train.process import format_duration

REPORT_FILE = "report.html"
MAX_POINTS = 400  # of a curve
SHOWN, TILES = 15, 4  # mistakes and samples; scores that are shown large
PROMPT, NEW_TOKENS = 16, 80  # tokens of a language model's samples
LOGARITHMIC = ("loss", "gradient norm", "loss scale (fp16)")  # curves, where they span much
MAX_TEXT = 400  # characters of an input or an output


def report_run(run: RunContents, path: str | Path | None = None) -> Path:
    """Write the report of a run as one HTML file and, in the run's folder, its model card CARD.md.

    The page needs no network: scores with 95% intervals, curves, mistakes, samples, a table of
    confusions, attention of examples, cost, data and settings, as far as the task has them. The
    test split is evaluated for it.

    Args:
        run: the run.
        path: of the page, without a card; None is report.html in the run's folder.

    >>> import tempfile
    >>> run = rg.load("glyphs", device="cpu")
    >>> report_run(run, Path(tempfile.mkdtemp()) / "glyphs.html").name
    'glyphs.html'
    """
    facts = collect_facts(run)
    if path is None:
        path = (run.folder or Path()) / REPORT_FILE
        write_text(path.with_name(CARD_FILE), model_card(facts))
    return write_text(Path(path), render_page(facts))


def render_page(facts: RunFacts) -> str:
    """The HTML of a report."""
    sections: dict[str, list[Block]] = {
        "Scores": _scores(facts),
        "Curves": _curves(facts.run.metrics, facts.run.result),
        "Mistakes": _mistakes(facts),
        "Samples": _samples(facts),
        "Confusions": [] if (confusion := facts.confusion()) is None else [confusions(*confusion)],
        "Attention": _attention(facts),
        "Cost": _cost(facts),
        "Data": _data(facts),
        "Limits": [bullets(facts.limits())],
        "Use": [code(x) for x in facts.usage()],
        "Settings": _settings(facts),
    }
    return document_page(facts.title, f"{facts.verdict} {summary(facts)}".strip(), sections)


def summary(facts: RunFacts) -> str:
    """Task, model and training in one sentence."""
    run, result = facts.run, facts.run.result
    kind = type(run.model).__name__
    sentence = f"Task {run.data.name}: a {kind} of {facts.parameters:,} parameters"
    if not result:
        return f"{sentence}, not finished."
    if result["reason"] == BASELINE:
        return f"{sentence}, fitted in {format_duration(result['seconds'])}."
    sentence += f", trained for {result['step']:,} updates in {format_duration(result['seconds'])}"
    sentence += f" ({result['reason']})" if result["reason"] != "finished" else ""
    step = result.get("weights_step", result["step"])
    if step is None:
        return f"{sentence}; the mean of the last checkpoints."
    return (
        f"{sentence}; the best weights, of update {step:,}."
        if step < result["step"]
        else f"{sentence}."
    )


def _scores(facts: RunFacts) -> list[Block]:
    rows = facts.score_rows()
    if not rows:
        return [text(facts.problem or "No evaluation yet.")]
    count = counted(len(facts.answers), "test example") if facts.answers else "the test split"
    blocks = [text(f"On {count}.")]
    if facts.problem:
        blocks.append(text(f"Not evaluated again: {facts.problem}"))
    blocks.append(tiles([row[:3] for row in rows if row[0] != "loss"][:TILES]))
    columns = ("score", "test", "95% interval", "valid")
    blocks.append(table("Scores on held-out data", columns, rows, numbers=(1, 2, 3)))
    if any(row[2] for row in rows):
        blocks.append(text("Intervals: bootstrap over the examples, 1,000 resamples.", soft=True))
    if signature := (facts.run.result.get("test") or {}).get("signature", ""):
        blocks.append(text(signature, soft=True))
    return blocks


def _curves(metrics: list[dict[str, Any]], result: dict[str, Any]) -> list[Block]:
    def points(key: str) -> list[tuple[float, float]]:
        known = [(x["step"], x[key]) for x in metrics if isinstance(x.get(key), int | float)]
        step = -(-len(known) // MAX_POINTS) or 1
        return known[:-1:step] + known[-1:]

    names = dict.fromkeys(key for line in metrics for key in line if key.startswith("valid_"))
    curves = {"loss": {"train": "loss", "valid": "valid_loss"}}
    curves |= {x.removeprefix("valid_"): {"valid": x} for x in names if x != "valid_loss"}
    curves |= {"learning rate": {"lr": "lr"}, "gradient norm": {"norm": "grad_norm"}}
    curves |= {"loss scale (fp16)": {"scale": "loss_scale"}}
    best = result.get("weights_step", 0)  # none for an average, and of earlier versions
    best = best if best and best != result["step"] else None
    blocks = []
    for title, keys in curves.items():
        series = {name: known for name, key in keys.items() if (known := points(key))}
        if series and len(next(iter(series.values()))) > 1:
            is_log = title in LOGARITHMIC
            blocks.append(chart(title, series, x_label="update", at=best, log=is_log))
    if blocks and best:
        blocks.append(text(f"The dotted line is update {best}, of the stored weights.", soft=True))
    if blocks and (warnings := result.get("warnings")):
        blocks.insert(0, bullets([f"Warning: {line}." for line in warnings]))
    return blocks


def _mistakes(facts: RunFacts) -> list[Block]:
    wrong = facts.mistakes
    if not facts.answers:
        return []
    if not wrong:
        return [text(f"None on {counted(len(facts.answers), 'example')}.")]
    sure = ", those of the highest confidence first" if wrong[0].confidence is not None else ""
    shown = f"{len(wrong):,} of {len(facts.answers):,}{sure}."
    return [text(shown), _outputs(facts, "Incorrect outputs", wrong[:SHOWN])]


def _samples(facts: RunFacts) -> list[Block]:
    if facts.answers:
        about = text("The first test examples, not selected.")
        return [about, _outputs(facts, "Outputs", facts.answers[:SHOWN])]
    if not isinstance(facts.run.data, LanguageTask) or facts.run.tokenizer is None:
        return []
    row: list[int] = getattr(facts.evaluator, "row", torch.empty(0)).tolist()
    starts = [row[start : start + PROMPT] for start in (0, len(row) // 2)]
    sampling = Sampling(temperature=0.8, top_k=50)
    blocks = []
    for prompt in filter(None, map(facts.run.tokenizer.decode, starts)):
        pieces = generate_run(facts.run, prompt, max_new_tokens=NEW_TOKENS, sampling=sampling)
        blocks.append(code("".join(pieces), prompt))
    about = f"Starts of held-out texts in bold, continued by {NEW_TOKENS} tokens, temperature 0.8."
    return [text(about), *blocks] if blocks else []


def _outputs(facts: RunFacts, caption: str, answers: Sequence[EvaluatedAnswer]) -> Block:
    images = getattr(facts.evaluator, "images", None)
    numbers = {id(answer): n for n, answer in enumerate(facts.answers)}
    columns, rows = ["input", "reference", "output", "verdict"], []
    if answers[0].confidence is not None:
        columns.append("confidence")
    for answer in answers:
        source: str | Block = shorten(str(answer.source), MAX_TEXT)
        if isinstance(images, Tensor):
            source = picture(_png(images[numbers[id(answer)]]), str(answer.source))
        texts = (shorten(str(x), MAX_TEXT) for x in (answer.reference, answer.prediction))
        row = [source, *texts, mark(answer.is_correct)]
        rows.append(row if answer.confidence is None else [*row, f"{answer.confidence:.3f}"])
    return table(caption, columns, rows, numbers=(4,))


def _attention(facts: RunFacts) -> list[Block]:
    examples = [] if facts.evaluator is None else attention_examples(facts)
    if not examples:
        return []
    has_images = examples[0].image is not None
    note = "One row per query, one column per key; point at a cell for its weight."
    note = "The weight of each patch, relative to the largest." if has_images else note
    blocks = [text(note, soft=True)]
    for title, rows, columns, weights, image in examples:
        beside = None if image is None else picture(_png(image), "input")
        blocks.append(heat_map(title, rows, columns, weights, beside=beside))
    return blocks


def _cost(facts: RunFacts) -> list[Block]:
    if facts.cost is None:
        return [text(f"{facts.parameters:,} parameters.")]
    about = (
        f"{facts.parameters:,} parameters ({4 * facts.parameters / 1e6:,.1f} MB in float32); "
        f"{facts.cost.flops:,} floating-point operations per forward pass "
        f"({facts.cost.input_sizes})."
    )
    rows = [
        (part.name, part.formula, f"{part.multiply_adds:,}", f"{part.parameters:,}")
        for part in facts.cost.parts
    ]
    columns = ("part", "formula", "multiply-adds", "parameters")
    return [text(about), table("Cost by part", columns, rows, numbers=(2, 3))]


def _data(facts: RunFacts) -> list[Block]:
    report = facts.data
    if report is None:
        return []
    splits = list(report.sizes)
    rows: list[Sequence[str]] = [("examples", *(f"{report.sizes[split]:,}" for split in splits))]
    for name, by_split in report.lengths.items():
        label = f"{name}, {report.units[name]}" if name != report.units[name] else name
        shown = (by_split.get(split) for split in splits)
        cells = ("" if x is None else f"{x.median:,g} / {x.p95:,g} / {x.max:,g}" for x in shown)
        rows.append((f"{label} (median / 95% / max)", *cells))
    for name, by_split in report.counts.items():
        rest = len(report.values(name)) - MAX_VALUES
        for value, _ in report.values(name).most_common(MAX_VALUES):
            rows.append((f"{name} {value}", *(f"{by_split[split][value]:,}" for split in splits)))
        if rest > 0:
            rows.append((f"{name}: {rest:,} more", *("" for _ in splits)))
    files = ", ".join(report.files[:6]) + (" …" if len(report.files) > 6 else "")
    blocks = [
        text(files),
        table("The data by split", ("number", *splits), rows, numbers=range(1, 4)),
    ]
    if report.skipped.skipped:
        blocks.append(text(str(report.skipped)))
    if warnings := [f"Warning: {line}." for line in report.warnings()]:
        blocks.append(bullets(warnings))
    return blocks


def _settings(facts: RunFacts) -> list[Block]:
    rows = [(name, str(value)) for name, value in iter_settings(facts.run.recipe)]
    file = (facts.run.folder or Path()) / RECIPE_TOML
    blocks = [code(read_text(file))] if file.is_file() else []
    caption = f"All {counted(len(rows), 'setting')}"
    return [*blocks, table(caption, ("setting", "value"), rows, fold=True)]


def _png(image: Tensor) -> bytes:
    """A uint8 image as PNG."""
    pixels, buffer = image.permute(1, 2, 0).numpy(), BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()
