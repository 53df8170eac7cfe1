"""Pretrained models are trained, small, and load by name like any run."""

import json
from itertools import islice

import pytest
import torch
from typed import NATURAL, NONSENSE, right
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.errors import FileError
from regard.runs import load, load_run, pretrained_names
from regard.runs.loading import PRETRAINED_FOLDER
from regard.tasks import SearchConfig, translate_texts


def test_all_together_are_small():
    assert (
        sum(file.stat().st_size for file in PRETRAINED_FOLDER.rglob("*") if file.is_file()) < 20e6
    )


@pytest.mark.parametrize("name", pretrained_names())
def test_each_is_a_finished_run_with_its_record_in_full_precision(name):
    run = rg.load(name)
    assert {"step", "seconds", "valid", "test", "machine"} <= set(run.result)
    assert {p.dtype for p in run.model.parameters()} == {torch.float32}
    assert not run.model.training


@pytest.mark.parametrize("name", [name for name in pretrained_names() if "phrases" in name])
def test_those_that_translate_do_as_their_record_says(name):
    run = load(name, device="cpu")
    pairs = list(islice(run.recipe.data.source(60).examples("test", 0), 60))
    texts, languages = [p.source for p in pairs], [p.language for p in pairs]
    answers = translate_texts(
        run.model, run.tokenizer, texts, languages, SearchConfig(max_new_tokens=60)
    )
    exact = sum(a == p.target for a, p in zip(answers, pairs, strict=True)) / len(pairs)
    assert abs(exact - run.result["test"]["exact"]) < 0.1


@pytest.mark.parametrize("name", ["phrases", "phrases-gru"])
def test_what_people_type_is_translated_and_nonsense_is_flagged(name, tmp_path):
    file = tmp_path / "typed.txt"
    file.write_text("\n".join(text for text, _ in NATURAL) + "\n")
    done = CliRunner().invoke(app, ["translate", name, "--to", "de,fr", str(file)])
    answers = [line.split("\t") for line in done.stdout.splitlines()]
    for n, language in enumerate(("de", "fr")):
        wanted = [right(meaning, language) for _, meaning in NATURAL]
        found = [answer[n] == want for answer, want in zip(answers, wanted, strict=True)]
        assert sum(found) >= 0.9 * len(found)
    done = CliRunner().invoke(app, ["translate", name, "--to", "de", *NONSENSE])
    assert done.exit_code == 1
    assert done.stderr.count("regard: warning: ") >= 0.9 * len(NONSENSE)


@pytest.mark.parametrize("name", ["phrases", "phrases-gru"])
def test_case_and_typography_change_no_answer(name):
    forms = ["3:05\u202fPM", "3:05 PM", "3:05 pm", " 3:05\xa0pm", "３:05 ＰＭ"]
    assert set(rg.load(name).translate(forms, to=["de"])["de"]) == {"15:05"}


def test_commands_take_a_pretrained_model_by_name(tmp_path):
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["look", "phrases", "3 days", "--to", "de", "--out", str(page)])
    assert done.exit_code == 0, done.output
    assert "decoder.0.cross" in page.read_text()
    assert CliRunner().invoke(app, ["cost", "phrases"]).exit_code == 0


def test_a_look_at_a_translator_is_labelled_with_its_tokens():
    run = load("phrases", device="cpu")
    (answer,) = translate_texts(run.model, run.tokenizer, ["3 days"], ["de"])
    site = rg.load("phrases").look("3 days", to="de").sites[-1]
    pieces = [run.tokenizer.id_to_token(i) for i in run.tokenizer.encode(answer)]
    assert site.query_tokens == [["<de>", *pieces]]
    assert site.key_tokens == [["3", " days", "<end>"]]


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_an_unknown_name_gets_a_suggestion(tmp_path):
    with pytest.raises(FileError, match="needs to be a run, a saved model or one of .*; try phr"):
        load("phrase")
    done = CliRunner().invoke(app, ["look", "phrases", "3 days", "--out", str(tmp_path / "a")])
    assert "regard: to: needs a target language, one of cs de" in done.stderr


@pytest.mark.usefixtures("users_view")
def test_a_damaged_pretrained_model_is_refused(tmp_path):
    for file in (PRETRAINED_FOLDER / "phrases").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    result = json.loads((tmp_path / "result.json").read_text())
    assert load_run(tmp_path).result == result
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-4] + b"abcd")
    with pytest.raises(FileError, match="its numbers were damaged"):
        load_run(tmp_path)
