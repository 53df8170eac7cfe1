"""Write docs/reference from the source: `make docs`. Nothing of regard is imported, only read.

Each public name of the folders below gets its signature with shapes, what its docstring says (the
equation set apart), and its example. A test compares the pages with the code.
"""

import ast
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PAGES = ROOT / "docs" / "reference"
LAYERS = ("ops", "nn", "data", "models", "decode", "train", "look", "work")


@dataclass(frozen=True)
class Entry:
    """One public name: where it is defined, and its definition."""

    name: str
    module: str
    text: str  # of the whole file
    node: ast.stmt | None  # None for a module that is public as a whole

    @property
    def doc(self) -> str:
        """The docstring, or what stands in its place for a name that cannot have one."""
        if isinstance(self.node, ast.FunctionDef | ast.ClassDef):
            return ast.get_docstring(self.node) or ""
        return (ast.get_docstring(ast.parse(self.text)) or "") if self.node is None else ""


def public(layer: str) -> list[Entry]:
    """The public names of a layer, in the order of its files."""
    return [_entry(name, module) for name, module in _imported(f"regard.{layer}").items()]


def pages() -> dict[str, str]:
    """Every page of the reference, by file name."""
    made = {f"{layer}.md": _page(layer) for layer in LAYERS}
    return {"README.md": _index(), **made}


def _imported(package: str) -> dict[str, str]:
    """What a package's __init__ takes from where, followed to the file that defines it."""
    found = {}
    for node in ast.parse(_file(package).read_text()).body:
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for alias in node.names:
            name, home = alias.asname or alias.name, node.module
            if _is_module(f"{home}.{alias.name}"):
                home = f"{home}.{alias.name}"
            while _file(home).name == "__init__.py" and name in (deeper := _imported(home)):
                home = deeper[name]
            found[name] = home
    return found


def _is_module(dotted: str) -> bool:
    place = SOURCE / dotted.replace(".", "/")
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def _file(dotted: str) -> Path:
    place = SOURCE / dotted.replace(".", "/")
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _entry(name: str, module: str) -> Entry:
    text = _file(module).read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return Entry(name, module, text, node)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return Entry(name, module, text, node)
    if module.endswith(f".{name}"):
        return Entry(name, module, text, None)
    raise LookupError(f"{name} is exported from {module}, but not defined there")


def _index() -> str:
    lines = ["# Reference", "", _made("every public name, by layer"), ""]
    for layer in LAYERS:
        anchors = _anchors(_in_page_order(layer))
        links = " · ".join(
            f"[{n}]({layer}.md#{anchors[n]})" for n in sorted(anchors, key=str.lower)
        )
        lines += [f"## [{layer}]({layer}.md)", "", links, ""]
    return "\n".join(lines)


def _anchors(entries: list[Entry]) -> dict[str, str]:
    """Where a page's headings are, as GitHub names them: in lower case, so two may clash."""
    anchors, used = {}, Counter()
    for entry in entries:
        low = entry.name.lower()
        anchors[entry.name] = f"{low}-{used[low]}" if used[low] else low
        used[low] += 1
    return anchors


def _in_page_order(layer: str) -> list[Entry]:
    return sorted(public(layer), key=lambda entry: entry.module)


def _page(layer: str) -> str:
    about = ast.get_docstring(ast.parse(_file(f"regard.{layer}").read_text()))
    lines = [f"# {layer}", "", _made(f"the public names of `regard.{layer}`"), "", about or "", ""]
    known = {entry.name for entry in public(layer)}
    for module, entries in groupby(_in_page_order(layer), key=lambda entry: entry.module):
        path, inside = _file(module).relative_to(ROOT), list(entries)
        purpose = (ast.get_docstring(ast.parse(inside[0].text)) or "").split("\n")[0]
        lines += ["---", "", f"[`{path}`](../../{path}): {purpose}", ""]
        for entry in inside:
            lines += _section(entry) if entry.node is not None else _whole(entry, known)
    return "\n".join(lines)


def _made(what: str) -> str:
    return f"*Made from the code by `make docs`: {what}.*"


def _whole(entry: Entry, known: set[str]) -> list[str]:
    """A module that is public as a whole: the classes that only its own name leads to."""
    nodes = [n for n in ast.parse(entry.text).body if isinstance(n, ast.ClassDef)]
    deeper = [n for n in nodes if n.name not in known and not n.name.startswith("_")]
    lines = [
        f"## {entry.name}",
        "",
        "The module itself; some names are reached only through it.",
        "",
    ]
    for node in deeper:
        inner = _section(Entry(f"{entry.name}.{node.name}", entry.module, entry.text, node))
        lines += ["#" + inner[0], *inner[1:]]
    return lines


def _section(entry: Entry) -> list[str]:
    lines, node = [f"## {entry.name}", ""], entry.node
    assert node is not None
    lines += _fence("python", _signature(entry.text, node))
    lines += _prose(entry.doc)
    if isinstance(node, ast.ClassDef):
        for method in _methods(node):
            said = (ast.get_docstring(method) or "").split("\n")[0]
            lines += [f"**{entry.name}.{method.name}** {said}".rstrip(), ""]
            lines += _fence("python", _signature(entry.text, method))
    return lines


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    """The methods a caller writes: those with a docstring, and forward."""
    methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
    open_ = [m for m in methods if m.name == "forward" or not m.name.startswith("_")]
    return [m for m in open_ if m.name == "forward" or ast.get_docstring(m)]


def _signature(text: str, node: ast.stmt) -> str:
    """The definition as it stands in the file, up to its body; a class shows what it is made of."""
    if isinstance(node, ast.FunctionDef):
        return _head(text, node)
    if not isinstance(node, ast.ClassDef):
        return ast.get_source_segment(text, node) or ""
    parts = [_decorators(text, node) + f"class {node.name}{_bases(text, node)}:"]
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign):
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
    """A docstring as Markdown: examples and equations fenced, the rest as written."""
    lines, paragraphs = [], [p for p in doc.split("\n\n") if p.strip()]
    example: list[str] = []
    for number, paragraph in enumerate(paragraphs):
        start = paragraph.find(">>>")
        if start >= 0 and (start == 0 or paragraph[start - 1] == "\n"):
            lines += [paragraph[:start].rstrip(), ""] if start else []
            example.append(paragraph[start:])
        elif number and _is_equation(paragraph):
            lines += _fence("text", paragraph)
        else:
            lines += [paragraph, ""]
    return lines + (_fence("pycon", "\n\n".join(example)) if example else [])


def _is_equation(paragraph: str) -> bool:
    signs = any(sign in paragraph for sign in (" = ", " ≤ ", " · ", " → "))
    return signs and not paragraph.rstrip().endswith(".")


def _fence(language: str, text: str) -> list[str]:
    return [f"```{language}", text, "```", ""]


def main() -> None:
    """Write every page that differs, and remove what is no page any more."""
    PAGES.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in PAGES.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (PAGES / name).write_text(text)
    print(f"docs/reference: {len(made)} pages", file=sys.stderr)


if __name__ == "__main__":
    main()
