"""A folder without write permission is a one-line error and exit code 2 in every command."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.runs import fit, override_settings
from regard.tasks import recipe

SMALL = [
    "vocab_texts=99",
    "steps=1",
    "valid_size=2",
    "test_size=2",
    "max_new_tokens=5",
    "dim=16",
    "device=cpu",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    fit(override_settings(recipe("phrases"), ["languages=en,de", *SMALL]), folder)
    return folder


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    "command",
    [
        ["resume", "STOPPED"],
        ["demo", "--out", "STOPPED"],
        ["train", "phrases", "--out", "RUN/new"],
        ["translate", "RUN", "--to", "de", "2 days", "--plot", "RUN/a.png"],
        ["work", "--make", "rnn", "--format", "toml", "--out", "RUN/sheet"],
    ],
    ids=" ".join,
)
def test_a_read_only_folder_is_one_line(run, tmp_path, unprivileged, command):
    stopped = tmp_path / "stopped"
    shutil.copytree(run, stopped)
    (stopped / "model.safetensors").unlink()
    (stopped / "result.json").unlink()
    folders = [folder for top in (run, stopped) for folder in (top, *top.rglob("*"))]
    command = [part.replace("RUN", str(run)).replace("STOPPED", str(stopped)) for part in command]
    modes = [folder.stat().st_mode for folder in folders]
    for folder in folders:
        folder.chmod(0o555 if folder.is_dir() else 0o444)
    try:
        with unprivileged():
            done = CliRunner().invoke(app, command)
    finally:
        for folder, mode in zip(folders, modes, strict=True):
            folder.chmod(mode)
    *notes, last = done.stderr.splitlines()
    assert done.exit_code == 2, done.exception
    assert last.endswith("Permission denied")
    assert last.count(": cannot be") == 1
    assert all("was cut at" in note for note in notes)
