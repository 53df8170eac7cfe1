"""Multi-head attention by hand against the layer, in both conventions, with counts."""

import pytest
import torch
from by_hand import cells, floats, turned
from hypothesis import given, settings
from hypothesis import strategies as st

import regard as rg
from regard import work
from regard.errors import ShapeError, WorkError
from regard.work.exact import format_decimal
from regard.work.families.cost import solve_counts
from regard.work.families.multi_head import solve_multi_head
from regard.work.marking.findings import first_wrong

small = st.fractions(-2, 2, max_denominator=2).map(str)


WEIGHTS = ("W_Q", "W_K", "W_V", "W_O")


# ---- worked numbers


def test_parameter_counts_of_width_512_in_8_heads():
    worked = work.solve(work.read_problem("parameter-counts"))
    want = {"d_k": 64, "w_QKV": 786432, "w_O": 262144, "FF": 2099712}
    assert {name: int(worked[name][0]) for name in want} == want


def test_the_tokens_of_a_picture():
    worked = work.solve(work.read_problem("image-sizes"))
    assert [int(worked[name][0]) for name in ("N", "tokens", "v")] == [196, 197, 768]
    larger = solve_counts({"side": 384, "P": 16, "C": 3})
    assert int(larger["tokens"][0]) == 576 + 1


def test_what_each_head_adds_is_the_output():
    worked = work.solve(work.read_problem("two-heads"))
    parts = [
        worked[f"H_{n}"] * worked["W_O"][2 * n - 2 : 2 * n, :] for n in (1, 2)
    ]  # the rows of W_O that belong to the head
    torch.testing.assert_close(floats(parts[0] + parts[1]), floats(worked["O"]))
    (said,) = worked.remarks
    for n, part in enumerate(parts, 1):
        adds = ", ".join(format_decimal(x, 4) for x in part.row(0))
        assert f"head {n} adds ({adds})" in said
    assert said.endswith(
        f"together ({', '.join(format_decimal(x, 4) for x in worked['O'].row(0))})."
    )


# ---- properties


@settings(max_examples=4, deadline=None)
@given(st.data(), st.sampled_from([None, "causal"]), st.booleans())
def test_heads_match_the_layer(data, mask, biased):
    told = {"X": data.draw(cells(2, 4, small))} | {
        name: data.draw(cells(4, 4, small)) for name in WEIGHTS
    }
    if biased:
        told |= {f"b_{letter}": data.draw(cells(1, 4, small)) for letter in "QKVO"}
    worked = solve_multi_head(told, heads=2, mask=mask)
    layer = rg.nn.MultiHeadAttention(4, 2, qkv_bias=biased).double()
    with torch.no_grad():
        for letter, to in zip("QKVO", (layer.to_q, layer.to_k, layer.to_v, layer.to_out),
                              strict=True):  # fmt: skip
            to.weight.copy_(floats(worked[f"W_{letter}"]).T)
            if biased:
                to.bias.copy_(floats(worked[f"b_{letter}"])[0])
        want = layer(floats(worked["X"]), mask=None if mask is None else rg.Causal())
    torch.testing.assert_close(floats(worked["O"]), want, rtol=1e-9, atol=1e-9)


@settings(max_examples=3, deadline=None)
@given(st.data())
def test_columns_and_per_head_weights_give_the_same_result(data):
    told = {"X": data.draw(cells(2, 4, small))} | {
        name: data.draw(cells(4, 4, small)) for name in WEIGHTS
    }
    rows = solve_multi_head(told, heads=2)
    columns = solve_multi_head(
        {name: turned(m) for name, m in told.items()}, heads=2, convention="columns"
    )
    torch.testing.assert_close(floats(columns["O"]).T, floats(rows["O"]), rtol=1e-9, atol=1e-9)
    own = {f"{name}_{n}": [row[2 * n - 2 : 2 * n] for row in told[name]]
           for name in WEIGHTS[:3] for n in (1, 2)}  # fmt: skip
    apart = solve_multi_head(own | {"X": told["X"], "W_O": told["W_O"]})
    assert apart["O"] == rows["O"]
    assert apart.recompute() == apart.values()


# ---- answers


def test_the_scale_of_all_heads_together_is_recognised():
    worked = work.solve(work.read_problem("two-heads"))
    wrong = [[f"{float(x / 2):.6f}" for x in row] for row in worked["S_1"].tolist()]
    found = first_wrong(work.check_answers(worked, {"Z_1": wrong}))
    assert found is not None
    said = "the scale was applied twice or it was divided by √4 instead"  # the same numbers
    assert found.diagnosis == said


def test_an_output_without_its_last_matrix_is_recognised():
    worked = work.solve(work.read_problem("two-heads"))
    wrong = [[f"{float(x):.6f}" for x in row] for row in worked["H"].tolist()]
    found = first_wrong(work.check_answers(worked, {"O": wrong}))
    assert found is not None
    assert found.diagnosis == "W_O was left out"


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_heads_that_do_not_fit_raise_with_a_suggestion():
    x = [[1, 2, 3, 4]]
    with pytest.raises(ShapeError, match="divisor of the width 4.*got 3; try one of 1, 2, 4"):
        solve_multi_head({"X": x}, heads=3)
    with pytest.raises(WorkError, match="h: needs a divisor of d = 6, got 4; try one of 1, 2, 3"):
        solve_counts({"d": 6, "h": 4})
    with pytest.raises(WorkError, match="heads: needs as many as there are .* 1, got 2"):
        solve_multi_head({"X": [[1]], "W_Q_1": [[1]], "W_K_1": [[1]], "W_V_1": [[1]]}, heads=2)
    with pytest.raises(WorkError, match="heads: needs a whole number"):
        solve_multi_head({"X": x}, heads=0)
    with pytest.raises(WorkError, match="given: needs d and h"):
        solve_counts({"d": 6})
