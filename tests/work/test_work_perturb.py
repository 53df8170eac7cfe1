"""One key, query or token perturbed: what changes, by order, and noise on average."""

import pytest
import torch
from by_hand import floats
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import work
from regard.errors import WorkError
from regard.work.exact import evaluate_digits
from regard.work.families.perturb import solve_perturb

MOVE = work.read_problem("move-key")
small = st.integers(-30, 30).map(lambda x: f"{x / 20}")


def changed(worked, name="dH"):
    return [i for i, row in enumerate(floats(worked[name]).abs().sum(1) > 1e-12, 1) if row]


def test_a_doubled_key_rises_for_one_query_and_falls_for_the_other():
    worked = work.solve(work.read_problem("scale-key"))
    assert floats(worked["A_a"])[:, 0].tolist() == pytest.approx([0.7310586, 0.2689414], abs=1e-7)


@settings(max_examples=4, deadline=None)
@given(st.data(), st.sampled_from(["key", "query", "token"]), st.integers(1, 3))
def test_the_weights_and_outputs_are_those_of_torch(data, what, index):
    def cells(rows, columns):
        return [[data.draw(small) for _ in range(columns)] for _ in range(rows)]

    told = {"X": cells(3, 2), "W_Q": cells(2, 2), "W_K": cells(2, 2), "W_V": cells(2, 2)}
    worked = solve_perturb(told | {"eps": cells(1, 2)}, target=what, index=index)
    x, eps = floats(worked["X"]), floats(worked["ε"])
    x_a = x.clone()
    x_a[index - 1] += eps[0]
    q, k, v = ((x_a if what == "token" else x) @ floats(worked[f"W_{one}"]) for one in "QKV")
    if what != "token":
        (k if what == "key" else q)[index - 1] += eps[0]
    want = (q @ k.T / 2**0.5).softmax(1) @ v
    torch.testing.assert_close(floats(worked["H_a"]), want, rtol=1e-9, atol=1e-9)
    assert worked.recompute() == worked.values()


@pytest.mark.parametrize("what", ["key", "query", "token"])
def test_errors_of_first_and_second_order_are_quadratic_and_cubic(what):
    values = {"X": [[1, 0], [0, 1], [1, -1]], "W_V": [[1, 0], [1, 2]]}
    left = []
    for eps in ("1/10", "1/100"):
        worked = solve_perturb(values | {"eps": [eps, 0]}, target=what, index=1)
        left.append([float(evaluate_digits(worked[n][0], 20)) for n in ("n_1", "n_2")])
    first, second = ((b / a) for a, b in zip(*left, strict=True))
    assert first == pytest.approx(1e-2, rel=0.2)  # a tenth of ε: a hundredth is left
    assert second == pytest.approx(1e-3, rel=0.3)


@pytest.mark.parametrize("weights", ["", "QKV", "QKV with biases"])
@pytest.mark.parametrize("change", [{"eps": ["1/5", "-1/10"]}, {"alpha": "3/2"}])
@pytest.mark.parametrize("what", ["key", "query", "token"])
def test_the_orders_are_the_derivatives_that_autograd_takes(what, change, weights):
    values = {"X": [[1, 0], ["1/2", 1], [1, -1]]}
    if weights:
        values |= {"W_Q": [[1, 2], [0, 1]], "W_K": [[1, 0], [-1, 1]], "W_V": [[1, 1], [2, 0]]}
    if "biases" in weights:
        values |= {"b_Q": [1, 0], "b_K": ["1/2", 1], "b_V": [0, -1]}
    worked = solve_perturb(values | change, target=what, index=2)
    x = floats(worked["X"])
    names = [worked.given.get(f"{part}_{one}") for one in "QKV" for part in "Wb"]
    w = [None if one is None else floats(one) for one in names]

    def out(t):
        def project(x, weight, bias):
            y = x if weight is None else x @ weight
            return y if bias is None else y + bias

        def moved(rows):
            by = floats(worked["ε"])[0] if "eps" in change else rows[1] / 2
            return rows + t * torch.outer(torch.tensor([0.0, 1, 0]).double(), by)

        xs = moved(x) if what == "token" else x
        q, k, v = (project(xs, *w[2 * n : 2 * n + 2]) for n in range(3))
        q, k = moved(q) if what == "query" else q, moved(k) if what == "key" else k
        return (q @ k.T / 2**0.5).softmax(1) @ v

    zero, slope = torch.zeros((), dtype=torch.float64), torch.func.jacrev(out)
    curve = torch.func.jacrev(slope)(zero)
    torch.testing.assert_close(floats(worked["H_1"]), slope(zero), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(floats(worked["H_2"]), curve / 2, rtol=1e-12, atol=1e-12)


def test_a_moved_token_is_query_and_key_of_its_own_score():
    worked = work.solve(work.read_problem("move-token"))
    row = floats(worked["H_1"])[1].tolist()
    assert row == pytest.approx([0.1368, -0.0682], abs=5e-5)
    unsplit = [["-0.011219", "0.022438", "-0.011219"], ["0.0252427", "-0.048075", "0.0228323"]]
    found = work.check_answers(
        worked, {"A_1": [*unsplit, ["-0.00435794", "0.0131963", "-0.0088384"]]}
    )
    assert found[0].diagnosis == "the change of the token's own score was not split by order"


def test_a_query_moves_one_output_a_key_and_a_token_all():
    values = MOVE["given"]
    assert changed(solve_perturb(values, target="query", index=2)) == [2]
    assert changed(solve_perturb(values, target="key", index=2)) == [1, 2, 3]
    token = {"X": values["K"], "eps": values["eps"]}
    assert changed(solve_perturb(token, target="token", index=2)) == [1, 2, 3]


def test_a_key_moves_one_column_of_the_scores_and_every_weight():
    worked = work.solve(MOVE)
    assert [j for j in range(3) if any(worked["dS"].col(j))] == [1]
    assert (floats(worked["dA"]).abs() > 1e-12).all()
    assert "changes 3 of 9 entries of S and 9 of 9 entries of A" in " ".join(worked.remarks)


@pytest.mark.parametrize("what", ["key", "query"])
def test_the_mean_change_under_noise_is_that_of_many_draws(what):
    worked = solve_perturb(MOVE["given"], target=what, index=2, noise_std="1/10")
    q, k, v = (floats(worked[name]) for name in "QKV")
    noise = torch.randn(100_000, 2, generator=torch.Generator().manual_seed(1)).double() / 10
    noise = torch.cat([noise, -noise])  # pairs: the first order falls out exactly
    qs, ks = q.expand(len(noise), 3, 2).clone(), k.expand(len(noise), 3, 2).clone()
    (ks if what == "key" else qs)[:, 1] += noise
    drawn = (qs @ ks.mT / 2**0.5).softmax(-1) @ v - floats(worked["H"])
    error = drawn.std(0) / len(noise) ** 0.5
    assert floats(worked["m"]).allclose(drawn.mean(0), rtol=0.1, atol=float(4 * error.max()))


@pytest.mark.parametrize("what", ["key", "query"])
def test_the_mean_change_is_half_the_curvature(what):
    worked = solve_perturb(MOVE["given"], target=what, index=2, noise_std="1/10")
    q, k, v = (floats(worked[name]) for name in "QKV")
    unit = torch.tensor([[0.0], [1.0], [0.0]], dtype=torch.float64)

    def out(eps):
        moved = unit * eps
        a, b = (q, k + moved) if what == "key" else (q + moved, k)
        return (a @ b.T / 2**0.5).softmax(1) @ v

    curved = torch.func.jacrev(torch.func.jacrev(out))(torch.zeros(2, dtype=torch.float64))
    want = curved.diagonal(dim1=-2, dim2=-1).sum(-1) / 2 / 100
    torch.testing.assert_close(floats(worked["m"]), want, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("change", "choices", "message"),
    [
        ({}, {"target": "value"}, "target: needs one of key, query, token, got 'value'"),
        ({"alpha": 2}, {}, "needs eps to move by or alpha to scale by, got both"),
        ({}, {"target": "token"}, "given: needs X for a token that changes"),
        (
            {"X": [[1, 0]]},
            {"target": "token"},
            "needs X and weights for a token.*Q and K and V too",
        ),
        ({}, {"index": 1.5}, "index: needs a whole number from 1 on, got 1.5"),
        ({}, {"index": 4}, "index: needs one of the rows 1 to 3, got 4"),
        ({"eps": [1]}, {}, "eps: needs 2 numbers, one per feature, got 1×1"),
    ],
)
def test_what_does_not_fit_is_reported(change, choices, message):
    with pytest.raises(WorkError, match=message):
        solve_perturb(MOVE["given"] | change, **choices)
