"""Default recipes on a folder of small data sets, each beside the baseline of its task and peers.

python benchmarks/small_data.py FOLDER --seeds 3 --out table.md
pip install scikit-learn sklearn-crfsuite    # peers; the table names those that are not installed

FOLDER has one folder per kind (labels, tags, text, pairs, images, speech), each with data sets as
`regard new KIND DATA` takes them: a file or a folder; two aligned files are a folder with both.
Nothing is downloaded and nothing is set: `regard new`, then `regard train` with each seed. Scores
are on the test split: ± is half the 95% interval over test examples, of the first seed; the verdict
counts the seeds by the interval of the difference to the baseline.
"""

import json
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer

from regard.errors import RegardError
from regard.runs import fit, override_settings
from regard.runs.trials import tune_proposal
from regard.tasks import Recipe
from regard.tasks.proposals.kinds import KINDS, propose
from regard.tasks.proposals.proposal import Proposal
from regard.tasks.tagging import TaggedText, tag_tally

SKIP = ("calibrate", "card", "report")
COLUMNS = ("data", "train", "test", "score", "model", "seeds", "baseline", "verdict", "CPU min")
VERDICTS = ("better", "not better", "worse", "too few examples")


class Row(NamedTuple):
    """A line of the table: the cells of `COLUMNS`, then the score of each peer."""

    cells: tuple[str, ...]
    peers: dict[str, str]


def main(
    folder: Annotated[Path, typer.Argument(help="One folder per kind, with data sets in it.")],
    seeds: Annotated[int, typer.Option(help="Trainings per data set.", min=1)] = 3,
    minutes: Annotated[
        float | None, typer.Option(help="Choose sizes by trials first, as regard new --minutes.")
    ] = None,
    only: Annotated[str, typer.Option(help="Only data sets whose KIND/NAME has this.")] = "",
    source: Annotated[
        str | None, typer.Option("--from", help="Where each training starts, such as minilm.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Settings of every training, to try it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Markdown file of the table.")] = None,
) -> None:
    """Train the default recipe of each data set and print a Markdown table."""
    rows = []
    for kind, paths in find_data(folder):
        name = f"{kind}/{paths[0].parent.name if len(paths) > 1 else paths[0].name}"
        if only in name:
            rows.append(measure(kind, name, paths, range(seeds), minutes, source, settings or ()))
            text = table(rows)
            if out is not None:  # after each: a long run can be looked at
                out.write_text(text, encoding="utf-8")
    if not rows:
        raise SystemExit(f"{folder}: needs folders {', '.join(KINDS)} with data sets, got none")
    print(table(rows))


def find_data(folder: Path) -> Iterator[tuple[str, list[Path]]]:
    """Each data set with its kind: a file or folder of FOLDER/KIND; of pairs also two files."""
    for kind in KINDS:
        for path in sorted((folder / kind).glob("[!.]*")):
            files = sorted(path.iterdir()) if kind == "pairs" and path.is_dir() else []
            yield kind, files if len(files) == 2 else [path]


def measure(
    kind: str,
    name: str,
    paths: list[Path],
    seeds: range,
    minutes: float | None,
    source: str | None,
    settings: Sequence[str],
) -> Row:
    """Train a data set with each seed; a failure is a row that says why."""
    print(f"{name}: …", flush=True)
    try:
        proposal = propose(kind, paths, name="small")
        if minutes is not None:
            proposal = tune_proposal(proposal, minutes, say=print)
        recipe = override_settings(proposal.recipe, settings)
        results = [train(recipe, seed, source, settings) for seed in seeds]
    except RegardError as error:
        return Row((name, *[""] * 6, str(error).partition("\n")[0], ""), {})
    return Row((name, *cells(proposal, recipe, results)), score_peers(kind, recipe))


def train(recipe: Recipe, seed: int, source: str | None, settings: Sequence[str]) -> dict[str, Any]:
    """The result of a training, with its CPU seconds."""
    recipe = replace(recipe, train=replace(recipe.train, seed=seed))
    folder, started = Path(tempfile.mkdtemp()), time.process_time()
    try:
        fit(recipe, folder / "run", settings=settings, init_from=source, skip=SKIP, show=True)
        result = json.loads((folder / "run" / "result.json").read_text())
    finally:
        shutil.rmtree(folder)
    return result | {"cpu": time.process_time() - started}


def cells(proposal: Proposal, recipe: Recipe, results: list[dict[str, Any]]) -> Iterator[str]:
    """The cells of a row after its name."""
    sizes, first = proposal.report.sizes, results[0]
    names = [x for x, value in first["test"].items() if x != "loss" and isinstance(value, float)]
    score = recipe.train.monitor if recipe.train.monitor in names else names[0]
    yield from (f"{sizes['train']:,}", f"{sizes['test']:,}", score)
    values = torch.tensor([x["test"][score] for x in results])
    yield with_interval(float(values.mean()), first["intervals"].get(score))
    yield f"{len(values)}, {values.min():.3f} to {values.max():.3f}"
    baseline = first.get("baseline")
    if baseline is None:
        yield from ("none", "")
    else:
        interval = baseline.get("intervals", {}).get(score)
        yield f"{with_interval(baseline['scores'][score], interval)} {baseline['name']}"
        found = (x["baseline"]["verdict"].partition("): ")[2] for x in results)
        counts = Counter(next(v for v in VERDICTS if x.startswith(v)) for x in found)
        yield ", ".join(f"{count} × {verdict}" for verdict, count in counts.items())
    yield f"{sum(x['cpu'] for x in results) / len(results) / 60:.1f}"


def with_interval(value: float, interval: Any) -> str:
    """A score with half of its interval."""
    return f"{value:.3f}" + (f" ± {(interval[1] - interval[0]) / 2:.3f}" if interval else "")


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    peers = list(dict.fromkeys(name for row in rows for name in row.peers))
    lines = [
        "| " + " | ".join((*COLUMNS, *peers)) + " |",
        "|---" * (len(COLUMNS) + len(peers)) + "|",
    ]
    for row in rows:
        line = (*row.cells, *(row.peers.get(peer, "") for peer in peers))
        lines.append(f"| {' | '.join(x.replace('|', '/') for x in line)} |")
    return "\n".join(lines) + "\n"


# ---- peers, with the settings of their first tutorial


def score_peers(kind: str, recipe: Recipe) -> dict[str, str]:
    """The score of each peer of a kind on the same splits."""
    scores = {}
    for name, (package, peer) in PEERS.get(kind, {}).items():
        if find_spec(package) is None:
            scores[name] = "not installed"
            continue
        try:
            scores[name] = f"{peer(recipe.data.fit(0).load().examples):.3f}"
        except Exception:  # noqa: BLE001 - a peer that fails leaves the others
            scores[name] = "failed"
            traceback.print_exc()
    return scores


def linear(examples: Any) -> float:
    """scikit-learn: TF-IDF of words and pairs of them, logistic regression."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(max_iter=1000))
    model.fit([x.text for x in examples["train"]], [x.label for x in examples["train"]])
    answers = model.predict([x.text for x in examples["test"]])
    right = [a == x.label for a, x in zip(answers, examples["test"], strict=True)]
    return sum(right) / len(right)


def crfsuite(examples: Any) -> float:
    """sklearn-crfsuite with the features and settings of its tutorial; F1 of spans."""
    from own_data_peers import _features
    from sklearn_crfsuite import CRF

    x = {
        split: [_features(list(zip(row.tokens, row.tags, strict=True))) for row in examples[split]]
        for split in ("train", "test")
    }
    model = CRF(algorithm="lbfgs", c1=0.1, c2=0.1, max_iterations=100)
    model.fit(x["train"], [list(row.tags) for row in examples["train"]])
    tags = model.predict(x["test"])
    answers, references = (
        [
            TaggedText(zip(row.tokens, y, strict=True))
            for row, y in zip(examples["test"], z, strict=True)
        ]
        for z in (tags, [row.tags for row in examples["test"]])
    )
    return tag_tally(answers, references).scores()["f1"]


Peer = Callable[[Any], float]
PEERS: dict[str, dict[str, tuple[str, Peer]]] = {
    "labels": {"scikit-learn, linear": ("sklearn", linear)},
    "tags": {"sklearn-crfsuite": ("sklearn_crfsuite", crfsuite)},
}

if __name__ == "__main__":
    typer.run(main)
