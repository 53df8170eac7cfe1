"""Which module runs at this moment, so that whoever stands at the door knows whose call it is."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from regard.errors import LookError


@dataclass(frozen=True)
class Caller:
    """The module whose attention is being computed."""

    name: str
    path: str
    kind: Literal["self", "cross"]
    module: nn.Module


class Running:
    """The modules of a model that are running now, outermost first."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.modules = dict(model.named_modules())  # walked once: a GPU waits meanwhile
        _refuse_compiled(self.modules)
        self.paths = {id(module): path for path, module in self.modules.items()}
        self.names = _names(self.modules)
        self.ran: dict[str, nn.Module] = {}  # every module that ran at all
        self._stack: list[nn.Module] = []
        self._across: list[bool | None] = []

    @property
    def caller(self) -> Caller:
        """Whose call it is; the model itself when called outside of it."""
        module = self._stack[-1] if self._stack else self.model
        path = self.paths[id(module)]
        across = self._across[-1] if self._across else None
        across = _crosses(path, module) if across is None else across
        return Caller(self.names[path], path, "cross" if across else "self", module)

    @property
    def inside(self) -> bool:
        """Whether the model is running: other calls at the door are not its own."""
        return bool(self._stack)

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """While this lasts, every module that could attend says when it starts and ends."""
        with ExitStack() as hooks:
            for path, module in self.modules.items():
                if module is self.model or not _is_plain(module):
                    hooks.callback(self._hook(path, module))
            try:
                yield
            finally:
                self._stack.clear()
                self._across.clear()

    def _hook(self, path: str, module: nn.Module) -> Any:
        def enter(module: nn.Module, args: tuple, kwargs: dict) -> None:
            self.ran[path] = module
            self._stack.append(module)
            self._across.append(_two_sequences(module, args, kwargs))

        def leave(module: nn.Module, args: tuple, out: Any) -> None:
            # an exception that was caught inside may have left more than this one
            while self._stack:
                self._across.pop()
                if self._stack.pop() is module:
                    break

        first = module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True)
        last = module.register_forward_hook(leave, always_call=True)

        def remove() -> None:
            first.remove()
            last.remove()

        return remove


def _is_plain(module: nn.Module) -> bool:
    """Whether it is a layer of torch's that has no parts: most modules are, and none attends."""
    torch_made = type(module).__module__.startswith("torch.nn.modules.")
    return torch_made and not module._modules and not isinstance(module, nn.RNNBase)


def refuse_compiled(model: nn.Module) -> None:
    """Raise if some part is compiled: hooks and the door are then skipped in silence."""
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
    q, k = given["query"], given["key"]
    return q is not k and (q.shape != k.shape or q.data_ptr() != k.data_ptr())
