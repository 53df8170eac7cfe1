"""A copy of a model that shares its parameters and has no hooks: runs of it leave no trace."""

from collections import OrderedDict
from functools import partial
from types import MethodType
from typing import Any

from torch import Tensor, nn


def replicate(model: nn.Module) -> nn.Module:
    """The same modules and parameters in eval mode; buffers are copied, hooks are left out.

    >>> linear = torch.nn.Linear(2, 2)
    >>> copy = replicate(linear)
    >>> copy.weight is linear.weight, copy.training, linear.training
    (True, False, True)
    """
    copies: dict[int, nn.Module] = {}
    for module in model.modules():
        copies[id(module)] = module.__class__.__new__(module.__class__)
    for module in model.modules():
        values = {name: _copy(x, copies) for name, x in vars(module).items()}
        values |= {name: OrderedDict() for name in values if name.endswith(HOOKS)}
        values.pop("_output_capturing_hooks_installed", None)  # transformers installs them anew
        values["_parameters"] = dict(module._parameters)
        values["_buffers"] = {name: _copy(x, copies) for name, x in module._buffers.items()}
        values["training"] = False
        copies[id(module)].__dict__.update(values)
    return copies[id(model)]


HOOKS = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")


def _copy(x: Any, copies: dict[int, nn.Module]) -> Any:
    """A value of a module in its copy: modules become their copies, containers new."""
    if isinstance(x, nn.Module):
        return copies.get(id(x), x)
    if isinstance(x, nn.Parameter):
        return x
    if isinstance(x, Tensor):
        return x.detach().clone()
    if type(x) in (list, tuple):
        return type(x)(_copy(y, copies) for y in x)
    if type(x) in (dict, OrderedDict):
        return type(x)((name, _copy(y, copies)) for name, y in x.items())
    if isinstance(x, MethodType):  # such as a forward that was set on the instance
        return MethodType(x.__func__, _copy(x.__self__, copies))
    if isinstance(x, partial):  # of accelerate
        return partial(x.func, *_copy(x.args, copies), **_copy(x.keywords, copies))
    return x
