"""Edits inside whole models: where they act, what follows, and what the report contains."""

import pytest
import torch
from torch.testing import assert_close

import regard as rg
from regard import models
from regard.errors import ConfigError, LookError, ShapeError


@pytest.fixture
def language():
    config = models.language_tiny(vocab=12, layers=3, kv_heads=2, rope_theta=10000.0)
    return models.LanguageModel(config).eval()


@pytest.fixture
def translator():
    return models.Translator(models.translator_tiny(vocab=12)).eval()


TOKENS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 1]])


def test_nothing_changes_before_an_edited_layer_and_everything_may_after(language):
    with rg.look(language) as before:
        language(TOKENS)
    with rg.look(language) as after, rg.what_if(language, rg.edit.drop_head("decoder.1.self", 2)):
        language(TOKENS)
    for name in ("decoder.0.self", "decoder.1.self"):
        assert_close(after[name].q, before[name].q, rtol=0, atol=0)
    assert (after["decoder.2.self"].q - before["decoder.2.self"].q).abs().max() > 1e-4


def test_dropping_a_head_equals_zeroing_its_output_weights(language):
    with rg.what_if(language, rg.edit.drop_head("decoder.1.self", 2)):
        got = language(TOKENS)
    with torch.no_grad():
        language.decoder.blocks[1].self_attention.to_out.weight[:, 32:48] = 0
    assert_close(got, language(TOKENS))


def test_dropping_a_key_in_every_layer_equals_padding(translator):
    source, target = TOKENS, TOKENS[:, :3]
    lengths = torch.tensor([4, 4])
    with rg.what_if(
        translator, rg.edit.drop_key("encoder.*", 4), rg.edit.drop_key("*.cross", 4)
    ) as edited:
        got = translator(source, target)
    assert_close(got, translator(source, target, lengths))
    assert list(edited.applied_calls[1]) == ["decoder.0.cross", "decoder.1.cross"]


def test_an_outer_look_records_the_edited_map(language):
    edits = rg.edit.drop_key("*.0.self", 1), rg.edit.uniform("*.2.self")
    with rg.look(language) as sight, rg.what_if(language, *edits):
        language(TOKENS)
    assert (sight["decoder.0.self"].weights()[..., 1] == 0).all()
    flat = sight["decoder.2.self"].weights()[0, 0]
    assert_close(flat, torch.ones(5, 5).tril() / torch.arange(1.0, 6)[:, None])


def test_edits_act_in_the_order_given(language):
    """Harder than flat is flat: all are ties. Flatter than hard is the same map."""
    site = "decoder.0.self"
    with rg.what_if(language, rg.edit.uniform(site), rg.edit.hardmax(site)):
        flat_first = language(TOKENS)
    with rg.what_if(language, rg.edit.uniform(site)):
        assert_close(flat_first, language(TOKENS))
    with rg.what_if(language, rg.edit.hardmax(site), rg.edit.uniform(site)):
        hard_first = language(TOKENS)
    with rg.what_if(language, rg.edit.hardmax(site)):
        assert_close(hard_first, language(TOKENS))


def test_patched_values_carry_the_prediction_of_the_other_run(language):
    """With all values, queries and keys of a site from the other run, the rest follows it."""
    other = torch.tensor([[5, 4, 3, 2, 1], [1, 1, 2, 2, 3]])
    with rg.look(language) as sight:
        want = language(other)
    with rg.what_if(language, rg.edit.patch("*", sight, "out")):
        got = language(TOKENS)
    with rg.what_if(
        language, *(rg.edit.patch("*", sight, w) for w in ("values", "keys", "queries"))
    ):
        assert_close(language(TOKENS), got)
    assert not torch.allclose(want, language(TOKENS), atol=1e-3)
    with rg.what_if(language, rg.edit.patch("*", sight, "out")):
        assert_close(language(other), want)


def test_each_call_is_patched_from_the_same_call_of_the_other_run(language):
    with rg.look(language) as sight:
        want = language(TOKENS), language(TOKENS.flip(1))
    with rg.what_if(language, rg.edit.patch("*", sight, "out")):
        assert_close((language(TOKENS), language(TOKENS.flip(1))), want)


def test_attention_outside_the_model_is_unchanged(language):
    q = torch.randn(1, 3, 4)
    with rg.what_if(language, rg.edit.drop_head("*", 0)):
        language(TOKENS)
        assert rg.attend(q, q, q)[0].abs().sum() > 0


def test_the_report_has_the_numbers_of_two_runs(language):
    labels = TOKENS.roll(-1, 1)
    labels[:, -1] = -100
    edit = rg.edit.scale_scores("*", 4.0)
    change = rg.inspection.compare_edits(language, TOKENS, edit, labels=labels)
    with torch.no_grad():
        before = language(TOKENS)
        with rg.what_if(language, edit):
            after = language(TOKENS)
    assert_close(change.delta, after - before)
    p, new = before.log_softmax(-1), after.log_softmax(-1)
    want = torch.nn.functional.kl_div(new, p, log_target=True, reduction="none").sum(-1)
    assert_close(change.kl, want, atol=1e-6, rtol=1e-4)
    at = (slice(None), slice(0, 4))
    rise = (p - new)[at].gather(-1, labels[at][..., None])[..., 0]
    assert_close(change.loss, rise.flatten())
    assert f"loss {change.loss.mean():+.4f}" in repr(change)
    ids, share, _, _ = change.top(2)
    assert_close(ids[..., 0], before.argmax(-1))
    assert_close(share[..., 0], p.exp().amax(-1))
    assert_close(change.argmax_changed, before.argmax(-1) != after.argmax(-1))


def test_the_report_prints_its_most_changed_positions(language):
    change = rg.inspection.compare_edits(
        language,
        (TOKENS,),
        rg.edit.hardmax("*"),
        labels=TOKENS,
        id_to_token="abcdefghijkl".__getitem__,
    )
    edits, summary, header, *rows = str(change).splitlines()
    assert edits == "hardmax('*')"
    assert summary.startswith(
        f"KL {change.kl.mean():.4f} on average, {change.kl.max():.4f} at most"
    )
    assert header.split() == ["position", "KL", "before", "after", "max", "|Δlogit|", "Δloss"]
    assert len(rows) == 10
    place = int(change.kl.argmax())
    assert [r.split()[:2] for r in rows] == [[str(b), str(i)] for b in (0, 1) for i in range(5)]
    (row,) = [r for r in rows if r.startswith(f"{place // 5} {place % 5} ")]
    assert f"{change.kl.max():.4f}" in row
    assert "abcdefghijkl"[int(change.before.flatten(0, 1)[place].argmax())] in row


def test_a_classifier_has_one_prediction_per_sequence():
    model = models.Classifier(models.classifier_tiny(vocab=12, classes=3)).eval()
    change = rg.inspection.compare_edits(
        model, {"tokens": TOKENS}, rg.edit.uniform("*"), labels=torch.tensor([0, 2])
    )
    assert change.kl.shape == (2,)
    assert "loss" in str(change)


@pytest.mark.usefixtures("users_view")
def test_an_edit_without_a_match_raises(language):
    with (
        pytest.raises(LookError, match="site: needs an attention that ran, got 'decoder.1.cross'"),
        rg.what_if(language, rg.edit.drop_head("decoder.1.cross", 0)),
    ):
        language(TOKENS)
    with (
        pytest.raises(ShapeError, match="keys: needs less than 5, the number of keys, got 5"),
        rg.what_if(language, rg.edit.drop_key("*", 5)),
    ):
        language(TOKENS)
    with (
        pytest.raises(LookError, match="model: needs to run inside what_if, got no attention"),
        rg.what_if(language, rg.edit.uniform("*")),
    ):
        pass


@pytest.mark.usefixtures("users_view")
def test_invalid_comparisons_raise(language):
    with pytest.raises(ConfigError, match="model: needs eval mode, .* try model.eval"):
        rg.inspection.compare_edits(language.train(), TOKENS, rg.edit.uniform("*"))
    language.eval()
    with pytest.raises(ShapeError, match=r"labels: needs one per position, \(2, 5\), got"):
        rg.inspection.compare_edits(language, TOKENS, rg.edit.uniform("*"), labels=TOKENS[:, 1:])
    with rg.look(language) as sight, rg.what_if(language, rg.edit.uniform("*")):
        language(TOKENS)
    sight.sites.pop(1)
    with (
        pytest.raises(LookError, match="source: needs call 0 of 'decoder.1.self', got decoder.0"),
        rg.what_if(language, rg.edit.patch("*", sight)),
    ):
        language(TOKENS)
