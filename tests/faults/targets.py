"""What is put under faults: commands and saves, each declared once."""

import hashlib
import json
import os
import shutil
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regard as rg
from regard.cli import main as regard

SIGNALS = {
    "kill -9": signal.SIGKILL,
    "SIGTERM": signal.SIGTERM,
    "SIGINT": signal.SIGINT,
    "SIGHUP": signal.SIGHUP,
}
FULL, DAMAGE = "full disk", "damaged file"


@dataclass(frozen=True)
class Target:
    """A command that is stopped by faults and given again."""

    name: str
    start: Callable[[Path], object]  # in a fork; ends like a command
    result: Callable[[Path], dict[str, Any]]  # in the end, as of no fault
    again: Callable[[Path], object] | None = None  # after a fault; None is the start
    prepare: Callable[[Path], object] = lambda folder: None  # before the start
    check: Callable[[Path], object] = lambda folder: None  # after each fault; raises on a loss
    damage: tuple[str, ...] = ()  # globs of files that may be damaged after a stop
    faults: tuple[str, ...] = (*SIGNALS, FULL)


def command(*words: object) -> None:
    """A command line, as the program runs it."""
    sys.argv = ["regard", *map(str, words)]
    regard()


def digest(*globs: str) -> Callable[[Path], dict[str, str]]:
    """The content of files below a folder, as hashes by their path."""

    def digest_files(folder: Path) -> dict[str, str]:
        files = sorted(x for glob in globs for x in folder.glob(glob) if x.is_file())
        return {
            str(x.relative_to(folder)): hashlib.sha256(x.read_bytes()).hexdigest()[:16]
            for x in files
        }

    return digest_files


# training: resumed, it ends with the weights and optimizer of a training without faults

SMALL = (
    *("languages=en,de", "kinds=duration", "vocab_texts=99", "valid_size=2", "test_size=2"),
    *("max_new_tokens=4", "device=cpu", "dim=16", "heads=2", "ffn_dim=16", "steps=40"),
    *("batch_tokens=64", "log_every=1", "save_every=4", "evaluate_every=20", "keep_last=3"),
)


def train(folder: Path) -> None:
    settings = [word for value in SMALL for word in ("--set", value)]
    command("train", "phrases", *settings, "--out", folder / "run")


def resume(folder: Path) -> None:
    if (folder / "run" / "recipe.json").is_file():  # the last file that a start writes
        command("resume", folder / "run")
    else:  # stopped before anything was there
        train(folder)


def training_result(folder: Path) -> dict[str, Any]:
    metrics = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in metrics]
    timed = ("seconds", "tokens_per_second", "memory", "gpu_memory")
    losses = [{k: x for k, x in row.items() if not k.endswith(timed)} for row in rows]
    return losses[-1] | digest("run/*.safetensors", "run/checkpoints/**/*.safetensors")(folder)


# jobs over files: continued, they write the bytes of a job without faults


def write_dates(folder: Path) -> None:
    lines = (f"{n} days and {n % 24} hours\n" for n in range(2, 700))
    (folder / "in.txt").write_text("".join(lines))


def translate(folder: Path) -> None:
    command("translate", "phrases", folder / "in.txt", "--to", "de", "--out", folder / "out.txt")


def write_prompts(folder: Path) -> None:
    (folder / "in.txt").write_text("".join(f"def name_{n}(" + "\n" for n in range(60)))


def generate(folder: Path) -> None:
    files = ["--prompts", folder / "in.txt", "--out", folder / "out.txt"]
    command("generate", "stdlib", *files, "--max-new-tokens", 8)


# saves: what was there stays whole until the new one is


def save_often(folder: Path) -> None:
    """Write each file over and over: version 1, version 2, and so on up to 16."""
    import torch

    torch.set_num_threads(1)
    model = rg.models.LanguageModel(rg.models.language_base(300, layers=1, dim=64, heads=4)).eval()
    tokens = torch.zeros(1, 40, dtype=torch.long)
    for version in range(1, 17):
        for p in model.parameters():
            torch.nn.init.constant_(p, version / 64)
        rg.models.save(model, folder / "model")
        rg.models.save_pretrained(model, folder / "hub", model_type="gpt2", options={"n": version})
        with rg.look(model) as sight:
            model(tokens)
        sight.save(folder / "look.sight")
        rg.data.CharTokenizer.train(["ab"] * version).save(folder / "tokenizer.json")


def read_saved(folder: Path) -> None:
    """Whatever is there can be read and is of one version."""
    if (folder / "model").is_dir() and any((folder / "model").glob("*.safetensors")):
        values = {
            round(float(p.detach().mean()) * 64, 3)
            for p in rg.models.load(folder / "model").parameters()
        }
        if len(values) != 1:
            raise ValueError(f"model: needs weights of one save, got {values}")
    if (folder / "tokenizer.json").is_file():
        rg.data.Tokenizer.load(folder / "tokenizer.json")
    if any((folder / "look.sight").glob("*.safetensors")):
        rg.inspection.load_sight(folder / "look.sight")
    if (folder / "hub" / "config.json").is_file():
        rg.models.from_pretrained(folder / "hub")


def export_all(folder: Path) -> None:
    if not any((folder / "int8").glob("recipe.*")):  # written last: the folder is complete
        rg.load("phrases-gru", device="cpu").quantize(folder / "int8", score=False)
    command("export", "stdlib", "--format", "huggingface", "--out", folder / "hub")


def read_exported(folder: Path) -> None:
    """A folder with its recipe is whole."""
    if any((folder / "int8").glob("recipe.*")):
        rg.load(folder / "int8", device="cpu").translate(["3 days"], to=["de"])


# the server: requests are answered in full or not at all, and it ends in time


def serve(folder: Path) -> None:
    command("serve", folder / "run", "--api", "--port", (folder / "port").read_text())


def copy_run(folder: Path) -> None:
    shutil.copytree(rg.runs.find_run("phrases"), folder / "run")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (folder / "port").write_text(str(free.getsockname()[1]))


def serve_and_ask(folder: Path) -> None:
    """The server in a fork, and requests until it ends; signals are passed on to it."""
    pid = os.fork()
    if pid == 0:
        serve(folder)
    for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(kind, lambda number, frame: os.kill(pid, number))
    url, answers = f"http://127.0.0.1:{(folder / 'port').read_text()}/translate", 0
    body = json.dumps({"texts": ["3 days"], "to": ["de"]}).encode()
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            sys.exit(0 if os.waitstatus_to_exitcode(status) in (0, 130, 143, 129) else 1)
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                answer: Any = json.loads(response.read())
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.05)  # not yet, or no longer
            continue
        if "3 Tage" not in json.dumps(answer):
            raise ValueError(f"needs the translation, got {answer}")
        answers += 1
        if answers == 20:
            os.kill(pid, signal.SIGTERM)


TARGETS = (
    Target(
        "train", train, training_result, resume,
        damage=("run/checkpoints/**/*.safetensors", "run/checkpoints/**/*.json"),
    ),
    Target(
        "translate", translate, digest("out.txt"), prepare=write_dates,
        damage=("out.txt.partial", "out.txt.partial.json"),
    ),
    Target(
        "generate", generate, digest("out.txt"), prepare=write_prompts,
        damage=("out.txt.partial", "out.txt.partial.json"),
    ),
    Target("save", save_often, digest("**/*"), check=read_saved),
    Target(
        "export", export_all, digest("int8/*.safetensors", "int8/recipe.*", "hub/*"),
        check=read_exported,
    ),
    Target(
        "serve", serve_and_ask, digest("run/*"), prepare=copy_run,
        faults=("SIGTERM", "SIGINT", "SIGHUP"),
    ),
)  # fmt: skip
