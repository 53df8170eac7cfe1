"""Cost of a transformers model, from one forward pass of its shapes on the meta device.

`torch.utils.flop_counter` counts the same products (a test compares), but keeps their sum alone:
the formula needs the sides of each product, and the bytes its tensors.
"""

import copy
import math
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from regard.costs.formulas import FormulaWriter, Product
from regard.costs.layer_costs import CostPart, Side
from regard.errors import ConfigError

# of widths beside d and V, in order of appearance: as other tables of cost name them
SPARE_LETTERS = {"self-attention": "egstuvw", "cross-attention": "egstuvw", "feed-forward": "hijkp"}
READS = {"item": 0, "__bool__": False, "__int__": 0, "__float__": 0.0, "__contains__": False}
aten = torch.ops.aten


def is_transformers_model(model: nn.Module) -> bool:
    """Whether a model is one of Hugging Face transformers."""
    return any(
        cls.__module__.startswith("transformers.") and cls.__name__ == "PreTrainedModel"
        for cls in type(model).__mro__
    )


def input_size(model: Any) -> tuple[str, int | None]:
    """What `source` counts for a model, as text with {}, and its default."""
    name = getattr(model, "main_input_name", "input_ids")
    if name == "pixel_values":
        size = getattr(_main_config(model), "image_size", None) or 224
        return "side {}", size if isinstance(size, int) else size[0]
    if name == "input_features":  # Whisper takes 30 seconds, no less
        positions = getattr(model.config, "max_source_positions", None)
        return "frames {}", None if positions is None else 2 * positions
    return ("samples {}", 16_000) if name == "input_values" else ("n = {}", None)


def _main_config(model: Any) -> Any:
    return getattr(model.config, "vision_config", None) or model.config


def meta_inputs(model: Any, source: int, target: int, batch: int) -> dict[str, Tensor]:
    """Inputs of the model on the meta device."""
    name, config = model.main_input_name, _main_config(model)
    if name == "pixel_values":
        shape = (batch, getattr(config, "num_channels", 3), source, source)
    elif name == "input_features":
        shape = (batch, getattr(config, "num_mel_bins", 80), source)
    else:
        shape = (batch, source)
    dtype = torch.long if name == "input_ids" else model.dtype
    inputs = {name: torch.zeros(shape, dtype=dtype, device="meta")}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.zeros(batch, target, dtype=torch.long, device="meta")
    return inputs


def trace_cost_parts(model: Any, source: int, target: int, batch: int) -> list[CostPart]:
    """The parts of a transformers model in the order they run."""
    shapes = _meta_copy(model)
    tracer = _Tracer(shapes, {"source": source, "target": target}, batch)
    inputs = meta_inputs(shapes, source, target, batch)
    try:
        with tracer.tracing():
            shapes(**inputs)
        # a second pass: the copies of keys and values in a cache are no activations
        shapes.config.use_cache, tracer.is_counting = True, False
        with torch.no_grad(), _ShapesOnly(tracer), _meta_autocast():
            out = shapes(**inputs)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        reason = (str(e) or type(e).__name__).strip().splitlines()[0]
        raise ConfigError(
            f"model: needs a forward pass from shapes and {shapes.main_input_name} alone, got "
            f"{type(model).__name__}: {reason}; try a part of it, such as model.text_model"
        ) from e
    tracer.count_cache(getattr(out, "past_key_values", getattr(out, "cache_params", None)))
    if shapes.main_input_name != "input_ids":  # patches or frames
        tracer.lengths["source"] = tracer.sequence_length() or source
    return [tracer.cost_part(name) for name in tracer.parts]


class _Autocast(torch.autocast):
    def __init__(self, device_type: str, *args: Any, **kwargs: Any):
        super().__init__("cpu" if device_type == "meta" else device_type, *args, **kwargs)


_patching = threading.Lock()


@contextmanager
def _meta_autocast() -> Iterator[None]:
    """Let `torch.autocast("meta")` do nothing: RoPE of transformers 4 turns autocast off."""
    with _patching:
        original, torch.autocast = torch.autocast, _Autocast
        try:
            yield
        finally:
            torch.autocast = original


def _meta_copy(model: Any) -> Any:
    """The model without numbers and without hooks; nothing of its memory is copied."""
    memo: dict[int, Any] = {}
    for p in model.parameters():
        memo[id(p)] = nn.Parameter(p.detach().to("meta"), requires_grad=p.is_floating_point())
    for b in model.buffers():
        memo[id(b)] = b.to("meta")
    shapes = copy.deepcopy(model, memo)
    for module in shapes.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    for part in shapes.modules():
        if getattr(part, "_supports_sdpa", False):
            with suppress(ValueError):  # one of its parts has another form (sound of Gemma 4)
                part.set_attn_implementation("sdpa")
    can_set = getattr(shapes, "_can_set_experts_implementation", None)  # from version 5 on
    if can_set is not None and can_set():  # a loop over experts reads which are chosen
        shapes.set_experts_implementation("grouped_mm")
    shapes.config.use_cache = False
    return shapes.eval()


@dataclass
class _Part:
    """What the trace counts of one part."""

    side: Side
    products: Counter[Product] = field(default_factory=Counter)
    layers: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)  # by field of `CostPart`


class _Tracer:
    """Attributes products, bytes and saved tensors to parts while the model runs."""

    def __init__(self, model: Any, lengths: dict[str, int], batch: int):
        self.model, self.lengths, self.batch = model, lengths, batch
        self.modules = dict(model.named_modules())
        self.paths: list[str] = [""]  # of the running modules
        self.is_counting = True
        self.parts: dict[str, _Part] = {}
        self.mixtures: set[str] = set()  # paths of experts that were counted
        self.is_pair = bool(model.config.is_encoder_decoder)
        readout = model.get_output_embeddings()
        self.readout = next((p for p, m in self.modules.items() if m is readout), None)
        try:
            table = getattr(model.get_input_embeddings(), "weight", None)
        except NotImplementedError:
            table = None
        self.vocab, self.dim = table.shape if table is not None and table.ndim == 2 else (0, 0)
        self.dim = getattr(model.config, "hidden_size", None) or self.dim
        self.storages = [p.untyped_storage() for p in model.parameters()]
        self.known = {storage._cdata for storage in self.storages}

    def tracing(self) -> ExitStack:
        """The hooks and modes, as one context."""
        stack = ExitStack()
        for path, module in self.modules.items():
            enter = partial(self._enter, path)
            stack.enter_context(module.register_forward_pre_hook(enter))
            leave = partial(self._leave, path)
            stack.enter_context(module.register_forward_hook(leave, always_call=True))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_meta_autocast())
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._save, lambda x: x))
        stack.enter_context(_ShapesOnly(self))
        stack.enter_context(_Products(self))
        return stack

    def _enter(self, path: str, module: nn.Module, args: tuple) -> None:
        self.paths.append(path)

    def _leave(self, path: str, module: nn.Module, args: tuple, out: Any) -> None:
        del self.paths[self.paths.index(path, 1) :]
        if isinstance(out, Tensor) and self.part_name(path).endswith(("norms", "embedding")):
            weights = sum(p.numel() for p in module.parameters(recurse=False))
            read = out.numel() + min(weights, out.numel())
            self.part(path).counts["bytes_moved"] += (out.numel() + read) * out.element_size()

    def part(self, path: str) -> _Part:
        """The part that a module belongs to."""
        name = self.part_name(path)
        if name not in self.parts:
            in_decoder = name.startswith(("decoder", "cross", "readout")) and self.is_pair
            self.parts[name] = _Part("target" if in_decoder else "source")
            if not self.parts.keys() - {name}:  # parameters are counted once, before any product
                self._count_parameters()
        part = self.parts[name]
        layer = re.match(r"(.*\.\d+)(\.|$)", path)  # up to the last number
        part.layers.add(layer[1] if layer else "")
        return part

    def _count_parameters(self) -> None:
        visited: set[int] = set()
        for path, module in self.modules.items():
            for p in module.parameters(recurse=False):
                if id(p) not in visited:
                    visited.add(id(p))
                    self.part(path).counts["parameters"] += p.numel()

    def part_name(self, path: str) -> str:
        """The part of a model that a module belongs to, from the names of it and its parents."""
        pieces = path.split(".") if path else []
        chain = [".".join(pieces[: i + 1]) for i in range(len(pieces))]
        kinds = [type(self.modules[p]).__name__ for p in chain]
        words = [f"{piece} {kind}".lower() for piece, kind in zip(pieces, kinds, strict=True)]
        last, inside = (words or [""])[-1], any(piece.isdigit() for piece in pieces)
        prefix = ""
        if self.is_pair:
            sides = [w for w in ("encoder", "decoder") if w in pieces]
            prefix = f"{sides[0]} " if sides else ""
        if path == self.readout:
            return "readout"
        if "embedding" in last or (not inside and "embed" in " ".join(words)):
            return "embedding"
        if "norm" in last or re.search(r"\bln_", last):
            return f"{prefix}norms"
        attention = [w for w in words if re.search(r"attention|attn", w)]
        if attention:
            is_cross = any(re.search(r"cross|encoder_att|encdec", w) for w in attention)
            return "cross-attention" if is_cross else f"{prefix}self-attention"
        if any(re.search(r"mixer|mamba|recurren|lstm|hyena", w) for w in words):
            return f"{prefix}mixer"
        if isinstance(self.modules[path], _ConvNd):
            return "convolutions"
        return f"{prefix}feed-forward" if inside else "head" if path else "other"

    def add(self, products: list[Product], tensors: list[Tensor]) -> None:
        """Count matrix products of the running module, which read or write these tensors."""
        if not self.is_counting:
            return
        part = self.part(self.paths[-1])
        part.products.update(p for p in products if p.multiply_adds)
        part.counts["bytes_moved"] += sum(x.numel() * x.element_size() for x in tensors)

    def add_experts(self, rows: int, count: int) -> None:
        """Count what a token leaves out of the running experts, which get `rows` tokens in all."""
        path, part = self.paths[-1], self.part(self.paths[-1])
        if self.is_counting and path not in self.mixtures:
            self.mixtures.add(path)
            chosen = rows / (self.batch * self.lengths[part.side])
            own = self.modules[path].parameters(recurse=False)
            size = sum(p.numel() for p in own if len(p) == count)
            part.counts["idle_parameters"] += round(size * max(0.0, 1 - chosen / count))

    def _save(self, x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage._cdata not in self.known:  # held: an address may be used again
            self.known.add(storage._cdata)
            self.storages.append(storage)
            self.part(self.paths[-1]).counts["activation_bytes"] += storage.nbytes()
        return x

    def sequence_length(self) -> int | None:
        """The most frequent number of queries in attention over the source."""
        products = [part.products for part in self.parts.values() if part.side == "source"]
        rows = Counter(p.rows for counts in products for p in counts.elements() if p.count > 1)
        return rows.most_common(1)[0][0] if rows else None

    def count_cache(self, cache: Any) -> None:
        """Attribute the cache that the model returns for the next token."""
        cross = getattr(cache, "cross_attention_cache", None)
        attentions = [name for name in self.parts if name.endswith("self-attention")]
        mixers = [name for name in self.parts if name.endswith("mixer")]
        for name, content in (
            ((attentions or mixers or [""])[-1], getattr(cache, "self_attention_cache", cache)),
            ("cross-attention", cross),
        ):
            if name in self.parts:
                size = sum(x.nbytes for x in _tensors(content, set()))
                self.parts[name].counts["cache_bytes"] += size

    def cost_part(self, name: str) -> CostPart:
        """The traced part, with its formula."""
        part = self.parts[name]
        lengths = {"M": self.lengths["source"], "N": self.lengths["target"]}
        if not self.is_pair:
            lengths = {"n": self.lengths["source"]}
        if part.side == "target":
            lengths = dict(reversed(lengths.items()))  # where both are equal, the target's
        widths = {letter: x for letter, x in (("d", self.dim), ("V", self.vocab)) if x}
        spare = SPARE_LETTERS.get(name.split()[-1], "io")
        writer = FormulaWriter(self.batch, lengths, widths, spare)
        formula, sizes = writer.write(part.products, len(part.layers))
        multiply_adds = sum(p.multiply_adds * times for p, times in part.products.items())
        return CostPart(
            name=name, side=part.side, formula=formula, multiply_adds=multiply_adds,
            sizes=tuple(sizes.items()), **part.counts,
        )  # fmt: skip


class _Products(TorchDispatchMode):
    """Counts every matrix product and convolution."""

    def __init__(self, tracer: _Tracer):
        super().__init__()
        self.tracer = tracer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **kwargs or {})
        packet = getattr(func, "overloadpacket", None)
        if packet in (aten.mm, aten.addmm):
            a, b = args[-2:]
            self.tracer.add([Product(1, a.shape[0], a.shape[1], b.shape[1])], [*args, out])
        elif packet in (aten.bmm, aten.baddbmm):
            a, b = args[-2:]
            count, rows, inner = a.shape
            self.tracer.add([Product(count, rows, inner, b.shape[2])], [*args, out])
        elif packet in (aten.convolution, aten._convolution):
            x, weight = args[:2]
            places = (x if args[6] else out).shape  # a transposed one reads each place
            rows, inner, columns = math.prod(places[2:]), weight[0].numel(), weight.shape[0]
            self.tracer.add([Product(places[0], rows, inner, columns)], [x, weight, out])
        return out


class _ShapesOnly(TorchFunctionMode):
    """Functions that the meta device lacks: fused attention, experts, and reading a number.

    A number is 0, and what must hold for `all` holds: nothing is padded, masked or packed.
    """

    def __init__(self, tracer: _Tracer):
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS and args[0].is_meta:
            return READS[name]
        if name == "all" and len(args) == 1 and not kwargs and args[0].is_meta:
            return torch.tensor(True)
        if name.endswith("grouped_mm"):  # the rows of all experts, each times one of the matrices
            self.tracer.add([], [args[1][1:]])
            self.tracer.add_experts(len(args[0]), len(args[1]))
            return args[0] @ args[1][0]
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs or {})
        q, k, v = args[:3]
        out = _SaveForBackward.apply(q, k, v)
        count = math.prod(q.shape[:-2])
        queries, keys, head_dim, value = q.shape[-2], *k.shape[-2:], v.shape[-1]
        products = [Product(count, queries, head_dim, keys), Product(count, queries, keys, value)]
        self.tracer.add(products, [q, k, v, out])
        return out


class _SaveForBackward(torch.autograd.Function):
    """Shapes of fused attention, which saves q, k, v, the output and its log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # as torch lays it out: the heads of a token side by side
        out = q.new_empty(*q.shape[:-3], q.shape[-2], q.shape[-3], v.shape[-1]).transpose(-2, -3)
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1]))
        return out


def _tensors(x: Any, visited: set[int]) -> Iterator[Tensor]:
    """The tensors of a cache, each once."""
    if id(x) in visited or isinstance(x, str | int | float | type | torch.dtype | torch.device):
        return
    visited.add(id(x))
    if isinstance(x, Tensor):
        yield x
        return
    if isinstance(x, dict):
        inner = list(x.values())
    elif isinstance(x, list | tuple):
        inner = list(x)
    else:
        inner = list(getattr(x, "__dict__", {}).values())
    for value in inner:
        yield from _tensors(value, visited)
