"""The sections of `regard demo` and its HTML report."""

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
from regard.runs import alignment_head, record_translation, with_output_tokens

SHOWN = 12  # translations: the first examples of the test split, not selected
SHADES = " ·░▒▓█"
NO_FONT = ("ja", "zh", "ar")  # figures are drawn with a font that has Latin, Greek and Cyrillic
REPORT = "report.html"


class TranslatedPair(NamedTuple):
    """A pair of the test split and the model's translation of its source."""

    pair: Pair
    text: str

    @property
    def is_correct(self) -> bool:
        return self.text == self.pair.target

    @property
    def mark(self) -> str:
        return "✓" if self.is_correct else "✗"


class HeadView(NamedTuple):
    """Recorded attention on one pair, and the head that aligns it best."""

    pair: Pair
    sight: Sight
    site: Site
    head: int
    lines: list[str]


def print_introduction(console: Console, recipe: tasks.Recipe, folder: Path) -> None:
    """Print the task, the data and the model."""
    data: Any = recipe.data  # PhrasesTask
    model = recipe.model
    targets = [language for language in data.languages if language not in data.source_languages]
    _heading(console, "A translator, trained from scratch")
    console.print(
        f"{' '.join(data.source_languages)} → {' '.join(targets)}: {', '.join(data.kinds)}, "
        f"generated from Unicode CLDR; test examples are never trained on.\n"
        f"{model.layers} + {model.decoder_layers} layers, dim {model.dim}, {model.heads} heads; "
        f"{recipe.train.steps} updates. Ctrl-C saves a checkpoint. The run is in {folder}"
    )


def print_scores(console: Console, run: runs.Run) -> None:
    """Print the scores on the test split."""
    scores, count = run.result["test"], run.data.test_size
    _heading(console, f"On {count} held-out examples")
    console.print(
        f"[bold]{100 * scores['exact']:.1f}%[/] exact match; "
        f"BLEU {scores['bleu']:.1f}\n{scores['signature']}\n"
        f"{sum(p.numel() for p in run.model.parameters()):,} parameters, "
        f"trained in {run.result['seconds']:.0f} s"
    )


def print_translations(console: Console, run: runs.Run) -> list[TranslatedPair]:
    """Print the first examples of the test split with their translations."""
    pairs = list(islice(run.data.source(SHOWN).examples("test", 0), SHOWN))
    translations = [TranslatedPair(*x) for x in zip(pairs, _translate(run, pairs), strict=True)]
    _heading(console, f"The first {len(translations)} of them, not selected")
    table = Table(box=None, pad_edge=False, show_header=False)
    for translation in translations:
        pair = translation.pair
        table.add_row(pair.language, Text(pair.source), translation.mark, Text(translation.text))
        if not translation.is_correct:
            table.add_row("", "", "", Text(f"reference: {pair.target}", style="dim"))
    console.print(table)
    _print_languages(console, run, pairs[0].source)
    return translations


def print_heads(console: Console, run: runs.Run, translations: list[TranslatedPair]) -> HeadView:
    """Print the type of every head on one phrase, and the word alignment of the best one."""
    pair = _select_pair(translations)
    sight = record_translation(run.model, run.tokenizer, pair)
    heads = sight.heads()
    _heading(console, f"Attention heads while it writes “{pair.target}”")
    table = Table(box=None, pad_edge=False)
    for column, least in (("attention", 15), ("head", 4), ("is", 11), ("because", 0)):
        table.add_column(column, min_width=least)
    for row in heads:
        name = row.site if row.head == 0 else ""
        table.add_row(name, str(row.head), row.type, Text(row.reason, style="dim"))
    console.print(table)
    best = alignment_head(sight)
    site = with_output_tokens(sight[best.site], run.tokenizer, pair)
    _heading(console, f"Word alignment: {best.site}, head {best.head}")
    lines = _alignment(site, best.head)
    console.print(Text("\n".join([*_shaded(site, best.head), "", *lines])))
    return HeadView(pair, sight, site, best.head, lines)


def write_demo_report(run: runs.Run, translations: list[TranslatedPair], view: HeadView) -> Path:
    """Write one HTML file: scores, loss curve, translations, alignment, and every head."""
    assert run.folder is not None
    figures = make_folder(run.folder / "figures")
    draw_alignment(view.site, view.head, path=figures / "alignment.svg")
    _draw_curve(run.metrics, figures / "loss.svg")
    scores = run.result["test"]
    header = [
        f"<section><h2>On {run.data.test_size} held-out examples</h2><p>"
        f"{100 * scores['exact']:.1f}% exact match, BLEU {scores['bleu']:.1f} "
        f"<span class='soft'>({escape(scores['signature'])})</span>; "
        f"{run.result['step']} updates in {run.result['seconds']:.0f} s.</p>",
        _image_html(figures / "loss.svg", "loss by update"),
        "</section><section><h2>Translations, not selected</h2>",
        _translations_html(translations),
        "</section><section><h2>Word alignment</h2>",
        f"<p>{escape(view.pair.source)} → {escape(view.pair.target)}; "
        f"{escape(view.site.name)}, head {view.head}; one row per target token.</p>",
        _image_html(figures / "alignment.svg", "; ".join(view.lines)),
        f"<p>{'<br>'.join(escape(line) for line in view.lines)}</p></section>",
    ]
    title = "A translator and its attention heads"
    page = run.folder / REPORT
    return write_report(view.sight, page, title=title, header_html="\n".join(header))


def _translate(run: runs.Run, pairs: list[Pair]) -> list[str]:
    texts, languages = [pair.source for pair in pairs], [pair.language for pair in pairs]
    return tasks.translate_texts(run.model, run.tokenizer, texts, languages, run.data.search)


def _print_languages(console: Console, run: runs.Run, source: str) -> None:
    data = run.data
    targets = [x for x in data.languages if x not in data.source_languages]
    texts = _translate(run, [Pair(source, "", language) for language in targets])
    console.print(Text(f"\n{source}", style="bold"))
    line = "   ".join(f"{name} {text}" for name, text in zip(targets, texts, strict=True))
    console.print(Text(line))


def _select_pair(translations: list[TranslatedPair]) -> Pair:
    """The longest correct one that the figure's font can draw; else the first translation."""
    drawable = [x for x in translations if x.pair.language not in NO_FONT] or translations
    correct = [x.pair for x in drawable if x.is_correct]
    if correct:
        return max(correct, key=lambda pair: len(pair.target))
    first = drawable[0]
    return first.pair._replace(target=first.text or first.pair.target)


def _shaded(site: Site, head: int) -> list[str]:
    """The attention map in characters: one row per target token, one column per source token."""
    rows, keys = query_labels(site), [label.strip() for label in key_labels(site)]
    weights = site.window(head)[0].tolist()
    width = max(map(len, rows))
    cells = [max(2, len(key) + 1) for key in keys]
    lines = [" " * (width + 2) + "".join(key.ljust(n) for key, n in zip(keys, cells, strict=True))]
    for label, row in zip(rows, weights, strict=True):
        shades = (SHADES[min(len(SHADES) - 1, round(w * len(SHADES)))] for w in row)
        line = "".join((shade * (n - 1)).ljust(n) for shade, n in zip(shades, cells, strict=True))
        lines.append(f"{label.strip().rjust(width)}  {line.rstrip()}")
    return lines


def _alignment(site: Site, head: int) -> list[str]:
    """One line per target token: the source token it attends to most, and the weight."""
    rows, keys = query_labels(site), key_labels(site)
    best = site.survey(statistics=["peak", "peak_key"])
    peaks, at = best.peak[0, head].tolist(), best.peak_key[0, head].tolist()  # type: ignore[index]
    return [
        f"“{label.strip()}” attends to “{keys[key].strip()}” with {peak:.2f}"
        for label, peak, key in zip(rows, peaks, at, strict=True)
    ]


def _draw_curve(metrics: list[dict[str, Any]], path: Path) -> None:
    figure = new_figure(6, 2.4)
    axes = figure.subplots()
    lines = [line for line in metrics if "loss" in line]
    axes.plot([line["step"] for line in lines], [line["loss"] for line in lines], color="#00204d")
    axes.set(xlabel="update", ylabel="loss (nats per token)", yscale="log")
    save_figure(figure, path)


def _image_html(path: Path, alt: str) -> str:
    code = b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{code}">'


def _translations_html(translations: list[TranslatedPair]) -> str:
    rows = []
    for translation in translations:
        pair = translation.pair
        reference = "" if translation.is_correct else f" (reference: {pair.target})"
        cells = (str(pair.language), pair.source, translation.mark, translation.text + reference)
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table>{''.join(rows)}</table>"


def _heading(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", style="bold cyan"))
