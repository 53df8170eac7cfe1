"""Runs a model with edits, and compares its outputs with and without them."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import LookError, ShapeError
from regard.inspection.adapters.activation_point import hook_activations
from regard.inspection.adapters.activation_points import find_activations, match_activations
from regard.inspection.adapters.block_stacks import tracked_position
from regard.inspection.adapters.mixer_readers import Unrecorded
from regard.inspection.adapters.model_calls import get_logits, run_model
from regard.inspection.adapters.module_tracker import ModuleTracker, check_eval_mode
from regard.inspection.adapters.transformers_mixers import Mixing, is_input_convolution
from regard.inspection.edits.activations import ActivationEdit
from regard.inspection.edits.base import Edit
from regard.inspection.record.look import patched
from regard.inspection.record.sight import nearest_name
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting, reaches
from regard.ops.maybe_none import MaybeNone
from regard.ops.mixers import intercepting_mixers
from regard.ops.mixers.short_convolution import ShortConvolution
from regard.ops.terms import upcast
from regard.tables import text_table

MAX_SHOWN_POSITIONS = 12  # in the table: the most changed


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Logits before and after edits, with their differences at every position.

    kl = Σ_x p(x) log(p(x) / p'(x)), p before and p' after;   loss = -log p(label)

    >>> p, new = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.2, 0.8]]).log()
    >>> comparison = Comparison(p, new, labels=torch.tensor([0]))
    >>> comparison.kl  # ½ log(½ / 0.2) + ½ log(½ / 0.8)
    tensor([0.2231])
    >>> comparison.loss  # log(½ / 0.2)
    tensor([0.9163])
    """

    before: Float[Tensor, "*batch vocab"]
    after: Float[Tensor, "*batch vocab"]
    edits: Sequence[Edit | ActivationEdit] = ()
    labels: Int[Tensor, "*batch"] | None = None
    id_to_token: Callable[[int], str] | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and self.labels.shape != self.before.shape[:-1]:
            raise ShapeError(
                f"labels: needs one per position, {tuple(self.before.shape[:-1])}, "
                f"got {tuple(self.labels.shape)}"
            )

    @property
    def delta(self) -> Float[Tensor, "*batch vocab"]:
        """Difference of the logits."""
        return upcast(self.after) - upcast(self.before)

    @property
    def kl(self) -> Float[Tensor, "*batch"]:
        """KL divergence of the predictions, in nats."""
        old, new = (upcast(x).log_softmax(-1) for x in (self.before, self.after))
        gap = torch.where(old == -torch.inf, 0, old - new)  # 0 log 0 = 0
        return (old.exp() * gap).sum(-1).clamp(min=0)

    @property
    def argmax_changed(self) -> Tensor:
        """Where the most likely token changed."""
        return self.before.argmax(-1) != self.after.argmax(-1)

    @property
    def loss_before(self) -> Float[Tensor, " labelled"] | MaybeNone:
        """-log p(label) before, in the order of labels[labels >= 0]; None without labels."""
        return self._loss(self.before)

    @property
    def loss_after(self) -> Float[Tensor, " labelled"] | MaybeNone:
        """-log p(label) after."""
        return self._loss(self.after)

    @property
    def loss(self) -> Float[Tensor, " labelled"] | MaybeNone:
        """Increase of the loss per labelled position; the table shows its mean."""
        before, after = self.loss_before, self.loss_after
        return None if before is None or after is None else after - before

    def top(self, k: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The k most likely tokens: ids and probabilities before, ids and probabilities after."""
        k = min(k, self.before.shape[-1])
        old = upcast(self.before).softmax(-1).topk(k, -1)
        new = upcast(self.after).softmax(-1).topk(k, -1)
        return old.indices, old.values, new.indices, new.values

    def _loss(self, logits: Tensor) -> Tensor | None:
        if self.labels is None:
            return None
        counted = self.labels >= 0
        return F.cross_entropy(upcast(logits)[counted], self.labels[counted], reduction="none")

    def __repr__(self) -> str:
        kl, deltas = self.kl, self.delta.abs().amax(-1).flatten()
        tops = [x.reshape(-1, x.shape[-1]).tolist() for x in self.top(3)]
        shown = kl.flatten().topk(min(MAX_SHOWN_POSITIONS, kl.numel())).indices.sort().values
        columns, rows = ["position", "KL", "before", "after", "max |Δlogit|"], []
        text = f"KL {kl.mean():.4f} on average, {kl.max():.4f} at most; "
        text += f"argmax changed at {int(self.argmax_changed.sum())} of {kl.numel()}"
        losses, to_token = None, self.id_to_token or str
        if self.loss is not None and self.labels is not None:
            columns.append("Δloss")
            numbers = iter(self.loss.tolist())
            losses = [f"{next(numbers):+.4f}" if x >= 0 else "" for x in self.labels.flatten()]
            text += f"; loss {self.loss.mean():+.4f}" if len(self.loss) else ""
        for i in shown.tolist():
            position = torch.unravel_index(torch.tensor(i), kl.shape)
            pairs = (zip(x[i], p[i], strict=True) for x, p in (tops[:2], tops[2:]))
            before, after = ("  ".join(f"{to_token(t)} {p:.2f}" for t, p in row) for row in pairs)
            row = [" ".join(str(int(x)) for x in position), f"{kl.flatten()[i]:.4f}"]
            row += [before, after, f"{deltas[i]:.3f}", *([] if losses is None else [losses[i]])]
            rows.append(row)
        edits = ", ".join(map(str, self.edits)) or "no edit"
        table = text_table(columns, rows, right=("KL", "max |Δlogit|", "Δloss"))
        return f"{edits}\n{text}\n{table}"


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
        self.mixer_names: list[str] = []  # of every linear mixer that ran
        self.max_tokens = 0  # largest number of tokens of an edited mixer
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
        intercepting_mixers(editor.edit_mixer, tracker),
        _edited_activations(model, log, editor),
    ):
        yield log
    names = list(dict.fromkeys(log.names))
    if any(isinstance(edit, Edit) for edit in edits) and not (names or log.mixer_names):
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
        again = next((name for name in counts if log.other_uses.get(name)), None)
        if again is not None:
            raise LookError(
                f"site: needs weights that are used once to be edited, got those of {again!r}, "
                f"which {log.other_uses[again][0]} uses again; try an edit of an activation"
            )
        if not counts:
            known = log.aliases if edit.apply else dict.fromkeys(log.mixer_names, "")
            name, kind = ("site", "an attention") if edit.apply else ("mixer", "a linear mixer")
            close = nearest_name(edit.site, known)
            hint = "another model" if close is None else f"{close!r} or '*'"
            raise LookError(f"{name}: needs {kind} that ran, got {edit.site!r}; try {hint}")
        what, count = ("keys", log.max_keys) if edit.apply else ("tokens", log.max_tokens)
        if edit.last_key >= count:
            raise ShapeError(
                f"{what}: needs less than {count}, the number of {what}, got {edit.last_key}"
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
            matched = match_activations(points, edit.name, "name")
            hooks.enter_context(hook_activations(matched, partial(apply, i, edit), first=True))
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
    check_eval_mode(model)

    def run(*edits: Edit | ActivationEdit) -> Tensor:
        with torch.no_grad(), what_if(model, *edits):  # without edits of other threads
            return get_logits(run_model(model, inputs))

    return Comparison(run(), run(*edits), edits, labels, id_to_token)


class _Editor:
    """Interceptor that applies the edits that match each call."""

    def __init__(self, tracker: ModuleTracker, log: EditLog):
        self.tracker, self.log = tracker, log
        self.calls: Counter[tuple[int, str]] = Counter()  # by thread and path
        self.tokens: Counter[tuple[int, str]] = Counter()  # of mixers so far, likewise
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
                apply = edit.apply if isinstance(edit, Edit) else None
                if isinstance(edit, Edit) and apply and caller.matches(edit.site):
                    counts[caller.name] += 1
                    log.max_keys = max(log.max_keys, call.k.shape[-2])
                    log.other_uses[caller.name] = call.other_uses
                    proceed = lambda call, e=apply, go=proceed: e(call, go, caller)  # noqa: E731
        return proceed(call)

    def edit_mixer(self, mixer: Mixing, proceed: Callable[[Any], Any]) -> Any:
        """Interceptor of linear mixers."""
        caller, log = self.tracker.caller, self.log
        edits = [
            (edit, counts)
            for edit, counts in zip(log.edits, log.applied_calls, strict=True)
            if isinstance(edit, Edit) and edit.change_mixer and caller.matches(edit.site)
        ]
        if isinstance(mixer, ShortConvolution) and is_input_convolution(caller.module):
            return proceed(mixer)
        if isinstance(mixer, Unrecorded):
            if edits:
                raise LookError(
                    f"mixer: needs one that can be edited, got {caller.name}: {mixer.reason}"
                )
            return proceed(mixer)
        key = threading.get_ident(), caller.path
        with self.lock:
            # a text goes on if it begins with a state, which some models fill with zeros at first
            goes_on = mixer.state is not None and bool(mixer.state.any())
            first = self.tokens[key] if goes_on else 0
            self.tokens[key] = first + mixer.time
            log.mixer_names.append(caller.name)
            for edit, counts in reversed(edits):
                counts[caller.name] += 1
                log.max_tokens = max(log.max_tokens, self.tokens[key])
                change: Any = edit.change_mixer
                proceed = lambda m, go=proceed, change=change: change(m, go, caller, first)  # noqa: E731
        return proceed(mixer)
