"""The architecture page draws the layers of the contract, the folders and the imports."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/regard"
PAGE = (ROOT / "docs/contributing/architecture.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
(CONTRACT,) = [
    contract
    for contract in PROJECT["tool"]["importlinter"]["contracts"]
    if contract.get("containers") == ["regard"]
]
DRAWN = re.search(r"^## Layers\n.*?^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
assert DRAWN is not None
LAYERS = DRAWN[1].strip().splitlines()
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer.split(" | ")}


def imported_units(path: Path) -> set[str]:
    """The units of regard that a file imports anywhere, except under TYPE_CHECKING."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "regard":
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard."):
            names.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            parts = [alias.name.split(".") for alias in node.names]
            names |= {part[1] for part in parts if part[0] == "regard" and len(part) > 1}
    return names & set(LEVEL)


def unit_files(name: str) -> list[Path]:
    folder = PACKAGE / name
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def test_the_drawing_is_the_contract():
    assert CONTRACT["layers"] == LAYERS


def test_the_drawing_has_every_package_and_module():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert set(LEVEL) == packages | modules
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(LEVEL)


@pytest.mark.parametrize("name", LEVEL)
def test_imports_go_down(name):
    upward = [
        f"{path.relative_to(ROOT)} imports {other}"
        for path in unit_files(name)
        for other in imported_units(path) - {name}
        if LEVEL[other] <= LEVEL[name]
    ]
    assert upward == []


def test_the_page_has_the_six_walks_and_each_names_files():
    walks = re.split(r"^## Walk \d: ", PAGE, flags=re.MULTILINE)[1:]
    names = [walk.split("\n", 1)[0] for walk in walks]
    assert names == ["attend", "train", "look", "work", "translate", "explore"]
    for walk in walks:
        files = re.findall(r"\]\((\.\./\.\./src/regard/[^)]+)\)", walk)
        assert len(files) >= 5
        missing = [file for file in files if not (ROOT / "docs/contributing" / file).exists()]
        assert missing == []
