"""Finds every module through which positions influence each other, by what it computes.

A short run of a copy of the model is repeated with position p of each module's input changed. A
module mixes positions if its output changes at another position. That output is then set back
there, so that each module is tried alone; the outputs of recorded attentions are set back too. What
still changes is computed by something that a sight cannot record.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from regard.errors import LookError
from regard.inspection.adapters.block_stacks import first_tensor
from regard.inspection.adapters.module_tracker import ModuleTracker
from regard.inspection.adapters.replica import replicate
from regard.inspection.adapters.short_call import SHAPES, Call, make_calls, token_stacks
from regard.inspection.adapters.transformers_attention import unrecorded
from regard.inspection.adapters.transformers_mixers import Unrecorded
from regard.inspection.sites.patches import image_token, is_ids
from regard.nn import RecurrentCell
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting
from regard.ops.mixers import LinearMixer, MixResult, intercepting_mixers
from regard.ops.mixers.short_convolution import ShortConvolution

POSITION = 4  # whose input is changed, or the middle one of a shorter sequence
ROUNDING = {torch.float64: 64, torch.float32: 64}  # eps, relative to the largest number; else 4
POINTWISE = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Identity)
POINTWISE += (nn.modules.dropout._DropoutNd, nn.GELU, nn.SiLU, nn.ReLU, nn.Tanh, nn.Sigmoid)

Patched = Callable[[nn.Module], AbstractContextManager[ModuleTracker]]


@dataclass(frozen=True)
class TokenMixing:
    """Paths of the modules that mix positions other than by recorded attention, and of those with.

    `unchecked` maps the path of a (sub)model that could not be tried to the reason.
    """

    unrecorded: tuple[str, ...] = ()
    attentions: frozenset[str] = frozenset()
    unchecked: Mapping[str, str] = field(default_factory=dict)


_known = WeakIdKeyDictionary()  # by model: its layout and what was found


def find_token_mixing(
    model: nn.Module, modules: Mapping[str, nn.Module], calls: Mapping[str, Call], patched: Patched
) -> TokenMixing:
    """Try every module once per model; `calls` has the arguments of the model, or of its parts."""
    layout = hash(tuple((path, type(module)) for path, module in modules.items()))
    paths = tuple(p for p in calls if not any(_is_inside(p, other) for other in calls))
    known = _known.get(model)
    if known is not None and known[0] == (layout, paths):
        return known[1]
    unrecorded, attentions, unchecked = list[str](), set[str](), dict[str, str]()
    for path in paths:
        probe = _try_calls(modules[path], calls[path], patched)
        if isinstance(probe, str):
            unchecked[path] = probe
            continue
        prefix = f"{path}." if path else ""
        unrecorded += [f"{prefix}{x}".removesuffix(".") for x in probe.mixing]
        attentions |= {f"{prefix}{x}".removesuffix(".") for x in probe.attentions}
    mixing = TokenMixing(tuple(unrecorded), frozenset(attentions), unchecked)
    _known[model] = (layout, paths), mixing
    return mixing


def _is_inside(path: str, outer: str) -> bool:
    return path != outer and (not outer or path.startswith(f"{outer}."))


def _try_calls(model: nn.Module, call: Call, patched: Patched) -> "_Probe | str":
    """The probe of a model, with a short input or else its own; or why neither can be run."""
    reason = "it was called without a tensor"
    for lengths, (args, kwargs) in make_calls(model, call):
        devices = {p.device.index for p in model.parameters() if p.is_cuda}
        try:
            probe = _Probe(replicate(model), set(lengths))
            with torch.random.fork_rng(devices), torch.no_grad(), _disable_current_modes():
                for _ in range(2):
                    torch.manual_seed(0)
                    # without the interceptors of this thread
                    Context().run(probe.run, args, kwargs, patched)
        except Exception as error:  # whatever a model raises for an input that it was not given
            reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"
            continue
        if probe.tried:
            return probe
        reason = "no module was found whose input has an axis of positions"
    return reason


def _change_token(ids: Tensor) -> Tensor:
    """Another token at the position that is changed."""
    at = min(POSITION, ids.shape[1] // 2)
    others = ids[ids != ids[0, at]]
    new = ids.clone()
    new[:, at] = others[0] if len(others) else (ids[0, at] - 1).clamp(min=1)
    return new


class _Probe:
    """Two runs of a copy of a model: the second with one position changed at a time."""

    def __init__(self, model: nn.Module, lengths: set[int]):
        self.model, self.lengths, self.given = model, lengths, frozenset(lengths)
        self.mixing: dict[str, None] = {}
        self.attentions: set[str] = set()
        self.tried = self.is_flat = False
        self.is_second = False
        self.pictured: Tensor | None = None  # positions of patches in the text
        self._base: dict[Any, list[Tensor]] = {}
        self._counts: Counter[Any] = Counter()
        self._open: list[str] = []  # paths of the running modules
        self._rng = torch.Generator().manual_seed(0)

    def run(self, args: tuple, kwargs: dict[str, Any], patched: Patched) -> None:
        """Run the model; the second run compares."""
        modules = set(self.model.modules())
        with self._hooks(), patched(self.model) as tracker:
            self._tracker = tracker
            attention = intercepting(self._contain_attention, tracker)
            with attention, intercepting_mixers(self._contain_mixer, tracker):
                self.model(*args, **kwargs)
        if modules != set(self.model.modules()):  # BigBird, below a length
            raise LookError("model: needs to keep its modules while it runs, got others")
        self.is_second = True
        self._counts.clear()

    def _change_ids(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments of the model with another token: the first ids of each length."""
        lengths: set[int] = set()
        placeholder = image_token(getattr(self.model, "config", None))

        def change(x: Any) -> Any:
            if not is_ids(x) or x.shape[1] not in self.lengths - lengths or x.shape[1] < 2:
                return x
            lengths.add(x.shape[1])
            if placeholder is not None and bool((x == placeholder).any()):
                self.pictured = (x == placeholder).any(0)
                return x  # one more or less would not fit the pictures
            self.tried = True
            return _change_token(x)

        named = sorted(kwargs, key=lambda name: "ids" not in name)  # before masks
        changed = {n: kwargs[n] if SHAPES.search(n) else change(kwargs[n]) for n in named}
        return tuple(map(change, args)), {name: changed[name] for name in kwargs}

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        modules = dict(self.model.named_modules())
        blocks = {id(block) for stack in token_stacks(modules) for block in stack.blocks}
        with ExitStack() as hooks:
            for path, module in modules.items():
                if not isinstance(module, POINTWISE):
                    is_block = id(module) in blocks
                    enter, leave = self._make_hooks(path, is_block)
                    hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
                    hooks.enter_context(module.register_forward_hook(leave))
            yield

    def _make_hooks(self, path: str, is_block: bool) -> tuple[Callable, Callable]:
        def enter(module: nn.Module, args: tuple, kwargs: dict) -> Any:
            if is_block and not self.is_second:
                self._add_length(first_tensor(args or kwargs))
            if not path and self.is_second:
                args, kwargs = self._change_ids(args, kwargs)
            here = self._comparison("in", path, changes=True)
            new = tuple(map(here, args)), {name: here(x) for name, x in kwargs.items()}
            if here.leaks and self._open:  # what is computed before this module
                self.mixing[self._open[-1]] = None
            self._open.append(path)
            return new

        def leave(module: nn.Module, args: tuple, out: Any) -> Any:
            self._open.pop()
            here = self._comparison("out", path)
            has_map = isinstance(module, nn.MultiheadAttention)  # beside the output
            new = (here(out[0]), *out[1:]) if has_map else here(out)
            if here.leaks:
                self.mixing[path] = None
            return new if here.leaks else None

        return enter, leave

    def _comparison(self, side: str, path: str, *, changes: bool = False) -> "_Comparison":
        return _Comparison(self, self._first_run(side, path), changes)

    def _first_run(self, what: str, path: str) -> list[Tensor]:
        """What the first run gave at this call, which it fills in."""
        key = what, path, self._counts[what, path]
        self._counts[what, path] += 1
        return self._base.setdefault(key, [])

    def _add_length(self, x: Tensor | None) -> None:
        """The length of what enters a block, if it is another than that of the input."""
        if x is None or not x.is_floating_point():
            return
        if x.ndim == 3 and self.axis(x) is None:
            self.lengths.add(x.shape[1])
        # else a matrix may have one row per token in the order of its experts
        self.is_flat |= x.ndim == 2

    def axis(self, x: Tensor) -> int | None:
        """The axis of positions; None if there is none, or two as in a map."""
        if x.ndim < (2 if self.is_flat else 3):
            return None
        axes = [axis for axis, size in enumerate(x.shape) if size in self.lengths]
        if len(axes) > 1 and x.ndim == 3:
            axes = axes[:1] if axes[0] == 1 else [1] if 1 in axes else axes
        return axes[0] if len(axes) == 1 and x.shape[axes[0]] > 1 else None

    def noise(self, x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=self._rng).to(x)

    def _contain_attention(self, call: AttentionCall, proceed: Proceed) -> AttentionResult:
        """The output of the first run for every query that is not changed."""
        out, lse = proceed(call)
        self.attentions.add(self._tracker.caller.path)
        return self._contain("attention", call.q, out), lse

    def _contain_mixer(self, mixer: Any, proceed: Callable[[Any], MixResult]) -> MixResult:
        """The output of the first run for every token that is not changed."""
        result = proceed(mixer)
        if isinstance(mixer, Unrecorded):
            return result
        out = self._contain("mixer", _quantities(mixer), result.out)
        return result if out is result.out else result._replace(out=out)

    def _contain(self, what: str, x: Tensor, out: Tensor) -> Tensor:
        """The output of the first run, but where x, (…, head, position, number), has changed."""
        base = self._first_run(what, self._tracker.caller.path)
        if not self.is_second:
            base += [x.detach().clone(), out.detach().clone()]
        elif base and base[0].shape == x.shape and base[1].shape == out.shape:
            changed = _differ(x, base[0]).any(-1, keepdim=True)
            changed = changed.any(-3, keepdim=True) if x.ndim > 2 else changed  # in any head
            return torch.where(changed, out, base[1])
        return out


def _quantities(mixer: LinearMixer | ShortConvolution) -> Tensor:
    """All that each token gives a mixer, (batch, head, time, number)."""
    if isinstance(mixer, ShortConvolution):
        return mixer.x[..., None]
    given = (mixer.q, mixer.k, mixer.v, mixer.decays, mixer.beta, mixer.own)
    columns = [x if x.ndim == 4 else x[..., None] for x in given if x is not None]
    return torch.cat([x.to(mixer.v.dtype) for x in columns], -1)


def _differ(x: Tensor, base: Tensor) -> Tensor:
    """Where two tensors differ by more than rounding."""
    x, base = x.detach().nan_to_num(), base.nan_to_num()
    eps = ROUNDING.get(x.dtype, 4) * torch.finfo(x.dtype).eps
    return (x - base).abs() > eps * base.abs().amax() if x.numel() else x != base


@dataclass
class _Comparison:
    """Sets the inputs or outputs of a module back to the first run at all positions but one.

    With `changes` that one is changed.
    """

    probe: _Probe
    base: list[Tensor]
    changes: bool
    count: int = 0
    leaks: bool = False

    def __call__(self, x: Any, depth: int = 0) -> Any:
        if isinstance(x, Tensor):
            return self._compare(x, self.changes and not depth) if x.is_floating_point() else x
        if isinstance(x, Mapping):
            new = {name: self(y, depth + 1) for name, y in x.items()}
            return type(x)(**new) if self.leaks else x
        if type(x) in (list, tuple):
            return type(x)(self(y, depth + 1) for y in x)
        return x

    def _compare(self, x: Tensor, changes: bool) -> Tensor:
        axis = self.probe.axis(x)
        if axis is None:
            return x
        if not self.probe.is_second:
            self.base.append(x.detach().clone())
            return x
        at, self.count = self.count, self.count + 1
        if at >= len(self.base) or self.base[at].shape != x.shape:
            return x
        base = self.base[at]
        differs = _differ(x, base).movedim(axis, -1).flatten(0, -2).any(0)
        position = min(POSITION, len(differs) // 2)
        differs[position] = False
        given = self.probe.given
        if given and len(differs) not in given and int(differs.sum()) == 1:
            differs[:] = False  # the tokens moved, as behind a prompt
        pictured = self.probe.pictured
        if pictured is not None and len(pictured) == len(differs) and int(differs.sum()) == 1:
            differs &= ~pictured.to(differs.device)  # a patch of a tower, in its place in the text
        leaks = bool(differs.any())
        self.leaks |= leaks
        if not leaks and not changes:
            return x
        new, here = base.clone(), x.select(axis, position)
        if changes:  # anew in each module: a change may fade on the way
            self.probe.tried = True
            size = base.nan_to_num().float().square().mean().sqrt().clamp(min=1e-3).to(x)
            here = 2 * size * self.probe.noise(here) - base.select(axis, position)
        new.select(axis, position).copy_(here)
        return new


def find_uncalled(
    tracker: ModuleTracker, intercepted: Collection[str], mixing: TokenMixing
) -> dict[str, str]:
    """Attention modules, by class name, that ran without calling an interceptable function.

    Only those that called one in the short run, or where that was not possible.
    """
    silent = [
        path
        for path, module in tracker.called_modules.items()
        if path not in intercepted
        and "attention" in (name := type(module).__name__.lower())
        and not name.endswith("output")  # a projection
        and not any(_is_within(p, path) or _is_within(path, p) for p in intercepted)
        and (any(_is_within(p, path) for p in mixing.attentions) or mixing.unchecked)
    ]
    return {
        tracker.names[path]: reason_of(tracker.called_modules[path], False)
        for path in silent
        if not any(other != path and _is_within(other, path) for other in silent)
    }


def reason_of(module: nn.Module, has_attention: bool) -> str:
    """Why a module that mixes positions is no site."""
    name = type(module).__name__
    if any(isinstance(m, RecurrentCell | nn.RNNBase | nn.RNNCellBase) for m in module.modules()):
        return f"{name} is recurrent; try rg.inspection.record_gates(model)"
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return f"{name} is a convolution over {max(module.kernel_size)} positions"
    if module in unrecorded:
        return unrecorded[module]
    what = "more" if has_attention else "something else"
    return f"{name} computes {what} than softmax(q kᵀ + bias) v"


def _is_within(path: str, outer: str) -> bool:
    return path == outer or _is_inside(path, outer)
