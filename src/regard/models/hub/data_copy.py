"""What transformers reads of a model folder: a copy of its data files, without names of code."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard.errors import FileError
from regard.files import write_text

# of configs and tokenizers; .py, .bin, .pkl and folders are never in a copy
DATA_SUFFIXES = {".bpe", ".codes", ".jinja", ".json", ".model", ".spm", ".tiktoken", ".txt"}
# keys of JSON whose values transformers imports, downloads or opens as files elsewhere
REFERENCES = {
    *("auto_map", "custom_generate", "custom_pipelines", "fusion_config", "kernel_config"),
    *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
    *("experts_implementation", "_experts_implementation", "_experts_implementation_internal"),
    *("trust_remote_code", "transformers_weights", "distributed_config", "use_kernels"),
    *("merges_file", "name_or_path", "_name_or_path", "tokenizer_file", "vocab_file"),
}


@contextmanager
def data_copy(folder: Path) -> Iterator[Path]:
    """A temporary folder with the configs and tokenizer files of a model folder.

    transformers imports Python files that a config names once it is allowed to, and a pickle beside
    the weights is code as well. The copy has neither, nor names of code in its JSON, so there is
    nothing to run. Files without such names are links.

    >>> folder = Path(tempfile.mkdtemp())
    >>> text = '{"model_type": "bert", "auto_map": {"AutoConfig": "evil.Config"}}'
    >>> _ = (folder / "config.json").write_text(text), (folder / "evil.py").write_text("")
    >>> with data_copy(folder) as copy:
    ...     [(file.name, file.read_text()) for file in copy.iterdir()]
    [('config.json', '{"model_type": "bert"}')]
    """
    with tempfile.TemporaryDirectory(prefix="regard-") as temporary:
        for file in folder.iterdir():
            if file.suffix in DATA_SUFFIXES and file.is_file():
                text = _without_references(file) if file.suffix == ".json" else None
                if text is None:
                    Path(temporary, file.name).symlink_to(file.resolve())
                else:
                    write_text(Path(temporary, file.name), text)
        yield Path(temporary)


def _without_references(file: Path) -> str | None:
    """The JSON of a file without such keys at any depth; None if it has none, or is no JSON."""
    dropped = False

    def clean(values: dict[str, Any]) -> dict[str, Any]:
        nonlocal dropped
        names = values.keys() & REFERENCES
        dropped |= bool(names)
        return {name: x for name, x in values.items() if name not in names}

    try:
        values = json.loads(file.read_bytes(), object_hook=clean)
    except (ValueError, RecursionError):  # whoever reads it reports that
        return None
    try:
        return json.dumps(values) if dropped else None
    except RecursionError:
        raise FileError(f"{file}: needs JSON, got one that is nested too deeply") from None
