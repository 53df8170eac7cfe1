"""What a folder of Hugging Face may make us do: sizes within bounds, and data without code."""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import get_ident
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as hooks

from regard.errors import FileError
from regard.files import write_text

# the most that a config may declare under names like these; the first that fits counts
BOUNDS = (
    (re.compile(r"_dim$|_size$"), 1 << 26),
    (re.compile(r"label|class"), 1 << 16),
    (re.compile(r"layer|block|stage|depth|expert|head|codebook|quantizer|group|branch"), 1 << 12),
    (re.compile(r"size|dim|position|vocab|channel|width|hidden|max_.*len|_mel"), 1 << 26),
    (re.compile(r"^(n|num|d)_"), 1 << 26),
)
# of the config of a processor: pictures beyond these take all memory
PROCESSOR_BOUNDS = (
    (re.compile(r"pixels"), 1 << 25),
    (re.compile(r"size|height|width|edge|pinpoint|patch|tile|crop|split|seq|token"), 1 << 12),
)
MAX_PATCHES = 512  # along a side of a picture
MAX_BUFFER_BYTES = 256 << 20  # of tables that are computed and not saved
MAX_TENSORS, MAX_NUMBERS = 1 << 15, 1 << 44  # of a model without weights


def check_sizes(values: Any, where: str, key: str = "", bounds: Any = BOUNDS) -> None:
    """Check every integer of a config by its name, also inside of others and of lists.

    >>> check_sizes({"text_config": {"num_hidden_layers": 10**6}}, "config.json")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: config.json: needs num_hidden_layers of at most 4096, got 1e+06
    """
    if isinstance(values, dict):
        for name, value in values.items():
            check_sizes(value, where, str(name), bounds)
    elif isinstance(values, list):
        for value in values:
            check_sizes(value, where, key, bounds)
    elif isinstance(values, int | float):
        most = next((most for name, most in bounds if name.search(key)), None)
        if most is not None and abs(values) > most and values == values // 1:
            got = f"{values:.6g}" if abs(values) < 10**300 else "hundreds of digits"
            raise FileError(f"{where}: needs {key} of at most {most}, got {got}")


def check_processor(values: Any, where: str) -> None:
    """Check what a processor's config declares of its pictures: pixels, crops, patches.

    >>> check_processor({"size": {"height": 10**9, "width": 224}}, "preprocessor_config.json")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: preprocessor_config.json: needs height of at most 4096, got 1e+09
    """
    if not isinstance(values, dict):
        return
    edges = values.get("size")
    if "merge_size" in values and isinstance(edges, dict):  # as of Qwen: the edges are areas
        values = values | {"size": {f"{name} in pixels": x for name, x in edges.items()}}
    check_sizes(values, where, bounds=PROCESSOR_BOUNDS)
    least = [x for x in _sides(values, r"^patch_size$|^max_image_size$") if x > 0]
    most = max(_sides(values, r"^size$|^crop_size$|pinpoints|pixels"), default=0)
    if least and most > MAX_PATCHES * min(least):
        raise FileError(
            f"{where}: needs at most {MAX_PATCHES} patches along a side, got sides of {most:g} "
            f"with patches of {min(least):g}"
        )


def _sides(values: Any, names: str, inside: bool = False) -> list[float]:
    """The lengths under keys that match, also inside of others; those of an area are its root."""
    if isinstance(values, dict):
        return [
            side**0.5 if "pixels" in str(key) else side
            for key, x in values.items()
            for side in _sides(x, names, inside or bool(re.search(names, str(key))))
        ]
    if isinstance(values, list):
        return [side for x in values for side in _sides(x, names, inside)]
    return [float(values)] if inside and isinstance(values, int | float) else []


@contextmanager
def bounded_model(where: str, state: Mapping[str, Tensor] | None = None) -> Iterator[None]:
    """Refuse a model that has more parameters than a file with these tensors can fill.

    Checked as each parameter is made on the meta device, where it takes no memory yet. A library
    may split or join tensors, so that only sizes out of all proportion are refused here.
    """
    tensors, numbers, thread = MAX_TENSORS, MAX_NUMBERS, get_ident()
    if state is not None:
        tensors = 4 * len(state) + 64
        numbers = 2 * sum(x.numel() for x in state.values()) + (1 << 16)
    total = count = 0

    def count_parameter(module: nn.Module, name: str, x: Tensor | None) -> None:
        nonlocal total, count
        if x is None or not x.is_meta or get_ident() != thread:
            return
        total, count = total + x.numel(), count + 1
        if total > numbers or count > tensors:
            has = "at most" if state is None else "no more than its tensors have, about"
            raise FileError(
                f"{where}: needs sizes of {has} {numbers:,} numbers in {tensors:,} parameters, "
                f"got {type(module).__name__}.{name} of shape {tuple(x.shape)} after {count:,}"
            )

    def check_buffer(module: nn.Module, name: str, x: Tensor | None) -> None:
        if x is not None and get_ident() == thread and x.nbytes > MAX_BUFFER_BYTES:
            raise FileError(
                f"{where}: needs tables of at most {MAX_BUFFER_BYTES >> 20} MiB beside its "
                f"weights, got {type(module).__name__}.{name} of {x.nbytes >> 20} MiB"
            )

    with ExitStack() as stack:
        handle = hooks.register_module_parameter_registration_hook(count_parameter)
        stack.callback(handle.remove)
        stack.callback(hooks.register_module_buffer_registration_hook(check_buffer).remove)
        yield


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
