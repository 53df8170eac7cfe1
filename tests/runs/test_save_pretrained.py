"""Runs as Hugging Face folders: transformers gives the same ids and logits."""

import pytest
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.data import ByteTokenizer, WordTokenizer
from regard.data.text.fast_tokenizer import fast_tokenizer_files
from regard.errors import ConfigError

TRAIN = '[train]\nsteps = 3\ndevice = "cpu"\nwarmup = 1\n'
# no text holds a special token, whatever it spells
TEXTS = ["the cat saw 3 dogs.\n\tAnd <end> <pad>", "naïve Straße — 東京 \U0001f600", " a", ""]


def train(folder, text):
    (folder / "task.toml").write_text(text + TRAIN)
    rg.runs.fit(rg.tasks.recipe(str(folder / "task.toml")), folder / "run")
    return rg.load(folder / "run", device="cpu")


def same_logits(theirs, ours, *inputs, **named):
    with torch.no_grad():
        torch.testing.assert_close(
            theirs(*inputs, **named).logits, ours, rtol=1e-4, atol=1e-4, check_stride=False
        )


@pytest.mark.parametrize(
    ("tokenizer", "model", "family"),
    [
        ('tokenizer_type = "bytes"', "gated = true\nactivation = 'silu'\nkv_heads = 1", "llama"),
        ('tokenizer_type = "characters"', "activation = 'gelu'", "arcee"),
        ("vocab_size = 300", "gated = true\nactivation = 'silu'\nrotate_half = true", "llama"),
    ],
)
def test_a_language_model_of_text(tmp_path, tokenizer, model, family):
    text = "".join(f"the cat saw {n} naïve dogs.\n\tAnd <end>\n" for n in range(60))
    (tmp_path / "text.txt").write_text(text)
    run = train(
        tmp_path,
        f'task = "text"\n[data]\nfolder = "text.txt"\nsplit_by = "tail"\nlength = 16\n{tokenizer}\n'
        '[model]\ntype = "language"\nlayers = 2\ndim = 32\nheads = 2\npositions = "none"\n'
        f'rope_theta = 100.0\nnorm = "rms"\nbias = false\nscale_embedding = false\n{model}\n',
    )
    done = CliRunner().invoke(
        app, ["export", str(run.folder), "--format", "huggingface", "-o", str(tmp_path / "hub")]
    )
    assert done.exit_code == 0, done.output
    tokens = AutoTokenizer.from_pretrained(tmp_path / "hub")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hub").eval()
    assert theirs.config.model_type == family
    for line in TEXTS:
        assert tokens(line).input_ids == run.tokenizer.encode_input(line)
    ids = tokens(TEXTS[0], return_tensors="pt").input_ids
    same_logits(theirs, run.model(ids), ids)
    if family == "llama":  # lossless tokenizers
        assert tokens.decode(tokens(TEXTS[1]).input_ids) == TEXTS[1]
    assert tokens.eos_token_id == run.tokenizer.eos_id == theirs.config.eos_token_id
    assert "# run" in (tmp_path / "hub" / "README.md").read_text()


BERT = """
[model]
type = "classifier"
layers = 1
dim = 32
heads = 2
norm_first = false
final_norm = false
positions = "learned"
max_positions = 64
scale_embedding = false
embedding_norm = true
segments = 1
pooling = "first"
pooler = true
"""


def labelled(folder):
    rows = [f'{{"text": "order {n} was {w}", "label": "{w}"}}' for n in range(60) for w in "ab"]
    (folder / "data.jsonl").write_text("\n".join(rows))
    return 'task = "labels"\n[data]\ntrain = "data.jsonl"\nvocab_size = 280\n'


def test_labels_by_bert(tmp_path):
    run = train(tmp_path, labelled(tmp_path) + BERT)
    folder = run.save_pretrained(tmp_path / "hub")
    tokens = AutoTokenizer.from_pretrained(folder)
    theirs = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = tokens("order 7 was b", return_tensors="pt").input_ids
    same_logits(theirs, run.model(ids), ids)
    ((name, probability), *_) = run.label(["order 7 was b"])[0]
    with torch.no_grad():
        best = theirs(ids).logits.softmax(-1).max(-1)
    assert theirs.config.id2label[int(best.indices)] == name
    assert float(best.values) == pytest.approx(probability, abs=1e-4)


def test_images_by_vit(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for n in range(60):
        pixels = torch.randint(0, 256, (20, 24, 3), generator=generator, dtype=torch.uint8)
        place = tmp_path / "images" / ("cat" if n % 2 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.numpy()).save(place / f"{n}.png")
    run = train(
        tmp_path,
        'task = "images"\n[data]\npath = "images"\nsize = 16\nchannels = 3\n'
        '[model]\ntype = "vision"\nclasses = 2\nlayers = 1\ndim = 32\nheads = 2\n'
        "image_size = 16\npatch_size = 4\n",
    )
    folder = run.save_pretrained(tmp_path / "hub")
    file = tmp_path / "images" / "cat" / "1.png"
    theirs = AutoModelForImageClassification.from_pretrained(folder).eval()
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor(Image.open(file), return_tensors="pt").pixel_values
    with torch.no_grad():
        best = theirs(pixels).logits.softmax(-1).max(-1)
    ((name, probability),) = run.classify(file)[0]
    assert theirs.config.id2label[int(best.indices)] == name
    assert float(best.values) == pytest.approx(probability, abs=1e-3)


def test_pairs_by_t5(tmp_path):
    rows = [f"{n} days\t{n} Tage" for n in range(200)]
    (tmp_path / "en-de.tsv").write_text("\n".join(rows))
    run = train(
        tmp_path,
        'task = "pairs"\n[data]\ntrain = ["en-de.tsv"]\nsource_language = "en"\n'
        'target_language = "de"\nvocab_size = 300\n[data.search]\nmax_new_tokens = 8\n'
        '[model]\ntype = "translator"\nlayers = 1\ndecoder_layers = 1\ndim = 32\nheads = 2\n'
        'norm = "rms"\nbias = false\nscale = 1.0\nrelative_bias = "buckets"\n'
        'positions = "none"\nscale_embedding = false\nactivation = "relu"\ntied = false\n',
    )
    folder = run.save_pretrained(tmp_path / "hub")
    tokens, theirs = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM
    theirs = theirs.from_pretrained(folder).eval()
    source = tokens("17 days", return_tensors="pt").input_ids
    written = theirs.generate(source, max_new_tokens=8, do_sample=False)[0]
    assert run.translate(["17 days"], to=["de"])["de"] == [
        tokens.decode(written, skip_special_tokens=True)
    ]
    same_logits(theirs, run.model(source, written[None]), source, decoder_input_ids=written[None])


# ---- errors


def test_what_has_no_equal_is_refused_by_name(tmp_path):
    run = train(tmp_path, labelled(tmp_path) + BERT.replace("segments = 1\n", ""))
    with pytest.raises(ConfigError, match="segments: needs 1 or more for a bert checkpoint, got 0"):
        run.save_pretrained(tmp_path / "hub")
    assert not (tmp_path / "hub").exists()
    done = CliRunner().invoke(app, ["export", str(run.folder), "--format", "h5"])
    assert done.exit_code == 2
    lower = ByteTokenizer()
    lower.normalizers = ("lower",)
    with pytest.raises(ConfigError, match="normalizers: needs none for a fast tokenizer, got low"):
        fast_tokenizer_files(lower)
    with pytest.raises(ConfigError, match="tokenizer: needs bytes, characters or subwords"):
        fast_tokenizer_files(WordTokenizer.train(["a b"]))
