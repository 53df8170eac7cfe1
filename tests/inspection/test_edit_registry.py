"""Edits are declared once: text, page and command line read what their signatures say."""

import pytest
import torch
from edit_calls import ACTIVATION_EDITS, EXPERT_EDITS, MIXER_EDITS
from edit_calls import EDITS as CALLS

import regard as rg
from regard.errors import RegardError
from regard.inspection import edit
from regard.inspection.edits.base import Edit
from regard.inspection.edits.registry import EDITS, Range, parse_edits, register_edit


def test_every_edit_is_registered():
    assert set(EDITS) == set(edit.__all__) - {"Edit", "ActivationEdit"}


@pytest.mark.parametrize("name", [x.name for x in EDITS.values() if x.has_text])
def test_an_edit_written_as_text_is_that_edit(name):
    calls = CALLS | MIXER_EDITS | ACTIVATION_EDITS | EXPERT_EDITS
    made = getattr(edit, name)(**calls[name])
    (call,) = parse_edits(repr(made))
    assert repr(call.make()) == repr(made)
    (again,) = parse_edits(f"rg.edit.{made!r}")
    assert again.to_dict() == call.to_dict()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("drop_head('*',", "edits: needs calls such as"),
        ("1 + 1", "edits: needs calls such as"),
        ("(" * 5000, "edits: needs calls such as"),
        ("uniform('*');" * 300, "edits: needs at most 200, got 300"),
        ("x" * 30_000, "edits: needs at most 20000 characters"),
        ("drop_heads('*', 0)", "edits: needs a known edit, got 'drop_heads'; try drop_head"),
        ("patch('*', 1)", "got 'patch'; it takes a tensor or a sight, try rg.what_if"),
        ("drop_head(__import__('os'), 0)", "an argument is no plain value"),
        ("drop_head('*')", "missing a required argument: 'heads'"),
        ("drop_head('*', 0, sigma=1)", "unexpected keyword argument 'sigma'"),
        ("drop_key('*', -1)", "keys: needs"),
        ("scale_scores('*', 'a')", "factor: needs a finite number"),
    ],
)
@pytest.mark.usefixtures("users_view")
def test_text_that_is_no_edit_is_refused(text, message):
    with pytest.raises(RegardError, match=message):
        parse_edits(text)


def test_an_edit_that_is_registered_is_everywhere():
    from regard.web.explorer.edits import list_edit_types

    try:

        @register_edit(factor=Range(0, 2, 1))
        def scale_values(site: str, factor: float) -> Edit:
            """Multiply all values."""

            def apply(call, proceed, caller):
                out, lse = proceed(call)
                return factor * out, lse

            return Edit(site, f"scale_values({site!r}, {factor})", apply)

        (call,) = parse_edits("scale_values('*', 0.0)")
        layer = rg.nn.MultiHeadAttention(4, 2, qkv_bias=False)
        with rg.what_if(layer, call.make()):
            assert not layer(torch.randn(1, 3, 4)).any()
        (control,) = [x for x in list_edit_types() if x["edit"] == "scale_values"]
        assert control["meaning"] == "Multiply all values."
        assert control["parameters"][0]["range"] == [0, 2, 1]
    finally:
        EDITS.pop("scale_values")


def test_a_number_without_a_range_is_no_edit():
    with pytest.raises(TypeError, match="factor: needs a Range"):

        @register_edit()
        def scale_values(site: str, factor: float) -> Edit: ...  # pyright: ignore
