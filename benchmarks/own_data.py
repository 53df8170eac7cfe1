"""Defaults of `regard new` on data that nobody tuned for, beside defaults of other libraries.

pip install scikit-learn sklearn-crfsuite accelerate    # peers; those missing are reported
python benchmarks/own_data.py labels --data /data --out /tmp/own    # builds, trains, compares
python benchmarks/own_data.py all --data /data --out /tmp/own --peers none

`--data` has multi30k/, fashion-mnist/, fsdd.tar.gz and tinyshakespeare/. Each task is written as
files, then `regard new KIND DATA` and `regard train task.toml` run without any setting; then the
peers of `own_data_peers.py`, on the same files and splits. `speakers` was not looked at while the
defaults were chosen.
"""

import ast
import csv
import gzip
import hashlib
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

SPEAKER = "george"  # held out: the first in the alphabet
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
PACKAGES = 12
SPLITS = ("train", "valid", "test")


def main(
    task: Annotated[str, typer.Argument(help="One of the tasks below, or `all`.")],
    data: Annotated[Path, typer.Option(help="Folder of the data sets.")] = Path("shared/data"),
    out: Annotated[Path, typer.Option(help="Folder to write data and runs to.")] = Path("own"),
    peers: Annotated[str, typer.Option(help="Peers to run: `all`, `none`, or names.")] = "all",
    ours: Annotated[bool, typer.Option(help="Train with our defaults.")] = True,
) -> None:
    """Train with the defaults and print one line per model: scores, minutes, CPU minutes."""
    for name in TASKS if task == "all" else task.split(","):
        kind, build, names = TASKS[name]
        folder = out / name
        if not folder.exists():
            folder.mkdir(parents=True)
            build(data, folder)
        source = folder / "input.txt" if kind == "text" else folder
        if ours:
            recipe, run = out / f"{name}.toml", out / f"{name}-run"
            shutil.rmtree(run, ignore_errors=True)
            regard = [sys.executable, "-m", "regard"]
            timed(name, "new", [*regard, "new", kind, str(source), "-o", str(recipe), "--force"])
            timed(name, "regard", [*regard, "train", str(recipe), "--out", str(run)])
        for peer in names if peers == "all" else [x for x in peers.split(",") if x in names]:
            timed(name, peer, [sys.executable, str(PEERS), f"{kind}.{peer}", str(folder)])


def timed(name: str, who: str, command: list[str]) -> None:
    """Run a command on two threads at most, print its last line, and its wall and CPU minutes."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    done = subprocess.run(command, env=os.environ | threads, stdout=subprocess.PIPE, text=True)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = [line for line in done.stdout.splitlines() if "nrefs" not in line]
    last = lines[-1] if lines else f"failed: {done.returncode}"
    print(f"{name}\t{who}\t{wall / 60:.1f} min\t{cpu / 60:.1f} CPU min\t{last}", flush=True)


# ---- the data


def build_pairs(data: Path, folder: Path) -> None:
    """Multi30k with its own splits, plain files."""
    for split, name in zip(SPLITS, ("train", "val", "test_2016_flickr"), strict=True):
        for language in ("de", "en"):
            packed = (data / f"multi30k/{name}.{language}.gz").read_bytes()
            (folder / f"{split}.{language}").write_bytes(gzip.decompress(packed))


def build_images(data: Path, folder: Path) -> None:
    """Fashion-MNIST, the IDX files as they are."""
    for file in (data / "fashion-mnist").glob("*.gz"):
        shutil.copy(file, folder)


def build_speech(data: Path, folder: Path) -> None:
    """Spoken digits: four speakers to train on, takes 0 to 4 of them to validate, one to test."""
    with tarfile.open(data / "fsdd.tar.gz") as archive:
        archive.extractall(folder / "audio", filter="data")
    rows: dict[str, list[str]] = {split: [] for split in SPLITS}
    for file in sorted((folder / "audio").rglob("*.wav")):
        digit, speaker, take = file.stem.split("_")
        split = "test" if speaker == SPEAKER else "valid" if int(take) < 5 else "train"
        rows[split].append(f"{file.relative_to(folder)}\t{WORDS[int(digit)]}\n")
    for split, lines in rows.items():
        (folder / f"{split}.tsv").write_text("".join(lines))


def build_text(data: Path, folder: Path) -> None:
    """Tiny Shakespeare, one file."""
    shutil.copy(data / "tinyshakespeare/input.txt", folder)


def build_labels(data: Path, folder: Path) -> None:
    """Docstrings of Python's standard library, and the package they are of: the 12 largest."""
    root, rows = Path(sysconfig.get_path("stdlib")), dict[str, str]()
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).parts
        if {"site-packages", "test", "tests", "idlelib", "lib2to3"} & set(parts):
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                text = " ".join((ast.get_docstring(node) or "").split())[:400]
                if len(text) > 20:
                    rows.setdefault(text, parts[0].removesuffix(".py"))
    largest = {name for name, _ in Counter(rows.values()).most_common(PACKAGES)}
    write_labels(folder, [(x, label) for x, label in rows.items() if label in largest])


def build_speakers(data: Path, folder: Path) -> None:
    """Speeches of tiny Shakespeare, and who speaks: the 8 with the most speeches."""
    text = (data / "tinyshakespeare/input.txt").read_text(encoding="utf-8")
    rows = []
    for speech in text.split("\n\n"):
        name, colon, words = speech.partition(":\n")
        if colon and len(words) > 60:
            rows.append((" ".join(words.split())[:400], name))
    largest = {name for name, _ in Counter(name for _, name in rows).most_common(8)}
    write_labels(folder, list(dict.fromkeys(row for row in rows if row[1] in largest)))


def write_labels(folder: Path, rows: list[tuple[str, str]]) -> None:
    """Labelled texts as CSV: a hash of the text assigns 10% to valid and 20% to test."""
    files = {split: (folder / f"{split}.csv").open("w", newline="") for split in SPLITS}
    writers = {split: csv.writer(file) for split, file in files.items()}
    for writer in writers.values():
        writer.writerow(["text", "label"])
    for text, label in rows:
        number = hashlib.sha256(text.encode()).digest()[0] % 10
        writers["valid" if number == 0 else "test" if number < 3 else "train"].writerow(
            [text, label]
        )
    for file in files.values():
        file.close()


def build_tags(data: Path, folder: Path, train: int = 5000) -> None:
    """German captions in lower case; the tag says which words are written with a capital (nouns).

    Without their first words, which always are.
    """
    for split, name in zip(SPLITS, ("train", "val", "test_2016_flickr"), strict=True):
        text = gzip.decompress((data / f"multi30k/{name}.de.gz").read_bytes()).decode()
        with (folder / f"{split}.conll").open("w", encoding="utf-8") as file:
            for line in text.splitlines()[:train]:
                for word in line.replace(".", " .").replace(",", " ,").split()[1:]:
                    file.write(f"{word.lower()}\t{'NOUN' if word[0].isupper() else 'O'}\n")
                file.write("\n")


PEERS = Path(__file__).with_name("own_data_peers.py")
Build = Callable[[Path, Path], None]
TASKS: dict[str, tuple[str, Build, tuple[str, ...]]] = {
    "pairs": ("pairs", build_pairs, ("tutorial",)),
    "images": ("images", build_images, ("boosting", "cnn")),
    "speech": ("speech", build_speech, ("logistic", "cnn")),
    "text": ("text", build_text, ("nanogpt",)),
    "labels": ("labels", build_labels, ("logistic", "bert")),
    "tags": ("tags", build_tags, ("crf", "bert")),
    "speakers": ("labels", build_speakers, ("logistic", "bert")),
}

if __name__ == "__main__":
    typer.run(main)
