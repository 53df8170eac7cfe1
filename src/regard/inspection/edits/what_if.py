"""Runs a model with edits, and compares its outputs with and without them."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.errors import ConfigError, LookError, ShapeError
from regard.inspection.adapters.activation_points import find_activations, match_activations
from regard.inspection.adapters.model_calls import get_logits, run_model
from regard.inspection.adapters.module_tracker import Caller, ModuleTracker, check_model
from regard.inspection.adapters.sequence_position import tracked_position
from regard.inspection.edits.activations import ActivationEdit
from regard.inspection.edits.base import Edit
from regard.inspection.edits.comparison import Comparison
from regard.inspection.record.look import patched
from regard.inspection.record.sight import nearest_name
from regard.ops.intercept import (
    AttentionCall,
    AttentionResult,
    Proceed,
    intercepting,
    reaches,
)


class EditLog:
    """Log of the edits of a `what_if` block.

    `applied_calls` counts, per edit in order, the calls it changed, by the name of the attention.

    >>> layer = rg.nn.MultiHeadAttention(2, 1)
    >>> with rg.what_if(layer, rg.edit.uniform("*")) as log:
    ...     _ = layer(torch.ones(1, 4, 2))
    >>> log
    uniform('*'): MultiHeadAttention
    """

    def __init__(self, edits: Sequence[Edit | ActivationEdit]):
        self.edits = tuple(edits)
        self.applied_calls: list[Counter[str]] = [Counter() for _ in edits]
        self.names: list[str] = []  # of every attention that ran
        self.aliases: dict[str, str] = {}  # by name
        self.lengths: Counter[str] = Counter()  # positions that activations had, by glob
        self.max_keys = 0  # largest number of keys of an edited call
        self.other_uses: dict[str, list[str]] = {}  # of the weights of edited calls, by name

    def __repr__(self) -> str:
        pairs = zip(self.edits, self.applied_calls, strict=True)
        return "\n".join(f"{edit}: {', '.join(names) or 'nothing yet'}" for edit, names in pairs)


@contextmanager
def what_if(model: nn.Module, *edits: Edit | ActivationEdit) -> Iterator[EditLog]:
    """Run a model with edited attention and activations inside a `with` block.

    Edits apply in the given order, each to the call that the previous one made. An edit that
    matches nothing that ran raises at the end of the block. A `look` around it records the edited
    queries, keys, masks and activations. Edits act on runs in every thread, but for threads that
    look at or edit the model themselves.

    >>> layer, x = rg.nn.MultiHeadAttention(2, 1, qkv_bias=False), torch.ones(1, 4, 2)
    >>> with rg.what_if(layer, rg.edit.drop_head("*", 0)):
    ...     layer(x).abs().sum() == 0
    tensor(True)
    """
    for edit in edits:
        if not isinstance(edit, Edit | ActivationEdit):
            raise LookError(
                f"edits: need edits of rg.edit, got a {type(edit).__name__}; try "
                "rg.edit.drop_head('*', 0)"
            )
    log = EditLog(edits)
    # edits of activations alone need no interception of attention
    attends = not edits or any(isinstance(edit, Edit) for edit in edits)
    with (
        patched(model) if attends else nullcontext(ModuleTracker(model)) as tracker,
        intercepting(editor := _Editor(tracker, log), tracker),
        _edited_activations(model, log, editor),
    ):
        yield log
    names = list(dict.fromkeys(log.names))
    if any(isinstance(edit, Edit) for edit in edits) and not names:
        raise LookError("model: needs to run inside what_if, got no attention that ran")
    for edit, counts in zip(log.edits, log.applied_calls, strict=True):
        if isinstance(edit, ActivationEdit):
            if not counts:
                raise LookError(
                    f"name: needs an activation that was computed inside what_if, got {edit.name!r}"
                )
            if edit.positions and max(edit.positions) >= (length := log.lengths[edit.name]):
                raise ShapeError(
                    f"positions: needs less than {length}, the number of positions, got "
                    f"{max(edit.positions)}"
                )
            continue
        again = next((name for name in counts if log.other_uses[name]), None)
        if again is not None:
            raise LookError(
                f"site: needs weights that are used once to be edited, got those of {again!r}, "
                f"which {log.other_uses[again][0]} uses again; try an edit of an activation"
            )
        if not counts:
            close = nearest_name(edit.site, log.aliases)
            raise LookError(
                f"site: needs an attention that ran, got {edit.site!r}; try {close!r} or '*'"
            )
        if edit.last_key >= log.max_keys:
            raise ShapeError(
                f"keys: needs less than {log.max_keys}, the number of keys, got {edit.last_key}"
            )


@contextmanager
def _edited_activations(model: nn.Module, log: EditLog, editor: "_Editor") -> Iterator[None]:
    edits = [(i, edit) for i, edit in enumerate(log.edits) if isinstance(edit, ActivationEdit)]
    points = find_activations(model) if edits else {}

    with ExitStack() as hooks:
        placed = any(edit.positions is not None for _, edit in edits)
        first = hooks.enter_context(tracked_position(model)) if placed else int  # 0

        def apply(i: int, edit: ActivationEdit, name: str, x: Tensor) -> Tensor | None:
            if not reaches(editor, model):
                return None
            start = first()
            with editor.lock:
                log.applied_calls[i][name] += 1
                if edit.positions is not None:
                    log.lengths[edit.name] = max(log.lengths[edit.name], start + x.shape[1])
            return edit(x, start)

        # each goes before the hooks that exist, recording ones included: the last edit first
        for i, edit in reversed(edits):
            for point in match_activations(points, edit.name, "name"):
                for hook in point.hook(partial(apply, i, edit, point.name), first=True):
                    hooks.callback(hook.remove)
        yield


def compare_edits(
    model: nn.Module,
    inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    *edits: Edit | ActivationEdit,
    labels: Int[Tensor, "*batch"] | None = None,
    id_to_token: Callable[[int], str] | None = None,
) -> Comparison:
    """Compare the logits of a model without and with edits; runs it twice.

    Args:
        model: The model, in eval mode.
        inputs: What the model is called with: a tensor, a tuple of arguments or a mapping.
        edits: The edits.
        labels: Target token per position of the logits, without shift; below 0 is ignored.
        id_to_token: Converts a token id to text for the printed table.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> ids, edit = torch.tensor([[1, 2, 3]]), rg.edit.scale_scores("*", 1.0)
    >>> comparison = rg.inspection.compare_edits(model, ids, edit)
    >>> comparison.kl.shape, bool(comparison.kl.abs().max() < 1e-6)
    (torch.Size([1, 3]), True)
    """
    check_model(model)
    if any(module.training for module in model.modules()):
        raise ConfigError(
            "model: needs eval mode, as dropout would add to the difference, got training; "
            "try model.eval()"
        )

    def run(*edits: Edit | ActivationEdit) -> Tensor:
        with torch.no_grad(), what_if(model, *edits):  # without edits of other threads
            return get_logits(run_model(model, inputs))

    return Comparison(run(), run(*edits), edits, labels, id_to_token)


class _Editor:
    """Interceptor that applies the edits that match each call."""

    def __init__(self, tracker: ModuleTracker, log: EditLog):
        self.tracker, self.log = tracker, log
        self.calls: Counter[tuple[int, str]] = Counter()  # by thread and path
        self.lock = threading.RLock()

    def __call__(self, call: AttentionCall, proceed: Proceed) -> AttentionResult:
        caller = self.tracker.caller
        key, log = (threading.get_ident(), caller.path), self.log
        with self.lock:
            caller = replace(caller, call=self.calls[key])
            self.calls[key] += 1
            log.names.append(caller.name)
            log.aliases[caller.name] = caller.alias
            for edit, counts in reversed([*zip(log.edits, log.applied_calls, strict=True)]):
                if isinstance(edit, Edit) and caller.matches(edit.site):
                    counts[caller.name] += 1
                    log.max_keys = max(log.max_keys, call.k.shape[-2])
                    log.other_uses[caller.name] = call.other_uses
                    proceed = _prepend(edit, proceed, caller)
        return proceed(call)


def _prepend(edit: Edit, proceed: Proceed, caller: Caller) -> Proceed:
    return lambda call: edit.apply(call, proceed, caller)
