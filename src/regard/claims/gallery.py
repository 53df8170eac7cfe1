"""Claims for readers: one offline page, a gallery for the docs, a quiz, answers to questions."""

import base64
import io
import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from regard.claims.charts import describe_chart, draw_chart
from regard.claims.claim import CLAIMS, FAMILIES, Verdict
from regard.claims.results import Result, summarise
from regard.files import (
    add_quiz_text,
    atomic_write,
    fill_page,
    make_folder,
    new_quiz,
    read_text,
    write_quiz_file,
    write_text,
)
from regard.inspection.figures.canvas import render
from regard.work.ask import Answer

TEMPLATE = Path(__file__).with_name("page.html")
LABELS: dict[Verdict | None, str] = {
    "true": "✓ true",
    "conditional": "◐ true under a condition",
    "false": "✗ false",
    "open": "? open",
    "literature": "¶ literature",
    None: "! failed to run",
}
SECTIONS = {  # title of each family's page in the docs
    letter: re.sub(r"[^a-z]+", "-", title.lower()).strip("-") for letter, title in FAMILIES.items()
}


def write_page(results: Sequence[Result], path: str | Path) -> Path:
    """Write all results as one HTML page with pictures and code, readable offline."""
    sections, links = [], ""
    for letter, group in _by_family(results):
        items, title = "", escape(FAMILIES[letter])
        for result in group:
            png = "" if result.evidence is None else _png(result)
            items += (
                f'<article class="{result.verdict or "failed"}" id="{result.id}">'
                f'<h3><a href="#{result.id}">{result.id}</a> {escape(result.claim.statement)}</h3>'
                f"{_render(result, f'data:image/png;base64,{png}')}</article>"
            )
        sections.append(f'<section><h2 id="{letter}">{title}</h2>{items}</section>')
        links += f'<a href="#{letter}">{title}</a>'
    parts = {
        "SUMMARY": escape(summarise(results)),
        "LINKS": links,
        "SECTIONS": "\n".join(sections),
        "VERSION": escape(version("regard")),
    }
    return write_text(path, fill_page(TEMPLATE, "Claims about sequence models", parts))


def write_gallery(results: Sequence[Result], folder: str | Path) -> Path:
    """Write Markdown pages, one per family, and their pictures: the gallery of the docs.

    Each claim has an anchor, its id in lower case, such as `basic-attention.md#a1`.

    >>> import tempfile
    >>> results = rg.claims.run_claims(rg.claims.select_claims(["A1"]), use_cache=False)
    >>> write_gallery(results, tempfile.mkdtemp()).name
    'index.md'
    """
    folder = make_folder(folder)
    make_folder(folder / "figures")
    lines = ["# Claims", "", read_text(TEMPLATE.with_name("gallery.md")), ""]
    for letter, group in _by_family(results):
        page = f"{SECTIONS[letter]}.md"
        lines += [f"## {FAMILIES[letter]}", "", "| | statement | verdict |", "|---|---|---|"]
        text = [f"# {FAMILIES[letter]}", ""]
        for result in group:
            link = f"[{result.id}]({page}#{result.id.lower()})"
            statement = result.claim.statement.replace("|", "\\|")
            lines.append(f"| {link} | {statement} | {LABELS[result.verdict]} |")
            picture = f"figures/{result.id.lower()}.png"
            if result.evidence:
                with atomic_write(folder / picture) as file:
                    file.write_bytes(base64.b64decode(_png(result)))
            text += [f"## {result.id}. {result.claim.statement} {{#{result.id.lower()}}}", ""]
            text += [_render(result, picture), ""]
        write_text(folder / page, "\n".join(text))
        lines.append("")
    return write_text(folder / "index.md", "\n".join(lines))


def _by_family(results: Iterable[Result]) -> list[tuple[str, list[Result]]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.id[0], []).append(result)
    return list(groups.items())


def _render(result: Result, picture: str) -> str:
    """Verdict, sentences, numbers and picture of a claim, as HTML."""
    claim, evidence = result.claim, result.evidence
    parts = [f'<p class="verdict"><b>{LABELS[result.verdict]}</b>']
    if result.verdict and not result.agrees:
        parts.append(f" (declared: {LABELS[claim.verdict]})")
    parts.append(f" · source: {claim.source}</p>")
    sentences = {
        "Condition": claim.condition,
        "Correct": claim.correction,
        "Remark": claim.remark,
        "Found": evidence.note if evidence else "",
        "Error": result.error,
        "Would have refuted it": claim.refutation if claim.experiment else "",
    }
    parts += [f"<p><i>{k}</i>: {escape(text)}</p>" for k, text in sentences.items() if text]
    if evidence:
        rows = "".join(f"<li>{escape(str(measure))}</li>" for measure in evidence.measures)
        size = "full" if result.full else "fast"
        cached = ", from the cache" if result.cached else ""
        alt = escape(describe_chart(evidence.chart))
        parts.append(f'<ul>{rows}</ul><p><img src="{picture}" alt="{alt}" loading="lazy"></p>')
        parts.append(f"<p><small>{result.seconds:.1f} s, {size} size{cached}</small></p>")
    if claim.code:
        text = escape(claim.code).replace("](", "]&#40;")  # no link in Markdown
        parts.append(f"<details><summary>Code</summary><pre><code>{text}</code></pre></details>")
    return "".join(parts)


def _png(result: Result) -> str:
    """The picture of a claim in base64: few colours, so that a gallery of all stays small."""
    from PIL import Image

    assert result.evidence is not None
    picture, small = io.BytesIO(), io.BytesIO()
    render(draw_chart(result.evidence.chart), picture, format="png", dpi=110)
    image = Image.open(picture).convert("RGB")
    image.quantize(64).save(small, format="png", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


# ---- quiz


CHOICES: dict[Verdict, str] = {
    "true": "True",
    "conditional": "True under a condition",
    "false": "False",
}


def write_quiz(results: Sequence[Result], path: str | Path) -> Path:
    """Write a quiz in Moodle XML: is the statement true, true under a condition, or false?

    The feedback has the condition or the correct statement, the numbers and the picture. Open
    claims and those known from literature alone are left out.

    >>> import tempfile
    >>> results = rg.claims.run_claims(rg.claims.select_claims(["A1"]), use_cache=False)
    >>> write_quiz(results, Path(tempfile.mkdtemp()) / "quiz.xml").name
    'quiz.xml'
    """
    quiz = new_quiz("Claims about sequence models")
    for result in results:
        if result.verdict not in CHOICES or result.evidence is None:
            continue
        question = ElementTree.SubElement(quiz, "question", type="multichoice")
        add_quiz_text(question, "name", f"{result.id} {result.claim.statement}"[:100])
        add_quiz_text(
            question, "questiontext", f"<p>{escape(result.claim.statement)}</p>", html=True
        )
        file, claim = f"{result.id}.png", result.claim
        words = " ".join(x for x in (claim.condition, claim.correction, claim.remark) if x)
        numbers = "".join(f"<li>{escape(str(m))}</li>" for m in result.evidence.measures)
        alt = escape(describe_chart(result.evidence.chart))
        feedback = add_quiz_text(
            question,
            "generalfeedback",
            f"<p><b>{CHOICES[result.verdict]}.</b> {escape(words)}</p><ul>{numbers}</ul>"
            f'<p><img src="@@PLUGINFILE@@/{file}" alt="{alt}"></p>',
            html=True,
        )
        picture = ElementTree.SubElement(feedback, "file", name=file, path="/", encoding="base64")
        picture.text = _png(result)
        settings = {"defaultgrade": "1", "penalty": "0.5", "single": "true"}
        settings |= {"shuffleanswers": "false", "answernumbering": "none"}
        for name, value in settings.items():
            ElementTree.SubElement(question, name).text = value
        for verdict, text in CHOICES.items():
            fraction = "100" if verdict == result.verdict else "0"
            answer = ElementTree.SubElement(question, "answer", fraction=fraction, format="html")
            ElementTree.SubElement(answer, "text").text = text
    return write_quiz_file(quiz, path)


def to_json(results: Sequence[Result]) -> str:
    """All results as JSON."""
    return json.dumps([result.to_dict() for result in results], indent=1, ensure_ascii=False)


# ---- answers


@cache
def claim_answers() -> tuple[Answer, ...]:
    """Each claim with its declared verdict, to be searched by `rg.work.find_answers`.

    >>> [(_, found)] = rg.work.find_answers("forget gate of an lstm", 1, claim_answers())
    >>> found.title.startswith(found.claims[0])
    True
    """
    return tuple(
        Answer(
            title=f"{claim.id} {LABELS[claim.verdict]}: {claim.statement}",
            topic=FAMILIES[claim.id[0]],
            asked=(claim.statement,),
            claims=(claim.id,),
            command=f"regard claims {claim.id}",
            text=" ".join(filter(None, (claim.condition, claim.correction, claim.remark))),
        )
        for claim in CLAIMS.values()
    )
