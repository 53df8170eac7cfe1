"""The captured steps of a language model match the model, in Triton's interpreter."""

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch.testing import assert_close

from regard import models
from regard.decode import (
    AllowedTokens,
    Sampling,
    SuppressTokens,
    beam,
    greedy,
    last_tokens,
    make_stepper,
    sample,
    stream,
)
from regard.decode.gpu import buffers, launcher
from regard.decode.gpu import engine as captured_steps
from regard.decode.gpu.launcher import Tuning
from regard.decode.language_stepper import GpuState, LanguageStepper
from regard.decode.search.generation import collect_steps

pytest.importorskip("triton")
VOCAB, END = 41, 2
SIZES = {"dim": 16, "heads": 2, "layers": 1, "dropout": 0.0, "ffn_dim": 32}
ROTARY = {"positions": "none", "rope_theta": 100.0}
CONFIGS = {
    "learned": {
        "positions": "learned",
        "max_positions": 40,
        "scale_embedding": False,
        "activation": "gelu_tanh",
        "window": 3,
        "tied": False,
        "layers": 2,
    },
    "rotary": ROTARY
    | {"kv_heads": 1, "head_dim": 16, "gated": True, "norm": "rms", "activation": "silu"},
    "bare": ROTARY
    | {
        "rotate_half": True,
        "bias": False,
        "final_norm": False,
        "dim": 24,
        "head_dim": 16,
        "gated": True,
    },
    "sinusoidal": {},
    "relu": {"activation": "relu", "bias": False},
}
# so finely cut that a tiny model has several blocks, slices and tiles of everything
FINE = Tuning(
    tile=256, logits_tile=512, batch_outs=16, batch_depth=16, min_programs=4, batch_logits_outs=16,
    keys=2, batch_keys=2, register_outs=16,
)  # fmt: skip
# warps that share the 16 or 32 inputs of such a model
FEW_CORES: Any = {"mma_warps": 1, "mma_tile": 512}
pytestmark = pytest.mark.usefixtures("in_the_interpreter")


def rarely(*values):
    """These too, but not each time: the interpreter takes seconds for what a GPU does in none."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.fixture
def in_the_interpreter(monkeypatch):
    monkeypatch.setattr(captured_steps, "_TRY_ON_CPU", True)
    monkeypatch.setattr(buffers, "MIN_CAPACITY", 8)
    with torch.no_grad():
        yield


def made(name: str, **changes) -> models.LanguageModel:
    config = models.language_tiny(VOCAB, **(SIZES | CONFIGS[name] | changes))
    model = models.LanguageModel(config).eval()
    for p in model.parameters():  # biases that are not 0, answers that differ
        p.data += 0.3 * torch.randn_like(p) * p.std().nan_to_num(1).clamp(min=0.1)
    return model


def prompts(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(3, VOCAB, (batch, 5)), torch.tensor([5, 3, 1])[:batch]


def slowly(model, prompt, lengths):
    """The state of the plain path: asked for with gradients, which kernels have none of."""
    with torch.enable_grad():
        state = make_stepper(model).start(prompt, lengths)
    assert not isinstance(state, GpuState)
    return state


def both(model, prompt, lengths):
    stepper = make_stepper(model)
    state = stepper.start(prompt, lengths)
    assert isinstance(state, GpuState)
    return stepper, state, slowly(model, prompt, lengths)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", ["learned", "rotary", "bare", *rarely("sinusoidal", "relu")])
def test_kernel_logits_match_the_model(name, batch):
    model = made(name)
    prompt, lengths = prompts(batch)
    stepper = cast(LanguageStepper, make_stepper(model))
    stepper.engine.tuning = FINE
    state = stepper.start(prompt, lengths)
    assert isinstance(state, GpuState)
    written, steps = torch.randint(3, VOCAB, (batch, 1)), []
    for token in (last_tokens(prompt, lengths), *written.unbind(1)):
        logits, state = stepper.step(token, state)
        steps.append(logits)
    for n, length in enumerate(lengths):
        whole = torch.cat([prompt[n, :length], written[n]])[None]
        want = model(whole)[0, length - 1 :]
        assert_close(torch.stack(steps, 1)[n], want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "batch", "changes"),
    [
        ("learned", 1, {}),
        ("rotary", 1, {"max_fused_keys": 0}),
        ("learned", 2, {}),
        ("rotary", 2, {"weights_in_registers": False}),
    ],
)
def test_half_precision_kernel_logits_match_the_model(name, batch, changes):
    model, (prompt, _) = made(name, dim=32, heads=2, head_dim=16, ffn_dim=64), prompts(batch)
    for p in model.parameters():
        p.data = p.half().float()
    want = model(prompt)[:, -1]
    stepper = cast(LanguageStepper, make_stepper(model.half()))
    stepper.engine.tuning = replace(FINE, **(FEW_CORES | changes))
    got, _ = stepper.step(prompt[:, -1], stepper.start(prompt))
    assert_close(got, want, atol=0.02, rtol=0.02)


@pytest.mark.parametrize(
    "changes", [{"max_fused_keys": 0}, {"out_splits": 2, "lane_bytes": 1 << 16}]
)
def test_logits_do_not_depend_on_the_tuning(changes):
    model, (prompt, _) = made("rotary"), prompts(1)
    stepper, found = cast(LanguageStepper, make_stepper(model)), []
    for tuning in (Tuning(), Tuning(**changes)):
        stepper.engine.tuning = tuning
        found.append(stepper.step(prompt[:, -1], stepper.start(prompt))[0])
    assert_close(found[0], found[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("layer", "value"),
    [
        ("self_attention", torch.nan),
        ("feed_forward", torch.inf),
        ("self_attention", 1e30),
        ("feed_forward", 1e30),
        pytest.param("self_attention", torch.inf, marks=pytest.mark.slow),
        pytest.param("feed_forward", torch.nan, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # of numpy, in the interpreter
def test_nan_and_overflow_give_nan_logits(layer, value):
    model, (prompt, _) = made("learned", layers=1), prompts(1)
    getattr(model.decoder.blocks[0], layer).to_out.weight.data[3, 4] = value
    stepper = make_stepper(model)
    state = stepper.start(prompt)
    assert stepper.step(prompt[:, -1], state)[0].isnan().all()
    written = greedy(stepper, state, prompt[:, -1], end=END, max_new_tokens=2)
    assert written.tokens.max() < VOCAB
    getattr(model.decoder.blocks[0], layer).to_out.weight.data[3, 4] = 0.1
    assert stepper.step(prompt[:, -1], stepper.start(prompt))[0].isfinite().all()


@pytest.mark.parametrize(
    ("batch", "rules"),
    [(1, ()), (2, (SuppressTokens([5, 7]),)), (1, (AllowedTokens(range(9, 30), end=END),))],
)
def test_greedy_matches_the_model(batch, rules):
    model, (prompt, lengths) = made("learned", layers=1), prompts(batch)
    stepper, state, slow = both(model, prompt, lengths)
    first, given = (
        last_tokens(prompt, lengths),
        {"end": END, "max_new_tokens": 4, "constraints": rules},
    )
    got, want = (greedy(stepper, s, first, **given) for s in (state, slow))
    assert got.to_lists() == want.to_lists()
    assert torch.equal(got.ended, want.ended)
    assert_close(got.log_prob, want.log_prob, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("batch", [2, *rarely(1)])
def test_sampling_matches_the_model(batch):
    model, (prompt, lengths) = made("learned", layers=1), prompts(batch)
    stepper, state, slow = both(model, prompt, lengths)
    given = {
        "end": END,
        "max_new_tokens": 4,
        "sampling": Sampling(temperature=1.3, top_p=0.9, seed=3),
    }
    first = last_tokens(prompt, lengths)
    got, want = (sample(stepper, s, first, **given) for s in (state, slow))
    assert got.to_lists() == want.to_lists()
    assert_close(got.log_prob, want.log_prob, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("how", [None, Sampling(seed=3)], ids=["greedy", "drawn"])
def test_a_finished_row_stays_unchanged_in_its_batch(how):
    model, (prompt, lengths) = made("sinusoidal", tied=False), prompts(2)
    stepper, state, slow = both(model, prompt, lengths)
    first = last_tokens(prompt, lengths)

    def written(state, end: int):
        return collect_steps(
            [*stream(stepper, state, first, end=end, max_new_tokens=4, sampling=how)]
        )

    free = written(slow, -1).tokens[0].tolist()
    end = free[0]  # so that one row ends at once
    assert free.count(end) < len(free)  # and would write something else
    got, want = (written(s, end) for s in (state, slow))
    assert want.lengths[0] == 0 < want.lengths[1]
    assert got.tokens.tolist() == want.tokens.tolist()
    assert got.lengths.tolist() == want.lengths.tolist()
    assert_close(got.log_prob, want.log_prob, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["sinusoidal", *rarely("rotary")])
def test_beam_search_matches_the_model(name):
    model, (prompt, lengths) = made(name), prompts(2)
    stepper, state, slow = both(model, prompt, lengths)
    given: Any = {"end": END, "max_new_tokens": 4, "width": 2, "n_best": 2}
    first = last_tokens(prompt, lengths)
    got, want = (beam(stepper, s, first, **given) for s in (state, slow))
    assert got.to_lists() == want.to_lists()
    assert_close(got.log_prob, want.log_prob, atol=1e-4, rtol=1e-4)


def test_greedy_does_not_depend_on_the_batch():
    model, (prompt, lengths) = made("sinusoidal"), prompts(3)
    stepper, first = make_stepper(model), last_tokens(prompt, lengths)
    given: Any = {"end": END, "max_new_tokens": 2}
    together = greedy(stepper, stepper.start(prompt, lengths), first, **given)
    for n, length in enumerate(lengths):
        row = prompt[n : n + 1, :length]
        alone = greedy(stepper, stepper.start(row), row[:, -1], **given)
        assert together.to_lists()[n] == alone.to_lists()[0]


def test_a_state_can_be_continued_twice_and_beyond_its_capacity():
    model, (prompt, lengths) = made("sinusoidal"), prompts(1)
    stepper, state, slow = both(model, prompt, lengths)
    first = last_tokens(prompt, lengths)
    want = greedy(
        stepper, slow, first, end=END, max_new_tokens=5
    ).to_lists()  # 4 + 5 are more than 8
    for _ in range(2):
        assert greedy(stepper, state, first, end=END, max_new_tokens=5).to_lists() == want
    _, after = stepper.step(first, state)
    once, _ = stepper.step(first, after)
    stepper.step(first + 1, after)
    again, _ = stepper.step(first, after)
    assert_close(again, once)


def test_free_buffers_are_reused():
    model, (prompt, lengths) = made("sinusoidal"), prompts(3)
    stepper = make_stepper(model)
    held = stepper.start(prompt, lengths).lease.buffers
    assert stepper.start(prompt, lengths).lease.buffers is held
    for p in model.parameters():
        p.data = p.data.clone()  # other addresses: a graph would read the old ones
    assert stepper.start(prompt, lengths).lease.buffers is not held


def test_look_records_every_attention_also_from_the_middle_of_a_sequence():
    import regard as rg

    model, (prompt, lengths) = made("sinusoidal"), prompts(2)
    stepper, state, _ = both(model, prompt, lengths)
    first = last_tokens(prompt, lengths)
    _, state = stepper.step(first, state)
    with rg.look(model) as sight:
        seen, _ = stepper.step(first, state)
    assert {site.name for site in sight} >= {"decoder.0.self"}
    unseen, _ = stepper.step(first, state)
    assert_close(seen, unseen, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_batches_larger_than_one_program_match_the_model(monkeypatch):
    monkeypatch.setattr(launcher, "MAX_BATCH_TILE", 16)
    model, prompt = made("sinusoidal"), torch.randint(3, VOCAB, (18, 3))
    stepper, state, _ = both(model, prompt, None)
    logits, _ = stepper.step(prompt[:, -1], state)
    assert_close(logits, model(prompt)[:, -1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [{"softcap": 9.0}, {"sinks": True}, {"relative_bias": "alibi"}, {"norm_first": False}],
)
def test_models_unsupported_by_the_kernels_run_their_own_modules(changes):
    assert not isinstance(make_stepper(made("sinusoidal", **changes)).start(*prompts(3)), GpuState)
