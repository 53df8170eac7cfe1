"""From folders of foreign data to served models: `regard new`, `regard train`, then requests.

The data is made by the scripts here. Each kind has odd records among the good ones.
"""

import csv
import json
import random
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from urllib.request import Request, urlopen

import numpy as np
import pytest
import soundfile
from PIL import Image, ImageDraw
from typer.testing import CliRunner

from regard.cli import app

ROMAN = [(100, "C"), (90, "X C"), (50, "L"), (40, "X L"), (10, "X"), (9, "I X"), (5, "V")]
ROMAN += [(4, "I V"), (1, "I")]
FOOD = ("flour", "butter", "rice", "milk", "salt", "honey")
TICKETS = {
    "network": ("the wifi is down", "no signal here", "the router blinks"),
    "payroll": ("my salary is missing", "the bonus is wrong", "overtime was not paid"),
    "printing": ("paper jam again", "the toner is empty", "the scanner sleeps"),
}
WORDS = ("red", "blue", "stop", "go", "left", "one", "two", "open")
VOWELS = {"a": (700, 1200), "i": (280, 2300), "u": (320, 800)}  # first two formants in Hz


def roman(number):
    signs = []
    for value, sign in ROMAN:
        signs += [sign] * (number // value)
        number %= value
    return " ".join(signs)


def write_pairs(folder, count, rng):
    """Numbers and Roman numerals as UTF-16, with an empty side and a line of one column."""
    rows = [f"{' '.join(str(n))}\t{roman(n)}\n" for n in rng.sample(range(1, 300), min(299, count))]
    text = "".join([*rows, rows[0], "nothing\t\n", "alone\n"])
    (folder / "en-la.tsv").write_text(text, encoding="utf-16")
    return folder / "en-la.tsv"


def sentence(rng):
    verb = rng.choice(("Mix", "Stir", "Boil"))
    minutes = rng.randint(2, 30)
    return f"{verb} the {rng.choice(FOOD)} and the {rng.choice(FOOD)} for {minutes} minutes.\n"


def write_text(folder, count, rng):
    """Recipes, one per file, with a file in another encoding and an empty one."""
    for n in range(count):
        (folder / f"recipe {n} ä.txt").write_text("".join(sentence(rng) for _ in range(12)))
    (folder / "latin.txt").write_bytes("Käse\n".encode("latin-1"))
    (folder / "empty.txt").touch()
    return folder


def draw_shape(shape, mode, rng):
    wide, high = rng.randint(18, 40), rng.randint(18, 40)
    image = Image.new("RGB", (wide, high), (rng.randint(170, 255),) * 3)
    draw, ink = ImageDraw.Draw(image), (rng.randint(0, 80),) * 3
    x, y, r = wide // 2 + rng.randint(-2, 2), high // 2 + rng.randint(-2, 2), min(wide, high) // 3
    if shape == "disc":
        draw.ellipse((x - r, y - r, x + r, y + r), fill=ink)
    elif shape == "ring":
        draw.ellipse((x - r, y - r, x + r, y + r), outline=ink, width=2)
    else:
        draw.rectangle((x - 2, y - r, x + 2, y + r), fill=ink)
    if mode == "I;16":
        return Image.fromarray(np.asarray(image.convert("L")).astype("uint16") * 257)
    return image.convert(mode)


def write_images(folder, count, rng):
    """Discs, rings and bars in all sizes and colour modes, with files that are no pictures."""
    for n in range(count):
        shape, mode = ("bar", "disc", "ring")[n % 3], rng.choice(("RGB", "RGBA", "P", "L", "I;16"))
        place = folder / shape
        place.mkdir(exist_ok=True)
        draw_shape(shape, mode, rng).save(place / f"{n}.png")
        if n % 7 == 0:
            draw_shape(shape, "CMYK", rng).save(place / f"{n}.jpg")
    (folder / "bar" / "empty.png").touch()
    (folder / "disc" / "notes.txt").write_text("no picture")
    return folder


def say(text, file, rng):
    """A recording by eSpeak where it is installed, else vowels of two formants."""
    if shutil.which("espeak-ng") and set(text.split()) <= set(WORDS):
        voice = ["-s", str(rng.randint(140, 180)), "-p", str(rng.randint(35, 65))]
        subprocess.run(["espeak-ng", *voice, "-w", file, text], check=True)
        return
    at, pitch = np.arange(1600) / 8000, rng.uniform(90, 180)
    voice = sum(np.sin(2 * np.pi * pitch * n * at) / n for n in range(1, 6))
    waves = []
    for letter in text:
        low, high = VOWELS.get(letter, (500, 1500))
        tones = np.sin(2 * np.pi * low * at) + 0.7 * np.sin(2 * np.pi * high * at)
        waves += [(tones + 0.2 * voice) * np.hanning(1600), np.zeros(400)]
    soundfile.write(file, 0.2 * np.concatenate(waves), 8000)


def write_speech(folder, count, rng, words=tuple(VOWELS)):
    """Recordings at two rates with a CSV, one of them missing, one empty, one too short."""
    rows = [("file", "text")]
    for n in range(count):
        text = " ".join(rng.choices(words, k=rng.randint(2, 3)))
        text = text if words == WORDS else text.replace(" ", "")
        say(text, folder / f"take {n}.wav", rng)
        rows.append((f"take {n}.wav", text))
    soundfile.write(folder / "stereo.flac", np.zeros((8000, 2)), 16000)
    (folder / "empty.wav").touch()
    rows += [("stereo.flac", "a"), ("gone.wav", "a"), ("empty.wav", "a"), ("take 0.wav", "a" * 99)]
    with (folder / "recordings.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder


def ticket(rng):
    team = rng.choice(list(TICKETS))
    end = rng.choice((', "urgent"', ",\nsince Monday", ""))
    return f"{rng.choice(TICKETS[team])} in room {rng.randint(1, 400)}{end}", team


def write_labels(folder, count, rng):
    """Tickets with quotes and line ends in their cells, one without a team."""
    with (folder / "tickets.csv").open("w", newline="") as file:
        rows = [("message", "topic"), *(ticket(rng) for _ in range(count)), ("what?", "")]
        csv.writer(file).writerows(rows)
    return folder / "tickets.csv"


def amount(rng):
    return [
        (rng.choice(("Add", "Weigh", "Take")), "O"),
        (str(rng.randint(1, 900)), "B-QTY"),
        (rng.choice(("g", "ml", "cups")), "I-QTY"),
        ("of", "O"),
        (rng.choice(FOOD), "B-FOOD"),
    ]


def write_tags(folder, count, rng):
    """Sentences with CRLF line ends, one of them with a word without a tag."""
    rows = ("".join(f"{word}\t{tag}\r\n" for word, tag in amount(rng)) for _ in range(count))
    (folder / "amounts.conll").write_bytes("\r\n".join([*rows, "alone\r\n"]).encode())
    return folder / "amounts.conll"


WRITERS = {
    "pairs": write_pairs, "text": write_text, "images": write_images,
    "speech": write_speech, "labels": write_labels, "tags": write_tags,
}  # fmt: skip
SKIPPED = {
    "pairs": "1 × an empty side: en-la.tsv:",
    "text": "1 × not UTF-8 (invalid continuation byte): ",
    "images": "1 × not an image (no known format): ",
    "speech": "1 × too short for its text: ",
    "labels": "1 × an empty label: tickets.csv:",
    "tags": "1 × 1 column instead of 2: amounts.conll:",
}


def regard(*args):
    done = CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def train(kind, root, count, *settings, **options):
    """The run of two commands, and its score."""
    folder = root / kind
    folder.mkdir()
    data = WRITERS[kind](folder, count, random.Random(0), **options)
    done = regard("new", kind, data, "-o", root / f"{kind}.toml")
    recipe = root / f"{kind}.toml"
    assert done.stdout.splitlines()[:3] == [
        f"{recipe}: written; next:", f"  regard data {recipe}", f"  regard train {recipe}",
    ]  # fmt: skip
    shown = regard("data", recipe).stdout
    assert SKIPPED[kind] in done.stderr
    assert SKIPPED[kind] in shown
    assert shown.count("\n- ") == 3
    changes = [x for setting in ("device=cpu", *settings) for x in ("--set", setting)]
    run = root / "runs" / kind
    regard("train", recipe, *changes, "--out", run)
    assert (run / "recipe.toml").read_bytes() == recipe.read_bytes()
    return json.loads((run / "result.json").read_text())["test"]


@contextmanager
def serve(*runs):
    """A function that sends a request to `regard serve`, running in another process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "regard", "serve", *map(str, runs), "--port", str(port)]

    def post(path, body, method="POST"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        url, headers = f"http://127.0.0.1:{port}{path}", {"Content-Type": "application/json"}
        return json.load(urlopen(Request(url, data, headers, method=method), timeout=60))

    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert b"Ctrl-C stops" in server.stdout.readline()  # the models are loaded
        try:
            for attempt in range(100):
                try:
                    post("/health", b"", "GET")
                    break
                except OSError:
                    assert attempt < 99, "not answering"
                    time.sleep(0.1)
            yield post
        finally:
            server.terminate()


@pytest.mark.slow
def test_six_kinds_of_foreign_data_become_served_models(tmp_path):
    steps = ("steps=2", "model.layers=1", "model.dim=32", "model.heads=2")
    for kind, count in (("pairs", 200), ("labels", 150), ("tags", 150), ("text", 60)):
        train(kind, tmp_path, count, *steps)
    train("speech", tmp_path, 90, *steps, "batch_size=8")
    train("images", tmp_path, 90, "steps=2", "batch_size=8")
    runs, rng = tmp_path / "runs", random.Random(1)
    assert set(regard("label", runs / "labels", "no signal").stdout.split()[::2]) == set(TICKETS)
    assert regard("tag", runs / "tags", "Add 3 cups of milk").stdout.startswith("Add")
    assert regard("apply", runs / "tags", "Add").stdout.startswith("Add")
    draw_shape("disc", "RGBA", rng).save(tmp_path / "new.png")
    say("iau", tmp_path / "new.wav", rng)
    with serve(*(runs / kind for kind in WRITERS)) as post:
        (classes,) = post("/label", {"inputs": ["no signal"]})["outputs"]
        assert {name for name, _ in classes} == set(TICKETS)
        (words,) = post("/tag", {"inputs": ["Add 3 cups"]})["outputs"]
        assert [word for word, _ in words] == ["Add", "3", "cups"]
        (answer,) = post("/translate", {"texts": ["1 7"], "max_new_tokens": 8})["translations"]
        assert list(answer) == ["la"]
        assert "text" in post("/generate", {"prompt": "Mix the", "max_new_tokens": 8})
        classes = post("/classify?top=3", (tmp_path / "new.png").read_bytes())["classes"]
        assert {row["class"] for row in classes} == {"bar", "disc", "ring"}
        assert isinstance(post("/transcribe", (tmp_path / "new.wav").read_bytes())["text"], str)


@pytest.mark.slow
def test_labels_tags_and_pictures_are_learnt(tmp_path):
    rng = random.Random(1)
    assert train("labels", tmp_path, 600)["accuracy"] > 0.9
    tickets = [ticket(rng) for _ in range(50)]
    lines = regard("label", tmp_path / "runs/labels", *(text for text, _ in tickets)).stdout
    found = [line.split()[0] for line in lines.splitlines()]
    assert sum(a == b for a, (_, b) in zip(found, tickets, strict=True)) > 45
    assert train("tags", tmp_path, 600)["f1"] > 0.85
    line = regard("tag", tmp_path / "runs/tags", "Weigh 70 g of rice").stdout
    assert line == "Weigh 70/B-QTY g/I-QTY of rice/B-FOOD\n"
    assert train("images", tmp_path, 300)["accuracy"] > 0.7
    with serve(tmp_path / "runs/images") as post:
        correct = 0
        for n in range(30):
            shape = ("bar", "disc", "ring")[n % 3]
            draw_shape(shape, ("RGB", "LA")[n % 2], rng).save(tmp_path / "new.png")
            answer = post("/classify?top=1", (tmp_path / "new.png").read_bytes())
            correct += answer["classes"][0]["class"] == shape
    assert correct >= 22  # of 30; chance is 10


@pytest.mark.slow
def test_pairs_text_and_speech_are_learnt(tmp_path):
    rng = random.Random(1)
    assert train("pairs", tmp_path, 299)["bleu"] > 40
    assert train("text", tmp_path, 60)["bits_per_byte"] < 1  # gzip needs more than 1.5
    words = WORDS if shutil.which("espeak-ng") else tuple(VOWELS)
    assert train("speech", tmp_path, 160, words=words)["error"] < 0.4
    say(" ".join(words[:3]), tmp_path / "new.wav", rng)
    with serve(*(tmp_path / "runs" / kind for kind in ("pairs", "text", "speech"))) as post:
        continued = post("/generate", {"prompt": "Stir the ", "max_new_tokens": 40})["text"]
        assert any(word in continued for word in FOOD)
        (answer,) = post("/translate", {"texts": ["1 2 3"]})["translations"]
        assert answer["la"]["text"].startswith("C X")
        assert post("/transcribe", (tmp_path / "new.wav").read_bytes())["text"]
