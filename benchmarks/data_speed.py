"""Training from files compared with training on batches that are in memory already.

python benchmarks/data_speed.py                                # all six kinds, about 3 minutes
python benchmarks/data_speed.py pairs speech --seconds 60
python benchmarks/data_speed.py --threads 1 --cpu-time         # on a machine with other work

For each kind of data a script below writes files of random content, `regard new` proposes the
recipe, and one `Trainer` runs it on the CPU. It takes a few batches from the files, then the same
batches again from memory, and so on in turn, so both have the same shapes and the same load of the
machine. Reported are milliseconds per step of both, milliseconds to make a batch (the mean of many,
without steps between), and the step rate with files relative to that without: as measured, and as
step / (step + batch), which has less noise.
"""

import argparse
import csv
import json
import random
import shutil
import tempfile
import time
import wave
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from regard import models, train
from regard.errors import TrainError
from regard.tasks import propose

STEPS_PER_TURN = 4
WARMUP_TURNS = 1
BATCHES_ALONE = 100
rng = random.Random(0)
WORDS = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(3000)]


# ---- files of each kind


def sentence(low=3, high=25):
    return " ".join(rng.choices(WORDS, k=rng.randint(low, high)))


def write_pairs(folder):
    rows = (f"{text}\t{text[::-1]}\n" for text in (sentence() for _ in range(60_000)))
    (folder / "en-de.tsv").write_text("".join(rows))
    return folder / "en-de.tsv"


def write_text(folder):
    for number in range(60):
        (folder / f"{number}.txt").write_text("\n".join(sentence() for _ in range(1500)))
    return folder


def write_labels(folder):
    with (folder / "texts.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("text", "label"))
        table.writerows((sentence(10, 40), rng.choice(("good", "bad", "odd"))) for _ in range(9000))
    return folder / "texts.csv"


def write_tags(folder):
    with (folder / "words.conll").open("w") as file:
        for _ in range(6000):
            words = sentence(5, 25).split()
            file.write("".join(f"{word}\t{rng.choice(('O', 'B-X', 'B-Y'))}\n" for word in words))
            file.write("\n")
    return folder / "words.conll"


def write_images(folder):
    numbers = np.random.default_rng(0)
    for label in ("cat", "dog", "cow"):
        (folder / label).mkdir()
        for number in range(200):
            pixels = numbers.integers(0, 256, (48, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")
    return folder


def write_speech(folder):
    numbers, lines = np.random.default_rng(0), []
    for number in range(300):
        samples = numbers.normal(0, 3000, int(16000 * rng.uniform(1, 6))).astype("<i2")
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16000)
            file.writeframes(samples.tobytes())
        lines.append(f"{number}.wav\t{sentence(1, 2)}\n")
    (folder / "manifest.tsv").write_text("".join(lines))
    return folder


KINDS = {
    "pairs": write_pairs, "text": write_text, "images": write_images,
    "speech": write_speech, "labels": write_labels, "tags": write_tags,
}  # fmt: skip


# ---- one training, whose batches come from files and from memory in turn


class Alternating:
    """Batches of a source, each turn again from memory; keeps the times of both."""

    def __init__(self, source, seconds, clock):
        self.source, self.seconds, self.clock = source, seconds, clock
        self.files = self.memory = 0.0
        self.steps = 0

    def state(self):
        return self.source.state()

    def restore(self, state):
        self.source.restore(state)

    def __iter__(self):
        stream, started, turn = iter(self.source), time.perf_counter(), 0
        while time.perf_counter() - started < self.seconds or turn <= WARMUP_TURNS:
            begun, batches = self.clock(), []
            for _ in range(STEPS_PER_TURN):
                batches.append(next(stream))
                yield batches[-1]  # the step takes place before this returns
            middle = self.clock()
            yield from batches
            if (turn := turn + 1) > WARMUP_TURNS:
                self.files += middle - begun
                self.memory += self.clock() - middle
                self.steps += STEPS_PER_TURN


def measure(kind, seconds, clock):
    folder = Path(tempfile.mkdtemp())
    try:
        recipe = propose(kind, [KINDS[kind](folder)]).recipe
        settings = replace(recipe.train, device="cpu", steps=10**9)
        task = recipe.data.fit(settings.seed)
        tokenizer = task.tokenizer(settings.seed)
        model = models.build(task.resolve(recipe.model, tokenizer))
        task.prepare_model(model, tokenizer, settings)
        batches = task.batches(tokenizer, settings)
        source = Alternating(batches, seconds, clock)
        trainer = train.Trainer(model, train.objective(task.objective), source, settings)
        with suppress(TrainError):  # no more batches: the time is over
            trainer.run()
        started = clock()
        for _ in islice(batches, BATCHES_ALONE):
            pass
        batch = 1000 * (clock() - started) / BATCHES_ALONE
    finally:
        shutil.rmtree(folder)
    files, memory = (1000 * x / source.steps for x in (source.files, source.memory))
    return {"steps": source.steps, "files": files, "memory": memory, "batch": batch}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=20, help="per kind")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="CPU seconds instead of real ones")
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    print(
        "| kind | steps | files, ms | memory, ms | batch, ms | measured | step / (step + batch) |"
    )
    print("|---|---|---|---|---|---|---|")
    results = {}
    for name in options.kinds:
        results[name] = row = measure(name, options.seconds, clock)
        step, batch = row["memory"], row["batch"]
        times = " | ".join(f"{row[x]:.1f}" for x in ("files", "memory", "batch"))
        ratios = f"{step / row['files']:.1%} | {step / (step + batch):.1%}"
        print(f"| {name} | {row['steps']} | {times} | {ratios} |", flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
