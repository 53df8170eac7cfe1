"""Facts about the project that are stated twice: folders, public names, versions and layers."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/regard"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LAYERS = sorted(p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists())


def test_the_tree_in_the_readme_is_the_tree_of_folders():
    readme = (ROOT / "README.md").read_text()
    tree = readme.partition("```text\nsrc/regard/\n")[2].partition("```")[0]
    assert sorted(re.findall(r"^  (\w+)/", tree, re.MULTILINE)) == LAYERS
    assert all((ROOT / folder).is_dir() for folder in re.findall(r"^(\w+)/", tree, re.MULTILINE))


def test_the_layers_in_the_readme_are_those_of_the_contract():
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (contract,) = (c for c in contracts if c.get("containers") == ["regard"])
    layers = " > ".join(contract["layers"])
    assert f"`{layers}`" in (ROOT / "README.md").read_text()
    assert f"`{layers}`" in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize(
    "layer",
    [
        "claims",
        "costs",
        "data",
        "decode",
        "inspection",
        "models",
        "nn",
        "ops",
        "runs",
        "tasks",
        "train",
        "work",
    ],
)
def test_the_public_list_is_sorted_and_is_what_the_folder_exports(layer):
    module = import_module(f"regard.{layer}")
    stub = PACKAGE / layer / "__init__.pyi"  # of a package whose names are imported on first use
    tree = ast.parse((stub if stub.exists() else stub.with_suffix(".py")).read_text())
    lazy = [node for block in tree.body if isinstance(block, ast.If) for node in block.body]
    imported = {  # at once, or on first use and for the type checker alone
        alias.asname or alias.name
        for node in [*tree.body, *lazy]
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard")
        for alias in node.names
    }
    assert module.__all__ == sorted(module.__all__)
    assert set(module.__all__) == imported
    assert imported <= set(dir(module))
    assert all(hasattr(module, name) for name in imported)
    with pytest.raises(AttributeError, match=f"'regard.{layer}' has no attribute 'atend'"):
        module.atend  # noqa: B018


def test_every_public_name_is_what_its_package_exports():
    import regard

    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    homes = {
        alias.name: node.module or ""
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (node.module or "").startswith("regard")  # and not what types the stub
    }
    assert {"Run", "attend", "load", "look", "draw", "models"} <= set(homes)
    assert regard.__all__ == sorted(homes) == dir(regard)
    for name, home in homes.items():
        is_package = home == "regard"
        module = import_module(f"regard.{name}" if is_package else home)
        assert getattr(regard, name) is (module if is_package else getattr(module, name))
    with pytest.raises(AttributeError, match="no attribute 'atend'"):
        regard.atend  # noqa: B018


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_regard_loads_nothing_heavy_and_takes_less_than_150_ms():
    heavy = "import sys, regard; print([m for m in ('torch', 'numpy', 'rich') if m in sys.modules])"
    assert run_python(heavy) == "[]"
    timed = "import time; start = time.process_time(); import regard; "
    timed += "print(time.process_time() - start)"
    assert min(float(run_python(timed)) for _ in range(3)) < 0.15


def test_the_package_ships_its_types():
    assert (PACKAGE / "py.typed").is_file()


def test_the_changelog_knows_this_version():
    newest = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == PROJECT["project"]["version"]
    assert f"\nversion: {newest[1]}\n" in (ROOT / "CITATION.cff").read_text()


def test_make_targets_that_the_pages_name_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        named = re.findall(r"(?:^|`)make (\w+)", (ROOT / page).read_text(), re.MULTILINE)
        assert set(named) <= targets


def test_the_files_that_the_contributing_page_names_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Adding things")[2]
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text))
    assert len(named) > 30
    missing = [x for x in named if not (PACKAGE / x).exists() and not (ROOT / x).exists()]
    assert missing == []


def test_every_test_file_has_a_name_of_its_own():
    files = (ROOT / "tests").rglob("test_*.py")
    names = [path.name for path in files if not (path.parent / "__init__.py").exists()]
    assert sorted(names) == sorted(set(names))


def test_every_module_has_a_one_line_summary_and_none_is_called_utils():
    for path in PACKAGE.rglob("*.py"):
        doc = ast.get_docstring(ast.parse(path.read_text()))
        assert doc, path
        assert "\n" not in doc.split("\n\n")[0], path
        assert path.stem not in ("utils", "helpers", "common", "misc"), path


def test_shape_strings_are_checked_at_once_so_annotations_are_not_put_off():
    late = [
        p for p in PACKAGE.rglob("*.py") if "from __future__ import annotations" in p.read_text()
    ]
    assert late == []


def messages(path: Path) -> list[tuple[str, str]]:
    """The kind and text of every error of ours that a file raises; {} stands for a value."""

    def text(node: ast.expr) -> str:
        if isinstance(node, ast.JoinedStr):
            return "".join(text(part) for part in node.values)
        return str(node.value) if isinstance(node, ast.Constant) else "{}"

    raised = [n.exc for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Raise)]
    calls = [exc for exc in raised if isinstance(exc, ast.Call) and isinstance(exc.func, ast.Name)]
    ours = vars(import_module("regard.errors"))
    return [(c.func.id, text(c.args[0])) for c in calls if c.func.id in ours]


def test_every_error_names_the_argument_the_rule_and_what_came():
    raised = [(path, *error) for path in PACKAGE.rglob("*.py") for error in messages(path)]
    assert len(raised) > 100
    rule = r"[\w{}., ]+: needs? .*\bgot\b"
    other = {"BackendError": r"backend: .* cannot run here, .*; try ", "FileError": r"{}: "}
    odd = [
        (path.name, text)
        for path, kind, text in raised
        if not re.match(rule, text, re.DOTALL) and not re.match(other.get(kind, "$^"), text)
    ]
    assert odd == []


def test_the_commit_check_is_make_test_and_nothing_else():
    lines = (ROOT / ".ci/run").read_text().splitlines()
    assert lines[-1] == "make test"
    assert sum("make" in line for line in lines) == 1
