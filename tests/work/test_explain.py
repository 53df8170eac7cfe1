"""One weight of a model, worked step by step: the model's numbers, for ours and Hugging Face's."""

import json

import pytest
import torch
import transformers
from typer.testing import CliRunner

import regard as rg
from regard import work
from regard.cli import app
from regard.errors import ShapeError, WorkError
from regard.work.show.formats import FORMATS, as_html


def last(told, name):
    return float(told[name][0, 0])


def near(told, site, head, query, key, batch=0):
    """The steps lead to the weight of the map and to the share of the output."""
    want = site.weights()[batch, head, query, key].item()
    assert last(told, "w") == pytest.approx(want, abs=2e-6)
    own = head // (site.heads // site.k.shape[1])
    at = [int(n) for n in told["g"]]
    share = want * site.v[batch, own, key][at]
    assert [float(x) for x in told["c"]] == pytest.approx(share.tolist(), abs=1e-5)
    assert told.recompute() == told.values()


# ---- worked numbers


def test_two_tokens_by_hand():
    site = rg.make_site(torch.eye(2), torch.eye(2), tokens=["a", "b"], scale=1.0)
    told = rg.explain(site, head=0, query=0, key=1)
    assert told.title == "attention, head 0: query 0 'a' gives key 1 'b' the weight 0.268941"
    assert last(told, "d") == 0
    assert last(told, "w") == pytest.approx(1 / (1 + torch.e))
    assert str(told).startswith(told.title)
    assert "Rank 2 of 2" in told.remarks[0]
    share = 0.268941**2 / (0.731059**2 + 0.268941**2)  # of (0, .27) along (.73, .27)
    assert told.remarks[-1].startswith(f"This key contributes {share:.1%} of the output")


def test_the_largest_terms_come_first_and_the_rest_is_summed():
    q = torch.tensor([[1.0, 2.0, 3.0, 4.0, 0.5, 0.1]])
    told = rg.explain(rg.make_site(q, q), 0, 0, 0, max_terms=2)
    assert list(told["f"]) == [3, 2]
    assert [float(x) for x in told["P"]] == [16, 9]
    assert float(told["rest"][0]) == pytest.approx(1 + 4 + 0.25 + 0.01)
    assert last(told, "d") == pytest.approx(float((q * q).sum()))


def test_bias_mask_softcap_and_sinks_are_steps():
    q = torch.randn(2, 3, 4, dtype=torch.float64)
    bias = torch.randn(3, 3, dtype=torch.float64)
    sinks = torch.tensor([0.5, 1.0], dtype=torch.float64)
    site = rg.make_site(q, q, mask=rg.Causal(), bias=bias, softcap=5.0, sinks=sinks)
    told = rg.explain(site, 1, 2, 0)
    assert [step.name for step in told.steps] == ["P", "d", "s", "z", "t", "r", "w", "c"]
    near(told, site, 1, 2, 0)
    sink = torch.exp(sinks[1] - site.lse[0, 1, 2]).item()
    remark = f"A sink takes {sink:.4g} of this query's weight and adds nothing to the output."
    assert remark in told.remarks
    hidden = rg.explain(site, 1, 0, 2)
    assert last(hidden, "w") == 0
    assert "The mask hides this key" in str(hidden)


def test_a_score_of_the_callers_own_has_no_products():
    q = torch.randn(3, 4)
    site = rg.make_site(
        q, q, score=lambda q, k: -(q[..., :, None, :] - k[..., None, :, :]).norm(dim=-1)
    )
    told = rg.explain(site, 0, 1, 2)
    assert [step.name for step in told.steps] == ["w", "c"]
    near(told, site, 0, 1, 2)


# ---- models


def test_a_translator_and_the_way_out_through_its_projection():
    model = rg.models.Translator(rg.models.translator_tiny(vocab=10)).eval()
    with rg.look(model) as sight:
        model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]]))
    site = sight["decoder.1.cross"]
    w_out = rg.inspection.output_projection(model, site)
    told = rg.explain(site, head=1, query=-1, key=-1, w_out=w_out)
    near(told, site, 1, 1, 2)
    sent = site.weights()[0, 1, 1, 2] * site.v[0, 1, 2] @ w_out[1]
    at = [int(n) for n in told["n"]]
    assert [float(x) for x in told["y"]] == pytest.approx(sent[at].tolist(), abs=1e-5)


def tiny(kind, **more):
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=20, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, **more
    )  # fmt: skip
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.mark.parametrize(("kind", "more"), [
    ("Llama", {}),
    ("Mistral", {"sliding_window": 3}),
    ("Gemma2", {"head_dim": 4, "attn_logit_softcapping": 3.0, "layer_types": ["full_attention"]}),
])  # fmt: skip
def test_hugging_face_models_with_grouped_heads_windows_and_caps(kind, more):
    model = tiny(kind, **more)
    with rg.look(model) as sight:
        model(torch.tensor([[1, 2, 3, 4, 5, 6]]))
    site = sight.sites[0]
    told = rg.explain(
        site, head=3, query=5, key=4, w_out=rg.inspection.output_projection(model, site)
    )
    near(told, site, 3, 5, 4)
    assert last(rg.explain(site, 3, 2, 4), "w") == 0
    if kind == "Mistral":
        assert last(rg.explain(site, 3, 5, 1), "w") == 0
    if kind == "Gemma2":
        assert "z" in told.values()


# ---- it is a solution


def test_it_prints_in_every_way_and_is_data():
    site = rg.make_site(torch.randn(3, 8), torch.randn(3, 8), tokens=["<b>", "&", "c"])
    told = rg.explain(site, 0, 0, 2)
    for form in FORMATS:
        assert "w" in work.format_solution(told, form)
    assert "<b>" not in told._repr_html_()
    assert "head 0: query 0 &#x27;&lt;b&gt;&#x27; gives" in as_html(told)
    assert told._repr_markdown_().startswith("# attention, head 0")
    data = json.loads(json.dumps(told.to_json()))
    assert data["title"] == told.title
    assert [step["name"] for step in data["steps"]] == ["P", "d", "s", "w", "c"]
    assert max(len(line) for line in str(told).splitlines()) < 110


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_what_cannot_be_explained_is_said():
    site = rg.make_site(torch.eye(2), torch.eye(2))
    with pytest.raises(WorkError, match="max_terms: needs 1 to 16 terms, got 0"):
        rg.explain(site, 0, 0, 0, max_terms=0)
    with pytest.raises(ShapeError, match="key: needs less than 2, got 5"):
        rg.explain(site, 0, 0, 5)
    with pytest.raises(ShapeError, match="w_out: needs"):
        rg.explain(site, 0, 0, 0, w_out=torch.eye(2))


def test_the_command_tells_one_weight(tmp_path):
    run = CliRunner()
    told = ["look", "phrases", "14 May 2024", "--to", "de"]
    shown = run.invoke(app, [*told, "--at", "decoder.1.cross", "--cell", "0,2,1"])
    assert shown.exit_code == 0, shown.output
    assert "query 2 '.' gives key 1 ' may' the weight 0.99" in shown.output
    assert "after the output projection" in shown.output
    several = run.invoke(app, [*told, "--cell", "0,2,1"])
    assert (several.exit_code, "at: needs one attention" in several.output) == (2, True)
    odd = run.invoke(app, [*told, "--at", "decoder.1.cross", "--cell", "0,2"])
    assert (odd.exit_code, "cell: needs a head, a query and a key" in odd.output) == (2, True)


def test_the_command_tells_maps_in_words_and_where_a_token_looks():
    run = CliRunner()
    told = ["look", "phrases", "14 May 2024", "--to", "de", "--at", "decoder.1.cross"]
    words = run.invoke(app, [*told, "--describe"])
    assert words.exit_code == 0, words.output
    assert words.output.splitlines()[0].startswith("decoder.1.cross, head 0: <de> looks at 14")
    shown = run.invoke(app, [*told, "--query", "2"]).output.splitlines()
    assert shown[0] == "query 2: '.'"
    assert shown[1].split("  ")[0] == "attention, head"
    assert all("' may'" in line.split("  ")[1] for line in shown[2:])  # every head, once trained
    assert not all("' may'" in line.split("  ")[-1].split(",")[0] for line in shown[2:])
    far = run.invoke(app, [*told, "--query", "99"])
    assert (far.exit_code, "query: needs less than 7" in far.output) == (2, True)
