"""Write the code blocks of each page to build/examples, where pyright checks them: `make check`.

A block keeps its line numbers: an error in line 70 of the file is in line 70 of the page.
"""

import doctest
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "build/examples"
GENERATED = ROOT / "docs/reference"  # its examples are the doctests of the source
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if GENERATED not in page.parents),
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
SETTINGS = "# pyright: reportUnusedExpression=false"  # a doctest shows values


def extract(text: str) -> str:
    """The code of a page, without prompts and output; empty if there is none."""
    lines = [""] * text.count("\n")
    for block in BLOCK.finditer(text):
        code, first = block[1], text[: block.start(1)].count("\n")
        sources = [(e.lineno, e.source) for e in doctest.DocTestParser().get_examples(code)]
        for start, source in sources or [(0, code)]:
            new = source.splitlines()
            lines[first + start : first + start + len(new)] = new
    return "\n".join([SETTINGS, *lines[1:], ""]) if any(lines) else ""


if __name__ == "__main__":
    shutil.rmtree(EXAMPLES, ignore_errors=True)
    for page in PAGES:
        if code := extract(page.read_text()):
            file = EXAMPLES / page.relative_to(ROOT).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(code)
