"""A Hugging Face model family: tables of tensor names and config fields, used both ways."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, RegardError, suggestion
from regard.models.config import StackConfig, get_config, without_effect
from regard.models.hub.bounds import bounded_model

HubConfig = Mapping[str, Any]  # of JSON
HubOptions = dict[str, Any]
NamedTensors = dict[str, Tensor]
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


SIZES = {  # config fields that most families name alike
    "layers": "num_hidden_layers",
    "dim": "hidden_size",
    "heads": "num_attention_heads",
    "ffn_dim": "intermediate_size",
    "activation": "hidden_act",
}


class Chunk(NamedTuple):
    """One of several blocks of rows of a hub tensor (GPT-2 stacks q, k and v)."""

    name: str
    block: int


def chunks(name: str, ours: str, *parts: str) -> dict[str, Chunk]:
    """The entries of `names` for tensors of ours that are the blocks of one hub tensor."""
    return {f"{ours}.{part}": Chunk(name, n) for n, part in enumerate(parts)}


class HubField(NamedTuple):
    """A config field of the hub that older checkpoints leave out."""

    name: str
    default: Any


class HubFamily:
    """A converter: subclasses fill in the tables, and hooks for what a table cannot express.

    Names are those of modules (weight, bias and gain follow) or of single tensors; `{i}` is the
    layer. `fields` maps config fields to the hub's; `fixed` are the options the family always has.
    """

    model_types: ClassVar[tuple[str, ...]]
    architecture: ClassVar[str]
    model: ClassVar[type[nn.Module]]
    config: ClassVar[type[StackConfig]]
    prefix: ClassVar[str] = ""  # of the base model inside one with a head
    heads: ClassVar[tuple[str, ...]] = ("head", "readout")  # modules outside of the base model
    names: ClassVar[Mapping[str, str | Chunk]]
    shared_table: ClassVar[str] = ""  # embedding of the hub that may also be the output layer
    output_table: ClassVar[str] = "lm_head.weight"
    fields: ClassVar[Mapping[str, str | HubField]]
    fixed: ClassVar[Mapping[str, Any]] = {}
    unsupported: ClassVar[tuple[str, ...]] = ()  # hub options that have to be off
    copies: ClassVar[tuple[str, ...]] = ()  # suffixes of tensors that hold nothing learned
    renamed: ClassVar[Mapping[str, str]] = {}  # substrings of other transformers releases
    transposed: ClassVar[tuple[str, ...]] = ()  # modules stored as (in, out)
    zero_bias: ClassVar[tuple[str, ...]] = ()  # modules whose bias the hub does not have
    from_tensors: ClassVar[tuple[str, ...]] = ("tied",)  # options that the tensors decide

    def read_options(self, config: HubConfig, state: NamedTensors) -> HubOptions:
        """Config values that `fields` cannot express, from the hub's config and tensors."""
        return {}

    def write_options(self, config: Any) -> HubOptions:
        """The inverse of `read_options`."""
        return {}

    def extra_tensors(self, config: Any) -> NamedTensors:
        """Tensors that the hub computes instead of storing."""
        return {}

    def shape(self, name: str, x: Tensor, *, to_hub: bool) -> Tensor:
        """A tensor in the other side's shape."""
        return x

    def stacked(self, name: str, x: Tensor, config: Any, *, to_hub: bool) -> Tensor:
        """The rows of a hub tensor of several blocks in the other side's order: block by block."""
        return x

    def read(self, tensors: Mapping[str, Tensor], config: HubConfig) -> nn.Module:
        """The model with the weights of a hub checkpoint."""
        for name in self.unsupported:
            if config.get(name):
                raise ConfigError(f"{name}: needs to be off, no such layer, got {config[name]}")
        state = self.base_names(tensors)
        with _reading(self.model_types[0]):
            ours = self.config(**self._read_config(config, state))
            with bounded_model("config", state), torch.device("meta"):
                shapes = self.model(ours)
            named = self._read_tensors(shapes, ours, state)
        with torch.random.fork_rng(devices=[]):  # initial weights are replaced: no seed is spent
            model = self.model(ours)
        model.load_state_dict(named)
        return model.eval()

    def _read_tensors(self, shapes: nn.Module, config: Any, state: NamedTensors) -> NamedTensors:
        """The tensors of a checkpoint under our names, in the shapes of the model."""
        computed, taken, named = self.extra_tensors(config), set[str](), NamedTensors()
        ours_by_name, rows = shapes.state_dict(), dict[str, dict[int, int]]()
        for name, ours in ours_by_name.items():
            hub, chunk = self.hub_name(name, config)
            if chunk is not None:
                rows.setdefault(hub, {})[chunk.block] = ours.shape[0]
        for name, ours in ours_by_name.items():
            hub, chunk = self.hub_name(name, config)
            taken.add(hub)
            if hub in state:
                x = self._oriented(name, state[hub])
                if chunk is not None and len(x) == sum(rows[hub].values()):  # else an error below
                    start = sum(n for block, n in rows[hub].items() if block < chunk.block)
                    x = self.stacked(hub, x, config, to_hub=False)[start : start + ours.shape[0]]
                named[name] = self.shape(name, x, to_hub=False)
            elif name in computed:
                named[name] = computed[name]
            elif name.removesuffix(".bias") != name and self._is_in(name, self.zero_bias):
                named[name] = torch.zeros(ours.shape, dtype=ours.dtype)
            else:
                hint = suggestion(hub, state).replace("try", "nearest is")
                raise ConfigError(f"state: needs {hub!r}, got no such tensor{hint}")
            if (got := named[name].shape) != ours.shape:
                raise ConfigError(
                    f"state: needs tensors that fit the config, {hub!r} as {tuple(ours.shape)}, "
                    f"got {tuple(got)}"
                )
        if others := sorted(set(state) - taken):
            raise ConfigError(
                f"state: needs only tensors of the family, got {len(others)} more: "
                f"{', '.join(others[:3])}{' …' if len(others) > 3 else ''}"
            )
        return named

    def base_names(self, tensors: Mapping[str, Tensor]) -> NamedTensors:
        """The hub's tensors by their names in the base model, without copies."""
        state = {}
        for name, x in tensors.items():
            name = name.removeprefix(self.prefix)
            for other, current in self.renamed.items():
                name = name.replace(other, current)
            if not name.endswith(self.copies or ("\0",)):
                state[name] = x
        return state

    def _read_config(self, config: HubConfig, state: NamedTensors) -> HubOptions:
        options = {}
        for ours, field in self.fields.items():
            if isinstance(field, HubField):
                value = config.get(field.name, field.default)
            elif field in config:
                value = config[field]
            else:
                raise ConfigError(f"config: needs {field!r} for {config['model_type']}, got none")
            options[ours] = read_activation(value) if ours == "activation" else value
        options |= {**self.fixed, **self.read_options(config, state)}
        if self.shared_table:
            # a copy of the embedding is no output layer
            weight, table = state.get(self.output_table), state.get(self.shared_table)
            if weight is not None and table is not None and torch.equal(weight, table):
                del state[self.output_table]
            options["tied"] = self.output_table not in state
        return options

    def write(self, model: nn.Module) -> tuple[NamedTensors, HubOptions]:
        """The tensors and the config of a model, as the hub has them."""
        config = get_config(model)
        hub_config = self._write_config(config)
        computed, blocks, state = self.extra_tensors(config), dict[str, dict[int, Tensor]](), {}
        for name, x in model.state_dict().items():
            hub, chunk = self.hub_name(name, config)
            if name.endswith(".bias") and self._is_in(name, self.zero_bias):
                continue
            if name in computed:
                if not torch.allclose(x, computed[name].to(x), atol=1e-5):
                    raise ConfigError(f"model: needs the sinusoids of {hub!r}, got a trained table")
                continue
            outside = name.startswith(self.heads)
            hub, x = hub if outside else self.prefix + hub, self.shape(name, x, to_hub=True)
            if chunk is None:
                state[hub] = self._oriented(name, x)
            else:
                blocks.setdefault(hub, {})[chunk.block] = x
                x = torch.cat([block for _, block in sorted(blocks[hub].items())])
                state[hub] = self._oriented(name, x)
        for name in blocks:
            state[name] = self.stacked(name, state[name], config, to_hub=True)
        return {name: x.contiguous() for name, x in state.items()}, hub_config

    def _write_config(self, config: Any) -> HubOptions:
        hub = {"model_type": self.model_types[0], "architectures": [self.architecture]}
        hub |= self.write_options(config)
        if self.shared_table:
            hub["tie_word_embeddings"] = config.tied
        for ours, field in self.fields.items():
            value = _resolved(config, ours)
            if ours == "activation":
                value = write_activation(value)
            hub.setdefault(field.name if isinstance(field, HubField) else field, value)
        # what a reader makes of it: an option that does not survive would be lost silently
        from_tensors = {name: getattr(config, name) for name in self.from_tensors}
        again = self.config(**self._read_config(hub, {}) | from_tensors)
        for name in {field.name for field in fields(config)} - without_effect(config):
            value, want = _resolved(config, name), _resolved(again, name)
            if value != want:
                raise ConfigError(
                    f"{name}: needs {want!r} for a {self.model_types[0]} checkpoint, got {value!r}"
                )
        return hub

    def hub_name(self, name: str, config: Any) -> tuple[str, Chunk | None]:
        """The hub's name of one of our tensors, and which part of it this is."""
        number = re.search(r"\bblocks\.(\d+)\.", name)
        key = name if number is None else name.replace(f"blocks.{number[1]}.", "blocks.{i}.")
        module, _, leaf = key.rpartition(".")
        hub = self.names[key] if key in self.names else self.names.get(module)
        if hub is None:
            raise ConfigError(
                f"model: needs only layers of {self.model_types[0]}, got {name}; try models.save"
            )
        chunk = hub if isinstance(hub, Chunk) else None
        text = hub.name if isinstance(hub, Chunk) else hub
        if key not in self.names:
            text += ".weight" if leaf == "gain" else f".{leaf}"
        return text.replace("{i}", number[1] if number else ""), chunk

    def _oriented(self, name: str, x: Tensor) -> Tensor:
        flips = name.endswith(".weight") and self._is_in(name, self.transposed)
        return x.mT if flips else x

    def _is_in(self, name: str, modules: tuple[str, ...]) -> bool:
        return name.rpartition(".")[0].endswith(modules or ("\0",))


def read_activation(name: str) -> str:
    """Our name of a hub activation."""
    if name not in ACTIVATIONS:
        raise ConfigError(f"activation: needs one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]


def write_activation(name: str) -> str:
    """The hub's name of one of our activations."""
    return next(hub for hub, ours in ACTIVATIONS.items() if ours == name)


def _resolved(config: Any, name: str) -> Any:
    return getattr(config, f"resolved_{name}", getattr(config, name))


@contextmanager
def _reading(model_type: str) -> Iterator[None]:
    """Report values of wrong types, which come from a file, as one line."""
    try:
        yield
    except RegardError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        line = " ".join(str(e).split()) or type(e).__name__
        raise ConfigError(f"config: needs values of a {model_type} model, got {line:.200}") from e
