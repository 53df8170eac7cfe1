"""Tracks which module of a model is running, so that interceptors know whose call they see."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from regard.errors import ConfigError, LookError
from regard.inspection.adapters.forward_code import may_attend
from regard.inspection.adapters.snapshot import memory_address


class ModelHook:
    """A hook of one model: in a deep copy of the model it only removes itself."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # a graph that is compiled now outlives the hook, and would run without the model's `look`
        return None if torch.compiler.is_compiling() else self.function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_CopiedHook":
        return _CopiedHook()


class _CopiedHook:
    def __call__(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        for part in module.modules():
            for hooks in (part._forward_pre_hooks, part._forward_hooks):
                for key in [key for key, x in hooks.items() if isinstance(x, _CopiedHook)]:
                    del hooks[key]


# torch registers hooks without a lock; reentrant, as garbage collection may end a look anywhere
_registering = threading.RLock()


@dataclass(frozen=True)
class Caller:
    """The module whose attention is being computed, and which of its calls this is."""

    name: str = ""
    path: str = ""
    kind: Literal["self", "cross"] = "self"
    module: nn.Module | None = None
    call: int = 0
    alias: str = ""  # as activations are named, "decoder.3.self"; empty outside a stack of blocks

    def matches(self, glob: str) -> bool:
        """Whether a glob matches the name, the path or the alias."""
        return matches(glob, self.name, self.path, self.alias)


# Path of a running module, the module (with DataParallel a replica), and whether it attends to
# another sequence, if that is known from its arguments.
_Frame = tuple[str, nn.Module, bool | None]


@dataclass(eq=False)
class _Run:
    """The running modules of one thread, outermost first, and the contexts entered for them."""

    frames: list[_Frame] = field(default_factory=list)
    entered: ExitStack = field(default_factory=ExitStack)


class ModuleTracker:
    """The running modules of a model, per thread.

    A forward pass in another thread may outlast the `with` block (a streamed generation whose
    consumer stopped). Hooks and contexts are then removed when the last such pass ends.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.modules = uncompiled_modules(model)  # listed once: a GPU would idle
        self.ids = {id(module) for module in self.modules.values()}
        self.followed: set[str] = set()  # paths of linear mixers, beside what may attend
        self.called_modules: dict[str, nn.Module] = {}  # by path
        # entered per thread
        self.run_contexts: list[Callable[[], AbstractContextManager[Any]]] = []
        self.exit_stack = ExitStack()  # closed when the last run has ended
        self._callers: dict[tuple[str, bool | None], Caller] = {}  # the latest of each path
        self._here = threading.local()  # .run of the current thread
        self._runs: WeakSet[_Run] = WeakSet()  # of all threads that are alive
        self._lock = threading.RLock()
        self._is_open = False

    @cached_property
    def names(self) -> dict[str, str]:
        """A unique name per path."""
        return _names(self.modules)

    @cached_property
    def _stacks(self) -> dict[str, str]:
        """Names of the stacks of blocks by their paths."""
        from regard.inspection.adapters.activation_points import find_named_stacks  # imports this

        return {stack.path: name for name, stack in find_named_stacks(self.modules)}

    def _alias(self, path: str, kind: str) -> str:
        for stack, name in self._stacks.items():
            prefix = f"{stack}." if stack else ""
            block = path.removeprefix(prefix).partition(".")[0]
            if path.startswith(prefix) and block.isdigit():
                return f"{name}.{block}.{kind}"
        return ""

    @property
    def caller(self) -> Caller:
        """The innermost running module; the model itself when none runs."""
        run = self._run
        path, module, crosses = run.frames[-1] if run and run.frames else ("", self.model, None)
        known = self._callers.get((path, crosses))
        if known is not None and known.module is module:
            return known
        guess = crosses is None and is_cross_attention(path, type(module).__name__)
        kind = "cross" if crosses or guess else "self"
        alias = self._alias(path, "mixer" if path in self.followed else kind)
        caller = Caller(self.names[path], path, kind, module, alias=alias)
        self._callers[path, crosses] = caller
        return caller

    def includes_call(self, call: Any) -> bool:
        """Whether the model runs in this thread; other calls belong to others."""
        return self._run is not None

    @property
    def _run(self) -> _Run | None:
        return getattr(self._here, "run", None)

    def includes_model(self, model: nn.Module) -> bool:
        """Whether a model shares a module with this one."""
        return any(id(module) in self.ids for module in model.modules())

    @contextmanager
    def hooks(self, *prepare: "Callable[[ModuleTracker], None]") -> Iterator[None]:
        """Track every module that could attend, and the model itself, inside the `with` block.

        `prepare` is called before, and may add to `run_contexts` and `exit_stack`.
        """
        _ = self._stacks  # tries parts of blocks, which is no run of the model
        self._is_open = True
        handles: list[RemovableHandle] = []
        try:
            for function in prepare:
                function(self)
            self.exit_stack.callback(lambda: [handle.remove() for handle in reversed(handles)])
            with _registering:
                for path, module in self.modules.items():
                    if module is self.model or path in self.followed or may_attend(module):
                        handles += self._hook(path, module)
            yield
        except Exception as error:
            if type(error).__module__.startswith("torch._dynamo"):  # of a compiled copy
                raise _compiled_error("a compiled copy of it") from None
            raise
        finally:
            self._end()  # forward hooks do not run on KeyboardInterrupt
            with self._lock:
                self._is_open, done = False, not self._runs
            if done:
                self._close()

    def _hook(self, path: str, module: nn.Module) -> list[RemovableHandle]:
        # torch registers a hook and its with_kwargs flag in two steps: in between, and during
        # removal, a forward pass in another thread calls it without kwargs
        def enter(module: nn.Module, args: tuple, kwargs: dict | None = None) -> None:
            run = self._begin()
            if run is not None:
                self.called_modules[path] = module
                run.frames.append((path, module, _two_sequences(module, args, kwargs or {})))

        def leave(module: nn.Module, args: tuple, out: Any) -> None:
            run = self._run
            if run is None or all(frame[1] is not module for frame in run.frames):
                return
            while run.frames.pop()[1] is not module:
                pass  # an exception caught inside the model left inner frames behind
            if not run.frames and self._end():
                self._close()

        # `leave` first: between the two another thread may call the module and enter it; it is
        # removed last, so that no frame is left behind
        needs_kwargs = isinstance(module, nn.MultiheadAttention)
        return [
            module.register_forward_hook(ModelHook(leave), always_call=True),
            module.register_forward_pre_hook(
                ModelHook(enter), with_kwargs=needs_kwargs, prepend=True
            ),
        ]

    def add_output_hook(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Call a hook with module, args, kwargs and output, while the module is the caller."""
        with _registering:
            handle = module.register_forward_hook(ModelHook(hook), with_kwargs=True, prepend=True)
        self.exit_stack.callback(handle.remove)

    def _begin(self) -> _Run | None:
        """The run of this thread; None after the `with` block, when no new one may begin."""
        run = self._run
        if run is None:
            run = _Run()
            with self._lock:
                if not self._is_open:
                    return None
                self._runs.add(run)
            self._here.run = run
            for make in self.run_contexts:
                run.entered.enter_context(make())
        return run

    def _end(self) -> bool:
        """End the run of this thread; True if it was the last one after the `with` block."""
        run = self._run
        if run is None:
            return False
        del self._here.run
        run.entered.close()
        with self._lock:
            self._runs.discard(run)
            return not self._is_open and not self._runs

    def _close(self) -> None:
        with _registering:
            self.exit_stack.close()


def check_model(model: object) -> None:
    """Raise unless it is a torch.nn.Module."""
    if not isinstance(model, nn.Module):
        simple = isinstance(model, str | int | float | None)
        got = repr(model) if simple else f"a {type(model).__name__}"
        raise LookError(
            f"model: needs a torch.nn.Module, got {got}; try a model that is "
            "loaded, such as AutoModel.from_pretrained(…) or rg.models.load(…)"
        )


def check_eval_mode(model: nn.Module) -> None:
    """Raise if any module is in training mode: two runs then differ by their dropout."""
    check_model(model)
    if any(module.training for module in model.modules()):
        raise ConfigError("model: needs eval mode, got training; try model.eval()")


def check_glob(name: str, glob: object) -> None:
    """Raise unless it is a string."""
    if not isinstance(glob, str):
        raise LookError(f"{name}: needs a glob over attention names, got {glob!r}; try '*'")


def _compiled_error(got: str) -> LookError:
    return LookError(
        f"model: needs to run without torch.compile to be recorded, got {got}; "
        "try the uncompiled model"
    )


def matches(glob: str, *names: str) -> bool:
    """Whether the glob matches any of the names.

    >>> matches("decoder.*.cross", "decoder.2.cross", "decoder.blocks.2.cross_attention")
    True
    """
    return any(fnmatchcase(name, glob) for name in names)


def uncompiled_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules by path; raises if one is compiled, which silently skips hooks."""
    check_model(model)
    modules = dict(model.named_modules())
    for path, module in modules.items():
        if (
            module._compiled_call_impl is not None
            or "_orig_mod" in module._modules
            or isinstance(module, torch.jit.ScriptModule)
        ):
            raise _compiled_error(f"{path or 'it'} compiled")
    return modules


def short_name(path: str) -> str:
    """The short name of an attention module of regard.

    >>> short_name("decoder.blocks.2.cross_attention"), short_name("encoder.attentions.0")
    ('decoder.2.cross', 'encoder.0.self')
    """
    path = re.sub(r"(^|\.)blocks\.(\d+)", r"\1\2", path)
    path = re.sub(r"(^|\.)attentions\.(\d+)$", r"\1\2.self", path)
    return re.sub(r"(^|\.)(self|cross)_attention$", r"\1\2", path)


def _names(modules: dict[str, nn.Module]) -> dict[str, str]:
    """A unique name per path: short for modules of regard, the path itself for others."""
    names, taken = {}, set()
    for path, module in modules.items():
        name = short_name(path) if type(module).__module__.startswith("regard.") else path
        name = path if name in taken else name
        names[path] = name or type(module).__name__
        taken.add(name)
    return names


@cache
def is_cross_attention(path: str, class_name: str) -> bool:
    """Whether a module attends to another sequence, guessed from its path and class name."""
    *_, parent, last = ("", "", *path.lower().split("."))
    words = f"{last} {class_name.lower()}"
    inside = re.fullmatch(r"cross_?attention|cross_?attn", parent)  # BERT: crossattention.self
    return bool(inside or re.search(r"cross|encoder_att|encdec|multihead_attn|src_att", words))


def _two_sequences(module: nn.Module, args: tuple, kwargs: dict) -> bool | None:
    """Whether nn.MultiheadAttention got different query and key tensors; None for other modules."""
    if not isinstance(module, nn.MultiheadAttention):
        return None
    arguments = dict(zip(("query", "key"), args, strict=False)) | kwargs
    q, k = arguments.get("query"), arguments.get("key")
    if q is None or k is None:
        return None
    if q is k or q.shape != k.shape:
        return q is not k
    first, second = ((memory_address(x), int(x.storage_offset())) for x in (q, k))
    return first != second
