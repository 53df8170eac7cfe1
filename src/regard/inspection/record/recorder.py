"""Keeping what passes the door, within a budget, and saying what was not seen."""

import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard.errors import LookError
from regard.inspection.adapters.module_tracker import Caller, ModuleTracker, check_glob
from regard.inspection.record.sight import Sight, format_skipped
from regard.inspection.sites.site import Site
from regard.inspection.sites.term_tensors import list_tensors, map_tensors
from regard.inspection.sites.tokens import TokenHistory, TokenLabeler
from regard.nn import StateAttention
from regard.ops.grid import to_4d
from regard.ops.indices import as_int
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed
from regard.ops.survey.statistics import DEFAULT_STATISTICS, make_survey_options
from regard.ops.terms import Terms

DEFAULT_MAX_BYTES = 2 << 30  # bytes


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """What a caller of `look` wants kept."""

    at: str = "*"
    max_bytes: int = DEFAULT_MAX_BYTES
    device: str | torch.device | None = None
    grad: bool = False
    survey: Collection[str] | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_glob("at", self.at)
        if as_int("keep", self.max_bytes) < 0:
            raise LookError(f"keep: needs 0 bytes or more, got {self.max_bytes}; try survey=")
        _check_survey(self.survey_kwargs)
        try:
            torch.device("cpu" if self.device is None else self.device)
        except (RuntimeError, TypeError):
            raise LookError(
                f"device: needs one that torch knows, got {self.device!r}; try 'cpu'"
            ) from None

    @property
    def survey_kwargs(self) -> Mapping[str, Any] | None:
        """The arguments of a survey to make at once."""
        if self.survey is None or isinstance(self.survey, Mapping):
            return self.survey
        return {"statistics": self.survey}


def _check_survey(asked: Mapping[str, Any] | None) -> None:
    """Raise now, not in the middle of a run, if statistics are asked for that are none."""
    if asked is None:
        return
    given = {
        "statistics": DEFAULT_STATISTICS,
        "first_keys": 4,
        "radius": 8,
        "top_k": 8,
        "pooled_size": 256,
    }
    if odd := sorted(set(asked) - {*given, "backend"}):
        raise LookError(f"survey: needs arguments of site.survey, got {odd[0]!r}")
    given |= {name: value for name, value in asked.items() if name != "backend"}
    make_survey_options(**given)


class Recorder:
    """Stands at the door and keeps what passes, from however many threads at once."""

    def __init__(
        self, sight: Sight, tracker: ModuleTracker, options: RecordOptions, labeler: TokenLabeler
    ):
        self.sight, self.tracker, self.options, self.labeler = sight, tracker, options, labeler
        self.bytes_left = options.max_bytes
        self.calls: Counter[str] = Counter()
        self.site_names: dict[str, str] = {}  # every path that asked at the door, and its name
        self._lock = threading.RLock()
        self._is_closed = False
        self._origins: WeakKeyDictionary[Site, tuple[int, TokenHistory]] = WeakKeyDictionary()
        self._texts: dict[tuple[str, int], _Growing] = {}
        self._shared: set[int] = set()

    def __call__(self, call: AttentionCall, proceed: Proceed) -> AttentionResult:
        out, lse = proceed(call)
        if _going_back():
            return out, lse
        caller = self.tracker.caller
        with self._lock:
            if not self._is_closed:
                self.site_names[caller.path] = caller.name
                if fnmatchcase(caller.name, self.options.at) or fnmatchcase(
                    caller.path, self.options.at
                ):
                    self._see(caller, call, out, lse)
        return out, lse

    def _see(self, caller: Caller, call: AttentionCall, out: Tensor, lse: Tensor) -> None:
        count, me = self.calls[caller.path], threading.get_ident()
        self.calls[caller.path] += 1
        q, k, v, out = (self._take(to_4d(x)) for x in (call.q, call.k, call.v, out))
        lse = self._take(to_4d(lse[..., None])[..., 0])
        terms = map_tensors(_flat(_placed(call, caller), call.q), self._take)
        if self.options.survey_kwargs is None:
            if k.shape[2] == q.shape[2]:
                k, v = _own(k, q), _own(v, q)
            k, v, more = self._growing(caller.path, me).add(k, v, q.shape[2])
            size = more + sum(x.nbytes for x in (q, out, lse)) + self._new(terms)
            if size > self.bytes_left:
                self._no_room(caller, count)
                return
            self.bytes_left -= size
        site = Site(
            name=caller.name,
            path=caller.path,
            call=count,
            kind=caller.kind,
            q=q,
            k=k,
            v=v,
            out=out,
            lse=lse,
            terms=terms,
        )
        site = (
            site
            if self.options.survey_kwargs is None
            else _surveyed(site, self.options.survey_kwargs)
        )
        self._origins[site] = me, self.labeler.token_history()
        self.sight.sites.append(site)

    def _growing(self, path: str, thread: int) -> "_Growing":
        return self._texts.setdefault((path, thread), _Growing())

    def _take(self, x: Tensor) -> Tensor:
        x = x if self.options.grad else x.detach()
        return x if self.options.device is None else x.to(self.options.device)

    def _new(self, terms: Terms) -> int:
        """The bytes of masks and biases that no site before has kept; layers often share them."""
        places = {x.untyped_storage().data_ptr(): x.nbytes for x in list_tensors(terms)}
        size = sum(size for place, size in places.items() if place not in self._shared)
        self._shared.update(places)
        return size

    def _no_room(self, caller: Caller, count: int) -> None:
        self.bytes_left = -1  # a smaller one that came later would leave a hole in the middle
        self._texts.pop((caller.path, threading.get_ident()), None)
        since = f"from call {count} on, " if count else ""
        reason = f"{since}as the {self.options.max_bytes} bytes to keep were full"
        self.sight.skipped.setdefault(caller.name, f"{reason}; try at=, keep= or survey=")

    def close(self) -> None:
        """Take no more, put the runs of each thread together, and name what was seen."""
        with self._lock:
            self._is_closed = True
            threads = {site: thread for site, (thread, _) in self._origins.items()}
            named = []
            for site, call in _grouped(self.sight.sites, threads):
                origin = self._origins.get(site)
                site = site if site.call == call else replace(site, call=call)
                named.append(site if origin is None else self.labeler.label(site, origin[1]))
            self.sight.sites[:] = named

    def finish(self) -> None:
        """Say what was not seen; to have seen nothing is an error, never an empty sight."""
        self.sight.skipped.update(_unseen(self.tracker, self.site_names))
        seen = {site.path for site in self.sight.sites}
        out = [name for path, name in self.site_names.items() if path not in seen]
        self.sight.unmatched += [name for name in out if name not in self.sight.skipped]
        if self.sight.sites:
            self.labeler.label_all()
            return
        if self.site_names and not self.calls:
            names = ", ".join(list(dict.fromkeys(self.site_names.values()))[:8])
            raise LookError(f"at: needs a glob that fits one of {names} …, got {self.options.at!r}")
        if not self.tracker.called_modules:
            raise LookError("model: needs to run inside `with look(model)`, got no call of it")
        skipped = self.sight.skipped or {"it": "no module in it is called one"}
        why = "; ".join(format_skipped(skipped))
        raise LookError(f"model: needs an attention that can be seen, got none; {why}")


class _Growing:
    """The keys and values of a text that grows step by step, held once for all steps.

    A cache may be written in place later, and every step has all keys of the steps before: each
    step gets a view of one buffer, which holds what it had when the step ran.
    """

    def __init__(self) -> None:
        self.k = self.v = torch.empty(0)
        self.used = 0

    def add(self, k: Tensor, v: Tensor, queries: int) -> tuple[Tensor, Tensor, int]:
        """Keys and values to keep, and how many bytes more they take."""
        keys = k.shape[2]
        if keys == queries or k.requires_grad or v.requires_grad:
            self.k, self.v, self.used = k, v, keys  # all its own: nothing was cached
            return k, v, k.nbytes + v.nbytes
        if self._same(k, v, keys):
            return self._view(keys, self.k), self._view(keys, self.v), 0
        old, before = keys - queries, self.k
        if self._same(k, v, old):
            self.k, self.v = (self._grown(x, y[:, :, old:]) for x, y in ((self.k, k), (self.v, v)))
            self.used += queries
        else:
            self.k, self.v, self.used = k.clone(), v.clone(), keys
        more = 0 if self.k is before else self.k.nbytes + self.v.nbytes
        return self._view(keys, self.k), self._view(keys, self.v), more

    def _same(self, k: Tensor, v: Tensor, old: int) -> bool:
        """Whether the first `old` of these keys are the last that were seen."""
        if not 0 < old <= self.used or self.k.shape[:2] != k.shape[:2]:
            return False
        if self.k.is_inference() != torch.is_inference_mode_enabled():
            return False  # a buffer made there cannot be written here
        pairs = ((self.k, k), (self.v, v))
        return all(torch.equal(self._view(old, x), y[:, :, :old]) for x, y in pairs)

    def _grown(self, x: Tensor, new: Tensor) -> Tensor:
        need = self.used + new.shape[2]
        if need > x.shape[2]:
            wide = x.new_empty(*x.shape[:2], 2 * need, x.shape[3])  # doubled: few copies in all
            wide[:, :, : self.used] = x[:, :, : self.used]
            x = wide
        x[:, :, self.used : need] = new
        return x

    def _view(self, keys: int, x: Tensor) -> Tensor:
        return x[:, :, self.used - keys : self.used]


def _grouped(sites: list[Site], threads: dict[Site, int]) -> list[tuple[Site, int]]:
    """Sites with the number of their call; where threads ran side by side, those of each together.

    So call 2 of one attention and call 2 of another are of one run.
    """
    if len(set(threads.values())) < 2:
        return [(site, site.call) for site in sites]
    first = {thread: -at for at, thread in enumerate(reversed(threads.values()))}
    calls: Counter[str] = Counter()
    found = []
    for site in sorted(sites, key=lambda site: first[threads[site]] if site in threads else 0):
        found.append((site, calls[site.path]))
        calls[site.path] += 1
    return found


def _going_back() -> bool:
    """Whether a gradient is being computed: checkpointing then runs again what was seen before."""
    return torch._C._current_graph_task_id() != -1


def _own(x: Tensor, q: Tensor) -> Tensor:
    """Keys that are a view of more than themselves may be a cache's, written in place later."""
    storage = x.untyped_storage()
    shared = storage.data_ptr() == q.untyped_storage().data_ptr()  # of one projection
    return x if shared or x.requires_grad or storage.nbytes() <= x.nbytes else x.clone()


def _flat(terms: Terms, q: Tensor) -> Terms:
    """Masks and biases given for every one of many leading axes, folded into one as q's are."""
    if q.ndim <= 4:
        return terms
    front = q.shape[:-3]
    return map_tensors(
        terms, lambda x: x.expand(*front, *x.shape[-3:]).flatten(0, -4) if x.ndim == q.ndim else x
    )


def _placed(call: AttentionCall, caller: Caller) -> Terms:
    """The terms, with the place of a state that looks back at all before it and not at itself."""
    back = isinstance(caller.module, StateAttention) and caller.kind == "self"
    return replace(call.terms, offset=call.k.shape[-2]) if back else call.terms


def _surveyed(site: Site, ask: Mapping[str, Any]) -> Site:
    """The statistics alone; the tensors keep their shapes and lose their numbers."""
    found = site.survey(**ask)
    shapes = {name: getattr(site, name).to("meta") for name in ("q", "k", "v", "out", "lse")}
    return replace(site, recorded_survey=found, **shapes)


def _unseen(running: ModuleTracker, passed: Collection[str]) -> dict[str, str]:
    """Modules that are attention by their name and ran, but nothing in them asked at the door."""
    silent = {
        path: module
        for path, module in running.called_modules.items()
        if _is_attention(module) and not any(_within(p, path) or _within(path, p) for p in passed)
    }
    inner = {
        path: module
        for path, module in silent.items()
        if not any(other != path and _within(other, path) for other in silent)
    }
    return {
        running.names[path]: f"as {type(module).__name__} computes its own softmax, not by a "
        "function that could be led here"
        for path, module in inner.items()
    }


def _is_attention(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower()


def _within(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(outer + ".")
