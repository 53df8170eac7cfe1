"""The time view: gates and gradients of the library, and small models from a seed."""

import pytest
import torch

import regard as rg
from regard.errors import RegardError
from regard.inspection import gradient_norms, memory_retention, record_gates
from regard.web.explorer import recall_models
from regard.web.explorer.catalog import Catalog
from regard.web.explorer.explorer import Explorer, find_query, unpack
from regard.web.explorer.recall_models import KINDS, RecallModel, draw_sequences
from regard.web.explorer.views import time as time_view
from regard.web.jobs import Cancelled, Job

TEXT = "2 hours and 5 minutes"
BODY = {"model": "phrases-gru", "text": TEXT, "to": "de"}
SEQUENCE = "fgCabehd"


@pytest.fixture(scope="module")
def explorer():
    return Explorer(Catalog(["phrases-gru", "phrases", "stdlib"], device="cpu"))


@pytest.fixture(scope="module")
def inputs(explorer):
    """Source, and target with its special tokens."""
    run = explorer.catalog.run("phrases-gru")
    pair = rg.data.Pair(TEXT, "2 Stunden und 5 Minuten", "de")
    ids = rg.data.pair_preprocessor(run.tokenizer)(pair)
    return torch.tensor([ids["source"]]), torch.tensor([ids["target"]])


@pytest.fixture(scope="module")
def compared(explorer):
    """The answer with models of three updates each: their numbers are tested, not their skill."""
    saved = recall_models.STEPS
    recall_models.STEPS = 3
    yield explorer.answer("time.compare", {"sequence": SEQUENCE, "seed": 5})
    recall_models.STEPS = saved


def test_only_recurrent_models_are_listed(explorer):
    assert explorer.answer("time.models", {}) == {"models": ["phrases-gru"]}


def test_strips_are_the_recorded_gates(explorer, inputs):
    model = explorer.catalog.run("phrases-gru").model
    with torch.no_grad(), record_gates(model) as gates:
        model(inputs[0], inputs[1][:, :-1])
    answer = explorer.answer("time", BODY | {"cell": "encoder.0.back"})
    step = gates["encoder.0.back"]
    strips = {s["name"]: unpack(s["values"]) for s in answer["strips"]}
    assert list(strips) == [
        "update gate z", "reset gate r", "candidate", "state h", "memory kept to the end",
    ]  # fmt: skip
    assert torch.equal(strips["update gate z"], step.z[0])
    assert torch.equal(strips["state h"], step.h[0])
    assert torch.equal(strips["memory kept to the end"], memory_retention(step)[0])
    assert answer["strips"][0]["mean"] == pytest.approx(step.z[0].mean(-1).tolist())
    assert answer["strips"][0]["low"] == pytest.approx(step.z[0].quantile(0.1, -1).tolist())
    assert [c["name"] for c in answer["cells"]] == list(gates)


def test_tokens_belong_to_the_side_of_the_cell(explorer):
    encoder, decoder = (
        explorer.answer("time", BODY | {"cell": cell}) for cell in ("encoder.0", "decoder.core.0")
    )
    assert encoder["tokens"] == ["2", " hours", " and", " ", "5", " minutes", "<end>"]
    assert decoder["tokens"][:3] == ["<de>", "2", " Stunden"]
    assert decoder["outputs"][-1] == "<end>"


def test_gradients_are_those_of_the_logit_of_one_output(explorer, inputs):
    model, (source, target) = explorer.catalog.run("phrases-gru").model, inputs
    answer = explorer.answer("time", BODY | {"position": 1})
    norms = gradient_norms(model, lambda: model(source, target[:, :-1])[0, 1, target[0, 2]])
    for name, states in norms.time.items():
        assert answer["gradients"][name]["h"] == pytest.approx(states.h[0].tolist())
        assert answer["gradients"][name]["rate"] == pytest.approx(states.rate)
    assert not any(answer["gradients"]["decoder.core.0"]["h"][2:])  # later states do not matter


def test_units_can_be_ordered_by_their_first_gate(explorer):
    answer = explorer.answer("time", BODY | {"order": "mean"})
    z = unpack(answer["strips"][0]["values"]).mean(0)
    means = z[answer["order"]]
    assert sorted(answer["order"]) == list(range(192))
    assert bool((means[:-1] >= means[1:]).all())


def test_the_table_has_a_row_per_step_and_unit(explorer):
    lines = explorer.csv(find_query("time"), BODY, Job()).splitlines()
    assert lines[0].startswith("cell,step,token,unit,update gate z")
    assert len(lines) == 1 + 7 * 192


def test_the_figure_has_one_panel_per_gate(explorer):
    draw = find_query("time").figure
    assert draw is not None
    titles = [axes.get_title() for axes in draw(explorer.answer("time", BODY)).axes]
    assert [t for t in titles if t][:2] == ["update gate z", "reset gate r"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "stdlib", "to": None}, "model: needs recurrent layers, got LanguageModel"),
        ({"cell": "encoder.7"}, "cell: needs one of encoder.0, encoder.0.back"),
        ({"text": "3 days and " * 100}, "text: needs at most 256 tokens"),
        ({"order": "random"}, "order: needs to be valid: input should be"),
    ],
)
def test_mistakes_are_named(explorer, change, message):
    with pytest.raises(RegardError, match=message):
        explorer.answer("time", BODY | change)


def test_four_kinds_read_the_same_letters(compared):
    assert [m["kind"] for m in compared["models"]] == list(KINDS)
    assert (compared["key"], compared["distance"]) == (2, 5)
    for model in compared["models"]:
        assert unpack(model["probabilities"]).sum(-1).tolist() == pytest.approx([1.0] * 8)
        assert model["right"][:2] == [None, None]
        assert len(model["reach"]) == 8
        assert min(model["reach"]) > 0
        assert all(0 <= x <= 1 for x in model["accuracy"])


def test_the_same_seed_trains_the_same_model(compared):
    first = recall_models.trained_model("gru", 5, Job()).model
    again = recall_models._train("gru", 5, Job()).model
    pairs = zip(first.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_reach_is_the_gradient_of_the_last_logit_by_each_letter():
    model = RecallModel("rnn").eval()
    tokens = recall_models.parse_sequence(SEQUENCE)
    reach = time_view.input_gradients(model, tokens, 2)
    x = model.embedding(tokens).detach().requires_grad_()
    (grad,) = torch.autograd.grad(model.head(model.layer(x)[0])[0, -1, 2], x)
    assert torch.allclose(reach, grad[0].norm(dim=-1))


def test_a_transformer_is_causal_and_shows_its_last_attention(compared):
    strip = compared["models"][-1]["strips"][0]
    assert unpack(strip["values"]).sum(0).tolist() == pytest.approx([1.0] * 4)  # 2 layers × 2 heads


def test_a_cancelled_training_stops_and_keeps_nothing():
    job = Job()
    job.cancel()
    with pytest.raises(Cancelled):
        recall_models.trained_model("lstm", 999, job)
    assert recall_models._trained.get(("lstm", 999)) is None


def test_sequences_have_one_capital_letter_at_the_drawn_distance():
    batch = draw_sequences(torch.Generator().manual_seed(0), 50, 20)
    capital = batch["tokens"] < 4
    assert capital.sum(-1).tolist() == [1] * 50
    assert torch.equal(19 - capital.int().argmax(-1), batch["distance"])
    assert torch.equal(batch["tokens"][capital], batch["labels"])


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        ("abc", "exactly one capital letter"),
        ("aBC", "exactly one capital letter"),
        ("aBz", "needs letters of ABCD and abcdefgh, got 'z'"),
        (" ", "needs letters of ABCD and abcdefgh, got none"),
        ("A" + "b" * 64, "at most 64 letters, got 65"),
    ],
)
def test_sequences_are_checked(explorer, sequence, message):
    with pytest.raises(RegardError, match=message):
        explorer.answer("time.compare", {"sequence": sequence})
