"""Generate docs/reference from the docstrings, by parsing the source: `make docs`.

Each public name of the packages below gets its signature with shapes, its docstring (equations in
blocks) and its example. A test compares the pages with the code.
"""

import ast
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PAGES = ROOT / "docs" / "reference"
LAYERS = (
    "ops",
    "nn",
    "data",
    "models",
    "decode",
    "train",
    "inspection",
    "claims",
    "costs",
    "work",
    "tasks",
    "runs",
)


@dataclass(frozen=True)
class Entry:
    """One public name: where it is defined, and its definition."""

    name: str
    module: str
    text: str  # of the whole file
    node: ast.stmt | None  # None for a module that is public as a whole

    @property
    def doc(self) -> str:
        """The docstring; of a module that is public as a whole, the module's."""
        if isinstance(self.node, ast.FunctionDef | ast.ClassDef):
            return ast.get_docstring(self.node) or ""
        return (ast.get_docstring(_tree(self.module)) or "") if self.node is None else ""


def public(layer: str) -> list[Entry]:
    """The public names of a layer, in the order of its files."""
    return _exports(f"regard.{layer}")


def pages() -> dict[str, str]:
    """Every page of the reference, by file name."""
    return {"index.md": _index(), **{f"{layer}.md": _page(layer) for layer in LAYERS}}


def _exports(package: str) -> list[Entry]:
    """The entries of a package's or module's `__all__`."""
    origins = _origins(package)
    return [_entry(name, *origins[name]) for name in _all(package)]


def _top_level() -> list[str]:
    """The public names of `regard` itself, in its stub."""
    return list(_origins("regard"))


def _all(package: str) -> list[str]:
    nodes = _tree(package).body
    lists = [x for x in nodes if isinstance(x, ast.Assign) and "__all__" in _names(x)]
    if not lists and _stub(package).exists():
        return sorted(_origins(package))
    return ast.literal_eval(lists[0].value) if lists else []


def _stub(module: str) -> Path:
    return SOURCE / module.replace(".", "/") / "__init__.pyi"


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_file(module).read_text())


@cache
def _origins(module: str) -> dict[str, tuple[str, str]]:
    """For each name that a module imports from regard: the defining module, and its name there."""
    found = {}
    stub = _stub(module)
    tree = ast.parse(stub.read_text()) if stub.exists() else _tree(module)
    for node in ast.walk(tree):  # TYPE_CHECKING blocks too
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("regard"):
            continue
        for alias in node.names:
            home, name = node.module, alias.name
            if _is_module(f"{home}.{name}"):
                home = f"{home}.{name}"
            while not _defines(home, name) and name in (deeper := _origins(home)):
                home, name = deeper[name]
            found[alias.asname or alias.name] = (home, name)
    return found


def _defines(module: str, name: str) -> bool:
    return any(name in _names(node) for node in _tree(module).body)


def _names(node: ast.stmt) -> set[str]:
    """The names that a top-level statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _is_module(dotted: str) -> bool:
    place = SOURCE / dotted.replace(".", "/")
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def _file(dotted: str) -> Path:
    place = SOURCE / dotted.replace(".", "/")
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _entry(name: str, module: str, original: str) -> Entry:
    text = _file(module).read_text()
    for node in reversed(_tree(module).body):  # the implementation follows its overloads
        if original in _names(node):
            return Entry(name, module, text, node)
    if module.endswith(f".{original}"):
        return Entry(name, module, text, None)
    raise LookupError(f"{name} is exported from {module}, but not defined there")


def _index() -> str:
    lines = ["# Reference", "", _note("every public name, by package"), ""]
    by_layer = {layer: _anchors(_in_page_order(layer)) for layer in LAYERS}
    top = [
        f"[{name}]({layer}.md#{anchors[name]})"
        for name in sorted(_top_level(), key=str.lower)
        for layer, anchors in by_layer.items()
        if name in anchors
    ]
    lines += ["## Top level", "", "`rg.NAME` for:", "", " · ".join(top), ""]
    for layer, anchors in by_layer.items():
        links = " · ".join(
            f"[{n}]({layer}.md#{anchors[n]})" for n in sorted(anchors, key=str.lower)
        )
        lines += [f"## [regard.{layer}]({layer}.md)", "", links, ""]
    return "\n".join(lines)


def _anchors(entries: list[Entry]) -> dict[str, str]:
    """The anchor of each heading. Headings that differ only in case get a number."""
    anchors, counts = {}, Counter()
    for entry in entries:
        slug = entry.name.lower()
        anchors[entry.name] = f"{slug}-{counts[slug]}" if counts[slug] else slug
        counts[slug] += 1
    return anchors


def _in_page_order(layer: str) -> list[Entry]:
    return sorted(public(layer), key=lambda entry: entry.module)


def _page(layer: str) -> str:
    about = ast.get_docstring(_tree(f"regard.{layer}"))
    title, note = f"# regard.{layer}", _note(f"the public names of `regard.{layer}`")
    lines, entries = [title, "", note, "", about or "", ""], _in_page_order(layer)
    known, anchors = {entry.name for entry in entries}, _anchors(entries)
    for module, group in groupby(entries, key=lambda entry: entry.module):
        path, members = _file(module).relative_to(ROOT), list(group)
        purpose = (ast.get_docstring(_tree(module)) or "").split("\n")[0]
        lines += ["---", "", f"[`{path}`](../../{path}): {purpose}", ""]
        if shapes := _shapes(members[0].text, module):
            lines += _fence("python", shapes)
        for entry in members:
            if anchors[entry.name] != entry.name.lower():  # MkDocs numbers equal headings otherwise
                lines += [f'<a id="{anchors[entry.name]}"></a>', ""]
            lines += _section(entry) if entry.node is not None else _module_section(entry, known)
    return "\n".join(lines)


def _shapes(text: str, module: str) -> str:
    """The names that a module gives to shapes, which its signatures use."""
    names = [node for node in _tree(module).body if isinstance(node, ast.Assign)]
    sources = [ast.get_source_segment(text, node) or "" for node in names]
    return "\n".join(source for source in sources if '[Tensor, "' in source)


def _note(contents: str) -> str:
    return f"*Generated from the source by `make docs`: {contents}.*"


def _module_section(entry: Entry, known: set[str]) -> list[str]:
    """A public module: its re-exports, and classes that are not public names of the package."""
    lines = [f"## {entry.name}", "", "A module; its members are reached through its name.", ""]
    if _is_facade(entry.module):
        inner = _exports(entry.module)
    else:
        inner = [
            Entry(node.name, entry.module, entry.text, node)
            for node in _tree(entry.module).body
            if isinstance(node, ast.ClassDef) and node.name not in known and node.name[0] != "_"
        ]
    for member in inner:
        section = _section(replace(member, name=f"{entry.name}.{member.name}"))
        lines += ["#" + section[0], *section[1:]]
    return lines


def _is_facade(module: str) -> bool:
    """Whether a module only re-exports."""
    nodes = _tree(module).body
    return not any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in nodes)


def _section(entry: Entry) -> list[str]:
    lines, node = [f"## {entry.name}", ""], entry.node
    assert node is not None
    signature, short = _signature(entry.text, node), entry.name.rpartition(".")[2]
    if isinstance(node, ast.FunctionDef):  # exported under another name
        signature = signature.replace(f"def {node.name}(", f"def {short}(", 1)
    lines += _fence("python", signature)
    lines += _prose(entry.doc)
    if isinstance(node, ast.ClassDef):
        for method in _methods(node):
            summary = (ast.get_docstring(method) or "").split("\n")[0]
            lines += [f"**{entry.name}.{method.name}** {summary}".rstrip(), ""]
            lines += _fence("python", _signature(entry.text, method))
    return lines


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    """The public methods: those with a docstring, and forward."""
    methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
    open_ = [m for m in methods if m.name == "forward" or not m.name.startswith("_")]
    return [m for m in open_ if m.name == "forward" or ast.get_docstring(m)]


def _signature(text: str, node: ast.stmt) -> str:
    """The definition without its body; of a class its fields and __init__."""
    if isinstance(node, ast.FunctionDef):
        return _head(text, node)
    if not isinstance(node, ast.ClassDef):
        return ast.get_source_segment(text, node) or ""
    parts = [_decorators(text, node) + f"class {node.name}{_bases(text, node)}:"]
    for inner in node.body:
        is_method = isinstance(inner, ast.Assign) and isinstance(inner.value, ast.Name)
        if isinstance(inner, ast.AnnAssign) or is_method:
            parts.append(_lines(text, inner.lineno, inner.end_lineno or inner.lineno))
        elif isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            parts.append(_head(text, inner, indent="    "))
    return "\n".join(parts) if len(parts) > 1 else parts[0].rstrip(":")


def _head(text: str, node: ast.FunctionDef, indent: str = "") -> str:
    end = node.body[0].lineno - 1
    whole = textwrap.dedent(_decorators(text, node) + _lines(text, node.lineno, end)).rstrip()
    return textwrap.indent(whole.removesuffix(":"), indent)


def _decorators(text: str, node: ast.ClassDef | ast.FunctionDef) -> str:
    if not node.decorator_list:
        return ""
    return _lines(text, node.decorator_list[0].lineno, node.lineno - 1) + "\n"


def _bases(text: str, node: ast.ClassDef) -> str:
    bases = ", ".join(ast.get_source_segment(text, base) or "" for base in node.bases)
    return f"({bases})" if bases else ""


def _lines(text: str, first: int, last: int) -> str:
    return "\n".join(text.splitlines()[first - 1 : last])


def _prose(doc: str) -> list[str]:
    """A docstring as Markdown: examples and equations fenced, `Args:` as a list."""
    lines, paragraphs = [], [p for p in doc.split("\n\n") if p.strip()]
    example: list[str] = []
    for number, paragraph in enumerate(paragraphs):
        start = paragraph.find(">>>")
        if start >= 0 and (start == 0 or paragraph[start - 1] == "\n"):
            lines += [paragraph[:start].rstrip(), ""] if start else []
            example.append(paragraph[start:])
        elif paragraph.startswith("Args:\n"):
            lines += _arguments(paragraph)
        elif number and _is_equation(paragraph):
            lines += _fence("text", paragraph)
        else:
            lines += [paragraph, ""]
    return lines + (_fence("pycon", "\n\n".join(example)) if example else [])


def _arguments(paragraph: str) -> list[str]:
    """An `Args:` block as a list; deeper lines continue the item before."""
    items: list[str] = []
    for line in textwrap.dedent(paragraph.partition("\n")[2]).splitlines():
        if line.startswith(" ") and items:
            items[-1] += " " + line.strip()
        else:
            name, _, text = line.partition(":")
            items.append(f"- `{name}`:{text}")
    return ["Arguments:", "", *items, ""]


def _is_equation(paragraph: str) -> bool:
    signs = any(sign in paragraph for sign in (" = ", " ≤ ", " · ", " → "))
    return signs and not paragraph.rstrip().endswith(".")


def _fence(language: str, text: str) -> list[str]:
    return [f"```{language}", text, "```", ""]


def main() -> None:
    """Write every page and delete stale ones."""
    PAGES.mkdir(parents=True, exist_ok=True)
    texts = pages()
    for stale in {page.name for page in PAGES.glob("*.md")} - set(texts):
        (PAGES / stale).unlink()
    for name, text in texts.items():
        (PAGES / name).write_text(text)
    print(f"docs/reference: {len(texts)} pages", file=sys.stderr)


if __name__ == "__main__":
    main()
