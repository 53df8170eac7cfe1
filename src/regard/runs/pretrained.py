"""Pretrained models of the package: runs without checkpoints, in half precision."""

from pathlib import Path

from regard.errors import FileError, suggestion
from regard.runs.run import CHECKPOINTS, RECIPE_FILE, WEIGHTS_FILE, Device, Run, load_run

PRETRAINED_FOLDER = Path(__file__).parents[1] / "pretrained"


def pretrained_names() -> list[str]:
    """Names of the pretrained models.

    >>> "phrases" in pretrained_names()
    True
    """
    return sorted(file.parent.name for file in PRETRAINED_FOLDER.glob(f"*/{RECIPE_FILE}"))


def load_pretrained(name: str, *, device: Device = "cpu") -> Run:
    """Open a pretrained model of the package by name.

    >>> load_pretrained("phrases").translate("2 days", to="de")
    {'de': ['2 Tage']}
    """
    if name not in pretrained_names():
        raise FileError(
            f"name: needs one of {_known()}, got {name!r}{suggestion(name, pretrained_names())}"
        )
    return load_run(PRETRAINED_FOLDER / name, device=device)


def find_run(name: str | Path) -> Path:
    """The folder of a run or saved model, given by its path or as the name of a pretrained model.

    A folder of that name takes precedence if it holds a run or a model; one of other files, such as
    recordings in `morse/`, does not hide the pretrained model. `./morse` is always the folder.

    >>> find_run("phrases").parent.name
    'pretrained'
    """
    path, is_pretrained = Path(name), str(name) in pretrained_names()
    if path.exists() and (_holds_model(path) or not is_pretrained):
        return path
    if is_pretrained:
        return PRETRAINED_FOLDER / name
    raise FileError(
        f"{name}: needs to be a run, a saved model or one of {_known()}, got nothing there"
        f"{suggestion(str(name), pretrained_names())}"
    )


def _holds_model(path: Path) -> bool:
    return any((path / name).exists() for name in (RECIPE_FILE, WEIGHTS_FILE, CHECKPOINTS))


def _known() -> str:
    names = pretrained_names()
    return f"the pretrained models {', '.join(names)}" if names else "no pretrained model"
