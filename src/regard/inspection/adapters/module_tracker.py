"""Which module runs at this moment, so that whoever stands at the door knows whose call it is."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import nn

from regard.errors import LookError

# torch counts its hooks without a lock; reentrant, as garbage collection may end a look anywhere
_registering = threading.RLock()


@dataclass(frozen=True)
class Caller:
    """The module whose attention is being computed."""

    name: str
    path: str
    kind: Literal["self", "cross"]
    module: nn.Module


@dataclass(frozen=True)
class _Frame:
    """One module that is running; with DataParallel `module` is a copy of the one at the path."""

    path: str
    module: nn.Module
    across: bool | None


@dataclass(eq=False)
class _Run:
    """The modules that run in one thread, outermost first, and what was entered meanwhile."""

    frames: list[_Frame] = field(default_factory=list)
    entered: ExitStack = field(default_factory=ExitStack)


class ModuleTracker:
    """The modules of a model that are running now, in each thread by itself.

    A forward pass may go on in another thread after the `with` has ended (a generation whose reader
    stopped listening). It ends as it began: hooks, and whatever was entered for the model, go when
    the last such pass has ended.
    """

    def __init__(self, model: nn.Module):
        check_model(model)
        self.model = model
        self.modules = dict(model.named_modules())  # walked once: a GPU waits meanwhile
        _refuse_compiled(self.modules)
        self.ids = {id(module) for module in self.modules.values()}
        self.names = _names(self.modules)
        self.called_modules: dict[str, nn.Module] = {}  # every module that ran at all
        self.run_contexts: list[Callable[[], AbstractContextManager[Any]]] = []  # thread by thread
        self.exit_stack = ExitStack()  # left when the last run has ended
        self._here = threading.local()  # .run, of the thread that asks
        self._runs: WeakSet[_Run] = WeakSet()  # of all threads; one that died takes its own along
        self._lock = threading.RLock()
        self._is_open = False

    @property
    def caller(self) -> Caller:
        """Whose call it is; the model itself when called outside of it."""
        run = self._run
        frame = run.frames[-1] if run and run.frames else _Frame("", self.model, None)
        across = _crosses(frame.path, frame.module) if frame.across is None else frame.across
        name, kind = self.names[frame.path], "cross" if across else "self"
        return Caller(name, frame.path, kind, frame.module)

    def includes_call(self, call: Any) -> bool:
        """Whether the model runs in this thread: other calls at the door are not its own."""
        return self._run is not None

    @property
    def _run(self) -> _Run | None:
        return getattr(self._here, "run", None)

    def includes_model(self, model: nn.Module) -> bool:
        """Whether a model has some module in common with this one."""
        return any(id(module) in self.ids for module in model.modules())

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """While this lasts, every module that could attend says when it starts and ends."""
        self._is_open = True
        with _registering:
            for path, module in self.modules.items():
                if module is self.model or not _is_plain(module):
                    self.exit_stack.callback(self._hook(path, module))
        try:
            yield
        finally:
            self._end()  # what Ctrl-C left behind in this thread: hooks do not hear of it
            with self._lock:
                self._is_open, done = False, not self._runs
            if done:
                self._close()

    def _hook(self, path: str, module: nn.Module) -> Any:
        # torch adds a hook and notes that it wants kwargs in two steps: between them, and while it
        # is removed, a forward in another thread calls it without
        def enter(module: nn.Module, args: tuple, kwargs: dict | None = None) -> None:
            self.called_modules[path] = module
            self._begin().frames.append(
                _Frame(path, module, _two_sequences(module, args, kwargs or {}))
            )

        def leave(module: nn.Module, args: tuple, out: Any) -> None:
            frames = [] if self._run is None else self._run.frames
            # an exception that was caught inside may have left more than this one
            at = next((i for i in reversed(range(len(frames))) if frames[i].module is module), None)
            if at is None:
                return
            del frames[at:]
            if not frames and self._end():
                self._close()

        first = module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True)
        last = module.register_forward_hook(leave, always_call=True)

        def remove() -> None:
            first.remove()
            last.remove()

        return remove

    def _begin(self) -> _Run:
        run = self._run
        if run is None:
            run = self._here.run = _Run()
            with self._lock:
                self._runs.add(run)
            for make in self.run_contexts:
                run.entered.enter_context(make())
        return run

    def _end(self) -> bool:
        """End the run of this thread; whether it was the last, of a look that ended before it."""
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
    """Raise unless it is a model, as torch knows them."""
    if not isinstance(model, nn.Module):
        raise LookError(
            f"model: needs a torch.nn.Module, got {_described(model)}; try a model that is "
            "loaded, such as AutoModel.from_pretrained(…) or rg.models.load(…)"
        )


def check_glob(name: str, glob: object) -> None:
    """Raise unless it is a pattern over names of attentions."""
    if not isinstance(glob, str):
        raise LookError(f"{name}: needs a glob over names of attentions, got {glob!r}; try '*'")


def _described(x: object) -> str:
    return repr(x) if isinstance(x, str | int | float | None) else f"a {type(x).__name__}"


def _is_plain(module: nn.Module) -> bool:
    """Whether it is a layer of torch's that has no parts: most modules are, and none attends."""
    torch_made = type(module).__module__.startswith("torch.nn.modules.")
    return torch_made and not module._modules and not isinstance(module, nn.RNNBase)


def check_not_compiled(model: nn.Module) -> None:
    """Raise if some part is compiled: hooks and the door are then skipped in silence."""
    check_model(model)
    _refuse_compiled(dict(model.named_modules()))


def _refuse_compiled(modules: dict[str, nn.Module]) -> None:
    for path, module in modules.items():
        compiled = "_orig_mod" in module._modules or module._compiled_call_impl is not None
        if compiled or isinstance(module, torch.jit.ScriptModule):
            raise LookError(
                f"model: needs to run without torch.compile to be seen, got {path or 'it'} "
                "compiled; try the model as it was before"
            )


def short_name(path: str) -> str:
    """The path of an attention of ours as people say it.

    >>> short_name("decoder.blocks.2.cross_attention"), short_name("encoder.attentions.0")
    ('decoder.2.cross', 'encoder.0.self')
    """
    path = re.sub(r"(^|\.)blocks\.(\d+)", r"\1\2", path)
    path = re.sub(r"(^|\.)attentions\.(\d+)$", r"\1\2.self", path)
    return re.sub(r"(^|\.)(self|cross)_attention$", r"\1\2", path)


def _names(modules: dict[str, nn.Module]) -> dict[str, str]:
    """A name for each path: short for ours, the path itself for others, never one name for two."""
    names, taken = {}, set()
    for path, module in modules.items():
        name = short_name(path) if type(module).__module__.startswith("regard.") else path
        name = path if name in taken else name
        names[path] = name or type(module).__name__
        taken.add(name)
    return names


def _crosses(path: str, module: nn.Module) -> bool:
    """Whether a module attends to another sequence, told by what it and its place are called."""
    *_, above, last = ("", "", *path.lower().split("."))
    words = f"{last} {type(module).__name__.lower()}"
    inside = re.fullmatch(r"cross_?attention|cross_?attn", above)  # of a BERT: crossattention.self
    return bool(inside or re.search(r"cross|encoder_att|encdec|multihead_attn|src_att", words))


def _two_sequences(module: nn.Module, args: tuple, kwargs: dict) -> bool | None:
    """torch's own attention is told query and key: one tensor twice is a sequence and itself."""
    if not isinstance(module, nn.MultiheadAttention):
        return None
    given = dict(zip(("query", "key"), args, strict=False)) | kwargs
    q, k = given.get("query"), given.get("key")
    if q is None or k is None:
        return None
    return q is not k and (q.shape != k.shape or q.data_ptr() != k.data_ptr())
