"""The registry of queries: what the page can request, each a function of a checked request."""

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from regard.errors import ConfigError, suggestion
from regard.web.jobs import Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.web.explorer.explorer import Explorer

MAX_CHARS = 400_000  # of a text
Rows = Sequence[Sequence[Any]]  # of a table, the first one with the names of its columns


class QueryRequest(BaseModel):
    """Base of every request: an unknown field is an error."""

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
