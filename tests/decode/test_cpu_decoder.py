"""The CPU decoder matches the model: same logits, same outputs, still recorded by a look."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import regard as rg
from regard import models
from regard.decode import beam, cache, greedy, make_stepper
from regard.decode.cpu import CpuState
from regard.decode.search.beam import grouped_topk

VOCAB, END = 300, 2  # more than two groups of the search for the largest
CONFIGS = {
    "sinusoidal": {},
    "learned": {"positions": "learned", "max_positions": 20},
    "rotary": {"positions": "none", "rope_theta": 100.0, "kv_heads": 1},
    "rotate_half": {"rope_theta": 100.0, "rotate_half": True},
    "normed": {"embedding_norm": True, "segments": 2},
    "relu": {"activation": "relu", "norm": "none", "final_norm": False},
    "after": {"norm_first": False, "final_norm": False, "bias": False, "norm": "rms"},
    "gated": {"gated": True, "output_scale": 0.5, "output_bias": True, "tied": False},
}
each_config = pytest.mark.parametrize("name", CONFIGS)
pytestmark = pytest.mark.usefixtures("no_gradient")


@pytest.fixture
def no_gradient():
    with torch.no_grad():
        yield


def made(name: str = "sinusoidal", **changes) -> models.Translator:
    sizes = {"dim": 16, "heads": 2, "dropout": 0.0} | CONFIGS[name] | changes
    return models.Translator(models.translator_tiny(VOCAB, **sizes)).eval()


def sources() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(3, VOCAB, (4, 5)), torch.tensor([5, 3, 1, 4])


def start(model: models.Translator, source: torch.Tensor, lengths: torch.Tensor):
    stepper = make_stepper(model)
    state = stepper.start(source, lengths)
    assert isinstance(state, CpuState)
    return stepper, state


# ---- properties


@each_config
def test_logits_match_the_model(name, monkeypatch):
    monkeypatch.setattr(cache, "INITIAL_CAPACITY", 2)  # it must grow on the way
    model, (source, lengths), target = made(name), sources(), torch.randint(VOCAB, (4, 9))
    stepper, state = start(model, source, lengths)
    steps = []
    for token in target.unbind(1):
        logits, state = stepper.step(token, state)
        steps.append(logits)
    assert_close(torch.stack(steps, 1), model(source, target, lengths), atol=1e-5, rtol=1e-5)


@each_config
@pytest.mark.parametrize("width", [1, 3])
def test_searches_match_the_model(name, width):
    model, (source, lengths) = made(name), sources()
    stepper, state = start(model, source, lengths)
    with torch.enable_grad():
        slow = stepper.start(source, lengths)
    assert not isinstance(slow, CpuState)
    first, given = (
        torch.ones(4, dtype=torch.long),
        {"end": END, "max_new_tokens": 9, "width": width},
    )
    fast = beam(stepper, state, first, n_best=width, **given)
    want = beam(stepper, slow, first, n_best=width, **given)
    assert fast.to_lists() == want.to_lists()
    assert_close(fast.log_prob, want.log_prob, atol=1e-4, rtol=1e-4)


def test_logits_without_residuals_match_the_model():
    model, (source, lengths), first = made(skip=False), sources(), torch.ones(4, dtype=torch.long)
    stepper, state = start(model, source, lengths)
    logits, _ = stepper.step(first, state)
    assert_close(logits, model(source, first[:, None], lengths)[:, 0], atol=1e-5, rtol=1e-5)


def test_a_state_can_be_continued_twice_and_in_any_order():
    model, (source, lengths) = made(), sources()
    stepper, state = start(model, source, lengths)
    _, state = stepper.step(torch.tensor([3, 4, 5, 6]), state)
    one, _ = stepper.step(torch.tensor([7, 7, 7, 7]), state)
    two, after = stepper.step(torch.tensor([8, 8, 8, 8]), state)
    _, other = stepper.step(torch.tensor([9, 9, 9, 9]), state)  # takes the place again
    target = torch.tensor([[3], [4], [5], [6]])
    for token, logits in ((7, one), (8, two)):
        written = torch.cat([target, torch.full((4, 1), token)], 1)
        assert_close(logits, model(source, written, lengths)[:, -1], atol=1e-5, rtol=1e-5)
    rows = torch.tensor([3, 0, 0, 1, 2, 2])
    picked = stepper.select(after, rows)
    logits, _ = stepper.step(torch.full((6,), 5), picked)
    written = torch.cat([target, torch.full((4, 1), 8), torch.full((4, 1), 5)], 1)
    assert_close(logits, model(source, written, lengths)[rows, -1], atol=1e-5, rtol=1e-5)
    assert other.cache.length == 2


def test_rows_of_one_sequence_are_reordered_and_taken_apart():
    model, (source, lengths) = made("rotary"), sources()
    stepper, state = start(model, source, lengths)
    home = torch.arange(4).repeat_interleave(3)
    state, past = stepper.select(state, home), torch.randint(VOCAB, (12, 1))
    inside, same = [1, 1, 0, 3, 5, 4, 8, 6, 6, 9, 10, 11], list(range(12))
    for order in (inside, same, inside, [2, 1, 5, 3, 0, 8, 7, 1]):
        logits, state = stepper.step(past[:, -1], state)
        assert_close(logits, model(source[home], past, lengths[home])[:, -1], atol=1e-5, rtol=1e-5)
        rows = torch.tensor(order)
        state, home = stepper.select(state, rows), home[rows]
        past = torch.cat([past[rows], torch.randint(VOCAB, (len(rows), 1))], 1)
    logits, _ = stepper.step(past[:, -1], state)
    assert_close(logits, model(source[home], past, lengths[home])[:, -1], atol=1e-5, rtol=1e-5)


def test_changed_weights_are_used_at_the_next_start():
    model, (source, lengths) = made(), sources()
    stepper, first = make_stepper(model), torch.ones(4, dtype=torch.long)
    for _ in range(2):
        logits, _ = stepper.step(first, stepper.start(source, lengths))
        assert_close(logits, model(source, first[:, None], lengths)[:, 0], atol=1e-5, rtol=1e-5)
        for p in model.parameters():
            p.mul_(1.5)


def test_look_records_every_attention_also_from_the_middle_of_a_sequence():
    model, (source, lengths) = made(), sources()
    stepper, state = start(model, source, lengths)
    first = torch.ones(4, dtype=torch.long)
    _, state = stepper.step(first, state)
    with rg.look(model) as sight:
        seen, _ = stepper.step(first, state)
    assert {site.name for site in sight} >= {"decoder.0.self", "decoder.1.cross"}
    unseen, _ = stepper.step(first, state)
    assert_close(seen, unseen, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{"softcap": 9.0}, {"sinks": True}, {"relative_bias": "alibi"}, {"relative_bias": "buckets"}],
)
def test_unsupported_models_run_their_own_modules(changes):
    model = made(**changes)
    assert not isinstance(make_stepper(model).start(*sources()), CpuState)
    assert not isinstance(make_stepper(made().double()).start(*sources()), CpuState)
    hooked = made()
    hooked.decoder.register_forward_hook(lambda *args: None)
    assert not isinstance(make_stepper(hooked).start(*sources()), CpuState)


@given(st.integers(1, 5), st.sampled_from([3, 128, 700, 1000]), st.integers(0, 99))
def test_the_largest_by_groups_are_the_largest(k, count, seed):
    x = torch.randn(3, count, generator=torch.Generator().manual_seed(seed))
    best, at = grouped_topk(x, k)
    want = x.topk(min(k, count))
    assert torch.equal(best, want.values)
    assert torch.equal(at, want.indices)


def test_greedy_without_gradients_uses_the_fast_path_and_is_the_same():
    model, (source, lengths) = made(), sources()
    stepper, state = start(model, source, lengths)
    found = greedy(stepper, state, torch.ones(4, dtype=torch.long), end=END, max_new_tokens=5)
    for n, row in enumerate(found.to_lists()):
        written = [1]
        for token in row:
            target = torch.tensor([written])
            assert int(model(source[n : n + 1, : lengths[n]], target)[0, -1].argmax()) == token
            written.append(token)
