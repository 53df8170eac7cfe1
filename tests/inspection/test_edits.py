"""Every edit equals the eager map edited by hand."""

from dataclasses import dataclass

import pytest
import torch
from edit_calls import ACTIVATION_EDITS, EDITS, EXPERT_EDITS, MIXER_EDITS
from torch import Tensor
from torch.testing import assert_close

import regard as rg
from regard.errors import ShapeError
from regard.inspection.edits import keys, weights
from regard.inspection.edits.base import Edit
from regard.ops.intercept import intercepting

BATCH, HEADS, TIME, FEAT = 2, 4, 7, 8


@dataclass
class Eager:
    """One attention with its scores written out, (batch, head, query, key), and its sinks."""

    q: Tensor
    k: Tensor
    v: Tensor
    terms: dict
    scale: float = FEAT**-0.5

    def run(self, edit=None, **more) -> Tensor:
        if edit is None:
            return rg.attend(self.q, self.k, self.v, **self.terms, **more)[0]
        with intercepting(edit):
            return rg.attend(self.q, self.k, self.v, **self.terms, **more)[0]

    def raw(self, q=None, k=None) -> Tensor:
        """Scores before the mask, from the definition."""
        q = self.q if q is None else q
        k = self.spread(self.k) if k is None else k
        s = self.scale * q @ k.mT
        if cap := self.terms.get("softcap"):
            s = cap * torch.tanh(s / cap)
        bias = self.terms.get("bias")
        if isinstance(bias, Tensor):
            s = s + bias
        elif isinstance(bias, rg.ALiBi):
            away = self.places()[:, None] - torch.arange(k.shape[-2])
            s = s - bias.slopes[:, None, None] * away.abs()
        elif isinstance(bias, rg.RelativeKeys):
            radius = bias.table.shape[0] // 2
            ahead = torch.arange(k.shape[-2]) - self.places()[:, None]
            keys = bias.table[ahead.clamp(-radius, radius) + radius]
            s = s + self.scale * torch.einsum("bhid,ijd->bhij", q, keys)
        return s

    def allowed(self) -> Tensor:
        mask = self.terms.get("mask")
        whole = torch.ones(BATCH, HEADS, self.q.shape[-2], self.k.shape[-2], dtype=torch.bool)
        if mask is None:
            return whole
        if isinstance(mask, Tensor):
            return whole & mask
        if isinstance(mask, rg.Padding):
            return whole & (torch.arange(whole.shape[-1]) < mask.lengths.view(-1, 1, 1, 1))
        return whole & (torch.arange(whole.shape[-1]) <= self.places()[:, None])

    def weights(self, s: Tensor, allowed: Tensor | None = None, sinks: Tensor | None = None):
        """Softmax with the sink as one more column, zeros in a row that sees nothing."""
        s = s.masked_fill(~(self.allowed() if allowed is None else allowed), -torch.inf)
        sinks = self.terms.get("sinks") if sinks is None else sinks
        if sinks is not None:
            s = torch.cat([s, sinks.view(-1, 1, 1).expand(*s.shape[:-1], 1)], -1)
        w = s.softmax(-1).nan_to_num(0)
        return w[..., :-1] if sinks is not None else w

    def output(self, w: Tensor, v=None) -> Tensor:
        return w @ (self.spread(self.v) if v is None else v)

    def places(self) -> Tensor:
        return torch.arange(self.q.shape[-2]) + self.terms.get("offset", 0)

    def spread(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(HEADS // x.shape[1], 1)


def blind() -> Tensor:
    """A mask whose third query sees nothing."""
    mask = torch.rand(TIME, TIME, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[:, 0] = True
    mask[2] = False
    return mask


CASES = {
    "plain": {},
    "causal": {"mask": "causal"},
    "dense mask": {"mask": "blind"},
    "padding": {"mask": "padding"},
    "alibi": {"bias": "alibi", "mask": "causal"},
    "relative": {"bias": "relative"},
    "dense bias": {"bias": "dense", "mask": "blind"},
    "softcap": {"softcap": 1.5, "mask": "causal"},
    "sinks": {"sinks": "some", "mask": "causal"},
    "offset": {"offset": 3, "mask": "causal"},
    "everything": {"bias": "alibi", "mask": "blind", "softcap": 2.0, "sinks": "some"},
}


@pytest.fixture(params=[("plain", HEADS), *((name, 2) for name in CASES)], ids=str)
def eager(request) -> Eager:
    name, key_heads = request.param
    terms = dict(CASES[name])
    made = {
        "causal": rg.Causal(),
        "blind": blind(),
        "padding": rg.Padding(torch.tensor([7, 5])),
        "alibi": rg.ALiBi(torch.tensor([0.5, 0.25, 1.0, 0.125], dtype=torch.float64)),
        "relative": rg.RelativeKeys(torch.randn(5, FEAT, dtype=torch.float64)),
        "dense": torch.randn(HEADS, TIME, TIME, dtype=torch.float64),
        "some": torch.tensor([0.5, 9.0, -1.0, 0.0], dtype=torch.float64),
    }
    terms = {key: made.get(x, x) if isinstance(x, str) else x for key, x in terms.items()}
    queries = TIME - terms.get("offset", 0)
    q = 2 * torch.randn(BATCH, HEADS, queries, FEAT, dtype=torch.float64)
    k, v = torch.randn(2, BATCH, key_heads, TIME, FEAT, dtype=torch.float64)
    return Eager(q, k, v, terms)


def of_heads(heads, new: Tensor, old: Tensor) -> Tensor:
    return (
        new
        if heads is None
        else torch.stack([(new if h in heads else old)[:, h] for h in range(HEADS)], 1)
    )


WRITTEN_OUT: set[str] = set()


def written_out(*names: str):
    """Mark a test that compares these edits with the map (or q, k, v) edited by hand."""
    WRITTEN_OUT.update(names)
    return lambda test: test


some_heads = pytest.mark.parametrize("heads", [None, [1, 2]])


def test_the_eager_attention_matches_attend(eager):
    assert_close(eager.run(), eager.output(eager.weights(eager.raw())))


@written_out("drop_head", "keep_heads", "scale_head")
def test_drop_and_keep_and_scale_heads(eager):
    out = eager.run()
    factor = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64).view(-1, 1, 1)
    assert_close(eager.run(rg.edit.drop_head("*", [1, 3])), out * factor)
    assert_close(eager.run(rg.edit.keep_heads("*", (0, 2))), out * factor)
    assert_close(eager.run(rg.edit.scale_head("*", [1, 3], 0.25)), out * (0.25 + 0.75 * factor))


@written_out("drop_key")
@some_heads
def test_drop_key_masks_a_column_of_the_map(eager, heads):
    old, allowed = eager.raw(), eager.allowed()
    gone = allowed.clone()
    gone[..., [0, 4]] = False
    want = of_heads(heads, eager.weights(old, gone), eager.weights(old, allowed))
    assert_close(eager.run(rg.edit.drop_key("*", [0, 4], heads=heads)), eager.output(want))


def test_drop_key_for_one_query_masks_one_weight(eager):
    gone, at = eager.allowed(), 5 - eager.terms.get("offset", 0)
    gone[..., at, 1] = False
    want = eager.output(eager.weights(eager.raw(), gone))
    assert_close(eager.run(rg.edit.drop_key("*", 1, queries=5)), want)


@written_out("scale_key")
@some_heads
def test_scale_key_multiplies_the_key(eager, heads):
    k = eager.spread(eager.k).clone()
    k[..., 3, :] *= -1.7
    want = of_heads(heads, eager.weights(eager.raw(k=k)), eager.weights(eager.raw()))
    assert_close(eager.run(rg.edit.scale_key("*", 3, -1.7, heads=heads)), eager.output(want))


@written_out("scale_scores")
@some_heads
@pytest.mark.parametrize("beta", [0.0, 0.5, 3.0])
def test_scale_scores_multiplies_every_score_and_sink(eager, heads, beta):
    sinks = eager.terms.get("sinks")
    new = eager.weights(beta * eager.raw(), sinks=None if sinks is None else beta * sinks)
    want = of_heads(heads, new, eager.weights(eager.raw()))
    assert_close(eager.run(rg.edit.scale_scores("*", beta, heads=heads)), eager.output(want))


@written_out("uniform")
@some_heads
def test_uniform_is_one_over_the_visible_keys(eager, heads):
    allowed = eager.allowed().double()
    count = allowed.sum(-1, keepdim=True) + ("sinks" in eager.terms)
    want = of_heads(heads, allowed / count.clamp(min=1), eager.weights(eager.raw()))
    assert_close(eager.run(rg.edit.uniform("*", heads=heads)), eager.output(want))


@written_out("hardmax")
@some_heads
def test_hardmax_selects_the_best_key_unless_a_sink_is_better(eager, heads):
    s = eager.raw().masked_fill(~eager.allowed(), -torch.inf)
    best = s.amax(-1, keepdim=True)
    hard = ((s == best) & (s > -torch.inf)).double()
    if "sinks" in eager.terms:
        hard = hard * (best >= eager.terms["sinks"].view(-1, 1, 1))
    want = of_heads(heads, hard, eager.weights(eager.raw()))
    assert_close(eager.run(rg.edit.hardmax("*", heads=heads)), eager.output(want))


@written_out("replace_window")
@some_heads
@pytest.mark.parametrize("renormalise", [True, False])
def test_replace_window_sets_some_weights_and_renormalises_the_rest(eager, heads, renormalise):
    rows, keys = slice(1, 3), slice(0, 3)
    values = torch.rand(BATCH, HEADS, 2, 3, dtype=torch.float64) / 4
    old = eager.weights(eager.raw())
    new = old.clone()
    if renormalise:  # what is not in the window, the sink's share included
        left = 1 - old[..., rows, keys].sum(-1, keepdim=True)
        share = (1 - values.sum(-1, keepdim=True)) / left.masked_fill(left < 1e-9, torch.inf)
        new[..., rows, :] *= share
    new[..., rows, keys] = values
    want = of_heads(heads, new, old)
    edit = rg.edit.replace_window("*", rows, keys, values, heads=heads, renormalise=renormalise)
    assert_close(eager.run(edit), eager.output(want))


@written_out("patch")
@some_heads
@pytest.mark.parametrize("what", ["values", "keys", "queries", "out"])
def test_patch_inserts_the_tensors_of_another_run(eager, heads, what):
    other = Eager(*(torch.randn_like(x) for x in (eager.q, eager.k, eager.v)), eager.terms)
    site = rg.make_site(other.q, other.k, other.v, **eager.terms)
    q, k, v = eager.q, eager.spread(eager.k), eager.spread(eager.v)
    q, k, v = (
        of_heads(heads, new, old) if name == what else old
        for name, new, old in (
            ("queries", other.q, q),
            ("keys", eager.spread(other.k), k),
            ("values", eager.spread(other.v), v),
        )
    )
    want = eager.output(eager.weights(eager.raw(q, k)), v)
    if what == "out":
        want = of_heads(heads, other.run(), want)
    assert_close(eager.run(rg.edit.patch("*", site, what, heads=heads)), want)


def test_replacing_nearly_all_weight_keeps_the_rest_exact_in_half_precision():
    """By subtraction the rest would be a hundred times its own size off."""
    q, k, v = torch.randn(3, 1, 1, 6, 8).bfloat16()
    q, k = q * 0 + 3, k.index_fill(-2, torch.tensor([0]), 4.0)
    values = torch.zeros(6, 1)
    with intercepting(rg.edit.replace_window("*", slice(0, 6), slice(0, 1), values)):
        out, _ = rg.attend(q, k, v)
    with intercepting(rg.edit.drop_key("*", 0)):
        assert_close(out, rg.attend(q, k, v)[0], rtol=1e-2, atol=1e-2)


def test_hardmax_splits_ties():
    q, k = torch.ones(1, 1), torch.tensor([[2.0], [1.0], [2.0]])
    with intercepting(rg.edit.hardmax("*")):
        out, lse = rg.attend(q, k, torch.tensor([[1.0], [10.0], [3.0]]))
    assert_close(out, torch.tensor([[2.0]]))
    assert_close(lse, torch.tensor([2.0]).log())


def test_hardmax_treats_scores_within_rounding_as_ties():
    one = torch.tensor(0.6)
    k = torch.stack([one, one.nextafter(torch.tensor(1.0)), one * 1.001])[:, None]
    v = torch.tensor([[1.0], [3.0], [7.0]])
    with intercepting(rg.edit.hardmax("*")):
        assert_close(rg.attend(torch.ones(1, 1), k[:2], v[:2])[0], torch.tensor([[2.0]]))
        assert_close(rg.attend(torch.ones(1, 1), k, v)[0], torch.tensor([[7.0]]))


def test_hardmax_finds_the_best_key_in_long_half_precision_rows():
    q, k, v = torch.randn(3, 1, 2, 700, 64).bfloat16()
    with intercepting(rg.edit.hardmax("*")):
        out, _ = rg.attend(q, k, v, mask=rg.Causal())
    scores = q.double() @ k.double().mT
    scores = scores.masked_fill(~rg.Causal().dense(700, 700), -torch.inf)
    best = scores.argmax(-1)
    want = v.gather(-2, best[..., None].expand(-1, -1, -1, 64))
    same = (out == want).all(-1)
    assert same.double().mean() > 0.999  # two bf16 keys may tie to rounding


def test_the_limits_of_scale_scores_are_uniform_and_hardmax():
    q, k, v = torch.randn(3, 2, 6, 4, dtype=torch.float64)
    flat, hard = (_run(edit, q, k, v) for edit in (rg.edit.uniform("*"), rg.edit.hardmax("*")))
    assert_close(_run(rg.edit.scale_scores("*", 1e-9), q, k, v), flat)
    assert_close(_run(rg.edit.scale_scores("*", 1e5), q, k, v), hard)


def _run(edit, q, k, v):
    with intercepting(edit):
        return rg.attend(q, k, v)[0]


@written_out("jitter_key", "jitter_query")
@pytest.mark.parametrize("jitter", [rg.edit.jitter_key, rg.edit.jitter_query])
def test_noise_has_the_given_sigma_and_depends_on_the_seed(jitter):
    seen = []

    def spy(call, proceed):
        seen.append(call)
        return proceed(call)

    q, k, v = torch.randn(3, 2, 4, 100, 32)
    for edit in (jitter("*", 0.5), jitter("*", 0.5), jitter("*", 0.5, seed=1)):
        with intercepting(spy), intercepting(edit):
            rg.attend(q, k, v)
    name, plain = ("k", k) if jitter is rg.edit.jitter_key else ("q", q)
    one, same, other = (getattr(call, name) - plain for call in seen)
    assert_close(one, same, rtol=0, atol=0)
    assert (one - other).abs().max() > 0.5
    assert_close(one.std(), torch.tensor(0.5), rtol=0.02, atol=0)
    assert abs(one.mean()) < 0.01


def test_noise_of_a_position_is_the_same_with_a_cache():
    q, k, v = torch.randn(3, 1, 2, 130, 4, dtype=torch.float64)
    for edit in (
        rg.edit.jitter_key("*", 1.0),
        rg.edit.jitter_query("*", 1.0, queries=[3, 128, 129]),
    ):
        with intercepting(edit):
            whole, _ = rg.attend(q, k, v, mask=rg.Causal())
            for end in (1, 64, 65, 129, 130):
                row = q[..., end - 1 : end, :]
                one, _ = rg.attend(
                    row, k[..., :end, :], v[..., :end, :], mask=rg.Causal(), offset=end - 1
                )
                assert_close(one, whole[..., end - 1 : end, :])


def test_jitter_changes_only_the_named_positions():
    q, k, v = torch.randn(3, 1, 4, 6, 4)
    out = rg.attend(q, k, v)[0]
    with intercepting(rg.edit.jitter_query("*", 1.0, queries=[2], heads=1)):
        moved = (rg.attend(q, k, v)[0] - out).abs().amax(-1) > 1e-6
    assert moved.nonzero().tolist() == [[0, 1, 2]]
    with intercepting(rg.edit.jitter_key("*", 1.0, keys=5, heads=[0])):
        new = rg.attend(q, k[:, :2], v[:, :2], mask=rg.Causal())[0]
    moved = (new - rg.attend(q, k[:, :2], v[:, :2], mask=rg.Causal())[0]).abs().amax(-1) > 1e-6
    assert moved.nonzero().tolist() == [[0, 0, 5]]


def test_every_edit_has_a_call_and_an_eager_comparison():
    others = {*ACTIVATION_EDITS, *MIXER_EDITS, *EXPERT_EDITS}
    names = set(rg.edit.__all__) - {"Edit", "ActivationEdit", *others}
    public = [x for module in (keys, weights) for x in vars(module).items()]
    returns = {n for n, f in public if getattr(f, "__annotations__", {}).get("return") is Edit}
    assert {name for name in returns if name[0] != "_"} == names, "add it to inspection/edit.py"
    assert names == set(EDITS), "add a call to tests/inspection/edit_calls.py"
    assert names == WRITTEN_OUT, "mark its test with @written_out"


each_edit = pytest.mark.parametrize("name", EDITS)


def make_edit(name: str, q: Tensor, **changes):
    call = EDITS[name] | {key: x for key, x in changes.items() if key in EDITS[name]}
    if "source" in call:
        call["source"] = rg.make_site(*torch.randn(3, *q.shape, dtype=q.dtype))
    return getattr(rg.edit, name)(**call)


@each_edit
def test_an_edit_changes_only_its_heads(name):
    q, k, v = torch.randn(3, 1, 4, 6, 4)
    changed = (_run(make_edit(name, q, heads=[1]), q, k, v) - rg.attend(q, k, v)[0]).abs() > 1e-6
    want = [0, 2, 3] if name == "keep_heads" else [1]
    assert changed.any(-1).any(-1)[0].nonzero().flatten().tolist() == want


@each_edit
def test_an_edit_lets_gradients_through(name):
    q, k, v = torch.randn(3, 1, 2, 4, 2, dtype=torch.float64).unbind()
    with intercepting(make_edit(name, q)):
        assert torch.autograd.gradcheck(
            lambda *x: rg.attend(*x, mask=rg.Causal(), backend="reference")[0],
            [x.clone().requires_grad_() for x in (q, k, v)],
        )


@each_edit
def test_an_edit_works_without_a_head_axis(name):
    q, k, v = torch.randn(3, 5, 4)
    if name != "patch":  # a site has heads
        assert _run(make_edit(name, q), q, k, v).shape == (5, 4)


@each_edit
def test_an_edit_is_described_by_its_call(name):
    assert str(make_edit(name, torch.zeros(1, 4, 6, 4))).startswith(f"{name}('*'")


def test_flex_is_not_used_for_edits_that_need_tiles():
    """flex_attention asks masks and biases one place at a time; on CUDA it would fail there."""
    from regard.ops.attend.flex import needs_tiles

    masks, kept = [], []

    def spy(call, proceed):
        masks.append(call.terms.mask)
        kept.append(call.terms.bias)
        return proceed(call)

    q, k, v = torch.randn(3, 4, 3, 2)
    for edit, bias in (
        (rg.edit.hardmax("*"), None),
        (rg.edit.drop_key("*", 0), None),
        (rg.edit.scale_scores("*", 2.0), rg.ALiBi(torch.ones(4))),
        (rg.edit.scale_scores("*", 2.0), torch.zeros(3, 3)),
    ):
        with intercepting(spy), intercepting(edit):
            rg.attend(q, k, v, bias=bias, softcap=2.0)
    assert [needs_tiles(mask) for mask in masks] == [True, False, False, False]
    assert [needs_tiles(bias) for bias in kept] == [False, False, False, True]


def test_the_description_of_an_edit_is_its_call():
    assert (
        str(rg.edit.drop_key("encoder.*", [1, 2], heads=3))
        == "drop_key('encoder.*', [1, 2], heads=3)"
    )


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda: rg.edit.drop_head("*", []), "heads: needs one or more, got"),
        (lambda: rg.edit.drop_key("*", -1), "keys: needs one or more, counted from 0, got -1"),
        (lambda: rg.edit.scale_key("*", 0, float("inf")), "alpha: needs a finite number, got inf"),
        (lambda: rg.edit.jitter_key("*", -1.0), "sigma: needs a finite number from 0 up, got -1.0"),
        (
            lambda: rg.edit.scale_scores("*", -0.5),
            "factor: needs a finite number from 0 up, got -0.5",
        ),
        (
            lambda: rg.edit.patch("*", rg.Sight(), "scores"),
            "component: needs values, keys, queries or out",
        ),
        (
            lambda: rg.edit.replace_window("*", slice(1), slice(2), torch.ones(1, 2)),
            "weights: needs rows of at most 1 in sum, got 2; try renormalise=False",
        ),
    ],
)
def test_invalid_edits_raise_when_built(edit, message):
    with pytest.raises(ShapeError, match=message):
        edit()


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (rg.edit.drop_head("*", 4), "heads: needs less than 4, got 4"),
        (
            rg.edit.replace_window("*", slice(9, 10), slice(1), torch.zeros(1, 1)),
            "rows: needs at least one of 3, got",
        ),
        (
            rg.edit.replace_window("*", slice(2), slice(2), torch.zeros(3, 2)),
            r"weights: needs a shape that broadcasts to \(1, 4, 2, 2\)",
        ),
        (
            rg.edit.patch("*", rg.make_site(*torch.zeros(2, 1, 4, 5, 2))),
            "source: needs the shape .* of this run, got .*; try an input with as many tokens",
        ),
    ],
)
def test_edits_that_do_not_fit_a_call_raise_when_applied(edit, message):
    with pytest.raises(ShapeError, match=message):
        _run(edit, *torch.randn(3, 1, 4, 3, 2))
