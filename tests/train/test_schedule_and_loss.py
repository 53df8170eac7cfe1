"""Learning rates and losses by hand; sums that do not depend on the batching."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard import models
from regard.errors import ConfigError
from regard.train import TrainConfig, label_smoothed_cross_entropy, lr_factor, objective

# ---- worked numbers


def test_warmup_is_linear():
    assert [lr_factor(n, warmup=4, steps=100) for n in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]


def test_inverse_sqrt_matches_the_paper():
    # Vaswani et al., eq. 3: dim^-0.5 min(step^-0.5, step warmup^-1.5), (dim warmup)^-0.5 at most
    for step in (1, 100, 4000, 4001, 16000, 100000):
        paper = 512**-0.5 * min(step**-0.5, step * 4000**-1.5) / (512 * 4000) ** -0.5
        ours = lr_factor(step, schedule="inverse_sqrt", warmup=4000, steps=100000)
        assert ours == pytest.approx(paper, rel=1e-12)


def test_cosine_ends_at_min_lr_fraction():
    at = [lr_factor(n, warmup=10, steps=110, min_lr_fraction=0.1) for n in (10, 60, 110)]
    assert at == pytest.approx([1.0, 0.55, 0.1])


def test_label_smoothing_by_hand():
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
    want = -(0.9 * math.log(0.5) + 0.1 / 3 * (math.log(0.5) + 2 * math.log(0.25)))
    assert_close(label_smoothed_cross_entropy(logits, torch.tensor([0]), 0.1), torch.tensor(want))


# ---- properties


@given(st.sampled_from(["inverse_sqrt", "cosine", "constant"]), st.integers(0, 20))
def test_the_learning_rate_never_rises_after_warmup(schedule, warmup):
    rates = [lr_factor(n, schedule=schedule, warmup=warmup, steps=50) for n in range(1, 51)]
    assert all(0 <= rate <= 1 for rate in rates)
    after = rates[max(0, warmup - 1) :]
    assert after == sorted(after, reverse=True)


def translation_batch() -> dict[str, torch.Tensor]:
    lengths, others = torch.tensor([6, 2, 4]), torch.tensor([5, 5, 3])
    return {
        "source": torch.randint(9, (3, 5)),
        "target": torch.randint(9, (3, 6)),
        "source_lengths": others,
        "target_lengths": lengths,
    }


def token_batch() -> dict[str, torch.Tensor]:
    return {"tokens": torch.randint(9, (3, 6)), "tokens_lengths": torch.tensor([6, 2, 4])}


CASES = {
    "translation": (lambda: models.Translator(models.translator_tiny(9)), translation_batch),
    "next_token": (lambda: models.LanguageModel(models.language_tiny(9)), token_batch),
    "class": (
        lambda: models.Classifier(models.classifier_tiny(9, 3)),
        lambda: token_batch() | {"label": torch.tensor([0, 1, 2])},
    ),
    "ctc": (
        lambda: models.Recogniser(models.recogniser_tiny(9)),
        lambda: {
            "frames": torch.randn(3, 40, 40),
            "frames_lengths": torch.tensor([40, 36, 30]),
            "target": torch.randint(1, 9, (3, 2)),
            "target_lengths": torch.tensor([2, 1, 2]),
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_loss_of_a_batch_is_the_sum_over_its_rows(name):
    model, batch = CASES[name][0]().eval(), CASES[name][1]()
    size, total = objective(name)
    rows = [{key: x[n : n + 1] for key, x in batch.items()} for n in range(3)]
    apart = sum(total(model, row, 0.1) for row in rows)
    assert_close(total(model, batch, 0.1), apart, rtol=1e-4, atol=1e-4)
    assert int(size(batch)) == sum(int(size(row)) for row in rows)


def test_smoothing_of_ctc_draws_each_frame_to_the_uniform_distribution():
    class Fixed(torch.nn.Module):
        def forward(self, frames, lengths):
            padding = [0.4, 0.3, 0.3]
            return torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], padding]]).log(), lengths

    batch = {
        "frames": torch.zeros(1, 3, 1), "frames_lengths": torch.tensor([2]),
        "target": torch.tensor([[1]]), "target_lengths": torch.tensor([1]),
    }  # fmt: skip
    paths = 0.5 * 0.8 + 0.25 * 0.8 + 0.25 * 0.1  # blank and label, the label twice, label and blank
    to_uniform = -sum(math.log(p) for p in (0.5, 0.25, 0.25, 0.1, 0.8, 0.1)) / 3
    want = 0.9 * -math.log(paths) + 0.1 * to_uniform
    assert_close(objective("ctc").loss_sum(Fixed(), batch, 0.1), torch.tensor(want))


@pytest.mark.parametrize("name", ["translation", "next_token"])
def test_padding_does_not_count(name):
    model, batch = CASES[name][0]().eval(), CASES[name][1]()
    key = "target" if name == "translation" else "tokens"
    other = dict(batch, **{key: batch[key].clone()})
    other[key][1, 2:] = 8
    _, total = objective(name)
    assert_close(total(model, batch, 0.1), total(model, other, 0.1))


# ---- errors


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps: needs a whole number of 1 or more, got 0"),
        ({"lr": -1.0}, "lr: needs more than 0, got -1.0"),
        ({"lr": math.nan}, "lr: needs more than 0, got nan"),
        ({"label_smoothing": 1.0}, "label_smoothing: needs at least 0 and less than 1, got 1.0"),
        ({"betas": (0.9, 1.0)}, "betas: needs at least 0 and less than 1"),
        ({"schedule": "cosin"}, "schedule: needs one of .* got 'cosin'"),
        (
            {"average_last": 5},
            "average_last: needs at most keep_last=3 checkpoints, got 5; try keep_last=5",
        ),
        ({"warmup": -1}, "warmup: needs 0 or more, got -1"),
    ],
)
def test_an_invalid_config_raises(changes, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**({"steps": 9} | changes))
