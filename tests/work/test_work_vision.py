"""A Vision Transformer by hand against the model: patches, tokens, blocks, head."""

import random
from typing import Any

import pytest
import sympy
import torch
from by_hand import floats
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import regard as rg
from regard import work
from regard.errors import RegardError
from regard.models import VisionConfig, VisionTransformer
from regard.work.families.vision import interpolation_weights, solve_position_resize, solve_vit
from regard.work.marking.findings import first_wrong
from regard.work.rules import M, get_rule

ONE = [[1, 0], [0, 1]]
TINY = {"image": ONE, "W_E": [[1, 0]] * 4, "cls": [[0, 1]], "pos": [[0, 0]] * 2,
        "W_1": ONE, "W_2": ONE, "W_H": ONE}  # fmt: skip


def some(seed):
    chance = random.Random(seed)
    return lambda rows, columns: [
        [f"{chance.randint(-4, 4)}/2" for _ in range(columns)] for _ in range(rows)
    ]


# ---- worked numbers


def test_patches_are_row_major_after_the_class_token():
    worked = work.solve(work.read_problem("vit"))
    assert worked["T"] == M([[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0], [2, 0, 0, 2]])
    assert worked["X_c"].row(0) == worked["cls"]
    assert worked["x"] == worked["LN_f"].row(0)
    assert worked.remarks[0].startswith("The prediction is class 1, with probability 0.8346")


def test_a_table_of_the_same_size_stays_as_it_is():
    worked = solve_position_resize(
        {"pos": [[9], [1], [2], [3], [4]]}, old_grid=[2, 2], new_grid=[2, 2]
    )
    assert worked["R"] == sympy.eye(4)
    assert worked["pos_new"] == worked["pos"]
    assert "R is the identity" in worked.remarks[0]


# ---- properties


@pytest.mark.parametrize(("old", "new"), [((2, 2), (3, 3)), ((3, 2), (2, 5)), ((4, 4), (1, 3))])
def test_resized_positions_match_the_op(old, new):
    table = some(old[0])(1 + old[0] * old[1], 2)
    worked = solve_position_resize({"pos": table}, old_grid=list(old), new_grid=list(new))
    want = rg.ops.interpolate_positions(floats(worked["pos"]), old, new)
    torch.testing.assert_close(floats(worked["pos_new"]), want, rtol=1e-9, atol=1e-9)
    image = torch.eye(4, dtype=torch.float64)[None]
    straight = torch.nn.functional.interpolate(image, size=7, mode="linear", align_corners=False)
    torch.testing.assert_close(floats(interpolation_weights(4, 7, "linear")), straight[0].T)


@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(st.integers(0, 10**6), st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.booleans())
def test_a_vision_transformer_matches_the_model(seed, layers, channels, hidden):
    draw = some(seed)
    told = {f"image_{n + 1}": draw(4, 4) for n in range(channels)}
    told |= {"W_E": draw(4 * channels, 4), "cls": draw(1, 4), "pos": draw(5, 4), "W_H": draw(4, 3)}
    for own in ("", "_L2")[:layers]:
        told |= {f"W_{one}{own}": draw(4, 4) for one in "QKVO"}
        told |= {f"W_1{own}": draw(4, 3), f"W_2{own}": draw(3, 4), f"gamma_2{own}": draw(1, 4)}
    if hidden:
        told["W_P"] = draw(4, 4)
    worked = solve_vit(told, heads=2, layers=layers, activation="gelu", eps="1/1000000")
    config = VisionConfig(
        classes=3, image_size=4, patch_size=2, channels=channels, layers=layers, dim=4, heads=2,
        ffn_dim=3, head="mlp" if hidden else "linear",
    )  # fmt: skip
    model: Any = VisionTransformer(config).double()
    with torch.no_grad():
        for name, one in model.named_parameters():
            if name.endswith("bias"):
                one.zero_()
        linear = torch.nn.Linear(4 * channels, 4, bias=False, dtype=torch.float64)
        linear.weight.copy_(floats(worked["W_E"]).T)
        model.patches.load_state_dict(
            rg.nn.PatchEmbedding.from_linear(linear, channels).state_dict()
        )
        model.cls.token.copy_(floats(worked["cls"])[0])
        model.positions.copy_(floats(worked["pos"]))
        for block, own in zip(model.encoder.blocks, ("", "_L2"), strict=False):
            attention, feed = block.self_attention, block.feed_forward
            maps = (attention.to_q, attention.to_k, attention.to_v, attention.to_out,
                    feed.to_hidden, feed.to_out)  # fmt: skip
            for letter, to in zip("QKVO12", maps, strict=True):
                to.weight.copy_(floats(worked[f"W_{letter}{own}"]).T)
            block.feed_forward_residual.norm.gain.copy_(floats(worked[f"γ_2{own}"])[0])
        model.head.weight.copy_(floats(worked["W_H"]).T)
        if hidden:
            model.pre_logits.weight.copy_(floats(worked["W_P"]).T)
        images = torch.stack([floats(worked[f"image_{n + 1}"]) for n in range(channels)])
        logits = model(images[None])
    torch.testing.assert_close(floats(worked["l"]), logits, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(floats(worked["p"]), logits.softmax(-1), rtol=1e-9, atol=1e-9)


def test_a_table_for_another_size_is_resized_on_the_way():
    wide = TINY | {"image": [[1, 0, 0, 1], [0, 1, 1, 0]]}
    worked = solve_vit(wide)
    assert worked["pos_new"].rows == 3
    assert worked.recompute() == worked.values()


# ---- answers


@pytest.mark.parametrize(
    "slip", ["each patch was read column by column", "patches were counted down the columns first"]
)
def test_slips_of_patches_are_recognised(slip):
    worked = solve_vit(TINY | {"image": [[1, 2, 3, 4], [5, 6, 7, 8], [9, 1, 2, 3], [4, 5, 6, 7]],
                              "pos": [[0, 0]] * 5})  # fmt: skip
    found = get_rule("patches of 2").mistakes[slip](worked["image"])
    wrong = first_wrong(work.check_answers(worked, {"T": found.tolist()}))
    assert wrong is not None
    assert wrong.diagnosis == slip


# ---- errors


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("changes", "choices", "message"),
    [
        ({}, {"patch_size": 3}, "needs rows and columns in multiples of the patch size 3"),
        ({"image": None}, {}, "given: needs image, or image_1"),
        ({"W_H": None}, {}, "given: needs W_H for the family vit"),
        ({"pos": [[0, 0]] * 4}, {}, "pos: needs 1 row for the class token and a square number"),
        (
            {"pos": [[0, 0]] * 5},
            {"interpolation": "sinc"},
            "interpolation: needs cubic or linear, got 'sinc'",
        ),
        ({}, {"layers": 99}, "layers: needs at most 12 by hand, got 99"),
        ({}, {"layers": 0}, "layers: needs a whole number from 1 on, got 0"),
        ({"W_1_L2": ONE}, {"layers": 2}, "given: needs W_2_L2 too"),
    ],
)
def test_pictures_that_cannot_be_worked_raise(changes, choices, message):
    with pytest.raises(RegardError, match=message):
        solve_vit(TINY | changes, **choices)


@pytest.mark.usefixtures("users_view")
def test_grids_that_do_not_fit_raise():
    with pytest.raises(RegardError, match="pos: needs 1 . 3 · 3 rows for this grid, got 2"):
        solve_position_resize({"pos": ONE}, old_grid=[3, 3], new_grid=[2, 2])
    with pytest.raises(RegardError, match="old_grid: needs two numbers, patches down and across"):
        work.solve(
            {"family": "position-resize", "given": {"pos": ONE}, "old_grid": 3, "new_grid": [2, 2]}
        )
