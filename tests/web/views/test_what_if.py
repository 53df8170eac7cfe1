"""The what-if view: its answers are the numbers of the library."""

import pytest
import torch

import regard as rg
from regard.errors import RegardError
from regard.inspection import compare_edits, compare_sights, edit
from regard.inspection.edits.closed_forms import drop_key_effect, scale_key_effect
from regard.inspection.edits.registry import EDITS
from regard.tasks import translate_texts
from regard.tasks.translation.alignment import record_translation
from regard.web.explorer.catalog import Catalog
from regard.web.explorer.explorer import Explorer, find_query, unpack
from regard.web.jobs import Job

TEXT = "2 hours and 5 minutes"
PAIR = rg.data.Pair(TEXT, "2 Stunden und 5 Minuten", "de")


@pytest.fixture(scope="module")
def explorer():
    return Explorer(Catalog(["phrases", "phrases-gru", "stdlib"], device="cpu"))


@pytest.fixture(scope="module")
def run(explorer):
    return explorer.catalog.run("phrases")


def ask(explorer, **edits):
    return explorer.answer("what-if", {"model": "phrases", "text": TEXT, "to": "de"} | edits)


def test_without_edits_nothing_changes(explorer):
    answer = ask(explorer)
    assert answer["edits"] == []
    assert answer["output"] == {"before": PAIR.target, "after": PAIR.target}
    assert all(row["kl"] == 0 for row in answer["positions"])
    assert not unpack(answer["maps"])[2].any()


def test_maps_are_those_recorded_under_the_edit(explorer, run):
    answer = ask(explorer, edits="scale_scores('*', 0.25)", site="encoder.1.self", head=2)
    before = record_translation(run.model, run.tokenizer, PAIR)
    with rg.look(run.model) as after, rg.what_if(run.model, edit.scale_scores("*", 0.25)):
        record_translation(run.model, run.tokenizer, PAIR)
    site = before["encoder.1.self"]
    maps = unpack(answer["maps"])
    assert torch.equal(maps[0], site.window(2)[0])
    assert torch.allclose(maps[1], after["encoder.1.self"].window(2)[0], atol=1e-6)
    assert torch.allclose(maps[1].sum(-1), torch.ones(site.queries))  # weights, so lse fits q and k
    rows = compare_sights(before, after).rows
    distance = next(r.distance for r in rows if (r.site, r.head) == ("encoder.1.self", 2))
    assert answer["sites"][1]["map"][2] == pytest.approx(distance, abs=1e-5)


def test_predictions_are_those_of_compare_edits(explorer, run):
    answer = ask(explorer, edits="uniform('decoder.*cross')")
    ids = rg.data.pair_preprocessor(run.tokenizer)(PAIR)
    inputs = (torch.tensor([ids["source"]]), torch.tensor([ids["target"][:-1]]))
    comparison = compare_edits(run.model, inputs, edit.uniform("decoder.*cross"))
    kl = [row["kl"] for row in answer["positions"]]
    assert kl == pytest.approx(comparison.kl[0].tolist(), rel=1e-4, abs=1e-6)
    assert answer["position"] == int(comparison.kl[0].argmax())
    old = comparison.before.softmax(-1)[0]
    assert answer["positions"][0]["before"][1] == pytest.approx(float(old[0].max()))


def test_the_output_is_decoded_under_the_edit(explorer, run):
    answer = ask(explorer, edits="drop_key('decoder.1.cross', 1)")
    with rg.what_if(run.model, edit.drop_key("decoder.1.cross", 1)):
        expected = translate_texts(run.model, run.tokenizer, [TEXT], ["de"])
    assert answer["output"]["after"] == expected[0] == "2 Sekunden und 5 Minuten"
    assert "“2 Sekunden und 5 Minuten”" in answer["sentence"]


@pytest.mark.parametrize("edits", ["drop_key('*', keys=[1])", "scale_key('*', 1, 0.2)"])
def test_closed_forms_are_shown_beside_the_measured_change(explorer, run, edits):
    answer = ask(explorer, site="decoder.1.cross", head=3, edits=edits)
    site = record_translation(run.model, run.tokenizer, PAIR)["decoder.1.cross"]
    effect = drop_key_effect(site, 1) if "drop_key" in edits else scale_key_effect(site, 1, 0.2)
    expected = effect.change[0, 3].norm(dim=-1).tolist()
    assert answer["formula"]["predicted"] == pytest.approx(expected)
    assert answer["formula"]["measured"] == pytest.approx(expected, abs=1e-4)
    assert answer["formula"]["largest_error"] < 1e-4


def test_noise_and_two_edits_have_no_closed_form(explorer):
    for edits in (
        "jitter_key('*', 0.5)",
        "drop_key('*', 1); scale_scores('*', 0.5)",
        "drop_key('*', 1, queries=[0])",
        "scale_key('*', [0, 1], 0.5)",
        "uniform('*', heads=5)",
    ):
        assert ask(explorer, site="decoder.1.cross", head=0, edits=edits)["formula"] is None
    assert ask(explorer, site="decoder.1.cross", head=5, edits=edits)["formula"] is not None


def test_a_dropped_head_has_no_output(explorer):
    answer = ask(explorer, edits="drop_head('decoder.1.cross', 2); drop_head('encoder.0.self', 0)")
    cross = next(site for site in answer["sites"] if site["name"] == "decoder.1.cross")
    assert cross["output"][2] == pytest.approx(1.0)  # ‖0 - out‖ / ‖out‖
    assert cross["map"][2] < 0.2  # its map stays, up to the head that is dropped before it
    assert answer["edits"] == ["drop_head('decoder.1.cross', 2)", "drop_head('encoder.0.self', 0)"]


def test_a_scaled_head_of_factor_two_moves_by_its_own_size(explorer):
    answer = ask(explorer, edits="scale_head('encoder.0.self', 1, 2.0)")
    assert answer["sites"][0]["output"] == pytest.approx([0, 1, 0, 0, 0, 0])


def test_edits_apply_in_the_order_of_the_link(explorer):
    text = "drop_key('decoder.1.cross', 1); hardmax('decoder.1.cross')"
    answer = ask(explorer, edits=text)
    assert answer["edits"] == text.split("; ")
    maps = unpack(answer["maps"])[1]
    assert not maps[:, 1].any()
    assert maps.sum(-1).tolist() == pytest.approx([1.0] * len(maps))


def test_activations_are_edited_too(explorer, run):
    answer = ask(explorer, edits="zero_activation('decoder.1.mlp.out', positions=[0])")
    declared = explorer.answer("what-if.edits", {"model": "phrases"})
    assert "decoder.1.mlp.out" in declared["activations"]
    assert not {"types", "activations"} & set(answer)  # not with every step of a slider
    assert answer["positions"][0]["kl"] > 0
    assert answer["calls"] == [
        {"edit": "zero_activation", "place": "decoder.1.mlp.out", "values": {"positions": [0]}}
    ]


def test_the_page_is_offered_every_edit_that_can_be_written(explorer):
    offered = {x["edit"] for x in explorer.answer("what-if.edits", {"model": "phrases"})["types"]}
    assert offered == {x.name for x in EDITS.values() if x.has_text}
    assert set(EDITS) - offered == {
        "add_to_activation",
        "patch",
        "patch_state",
        "replace_window",
        "set_activation",
    }


def test_only_the_chosen_head_is_edited(explorer):
    answer = ask(explorer, edits="uniform('encoder.0.self', heads=4)")
    moved = answer["sites"][0]["map"]
    assert moved[4] > 0.01
    assert [h for h, x in enumerate(moved) if x > 1e-6] == [4]


def test_a_language_model_continues_the_text_under_the_edit(explorer):
    text, run = "def main(argv):\n    parser = argparse.", explorer.catalog.run("stdlib")
    answer = explorer.answer(
        "what-if", {"model": "stdlib", "text": text, "edits": "scale_scores('*', 0.4)"}
    )
    assert answer["output"]["before"] == run.generate(text, max_new_tokens=12)
    with rg.what_if(run.model, edit.scale_scores("*", 0.4)):
        assert answer["output"]["after"] == run.generate(text, max_new_tokens=12)


def test_a_recurrent_translator_has_one_cross_attention_to_edit(explorer):
    body = {"model": "phrases-gru", "text": TEXT, "to": "de", "edits": "drop_key('*', 1)"}
    answer = explorer.answer("what-if", body)
    assert [site["name"] for site in answer["sites"]] == ["decoder.cross"]
    assert answer["output"]["after"] != answer["output"]["before"]
    assert answer["formula"]["largest_error"] < 1e-4


def test_several_globs_are_one_place(explorer):
    answer = ask(explorer, edits="uniform('encoder.*'); uniform('decoder.*cross')")
    assert len(answer["edits"]) == 2
    assert answer["groups"][-1]["where"] == "encoder.* decoder.*cross"


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"edits": "uniform('nowhere')"}, "site: needs an attention that ran, got 'nowhere'"),
        ({"edits": "drop_key('*', 99)"}, "keys: needs less than 7"),
        (
            {"edits": "drop_keys('*', 1)"},
            "edits: needs a known edit, got 'drop_keys'; try drop_key",
        ),
        ({"edits": "scale_scores('*', -1)"}, "factor: needs a finite number from 0 up"),
        ({"head": 9, "site": "encoder.0.self"}, "head: needs less than the 6"),
        ({"site": "encoder.9.self"}, "site: needs one of encoder.0.self"),
        ({"text": "5 days and " * 200}, "text: needs at most 512 tokens"),
        ({"temperature": 2}, "temperature: needs to be valid: extra inputs"),
    ],
)
def test_mistakes_are_named(explorer, edits, message):
    with pytest.raises(RegardError, match=message):
        ask(explorer, **edits)


def test_the_table_has_a_row_per_position(explorer):
    body = {"model": "phrases", "text": TEXT, "to": "de", "edits": "scale_scores('*', 0.25)"}
    lines = explorer.csv(find_query("what-if"), body, Job()).splitlines()
    answer = explorer.answer("what-if", body)
    assert lines[0].startswith("position,token,kl,before,p_before,after")
    assert len(lines) == 1 + len(answer["positions"])
    assert float(lines[1].split(",")[2]) == answer["positions"][0]["kl"]


def test_the_figure_shows_both_maps_and_their_difference(explorer):
    draw = find_query("what-if").figure
    assert draw is not None
    figure = draw(ask(explorer, edits="scale_scores('*', 0.25)"))
    titles = [axes.get_title().rsplit(", ", 1)[1] for axes in figure.axes]
    assert titles == ["before", "after", "difference"]


def test_hugging_face_models_are_edited_too(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).eval()
    model.save_pretrained(tmp_path / "t5")
    explorer = Explorer(Catalog([tmp_path / "t5"], device="cpu"))
    body = {"model": "t5", "text": "3 1 4", "target": "2 7", "edits": "drop_key('*', 1)"}
    answer = explorer.answer("what-if", body)
    assert answer["output"] is None  # the library decodes its own models only
    assert len(answer["positions"]) == 3
    assert answer["sentence"].startswith("The most likely next token changes at")
    with pytest.raises(RegardError, match="target: needs the decoder input"):
        explorer.answer("what-if", {"model": "t5", "text": "3 1 4"})
