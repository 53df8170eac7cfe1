"""The queries of the text view answer with the library's numbers, for any model and any text."""

import json
from pathlib import Path

import pytest
import torch

import regard as rg
from regard.errors import RegardError
from regard.inspection.heads.head_table import COLUMNS, MORE_COLUMNS
from regard.runs.hub_model import load_hub_text_model
from regard.tasks import TaggingTask
from regard.web.explorer.catalog import Catalog
from regard.web.explorer.explorer import Explorer, find_query, unpack
from regard.web.explorer.views.text import prediction
from regard.web.jobs import Cancelled, Job

PHRASE = {"model": "phrases", "text": "March 5, 2024", "to": "de"}
CODE = {"model": "stdlib", "text": "import os\nimport sys\n\nclass "}
IDS = {"text": "3 1 4 1 5 9 2 6"}


def hub_folders(folder: Path) -> list[Path]:
    """Random models of transformers without a tokenizer: causal, masked, classes, two stacks."""
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        BertForSequenceClassification,
        GPT2Config,
        GPT2LMHeadModel,
        T5Config,
        T5ForConditionalGeneration,
    )

    torch.manual_seed(0)
    bert = BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        num_labels=3,
    )
    gpt = GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=128)
    t5 = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
    models = {
        "gpt": GPT2LMHeadModel(gpt),
        "bert": BertForMaskedLM(bert),
        "classes": BertForSequenceClassification(bert),
        "t5": T5ForConditionalGeneration(t5),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
    return [folder / name for name in models]


@pytest.fixture(scope="module")
def explorer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    sight = rg.Sight([rg.make_site(*torch.randn(2, 3, 5, 4), tokens=list("abcde"))])
    sight.save(folder / "saved.safetensors")
    names = ["phrases", "stdlib", "stories", *hub_folders(folder), folder / "saved.safetensors"]
    return Explorer(Catalog(names))


@pytest.fixture(scope="module")
def phrase(explorer):
    return explorer.recordings.read("phrases", PHRASE["text"], to="de")


def test_the_summary_has_the_tokens_output_and_predictions_of_the_reading(explorer, phrase):
    answer = explorer.answer("text", PHRASE)
    assert answer["output"] == phrase.target == "5. März 2024"
    assert [site["name"] for site in answer["sites"]] == phrase.sight.names
    last = answer["sites"][-1]
    assert last["query_tokens"] == ["<de>", "5", ".", "März", "␣", "20", "24"]
    assert last["key_tokens"][0] == "march"
    rows = [[list(pair) for pair in row] for row in phrase.predictions.rows]
    assert answer["predictions"]["rows"] == rows
    assert answer["predictions"]["kind"] == "next token"


def test_what_a_task_with_its_apply_returns_is_shown(explorer, tmp_path, monkeypatch):
    tokenizer = rg.data.ByteTokenizer()
    config = rg.models.classifier_tiny(vocab=tokenizer.vocab, classes=2, pooling="none")
    data = TaggingTask(train="gone.conll", names=("O", "B-A"), word_split="edges")
    train = rg.train.TrainConfig(steps=1)
    recipe = rg.tasks.Recipe(name="tags", data=data, model=config, train=train)
    folder = tmp_path / "tags"
    folder.mkdir()
    tokenizer.save(folder)
    rg.models.save(rg.models.Classifier(config), folder)
    content = {"version": 1, "recipe": rg.runs.config_to_json(recipe)}
    (folder / "recipe.json").write_text(json.dumps(content))
    own = Explorer(Catalog([folder], device="cpu"))
    request = {"model": "tags", "text": "in Oslo, twice"}
    (tagged,) = rg.load(folder, device="cpu").tag([request["text"]])
    assert own.answer("text", request)["applied"] == str(tagged)

    def fail(self, run, inputs, options):
        raise KeyError("lost")

    monkeypatch.setattr(TaggingTask, "apply", fail)
    answer = own.answer("text", request | {"head": 1})
    assert answer["applied"] == "KeyError: 'lost'"
    assert answer["heads"]
    assert explorer.answer("text", PHRASE)["applied"] is None


def test_the_heads_are_those_of_sight_heads_with_the_separators_of_the_tokenizer(explorer, phrase):
    answer = explorer.answer("text", PHRASE)
    separators = explorer.catalog.run("phrases").text_model.separators
    expected = phrase.sight.heads(separators=separators).to_dicts()
    assert len(answer["heads"]) == len(expected) == 42
    for found, row in zip(answer["heads"], expected, strict=True):
        for name in ("site", "head", "type", "reason"):
            assert found[name] == row[name]
        for name in ("normalized_entropy", "mean_distance", "sink_share", "peak"):
            assert found[name] == pytest.approx(row[name], abs=1e-6)
    words = rg.inspection.describe_head(phrase.sight["decoder.1.cross"], 2)
    assert answer["heads"][-4]["words"] == words


def test_the_maps_of_a_short_text_are_the_exact_weights(explorer, phrase):
    for found in explorer.answer("text", PHRASE)["sites"]:
        assert found["is_exact"]
        torch.testing.assert_close(
            unpack(found["maps"]), phrase.sight[found["name"]].window()[0].float()
        )


def test_the_head_to_begin_with_is_a_sharp_cross_attention(explorer):
    assert explorer.answer("text", PHRASE)["start"]["site"] == "decoder.1.cross"
    assert explorer.answer("text", CODE)["start"]["site"].startswith("decoder.")


def test_the_table_has_one_row_per_head(explorer):
    text = explorer.csv(find_query("text"), PHRASE, Job())
    lines = text.splitlines()
    assert len(lines) == 43
    assert lines[0].startswith("site,head,query_count,kind,type,reason,self_share")
    assert lines[1].startswith("encoder.0.self,0,8,self,mixed,")


def test_the_figure_shows_all_heads_or_the_chosen_one(explorer):
    query = find_query("text")
    assert query.figure is not None
    sheet = query.figure(explorer.answer("text", PHRASE))
    assert [x.get_text() for x in sheet.axes[0].get_yticklabels()][-1] == "decoder.1.cross"
    chosen = explorer.answer("text", PHRASE | {"site": "decoder.1.cross", "head": 2})
    assert query.figure(chosen).axes[0].get_title() == "decoder.1.cross, head 2"


def test_the_map_of_a_head_is_its_window(explorer, phrase):
    answer = explorer.answer("text.map", PHRASE | {"site": "encoder.2.self", "head": 3})
    assert answer["pool"] == [1, 1]
    expected = phrase.sight["encoder.2.self"].window(3)[0].float()
    torch.testing.assert_close(unpack(answer["map"]), expected)


def test_a_long_text_is_pooled_and_its_answer_stays_small(explorer):
    body = {"model": "stdlib", "text": "x = f(y)\n" * 150}
    answer = explorer.answer("text", body)
    site = answer["sites"][0]
    assert site["queries"] > 512
    assert not site["is_exact"]
    assert site["maps"]["shape"] == [6, 48, 48]
    assert len(site["query_tokens"]) == 512
    assert answer["predictions"]["positions"][-1] == site["queries"] - 1
    assert len(json.dumps(answer)) < 2_000_000
    found = explorer.answer("text.map", body | {"site": "decoder.0.self", "head": 1})
    pool = found["pool"]
    assert pool[0] == -(-site["queries"] // 256) > 1
    recorded = explorer.recordings.read(**body).sight["decoder.0.self"]
    expected = recorded.window(1, pool=(pool[0], pool[1]))[0].float()
    torch.testing.assert_close(unpack(found["map"]), expected)


def test_a_text_of_middle_length_has_pooled_small_maps_and_one_exact_map(explorer):
    body = {"model": "stdlib", "text": "x = f(y)\n" * 20}
    answer = explorer.answer("text", body)
    assert not answer["sites"][0]["is_exact"]
    found = explorer.answer("text.map", body | {"site": "decoder.0.self", "head": 1})
    assert found["pool"] == [1, 1]
    assert unpack(found["map"]).sum(-1) == pytest.approx(1.0, abs=1e-4)


def test_the_arithmetic_of_a_cell_is_that_of_explain(explorer, phrase):
    cell = {"site": "encoder.1.self", "head": 1, "query": 2, "key": 3}
    answer = explorer.answer("text.cell", PHRASE | cell)
    site = phrase.sight["encoder.1.self"]
    model = explorer.catalog.run("phrases").model
    w_out = rg.inspection.output_projection(model, site)
    expected = rg.explain(site, 1, 2, 3, w_out=w_out)
    assert answer["title"] == expected.title
    assert answer["weight"] == expected.breakdown.weight
    assert answer["score"] == expected.breakdown.score
    assert [step["title"].lower() for step in answer["steps"]][-1].startswith("the contribution")
    assert len(answer["steps"]) == len(expected.steps)
    assert all(x.startswith("<math") for x in (*answer["given"], answer["steps"][0]["formula"]))


def test_the_arithmetic_holds_no_markup_of_the_text(explorer):
    body = {"model": "phrases", "text": "<img src=x onerror=alert(1)>", "to": "de"}
    answer = explorer.answer("text.cell", body | {"site": "encoder.0.self", "query": 0, "key": 0})
    written = [*answer["given"]]
    written += [x for step in answer["steps"] for x in (step["formula"], *step["results"])]
    assert not any("<img" in x or "onerror" in x for x in written)


def test_why_splits_the_score_into_pairs_of_parts(explorer):
    cell = {"site": "decoder.2.self", "head": 1, "query": 6, "key": 5}
    answer = explorer.answer("text.why", CODE | cell)
    text_model = explorer.catalog.run("stdlib").text_model
    ids = text_model.encode("text", CODE["text"])
    expected = rg.inspection.split_score(
        text_model.model, ids, "decoder.2.self", head=1, query=6, key=5
    )
    assert answer["score"] == expected.score
    assert answer["pairs"] == [list(pair) for pair in expected.top(8)]
    assert sum(answer["by_key"].values()) == pytest.approx(answer["score"], abs=1e-3)


def test_influence_is_exact_and_in_total_that_of_the_site(explorer, phrase):
    body = PHRASE | {"site": "decoder.1.cross", "head": 0, "key": 5}
    answer = explorer.answer("text.influence", body)
    for total in answer["sites"]:
        effect = phrase.sight[total["site"]].influence().effect_of_key[0, :, 5]
        assert total["effect"] == pytest.approx(float(effect.sum()), rel=1e-4)
        assert total["head"] == int(effect.argmax())
    assert [x["site"] for x in answer["sites"]] == [
        *(f"encoder.{n}.self" for n in range(3)),
        "decoder.0.cross",
        "decoder.1.cross",
    ]
    site = phrase.sight["decoder.1.cross"]
    with_key = site.out[0, 0, 1].double()
    w, v = site.window(0, 1)[0, 0].double(), site.v[0, 0].double()
    w[5] = 0
    without = (w / w.sum()) @ v
    assert answer["effects"][1] == pytest.approx(float((with_key - without).norm()), rel=1e-3)


def test_the_lens_ends_with_the_models_prediction(explorer):
    answer = explorer.answer("text.lens", CODE)
    summary = explorer.answer("text", CODE)
    assert answer["depths"] == ["embedding", *(f"block {n}" for n in range(4))]
    rows = summary["predictions"]["rows"]
    assert answer["tokens"][-1] == [row[0][0] for row in rows]
    found = unpack(answer["probability"])[-1].tolist()
    assert found == pytest.approx([row[0][1] for row in rows], abs=1e-4)
    assert unpack(answer["kl"])[-1].abs().max() < 1e-5


def test_the_lens_of_a_translator_reads_its_decoder(explorer):
    answer = explorer.answer("text.lens", PHRASE)
    assert answer["tokens"][-1] == ["5", ".", "März", "␣", "20", "24", "<end>"]


def test_the_lens_of_a_long_text_shows_up_to_the_chosen_position(explorer):
    body = {"model": "stdlib", "text": "x = f(y)\n" * 20, "position": 60}
    assert explorer.answer("text.lens", body)["positions"] == list(range(29, 61))


def test_attribution_sums_to_the_logit_of_the_predicted_token(explorer, phrase):
    for by in ("part", "head"):
        answer = explorer.answer("text.attribution", PHRASE | {"position": 2, "by": by})
        assert answer["name"] == "März"
        assert answer["logit"] == pytest.approx(phrase.logits[2].max().item(), rel=1e-5)
        total = sum(x for _, x in answer["parts"]) + answer["constant"]
        assert total == pytest.approx(answer["logit"], abs=1e-3)
    other = answer["choices"][1][0]
    answer = explorer.answer("text.attribution", PHRASE | {"position": 2, "token": other})
    text_model = explorer.catalog.run("phrases").text_model
    assert answer["token"] == other
    assert answer["name"] == rg.inspection.sites.labels.strip_marks(
        text_model.tokenizer.id_to_token(other)
    )


@pytest.mark.parametrize(
    ("name", "passes"), [("text", 2), ("text.lens", 1), ("text.attribution", 1)]
)  # of the text the second pass is the batch without single heads
def test_a_tab_runs_the_model_once_beside_the_recorded_pass(explorer, name, passes):
    body = {"model": "stdlib", "text": f"a = f(x)  # {name}"}
    model = explorer.catalog.run("stdlib").text_model.model
    if name != "text":
        explorer.answer("text", body)
    calls = []
    hook = model.register_forward_hook(lambda *_: calls.append(None))
    try:
        explorer.answer(name, body)
    finally:
        hook.remove()
    assert len(calls) == passes


def test_two_heads_are_compared_cell_by_cell(explorer, phrase):
    body = PHRASE | {"site": "encoder.0.self", "head": 1, "other_site": "encoder.2.self"}
    answer = explorer.answer("text.compare", body | {"other_head": 4})
    first, second, difference = unpack(answer["maps"])
    torch.testing.assert_close(first, phrase.sight["encoder.0.self"].window(1)[0].float())
    torch.testing.assert_close(second, phrase.sight["encoder.2.self"].window(4)[0].float())
    torch.testing.assert_close(difference, second - first)


def test_two_texts_are_aligned_as_compare_sights_does(explorer, phrase):
    body = PHRASE | {"site": "decoder.1.cross", "head": 0, "other_text": "March 6, 2024"}
    answer = explorer.answer("text.compare", body)
    other = explorer.recordings.read("phrases", "March 6, 2024", to="de")
    expected = rg.inspection.compare_sights(phrase.sight, other.sight)
    assert answer["heads"] == expected.to_dicts()[:40]
    torch.testing.assert_close(
        unpack(answer["maps"]), expected.maps("decoder.1.cross", 0), equal_nan=True
    )
    assert "5 | 6" in answer["key_tokens"]
    assert answer["outputs"] == ["5. März 2024", "6. März 2024"]


def test_two_languages_are_compared(explorer):
    body = PHRASE | {"site": "decoder.1.cross", "head": 0, "other_to": "nl"}
    assert explorer.answer("text.compare", body)["outputs"] == ["5. März 2024", "5 maart 2024"]


def test_folders_of_hugging_face_read_token_ids(explorer):
    for name, kind, sites in (("gpt", "next token", 2), ("bert", "token", 2)):
        body = {"model": name} | IDS
        answer = explorer.answer("text", body)
        assert len(answer["sites"]) == sites
        assert answer["sites"][0]["query_tokens"] == IDS["text"].split()
        assert answer["predictions"]["kind"] == kind
        at = {"site": answer["sites"][0]["name"], "query": 3, "key": 2}
        direct = load_hub_text_model(explorer.catalog.entry(name).path).look(IDS["text"])
        weight = direct[at["site"]].window(0)[0, 3, 2].item()
        assert explorer.answer("text.cell", body | at)["weight"] == pytest.approx(weight, rel=1e-4)
        tokens = explorer.answer("text.lens", body)["tokens"][-1]
        assert tokens == [row[0][0] for row in answer["predictions"]["rows"]]
    assert explorer.answer("text.attribution", {"model": "gpt"} | IDS | {"by": "head"})["parts"]
    at = {"site": "transformer.h.1.attn", "query": 3, "key": 2}
    assert explorer.answer("text.why", {"model": "gpt"} | IDS | at)["pairs"]


def test_a_model_without_a_tokenizer_has_an_example_of_ids(explorer):
    entries = {x["name"]: x for x in explorer.answer("models", {})["models"]}
    assert explorer.answer("text", {"model": "gpt", "text": entries["gpt"]["examples"][0]})
    assert entries["stdlib"]["examples"][0].startswith("def ")


def test_a_classifier_has_one_list_of_classes(explorer):
    found = explorer.answer("text", {"model": "classes"} | IDS)["predictions"]
    assert found["kind"] == "class"
    assert sorted(name for name, _ in found["rows"][0]) == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_an_encoder_decoder_without_our_tokenizer_needs_a_target(explorer):
    body = {"model": "t5"} | IDS
    with pytest.raises(RegardError, match="^target: needs"):
        explorer.answer("text", body)
    answer = explorer.answer("text", body | {"target": "7 8"})
    assert {site["kind"] for site in answer["sites"]} == {"self", "cross"}
    assert explorer.answer("text.lens", body | {"target": "7 8"})["positions"] == [0, 1, 2]


def test_a_saved_sight_is_shown_without_a_model(explorer):
    body = {"model": "saved", "text": ""}
    answer = explorer.answer("text", body)
    assert answer["sites"][0]["query_tokens"] == list("abcde")
    assert answer["predictions"] is None
    assert answer["output"] is None
    at = {"site": "attention", "head": 1}
    assert explorer.answer("text.cell", body | at | {"query": 4, "key": 2})["steps"]
    assert explorer.answer("text.influence", body | at | {"key": 2})["total"] > 0
    with pytest.raises(RegardError, match="needs one that runs, got the saved sight"):
        explorer.answer("text.lens", body)


@pytest.mark.parametrize(
    "text", ["日本語で3日", "شهر مارس", "👩‍👩‍👧 3 🎉", "\u202eabc", "e\u0301" * 20, "\x00\x07"]
)
def test_any_characters_are_read(explorer, text):
    for body in (PHRASE, CODE):
        answer = explorer.answer("text", body | {"text": text})
        assert answer["heads"]
        cell = {"site": answer["sites"][0]["name"], "query": 0, "key": 0}
        assert explorer.answer("text.cell", body | {"text": text} | cell)["weight"] > 0


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("text", {"text": ""}, "text: needs at least one token"),
        ("text", {"text": "   "}, "text: needs at least one token"),
        ("text", {"model": "none"}, "model: needs one of phrases"),
        ("text", {"to": "xx"}, "xx"),
        ("text", {"text": "a" * 400_001}, "text: needs to be valid: string should have at most"),
        ("text", {"tokens": 3}, "tokens: needs to be valid: extra inputs"),
        ("text.map", {"site": "encoder.9.self"}, "site: needs one of encoder.0.self"),
        ("text.map", {"site": "encoder.0.self", "head": 6}, "head: needs less than the 6"),
        ("text.cell", {"site": "encoder.0.self", "query": 99, "key": 0}, "query: needs"),
        ("text.influence", {"site": "encoder.0.self", "key": 99}, "key: needs"),
        ("text.why", {"site": "decoder.0.cross", "query": 0, "key": 0}, "needs a self-attention"),
        ("text.compare", {"site": "encoder.0.self", "other_site": "decoder.0.self"}, "other_site"),
        ("text.attribution", {"position": 99}, "position: needs"),
    ],
)
def test_a_mistake_is_answered_with_what_is_needed(explorer, name, change, message):
    with pytest.raises(RegardError, match=message):
        explorer.answer(name, PHRASE | change)


def test_what_a_model_does_not_support_is_said(explorer):
    at = {"site": "bert.encoder.layer.1.attention.self", "query": 1, "key": 0}
    with pytest.raises(RegardError, match="norm after the sum, as in BERT"):
        explorer.answer("text.why", {"model": "bert"} | IDS | at)
    with pytest.raises(RegardError, match="^model: needs"):
        explorer.answer("text.attribution", {"model": "classes"} | IDS)


def test_every_column_of_a_head_is_offered_with_its_numbers(explorer):
    answer = explorer.answer("text", PHRASE)
    names = [column["name"] for column in answer["columns"]]
    assert names == [*COLUMNS, *MORE_COLUMNS]
    assert all(isinstance(row[name], float) for row in answer["heads"] for name in names)


def test_a_cancelled_request_stops_between_sites(explorer):
    job = Job()
    job.cancel()
    with pytest.raises(Cancelled):
        explorer.answer("text", PHRASE | {"text": "4 weeks"}, job)


# ---- single heads


@pytest.mark.parametrize(
    ("model", "text"),
    [("stories", "The keys beside the lamp"), ("phrases", "March 5, 2024"), ("stdlib", "def f(")],
)
def test_the_effect_of_each_head_is_that_of_dropping_it(explorer, model, text):
    body = {"model": model, "text": text} | ({"to": "de"} if model == "phrases" else {})
    found = explorer.answer("text", body)["effects"]
    text_model, at = explorer.catalog.run(model).text_model, found["position"]
    whole = text_model.read(text, to=body.get("to"))
    token = int(whole.predictions.ids[at][0])
    assert len(found["heads"]) == found["of"]
    for x in found["heads"][:: max(1, found["of"] // 6)]:
        edits = [rg.edit.drop_head(x["site"], x["head"])]
        logits = text_model.read(text, whole.target, to=body.get("to"), edits=edits).logits[at]
        before, after = (
            y.float().log_softmax(-1)[token].item() for y in (whole.logits[at], logits)
        )
        assert x["effect"] == pytest.approx(before - after, abs=1e-3)


def test_of_a_large_model_the_heads_that_add_most_are_tested_and_the_chosen_one(
    explorer, monkeypatch
):
    body = {"model": "stdlib", "text": "x = [1, 2"}
    parameters = sum(
        x.numel() for x in explorer.catalog.run("stdlib").text_model.model.parameters()
    )
    monkeypatch.setattr(prediction, "MAX_WORK", 3.5 * parameters * 8)
    sites = explorer.answer("text", {"model": "stdlib", "text": "x = [1, 2]"})["sites"]
    at = {"position": 0, "site": sites[0]["name"], "head": 5}
    found = explorer.answer("text.heads", body | at)
    assert 0 < len(found["heads"]) < found["of"]
    assert (found["heads"][0]["site"], found["heads"][0]["head"]) == (at["site"], 5)


def test_of_a_long_text_the_model_runs_once(explorer, monkeypatch):
    body = {"model": "stdlib", "text": "x = [1, 2, 3]"}
    known = explorer.answer("text", body)["effects"]
    model = explorer.catalog.run("stdlib").text_model.model
    runs = []
    hook = model.register_forward_hook(lambda *_: runs.append(1))
    monkeypatch.setattr(prediction, "MAX_WORK", 0)
    found = explorer.answer("text", body | {"text": "x = [1, 2, 4]"})["effects"]
    hook.remove()
    assert len(runs) == 1
    assert (found["heads"], found["of"]) == ([], known["of"])
    assert 0 < found["probability"] <= 1
