"""The registry of queries, and `Explorer`, which responds to them with the models of a catalog."""

import base64
import csv
import hashlib
import io
import json
import math
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from regard.errors import ConfigError, RegardError, suggestion
from regard.web.explorer.atlas_maps import OpenMaps
from regard.web.explorer.catalog import BoundedStore, Catalog, Recordings
from regard.web.jobs import Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.web.explorer.lesson_file import Lesson

MAX_CHARS = 400_000  # of a text
Rows = Sequence[Sequence[Any]]  # of a table, the first one with the names of its columns


class QueryRequest(BaseModel):
    """Base of every request, and one that takes nothing: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class ModelRequest(QueryRequest):
    """A request about one model of the catalog."""

    model: str = Field(max_length=200)


class TextRequest(ModelRequest):
    """A request about one text that a model reads, and writes if it is an encoder-decoder."""

    text: str = Field(max_length=MAX_CHARS)
    to: str | None = Field(None, max_length=20)
    target: str | None = Field(None, max_length=MAX_CHARS)
    # of the task, such as `times=2&end=!`; only what the task returns depends on them
    options: str | None = Field(None, max_length=2000)


Compute = Callable[["Explorer", Any, Job], Any]
Related = Callable[[Any, Any], list[tuple[str, dict[str, Any]]]]


@dataclass
class Query:
    """Function decorator: the function is a query; one with the name of a view opens that view.

    Args:
        name: such as "text" or "text.cell".
        request: what the query takes.
        table: rows of a response, for CSV.
        figure: a matplotlib figure of a response, for SVG and PNG.
        related: names and bodies of what the view requests next, from its request and response; an
            offline page holds their responses too.
        is_cached: whether equal requests have equal responses.
        priority: smaller ones are computed first.
    """

    name: str
    request: type[QueryRequest]
    _: KW_ONLY
    table: Callable[[Any], Rows] | None = None
    figure: "Callable[[Any], Figure] | None" = None
    related: Related | None = None
    is_cached: bool = True
    priority: int = 0
    compute: Compute = field(init=False)

    def __call__(self, compute: Compute) -> Compute:
        if self.name in _queries:
            raise ConfigError(f"name: needs a new name of a query, got {self.name!r}")
        self.compute = compute
        _queries[self.name] = self
        return compute

    def parse(self, body: Any) -> QueryRequest:
        """The request of a JSON body; a ConfigError lists what is wrong with it."""
        try:
            return self.request.model_validate(body)
        except ValidationError as error:
            first, *others = error.errors()
            name = ".".join(map(str, first["loc"])) or "body"
            rule = first["msg"][:1].lower() + first["msg"][1:]
            if first["type"] == "missing":
                raise ConfigError(f"{name}: needs a value, got none") from None
            more = f" (and {len(others)} more problems)" if others else ""
            raise ConfigError(
                f"{name}: needs to be valid: {rule}, got {first['input']!r:.60}{more}"
            ) from None


_queries: dict[str, Query] = {}
query = Query  # as a decorator: @query("text", TextRequest)


def query_names() -> list[str]:
    """The names of all queries.

    >>> "text" in query_names()
    True
    """
    import regard.web.explorer.views  # noqa: F401  # registers them

    return sorted(_queries)


def find_query(name: str) -> Query:
    """The query of a name.

    >>> find_query("texts")
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: query: needs a known name, got 'texts'; try text
    """
    known = query_names()
    if name not in known:
        raise ConfigError(f"query: needs a known name, got {name[:40]!r}{suggestion(name, known)}")
    return _queries[name]


def table_of(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> Rows:
    """A table of these columns from the rows of a response.

    >>> table_of([{"head": 1, "map": []}], ["head"])
    [['head'], [1]]
    """
    return [columns, *([row[name] for name in columns] for row in rows)]


def pack(x: Tensor) -> dict[str, Any]:
    """A tensor for JSON: its shape and its float32 values in base64, little-endian.

    >>> pack(torch.zeros(2))
    {'shape': [2], 'float32': 'AAAAAAAAAAA='}
    """
    values = x.detach().to("cpu", torch.float32).contiguous().numpy().astype("<f4")
    return {"shape": list(x.shape), "float32": base64.b64encode(values.tobytes()).decode()}


def unpack(packed: dict[str, Any]) -> Tensor:
    """The tensor of `pack`, for tables and figures of a response.

    >>> unpack(pack(torch.tensor([0.5, 2.0])))
    tensor([0.5000, 2.0000])
    """
    content = bytearray(base64.b64decode(packed["float32"]))
    values = torch.frombuffer(content, dtype=torch.float32) if content else torch.zeros(0)
    return values.view(packed["shape"])


def finite(x: float) -> float | None:
    """A number that JSON has, else None.

    >>> finite(0.5), finite(float("nan"))
    (0.5, None)
    """
    return x if math.isfinite(x) else None


MAX_ANSWERS, MAX_UPLOADS = 64 << 20, 64 << 20  # bytes stored of each
MAX_UPLOAD = 16 << 20  # bytes of one file
SMALL_MODEL = 64 << 20  # bytes of weights


class Explorer:
    """Responds to queries; the page, the tests and the command line send the same ones.

    Args:
        catalog: the models.
        threads: of torch; None takes one for small models and one per core for others.
        lessons: file or folder of more lessons than those that are included.
    """

    def __init__(
        self, catalog: Catalog, *, threads: int | None = None, lessons: Path | None = None
    ):
        self.catalog, self.threads, self.lesson_path = catalog, threads, lessons
        if lessons is not None:
            from regard.web.explorer.lesson_file import read_lessons

            read_lessons(lessons)  # raises for one that cannot be read; the included ones can
        self.recordings, self.maps = Recordings(catalog), OpenMaps()
        self.answers, self.uploads = BoundedStore(MAX_ANSWERS), BoundedStore(MAX_UPLOADS)
        self._running = threading.RLock()  # a look or an edit acts on runs of other threads too

    @property
    def lessons(self) -> "dict[str, Lesson]":
        """The lessons by name; those of a teacher come first and are read anew each time."""
        from regard.web.explorer.lesson_file import included_lessons, read_lessons

        own = {} if self.lesson_path is None else read_lessons(self.lesson_path)
        return own | {n: x for n, x in included_lessons().items() if n not in own}

    def warm_up(self) -> None:
        """Open the first model, so that the first response does not wait for it."""
        first = next(iter(self.catalog.entries.values()), None)
        if first is not None and first.reads == "text" and first.kind != "sight":
            with self._running, suppress(RegardError):  # the error is that of the first request
                self.recordings.read(first.name, "3", to=next(iter(first.languages), None))

    def answer(self, name: str, body: Any, job: Job | None = None) -> Any:
        """The response to a query as Python values, computed in this thread.

        Queries of several threads are computed one after the other.
        """
        return json.loads(self.answer_json(find_query(name), body, job or Job()))

    def answer_json(self, query: Query, body: Any, job: Job) -> bytes:
        """The response as JSON; equal requests are computed once."""
        request = query.parse(body)
        key = self.answer_key(query, body)
        if key is not None and (known := self.answers.get(key)) is not None:
            return known
        with self._running:
            response = query.compute(self, request, job)
        job.check()  # a part that was cancelled may be left out of it
        encoded = json.dumps(response, ensure_ascii=False, allow_nan=False).encode(errors="replace")
        if key is not None:
            self.answers.put(key, encoded)
        return encoded

    def thread_count(self, body: dict[str, Any]) -> int:
        """Threads for a request: one thread for a small model, since more slow it down."""
        if self.threads is not None:
            return self.threads
        entry = self.catalog.entries.get(body.get("model") or "")
        files = [] if entry is None or entry.kind == "sight" else entry.path.glob("*.safetensors")
        return os.cpu_count() or 1 if sum(x.stat().st_size for x in files) > SMALL_MODEL else 1

    def known_answer(self, query: Query, body: Any) -> bytes | None:
        """The response if it was computed before."""
        key = self.answer_key(query, body)
        return None if key is None else self.answers.get(key)

    def answer_key(self, query: Query, body: Any) -> Hashable | None:
        """What the response depends on: the request, and the files of the models it names."""
        if not query.is_cached:
            return None
        names = [x for n, x in sorted(body.items()) if n in ("model", "other_model") and x]
        known = self.catalog.entries
        versions = [known[x].version if x in known else 0.0 for x in names]
        return query.name, json.dumps(body, sort_keys=True), tuple(versions)

    def csv(self, query: Query, body: Any, job: Job) -> str:
        """The table of a response as CSV."""
        if query.table is None:
            raise ConfigError(f"query: needs one with a table, got {query.name!r}")
        file = io.StringIO()
        csv.writer(file).writerows(query.table(json.loads(self.answer_json(query, body, job))))
        return file.getvalue()

    def upload(self, content: bytes) -> str:
        """Store a file that a user dropped; its name in requests."""
        if not 0 < len(content) <= MAX_UPLOAD:
            raise ConfigError(f"file: needs 1 to {MAX_UPLOAD} bytes, got {len(content)}")
        name = hashlib.sha256(content).hexdigest()[:24]
        self.uploads.put(name, content)
        return name

    def uploaded(self, name: str) -> bytes:
        """The content of an uploaded file."""
        content = self.uploads.get(name)
        if content is None:
            raise ConfigError("file: needs one that was uploaded, got another; try it once more")
        return content
