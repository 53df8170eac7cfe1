"""Edits of linear mixers on transformers models: each equals the layer with its term changed."""

import glob
from dataclasses import replace

import pytest
import torch
from edit_calls import MIXER_EDITS
from hybrids import make_hybrid, token_ids
from torch.testing import assert_close

import regard as rg
from regard.errors import LookError, RegardError, ShapeError
from regard.ops.mixers import mix

IDS = token_ids()
NAME = "model.layers.0.linear_attn"


def run(model, *edits, ids=IDS):
    with torch.no_grad(), rg.look(model) as sight, rg.what_if(model, *edits):
        logits = model(ids).logits
    return sight, logits


@pytest.fixture(scope="module")
def model():
    return make_hybrid("qwen3_next")


@pytest.fixture(scope="module")
def plain(model):
    return run(model)[0][NAME]


def in_head(m, head, field, value):
    x = getattr(m, field).clone()
    x[:, head] = value if isinstance(value, float) else value[:, head]
    return replace(m, **{field: x})


def written_out(name, m):
    """The mixer of MIXER_EDITS, changed by hand."""
    if name == "scale_decay":
        return in_head(m, 0, "log_decay", 0.5 * m.log_decay)
    if name == "freeze_decay":
        return in_head(m, 0, "log_decay", float(torch.tensor(0.5).log()))
    if name == "scale_write":
        return in_head(m, 0, "beta", 2 * m.beta)
    if name == "freeze_write":
        return in_head(m, 0, "beta", 0.5)
    if name == "drop_write":
        beta = m.beta.clone()
        beta[:, 0, 1] = 0
        return replace(m, beta=beta)
    log_decay = m.log_decay.clone()
    log_decay[:, :, 1] = -1e4  # reset_state
    return replace(m, log_decay=log_decay)


@pytest.mark.parametrize("name", sorted(set(MIXER_EDITS) - {"patch_state"}))
def test_an_edit_is_the_layer_with_its_term_changed(name, model, plain):
    sight, logits = run(model, getattr(rg.edit, name)(**MIXER_EDITS[name]))
    expected = mix(written_out(name, plain.mixer)).out
    assert (expected - plain.out).abs().max() > 1e-3 * plain.out.abs().max()  # it does something
    assert_close(sight[NAME].out, expected, rtol=1e-4, atol=1e-5)
    assert not torch.equal(logits, run(model)[1])


def test_the_state_of_another_run_is_that_from_which_later_tokens_go_on(model, plain):
    other, _ = run(model, ids=token_ids().flip(1))
    edit = rg.edit.patch_state(glob.escape(NAME), other, 4)
    with torch.no_grad(), rg.what_if(model, edit), rg.look(model) as sight:
        model(IDS)
    first, second = sight.skipped, sight.mixers
    assert not second
    assert "differs from the recorded mixer" in first[NAME]  # the look is inside the edit
    sight, _ = run(model, edit)
    before, after = sight.calls(NAME)
    assert_close(before.out, plain.out[:, :, :5])
    assert_close(after.mixer.state, other[NAME].state(4), rtol=1e-4, atol=1e-6)
    rest = {n: getattr(plain.mixer, n)[:, :, 5:] for n in ("q", "k", "v", "log_decay", "beta")}
    expected = mix(replace(plain.mixer, **rest, state=other[NAME].state(4))).out
    assert_close(after.out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["qwen3_next", "mamba2", "lfm2", "minimax", "jamba"])
@pytest.mark.parametrize("edit", ["drop_write", "scale_write", "reset_state", "scale_decay"])
def test_an_edited_generation_is_the_edited_model_on_the_whole_text(kind, edit):
    model = make_hybrid(kind)
    given = MIXER_EDITS[edit] | {"mixer": "*"}
    if kind == "lfm2" and edit != "drop_write":
        with pytest.raises(LookError, match="got model.layers.0.conv, a convolution"):
            run(model, getattr(rg.edit, edit)(**given))
        return
    if edit == "drop_write":
        given["tokens"] = 10  # the last of the prompt, which a step's convolution still reads
    with torch.no_grad(), rg.what_if(model, getattr(rg.edit, edit)(**given)):
        out = model.generate(
            IDS, max_new_tokens=4, min_new_tokens=4, do_sample=False, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        whole = model(out.sequences[:, :-1], use_cache=False).logits[:, 10:]
    assert_close(torch.stack(out.logits, 1), whole, rtol=1e-3, atol=1e-3)


def test_edits_that_do_nothing_leave_the_output_as_it_is(model):
    want = run(model)[1]
    for edit in (rg.edit.scale_decay("*", 1.0), rg.edit.scale_write("*", 1.0)):
        assert_close(run(model, edit)[1], want, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("users_view")
def test_edits_that_match_nothing_or_cannot_act_are_refused_in_one_line(model):
    cases = [
        (rg.edit.drop_write("*.self_attn", 0), "mixer: needs a linear mixer that ran"),
        (rg.edit.drop_write("*", 11), "tokens: needs less than 11, the number of tokens, got 11"),
        (rg.edit.scale_decay("*", 2.0, heads=4), "heads: needs"),
        (rg.edit.drop_head("*.linear_attn", 0), "site: needs an attention that ran"),
    ]
    for edit, message in cases:
        with pytest.raises(RegardError, match=message):
            run(model, edit)
    with pytest.raises(ShapeError, match="decay: needs 0 to 1, got 1.5; try scale_decay"):
        rg.edit.freeze_decay("*", 1.5)
    with pytest.raises(LookError, match="source: needs a sight or a linear mixer"):
        rg.edit.patch_state("*", 3, 0)  # pyright: ignore[reportArgumentType]
    own = rg.models.LanguageModel(rg.models.language_tiny(vocab=50)).eval()
    nothing = pytest.raises(LookError, match="mixer: needs a linear mixer that ran")
    with nothing, rg.what_if(own, rg.edit.drop_write("*", 0)):
        own(IDS)
