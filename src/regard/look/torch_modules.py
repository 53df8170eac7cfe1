"""torch's own attention, and whatever calls scaled_dot_product_attention, led through the door."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.look.given_mask import in_use, read_mask
from regard.look.running import Running
from regard.ops import attend
from regard.ops.door import Answer, Call, Proceed, attending
from regard.ops.masks import Causal
from regard.ops.survey.reference import weights


@contextmanager
def led(running: Running) -> Iterator[None]:
    """Answer torch's attention functions by `attend` while the model runs.

    The C++ fast path of nn.TransformerEncoder knows no attention function, so it is off meanwhile:
    the same layers then run one by one. A model of our layers alone goes by the door anyway.
    """
    if all(_is_ours(module) for module in running.modules.values()):
        yield
        return
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with _Leading(running):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _is_ours(module: nn.Module) -> bool:
    """Whether it is a layer of ours, or one of torch's in which nothing attends."""
    made_by = type(module).__module__
    attends = isinstance(module, nn.MultiheadAttention)
    return made_by.startswith(("regard.", "torch.nn.modules.")) and not attends


class _Leading(TorchFunctionMode):
    def __init__(self, running: Running):
        super().__init__()
        self.running = running

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.running.inside:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention and not _strange(args[:3]):
            return self._attend(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._many_heads(args, kwargs)
        return func(*args, **kwargs)

    def _attend(self, *args: Any, **kwargs: Any) -> Tensor:
        return _dot_product_attention(self.running.caller.kind == "self", *args, **kwargs)

    def _many_heads(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """As asked, but always by the fused function; weights that were asked for come from lse."""
        names = F.multi_head_attention_forward.__code__.co_varnames
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        if not given.get("need_weights", True):
            with self._named():
                return F.multi_head_attention_forward(**given)
        maps: list[Tensor] = []

        def note(call: Call, proceed: Proceed) -> Answer:
            out, lse = proceed(call)
            maps.append(weights(call.terms.tile(call.q, call.k), lse))
            return out, lse

        with self._named(), attending(note):
            out, _ = F.multi_head_attention_forward(**{**given, "need_weights": False})
        [w] = maps
        w = w.to(out.dtype)
        w = w.mean(1) if given.get("average_attn_weights", True) else w
        return out, w if given["query"].ndim == 3 else w[0]

    @contextmanager
    def _named(self) -> Iterator[None]:
        """The inside of a function that a mode answers runs without the mode, so what it calls by
        name is replaced by name.
        """
        theirs = F.scaled_dot_product_attention
        F.scaled_dot_product_attention = self._attend
        try:
            yield
        finally:
            F.scaled_dot_product_attention = theirs


def _dot_product_attention(
    same: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    front = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3])
    q, k, v = (_folded(x, front) for x in (query, key, value))
    terms: dict[str, Any] = {"scale": scale, "dropout": dropout_p}
    if is_causal:
        terms["mask"] = Causal()
    elif attn_mask is not None:
        attn_mask = _folded(attn_mask, front) if attn_mask.ndim > 3 else attn_mask
        found = read_mask(attn_mask, q, k, same=same)
        k, v = in_use(k, found.used), in_use(v, found.used)
        terms |= {"mask": found.mask, "bias": found.bias, "offset": found.offset}
    out, _ = attend(q, k, v, **terms)
    return out.reshape(*front, *out.shape[-3:])


def _folded(x: Tensor, front: torch.Size) -> Tensor:
    """Every axis before the heads as one batch, the same for all that take part."""
    x = x.expand(*front, *x.shape[-3:])
    return x.flatten(0, -4) if len(front) > 1 else x


def _strange(tensors: tuple) -> bool:
    """Nested tensors have no plain axes; they pass by, and the sight says so."""
    return len(tensors) < 3 or any(x.is_nested for x in tensors)
