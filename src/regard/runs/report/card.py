"""The model card of a run, in Markdown with the metadata that the Hugging Face Hub reads."""

import json
from collections.abc import Iterable, Sequence

from regard.errors import counted
from regard.runs.contents import BASELINE
from regard.runs.report.facts import RunFacts
from regard.runs.settings import iter_settings

CARD_FILE = "CARD.md"
SETTINGS = ("lr", "schedule", "warmup", "weight_decay", "seed", "monitor", "final", "precision")


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
