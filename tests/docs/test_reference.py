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

ENTRIES = {
    f"{entry.module}.{entry.name}": entry
    for layer in make_reference.LAYERS
    for entry in make_reference.public(layer)
    if isinstance(entry.node, ast.FunctionDef | ast.ClassDef)
}


def test_pages_are_up_to_date():
    files = {page.name: page.read_text() for page in (ROOT / "docs/reference").glob("*.md")}
    pages = make_reference.pages()
    stale = [name for name, text in pages.items() if files.get(name) != text]
    assert stale == [], "run `make docs`"
    assert set(files) == set(pages)


def test_every_public_name_has_an_example():
    assert len(ENTRIES) > 400
    bare = [name for name, entry in ENTRIES.items() if ">>>" not in entry.doc]
    assert [name for name in bare if not is_record(ENTRIES[name].node)] == []


def is_record(node: ast.AST) -> bool:
    """Whether a class has only fields: its constructor would be the example."""
    return isinstance(node, ast.ClassDef) and all(
        isinstance(line, ast.AnnAssign | ast.Expr) for line in node.body
    )


def test_every_public_function_is_annotated():
    bare = [
        f"{name}: {arg}"
        for name, entry in ENTRIES.items()
        for function in ast.walk(entry.node)
        if isinstance(function, ast.FunctionDef) and function.name in (entry.name, "forward")
        for arg in bare_parts(function)
    ]
    assert bare == []


def bare_parts(function: ast.FunctionDef) -> list[str]:
    """The arguments without an annotation, and the result if it has none."""
    args = [*function.args.args, *function.args.kwonlyargs]
    bare = [arg.arg for arg in args if arg.annotation is None and arg.arg != "self"]
    return bare + ["the result"] * (function.returns is None)


@pytest.mark.parametrize("layer", make_reference.LAYERS)
def test_every_public_name_is_on_its_page_and_imports(layer):
    module = importlib.import_module(f"regard.{layer}")
    page = (ROOT / f"docs/reference/{layer}.md").read_text().splitlines()
    for name in module.__all__:
        assert hasattr(module, name)
        assert f"## {name}" in page
