"""Whole blocks by hand against the layers: layer norm, feed-forward, encoder, decoder."""

import random
import time

import pytest
import sympy
import torch
import torch.nn.functional as F
from by_hand import cells, floats
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import regard as rg
from regard import work
from regard.errors import RegardError
from regard.work.families.block import (
    solve_decoder,
    solve_encoder,
    solve_feed_forward,
    solve_layer_norm,
)
from regard.work.marking.findings import first_wrong
from regard.work.rules import M, get_rule
from regard.work.solution import ROUNDING_NOTE

small = st.fractions(-2, 2, max_denominator=2).map(str)


def assert_near(value, want):
    torch.testing.assert_close(floats(value), want, rtol=1e-9, atol=1e-9)


def some(seed):
    """Cells by a seed: to draw hundreds of fractions one by one takes hypothesis minutes."""
    chance = random.Random(seed)
    return lambda rows, columns: [
        [f"{chance.randint(-4, 4)}/2" for _ in range(columns)] for _ in range(rows)
    ]


seeds = st.integers(0, 10**6)


def load(layer, worked, weight):
    """The numbers of a solution in a linear layer, whose matrix stands the other way round."""
    bias = f"b{weight[1:]}" if weight[0] == "W" else f"b_{weight}"
    with torch.no_grad():
        layer.weight.copy_(floats(worked[weight]).T)
        layer.bias.copy_(floats(worked[bias])[0] if bias in worked.given else torch.zeros(()))


def load_attention(layer, worked, letter):
    for name, to in zip("QKVO", (layer.to_q, layer.to_k, layer.to_v, layer.to_out), strict=True):
        load(to, worked, f"{letter}_{name}")


def load_norm(residual, worked, n):
    with torch.no_grad():
        for name, one in ((f"γ_{n}", residual.norm.gain), (f"β_{n}", residual.norm.bias)):
            if name in worked.given:
                one.copy_(floats(worked[name])[0])


# ---- worked numbers


def test_layer_norm_of_one_token():
    worked = work.solve(work.read_problem("layer-norm"))
    assert worked["m"] == M([3, 5])
    assert worked["v"] == M([sympy.Rational(7, 2), 0])
    assert worked["LN"].row(1) == M([[0, 1, 0, 0]])  # a token of equal features: the shift alone
    assert worked.remarks[0] == "Before γ and β token 1 has mean 0 and variance 0.999997."


def test_nothing_to_add_is_the_identity_only_with_the_norm_first():
    zero = [[0, 0], [0, 0]]
    values = {"X": [[1, 3]], "W_V": zero, "W_1": zero, "W_2": zero}
    assert solve_encoder(values, norm="pre")["P_2"] == M([[1, 3]])
    assert solve_encoder(values, norm="post", eps=0)["LN_2"] == M([[-1, 1]])


def test_a_whole_block_takes_seconds_and_says_where_digits_begin():
    start = time.process_time()
    worked = work.solve(work.read_problem("encoder"))
    assert time.process_time() - start < 10
    said = [step.name for step in worked.steps if ROUNDING_NOTE in step.title]
    first = next(step.name for step in worked.steps if step.value.has(sympy.Float))
    assert said
    assert said[0] == first
    assert worked.recompute() == worked.values()


# ---- properties


@settings(max_examples=8, deadline=None)
@given(cells(2, 3, small), cells(1, 3, small), cells(1, 3, small))
def test_layer_norm_matches_torch(x, gamma, beta):
    worked = solve_layer_norm({"X": x, "gamma": gamma, "beta": beta})
    want = F.layer_norm(floats(worked["X"]), (3,), floats(worked["γ"])[0], floats(worked["β"])[0])
    assert_near(worked["LN"], want)


@settings(max_examples=6, deadline=None)
@given(
    cells(2, 2, small),
    cells(2, 3, small),
    cells(1, 3, small),
    cells(3, 2, small),
    st.sampled_from(["relu", "gelu"]),
)
def test_the_feed_forward_matches_the_layer(x, w1, b1, w2, activation):
    worked = solve_feed_forward({"X": x, "W_1": w1, "b_1": b1, "W_2": w2}, activation=activation)
    layer = rg.nn.FeedForward(2, 3, activation=activation).double()
    load(layer.to_hidden, worked, "W_1")
    load(layer.to_out, worked, "W_2")
    assert_near(worked["FF"], layer(floats(worked["X"])).detach())


@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(seeds, st.sampled_from(["post", "pre"]), st.sampled_from([None, "causal"]))
def test_an_encoder_block_matches_the_layer(seed, norm, mask):
    draw = some(seed)
    told = {f"W_{one}": draw(4, 4) for one in "QKVO"}
    told |= {"X": draw(2, 4), "W_1": draw(4, 3), "W_2": draw(3, 4)}
    told |= {name: draw(1, 4) for name in ("b_Q", "b_2", "gamma_1", "beta_2")}
    worked = solve_encoder(told, heads=2, norm=norm, mask=mask)
    block = rg.nn.EncoderBlock(4, 2, ffn_dim=3, norm_first=norm == "pre").double()
    load_attention(block.self_attention, worked, "W")
    load(block.feed_forward.to_hidden, worked, "W_1")
    load(block.feed_forward.to_out, worked, "W_2")
    load_norm(block.self_residual, worked, 1)
    load_norm(block.feed_forward_residual, worked, 2)
    want = block(floats(worked["X"]), mask=None if mask is None else rg.Causal())
    assert_near(worked["LN_2" if norm == "post" else "P_2"], want.detach())


def test_a_block_of_today_is_that_of_the_layer():
    draw = some(1)
    values = {"X": draw(2, 4), "W_1": draw(4, 3), "W_G": draw(4, 3), "W_2": draw(3, 4)}
    values |= {f"W_{one}": draw(4, 4) for one in "QKVO"} | {"gamma_1": draw(1, 4)}
    worked = solve_encoder(
        values, heads=2, norm="pre", norm_kind="rms", activation="silu", mask="causal"
    )
    block = rg.nn.EncoderBlock(
        4, 2, ffn_dim=3, norm="rms", norm_first=True, gated=True, activation="silu"
    ).double()
    load_attention(block.self_attention, worked, "W")
    feed = block.feed_forward
    assert feed.to_gate is not None
    for layer, name in ((feed.to_hidden, "W_1"), (feed.to_gate, "W_G"), (feed.to_out, "W_2")):
        load(layer, worked, name)
    load_norm(block.self_residual, worked, 1)
    assert_near(worked["P_2"], block(floats(worked["X"]), mask=rg.Causal()).detach())
    assert worked.recompute() == worked.values()


@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(seeds, st.sampled_from(["post", "pre"]), st.sampled_from([1, 2]))
def test_a_decoder_block_matches_the_layer(seed, norm, heads):
    draw = some(seed)
    told = {f"{letter}_{one}": draw(4, 4) for letter in "WU" for one in "QKVO"}
    told |= {"X": draw(2, 4), "Y": draw(3, 4)}
    told |= {"W_1": draw(4, 3), "W_2": draw(3, 4)}
    told |= {name: draw(1, 4) for name in ("b_2", "gamma_2", "beta_3")}
    worked = solve_decoder(told, norm=norm, heads=heads)
    block = rg.nn.DecoderBlock(4, heads, ffn_dim=3, norm_first=norm == "pre").double()
    load_attention(block.self_attention, worked, "W")
    load_attention(block.cross_attention, worked, "U")
    load(block.feed_forward.to_hidden, worked, "W_1")
    load(block.feed_forward.to_out, worked, "W_2")
    residuals = (block.self_residual, block.cross_residual, block.feed_forward_residual)
    for n, residual in enumerate(residuals, 1):
        load_norm(residual, worked, n)
    want = block(floats(worked["X"]), floats(worked["Y"]), mask=rg.Causal())
    assert_near(worked["LN_3" if norm == "post" else "P_3"], want.detach())
    assert worked.recompute() == worked.values()


# ---- answers

NORM = work.solve(work.read_problem("layer-norm"))
BLOCK = work.solve(work.read_problem("encoder"))
FEED = work.solve(work.read_problem("feed-forward"))


@pytest.mark.parametrize(
    ("worked", "name", "slip"),
    [
        (NORM, "m", "the sum was not divided"),
        (NORM, "v", "divided by n - 1 instead of n"),
        (NORM, "r", "ε was added outside the square root"),
        (NORM, "LN", "the shift was scaled too"),
        (NORM, "c", "the mean of each column was subtracted"),
        (FEED, "F", "the bias was left out"),
        (FEED, "G", "the absolute value was taken"),
    ],
)
def test_slips_of_blocks_are_recognised(worked, name, slip):
    step = next(one for one in worked.steps if one.name == name)
    found = get_rule(step.rule).mistakes[slip](*(worked[one] for one in step.inputs))
    values = [[f"{float(x):.9f}" for x in row] for row in found.evalf(20).tolist()]
    wrong = first_wrong(work.check_answers(worked, {name: values}))
    assert wrong is not None
    assert wrong.diagnosis == slip


def test_a_residual_left_out_is_recognised_and_the_rest_carried_forward():
    # who forgets the first sum and goes on rightly has one mistake, not ten
    values = {"P_1": BLOCK["O"]}
    values["m_1"] = get_rule("mean of rows").run(values["P_1"])
    values["c_1"] = get_rule("centre rows").run(values["P_1"], values["m_1"])
    answers = {
        name: [[f"{float(x):.{places}f}" for x in row] for row in value.evalf(20).tolist()]
        for (name, value), places in zip(values.items(), (12, 9, 6), strict=True)
    }
    found = {one.name: one for one in work.check_answers(BLOCK, answers)}
    assert found["P_1"].diagnosis == "the residual was left out"
    assert found["m_1"].verdict == found["c_1"].verdict == "carried forward"


# ---- errors

ONE = [[1]]


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ({"family": "encoder", "given": {"X": ONE}}, "needs W_1, W_2 for the family encoder"),
        ({"family": "decoder", "given": {"X": ONE, "W_1": ONE, "W_2": ONE}}, "needs Y for"),
        ({"family": "encoder", "norm": "post-LN", "given": {"X": ONE, "W_1": ONE, "W_2": ONE}},
         "norm: needs pre or post, got 'post-LN'"),
        ({"family": "feed-forward", "activation": "relo",
          "given": {"X": ONE, "W_1": ONE, "W_2": ONE}},
         "activation: needs one of relu, gelu, silu, got 'relo'; try relu"),
        ({"family": "layer-norm", "eps": 0, "given": {"X": [[2, 2]]}}, "eps: needs more than 0"),
        ({"family": "layer-norm", "eps": -1, "given": {"X": [[2, 2]]}}, "eps: needs a number"),
        ({"family": "layer-norm", "given": {"X": [["inf", 1]]}}, "needs numbers that give one"),
        ({"family": "layer-norm", "given": {"X": [[2, 1]], "gamma": [1, 2, 3]}},
         "needs 2 numbers, got n 1×2 and γ 1×3"),
        ({"family": "feed-forward", "given": {"X": ONE, "W_1": ONE, "W_2": ONE, "b_1": [1, 2]}},
         "needs 1 numbers, got X 1×1 and W_1 1×1 and b_1 1×2"),
    ],
)  # fmt: skip
def test_blocks_that_cannot_be_worked_raise(problem, message):
    with pytest.raises(RegardError, match=message):
        work.solve(problem)
