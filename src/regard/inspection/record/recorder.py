"""The recorder behind `look`: stores attention calls within a memory limit."""

import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from regard.errors import LookError
from regard.inspection.adapters.activation_points import (
    ActivationPoint,
    find_activations,
    match_activations,
)
from regard.inspection.adapters.module_tracker import Caller, ModuleTracker, check_glob, matches
from regard.inspection.record.sight import Sight, format_skipped
from regard.inspection.record.token_labeler import TokenHistory, TokenLabeler
from regard.inspection.sites.site import Site
from regard.inspection.sites.term_tensors import map_tensors
from regard.nn import StateAttention
from regard.ops.grid import to_4d
from regard.ops.indices import as_int
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed
from regard.ops.survey.statistics import make_survey_options
from regard.ops.terms import Terms


@dataclass(frozen=True, kw_only=True)
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
        given = {name: x for name, x in (self.survey or {}).items() if name != "backend"}
        sizes = dict.fromkeys(("first_keys", "radius", "top_k", "pooled_size"), 1)
        if unknown := sorted(given.keys() - {"statistics", *sizes}):
            raise LookError(f"survey: needs arguments of Site.survey, got {unknown[0]!r}")
        make_survey_options(**{"statistics": (), **sizes, **given})
        try:
            torch.device("cpu" if self.device is None else self.device)
        except (RuntimeError, TypeError):
            raise LookError(
                f"device: needs a torch device, got {self.device!r}; try 'cpu'"
            ) from None


class Recorder:
    """Interceptor that appends each attention call to a sight; thread-safe."""

    def __init__(
        self, sight: Sight, tracker: ModuleTracker, options: RecordOptions, labeler: TokenLabeler
    ):
        self.sight, self.tracker, self.options, self.labeler = sight, tracker, options, labeler
        self.bytes_left = options.max_bytes
        self.calls: Counter[str] = Counter()
        self.site_names: dict[str, str] = {}  # name of every intercepted path
        self._lock = threading.RLock()
        self._is_closed = False
        self._origins: WeakKeyDictionary[Site, tuple[int, TokenHistory]] = WeakKeyDictionary()
        self._caches: dict[tuple[str, int], _GrowingCache] = {}  # by path and thread
        self._counted_storages: set[int] = set()

    def __call__(self, call: AttentionCall, proceed: Proceed) -> AttentionResult:
        out, lse = proceed(call)
        if torch._C._current_graph_task_id() != -1:  # backward: checkpointing reruns recorded calls
            return out, lse
        caller = self.tracker.caller
        with self._lock:
            if not self._is_closed:
                self.site_names[caller.path] = caller.name
                if matches(self.options.at, caller.name, caller.path):
                    self._record(caller, call, out, lse)
        return out, lse

    def _record(self, caller: Caller, call: AttentionCall, out: Tensor, lse: Tensor) -> None:
        count, thread = self.calls[caller.path], threading.get_ident()
        self.calls[caller.path] += 1
        q, k, v, out = (self._store(to_4d(x)) for x in (call.q, call.k, call.v, out))
        lse = self._store(to_4d(lse[..., None])[..., 0])
        terms = map_tensors(call.terms, lambda x: self._store(_fold_batch(x, call.q)))
        if isinstance(caller.module, StateAttention) and caller.kind == "self":
            terms = replace(terms, offset=k.shape[2])  # a state attends to all earlier states
        if self.options.survey is None:
            if k.shape[2] == q.shape[2]:
                k, v = _copy_if_view(k, q), _copy_if_view(v, q)
            cache = self._caches.setdefault((caller.path, thread), _GrowingCache())
            k, v, added = cache.add(k, v, q.shape[2])
            size = added + sum(x.nbytes for x in (q, out, lse)) + self._new_bytes(terms)
            if size > self.bytes_left:
                self.bytes_left = -1  # recording a smaller, later call would leave a gap
                del self._caches[caller.path, thread]
                limit = f"over max_bytes={self.options.max_bytes}; try at=, max_bytes= or survey="
                reason = f"from call {count} on, {limit}" if count else limit
                self.sight.skipped.setdefault(caller.name, reason)
                return
            self.bytes_left -= size
        tensors: dict[str, Any] = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
        site = Site(
            name=caller.name, path=caller.path, call=count, kind=caller.kind, terms=terms, **tensors
        )
        if self.options.survey is not None:
            survey = site.survey(**self.options.survey)
            shapes = {name: x.to("meta") for name, x in tensors.items()}
            site = replace(site, recorded_survey=survey, **shapes)
        self._origins[site] = thread, self.labeler.token_history()
        self.sight.sites.append(site)

    def hook_activations(self) -> Iterator[RemovableHandle]:
        """Record the activations that match `options.activations` in this thread."""
        if self.options.activations is None:
            return
        points, thread = find_activations(self.tracker.model), threading.get_ident()

        def record(point: ActivationPoint, x: Tensor) -> None:
            is_backward = torch._C._current_graph_task_id() != -1  # checkpointing reruns the block
            if threading.get_ident() != thread or is_backward or self._is_closed:
                return
            with self._lock:
                if x.nbytes > self.bytes_left:
                    self.bytes_left = -1
                    limit = f"over max_bytes={self.options.max_bytes}; try activations= or device="
                    self.sight.skipped.setdefault(point.name, limit)
                    return
                self.bytes_left -= x.nbytes
                copies = point.overwritten and not self.options.grad
                x = self._store(x.clone() if copies else x)
                self.sight.activations.append(point.name, x)

        for point in match_activations(points, self.options.activations, "activations"):
            yield from point.hook(partial(record, point))

    def _store(self, x: Tensor) -> Tensor:
        x = x if self.options.grad else x.detach()
        return x if self.options.device is None else x.to(self.options.device)

    def _new_bytes(self, terms: Terms) -> int:
        """Bytes of masks and biases that no earlier site holds; layers often share them."""
        sizes: dict[int, int] = {}

        def measure(x: Tensor) -> Tensor:
            sizes[x.untyped_storage().data_ptr()] = x.nbytes
            return x

        map_tensors(terms, measure)
        new = sum(sizes[pointer] for pointer in sizes.keys() - self._counted_storages)
        self._counted_storages.update(sizes)
        return new

    def close(self) -> None:
        """Stop recording, group the sites by thread, and label them."""
        with self._lock:
            self._is_closed = True
            origins = [self._origins.get(site, (0, None)) for site in self.sight.sites]
            labelled = [
                site if history is None else self.labeler.label(site, history)
                for site, (_, history) in zip(self.sight.sites, origins, strict=True)
            ]
            self.sight.sites[:] = _group_by_thread(labelled, [thread for thread, _ in origins])

    def finish(self) -> None:
        """Fill in `skipped` and `unmatched`; a sight without sites is an error."""
        self.sight.skipped.update(_find_uncalled(self.tracker, self.site_names))
        recorded = {site.path for site in self.sight.sites}
        others = [name for path, name in self.site_names.items() if path not in recorded]
        self.sight.unmatched += [name for name in others if name not in self.sight.skipped]
        if self.sight.sites or self.sight.activations:
            self.labeler.label_all()
            return
        if self.site_names and not self.calls:
            names = ", ".join(list(dict.fromkeys(self.site_names.values()))[:8])
            raise LookError(
                f"at: needs a glob that matches one of {names} …, got {self.options.at!r}"
            )
        if not self.tracker.called_modules:
            raise LookError("model: needs to run inside `with look(model)`, got no call of it")
        reasons = format_skipped(self.sight.skipped) or ["no module looks like one by its name"]
        raise LookError(
            f"model: needs an attention that can be recorded, got none; {'; '.join(reasons)}"
        )


class _GrowingCache:
    """Keys and values of a text that grows step by step, stored once for all steps.

    Every step has the keys of all earlier steps, and the model may overwrite its cache in place:
    each step gets a view of one buffer of our own.
    """

    def __init__(self) -> None:
        self.k = self.v = torch.empty(0)
        self.used = 0

    def add(self, k: Tensor, v: Tensor, queries: int) -> tuple[Tensor, Tensor, int]:
        """Keys and values to store, and the number of bytes they add."""
        keys = k.shape[2]
        if keys == queries or k.requires_grad or v.requires_grad:
            self.k, self.v, self.used = k, v, keys  # nothing came from a cache
            return k, v, k.nbytes + v.nbytes
        old, previous = keys - queries, self.k
        if self._ends_with(k, v, keys):
            pass  # the same keys once more
        elif self._ends_with(k, v, old):
            self.k, self.v = (self._append(x, y[:, :, old:]) for x, y in ((self.k, k), (self.v, v)))
            self.used += queries
        else:
            self.k, self.v, self.used = k.clone(), v.clone(), keys
        added = 0 if self.k is previous else self.k.nbytes + self.v.nbytes
        return self._view(keys, self.k), self._view(keys, self.v), added

    def _ends_with(self, k: Tensor, v: Tensor, old: int) -> bool:
        """Whether the buffer ends with the first `old` of these keys."""
        if not 0 < old <= self.used or self.k.shape[:2] != k.shape[:2]:
            return False
        if self.k.is_inference() != torch.is_inference_mode_enabled():
            return False  # an inference tensor cannot be written outside inference mode
        pairs = ((self.k, k), (self.v, v))
        return all(torch.equal(self._view(old, x), y[:, :, :old]) for x, y in pairs)

    def _append(self, x: Tensor, new: Tensor) -> Tensor:
        need = self.used + new.shape[2]
        if need > x.shape[2]:
            larger = x.new_empty(*x.shape[:2], 2 * need, x.shape[3])  # doubled: amortised copies
            larger[:, :, : self.used] = x[:, :, : self.used]
            x = larger
        x[:, :, self.used : need] = new
        return x

    def _view(self, keys: int, x: Tensor) -> Tensor:
        return x[:, :, self.used - keys : self.used]


def _group_by_thread(sites: list[Site], threads: list[int]) -> list[Site]:
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
    storage = x.untyped_storage()
    shared = storage.data_ptr() == q.untyped_storage().data_ptr()  # one fused projection
    return x if shared or x.requires_grad or storage.nbytes() <= x.nbytes else x.clone()


def _fold_batch(x: Tensor, q: Tensor) -> Tensor:
    """Fold the leading axes of a mask or bias into one batch axis, as those of q."""
    if q.ndim <= 4 or x.ndim != q.ndim:
        return x
    return x.expand(*q.shape[:-3], *x.shape[-3:]).flatten(0, -4)


def _find_uncalled(tracker: ModuleTracker, intercepted: Collection[str]) -> dict[str, str]:
    """Attention modules, by class name, that ran without calling an interceptable function."""
    classes = {path: type(module).__name__ for path, module in tracker.called_modules.items()}
    silent = [
        path
        for path, name in classes.items()
        if "attention" in name.lower()
        and not any(_within(p, path) or _within(path, p) for p in intercepted)
    ]
    return {
        tracker.names[
            path
        ]: f"{classes[path]} computes its own softmax, which cannot be intercepted"
        for path in silent
        if not any(other != path and _within(other, path) for other in silent)
    }


def _within(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(outer + ".")
