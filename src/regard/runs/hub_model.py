"""Models of Hugging Face folders, by transformers: only data is read, and no code of theirs."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.data.text.tokenizer_file import check_token_ids
from regard.errors import FileError, LookError, library_errors
from regard.models.hub.bounds import bounded_model, data_copy
from regard.models.hub.folder import read_config, read_weights
from regard.runs.text_model import TextModel

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model")


def build_hub_model(folder: Path) -> nn.Module:
    """The model of a Hugging Face folder on the meta device, from its config.json alone."""
    config, kind = _read_kind(folder)
    with (
        library_errors(folder, "a model that transformers loads"),
        bounded_model(f"{folder}"),
        torch.device("meta"),
    ):
        return kind._from_config(config, dtype=config.dtype).eval()


def load_hub_model(folder: Path) -> nn.Module:
    """The model of a Hugging Face folder, whatever it reads."""
    return _load_model(folder, *_read_kind(folder))


def load_hub_text_model(folder: Path) -> TextModel:
    """The model and tokenizer of a Hugging Face folder; nothing is downloaded."""
    config, kind = _read_kind(folder)
    if getattr(kind, "main_input_name", "input_ids") != "input_ids":
        raise LookError(
            f"model: needs one that reads tokens, got {kind.__name__}, which reads "
            f"{kind.main_input_name}; try rg.look(model) in Python with its own input"
        )
    model = _load_model(folder, config, kind)
    is_encoder_decoder = bool(getattr(config, "is_encoder_decoder", False))
    has_classes = kind.__name__.endswith("Classification")
    start = getattr(config, "decoder_start_token_id", None)
    return TextModel(
        model,
        hf_tokenizer=_load_tokenizer(folder),
        is_encoder_decoder=is_encoder_decoder,
        vocab=getattr(config, "vocab_size", None),
        max_length=getattr(config, "max_position_embeddings", None),
        decoder_start_token_id=(0 if start is None else start) if is_encoder_decoder else None,
        labels=tuple(config.id2label[i] for i in range(config.num_labels)) if has_classes else (),
    )


def _load_model(folder: Path, config: Any, kind: Any) -> nn.Module:
    state = read_weights(folder)
    with (
        library_errors(folder, "a model that transformers loads"),
        bounded_model(f"{folder}", state),
    ):
        # without a path: transformers reads adapters, pickles and shards of other formats beside it
        model, loaded = kind.from_pretrained(
            None, config=config, state_dict=state, output_loading_info=True
        )
        if model.can_generate():
            with data_copy(folder) as copy:
                model.generation_config = _generation_config(copy)
    if missing := sorted(loaded["missing_keys"]):
        raise FileError(
            f"{folder}: needs all weights of {kind.__name__}, got none of {len(missing)}, "
            f"such as {missing[0]}"
        )
    return model.eval()


def _generation_config(folder: Path) -> Any:
    """The options of `generate`, which older folders have in config.json."""
    from transformers import GenerationConfig

    if (folder / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(folder, local_files_only=True)
    return GenerationConfig.from_pretrained(
        folder, config_file_name="config.json", _from_model_config=True, local_files_only=True
    )


def _read_kind(folder: Path) -> tuple[Any, Any]:
    """The config of a folder and the class of transformers that it was saved from."""
    values = read_config(folder)
    try:
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES
    except ImportError:
        raise LookError(
            "model: needs transformers for a Hugging Face folder, got no such package; "
            "try pip install transformers"
        ) from None
    with library_errors(folder, "a model that transformers loads"), data_copy(folder) as copy:
        config: Any = transformers.AutoConfig.from_pretrained(
            copy, local_files_only=True, trust_remote_code=False
        )
    config.name_or_path = str(folder)
    names: Any = values.get("architectures") or MODEL_MAPPING_NAMES.get(config.model_type)
    name = names[0] if isinstance(names, list | tuple) else names
    kind: Any = getattr(transformers, name, None) if isinstance(name, str) else None
    is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if not is_model or not isinstance(config, kind.config_class or ()):
        raise FileError(
            f"{folder / 'config.json'}: needs as architecture a model of transformers with this "
            f"config, {config.model_type}, got {name!r:.60}; try its own code in Python, if you "
            "trust it, and rg.look(model)"
        )
    return config, kind


def _load_tokenizer(folder: Path) -> Any:
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    check_token_ids(folder)
    with library_errors(folder, "a tokenizer that transformers loads"), data_copy(folder) as copy:
        tokenizer = AutoTokenizer.from_pretrained(
            copy, local_files_only=True, trust_remote_code=False
        )
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise TypeError(f"its class is {type(tokenizer).__name__}")
        tokenizer.name_or_path = str(folder)
    return tokenizer
