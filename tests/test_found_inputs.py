"""Inputs that `make fuzz` has found, small: each is refused in one line, or read."""

import json
import zlib

import pytest
from fuzz import seeds
from fuzz.targets import TARGETS

from regard.data.image.image_file import read_idx
from regard.errors import RegardError
from regard.models import LanguageConfig

DEEP = b"[" * 100_000
RECIPE = 'task = "phrases"\n[model]\n[train]\n'
CACHE = {"key": "", "size": 1, "dtype": "uint16", "fields": {"x": 2}}


def cache(offsets: list[int] | None = None, **header: object) -> dict[str, bytes]:
    ends = b"".join(n.to_bytes(8, "little", signed=True) for n in offsets or [0, 2])
    content = json.dumps(CACHE | header).encode()
    return {"cache.json": content, "x.offsets": ends, "x.tokens": b"\0\0\1\0"}


def run(**changes: object) -> dict[str, bytes]:
    """A run whose recipe is changed, beside one that is not."""
    (files,) = seeds.run_folders()
    recipe = json.loads(files["two/recipe.json"])
    for path, value in changes.items():
        *parents, name = path.split("__")
        holder = recipe
        for key in parents:
            holder = holder[key]
        holder[name] = value
    return files | {"one/recipe.json": json.dumps(recipe).encode()}


def without_unknown() -> bytes:
    """A unigram model of a few signs, which fails at any other."""
    model = {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]], "byte_fallback": False}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model}).encode()


def packed_idx() -> bytes:
    head = bytes([0, 0, 8, 1, 0x3F, 0, 0, 0])  # declares a gigabyte
    packer = zlib.compressobj(wbits=31)
    return packer.compress(head + b"12") + packer.flush()


def model(*, metadata: object = None, **changes: object) -> dict[str, bytes]:
    """A model whose header is changed, that of safetensors or ours inside it."""
    ((name, data),) = seeds.saved_models()[0].items()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    ours = json.loads(header["__metadata__"]["regard"]) | changes
    header["__metadata__"] = {"regard": json.dumps(ours)} if metadata is None else metadata
    text = json.dumps(header).encode()
    return {name: len(text).to_bytes(8, "little") + text + data[end:]}


# target, files, words of the message; "" where the input is read
FOUND = [
    ("recipe.toml", {"a.toml": b"task = []"}, "needs task as a text, got \\[\\]"),
    ("recipe.toml", {"a.toml": b'task = "phrases"\nmodel = 3'}, "needs model as a table"),
    ("recipe.toml", {"a.toml": b"data = 3"}, r"needs data as a table, \[data\], got 3"),
    ("recipe.toml", {"a.toml": b"name = 3\n" + RECIPE.encode()}, "needs name as a text, got 3"),
    ("recipe.toml", {"a.toml": b"a = " + DEEP}, "needs TOML, got too many brackets"),
    ("recipe.toml", {"a.toml": b"a = " + b"9" * 5000}, "needs TOML, got .*digits"),
    ("recipe.toml", {"a.toml": b'task = "phrases"\n[model]\ntype = []\n[train]'}, "model.type: "),
    ("recipe.toml", {"a.toml": RECIPE.encode() + b"colour = 1\n"}, r"got 'colour'\n"),
    (
        "recipe.toml",
        {"a.toml": b'task = "pairs"\n[model]\n[train]\nweight_decay = ' + b"9" * 400},
        "train.weight_decay: needs",
    ),
    ("idx", {"a.idx": b"\0\0\r\x60" + bytes(384)}, "needs sizes of 1 to 32 axes, got 96 axes"),
    (".po, filled", {"de.po": b'msgid "e"\nmsgid_plural ""\nmsgstr[0] ""\n'}, ""),
    ("--set", {"set": b"colour=1"}, "got 'colour'$"),
    ("table", {"a.tsv": b"\rg"}, "columns: need to be of g in .*, got 'a'"),
    ("table", {"a.csv": b"\rg,h\r1,2"}, "needs lines that end in .*; try mac2unix"),
    ("table", {"a.csv": b"a,b\n1,2\n3\rx,4\n"}, ""),
    ("table", {"a.jsonl": b'{"b": "1"}\n{"a": "\\ud800", "b": "1"}\n'}, ""),
    ("tags", {"a.jsonl": b'{"tokens": ["\\ud800"], "tags": ["O"]}\n'}, ""),
    ("table", {"a.tsv": b"\t".join(b"x%d" % n for n in range(9999))}, "columns: need to be of x0"),
    (".po, filled", {"a.po": b'msgid "a"\nmsgstr'}, ""),
    (".po, filled", {"a.po": b'msgid "\\ud800"\nmsgstr ""'}, "needs keywords and quoted texts"),
    (".po, pairs", {"a.po": b'msgid "%"\nmsgstr[1] "x"'}, ""),
    (
        "hub import",
        {"config.json": b'{"model_type": "llama", "vocab_size": ' + b"9" * 400 + b"}"},
        "needs vocab_size of at most .*, got hundreds of digits",
    ),
    ("tokenizer", {"tokenizer.json": without_unknown()}, "tokenizer.json: .*nk"),
    ("idx", {"a.idx.gz": packed_idx()}, "a truncated file"),
    ("model", model(), ""),
    ("model", model(model=["LanguageModel"]), r"needs a known model, got \['LanguageModel'\]"),
    ("model", model(config=[]), r"needs a config of names and values, got \[\]"),
    ("model", model(config={"vocab": [12]}), "needs "),
    ("model", model(metadata=["regard"]), "needs a whole safetensors file, got .* bytes"),
    ("model", model(metadata={"regard": ["x"]}), "needs a whole safetensors file, got .* bytes"),
    ("model", model(metadata={"regard": "[]"}), "needs model, version, config, checksum in its"),
    ("token cache", cache([0, 1 << 40]), "needs offsets up to 2, got 0 to"),
    ("token cache", cache([2, 0]), "needs offsets up to 2, got 2 to 0"),
    ("token cache", cache(dtype="object"), "needs a token cache, got ValueError"),
    ("token cache", cache(size=-1), "needs 0 numbers of int64|needs a token cache"),
    ("token cache", cache(fields={"../x": 2}), "needs a token cache, got ValueError"),
    ("claims cache", {"a.json": DEEP}, ""),
    ("metrics", {"metrics.jsonl": b'{"step": ' + b"9" * 400 + b', "seconds": 1}\n'}, ""),
    ("run folder", run(recipe=[]), "recipe.json: needs a recipe, got a damaged one, recipe: needs"),
    ("run folder", run(recipe__data=3), "recipe.json: needs a recipe, got a damaged one, "),
    ("run folder", run(recipe__model=3), "recipe.json: needs a recipe, .* the model 3"),
    ("run folder", run(recipe__name=3), "recipe.name: needs a text, got 3"),
    ("run folder", run(recipe__train__steps="x"), "train.steps: needs an integer, got 'x'"),
    ("run folder", run(recipe__train__betas=[1]), "train.betas: needs a list of numbers, got "),
    ("run folder", run(version=2), "recipe.json: needs version 1, got 2"),
    ("checkpoint", {"step-00000001/state.json": b"true"}, ""),
    ("partial file", {"out.txt.partial": b"", "out.txt.partial.json": b'{"job": 1}'}, "damaged"),
    (
        "partial file",
        {"out.txt.partial": b"", "out.txt.partial.json": b'{"job":{},"bytes":-1,"state":{}}'},
        "needs the state of a job, got a damaged one, .*; try deleting",
    ),
]


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(("name", "files", "message"), FOUND)
def test_an_input_that_was_found(tmp_path, name, files, message):
    target = {target.name: target for target in TARGETS}[name]
    for file, content in files.items():
        (tmp_path / "input" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "input" / file).write_bytes(content)
    if not message:
        target.parse(tmp_path / "input")
        return
    with pytest.raises(RegardError, match=message):
        target.parse(tmp_path / "input")


def test_a_message_shortens_values_and_escapes_control_characters():
    text = str(RegardError("name: needs a text, got " + "a" * 5000 + "\x1b[31m\x00"))
    assert text.startswith("name: needs a text, got aaaa")
    assert (len(text) < 200, "…" in text, text.isprintable()) == (True, True, True)


def test_a_message_about_a_long_value_is_short():
    error = RegardError(f"columns: need to be of {'a ' * 9000}, got 'b'")
    assert len(str(error)) < 3100
    assert str(error).endswith("got 'b'")


def test_sizes_of_an_idx_file_that_no_array_has_are_refused(tmp_path):
    sizes = b"".join(n.to_bytes(4, "big") for n in (2**31, 2**31, 2**31, 0))
    (tmp_path / "a.idx").write_bytes(b"\0\0\x08\x04" + sizes)
    with pytest.raises(RegardError, match="needs at most 1 GiB"):
        read_idx(tmp_path / "a.idx")


def test_a_config_of_two_billion_layers_takes_no_memory():
    assert LanguageConfig(vocab=12, layers=2**31, dim=8, heads=2).layers == 2**31
