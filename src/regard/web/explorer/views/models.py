"""The list of models that every view begins with."""

from typing import Any

from regard.runs.hub_model import TOKENIZER_FILES
from regard.web.explorer.catalog import CatalogEntry
from regard.web.explorer.explorer import Explorer, QueryRequest, query
from regard.web.jobs import Job

NAMES = "When Mary and John went to the store, John gave a drink to"
EXAMPLES: dict[str, dict[str, str]] = {  # inputs by name or task, each with what it shows
    "smollm2": {
        NAMES: "Names",
        "The keys to the old wooden cabinet near the door": "Agreement",
        "Paris is in France, Rome is in": "Facts",
    },
    "stories": {
        "After Mark and Helen walked to the river, Mark brought a map to": "Names",
        "The keys beside the lamp": "Agreement",
        "Say sun yellow white red wind. Again sun yellow white red": "Copying",
    },
    "phrases": {
        "March 5, 2024": "Word order",
        "3 days": "Plural",
        "2 hours and 5 minutes": "List",
        "€12.50": "Signs",
    },
    "stdlib": {
        "def main(argv):\n    parser = argparse.": "Names",
        "import os\nimport sys\n\nclass ": "Layout",
    },
}
IDS = {"3 1 4 1 5 9 2 6": "Token ids"}  # of a model without a tokenizer
FALLBACK = {NAMES: "Names"}
KNOWS = {  # what a model can continue or translate, by name or task
    "smollm2": "English",
    "stories": "sentences about names, colours, things and places, lists and brackets",
    "phrases": "dates, times, durations, units, prices and lists of these, in English",
    "stdlib": "Python code",
}


@query("models", QueryRequest, is_cached=False, priority=-1)
def answer_models(explorer: Explorer, request: QueryRequest, job: Job) -> dict[str, Any]:
    """The models that can be opened, and the reasons for those that cannot."""
    entries = explorer.catalog.entries.values()  # reads the folders, and finds what is damaged
    damaged = [{"name": n, "reason": x} for n, x in sorted(explorer.catalog.damaged.items())]
    return {"models": [_as_dict(entry) for entry in entries], "damaged": damaged}


def _as_dict(entry: CatalogEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "kind": entry.kind,
        "task": entry.task,
        "verb": entry.verb,
        "reads": entry.reads,
        "pictures": entry.pictures,
        "languages": list(entry.languages),
        "examples": list(examples := examples_of(entry)),
        "shows": list(examples.values()),
        "knows": KNOWS.get(entry.name) or KNOWS.get(entry.task or ""),
        "options": list(entry.options),
        "reason": entry.reason,
    }


def examples_of(entry: CatalogEntry) -> dict[str, str]:
    """Texts to begin with, each with what it shows."""
    if entry.reads != "text":
        return {}
    has_tokenizer = any((entry.path / name).is_file() for name in TOKENIZER_FILES)
    if entry.kind != "run" and not has_tokenizer:
        return IDS
    declared = {entry.example: "Example"} if entry.example else FALLBACK
    return EXAMPLES.get(entry.name) or EXAMPLES.get(entry.task or "") or declared
