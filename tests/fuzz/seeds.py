"""Small good inputs for every target, made by the code itself or by the library of the format."""

import gzip
import io
import json
import re
import struct
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from PIL import Image

import regard as rg
from fuzz.mutate import Files
from regard import data, models, train
from regard.claims.claim import CLAIMS, Trial
from regard.claims.results import Result, store
from regard.files import PartialFile
from regard.inspection.record.sight_file import _checksum as sight_checksum
from regard.models.serialization import read_safetensors
from regard.tasks.registry import recipe_names, recipe_text
from regard.train.checkpoint import Checkpoint, save_checkpoint
from regard.train.metrics import append_metrics, save_calibration

CLAIM = "A1"
TEXT = "Ada slept.\nGrüße, 三つの日 😀\n\nThe engine weaves algebraic patterns.\n"


def each(name: str, *contents: str | bytes) -> list[Files]:
    """One input per content, of a file of that name."""
    return [{name: x.encode() if isinstance(x, str) else x} for x in contents]


def written(write: Callable[[Path], object]) -> Files:
    """The files that a function writes into a folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@cache
def recipes() -> list[Files]:
    texts = (re.sub(r"(?m) *#.*$\n?", "", recipe_text(name)) for name in recipe_names())
    odd = 'task = "text"\n[model]\ntype = "language"\nlayers = 1\ndim = 8\nheads = 2\nffn_dim = 8\n'
    return each("a.toml", *texts, f"{odd}[train]\nsteps = 3\nbetas = [0.9, 0.95]\n")


@cache
def settings() -> list[Files]:
    return each("set", "lr=1e-3\nmodel.dim=64\nlanguages=en,de\npatience=none", "steps=5\n")


@cache
def tables() -> list[Files]:
    rows = [("a", "b"), ("one", "eins, zwei"), ("grün", 'a "b"'), ("x", "1")]
    tsv = "".join(f"{a}\t{b}\n" for a, b in rows)
    csv = 'a,b\none,"eins, zwei"\ngrün,"a ""b"""\nx,"1\n2"\n'
    lines = [json.dumps(dict(zip("ab", row, strict=True))) for row in rows[1:]]
    jsonl = "\n".join(lines).encode()
    return [
        *each("a.tsv", tsv, tsv.replace("\n", "\r\n"), tsv.encode("utf-16")),
        *each("a.csv", csv, csv.replace(",", ";")),
        *each("a.jsonl", jsonl),
        *each("a.jsonl.gz", gzip.compress(jsonl, 1)),
    ]


@cache
def labels() -> list[Files]:
    rows = [(f"a text of {n} words", ("good", "bad")[n % 2]) for n in range(200)]
    csv = "text,label\n" + "".join(f"{a},{b}\n" for a, b in rows)
    lines = [json.dumps({"text": a, "label": b}) for a, b in rows]
    return [*each("a.csv", csv), *each("a.tsv", csv.replace(",", "\t"))] + each(
        "a.jsonl", "\n".join(lines)
    )


@cache
def tags() -> list[Files]:
    conll = "-DOCSTART- X O\n\n" + "".join(
        f"Ada{n} NNP B-PER\nsleeps VBZ O\n\nYes{n} UH O\n\n" for n in range(100)
    )
    conllu = "".join(
        f"# text = Ada\n1-2\tAda\t_\t_\t_\t_\t_\t_\t_\t_\n1\tw{n}\tw\tNOUN\tN\t_\t0\troot\t_\t_\n\n"
        for n in range(200)
    )
    lines = [json.dumps({"tokens": ["Ada", str(n)], "tags": ["B-PER", "O"]}) for n in range(200)]
    return [*each("a.conll", conll), *each("a.conllu", conllu), *each("a.jsonl", "\n".join(lines))]


PO = """# note
msgid ""
msgstr ""
"Language: de\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"

#: main.c:10
#, c-format
msgctxt "menu"
msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

#, fuzzy
#| msgid "Quitt"
msgid "Quit\\n"
msgstr "alt"

msgid "done \\x41\\303\\274"
msgstr "fertig"

msgid ""
"two "
"lines\\n"
msgstr ""
#~ msgid "old"
"""


@cache
def catalogs() -> list[Files]:
    return each("de.po", PO, PO.replace("\n", "\r\n"), 'msgid "a"\nmsgstr "b"\n')


@cache
def compiled_catalogs() -> list[Files]:
    ids, strings = [b"", b"one", b"day\0days"], [b"Language: de\n", b"eins", b"Tag\0Tage"]
    at = 28 + 16 * len(ids)
    head, body = b"", b""
    for text in (*ids, *strings):
        head += struct.pack("<2I", len(text), at + len(body))
        body += text + b"\0"
    start = struct.pack("<7I", 0x950412DE, 0, 3, 28, 28 + 8 * len(ids), 0, 0)
    return each("de.mo", start + head + body)


@cache
def memories() -> list[Files]:
    unit = (
        '<tu><tuv xml:lang="en"><seg>one <hi>two</hi><ph>%</ph></seg></tuv>'
        '<tuv xml:lang="de-AT"><seg>eins &amp; zwei</seg></tuv></tu>\n'
    )
    text = f'<tmx version="1.4"><header/><body>\n{unit * 2}</body></tmx>'
    heads = [(f'<?xml version="1.0" encoding="{x}"?>\n', x) for x in ("UTF-8", "latin-1", "utf-16")]
    return each("a.tmx", text, *((head + text).encode(x) for head, x in heads))


@cache
def plain_texts() -> list[Files]:
    return each(
        "a.txt", *(TEXT.encode(x) for x in ("utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32"))
    ) + each("a.txt.gz", gzip.compress(TEXT.encode()))


@cache
def pairs() -> list[Files]:
    rows = [(f"{n} days", f"{n} Tage") for n in range(200)]
    tsv = "".join(f"{a}\t{b}\n" for a, b in rows)
    lines = [json.dumps({"en": a, "de": b}) for a, b in rows]
    return [
        *each("a.tsv", tsv, "source\ttarget\n" + tsv),
        *each("a.jsonl", "\n".join(lines)),
        {"train.en": tsv.encode(), "train.de": tsv.encode()},
        {"de.po": "".join(f'msgid "{a}"\nmsgstr "{b}"\n\n' for a, b in rows).encode()},
        *memory_of_pairs(rows),
    ]


def memory_of_pairs(rows: Iterable[tuple[str, str]]) -> list[Files]:
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{a}</seg></tuv><tuv xml:lang="de"><seg>{b}</seg></tuv></tu>'
        for a, b in rows
    )
    return each("a.tmx", f"<tmx><body>{units}</body></tmx>")


@cache
def text_folders() -> list[Files]:
    return [{"a.txt": (TEXT * 40).encode(), "b.txt": (TEXT[::-1] * 40).encode()}]


def picture(kind: str, mode: str = "L", size: int = 8, start: int = 0) -> bytes:
    file = io.BytesIO()
    pixels = (np.arange(size * size) + start).astype("uint8").reshape(size, size)
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


@cache
def images() -> list[Files]:
    kinds = [("png", "L"), ("png", "RGBA"), ("bmp", "RGB"), ("gif", "P"), ("jpeg", "RGB")]
    kinds += [("tiff", "L"), ("webp", "RGB"), ("ppm", "RGB")]
    return [x for kind, mode in kinds for x in each(f"a.{kind}", picture(kind, mode))]


@cache
def image_folders() -> list[Files]:
    names = [(f"{label}/{n}.bmp", n) for label in ("cat", "dog") for n in range(50)]
    return [{name: picture("bmp", size=6 + n % 9, start=n) for name, n in names}]


@cache
def idx() -> list[Files]:
    body = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, *range(6)])
    floats = bytes([0, 0, 13, 1, 0, 0, 0, 2]) + struct.pack(">2f", 1, 2)
    return each("a.idx", body, floats) + each("a.idx.gz", gzip.compress(body))


def sound(kind: str, subtype: str | None = None, rate: int = 8000) -> bytes:
    file = io.BytesIO()
    wave = np.sin(np.arange(rate // 10) * 0.3) * 0.5
    soundfile.write(file, wave, rate, format=kind, subtype=subtype)
    return file.getvalue()


@cache
def sounds() -> list[Files]:
    return [
        *each("a.wav", sound("wav"), sound("wav", "ULAW"), sound("wav", "FLOAT", 11025)),
        *each("a.flac", sound("flac")),
        *each("a.ogg", sound("ogg")),
    ]


@cache
def speech_folders() -> list[Files]:
    wave = sound("wav")
    files = {f"{n}.wav": wave for n in range(100)}
    rows = [(name, f"word {n}") for n, name in enumerate(files)]
    tsv = "".join(f"{a}\t{b}\n" for a, b in rows)
    lines = [json.dumps({"audio": a, "text": b}) for a, b in rows]
    return [
        files | {"manifest.tsv": tsv.encode()},
        files | {"manifest.csv": b"path,sentence\n" + tsv.replace("\t", ",").encode()},
        files | {"manifest.jsonl": "\n".join(lines).encode()},
    ]


@cache
def tokenizers() -> list[Files]:
    lines, kinds = TEXT.splitlines() * 3, (data.CharTokenizer, data.WordTokenizer)
    made: list[Any] = [data.ByteTokenizer(), *(kind.train(lines) for kind in kinds)]
    made += [kind.train(lines, 300) for kind in (data.BPETokenizer, data.UnigramTokenizer)]
    found = [written(tokenizer.save) for tokenizer in made]
    return [*found, *each("tokenizer.json", *(made[n]._engine.to_str() for n in (3, 4)))]


def repair_tokenizer(files: Files) -> Files:
    """With the checksum of what is there."""
    from regard.data.text.tokenizer_file import _checksum

    try:
        content = json.loads(files["tokenizer.json"])
        body = {name: content[name] for name in content if name not in ("regard", "checksum")}
        content["checksum"] = _checksum(body)
        return {**files, "tokenizer.json": json.dumps(content).encode()}
    except (ValueError, KeyError, TypeError, RecursionError):
        return files


@cache
def sentencepieces() -> list[Files]:
    import sentencepiece

    found = []
    for kind, rule in product(("unigram", "bpe"), ("nmt_nfkc", "identity")):  # large and small
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT.splitlines() * 20), model_writer=model, vocab_size=60,
            model_type=kind, minloglevel=9, hard_vocab_limit=False, normalization_rule_name=rule,
        )  # fmt: skip
        found += each("a.model", model.getvalue())
    return found


@cache
def small_models() -> list[Any]:
    torch.manual_seed(0)
    return [
        models.LanguageModel(models.language_tiny(vocab=12, dim=8, heads=2, layers=1, ffn_dim=8)),
        models.Classifier(models.classifier_tiny(vocab=12, classes=3, dim=8, heads=2, layers=1)),
    ]


@cache
def saved_models() -> list[Files]:
    return [written(lambda folder, m=model: models.save(m, folder)) for model in small_models()]


@cache
def hub_folders() -> list[Files]:
    import transformers

    torch.manual_seed(0)
    sizes: Any = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "vocab_size": 12, "max_position_embeddings": 16}
    made = [
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)),
        transformers.BertModel(transformers.BertConfig(**sizes)),
    ]
    return [written(model.save_pretrained) for model in made]


@cache
def token_caches() -> list[Files]:
    rows = [{"x": [1, 2, 3], "y": [4]}, {"x": [5], "y": [6, 7]}]
    return [written(lambda folder: data.write_token_cache(folder, rows, vocab=9))]


@cache
def claims_caches() -> list[Files]:
    import os

    def write(folder: Path) -> None:
        os.environ["XDG_CACHE_HOME"] = str(folder)
        experiment = CLAIMS[CLAIM].experiment
        assert experiment is not None
        store(Result(id=CLAIM, evidence=experiment(Trial())), Trial())

    return [written(write)]


@cache
def sights() -> list[Files]:
    model = models.Translator(models.translator_tiny(vocab=10, dim=8, heads=2, layers=1)).eval()
    with rg.look(
        model, tokens={"source": ["a", "b"], "target": ["c"]}, activations=["logits"]
    ) as x:
        model(torch.tensor([[1, 2]]), torch.tensor([[4]]))
    return [written(lambda folder: x.save(folder))]


def repair_sight(files: Files) -> Files:
    """With the checksum of what is there."""
    ((name, content),) = files.items()
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        Path(file.name).write_bytes(content)
        try:
            text, tensors = read_safetensors(Path(file.name), "save")
            inner = json.loads(text or "")
            inner["checksum"] = sight_checksum(inner, tensors)
            size = int.from_bytes(content[:8], "little")
            header = json.loads(content[8 : 8 + size])
        except (ValueError, TypeError, KeyError, RecursionError, RuntimeError):
            return files
    header["__metadata__"]["regard"] = json.dumps(inner)
    head = json.dumps(header).encode()
    return {name: len(head).to_bytes(8, "little") + head + content[8 + size :]}


@cache
def metrics() -> list[Files]:
    def write(folder: Path) -> None:
        for step in range(4):
            append_metrics(folder, {"step": step, "seconds": 0.5, "loss": 2.0, "valid_loss": 3.0})

    return [written(write)]


@cache
def run_folders() -> list[Files]:
    """A finished run, beside another that must stay listed."""
    from dataclasses import replace

    tokenizer = data.ByteTokenizer()
    config = models.language_tiny(vocab=tokenizer.vocab, dim=8, heads=2, layers=1, ffn_dim=8)
    recipe = replace(rg.tasks.recipe("stdlib"), model=config)
    from regard.runs.settings import config_to_json

    content = json.dumps({"version": 1, "recipe": config_to_json(recipe)}).encode()
    result = {"step": 3, "reason": "finished", "seconds": 1.0, "valid": {}, "test": {"loss": 1.5}}

    def write(folder: Path) -> None:
        torch.manual_seed(0)
        models.save(models.LanguageModel(config), folder)
        tokenizer.save(folder)
        append_metrics(folder, {"step": 3, "seconds": 0.5, "valid_loss": 3.0})
        save_calibration(
            folder, train.Calibration(slope=1.0, offset=0.0, threshold=0.5, examples=9)
        )

    run = written(write) | {"recipe.json": content, "result.json": json.dumps(result).encode()}
    other = {"two/recipe.json": content}
    return [{f"one/{name}": x for name, x in run.items()} | other]


@cache
def checkpoints() -> list[Files]:
    tensors = {"w": torch.ones(2)}
    return [written(lambda f: save_checkpoint(Checkpoint(1, tensors, {}, {"rng": [1, 2]}), f))]


@cache
def partial_files() -> list[Files]:
    def write(folder: Path) -> None:
        job = PartialFile(folder / "out.txt", {"to": "de"})
        job.write("one\n")
        job.commit({"lines": 1})
        job.close()

    return [written(write)]


@cache
def problems() -> list[Files]:
    from regard.work.problem import PROBLEMS

    return [
        x for file in sorted(PROBLEMS.glob("*.toml")) for x in each("a.toml", file.read_bytes())
    ]


@cache
def answers() -> list[Files]:
    return each(
        "ada.toml",
        'Q = [[1, 3], [-1, 1], ["5/2", -2]]\nK = [[3, -1], [-1, "-3/2"], ["-5/2", "3/2"]]\n'
        'S = [["3/2", 2.5, 8], ["?", "-7/2", 6], ["17/2", 8, "-53/4"]]\n'
        "A = [[0, 0, 1], [0, 0, 1], [0.62, 0.38, 0]]\n"
        'H = [[-2, -3], [-2, -3], [1.17, "sqrt(2)/exp(1)"]]\n',
    )
