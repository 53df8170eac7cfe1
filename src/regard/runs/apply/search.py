"""Search of text files for examples of what each attention head does."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from regard.errors import FileError, LookError
from regard.files import read_text
from regard.inspection import HeadSearch, search_heads
from regard.runs.text_model import TextModel


def search_files(
    model: TextModel, paths: Iterable[Path], by: str = "induction", **options: Any
) -> HeadSearch:
    """Find where in text files each head shows a pattern most; a folder gives its .txt files.

    `options` are those of `search_heads`. Texts are numbered in the order of the files.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "ids.txt"
    >>> _ = file.write_text("3 1 4 3 1 5")
    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> rg.runs.search_files(rg.runs.TextModel(model, vocab=10), [file]).tokens
    6
    """
    if model.is_encoder_decoder:
        raise LookError(
            f"model: needs one stack that reads text, got {type(model.model).__name__}; "
            "try regard look, which records an encoder-decoder on a text"
        )
    options["max_length"] = min(options.get("max_length", 256), model.max_length or 1 << 30)
    tokenizer = model.hf_tokenizer if model.tokenizer is None else model.tokenizer
    return search_heads(model.model, tokenizer, _texts(model, tokenizer, paths), by, **options)


def _texts(model: TextModel, tokenizer: Any, paths: Iterable[Path]) -> Iterator[Any]:
    for path in paths:
        files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
        if not files:
            raise FileError(f"{path}: needs .txt files, got a folder without any")
        for file in files:
            text = read_text(file)
            yield model.encode(str(file), text)[0].tolist() if tokenizer is None else text
