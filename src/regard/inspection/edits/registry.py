"""The registry of edits: what each takes, read from its signature, and edits written as text.

The explorer builds its controls from `EDITS`, the command line and links read edits by
`parse_edits`, and the table of docs/look/what-if.md is made from both.
"""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, getdoc, signature
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from torch import Tensor

from regard.errors import ConfigError, suggestion
from regard.inspection.edits.base import Edit, Indices, Selection
from regard.inspection.edits.closed_forms import OutputChange
from regard.inspection.record.sight import Sight
from regard.inspection.sites.mixer_site import MixerSite
from regard.inspection.sites.site import Site
from regard.ops.indices import as_ints

if TYPE_CHECKING:
    from regard.inspection.edits.activations import ActivationEdit

Kind = Literal["place", "indices", "number", "seed", "other"]
Function = TypeVar("Function", bound="Callable[..., Edit | ActivationEdit]")
MAX_EDITS, MAX_CHARS = 200, 20_000  # of one text


class Range(NamedTuple):
    """Range of a number, as a slider shows it, and the value with which an edit does nothing."""

    low: float
    high: float
    neutral: float


class EditParameter(NamedTuple):
    """A parameter of an edit.

    A place is a glob over attention sites or activations; indices are those of keys, queries,
    heads, positions or units, as the name says.
    """

    name: str
    kind: Kind
    is_required: bool
    range: Range | None


@dataclass(frozen=True)
class EditType:
    """A registered edit, and the formula of what it changes in the output of one attention.

    >>> from regard.inspection.edits.registry import EDITS
    >>> [parameter.name for parameter in EDITS["scale_key"].parameters]
    ['site', 'keys', 'alpha', 'heads']
    """

    name: str
    make: "Callable[..., Edit | ActivationEdit]"
    meaning: str
    parameters: tuple[EditParameter, ...]
    formula: str
    effect: Callable[..., OutputChange | None] | None

    @property
    def target(self) -> "Target":
        """What it edits: attention, linear mixers or activations."""
        return TARGETS[self.parameters[0].name]

    @property
    def has_text(self) -> bool:
        """Whether it can be written as text: nothing that it needs is a tensor or a recording."""
        return not any(x.kind == "other" and x.is_required for x in self.parameters)


Target = Literal["attention", "mixer", "activation"]
# what an edit changes, by the name of its first parameter
TARGETS: dict[str, Target] = {"site": "attention", "mixer": "mixer", "name": "activation"}
EDITS: dict[str, EditType] = {}


def register_edit(
    *, formula: str = "", effect: Callable[..., OutputChange | None] | None = None, **ranges: Range
) -> Callable[[Function], Function]:
    """Function decorator: the function makes an edit, which every surface then offers.

    The description of the edit is its call.

    Args:
        formula: What the edit changes in the output of one attention, as a formula.
        effect: That formula: called with a site and the edit's arguments, None where it has none.
        **ranges: Of each parameter that is a number.
    """

    def register(make: Function) -> Function:
        name, form = make.__name__, signature(make)
        meaning = (getdoc(make) or "").partition("\n")[0]
        parameters = tuple(_parameter(x, ranges.get(x.name)) for x in form.parameters.values())

        @wraps(make)
        def described(*args: Any, **kwargs: Any) -> Any:
            edit = make(*args, **kwargs)
            return replace(edit, description=f"{name}({_arguments_text(form, args, kwargs)})")

        EDITS[name] = EditType(name, described, meaning, parameters, formula, effect)
        return described  # type: ignore[return-value]

    return register


def _arguments_text(form: Signature, args: tuple, kwargs: dict[str, Any]) -> str:
    """The arguments of a call as source text, without keyword arguments that are the default."""
    given = form.bind(*args, **kwargs)
    given.apply_defaults()
    texts = []
    for name, x in given.arguments.items():
        is_keyword = form.parameters[name].kind is Parameter.KEYWORD_ONLY
        if isinstance(x, Tensor):
            text = f"<{' × '.join(map(str, x.shape)) or 'number'}>"
        else:
            is_recorded = isinstance(x, Sight | Site | MixerSite)
            text = repr(getattr(x, "name", "sight") if is_recorded else x)
        if not (is_keyword and text == repr(form.parameters[name].default)):
            texts.append(f"{name}={text}" if is_keyword else text)
    return ", ".join(texts)


def _parameter(x: Parameter, span: Range | None) -> EditParameter:
    kinds: dict[Any, Kind] = {Indices: "indices", Selection: "indices", float: "number"}
    kind: Kind = kinds.get(x.annotation, "other")
    if x.annotation is str:
        kind = "place"
    elif x.name == "seed":
        kind = "seed"
    if (kind == "number") != (span is not None):
        raise TypeError(f"{x.name}: needs a Range exactly if it is a number")
    return EditParameter(x.name, kind, x.default is Parameter.empty, span)


class EditCall(NamedTuple):
    """One edit as text: which one, and its arguments by name."""

    type: EditType
    arguments: dict[str, Any]

    def make(self, **changes: Any) -> "Edit | ActivationEdit":
        """The edit, with some arguments changed."""
        return self.type.make(**self.arguments | changes)

    def effect(self, site: Site, head: int) -> OutputChange | None:
        """What it changes at one site by its formula; None where it has none for this head."""
        heads = self.arguments.get("heads")
        if self.type.effect is None or (heads is not None and head not in as_ints("heads", heads)):
            return None
        _, *others = (x for x in self.type.parameters if x.name != "heads")
        if any(x.name in self.arguments for x in others if not x.is_required):
            return None
        return self.type.effect(site, *(self.arguments[x.name] for x in others if x.is_required))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the edit, its place, and the other arguments."""
        (_, place), *others = self.arguments.items()
        return {"edit": self.type.name, "place": place, "values": dict(others)}


def parse_edits(text: str) -> list[EditCall]:
    """Edits from text, written as in Python and separated by semicolons; nothing is evaluated.

    >>> (call,) = parse_edits("drop_head('encoder.*', heads=[1, 2])")
    >>> call.make()
    drop_head('encoder.*', [1, 2])
    >>> parse_edits("drop_heads('*', 1)")
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: edits: needs a known edit, got 'drop_heads'; try drop_head
    """
    if len(text) > MAX_CHARS:
        raise ConfigError(f"edits: needs at most {MAX_CHARS} characters, got {len(text)}")
    try:
        lines = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(
            f"edits: needs calls such as drop_head('*', 0), got {text[:60]!r}"
        ) from None
    if len(lines) > MAX_EDITS:
        raise ConfigError(f"edits: needs at most {MAX_EDITS}, got {len(lines)}")
    return [_parse_call(line, text) for line in lines]


def _parse_call(line: ast.stmt, text: str) -> EditCall:
    call = line.value if isinstance(line, ast.Expr) else None
    if not isinstance(call, ast.Call):
        raise ConfigError(f"edits: needs calls such as drop_head('*', 0), got {text[:60]!r}")
    name = ast.unparse(call.func).removeprefix("rg.edit.")
    known = [x.name for x in EDITS.values() if x.has_text]
    if name not in known:
        in_python = "; it takes a tensor or a sight, try rg.what_if" if name in EDITS else ""
        hint = in_python or suggestion(name, known)
        raise ConfigError(f"edits: needs a known edit, got {name[:40]!r}{hint}")
    try:
        given = [ast.literal_eval(x) for x in call.args]
        named = {str(x.arg): ast.literal_eval(x.value) for x in call.keywords}
        arguments = signature(EDITS[name].make).bind(*given, **named).arguments
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        reason = re.sub(r"^malformed node.*", "an argument is no plain value", str(error))
        raise ConfigError(f"{name}: needs its arguments, got {reason}") from None
    edit = EditCall(EDITS[name], dict(arguments))
    edit.make()  # checks the values
    return edit
