"""Hooks that belong to one model."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


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
