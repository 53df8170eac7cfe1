"""The list of models that every view begins with."""

from typing import Any

from regard.runs.hub_model import TOKENIZER_FILES
from regard.web.explorer.catalog import CatalogEntry
from regard.web.explorer.explorer import Explorer, QueryRequest, query
from regard.web.jobs import Job

EXAMPLES = {  # inputs to begin with, by name or task
    "phrases": ["March 5, 2024", "3 days", "2 hours and 5 minutes", "€12.50"],
    "stdlib": ["def main(argv):\n    parser = argparse.", "import os\nimport sys\n\nclass "],
}
IDS = ["3 1 4 1 5 9 2 6"]  # of a model without a tokenizer
FALLBACK = ["When Mary and John went to the store, John gave a drink to"]


class ModelsRequest(QueryRequest):
    """The request of the list takes nothing."""


@query("models", ModelsRequest, is_cached=False, priority=-1)
def answer_models(explorer: Explorer, request: ModelsRequest, job: Job) -> dict[str, Any]:
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
        "languages": list(entry.languages),
        "examples": _examples(entry),
        "options": list(entry.options),
        "reason": entry.reason,
    }


def _examples(entry: CatalogEntry) -> list[str]:
    if entry.reads != "text":
        return []
    has_tokenizer = any((entry.path / name).is_file() for name in TOKENIZER_FILES)
    if entry.kind != "run" and not has_tokenizer:
        return IDS
    return EXAMPLES.get(entry.name) or EXAMPLES.get(entry.task or "") or FALLBACK
