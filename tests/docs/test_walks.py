"""The walks of the architecture page name the files that are really executed.

Each walk is run with a profiler. Every Python file that a numbered item names has to be executed,
and the files in which most functions ran have to be named somewhere in the walk. A step of training
and a translation are no deeper than stated: depth counts the frames of files in src/regard on the
stack, no others.
"""

import re
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
import torch
from typer.testing import CliRunner
from web_server import Client, running

import regard as rg
from regard.cli import app

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/contributing/architecture.md").read_text(encoding="utf-8")
PACKAGE = f"{ROOT}/src/regard/"
MOST = 5  # files with the most functions that a walk has to name
# frames of regard to the deepest function of an update, from `fit`, and of a translation
MAX_DEPTH, MAX_TRANSLATE_DEPTH = 16, 11
LINK = re.compile(r"\]\(\.\./\.\./src/regard/([^)]+\.py)\)")


Action = Callable[[], object]


class Profile:
    """The functions that ran, by file, and the deepest stack of what is measured."""

    def __init__(self) -> None:
        self.functions: dict[str, set[str]] = defaultdict(set)
        self.deepest: list[str] = []
        self.is_measured, self.imports = False, 0

    def note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_name == "<module>":  # what an import runs is not of the walk
            self.imports += 1 if event == "call" else -1
        if self.imports:
            return
        if code.co_qualname in ("Updater.step", "Translates.translate"):
            self.is_measured = event == "call"
        if event == "call" and not code.co_name.startswith("<"):  # as of a comprehension
            self.functions[code.co_filename.removeprefix(PACKAGE)].add(code.co_qualname)
        if event == "call" and self.is_measured:
            stack = regard_frames(frame)
            if len(stack) > len(self.deepest):
                self.deepest = stack

    @contextmanager
    def on(self) -> Iterator[None]:
        before = sys.getprofile()
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)


def regard_frames(frame: FrameType | None) -> list[str]:
    """The functions of src/regard on the stack, the outermost first."""
    stack = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            stack.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return stack[::-1]


def command(*arguments: str) -> None:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output


# Each function prepares what the sentence above the walk has as given, and returns what happens.


def attend(_: Path) -> Action:
    q = torch.randn(1, 2, 9, 4)
    _ = rg.attend, rg.Causal  # imported on first use, which is not of the walk
    return lambda: rg.attend(q, q, q, mask=rg.Causal())


def train(folder: Path) -> Action:
    small = "steps=1 vocab_texts=99 valid_size=2 test_size=2 dim=16 batch_tokens=99 device=cpu"
    small += " languages=en,de kinds=duration"
    settings = [x for setting in small.split() for x in ("--set", setting)]
    # torch and sacrebleu import much: under a profiler that takes longer than all walks
    command("train", "phrases", "--out", str(folder / "imports"), *settings)
    return lambda: command("train", "phrases", "--out", str(folder / "run"), *settings)


def look(folder: Path) -> Action:
    model, tokens = rg.load("phrases", device="cpu").model, torch.tensor([[5, 6, 7]])

    def action() -> None:
        with rg.look(model) as sight:
            model(tokens, tokens)
        site = sight.sites[0]
        site.survey()
        site.window(0)
        site.influence()
        sight.heads()
        rg.inspection.write_report(sight, folder / "heads.html")
        with rg.what_if(model, rg.edit.drop_head("decoder.1.self", 2)):
            model(tokens, tokens)

    return action


def work(folder: Path) -> Action:
    (folder / "answers.toml").write_text("Q = [[1, 3], [-1, 1], [2.5, -2]]\n")
    return lambda: command("work", "three-tokens", "--check", str(folder / "answers.toml"))


def translate(_: Path) -> Action:
    return lambda: rg.load("phrases", device="cpu").translate(["3 days"], to=["de"])


def explore(folder: Path) -> Action:
    from regard.web.api import create_app
    from regard.web.explorer import Explorer
    from regard.web.explorer.catalog import Catalog

    catalog = Catalog(["phrases"], [folder], device="cpu")

    def action() -> None:  # the worker is a thread of the app
        with running(create_app({}, explorer=Explorer(catalog))) as address, Client(address) as to:
            request = {"model": "phrases", "text": "3 days"}
            answer = to.ask("text", request, connection="close").read_until(b"until it is closed")
        assert answer.startswith(b"HTTP/1.1 200"), answer

    return action


WALKS: list[Callable[[Path], Action]] = [attend, train, look, work, translate, explore]


@pytest.fixture(scope="module")
def profiles() -> dict[str, Profile]:
    return {}


def profiled(walk: Callable[[Path], Action], folder: Path, profiles: dict[str, Profile]) -> Profile:
    if walk.__name__ not in profiles:
        profile, action = Profile(), walk(folder)
        with profile.on():
            action()
        profiles[walk.__name__] = profile
    return profiles[walk.__name__]


def section(name: str) -> str:
    (text,) = re.findall(rf"^## Walk \d: {name}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return text


def test_every_walk_of_the_page_is_run():
    assert re.findall(r"^## Walk \d: (\w+)$", PAGE, re.MULTILINE) == [x.__name__ for x in WALKS]


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.__name__)
def test_the_files_that_a_walk_names_are_executed(walk, tmp_path, profiles):
    numbered = re.findall(r"^\d\. .*?(?=^\d\. |^$|\Z)", section(walk.__name__), re.DOTALL | re.M)
    named = set(LINK.findall("".join(numbered)))
    assert named, "the walk names no file"
    assert named - set(profiled(walk, tmp_path, profiles).functions) == set()


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.__name__)
def test_a_walk_names_the_files_in_which_most_functions_run(walk, tmp_path, profiles):
    functions = profiled(walk, tmp_path, profiles).functions
    most = sorted(functions, key=lambda file: (-len(functions[file]), file))[:MOST]
    assert set(most) - set(LINK.findall(section(walk.__name__))) == set()


def test_an_update_of_a_training_is_not_deep(tmp_path, profiles):
    deepest = profiled(train, tmp_path, profiles).deepest
    depth = deepest[deepest.index("fit") :]  # before it is the command
    assert 10 < len(depth) <= MAX_DEPTH, depth


def test_a_translation_is_not_deep(tmp_path, profiles):
    deepest = profiled(translate, tmp_path, profiles).deepest
    assert 8 < len(deepest) <= MAX_TRANSLATE_DEPTH, deepest
