"""Every parser under test, declared once: a name, a function of a folder, and good inputs."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import regard as rg
from fuzz import seeds
from fuzz.mutate import Files
from fuzz.worker import Target
from regard import claims, data, models, runs, tasks, train, work
from regard.claims.claim import Trial
from regard.claims.results import load_cached
from regard.data.audio.audio_file import AudioFile
from regard.data.audio.speech_manifest import SpeechManifest, find_manifests
from regard.data.image.image_file import read_idx, read_image
from regard.data.source import LoadReport
from regard.data.text.annotated import read_labeled_texts, read_tagged_tokens
from regard.data.text.parallel_formats import read_mo, read_tmx
from regard.data.text.po_catalog import read_po
from regard.files import PartialFile, iter_lines, read_text
from regard.runs.contents import load_tokenizer, read_recipe, read_result
from regard.runs.hub_model import load_hub_text_model
from regard.tasks.proposals.kinds import propose
from regard.tasks.recipe_file import parse_recipe, read_recipe_file, recipe_to_toml
from regard.train.checkpoint import load_last_valid
from regard.train.metrics import truncate_metrics
from regard.work.marking.submissions import check_submissions


def only(folder: Path) -> Path:
    """The one file of an input."""
    (file,) = (path for path in folder.rglob("*") if path.is_file())
    return file


def of(read: Callable[[Path], object], seeds: Callable[[], Iterable[Files]]) -> Any:
    """A parser of one file, and its seeds."""
    return lambda folder: read(only(folder)), lambda: list(seeds())


def texts(rows: Iterable[Any]) -> None:
    """Consume rows of texts; a lone surrogate in one would fail where it is used."""
    for row in rows:
        for cell in row:
            for text in cell if isinstance(cell, tuple) else (cell,):
                str(text).encode()


def new(kind: str) -> Callable[[Path], object]:
    """`regard new KIND`: a recipe for a folder of data, written and read again."""

    def parse(folder: Path) -> None:
        files = [path for path in folder.iterdir() if path.is_file()]
        path = files[0] if len(files) == 1 and len(list(folder.iterdir())) == 1 else folder
        proposal = propose(kind, [path], name="x")
        text = proposal.to_toml(folder, comment=proposal.report.summary())
        parse_recipe(text, "x.toml", base=folder)
        proposal.report.warnings()

    return parse


def fill_po(file: Path) -> None:
    catalog = data.PoCatalog(file)
    catalog.fill(lambda texts: list(texts))
    str(catalog).encode()


def encode(tokenizer: Any) -> None:
    for text in ("", "a b", "Grüße 1234 😀"):
        ids = tokenizer.encode(text)
        tokenizer.decode(ids)
        [tokenizer.id_to_token(i) for i in ids]


def recipe(file: Path) -> None:
    recipe_to_toml(read_recipe_file(file), full=True)


def override(file: Path) -> None:
    settings = file.read_bytes().decode(errors="surrogateescape").splitlines()
    runs.override_settings(tasks.recipe("phrases"), settings)


def run_folder(folder: Path) -> None:
    rows = runs.list_runs(folder)
    assert len(rows) == 2, "a damaged run hides another"
    texts([(row["run"], row["state"]) for row in rows])
    read_recipe(folder / "one")
    read_result(folder / "one")
    load_tokenizer(folder / "one")
    rg.load(folder / "one", device="cpu")


def claim(folder: Path) -> None:
    import os

    os.environ["XDG_CACHE_HOME"] = str(folder)
    found = load_cached(seeds.CLAIM, Trial())
    if found is not None:
        json.dumps(found.to_dict())
        claims.junit_xml([found])


def sight(file: Path) -> None:
    found = rg.load_sight(file)
    repr(found)
    for site in found:
        site.weights()


def token_cache(folder: Path) -> None:
    cache = data.TokenCache(folder)
    for n in range(min(len(cache), 20)):
        cache[n]
    [cache.lengths(name) for name in cache.tokens]


def metrics(folder: Path) -> None:
    train.read_metrics(folder)
    truncate_metrics(folder, 2)


def partial(folder: Path) -> None:
    job = PartialFile(folder / "out.txt", {"to": "de"})
    job.read()
    job.close()


def checkpoints(folder: Path) -> None:
    load_last_valid(folder)


def problem(file: Path) -> None:
    solution = work.solve(work.read_problem(file))
    work.format_solution(solution)


def answers(file: Path) -> None:
    solution = work.solve(work.read_problem("three-tokens"))
    (found,) = check_submissions(solution, [file])
    if found.read_error:
        raise rg.errors.WorkError(found.read_error)


def audio(file: Path) -> None:
    for chunk in AudioFile(file, 8000).chunks(1.0):
        chunk.sum()


def speech(folder: Path) -> None:
    SpeechManifest(*find_manifests(folder)[:1], rate=8000)


TARGETS = [
    Target("recipe.toml", *of(recipe, seeds.recipes)),
    Target("--set", *of(override, seeds.settings)),
    Target("table", *of(lambda f: texts(data.read_table(f, ["a", "b"])), seeds.tables)),
    Target("labels", *of(lambda f: texts(read_labeled_texts(f, LoadReport())), seeds.labels)),
    Target("tags", *of(lambda f: texts(read_tagged_tokens(f, LoadReport())), seeds.tags)),
    Target(".po, filled", *of(fill_po, seeds.catalogs)),
    Target(".po, pairs", *of(lambda f: texts(read_po(f)), seeds.catalogs)),
    Target(".mo", *of(lambda f: texts(read_mo(f)), seeds.compiled_catalogs)),
    Target(".tmx", *of(lambda f: texts(read_tmx(f, "en", "de")), seeds.memories)),
    Target("text", *of(read_text, seeds.plain_texts)),
    Target("lines", *of(lambda f: list(iter_lines(f)), seeds.plain_texts)),
    Target("new pairs", new("pairs"), seeds.pairs),
    Target("new text", new("text"), seeds.text_folders),
    Target("new labels", new("labels"), seeds.labels),
    Target("new tags", new("tags"), seeds.tags),
    Target("new images", new("images"), seeds.image_folders),
    Target("new speech", new("speech"), seeds.speech_folders),
    Target("image", *of(read_image, seeds.images)),
    Target("idx", *of(read_idx, seeds.idx)),
    Target("sound", *of(audio, seeds.sounds)),
    Target("manifest", speech, seeds.speech_folders),
    Target("tokenizer", *of(lambda f: encode(data.Tokenizer.load(f)), seeds.tokenizers),
           repair=seeds.repair_tokenizer),
    Target("sentencepiece", *of(lambda f: encode(data.Tokenizer.load(f)), seeds.sentencepieces)),
    Target("model", *of(models.load, seeds.saved_models)),
    Target("hub folder", load_hub_text_model, seeds.hub_folders),
    Target("hub import", models.from_pretrained, seeds.hub_folders),
    Target("token cache", token_cache, seeds.token_caches),
    Target("claims cache", claim, seeds.claims_caches),
    Target("sight", *of(sight, seeds.sights), repair=seeds.repair_sight),
    Target("metrics", metrics, seeds.metrics),
    Target("run folder", run_folder, seeds.run_folders),
    Target("checkpoint", checkpoints, seeds.checkpoints),
    Target("partial file", partial, seeds.partial_files),
    Target("problem", *of(problem, seeds.problems)),
    Target("answers", *of(answers, seeds.answers)),
]  # fmt: skip
