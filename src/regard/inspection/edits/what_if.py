"""Running a model with edits in place, and telling what they change."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.errors import ConfigError, LookError, ShapeError
from regard.inspection.adapters.module_tracker import ModuleTracker, check_glob, check_model
from regard.inspection.edits.base import CallSite, Edit
from regard.inspection.edits.comparison import Comparison
from regard.inspection.record.look import patched
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting


class EditLog:
    """What the edits of a `what_if` have done so far.

    `acted` counts, for each edit in order, the calls it changed, by the name of the attention.

    >>> layer = rg.nn.MultiHeadAttention(2, 1)
    >>> with rg.what_if(layer, rg.uniform("*")) as edited:
    ...     _ = layer(torch.ones(1, 4, 2))
    >>> edited
    uniform('*'): MultiHeadAttention
    """

    def __init__(self, edits: Sequence[Edit]):
        self.edits = tuple(edits)
        self.applied_calls: list[Counter[str]] = [Counter() for _ in edits]
        self.names: list[str] = []  # every attention that ran
        self.max_keys = 0  # the most keys an attention had, of those that were edited

    def __repr__(self) -> str:
        pairs = zip(self.edits, self.applied_calls, strict=True)
        return "\n".join(f"{edit}: {', '.join(names) or 'nothing yet'}" for edit, names in pairs)


@contextmanager
def what_if(model: nn.Module, *edits: Edit) -> Iterator[EditLog]:
    """Run a model with its attentions edited; everything after them follows.

    Edits act in the order given, each on what the one before made of the call. An edit that fits no
    attention that ran is an error at the end, not a silent nothing. A `look` around it sees the
    edited queries, keys and masks.

    >>> layer, x = rg.nn.MultiHeadAttention(2, 1, qkv_bias=False), torch.ones(1, 4, 2)
    >>> with rg.what_if(layer, rg.drop_head("*", 0)):
    ...     layer(x).abs().sum() == 0
    tensor(True)
    """
    for edit in edits:
        if not isinstance(edit, Edit):
            raise LookError(
                f"edits: need to be made by rg.drop_head and the like, got a {type(edit).__name__}"
                "; try rg.drop_head('*', 0)"
            )
    edited = EditLog(edits)
    with patched(model) as running, intercepting(_Editor(running, edited), running):
        yield edited
    _check_all_acted(edited)


def compare_edits(
    model: nn.Module,
    inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    *edits: Edit,
    labels: Int[Tensor, "*batch"] | None = None,
    id_to_token: Callable[[int], str] | None = None,
) -> Comparison:
    """What edits change in the answer of a model: it runs twice, without and with them.

    `inputs` is a tensor, a tuple of arguments or a dict of keywords. `labels` are what each
    position should say, as the logits stand (no shift; below 0 is not counted). `words` turns a
    token into text.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> change = rg.compare_edits(model, torch.tensor([[1, 2, 3]]), rg.scale_scores("*", 1.0))
    >>> change.kl.shape, bool(change.kl.abs().max() < 1e-6)
    (torch.Size([1, 3]), True)
    """
    check_model(model)
    if any(module.training for module in model.modules()):
        raise ConfigError(
            "model: needs eval mode, or dropout is part of the difference, got training; "
            "try model.eval()"
        )
    with torch.no_grad():
        with what_if(model):  # without edits, also those of another thread
            before = get_logits(call_model(model, inputs))
        with what_if(model, *edits):
            after = get_logits(call_model(model, inputs))
    return Comparison(before, after, edits, labels, id_to_token)


def call_model(model: nn.Module, inputs: Tensor | Sequence[Any] | Mapping[str, Any]) -> Any:
    """Call the model with a tensor, a tuple of arguments, or keywords."""
    if isinstance(inputs, Tensor):
        return model(inputs)
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def get_logits(output: Any) -> Tensor:
    """The logits in whatever a model returns."""
    if isinstance(output, Tensor):
        return output
    found = getattr(output, "logits", None)
    if found is None and isinstance(output, Sequence) and output:
        found = output[0]
    if not isinstance(found, Tensor):
        raise ShapeError(
            f"model: needs to return logits, got {type(output).__name__}; "
            "try a model with a head, or what_if around your own call"
        )
    return found


class _Editor:
    """Stands at the door and hands each call to the edits that are meant for it."""

    def __init__(self, running: ModuleTracker, edited: EditLog):
        self.running, self.edited = running, edited
        self.calls: Counter[tuple[int, str]] = Counter()  # thread by thread, as a run is of one
        self.lock = threading.RLock()

    def __call__(self, call: AttentionCall, proceed: Proceed) -> AttentionResult:
        caller = self.running.caller
        me = threading.get_ident(), caller.path
        with self.lock:
            place = CallSite(caller.path, caller.name, self.calls[me])
            self.calls[me] += 1
            proceed = self._edited(call, proceed, place)
        return proceed(call)

    def _edited(self, call: AttentionCall, proceed: Proceed, place: CallSite) -> Proceed:
        self.edited.names.append(place.name)
        for edit, acted in reversed(
            [*zip(self.edited.edits, self.edited.applied_calls, strict=True)]
        ):
            if matches_glob(edit.site, place):
                acted[place.name] += 1
                self.edited.max_keys = max(self.edited.max_keys, call.k.shape[-2])
                proceed = _behind(edit, proceed, place)
        return proceed


def matches_glob(glob: str, call_site: CallSite) -> bool:
    """Whether an attention is meant by a glob over names or paths.

    >>> matches_glob("decoder.*.cross", CallSite("decoder.blocks.2.cross_attention", "decoder.2.cross"))
    True
    """
    check_glob("at", glob)
    return fnmatchcase(call_site.name, glob) or fnmatchcase(call_site.path, glob)


def _behind(edit: Edit, proceed: Proceed, place: CallSite) -> Proceed:
    return lambda call: edit.apply(call, proceed, place)


def _check_all_acted(edited: EditLog) -> None:
    for edit, acted in zip(edited.edits, edited.applied_calls, strict=True):
        names = list(dict.fromkeys(edited.names))
        if not names:
            raise LookError("model: needs to run inside what_if, got no attention that ran")
        if not acted:
            close = get_close_matches(edit.site, names, 1, 0)
            raise LookError(
                f"site: needs an attention that ran, got {edit.site!r}; try {close[0]!r} or '*'"
            )
        if edit.last_key >= edited.max_keys:
            raise ShapeError(
                f"keys: needs less than the {edited.max_keys} keys there were, got {edit.last_key}"
            )
