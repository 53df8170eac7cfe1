"""Trained models that come with the package: runs without their checkpoints, in half precision."""

from pathlib import Path

from regard.errors import FileError, suggestion
from regard.models.serialization import WEIGHTS_FILE as WEIGHTS
from regard.runs.run import CHECKPOINTS, RECIPE_FILE, Run, load_run

PRETRAINED_FOLDER = Path(__file__).parents[1] / "pretrained"


def pretrained_names() -> list[str]:
    """Every specimen by its name.

    >>> "phrases" in pretrained_names()
    True
    """
    return sorted(file.parent.name for file in PRETRAINED_FOLDER.glob(f"*/{RECIPE_FILE}"))


def load_pretrained(name: str) -> Run:
    """A trained model that comes with the package, opened as any other run.

    >>> run = rg.load_pretrained("phrases")
    >>> rg.train.translate(run.model, run.tokenizer, ["2 days"], ["de"])
    ['2 Tage']
    """
    if name not in pretrained_names():
        raise FileError(
            f"name: needs one of {_known()}, got {name!r}{suggestion(name, pretrained_names())}"
        )
    return load_run(PRETRAINED_FOLDER / name)


def find_run(name: str | Path) -> Path:
    """The folder that a path or the name of a specimen stands for.

    A folder of that name goes first if it holds a run or a model; one of other files, such as
    recordings in `morse/`, does not hide the specimen. `./morse` is always the folder.

    >>> find_run("phrases").parent.name
    'specimens'
    """
    path = Path(name)
    is_specimen = str(name) in pretrained_names()
    if path.exists() and not (is_specimen and not _is_run(path)):
        return path
    if is_specimen:
        return PRETRAINED_FOLDER / name
    raise FileError(
        f"{name}: needs to be a run, a saved model or one of {_known()}, got nothing there"
        f"{suggestion(str(name), pretrained_names())}"
    )


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in (RECIPE_FILE, WEIGHTS, CHECKPOINTS))


def _known() -> str:
    return f"the specimens {', '.join(pretrained_names())}" if pretrained_names() else "no specimen"
