"""The parts of `regard demo`: what it says, shows, and puts on its page."""

from base64 import b64encode
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard import runs, tasks
from regard.data import Pair
from regard.files import make_folder
from regard.inspection import Sight, Site, write_report
from regard.inspection.figures.canvas import new_figure, save_figure
from regard.inspection.figures.maps import draw_alignment
from regard.inspection.sites.labels import key_labels, query_labels
from regard.runs import record_translation, with_output_tokens

SHOWN = 12  # translations: the first of the test part, as they come
SHADES = " ·░▒▓█"
NO_FONT = ("ja", "zh", "ar")  # figures are drawn with a font that has Latin, Greek and Cyrillic
REPORT = "report.html"


class Answer(NamedTuple):
    """A pair of the test part, and what the model made of its source."""

    pair: Pair
    text: str

    @property
    def is_right(self) -> bool:
        return self.text == self.pair.target

    @property
    def mark(self) -> str:
        return "✓" if self.is_right else "✗"


class HeadView(NamedTuple):
    """What looking gave: the pair that was read, all sites, and the head that aligns it best."""

    pair: Pair
    sight: Sight
    site: Site
    head: int
    lines: list[str]


def print_introduction(console: Console, recipe: tasks.Recipe, folder: Path) -> None:
    """What is going to happen."""
    given, model = recipe.data, recipe.model
    others = [language for language in given.languages if language not in given.sources]
    _heading(console, "A translator, from nothing")
    console.print(
        f"{' '.join(given.sources)} → {' '.join(others)}: {', '.join(given.kinds)}, as Unicode's "
        f"CLDR words them; facts of the test are never trained on.\n"
        f"{model.layers} + {model.decoder_layers} layers, {model.dim} wide, {model.heads} heads; "
        f"{recipe.train.steps} updates. Ctrl-C saves. The run is kept in {folder}"
    )


def print_scores(console: Console, run: runs.Run) -> None:
    """How good it is on facts that it has never seen."""
    scores, count = run.result["test"], run.recipe.data.test
    _heading(console, f"On {count} unseen facts")
    console.print(
        f"[bold]{100 * scores['exact']:.1f}%[/] are translated exactly, to the last sign; "
        f"BLEU {scores['bleu']:.1f}\n{scores['signature']}\n"
        f"{sum(p.numel() for p in run.model.parameters()):,} parameters, "
        f"trained in {run.result['seconds']:.0f} s"
    )


def print_translations(console: Console, run: runs.Run) -> list[Answer]:
    """The first of the test part, right or wrong, and one text in every language."""
    data = run.recipe.data
    pairs = list(islice(data.source(SHOWN).examples("test", 0), SHOWN))
    answers = [Answer(*both) for both in zip(pairs, _answers(run, pairs), strict=True)]
    _heading(console, f"The first {len(answers)} of them, as they come")
    table = Table(box=None, pad_edge=False, show_header=False)
    for pair, text in answers:
        table.add_row(
            pair.language, Text(pair.source), "✓" if text == pair.target else "✗", Text(text)
        )
        if text != pair.target:
            table.add_row("", "", "", Text(f"right: {pair.target}", style="dim"))
    console.print(table)
    _tell_languages(console, run, pairs[0].source)
    return answers


def print_heads(console: Console, run: runs.Run, answers: list[Answer]) -> HeadView:
    """What each head does while one phrase is translated, and which word comes from which."""
    pair = _chosen(answers)
    sight = record_translation(run.model, run.tokenizer, pair)
    heads = sight.heads()
    _heading(console, f"Inside, while it writes “{pair.target}”")
    table = Table(box=None, pad_edge=False)
    for column, least in (("attention", 15), ("head", 4), ("is", 11), ("because", 0)):
        table.add_column(column, min_width=least)
    for row in heads:
        name = row.site if row.head == 0 else ""
        table.add_row(name, str(row.head), row.type, Text(row.reason, style="dim"))
    console.print(table)
    across = [row for row in heads if row.kind == "cross"]
    best = max(across, key=lambda row: row.peak * row.distinct - row.sink_share)
    site = with_output_tokens(sight[best.site], run.tokenizer, pair)
    _heading(console, f"Which word comes from which: {best.site}, head {best.head}")
    lines = _alignment(site, best.head)
    console.print(Text("\n".join([*_shaded(site, best.head), "", *lines])))
    return HeadView(pair, sight, site, best.head, lines)


def write_demo_report(run: runs.Run, answers: list[Answer], view: HeadView) -> Path:
    """One HTML file: the scores, the curve, the translations, the alignment, and every head."""
    figures = make_folder(run.folder / "figures")
    draw_alignment(view.site, view.head, path=figures / "alignment.svg")
    _draw_curve(run.metrics, figures / "loss.svg")
    scores = run.result["test"]
    above = [
        f"<section><h2>On {run.recipe.data.test} unseen facts</h2><p>"
        f"{100 * scores['exact']:.1f}% exact, BLEU {scores['bleu']:.1f} "
        f"<span class='soft'>({escape(scores['signature'])})</span>; "
        f"{run.result['step']} updates in {run.result['seconds']:.0f} s.</p>",
        _picture(figures / "loss.svg", "loss by update"),
        "</section><section><h2>Translations, as they come</h2>",
        _answers_html(answers),
        "</section><section><h2>Which word comes from which</h2>",
        f"<p>{escape(view.pair.source)} → {escape(view.pair.target)}; "
        f"{escape(view.site.name)}, head {view.head}; a row is a word that is written.</p>",
        _picture(figures / "alignment.svg", "; ".join(view.lines)),
        f"<p>{'<br>'.join(escape(line) for line in view.lines)}</p></section>",
    ]
    title = "A translator, and what its heads look at"
    page = run.folder / REPORT
    return write_report(view.sight, page, title=title, header_html="\n".join(above))


def _answers(run: runs.Run, pairs: list[Pair]) -> list[str]:
    texts, languages = [pair.source for pair in pairs], [pair.language for pair in pairs]
    return tasks.translate_texts(
        run.model, run.tokenizer, texts, languages, max_new_tokens=run.recipe.data.longest
    )


def _tell_languages(console: Console, run: runs.Run, source: str) -> None:
    others = [x for x in run.recipe.data.languages if x not in run.recipe.data.sources]
    texts = _answers(run, [Pair(source, "", language) for language in others])
    console.print(Text(f"\n{source}", style="bold"))
    told = "   ".join(f"{name} {text}" for name, text in zip(others, texts, strict=True))
    console.print(Text(told))


def _chosen(answers: list[Answer]) -> Pair:
    """The longest that is right and can be drawn; what was written, if none is."""
    drawn = [answer for answer in answers if answer.pair.language not in NO_FONT] or answers
    right = [answer.pair for answer in drawn if answer.is_right]
    if right:
        return max(right, key=lambda pair: len(pair.target))
    first = drawn[0]
    return first.pair._replace(target=first.text or first.pair.target)


def _shaded(site: Site, head: int) -> list[str]:
    """The map in a terminal: a row a word that is written, a column a word that is read."""
    rows, keys = query_labels(site), [label.strip() for label in key_labels(site)]
    weights = site.window(head)[0].tolist()
    wide = max(map(len, rows))
    cells = [max(2, len(key) + 1) for key in keys]
    lines = [" " * (wide + 2) + "".join(key.ljust(n) for key, n in zip(keys, cells, strict=True))]
    for label, row in zip(rows, weights, strict=True):
        shades = (SHADES[min(len(SHADES) - 1, round(w * len(SHADES)))] for w in row)
        line = "".join((shade * (n - 1)).ljust(n) for shade, n in zip(shades, cells, strict=True))
        lines.append(f"{label.strip().rjust(wide)}  {line.rstrip()}")
    return lines


def _alignment(site: Site, head: int) -> list[str]:
    """In words: what is written, from where, and with which weight."""
    rows, keys = query_labels(site), key_labels(site)
    best = site.survey(statistics=["peak", "peak_key"])
    peaks, at = best.peak[0, head].tolist(), best.peak_key[0, head].tolist()  # type: ignore[index]
    return [
        f"“{label.strip()}” looks at “{keys[key].strip()}” with {peak:.2f}"
        for label, peak, key in zip(rows, peaks, at, strict=True)
    ]


def _draw_curve(metrics: list[dict[str, Any]], path: Path) -> None:
    figure = new_figure(6, 2.4)
    axes = figure.subplots()
    lines = [line for line in metrics if "loss" in line]
    axes.plot([line["step"] for line in lines], [line["loss"] for line in lines], color="#00204d")
    axes.set(xlabel="update", ylabel="loss, nats a token", yscale="log")
    save_figure(figure, path)


def _picture(path: Path, words: str) -> str:
    code = b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(words)}" src="data:image/svg+xml;base64,{code}">'


def _answers_html(answers: list[Answer]) -> str:
    rows = []
    for answer in answers:
        pair, right = answer.pair, "" if answer.is_right else f" (right: {answer.pair.target})"
        cells = (
            str(pair.language),
            pair.source,
            "✓" if answer.is_right else "✗",
            answer.text + right,
        )
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table>{''.join(rows)}</table>"


def _heading(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", style="bold cyan"))
