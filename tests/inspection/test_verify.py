"""`verify` finds nothing wrong with a sound library, and each planted error."""

import pytest
import torch
import transformers

import regard as rg
from regard.inspection.sites.site import Site
from regard.inspection.verification import checks

IDS = torch.tensor([[3, 9, 4, 30, 7, 2]])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=24, initializer_range=0.2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def test_a_sound_model_passes_every_check(model):
    found = rg.inspection.verify(model, {"input_ids": IDS})
    assert found.passed
    assert {r.status for r in found.results} == {"ok"}
    assert len(found.results) == len(checks.CHECKS)
    assert "largest error" in repr(found)
    assert model.config._attn_implementation == "sdpa"


def test_what_does_not_apply_is_named():
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=24,
    )  # fmt: skip
    found = rg.inspection.verify(transformers.BertForMaskedLM(config).eval(), {"input_ids": IDS})
    by_name = {r.name: r for r in found.results}
    assert found.passed
    assert by_name["maps"].status == "ok"
    assert by_name["logit attribution"].status == "not applicable"
    assert "got a BertForMaskedLM whose head" in by_name["logit attribution"].reason


def test_a_wrong_map_is_found(model, monkeypatch):
    right = Site.window

    def wrong(self, *args, **kwargs):
        return right(self, *args, **kwargs) + 1e-3

    monkeypatch.setattr(Site, "window", wrong)
    found = {r.name: r.status for r in rg.inspection.verify(model, {"input_ids": IDS}).results}
    assert found["maps"] == found["survey"] == "wrong"
    assert found["output"] == "ok"


def test_a_wrong_edit_and_a_wrong_attribution_are_found(model, monkeypatch):
    edit = checks.drop_head
    monkeypatch.setattr(checks, "drop_head", lambda site, head: edit(site, 0))
    split = checks.logit_attribution
    monkeypatch.setattr(
        checks,
        "logit_attribution",
        lambda *args, **kwargs: rg.inspection.LogitAttribution(
            2.0, split(*args, **kwargs).parts, 0.0
        ),
    )
    found = {r.name: r.status for r in rg.inspection.verify(model, {"input_ids": IDS}).results}
    assert found["edits"] == found["logit attribution"] == "wrong"


def test_command_on_a_folder(model, tmp_path, capsys):
    from typer.testing import CliRunner

    from regard.cli import app

    model.save_pretrained(tmp_path / "hub")
    result = CliRunner().invoke(app, ["verify", str(tmp_path / "hub"), "--text", "3 9 4 30 7"])
    assert result.exit_code == 0, result.output
    assert "split score" in result.output
    result = CliRunner().invoke(app, ["verify", str(tmp_path / "nowhere")])
    assert result.exit_code == 2
