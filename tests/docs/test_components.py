"""The table of course components is complete, and its objects and tests exist."""

import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (K\d\d) \| ([^|]+) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
PAGE = (ROOT / "docs/work/components.md").read_text()
ROWS = ROW.findall(PAGE)
NUMBERS = re.findall(r"^\| (FX\d+) \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE)


@cache
def names_in(path: str) -> set[str]:
    return set(re.findall(r"^def (test_\w+)", (ROOT / path).read_text(), re.MULTILINE))


def test_every_component_has_one_row():
    assert sorted(row[0] for row in ROWS) == [f"K{n:02}" for n in range(1, 66)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_objects_of_a_component_exist(row):
    _, _, objects, tests = row
    named = re.findall(
        r"`((?:ops|nn|models|decode|train|inspection|costs|tasks|runs)\.[\w.]+)`", objects
    )
    for dotted in named:
        layer, *path = dotted.split(".")
        member = import_module(f"regard.{layer}")
        assert path[0] in member.__all__, f"{dotted} is not public"
        for name in path:
            member = getattr(member, name)
    families = import_module("regard.work").FAMILIES
    for worked in re.findall(r"family (`[\w-]+`(?:, `[\w-]+`)*)", objects):
        assert set(re.findall(r"`([\w-]+)`", worked)) <= set(families)
    assert named or tests.strip(), "neither an object nor a test"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_tests_of_a_component_exist(row):
    *_, tests = row
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
    for path, name in named:
        assert name in names_in(path), f"{path} has no {name}"
    assert len(named) == tests.count("`") // 2
    assert named


def test_every_worked_fixture_is_a_test():
    assert [number for number, _ in NUMBERS] == [f"FX{n}" for n in range(1, 15)]
    for _, tests in NUMBERS:
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests):
            assert name in names_in(path), f"{path} has no {name}"
