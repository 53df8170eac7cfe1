"""Edits as a parameter of a link: what the what-if view can change is what is registered."""

from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field
from torch import Tensor

from regard.inspection import Edit, Sight, Site
from regard.inspection.adapters.module_tracker import Caller, matches
from regard.inspection.edits.registry import EDITS, MAX_CHARS, parse_edits
from regard.ops.intercept import AttentionCall
from regard.web.explorer.catalog import Edits
from regard.web.explorer.explorer import TextRequest

SITE_GROUPS = {
    "all sites": "*",
    "encoder": "encoder.*",
    "decoder self": "decoder.*.self",
    "cross": "decoder.*cross",
    "all that reads the source": "encoder.* decoder.*cross",
}


class EditRequest(TextRequest):
    """A text, and the edits of the model that reads it.

    `edits` are written as in Python and separated by semicolons: `drop_head('decoder.1.self', 2);
    scale_scores('*', 0.5)`. They apply in this order.
    """

    edits: str = Field("", max_length=MAX_CHARS)


def build_edits(request: EditRequest) -> Edits:
    """The edits of a request.

    >>> build_edits(EditRequest(model="phrases", text="3 days", edits="uniform('*', heads=1)"))
    [uniform('*', heads=1)]
    """
    return [call.make() for call in parse_edits(request.edits)]


def list_edit_types() -> list[dict[str, Any]]:
    """The edits that can be written as text, for the controls of the page.

    >>> [x["edit"] for x in list_edit_types()][:2]
    ['drop_key', 'scale_key']
    """
    types = [x for x in EDITS.values() if x.has_text]
    order = ["attention", "mixer", "activation"]
    return [
        {
            "edit": edit.name,
            "meaning": edit.meaning,
            "target": edit.target,
            "parameters": [
                x._asdict() | {"range": x.range and list(x.range)}
                for x in edit.parameters
                if x.kind not in ("place", "other")
            ],
        }
        for edit in sorted(types, key=lambda x: order.index(x.target))
    ]


def edited_output(site: Site, edits: Edits) -> Tensor:
    """The output of a recorded site after the edits of outputs, which act on what was recorded."""
    call, out = AttentionCall(site.q, site.k, site.v, site.terms), site.out
    for edit in reversed(edits):
        if not isinstance(edit, Edit) or edit.apply is None:
            continue
        if matches(edit.site, site.name, site.path):
            out = edit.apply(call, lambda call, out=out: (out, site.lse), Caller())[0]
    return out


def site_groups(sight: Sight) -> list[dict[str, str]]:
    """Groups of sites that edits can be limited to: a name, and globs separated by spaces."""
    groups = []
    for name, where in SITE_GROUPS.items():
        counts = [sum(fnmatchcase(x, glob) for x in sight.names) for glob in where.split()]
        if where == "*" or (all(counts) and sum(counts) < len(sight.names)):
            groups.append({"name": name, "where": where})
    return groups
