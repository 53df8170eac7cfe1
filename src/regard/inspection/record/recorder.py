"""The recorder behind `look`: stores attention calls within a memory limit."""

import inspect
import itertools
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from threading import RLock, get_ident
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch._C import _current_graph_task_id

from regard.errors import LookError
from regard.inspection.adapters.activation_point import hook_activations
from regard.inspection.adapters.activation_points import (
    find_activations,
    match_activations,
    paths_of_activations,
)
from regard.inspection.adapters.module_tracker import Caller, ModuleTracker, check_glob, matches
from regard.inspection.adapters.snapshot import Mark, is_unchanged, mark, memory_address, snapshot
from regard.inspection.adapters.transformers_mixers import Mixing, Unrecorded, is_input_convolution
from regard.inspection.record.growing_text import GrowingCache, GrowingText
from regard.inspection.record.mixer_check import difference, least_precision, through_mixer
from regard.inspection.record.sight import OVER_LIMIT, Sight, format_skipped, nearest_name
from regard.inspection.record.token_labeler import TokenHistory, TokenLabeler
from regard.inspection.record.token_mixing import TokenMixing, find_uncalled, reason_of
from regard.inspection.sites.mixer_site import ConvolutionSite, MixerSite
from regard.inspection.sites.site import Site, map_tensors
from regard.nn import StateAttention
from regard.ops.grid import to_4d
from regard.ops.indices import as_int
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed
from regard.ops.mixers import LinearMixer, MixResult
from regard.ops.mixers.short_convolution import ShortConvolution
from regard.ops.survey.op import SurveyBackend, compute_survey
from regard.ops.survey.statistics import DEFAULT_STATISTICS, SurveyOptions, make_survey_options


@dataclass(frozen=True)
class RecordOptions:
    """The options of `look`, checked."""

    at: str
    max_bytes: int
    device: str | torch.device | None
    grad: bool
    survey: Mapping[str, Any] | None  # arguments of `Site.survey`, if nothing else is recorded
    activations: str | Sequence[str] | None = None  # globs over their names

    def __post_init__(self) -> None:
        check_glob("at", self.at)
        if as_int("max_bytes", self.max_bytes) < 0:
            raise LookError(f"max_bytes: needs 0 or more, got {self.max_bytes}; try survey=")
        if self.survey is not None:
            _ = self.survey_arguments  # raises if one is not valid
        try:
            torch.device("cpu" if self.device is None else self.device)
        except (RuntimeError, TypeError):
            raise LookError(
                f"device: needs a torch device, got {self.device!r}; try 'cpu'"
            ) from None

    @cached_property
    def survey_arguments(self) -> tuple[SurveyOptions, SurveyBackend]:
        """`survey` as the last arguments of `compute_survey`."""
        parameters = inspect.signature(Site.survey).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.kind == p.KEYWORD_ONLY}
        given: dict[str, Any] = {**defaults, **(self.survey or {})}
        if unknown := sorted(given.keys() - defaults):
            raise LookError(f"survey: needs arguments of Site.survey, got {unknown[0]!r}")
        backend = given.pop("backend")
        if given["statistics"] is None:
            given["statistics"] = DEFAULT_STATISTICS
        return make_survey_options(**given), backend


class Recorder:
    """Interceptor that appends each attention call to a sight; thread-safe."""

    def __init__(
        self, sight: Sight, tracker: ModuleTracker, options: RecordOptions, labeler: TokenLabeler
    ):
        self.sight, self.tracker, self.options, self.labeler = sight, tracker, options, labeler
        self.bytes_left = options.max_bytes
        self.calls: Counter[str] = Counter()
        self.site_names: dict[str, str] = {}  # name of every intercepted path
        self._lock = RLock()
        self._is_closed = False
        self._origins: WeakKeyDictionary[Site | MixerSite, tuple[int, TokenHistory]] = (
            WeakKeyDictionary()
        )
        self._caches: dict[tuple[str, int], GrowingCache] = {}  # by path and thread
        self._counted: set[int] = set()  # memory of masks and biases
        self._other_uses: list[tuple[str, list[str]]] = []  # of weights, by name
        self._aliases: list[tuple[str, Tensor, Mark]] = []  # tensors of the model, by name
        self._matches: dict[str, bool] = {}  # by path
        self._texts: dict[tuple[str, int], GrowingText] = {}  # of mixers, by path and thread
        self._taps: dict[str, Tensor] = {}  # of the convolution before a mixer, by path

    def wants_call(self) -> bool:
        """Whether the running module matches `at`; its name is noted."""
        caller = self.tracker.caller
        matches = self._matches.get(caller.path)
        if matches is None and not self._is_closed:
            matches = caller.matches(self.options.at)
            with self._lock:
                self.site_names[caller.path], self._matches[caller.path] = caller.name, matches
                self.sight.aliases[caller.name] = caller.alias
        return bool(matches)

    def __call__(self, call: AttentionCall, proceed: Proceed) -> AttentionResult:
        out, lse = proceed(call)
        if _current_graph_task_id() != -1:  # backward: checkpointing reruns recorded calls
            return out, lse
        caller = self.tracker.caller
        with self._lock:
            if not self._is_closed:
                self._record(caller, call, out, lse)
                self._other_uses.append((caller.name, call.other_uses))
        return out, lse

    def _record(self, caller: Caller, call: AttentionCall, out: Tensor, lse: Tensor) -> None:
        count, thread = self.calls[caller.path], get_ident()
        self.calls[caller.path] += 1
        if call.empty_out is not None:  # as w · v in rows without weights
            out = out.masked_fill((lse == -torch.inf)[..., None], 0)
        q, k, v, out = (to_4d(x) for x in (call.q, call.k, call.v, out))
        lse = lse if lse.ndim == 3 else to_4d(lse[..., None])[..., 0]
        term_sizes: dict[int, int] = {}  # bytes of masks and biases, by memory

        def store_term(x: Tensor) -> Tensor:
            x = self._store(caller.name, _fold_batch(x, call.q))
            term_sizes[memory_address(x)] = x.nbytes
            return x

        terms = map_tensors(call.terms, store_term)
        if isinstance(caller.module, StateAttention) and caller.kind == "self":
            terms = replace(terms, offset=k.shape[2])  # a state attends to all earlier states
        survey = None
        if self.options.survey is not None:
            inputs = (q, k, lse) if self.options.grad else (q.detach(), k.detach(), lse.detach())
            survey = compute_survey(*inputs, terms, *self.options.survey_arguments)
            q, k, v, out, lse = (x.detach().to("meta") for x in (q, k, v, out, lse))  # shapes
        else:
            q, k, v, out, lse = (self._store(caller.name, x) for x in (q, k, v, out, lse))
            if k.shape[2] == q.shape[2]:
                k, v = _copy_if_view(k, q), _copy_if_view(v, q)
            cache = self._caches.setdefault((caller.path, thread), GrowingCache())
            k, v, size = cache.add(k, v, q.shape[2])
            # layers often share masks and biases: count those that no earlier site holds
            new = term_sizes.keys() - self._counted
            size += q.nbytes + out.nbytes + lse.nbytes + sum(term_sizes[x] for x in new)
            self._counted |= new
            if size > self.bytes_left:
                self.bytes_left = -1  # recording a smaller, later call would leave a gap
                del self._caches[caller.path, thread]
                limit = f"{OVER_LIMIT}{self.options.max_bytes}; try at=, max_bytes= or survey="
                reason = f"from call {count} on, {limit}" if count else limit
                self.sight.skipped.setdefault(caller.name, reason)
                return
            self.bytes_left -= size
        tensors: dict[str, Any] = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
        place: dict[str, Any] = {"name": caller.name, "path": caller.path, "kind": caller.kind}
        site = Site(call=count, terms=terms, recorded_survey=survey, **place, **tensors)
        self._origins[site] = thread, self.labeler.token_history()
        self.sight.sites.append(site)

    def record_mixer(self, mixer: Mixing, proceed: Callable[[Mixing], Any]) -> Any:
        """Interceptor of linear mixers."""
        result = proceed(mixer)
        if _current_graph_task_id() != -1:
            return result
        if self.options.grad and isinstance(mixer, LinearMixer) and result.out.requires_grad:
            result = through_mixer(mixer, result)
        caller = self.tracker.caller
        with self._lock:
            if not self._is_closed and caller.name not in self.sight.skipped:
                count = self.calls[caller.path]
                reason = mixer.reason if isinstance(mixer, Unrecorded) else ""
                if not isinstance(mixer, Unrecorded):
                    reason = self._record_mixer(caller, mixer, result)
                if reason:
                    reason = f"from call {count} on, {reason}" if count else reason
                    self.sight.skipped[caller.name] = reason
        return result

    def _record_mixer(self, caller: Caller, mixer: Mixing, result: MixResult) -> str:
        """Record one call; why not, if it is not."""
        if isinstance(mixer, ShortConvolution) and is_input_convolution(caller.module):
            self._taps[caller.path] = mixer.taps.detach()
            return ""
        if self.options.survey is not None:
            return "survey= has statistics of attention; try look(model) without it"
        if reason := difference(
            mixer, result, least_precision(caller.module or self.tracker.model, result.out)
        ):
            return reason
        count, thread = self.calls[caller.path], get_ident()
        self.calls[caller.path] += 1
        text = self._texts.setdefault((caller.path, thread), GrowingText())
        before = text.nbytes if text.used else 0
        store = partial(self._store, caller.name)
        whole = text.add(mixer, result, store)
        out = store(result.out)
        size = out.nbytes + text.nbytes - (before if text.used > mixer.time else 0)
        if size > self.bytes_left:
            self.bytes_left = -1
            del self._texts[caller.path, thread]
            return f"{OVER_LIMIT}{self.options.max_bytes}; try at= or max_bytes="
        self.bytes_left -= size
        kind: Any = MixerSite if isinstance(whole, LinearMixer) else ConvolutionSite
        site = kind(
            name=caller.name, path=caller.path, call=count, mixer=whole, out=out,
            offset=text.used - mixer.time, taps=self._taps.get(caller.path),
        )  # fmt: skip
        self._origins[site] = thread, self.labeler.token_history()
        self.sight.mixers.append(site)
        return ""

    def hook_activations(self) -> AbstractContextManager[object]:
        """Record the activations that match `options.activations` in this thread."""
        globs = self.options.activations
        if globs is None:
            return nullcontext()
        points, thread = find_activations(self.tracker.model, self.tracker.modules), get_ident()

        def record(name: str, x: Tensor) -> None:
            # checkpointing reruns the block in the backward pass
            if get_ident() != thread or self._is_closed or _current_graph_task_id() != -1:
                return
            with self._lock:
                size = x.nbytes
                if size > self.bytes_left:
                    self.bytes_left = -1
                    limit = f"{OVER_LIMIT}{self.options.max_bytes}; try activations= or device="
                    self.sight.skipped.setdefault(name, limit)
                    return
                self.bytes_left -= size
                self.sight.activations.append(name, self._store(name, x))

        self.sight.activations.aliases.update(paths_of_activations(points))
        return hook_activations(match_activations(points, globs, "activations"), record)

    def _store(self, name: str, x: Tensor) -> Tensor:
        """The tensor to keep, which nothing that the model does later changes.

        With grad=True it is the model's, with its graph: `close` leaves out what has changed.
        """
        device = x.device if self.options.device is None else self.options.device
        if self.options.grad and x.requires_grad:
            self._aliases.append((name, x, mark(x)))
            return x.to(device)
        values = x.detach()
        if (moved := values.to(device)) is not values:
            return moved
        # a snapshot that is written to moves, but others hold the addresses of weights
        is_weight = x.untyped_storage()._cdata in self._weight_storages
        return values.clone() if is_weight else snapshot(values)

    @cached_property
    def _weight_storages(self) -> set[int]:
        owners = [(m._parameters, m._buffers) for m in self.tracker.modules.values()]
        tensors = (x for pair in owners for named in pair for x in named.values())
        return {x.untyped_storage()._cdata for x in tensors if x is not None}

    def close(self) -> None:
        """Stop recording, group the sites by thread, and label them."""
        with self._lock:
            self._is_closed = True
            changed = {name for name, x, since in self._aliases if not is_unchanged(x, since)}
            self._aliases.clear()
            reason = "changed in place after it was recorded; try look(model) without grad=True"
            self.sight.skipped.update(dict.fromkeys(sorted(changed), reason))
            self.sight.activations.remove(changed)
            for name, uses in self._other_uses:
                if uses:
                    reason = f"second use of its weights, in {uses[0]}: only the first is recorded"
                    self.sight.skipped.setdefault(name, reason)
            for sites in cast("tuple[list[Any], ...]", (self.sight.sites, self.sight.mixers)):
                sites[:] = [site for site in sites if site.name not in changed]
                origins = [self._origins.get(site, (0, None)) for site in sites]
                labelled = [
                    site if history is None else self.labeler.label(site, history)
                    for site, (_, history) in zip(sites, origins, strict=True)
                ]
                sites[:] = _group_by_thread(labelled, [thread for thread, _ in origins])

    def skip(self, mixing: TokenMixing) -> None:
        """Name the modules that mix positions in `skipped`, or in `unmatched`."""
        self.sight.skipped |= find_uncalled(self.tracker, self.site_names, mixing)
        for path, why in mixing.unchecked.items():
            name = self.tracker.names[path]
            self.sight.skipped.setdefault(name, f"what mixes positions in it is not known: {why}")
        for path in mixing.unrecorded:
            name, module = self.tracker.names[path], self.tracker.modules[path]
            if not matches(self.options.at, name, path):
                self.sight.unmatched.append(name)
                continue
            self.sight.skipped.setdefault(name, reason_of(module, path in mixing.attentions))

    def finish(self) -> None:
        """Fill in `unmatched`; a sight without sites is an error."""
        recorded = {site.path for site in (*self.sight.sites, *self.sight.mixers)}
        others = [name for path, name in self.site_names.items() if path not in recorded]
        self.sight.unmatched += [name for name in others if name not in self.sight.skipped]
        if self.sight.sites or self.sight.mixers or self.sight.activations:
            if any(self.labeler.tokens):  # given; those that fit no site are an error
                self.sight.label(*self.labeler.tokens)
            if self.sight.missing:  # tables, figures and pages show the others alone
                warnings.warn(f"look: {self.sight.missing}", stacklevel=4)
            return
        if self.site_names and not any(self._matches.values()):
            names = ", ".join(list(dict.fromkeys(self.site_names.values()))[:8])
            close = nearest_name(self.options.at, self.sight.aliases)
            raise LookError(
                f"at: needs a glob that matches one of {names} …, got {self.options.at!r}; "
                f"try {close!r}"
            )
        if not self.tracker.called_modules:
            raise LookError(
                "model: needs to run inside `with look(model)`, got no call of it; try the model "
                "itself, not a copy that torch.compile or deepcopy made"
            )
        reasons = format_skipped(self.sight.skipped) or ["no module mixes positions"]
        raise LookError(
            f"model: needs an attention that can be recorded, got none; {'; '.join(reasons)}"
        )


def _group_by_thread(sites: list[Any], threads: list[int]) -> list[Any]:
    """The sites of concurrent threads, grouped by thread and renumbered.

    Then call 2 of one attention and call 2 of another belong to the same forward pass.
    """
    order = list(dict.fromkeys(threads))
    if len(order) < 2:
        return sites
    calls: dict[str, Iterator[int]] = defaultdict(itertools.count)
    pairs = sorted(zip(threads, sites, strict=True), key=lambda pair: order.index(pair[0]))
    return [replace(site, call=next(calls[site.path])) for _, site in pairs]


def _copy_if_view(x: Tensor, q: Tensor) -> Tensor:
    """Copy keys that are a view of a larger tensor: it may be a cache, overwritten in place."""
    if x.requires_grad or x.untyped_storage().nbytes() <= x.nbytes:
        return x
    shared = memory_address(x) == memory_address(q)  # one fused projection
    return x if shared else x.clone()


def _fold_batch(x: Tensor, q: Tensor) -> Tensor:
    """Fold the leading axes of a mask or bias into one batch axis, as those of q."""
    if q.ndim <= 4 or x.ndim != q.ndim:
        return x
    return x.expand(*q.shape[:-3], *x.shape[-3:]).flatten(0, -4)
