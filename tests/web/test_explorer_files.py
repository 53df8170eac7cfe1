"""The files of the page: small, ours or licensed, and each view has its query."""

import hashlib
import re
from pathlib import PurePosixPath

from regard.page import FOLDER, page_files
from regard.page.bundle import TYPES, modules, reached
from regard.web.explorer.explorer import find_query, query_names

MAX_PAGE = 400_000  # bytes of the sources, without compression
MAX_WIDTH, MAX_FUNCTION, MAX_LINES = 120, 60, 400
VENDOR = {  # as published; a change of theirs has to be a new version in LICENSES.txt
    "preact.js": "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
    "signals.js": "0c80bc127d72ecb1496ef116ffddae75079829a3af01e7f417c8e5a6474c68b6",
}
IMPORT = re.compile(  # also of a file that is loaded by its address
    r"""^(?:import|export \{)[^;"]*"([^"]+)";|\bimport\("([^"]+)"\)|"/page/([^"]+\.js)\"""",
    re.MULTILINE,
)


def scripts():
    return {path.relative_to(FOLDER).as_posix(): path.read_text() for path in FOLDER.rglob("*.js")}


def views():
    return re.findall(r"^  \"?([a-z-]+)\"?: \[\"", (FOLDER / "app.js").read_text(), re.MULTILINE)


def resolved(name, target):
    parts = []
    for part in (PurePosixPath(name).parent / target).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def test_code_of_others_is_as_published_and_has_its_licence():
    files = {path.name: path for path in (FOLDER / "vendor").iterdir()}
    licences = files.pop("LICENSES.txt").read_text()
    found = {name: hashlib.sha256(x.read_bytes()).hexdigest() for name, x in files.items()}
    assert found == VENDOR
    for name in VENDOR:
        assert re.search(rf"^{name}\s+\S+ [\d.]+, .*\((MIT|Apache-2.0)\)", licences, re.MULTILINE)
    for needed in ("Permission is hereby granted", "Apache License", "Copyright (c) 2015-present"):
        assert needed in licences


def test_the_page_stays_small():
    files = [x for x in FOLDER.rglob("*") if x.suffix in TYPES and x.suffix != ".txt"]
    sizes = {path.name: path.stat().st_size for path in files}
    assert sum(sizes.values()) < MAX_PAGE, sorted(sizes.items(), key=lambda x: -x[1])[:8]


def test_a_name_that_a_module_imports_is_one_that_the_other_exports():
    exports = {
        name: set(re.findall(r"(\w+)(?:: \w+)?(?:,|$)", part.code.splitlines()[-2][9:-3]))
        for name, part in modules().items()
    }
    assert {"html", "useSignal", "fixed"} <= exports["lib/dom.js"]
    assert {"h", "render"} <= exports["vendor/preact.js"]
    for name, part in modules().items():
        for names, source in re.findall(r'const \{([^}]*)\} = \$use\("(.+?)"\)', part.code):
            wanted = {x.split(":")[0].strip() for x in names.split(",") if x.strip()}
            assert wanted <= exports[source], (name, source)


def test_no_module_imports_itself_in_turn():
    for name, part in modules().items():
        assert name not in reached({*part.imports}), name


def test_every_module_is_sent_once_by_each_file_that_needs_it_and_nothing_is_left_to_import():
    sent = {url: x.content.decode() for url, x in page_files().items() if url.endswith(".js")}
    sent.pop("/page/lib/microphone-worklet.js")
    for url, code in sent.items():
        assert not re.search(r"^(?:import|export)\b", code, re.MULTILINE), url
        assert "</script" not in code, url  # it stands in a script element of offline pages
        names = re.findall(r'^\$parts\["(.+?)"\] \?\?=', code, re.MULTILINE)
        assert len(names) == len(set(names)) > 0, url
    assert all(any(f'$parts["{name}"] ??=' in code for code in sent.values()) for name in modules())


def test_lines_functions_and_files_of_the_page_stay_short():
    """A function ends at the first line with its own indentation and a closing brace."""
    start = re.compile(
        r"^(\s*)(?:export )?(?:async )?(?:function |const \w+ = .*=> ?[{(]$|\w+\(.*\) \{$)"
    )
    for path in (
        *FOLDER.glob("*.css"),
        FOLDER / "app.js",
        *FOLDER.glob("lib/*"),
        *FOLDER.glob("views/*"),
    ):
        lines = path.read_text().splitlines()
        assert len(lines) <= MAX_LINES, path.name
        for number, line in enumerate(lines, 1):
            assert len(line) <= MAX_WIDTH, f"{path.name}:{number}"
            if path.suffix == ".js" and (found := start.match(line)) and line.endswith(("{", "(")):
                ends = (n for n, x in enumerate(lines[number:], 2) if x.startswith(found[1] + "}"))
                assert next(ends, 0) <= MAX_FUNCTION, f"{path.name}:{number}"


def test_every_view_has_a_query_of_its_name_and_every_such_query_a_view():
    queries = {name for name in query_names() if "." not in name}
    assert set(views()) == queries - {"models"}
    assert {name.partition(".")[0] for name in query_names()} <= queries


def test_every_import_of_the_page_leads_to_a_file_and_no_file_is_left_over():
    code = scripts()
    used = {"app.js"}
    for name, text in code.items():
        for match in IMPORT.finditer(text):
            target = match[1] or match[2] or match[3]
            path = target if match[3] else resolved(name, target)
            assert match[3] or target.startswith("."), f"{name} imports {target}"
            assert path in code, f"{name} imports {target}"
            used.add(path)
    assert set(code) == used


def test_every_query_that_the_page_asks_exists():
    known = set(query_names())
    for name, text in scripts().items():
        if not name.startswith("vendor/"):
            requested = re.findall(r"\b(?:request|useResponse)\(\s*\"([a-z.-]+)\"", text)
            assert set(requested) <= known, name


def test_every_view_says_what_it_is_and_names_a_table_that_exists():
    known = set(query_names())
    for view in views():
        text = scripts()[f"views/{view}.js"]
        assert re.search(r"export (?:const|let) hint =", text), view
        assert re.search(r"export (?:function|const) View\b", text), view
        for name in re.findall(r"export const csv = .*?\[\"([a-z.-]+)\"", text):
            assert name in known, view


def test_a_view_request_knows_every_parameter_of_the_links():
    """`regard view` takes what a link holds: what the page reads of it, and what it writes."""
    for view in views():
        code = "\n".join(
            x for name, x in scripts().items() if re.match(rf"views/{view}(-[a-z]+)?\.js", name)
        )
        written = " ".join(re.findall(r"setParams\(\{(.*?)\}", code, re.DOTALL))
        names = {
            *re.findall(r"\bparams\.(\w+)", code),
            *re.findall(r'setParam\("(\w+)"', code),
            *re.findall(r"(?:^|[{,])\s*(\w+):", written),
        }
        known = find_query(view).request.model_fields.keys()
        assert names, view
        assert names <= known, (view, names - known)
