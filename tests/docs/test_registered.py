"""Everything that is registered is on the page that lists its kind."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from regard import cli, models, ops
from regard.inspection import draw, edit
from regard.models.hub.folder import FAMILIES
from regard.ops.survey.statistics import STATISTICS
from regard.ops.term_registry import TERMS

DOCS = Path(__file__).resolve().parents[2] / "docs"
TERM_NAMES = [cls.__name__ for cls in TERMS if cls.__name__ in ops.__all__]
PAGES: dict[str, tuple[str, Iterable[str]]] = {
    "masks and biases": ("start/attention.md", TERM_NAMES),
    "statistics": ("look/statistics.md", STATISTICS),
    "edits": ("look/what-if.md", set(edit.__all__) - {"Edit", "ActivationEdit"}),
    "figures": ("look/maps.md", draw.__all__),
    "models": ("start/models.md", models.MODELS),
    "Hugging Face families": ("start/models.md", FAMILIES),
    "commands": ("run/index.md", [f"regard {name}" for name in cli.commands]),
}


def missing(names: Iterable[str], text: str) -> list[str]:
    """The names that no code span of a page has."""
    code = " ".join(re.findall(r"`[^`\n]+`", text))
    return [name for name in names if not re.search(rf"\b{re.escape(name)}\b", code)]


@pytest.mark.parametrize("kind", PAGES)
def test_the_page_has_all_of_a_kind(kind):
    page, names = PAGES[kind]
    assert missing(names, (DOCS / page).read_text()) == [], f"add it to docs/{page}"


def test_a_page_that_omits_one_fails():
    assert missing(["Causal", "Local"], "`Causal()` but not a Local mask") == ["Local"]
