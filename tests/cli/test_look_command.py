"""`regard look`: from a model on disk and a text to a page, or to a one-line error."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from regard import models
from regard.cli import app


def run(*args: object):
    return CliRunner().invoke(app, ["look", *map(str, args)])


def response(page: Path) -> dict:
    text = re.search(r'id="saved">(.*?)</script>', page.read_text(), re.DOTALL)
    assert text is not None
    return json.loads(text[1])["responses"][0]["response"]


def data(file: Path) -> list:
    page = response(file)
    for site in page["sites"]:
        for name in ("query_labels", "key_labels"):
            site[name] = page["labels"][site[name]]
    return page["sites"]


def head_rows(page: Path) -> list[dict[str, str]]:
    lines = re.findall("<tr>.*?</tr>", page.read_text())
    names, *rows = (re.findall(r"<t[hd]>([^<]*)<", line) for line in lines)
    return [dict(zip(names, row, strict=True)) for row in rows]


@pytest.fixture
def language(tmp_path) -> Path:
    return models.save(models.LanguageModel(models.language_tiny(vocab=20)), tmp_path / "run")


@pytest.fixture
def bert(tmp_path) -> Path:
    """A Hugging Face folder with a tokenizer of a few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = {w: i for i, w in enumerate(["[UNK]", "[SEP]", "the", "cat", "sat", "."])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "bert"
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", sep_token="[SEP]"
    ).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    BertModel(
        BertConfig(vocab_size=6, intermediate_size=8, max_position_embeddings=12, **sizes)
    ).save_pretrained(folder)
    return folder


# what comes out


def test_a_saved_model_reads_numbers_and_a_page_is_written(language, tmp_path):
    out = tmp_path / "page.html"
    done = run(language, "3 1 4 1 5", "--out", out)
    assert done.exit_code == 0, done.output
    assert f"{out}: 2 attention sites, 8 heads" in done.output.replace("\n", "")
    first, second = data(out)
    assert first["name"] == "decoder.0.self"
    assert second["query_labels"] == ["3", "1", "4", "1", "5"]


def test_the_numbers_in_the_page_are_those_of_the_model(language, tmp_path):
    from regard.inspection import look

    out = tmp_path / "page.html"
    run(language.parent, "3,1,4", "--out", out)  # the folder serves as well as the file
    model = models.load(language)
    with look(model) as sight, torch.no_grad():
        model(torch.tensor([[3, 1, 4]]))
    for held, row in zip(head_rows(out), sight.heads(), strict=True):
        assert float(held["peak"]) == pytest.approx(row.peak, abs=0.0005)
        assert held["type"] == row.type


def test_at_chooses_and_probe_adds_copying(language, tmp_path):
    out = tmp_path / "page.html"
    done = run(language, "3 1 4", "--out", out, "--at", "*.1.self", "--probe")
    assert done.exit_code == 0, done.output
    assert len(data(out)) == 1
    assert any(float(row["induction"]) > 0 for row in head_rows(out))


def test_a_translator_needs_a_target(tmp_path):
    path = models.save(models.Translator(models.translator_tiny(vocab=20)), tmp_path)
    out = tmp_path / "page.html"
    done = run(path, "3 1 4", "--target", "5 6", "--out", out)
    assert done.exit_code == 0, done.output
    cross = next(site for site in data(out) if site["kind"] == "cross")
    assert cross["query_labels"] == ["5", "6"]
    assert cross["key_labels"] == ["3", "1", "4"]
    done = run(path, "3 1 4", "--out", out)
    assert done.exit_code == 2
    assert "target: needs the decoder input of Translator" in done.stderr
    assert "try --target" in done.stderr


def test_a_hugging_face_folder_is_read_by_its_own_tokenizer(bert, tmp_path):
    out = tmp_path / "page.html"
    done = run(bert, "the cat sat .", "--out", out)
    assert done.exit_code == 0, done.output
    sites = data(out)
    assert len(sites) == 2
    assert sites[0]["query_labels"] == ["the", "cat", "sat", "."]
    assert float(head_rows(out)[0]["separator_share"]) > 0  # the full stop counts


def test_a_picture_is_looked_at_with_a_vision_model(tmp_path):
    from PIL import Image
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "image_size": 32, "patch_size": 8}
    config = ViTConfig(**sizes, num_labels=3)
    ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    (tmp_path / "vit/preprocessor_config.json").write_text('{"size": {"height": 32, "width": 32}}')
    Image.new("RGB", (50, 40), "red").save(tmp_path / "red.png")
    out = tmp_path / "page.html"
    done = run(tmp_path / "vit", tmp_path / "red.png", "--out", out)
    assert done.exit_code == 0, done.output
    assert [site["keys"] for site in data(out)] == [17, 17]
    page = response(out)
    assert ["Layers", "2 of 2 layers recorded"] in page["facts"]
    assert page["outputs"]["kind"] == "class"
    for wrong in (["text"], [tmp_path / "red.png", "--query", "1"]):
        refused = run(tmp_path / "vit", *wrong)
        assert refused.exit_code == 2
        assert "image" in refused.output
    refused = run("stdlib", "x = 1", "--image", tmp_path / "red.png")
    assert refused.exit_code == 2
    assert "Traceback" not in refused.output


def test_the_page_names_the_folder_the_prompt_and_the_next_token(language, tmp_path):
    out, prompt = tmp_path / "page.html", tmp_path / "prompt.txt"
    prompt.write_text("3 1 4\n")
    done = run(language, prompt, "--out", out, "--around", "1")
    assert done.exit_code == 0, done.output
    page = response(out)
    facts = {"Model": f"{language} (LanguageModel)", "Input": "3 1 4"}
    facts["Layers"] = "2 of 2 layers recorded"
    assert dict(page["facts"]) == facts
    assert facts["Layers"] in done.output
    with torch.no_grad():
        p = models.load(language).eval()(torch.tensor([[3, 1, 4]]))[0, -1].softmax(-1)
    best = page["outputs"]["rows"]
    assert [int(name) for name, _ in best] == p.topk(5).indices.tolist()
    assert [float(x) for _, x in best] == pytest.approx(p.topk(5).values.tolist(), abs=6e-4)


def test_a_classifier_shows_its_classes_by_name(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=6, intermediate_size=8, id2label={0: "<calm>", 1: "cross"}, **sizes
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    out = tmp_path / "page.html"
    done = run(tmp_path / "bert", "3 1 4", "--out", out)
    assert done.exit_code == 0, done.output
    outputs = response(out)["outputs"]
    assert outputs["kind"] == "class"
    assert "<calm>" in dict(outputs["rows"])
    assert "&lt;calm&gt; 0." in out.read_text()  # without JavaScript


def test_a_hugging_face_encoder_and_decoder(tmp_path):
    from transformers import T5Config, T5Model

    config = T5Config(
        vocab_size=20, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, pad_token_id=0
    )
    config.decoder_start_token_id = 0
    T5Model(config).save_pretrained(tmp_path / "t5")
    out = tmp_path / "page.html"
    done = run(tmp_path / "t5", "3 1 4 1", "--target", "5 6", "--out", out)
    assert done.exit_code == 0, done.output
    cross = next(site for site in data(out) if site["kind"] == "cross")
    assert (cross["queries"], cross["keys"]) == (3, 4)  # the start token, 5 and 6
    assert cross["query_labels"] == ["0", "5", "6"]


def test_help_does_not_import_torch():
    code = (
        "import sys\nfrom regard.cli import main\nsys.argv = ['regard', 'look', '--help']\n"
        "try: main()\nexcept SystemExit: pass\nprint('heavy:', 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "TEXT|FILE|-" in done.stdout
    assert "heavy: False" in done.stdout


# errors


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "text: needs token ids"),
        ("3 99", "text: needs tokens from 0 to 19, got 99"),
        ("-1", "text: needs tokens from 0 to 19, got -1"),
        ("", "text: needs at least one token"),
    ],
)
def test_a_text_that_the_model_cannot_read_is_one_line_and_exit_code_2(language, text, said):
    done = run(language, "--", text)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"regard: {said}")
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("users_view")
def test_a_place_that_has_no_model_is_reported(tmp_path, language, bert):
    assert "got no such file" in run(tmp_path / "none", "3").stderr
    (tmp_path / "empty").mkdir()
    assert "got neither" in run(tmp_path / "empty", "3").stderr
    (bert / "config.json").write_text("{")
    assert "config.json: needs JSON" in run(bert, "the").stderr
    done = run(language, "3", "--out", tmp_path / "gone" / "page.html")
    assert "out: needs a folder that exists" in done.stderr
    assert done.exit_code == 2
    done = run(language, "3", "--out", tmp_path / "page.html", "--at", "encoder.*")
    assert done.exit_code == 2


@pytest.mark.usefixtures("users_view")
def test_a_text_longer_than_the_model_can_read_is_reported(bert, tmp_path):
    done = run(bert, "the cat " * 7, "--out", tmp_path / "page.html")
    assert "text: needs at most 12 tokens for this model, got 14" in done.stderr


@pytest.mark.usefixtures("users_view")
def test_a_model_that_reads_no_tokens_is_reported(tmp_path):
    path = models.save(models.VisionTransformer(models.vision_tiny(classes=2)), tmp_path / "a")
    assert "reads tokens, got VisionTransformer" in run(path, "3").stderr
    from transformers import ViTConfig, ViTModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    ViTModel(ViTConfig(intermediate_size=8, image_size=16, patch_size=8, **sizes)).save_pretrained(
        tmp_path / "vit"
    )
    assert "3: needs to be an image, got no such file" in run(tmp_path / "vit", "3").stderr


# comparisons


def test_two_texts_are_compared_in_a_table_a_page_and_json(bert, tmp_path):
    out = tmp_path / "both.html"
    done = run(bert, "the cat sat", "the cat . sat", "--out", out)
    assert done.exit_code == 0, done.output
    assert "4 heads, the most different first" in done.output
    assert '[".","second only"]' in out.read_text()
    rows = json.loads(run(bert, "the cat sat", "the cat . sat", "--json").output)
    distances = [row["distance"] for row in rows]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0


def test_two_models_are_compared_on_one_text(language, bert, tmp_path):
    torch.manual_seed(9)
    other = models.save(models.LanguageModel(models.language_tiny(vocab=20)), tmp_path / "other")
    rows = json.loads(run(language.parent, other.parent, "3 1 4", "--json").output)
    assert len(rows) == 8
    assert rows[0]["distance"] > 0
    same = json.loads(run(language.parent, language.parent, "3 1 4", "--json").output)
    assert {row["distance"] for row in same} == {0.0}


def test_a_long_text_is_no_path(language):
    texts = ["3 1 " * 150 + end for end in ("4", "5")]
    assert len(json.loads(run(language, *texts, "--json").output)) == 8


def test_wrong_comparisons_are_one_line(language, tmp_path):
    for args, message in {
        ("3 1", "4 1", "5 1"): "INPUT: needs one or two, got 3",
        ("3 1", "3 4", "--describe"): "describe: needs one text, got two",
        ("3 1", "--json"): "json: needs two texts",
        (tmp_path / "missing", "3 1"): "missing: needs to be a run",
    }.items():
        done = run(language, *args)
        assert done.exit_code == 2
        assert message in done.stderr.replace("\n", " ")
