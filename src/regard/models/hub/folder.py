"""Hugging Face checkpoints: tensors and config converted both ways, and folders of them.

Only names and numbers are read, without transformers. Nothing is dropped silently: a tensor or an
option without a counterpart is an error.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from regard.errors import ConfigError, FileError, suggestion
from regard.files import atomic_write, make_folder, parse_json
from regard.models.hub.bounds import check_sizes
from regard.models.hub.decoders import (
    GPT2,
    Arcee,
    GPTNeoX,
    Llama,
    Mistral,
    Olmo2,
    Phi3,
    Qwen2,
    Qwen3,
)
from regard.models.hub.encoders import T5, Bert, Marian, ViT, Whisper
from regard.models.hub.family import HubConfig, HubFamily, HubOptions, NamedTensors
from regard.models.hub.gemma import Gemma, Gemma2, Gemma3
from regard.models.serialization import read_safetensors, write_safetensors

FAMILIES: dict[str, HubFamily] = {
    name: family()
    for family in (
        *(Arcee, Bert, Gemma, Gemma2, Gemma3, GPT2, GPTNeoX, Llama, Marian, Mistral, Olmo2, Phi3),
        *(Qwen2, Qwen3, T5, ViT, Whisper),
    )
    for name in family.model_types
}


def from_transformers(state: Mapping[str, Tensor], config: HubConfig) -> nn.Module:
    """A Regard model with the weights of a transformers model.

    from_transformers(hub.state_dict(), hub.config.to_dict())(tokens) = hub(tokens).logits

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2}
    >>> hub = LlamaForCausalLM(LlamaConfig(vocab_size=9, num_hidden_layers=1, **sizes))
    >>> model = from_transformers(hub.state_dict(), hub.config.to_dict())
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> torch.allclose(model(tokens), hub(tokens).logits, atol=1e-5)
    True
    """
    return _family(config.get("model_type")).read(state, config)


def to_transformers(
    model: nn.Module, model_type: str | None = None
) -> tuple[NamedTensors, HubOptions]:
    """The inverse of `from_transformers`: state dict and config of a model.

    `model_type` names the family; by default it is the first that has all of the model's options.

    >>> config = rg.models.classifier_base(vocab=9, classes=2, layers=1, dim=24)
    >>> state, config = to_transformers(rg.models.Classifier(config))
    >>> config["model_type"], state["classifier.weight"].shape
    ('bert', torch.Size([2, 24]))
    """
    if model_type is not None:
        family = _family(model_type)
        if type(model) is not family.model:
            raise ConfigError(
                f"model: needs {family.model.__name__} for {model_type}, got {type(model).__name__}"
            )
        return family.write(model)
    reasons = []
    for family in FAMILIES.values():
        if type(model) is family.model:
            try:
                return family.write(model)
            except ConfigError as error:
                reasons.append(f"{family.model_types[0]} ({error})")
    if reasons:
        raise ConfigError(f"model: needs the options of one family, got {'; '.join(reasons)}")
    known = ", ".join(sorted({family.model.__name__ for family in FAMILIES.values()}))
    raise ConfigError(f"model: needs one of {known}, got {type(model).__name__}; try models.save")


def _family(model_type: Any) -> HubFamily:
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ConfigError(
            f"model_type: needs one of {', '.join(sorted(FAMILIES))}, got {model_type!r:.60}"
            f"{suggestion(str(model_type), FAMILIES)}"
        )
    return FAMILIES[model_type]


WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
OTHER = (".bin", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth")  # formats of weights
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "source.spm", "target.spm",
    "tokenizer.model", "preprocessor_config.json", "generation_config.json",
)  # fmt: skip


def from_pretrained(folder: str | Path) -> nn.Module:
    """Load a Hugging Face folder as a Regard model, in evaluation mode.

    Reads config.json and the safetensors files, sharded or not; transformers is not needed.

    >>> import tempfile
    >>> model = rg.models.Classifier(rg.models.classifier_base(9, 2, layers=1, dim=24)).eval()
    >>> folder, tokens = save_pretrained(model, tempfile.mkdtemp()), torch.tensor([[1, 2]])
    >>> torch.equal(from_pretrained(folder)(tokens), model(tokens))
    True
    """
    folder = Path(folder)
    config = read_config(folder)
    return from_transformers(read_weights(folder), config)


def save_pretrained(
    model: nn.Module,
    folder: str | Path,
    *,
    model_type: str | None = None,
    tokenizer: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Save a model as a Hugging Face folder that transformers loads; returns the folder.

    Args:
        model: A model of a family in `hub`: its options must be those of the family.
        folder: Where config.json and model.safetensors are written.
        model_type: The family, such as "llama"; by default the first that fits.
        tokenizer: A folder whose tokenizer files are copied along.
        options: Fields of config.json to add or replace, such as id2label.

    >>> import tempfile
    >>> config = rg.models.language_base(vocab=9, layers=1, dim=8, heads=2)
    >>> folder = save_pretrained(rg.models.LanguageModel(config), tempfile.mkdtemp())
    >>> sorted(path.name for path in folder.iterdir())
    ['config.json', 'model.safetensors']
    """
    folder = Path(folder)
    state, config = to_transformers(model, model_type)
    make_folder(folder)
    state = {name: x.detach().cpu() for name, x in state.items()}
    try:
        write_safetensors(state, {"format": "pt"}, folder / WEIGHTS_FILE)
        with atomic_write(folder / "config.json") as place:
            text = json.dumps(config | dict(options or {}), indent=2, ensure_ascii=False)
            place.write_text(text + "\n", encoding="utf-8")
        for name in TOKENIZER_FILES if tokenizer is not None else ():
            file = Path(tokenizer or "") / name
            if file.is_file() and file.parent.resolve() != folder.resolve():
                shutil.copyfile(file, folder / name)
    except OSError as error:
        raise FileError(f"{folder}: cannot be written, {error.strerror or error}") from error
    return folder


def read_config(folder: Path) -> HubOptions:
    """The config.json of a folder, whose sizes are within bounds and whose weights are plain."""
    values = _read_json(folder / "config.json")
    try:
        check_sizes(values, f"{folder / 'config.json'}")
    except RecursionError:
        raise FileError(f"{folder / 'config.json'}: needs less nesting, got too deep") from None
    if values.get("quantization_config") is not None:
        raise FileError(
            f"{folder / 'config.json'}: needs no quantization_config, whose method may import or "
            "download code; try transformers in Python, and rg.look(model)"
        )
    if (folder / "adapter_config.json").is_file():
        raise FileError(
            f"{folder}: needs a whole model, got an adapter beside it; try merge_and_unload of peft"
        )
    return values


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of the safetensors files in a folder; pickles are never read."""
    files = [WEIGHTS_FILE]
    if not (folder / WEIGHTS_FILE).is_file() and (folder / INDEX_FILE).is_file():
        shards = _read_json(folder / INDEX_FILE).get("weight_map")
        if not isinstance(shards, dict):
            raise FileError(f"{folder / INDEX_FILE}: needs a weight_map, got none")
        files = sorted({str(name) for name in shards.values()})
    state = {}
    for name in files:
        file = folder / name
        if file.parent != folder or file.suffix != ".safetensors":
            raise FileError(
                f"{folder / INDEX_FILE}: needs names of safetensors files in its folder, "
                f"got {name!r:.60}"
            )
        if not file.is_file():
            other = next((x.name for x in sorted(folder.glob("*")) if x.suffix in OTHER), "no such")
            raise FileError(
                f"{file}: needs weights as safetensors, got {other} file; try from_pretrained and "
                "save_pretrained of transformers, which convert other formats, where you trust them"
            )
        state |= read_safetensors(file, "save_pretrained")[1]
    return state


def _read_json(file: Path) -> HubOptions:
    if not file.is_file():
        raise FileError(f"{file}: needs a Hugging Face config, got no such file")
    try:
        values = parse_json(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise FileError(f"{file}: needs JSON, got {error}") from error
    if not isinstance(values, dict):
        raise FileError(f"{file}: needs an object of names and values, got {values!r:.40}")
    return values
