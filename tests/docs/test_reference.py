"""The reference pages are up to date, and every public name has types and an example."""

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs/make_reference.py")
assert spec is not None
assert spec.loader is not None
make_reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_reference)

NAMES = [
    pytest.param(entry, id=f"{layer}.{entry.name}")
    for layer in make_reference.LAYERS
    for entry in make_reference.public(layer)
    if isinstance(entry.node, ast.FunctionDef | ast.ClassDef)
]


def test_pages_are_up_to_date():
    files = {page.name: page.read_text() for page in (ROOT / "docs/reference").glob("*.md")}
    stale = [name for name, text in make_reference.pages().items() if files.get(name) != text]
    assert stale == [], "run `make docs`"
    assert set(files) == set(make_reference.pages())


@pytest.mark.parametrize("entry", NAMES)
def test_every_public_name_has_an_example(entry):
    assert ">>>" in entry.doc, f"{entry.module}.{entry.name} has no example in its docstring"


@pytest.mark.parametrize("entry", NAMES)
def test_every_public_function_is_annotated(entry):
    for function in ast.walk(entry.node):
        if isinstance(function, ast.FunctionDef) and function.name in (entry.name, "forward"):
            args = [*function.args.args, *function.args.kwonlyargs]
            bare = [arg.arg for arg in args if arg.annotation is None and arg.arg != "self"]
            assert bare == []
            assert function.returns is not None


@pytest.mark.parametrize("layer", make_reference.LAYERS)
def test_every_public_name_is_on_its_page_and_imports(layer):
    module = importlib.import_module(f"regard.{layer}")
    page = (ROOT / f"docs/reference/{layer}.md").read_text().splitlines()
    for name in module.__all__:
        assert hasattr(module, name)
        assert f"## {name}" in page
