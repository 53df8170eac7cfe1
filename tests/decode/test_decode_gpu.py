"""On a GPU captured steps generate what the model generates, in whole and repeated calls."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import regard as rg
from regard import models
from regard.decode import Sampling, beam, greedy, last_tokens, make_stepper, sample
from regard.decode.gpu.launcher import Tuning
from regard.decode.language_stepper import GpuState, LanguageStepper

pytestmark = pytest.mark.gpu
VOCAB, END = 1000, 2
LLAMA = {
    "positions": "none", "rope_theta": 10000.0, "kv_heads": 2, "ffn_dim": 704, "gated": True,
    "activation": "silu", "norm": "rms", "bias": False,
}  # fmt: skip
WIDE = LLAMA | {"head_dim": 512, "rope_scaling": rg.ops.RopeScaling("llama3", 8.0, 16)}
each_model = pytest.mark.parametrize("changes", [{}, LLAMA, WIDE], ids=["gpt", "llama", "wide"])
each_batch = pytest.mark.parametrize("batch", [1, 3, 33])


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def made(changes: dict[str, Any], dtype: torch.dtype = torch.float32) -> models.LanguageModel:
    config = models.language_base(
        **({"vocab": VOCAB, "layers": 3, "dim": 256, "heads": 4, "dropout": 0.0} | changes)
    )
    return models.LanguageModel(config).to("cuda", dtype).eval()


def prompts(batch: int) -> tuple[Tensor, Tensor | None]:
    tokens = torch.randint(3, VOCAB, (batch, 9), device="cuda")
    return tokens, torch.randint(1, 10, (batch,), device="cuda") if batch > 1 else None


def both(model, prompt, lengths):
    """A stepper, its captured state, and the state of the plain path, which has gradients."""
    stepper = cast(LanguageStepper, make_stepper(model))
    state = stepper.start(prompt, lengths)
    assert isinstance(state, GpuState)
    with torch.enable_grad():
        slow = stepper.start(prompt, lengths)
    assert not isinstance(slow, GpuState)
    return stepper, state, slow


@each_model
@pytest.mark.parametrize("batch", [1, 3, 33, 70])  # a program takes 64 rows at most
@pytest.mark.parametrize("chained", [True, False], ids=["chained", "plain"])
def test_logits_on_a_gpu_match_the_model(changes, batch, chained):
    model, (prompt, lengths) = made(changes), prompts(batch)
    stepper, *_ = both(model, prompt, lengths)
    stepper.engine.tuning = Tuning(pdl=chained, batch_pdl=chained)
    stepper, quick, slow = both(model, prompt, lengths)
    token = last_tokens(prompt, lengths)
    for _ in range(5):
        got, quick = stepper.step(token, quick)
        want, slow = stepper.step(token, slow)
        assert_close(got, want, atol=1e-4, rtol=1e-4)
        token = want.argmax(-1)


@each_model
@each_batch
@pytest.mark.parametrize(
    "tuning",
    [
        Tuning(),
        Tuning(pdl=False, batch_pdl=False),
        Tuning(max_fused_keys=0, weights_in_registers=False),
        Tuning(mma_warps=0, register_outs=16),
    ],
    ids=["default", "plain", "apart", "narrow"],
)
def test_bfloat16_on_a_gpu_is_as_close_to_float32_as_the_model(changes, batch, tuning):
    model, (prompt, lengths) = made(changes, torch.bfloat16), prompts(batch)
    exact = made(changes)
    exact.load_state_dict(model.state_dict())
    stepper = cast(LanguageStepper, make_stepper(model))
    stepper.engine.tuning = tuning
    stepper, quick, slow = both(model, prompt, lengths)
    _, _, true = both(exact, prompt, lengths)
    other, token = make_stepper(exact), last_tokens(prompt, lengths)
    for _ in range(4):
        got, quick = stepper.step(token, quick)
        own, slow = stepper.step(token, slow)
        want, true = other.step(token, true)
        assert (got - want).abs().mean() <= 1.5 * (own - want).abs().mean() + 1e-3
        token = want.argmax(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_row_on_a_gpu_is_the_same_to_the_bit_each_time(dtype):
    model, (prompt, _) = made({}, dtype), prompts(1)
    stepper = make_stepper(model)
    found = [stepper.step(prompt[:, -1], stepper.start(prompt))[0] for _ in range(30)]
    assert all(torch.equal(one, found[0]) for one in found)


@each_batch
def test_nan_gives_nan_logits_on_a_gpu(batch):
    model, (prompt, lengths) = made({}, torch.bfloat16), prompts(batch)
    weight = cast(Any, model.decoder.blocks[1]).feed_forward.to_out.weight.data
    weight[3, 4] = torch.nan
    stepper, state, _ = both(model, prompt, lengths)
    first = last_tokens(prompt, lengths)
    assert stepper.step(first, state)[0].isnan().all()
    written = greedy(stepper, stepper.start(prompt, lengths), first, end=END, max_new_tokens=9)
    assert written.tokens.max() < VOCAB
    weight[3, 4] = 0.1
    assert stepper.step(first, stepper.start(prompt, lengths))[0].isfinite().all()


@each_model
@pytest.mark.parametrize(("batch", "width"), [(1, 1), (3, 1), (33, 1), (1, 3), (3, 3)])
def test_searches_on_a_gpu_match_the_model(changes, batch, width):
    model, (prompt, lengths) = made(changes), prompts(batch)
    stepper, _, slow = both(model, prompt, lengths)
    first = last_tokens(prompt, lengths)

    def found(state):
        if width == 1:
            return greedy(stepper, state, first, end=END, max_new_tokens=21)
        return beam(stepper, state, first, end=END, max_new_tokens=21, width=width)

    want = found(slow)
    for _ in range(3):  # a prompt of a length that has come before is replayed
        got = found(stepper.start(prompt, lengths))
        assert got.to_lists() == want.to_lists()
        assert_close(got.log_prob, want.log_prob, atol=1e-3, rtol=1e-3)


@each_batch
def test_sampling_on_a_gpu_matches_the_model_and_is_reproducible(batch):
    model, (prompt, lengths) = made({}), prompts(batch)
    stepper, _, slow = both(model, prompt, lengths)
    first, how = last_tokens(prompt, lengths), Sampling(top_k=40, seed=5)

    def drawn(state) -> list[list[int]]:
        return sample(stepper, state, first, end=END, max_new_tokens=21, sampling=how).to_lists()

    want = drawn(slow)
    got = [drawn(stepper.start(prompt, lengths)) for _ in range(3)]
    assert got[0] == got[1] == got[2]
    # a uniform within float32 rounding of a boundary may give either token
    assert sum(a != b for a, b in zip(got[0], want, strict=True)) <= batch // 30


@pytest.mark.parametrize("batch", [1, 32])
def test_bfloat16_parts_from_the_model_only_where_two_tokens_are_as_likely(batch):
    model, prompt = made({}, torch.bfloat16), prompts(batch)[0]
    stepper, state, slow = both(model, prompt, None)
    got, want = (
        greedy(stepper, s, prompt[:, -1], end=-1, max_new_tokens=21).tokens for s in (state, slow)
    )
    for n in range(batch):
        apart = (got[n] != want[n]).nonzero()
        if not len(apart):
            continue
        at = int(apart[0])
        logits = model(torch.cat([prompt[n], want[n, :at]])[None])[0, -1].float()
        assert abs(float(logits[got[n, at]] - logits[want[n, at]])) < 0.1


def test_look_on_a_gpu_runs_the_modules():
    model, (prompt, lengths) = made({}), prompts(3)
    stepper, state, _ = both(model, prompt, lengths)
    first = last_tokens(prompt, lengths)
    _, state = stepper.step(first, state)
    with rg.look(model) as sight:
        seen, _ = stepper.step(first, state)
    unseen, _ = stepper.step(first, state)
    assert {site.name for site in sight} >= {"decoder.0.self"}
    assert_close(seen, unseen, atol=1e-4, rtol=1e-4)


def test_weights_that_moved_are_read_from_where_they_are():
    model, (prompt, lengths) = made({}), prompts(3)
    stepper, state, _ = both(model, prompt, lengths)
    first, given = last_tokens(prompt, lengths), cast(Any, {"end": END, "max_new_tokens": 9})
    greedy(stepper, state, first, **given)
    for p in model.parameters():
        p.data = p.data.flip(0).contiguous()
    stepper, state, slow = both(model, prompt, lengths)
    got, want = (greedy(stepper, s, first, **given).to_lists() for s in (state, slow))
    assert got == want
