"""The files of the page: modules that are needed together are sent as one, for few requests.

Each module becomes a function that returns its exports; `/page/app.js` holds those of the shell and
the first view, `/page/views/NAME.js` what another view adds. No module may import itself in turn.
"""

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

FOLDER = Path(__file__).parent
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
APP, FIRST_VIEW, VIEW = "app.js", "views/text.js", "views/"
IMPORT = re.compile(r'^(import|export) \{([^}]*)\} from "(\.[^"]+)";', re.MULTILINE)
LAZY_IMPORT = re.compile(r'\bimport\("(\.[^"]+)"\)')
EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
EXPORT_LIST = re.compile(r"\bexport ?\{([^}]*)\};?")
START = """const $parts = {}, $made = {};
const $use = (name) => $made[name] ??= $parts[name]();
const $load = (name) => (name in $parts ? Promise.resolve() : import(`/page/${name}`))
  .then(() => $use(name));
globalThis.$page = { $parts, $use, $load };
"""
MORE = "const { $parts, $use, $load } = globalThis.$page;\n"


class PageFile(NamedTuple):
    """A file of the page."""

    content: bytes
    content_type: str
    etag: str


class Module(NamedTuple):
    """A module as a function, the modules that it imports, and those that it loads later."""

    code: str
    imports: tuple[str, ...]
    views: tuple[str, ...]


@cache
def page_files() -> dict[str, PageFile]:
    """The files by URL path.

    >>> sorted(page_files())[0], "/page/lib/dom.js" in page_files()
    ('/', False)
    """
    first = reached({APP, FIRST_VIEW})
    views = {name for part in modules().values() for name in part.views} - first.keys()
    contents = {f"/page/{x}": MORE + joined(reached({x}).keys() - first) for x in views}
    contents["/page/app.js"] = bundle({FIRST_VIEW})
    contents["/page/app.css"] = styles()
    contents["/"] = (FOLDER / "index.html").read_text()
    for path in sorted(FOLDER.rglob("*")):
        name = path.relative_to(FOLDER).as_posix()
        if path.suffix in TYPES and path.suffix not in (".css", ".html") and name not in modules():
            contents[f"/page/{name}"] = path.read_text()
    return {url: _page_file(url, text) for url, text in contents.items()}


def _page_file(url: str, text: str) -> PageFile:
    etag = f'"{hashlib.sha256(text.encode()).hexdigest()[:20]}"'
    return PageFile(text.encode(), TYPES[PurePosixPath(url).suffix or ".html"], etag)


def bundle(views: Iterable[str]) -> str:
    """The code that starts the page; it holds these views.

    >>> bundle(["views/cost.js"]).endswith('$use("app.js");')
    True
    """
    return f'{START}{joined(reached({APP, *views}))}$use("{APP}");'


def joined(names: Iterable[str]) -> str:
    """Definitions of modules; one that is defined already stays, as it has a state."""
    return "".join(f'$parts["{name}"] ??= {modules()[name].code};\n' for name in sorted(names))


def styles() -> str:
    """All style sheets."""
    return "".join(path.read_text() for path in sorted(FOLDER.glob("*.css")))


def reached(names: set[str]) -> dict[str, Module]:
    """Modules and all that they import."""
    needed: dict[str, Module] = {}
    waiting = [*names]
    while waiting:
        if (name := waiting.pop()) not in needed and name in modules():
            needed[name] = modules()[name]
            waiting += needed[name].imports
    return needed


@cache
def modules() -> dict[str, Module]:
    """The modules by name, such as lib/dom.js."""
    paths = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*.js")}
    code = {name: path.read_text() for name, path in paths.items() if "worklet" not in name}
    return {name: _as_function(name, text) for name, text in code.items()}


def _as_function(name: str, code: str) -> Module:
    exported: list[str] = []

    def import_names(match: re.Match[str]) -> str:
        if match[1] == "export":
            exported.extend(x.strip() for x in match[2].split(","))
        return f'const {{{match[2].replace(" as ", ": ")}}} = $use("{_resolve(name, match[3])}");'

    def export_list(match: re.Match[str]) -> str:
        pairs = (x.strip().partition(" as ") for x in match[1].split(","))
        exported.extend(f"{public}: {here}" if public else here for here, _, public in pairs)
        return ""

    def export_name(match: re.Match[str]) -> str:
        exported.append(match[2])
        return match[1]

    imports = tuple(_resolve(name, match[3]) for match in IMPORT.finditer(code))
    views = tuple(_resolve(name, match[1]) for match in LAZY_IMPORT.finditer(code))
    code = IMPORT.sub(import_names, code)
    code = LAZY_IMPORT.sub(lambda match: f'$load("{_resolve(name, match[1])}")', code)
    code = EXPORT_LIST.sub(export_list, EXPORT.sub(export_name, code))
    return Module(f"() => {{\n{code}\nreturn {{ {', '.join(exported)} }};\n}}", imports, views)


def _resolve(module: str, target: str) -> str:
    """The name of a module that another one imports by a relative path.

    >>> _resolve("views/text.js", "../lib/dom.js")
    'lib/dom.js'
    """
    parts: list[str] = []
    for part in (PurePosixPath(module).parent / target).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)
