"""The report of a run: one HTML page without scripts; what a task does not have is left out."""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from regard.decode import Sampling
from regard.files import fill_page, read_text, write_text
from regard.runs.apply.generate import generate_run
from regard.runs.contents import RECIPE_TOML, RunContents
from regard.runs.evaluate import EvaluatedAnswer, Evaluation
from regard.runs.report.attention import attention_examples
from regard.runs.report.card import CARD_FILE, model_card
from regard.runs.report.charts import Series, attention_map, line_chart
from regard.runs.report.facts import RunFacts, collect_facts
from regard.runs.settings import iter_settings
from regard.tasks.data_report import MAX_VALUES
from regard.train.progress import format_duration

REPORT_FILE = "report.html"
TEMPLATE = Path(__file__).with_name("page.html")
MAX_POINTS = 400  # of a curve
SHOWN, TILES = 15, 4  # mistakes and samples; scores that are shown large
PROMPT, NEW_TOKENS = 16, 80  # tokens of a language model's samples
LOGARITHMIC = ("loss", "gradient norm", "loss scale (fp16)")  # curves, where they span much
MAX_TEXT = 400  # characters of a source or an answer


def report_run(
    run: RunContents,
    path: str | Path | None = None,
    *,
    evaluation: Evaluation | None = None,
    evaluator: Any = None,
) -> Path:
    """Write the report of a run as one HTML file and, in the run's folder, its model card CARD.md.

    The page needs no network and has no scripts: scores with 95% intervals, curves, mistakes,
    samples, a table of confusions, attention of examples, cost, data and settings, as far as the
    task has them. The test split is evaluated for it.

    Args:
        run: the run.
        path: of the page, without a card; None is report.html in the run's folder.
        evaluation, evaluator: of the test split, if they are known already.

    >>> import tempfile
    >>> run = rg.load("glyphs", device="cpu")
    >>> report_run(run, Path(tempfile.mkdtemp()) / "glyphs.html").name
    'glyphs.html'
    """
    facts = collect_facts(run, evaluation, evaluator)
    if path is None:
        path = (run.folder or Path()) / REPORT_FILE
        write_text(path.with_name(CARD_FILE), model_card(facts))
    return write_text(Path(path), render_page(facts))


def render_page(facts: RunFacts) -> str:
    """The HTML of a report."""
    sections = {
        "Scores": _scores(facts),
        "Curves": _curves(facts.run.metrics, facts.run.result),
        "Mistakes": _mistakes(facts),
        "Samples": _samples(facts),
        "Confusions": _confusions(facts),
        "Attention": _attention(facts),
        "Cost": _cost(facts),
        "Data": _data(facts),
        "Limits": _list(facts.limits()),
        "Use": "".join(f"<pre><code>{escape(text)}</code></pre>" for text in facts.usage()),
        "Settings": _settings(facts),
    }
    sections = {name: html for name, html in sections.items() if html}
    parts = {
        "SUMMARY": escape(summary(facts)),
        "LINKS": "".join(f'<a href="#{name.lower()}">{name}</a>' for name in sections),
        "SECTIONS": "\n".join(
            f'<section aria-labelledby="{name.lower()}"><h2 id="{name.lower()}">{name}</h2>'
            f"{html}</section>"
            for name, html in sections.items()
        ),
        "VERSION": escape(version("regard")),
    }
    return fill_page(TEMPLATE, facts.title, parts)


def summary(facts: RunFacts) -> str:
    """Task, model and training in one sentence."""
    run, result = facts.run, facts.run.result
    kind = type(run.model).__name__
    text = f"Task {run.data.name}: a {kind} of {facts.parameters:,} parameters"
    if not result:
        return f"{text}, not finished."
    text += f", trained for {result['step']:,} updates in {format_duration(result['seconds'])}"
    text += f" ({result['reason']})" if result["reason"] != "finished" else ""
    step = result.get("weights_step", result["step"])
    if step is None:
        return f"{text}; the mean of the last checkpoints."
    return f"{text}; the best weights, of update {step:,}." if step < result["step"] else f"{text}."


def _scores(facts: RunFacts) -> str:
    rows = facts.score_rows()
    count = f"{len(facts.answers):,} test examples" if facts.answers else "the test split"
    tiles = "".join(
        f"<li>{escape(name)}<b>{value}</b><small>{edges or '&nbsp;'}</small></li>"
        for name, value, edges, _ in [row for row in rows if row[0] != "loss"][:TILES]
    )
    if not rows:
        return f"<p>{escape(facts.problem or 'No evaluation yet.')}</p>"
    heads = ("score", "test", "95% interval", "valid")
    note = "Intervals: bootstrap over the examples, 1,000 resamples."
    problem = f"<p>Not evaluated again: {escape(facts.problem)}</p>" if facts.problem else ""
    signature = (facts.run.result.get("test") or {}).get("signature", "")
    return (
        f"<p>On {count}.</p>{problem}<ul class='tiles'>{tiles}</ul>"
        + _table("Scores on held-out data", heads, rows, numbers=(1, 2, 3))
        + (f"<p class='soft'>{note}</p>" if any(row[2] for row in rows) else "")
        + (f"<p class='soft'>{escape(signature)}</p>" if signature else "")
    )


def _curves(metrics: list[dict[str, Any]], result: dict[str, Any]) -> str:
    def series(name: str, key: str) -> list[Series]:
        points = [(x["step"], x[key]) for x in metrics if isinstance(x.get(key), int | float)]
        step = -(-len(points) // MAX_POINTS) or 1
        return [Series(name, points[:-1:step] + points[-1:])] if points else []

    charts = {"loss": series("train", "loss") + series("valid", "valid_loss")}
    names = dict.fromkeys(key for line in metrics for key in line if key.startswith("valid_"))
    for key in names:
        if key != "valid_loss" and any(isinstance(x.get(key), int | float) for x in metrics):
            charts[key.removeprefix("valid_")] = series("valid", key)
    charts |= {"learning rate": series("lr", "lr"), "gradient norm": series("norm", "grad_norm")}
    charts |= {"loss scale (fp16)": series("scale", "loss_scale")}
    charts = {name: lines for name, lines in charts.items() if lines and len(lines[0].points) > 1}
    best = result.get("weights_step", 0)  # none for an average, and of earlier versions
    best = best if best and best != result["step"] else None
    drawn = [
        line_chart(name, lines, x_label="update", mark=best, log=name in LOGARITHMIC)
        for name, lines in charts.items()
    ]
    note = f"The dotted line is update {best}, whose weights are kept." if best else ""
    note = f"<p class='soft'>{note}</p>" if note else ""
    return f"<div class='charts'>{''.join(drawn)}</div>{note}" if drawn else ""


def _mistakes(facts: RunFacts) -> str:
    wrong = facts.mistakes
    if not facts.answers:
        return ""
    if not wrong:
        return f"<p>None on {len(facts.answers):,} examples.</p>"
    sure = "those of the highest confidence first" if wrong[0].confidence is not None else ""
    shown = f"{len(wrong):,} of {len(facts.answers):,}" + (f", {sure}" if sure else "")
    return f"<p>{shown}.</p>" + _answers(facts, "Incorrect answers", wrong[:SHOWN])


def _samples(facts: RunFacts) -> str:
    if facts.answers:
        return "<p>The first test examples, not selected.</p>" + _answers(
            facts, "Answers", facts.answers[:SHOWN]
        )
    if facts.run.data.verb != "generate" or facts.run.tokenizer is None:
        return ""
    row: list[int] = getattr(facts.evaluator, "row", torch.empty(0)).tolist()
    starts = [row[start : start + PROMPT] for start in (0, len(row) // 2)]
    prompts = [facts.run.tokenizer.decode(ids) for ids in starts]
    parts = []
    for prompt in filter(None, prompts):
        sampling = Sampling(temperature=0.8, top_k=50)
        pieces = generate_run(facts.run, prompt, max_new_tokens=NEW_TOKENS, sampling=sampling)
        parts.append(f"<pre><b>{escape(prompt)}</b>{escape(''.join(pieces))}</pre>")
    about = f"Starts of held-out texts in bold, continued by {NEW_TOKENS} tokens, temperature 0.8."
    return f"<p>{about}</p>{''.join(parts)}" if parts else ""


def _answers(facts: RunFacts, caption: str, answers: Sequence[EvaluatedAnswer]) -> str:
    with_confidence = answers[0].confidence is not None
    heads = ("input", "reference", "answer", "", *(["confidence"] if with_confidence else []))
    images = getattr(facts.evaluator, "images", None)
    numbers = {id(answer): n for n, answer in enumerate(facts.answers)}
    rows = []
    for answer in answers:
        source: Any = _short(answer.source)
        if isinstance(images, Tensor):
            source = Html(_pixels(images[numbers[id(answer)]], answer.source))
        mark = Html(
            "<span class='right'>✓ correct</span>"
            if answer.is_correct
            else "<span class='wrong'>✗ wrong</span>"
        )
        row: list[Any] = [source, _short(answer.reference), _short(answer.prediction), mark]
        if answer.confidence is not None:
            row.append(f"{answer.confidence:.3f}")
        rows.append(row)
    return _table(caption, heads, rows, numbers=(4,), kind="answers")


def _confusions(facts: RunFacts) -> str:
    found = facts.confusion()
    if found is None:
        return ""
    names, counts = found
    body = []
    for i, (name, row) in enumerate(zip(names, counts, strict=True)):
        total = max(1, sum(row))
        cells = []
        for j, count in enumerate(row):
            share = f"color-mix(in srgb, var(--a) {round(70 * count / total)}%, transparent)"
            kind = ' class="hit"' if i == j else ""
            text = f"{count:,}" if count else "<span class='soft'>·</span>"
            cells.append(f'<td{kind} style="background:{share}">{text}</td>')
        body.append(f'<tr><th scope="row">{escape(name)}</th>{"".join(cells)}</tr>')
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    about = "One row per class of the reference, one column per predicted class; outlined: correct."
    return (
        f'<p class="soft">{about}</p><div class="scroll" tabindex="0" role="region" '
        f'aria-label="Confusions"><table class="confusion"><thead><tr><td></td>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _attention(facts: RunFacts) -> str:
    if facts.evaluator is None:
        return ""
    parts, examples = [], attention_examples(facts)
    for example in examples:
        svg = attention_map(example.title, example.rows, example.columns, example.weights)
        if example.image is not None:
            svg = f'<div class="beside">{_pixels(example.image, "input")}{svg}</div>'
        parts.append(f'<div class="scroll" tabindex="0" role="region" aria-label="map">{svg}</div>')
    note = "One row per query, one column per key; hover over a cell for its weight."
    images = "The weight of each patch, relative to the largest."
    note = note if not examples or examples[0].image is None else images
    return f"<p class='soft'>{note}</p>{''.join(parts)}" if parts else ""


def _cost(facts: RunFacts) -> str:
    if facts.cost is None:
        return f"<p>{facts.parameters:,} parameters.</p>"
    text = (
        f"<p>{facts.parameters:,} parameters ({4 * facts.parameters / 1e6:,.1f} MB in float32); "
        f"{facts.cost.flops:,} floating-point operations per forward pass "
        f"({escape(facts.cost.input_sizes)}).</p>"
    )
    rows = [
        (part.name, part.formula, f"{part.multiply_adds:,}", f"{part.parameters:,}")
        for part in facts.cost.parts
    ]
    heads = ("part", "formula", "multiply-adds", "parameters")
    return text + _table("Cost by part", heads, rows, numbers=(2, 3))


def _data(facts: RunFacts) -> str:
    report = facts.data
    if report is None:
        return ""
    splits = list(report.sizes)
    rows: list[Sequence[Any]] = [("examples", *(f"{report.sizes[split]:,}" for split in splits))]
    for name, by_split in report.lengths.items():
        label = f"{name}, {report.units[name]}" if name != report.units[name] else name
        shown = (by_split.get(split) for split in splits)
        cells = ("" if x is None else f"{x.median:,g} / {x.p95:,g} / {x.max:,g}" for x in shown)
        rows.append((f"{label} (median / 95% / max)", *cells))
    for name, by_split in report.counts.items():
        rest = len(report.values(name)) - MAX_VALUES
        for value, _ in report.values(name).most_common(MAX_VALUES):
            cells = (f"{by_split[split][value]:,}" for split in splits)
            rows.append((f"{name} {value}", *cells))
        if rest > 0:
            rows.append((f"{name}: {rest:,} more", *("" for _ in splits)))
    files = ", ".join(report.files[:6]) + (" …" if len(report.files) > 6 else "")
    skipped = (
        f"<p class='lines'>{escape(str(report.skipped))}</p>" if report.skipped.skipped else ""
    )
    return (
        f"<p>{escape(files)}</p>"
        + _table("The data by split", ("", *splits), rows, numbers=range(1, 4))
        + skipped
        + _list(f"Warning: {line}." for line in report.warnings())
    )


def _settings(facts: RunFacts) -> str:
    rows = [(name, str(value)) for name, value in iter_settings(facts.run.recipe)]
    table = _table("All settings", ("setting", "value"), rows)
    file = (facts.run.folder or Path()) / RECIPE_TOML
    text = f"<pre><code>{escape(read_text(file))}</code></pre>" if file.is_file() else ""
    return f"{text}<details><summary>All {len(rows)} settings</summary>{table}</details>"


class Html(str):
    """Text that is HTML already."""


def _table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    numbers: Iterable[int] = (),
    kind: str = "",
) -> str:
    """A table whose first column names the rows."""
    numbers = set(numbers)

    def cells(row: Sequence[Any], tag: str) -> str:
        parts = []
        for n, value in enumerate(row):
            text = value if isinstance(value, Html) else escape(str(value))
            name = "th" if n == 0 or tag == "th" else "td"
            scope = ' scope="col"' if tag == "th" else ' scope="row"' if n == 0 else ""
            parts.append(f"<{name}{scope}{' class=n' if n in numbers else ''}>{text}</{name}>")
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(cells(row, "td") for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table class="{kind}"><caption>{escape(caption)}</caption>'
        f"<thead>{cells(heads, 'th')}</thead><tbody>{body}</tbody></table></div>"
    )


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _pixels(image: Tensor, alt: str) -> str:
    """A uint8 image as PNG inside the page."""
    pixels, buffer = image.permute(1, 2, 0).numpy(), BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    code = b64encode(buffer.getvalue()).decode()
    return f'<img class="pixels" alt="{escape(alt)}" src="data:image/png;base64,{code}">'
