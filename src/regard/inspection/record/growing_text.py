"""Recorded texts that grow step by step, as in a generation: stored once for all steps."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.inspection.adapters.snapshot import memory_address
from regard.ops.mixers import LinearMixer, MixResult
from regard.ops.mixers.short_convolution import ShortConvolution

CACHE_ROUNDING = 2**-7  # of a state that a cache holds in half precision
TIME_AXES = {"resets": 1}  # other tensors have 2
WITHOUT_TIME = ("state", "taps", "bias")


class GrowingCache:
    """Keys and values of a text that grows step by step, stored once for all steps.

    Every step has the keys of all earlier steps, and the model may overwrite its cache in place:
    each step gets a view of one buffer that is ours.
    """

    def __init__(self) -> None:
        self.k: Any = None
        self.v: Any = None
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
            self.k = _append(self.k, self.used, k[:, :, old:])
            self.v = _append(self.v, self.used, v[:, :, old:])
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

    def _view(self, keys: int, x: Tensor) -> Tensor:
        return x[:, :, self.used - keys : self.used]


class GrowingText:
    """The mixer of a text that grows step by step, stored once for all steps.

    A call continues the text if it begins with the state in which the previous one ended.
    """

    def __init__(self) -> None:
        self.used = 0
        self._mixer: Any = None  # with room for more tokens
        self._last: Tensor | None = None  # state after the last token

    def add(self, mixer: Any, result: MixResult, store: Callable[[Tensor], Tensor]) -> Any:
        """The mixer of all tokens so far; those of this call are its last ones."""
        if self._is_continued_by(mixer):
            new = _rows(mixer)
            grown = {
                name: _append(x, self.used, new[name], TIME_AXES.get(name, 2))
                for name, x in _rows(self._mixer).items()
            }
            self._mixer = replace(self._mixer, **grown)
            self.used += mixer.time
        else:
            stored = {name: store(x) for name, x in _tensors(mixer).items()}
            self._mixer, self.used = replace(mixer, **stored), mixer.time
        last = result.state if isinstance(mixer, LinearMixer) else None
        self._last = None if last is None else store(last)
        return self._view()

    @property
    def nbytes(self) -> int:
        """Size of all memory."""
        tensors = [*_tensors(self._mixer).values(), *([] if self._last is None else [self._last])]
        sizes = {memory_address(x): x.untyped_storage().nbytes() for x in tensors}
        return sum(sizes.values())

    def _is_continued_by(self, mixer: LinearMixer | ShortConvolution) -> bool:
        state = mixer.state
        if state is None or type(mixer) is not type(self._mixer) or state.requires_grad:
            return False
        if _rows(mixer).keys() != _rows(self._mixer).keys():  # an edit of one call
            return False
        if isinstance(mixer, ShortConvolution):  # the cache begins with zeros
            tail = self._mixer.x[..., max(0, self.used - state.shape[-1]) : self.used]
            last = F.pad(tail, (state.shape[-1] - tail.shape[-1], 0))
        else:
            last = self._last
        if last is None or last.shape != state.shape or last.device != state.device:
            return False
        bound = CACHE_ROUNDING * float(last.abs().max()) if last.numel() else 0.0
        return bool(((last - state).abs() <= bound).all())

    def _view(self) -> Any:
        views = {
            name: x.narrow(axis, 0, self.used)
            for name, x in _rows(self._mixer).items()
            if x.shape[axis := TIME_AXES.get(name, 2)] > self.used
        }
        return replace(self._mixer, **views)  # others are those of the graph


def _append(x: Tensor, used: int, new: Tensor, axis: int = 2) -> Tensor:
    """The buffer with new rows after those in use; it is ours, and made larger where it is full."""
    need = used + new.shape[axis]
    if need > x.shape[axis] or x.is_inference() != torch.is_inference_mode_enabled():
        shape = [*x.shape]
        shape[axis] = 2 * need  # doubled: amortised copies
        larger = x.new_empty(shape)
        larger.narrow(axis, 0, used).copy_(x.narrow(axis, 0, used))
        x = larger
    x.narrow(axis, used, new.shape[axis]).copy_(new.detach())
    return x


def _tensors(mixer: LinearMixer | ShortConvolution) -> dict[str, Tensor]:
    values = {f.name: getattr(mixer, f.name) for f in fields(mixer)}
    return {name: x for name, x in values.items() if isinstance(x, Tensor)}


def _rows(mixer: LinearMixer | ShortConvolution) -> dict[str, Tensor]:
    """The tensors with an axis of tokens."""
    return {name: x for name, x in _tensors(mixer).items() if name not in WITHOUT_TIME}
