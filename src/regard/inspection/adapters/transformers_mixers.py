"""Intercepts the linear mixers of transformers: linear attention, state spaces, convolutions.

Their layers call a function of their own file with keys, values, decay and write strength. While
a model is tracked, each such function (`READERS`) is replaced by one that describes its call as a
`LinearMixer` or a `ShortConvolution` and dispatches it. The model's result is used unless an edit
changed the call, so that outputs stay equal to the bit.
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.inspection.adapters.block_stacks import first_tensor
from regard.inspection.adapters.forward_code import called_names
from regard.inspection.adapters.mixer_readers import (
    READERS,
    Given,
    Reader,
    Unrecorded,
    describe,
    read_convolution,
    read_lightning,
    running,
)
from regard.inspection.adapters.module_tracker import ModelHook, ModuleTracker
from regard.ops.mixers import LinearMixer, MixResult
from regard.ops.mixers.op import compute_mix, dispatch_mixer, is_mixing_intercepted
from regard.ops.mixers.short_convolution import ShortConvolution

Mixing = "LinearMixer | ShortConvolution | Unrecorded"
Undo = Callable[[], object]
CONVOLUTIONS = frozenset(("causal_conv1d_fn", "causal_conv1d_update"))


def mixer_functions(module: nn.Module) -> frozenset[str]:
    """The functions that mix tokens linearly and that the forward pass of a module calls."""
    return frozenset(called_names(module) or ()) & frozenset(READERS)


def is_input_convolution(module: nn.Module | None) -> bool:
    """Whether the convolution of a module makes the inputs of another mixer, as in Mamba."""
    return module is not None and bool(mixer_functions(module) - CONVOLUTIONS)


def intercept_mixers(tracker: ModuleTracker) -> None:
    """Dispatch the linear mixers of transformers models until the tracker closes."""
    if "transformers" not in sys.modules:  # then the model has none of its modules
        return
    for path, module in tracker.modules.items():
        names = mixer_functions(module)
        installs: dict[Any, Callable[[], Undo]] = {}
        for name in names:
            owner = _owner(type(module), name)
            installs[id(owner), name] = partial(_replace, owner, name)
        if names and names <= CONVOLUTIONS:
            installs[id(module)] = partial(_hook_rows, module)
        elif hook := HOOKS.get(type(module).__name__):
            installs[id(module)] = partial(hook, module)
        for key, install in installs.items():
            _acquire(key, install)
            tracker.exit_stack.callback(_release, key)
            tracker.followed.add(path)


_installed: dict[Any, tuple[Undo, int]] = {}  # what removes it, and the number of users
_installing = threading.RLock()  # garbage collection may end a look anywhere


def _acquire(key: Any, install: Callable[[], Undo]) -> None:
    with _installing:
        undo, count = _installed.get(key) or (install(), 0)
        _installed[key] = undo, count + 1


def _release(key: Any) -> None:
    with _installing:
        undo, count = _installed.pop(key)
        if count > 1:
            _installed[key] = undo, count - 1
        else:
            undo()


def _owner(kind: type[nn.Module], name: str) -> Any:
    """The class or the module of Python in which `forward` finds a function."""
    if hasattr(kind, name):
        return next(base for base in kind.__mro__ if name in vars(base))
    return sys.modules[inspect.unwrap(getattr(kind, "forward")).__module__]  # noqa: B009


def _replace(owner: Any, name: str) -> Undo:
    original = getattr(owner, name)
    if original is None:  # transformers 4 has None where the package of a kernel is missing
        return lambda: None
    setattr(owner, name, _intercepted(original, READERS[name]))
    return lambda: setattr(owner, name, original)


def _hook_rows(module: nn.Module) -> Undo:
    """Note how many tokens a convolution gets: a cache puts earlier ones before them."""

    def enter(module: nn.Module, args: tuple, kwargs: dict | None = None) -> None:
        x = first_tensor(args or kwargs)
        running.rows = None if x is None else x.shape[1]

    return module.register_forward_pre_hook(ModelHook(enter), with_kwargs=True).remove


def _hook_lightning(module: Any) -> Undo:
    """MiniMax writes its attention out between the projection and a norm, which are modules."""
    calls = threading.local()  # .given, .qkv and .result of the running call

    def enter(module: nn.Module, args: tuple, kwargs: dict | None = None) -> None:
        bound = inspect.signature(type(module).forward).bind(module, *args, **kwargs or {})
        calls.given, calls.result = bound.arguments, None

    def project(linear: nn.Module, args: tuple, out: Tensor) -> None:
        calls.qkv = out

    def normalise(norm: nn.Module, args: tuple) -> tuple | None:
        if not is_mixing_intercepted():
            return None
        reader = partial(read_lightning, module, calls.qkv, args[0])
        out = _dispatch(lambda: args[0], reader, calls.given)
        calls.result = None if out is args[0] else out
        return None if out is args[0] else (out[0],)

    def leave(module: Any, args: tuple, out: tuple) -> None:
        cache = calls.given.get("past_key_values")
        if calls.result is not None and cache is not None:
            cache.set_linear_cache(module.layer_idx, calls.result[1])

    handles = [
        module.register_forward_pre_hook(ModelHook(enter), with_kwargs=True),
        module.qkv_proj.register_forward_hook(ModelHook(project)),
        module.norm.register_forward_pre_hook(ModelHook(normalise), prepend=True),
        module.register_forward_hook(ModelHook(leave)),
    ]
    return lambda: [handle.remove() for handle in handles]


def _hook_convolution(module: Any) -> Undo:
    """The block of RecurrentGemma, whose convolution is a module with padding on both sides."""

    def leave(convolution: nn.Conv1d, args: tuple, out: Tensor) -> Tensor | None:
        if not is_mixing_intercepted():
            return None
        x = args[0]
        given = {"hidden_states": x, "weight": convolution.weight[:, 0], "bias": convolution.bias}
        new = _dispatch(lambda: out[..., : x.shape[-1]], read_convolution, given)
        return F.pad(new, (0, out.shape[-1] - x.shape[-1])) if new._base is not out else None

    def enter(block: nn.Module, args: tuple, kwargs: dict | None = None) -> None:
        x = first_tensor(args or kwargs)
        if x is not None and x.shape[1] == 1 and is_mixing_intercepted():
            reason = "its convolution is written out for one token at a time"
            dispatch_mixer(Unrecorded(reason), lambda _: None)

    handles = [
        module.register_forward_pre_hook(ModelHook(enter), with_kwargs=True),
        module.conv_1d.register_forward_hook(ModelHook(leave), prepend=True),
    ]
    return lambda: [handle.remove() for handle in handles]


# layers that call no function of their own, by class
HOOKS = {
    "MiniMaxLightningAttention": _hook_lightning,
    "RecurrentGemmaRecurrentBlock": _hook_convolution,
}


def _intercepted(function: Callable[..., Any], reader: Reader) -> Callable[..., Any]:
    """The function, which dispatches its calls while its model is tracked in this thread."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not is_mixing_intercepted():
            return function(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        given |= given.pop("kwargs", {})
        with torch._C.DisableTorchFunction():  # traces no product of it
            return _dispatch(lambda **new: function(*args, **kwargs | new), reader, given)

    return run


def _dispatch(run: Callable[..., Any], reader: Reader, given: Given) -> Any:
    """The result of the model, or that of an edit."""
    described = describe(reader, given)
    if isinstance(described, Unrecorded):
        return dispatch_mixer(described, lambda _: run())
    native = result = None

    def compute(mixer: LinearMixer | ShortConvolution) -> MixResult:
        nonlocal native, result
        if mixer is described.mixer:
            native = run(**described.changes)
            result = described.read(native)
            native = described.write(result) if described.changes else native
            return result
        if isinstance(mixer, LinearMixer):
            return compute_mix(mixer)
        return MixResult(mixer.output()[..., None], None)

    final = dispatch_mixer(described.mixer, compute)
    return native if final is result else described.write(final)
