"""Hugging Face folders as a `TextModel`, loaded by transformers."""

from pathlib import Path
from typing import Any

from regard.errors import FileError, LookError
from regard.runs.text_model import TextModel

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model")


def load_hub_text_model(path: Path) -> TextModel:
    """The model and tokenizer of a Hugging Face folder; nothing is downloaded."""
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError:
        raise LookError(
            "model: needs transformers for a Hugging Face folder, got no such package; "
            "try pip install transformers"
        ) from None
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        model = AutoModel.from_pretrained(path, config=config, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise FileError(f"{path}: cannot be loaded by transformers, {_first(error)}") from error
    if getattr(model, "main_input_name", "input_ids") != "input_ids":
        raise LookError(
            f"model: needs one that reads tokens, got {type(model).__name__}, which reads "
            f"{model.main_input_name}; try rg.look(model) in Python with its own input"
        )
    is_encoder_decoder = bool(getattr(config, "is_encoder_decoder", False))
    start = getattr(config, "decoder_start_token_id", None)
    return TextModel(
        model.eval(),
        hf_tokenizer=_tokenizer(path),
        is_encoder_decoder=is_encoder_decoder,
        vocab=getattr(config, "vocab_size", None),
        max_length=getattr(config, "max_position_embeddings", None),
        decoder_start_token_id=(0 if start is None else start) if is_encoder_decoder else None,
    )


def _tokenizer(path: Path) -> Any:
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise FileError(
            f"{path}: has a tokenizer that cannot be loaded, {_first(error)}"
        ) from error


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
