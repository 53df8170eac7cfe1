"""CutMix: rectangles, own fractions, and a loss over two classes."""

import math
from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close
from toy import run_until

from regard import models, train
from regard.data import ImageBatches, cutmix, seeded_generator
from regard.errors import ConfigError
from regard.tasks import GlyphsTask, ImagesTask

# ---- worked numbers


class Says(nn.Module):
    def forward(self, pixels):
        return torch.tensor([[0.5, 0.25, 0.25]]).log().expand(len(pixels), -1)


def test_the_cutmix_loss_is_weighted_over_both_classes():
    rows = {"pixels": torch.zeros(2, 1), "label": torch.tensor([0, 1])}
    rows |= {"other": torch.tensor([1, 1]), "share": torch.tensor([0.75, 0.1])}
    want = 0.75 * math.log(2) + 0.25 * math.log(4) + math.log(4)
    of = train.objective("class")
    assert_close(of.loss_sum(Says(), rows, 0.0), torch.tensor(want))
    assert int(of.size(rows)) == 2


# ---- properties


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_cutmix_pastes_one_rectangle_and_returns_the_own_fraction(batch, height, width, seed):
    numbers = torch.arange(batch)[:, None, None, None]
    found = cutmix(
        numbers.float().expand(-1, 2, height, width), seeded_generator(seed), probability=1.0
    )
    assert sorted(found.partners.tolist()) == list(range(batch))
    for n, (picture, whose) in enumerate(zip(found.images, found.partners.tolist(), strict=True)):
        foreign = picture != n
        assert bool((picture[foreign] == whose).all())
        assert torch.equal(foreign[0], foreign[1])  # the same piece of every channel
        rows, columns = int(foreign[0].any(1).sum()), int(foreign[0].any(0).sum())
        assert int(foreign[0].sum()) == rows * columns
        if whose != n:
            assert_close(1 - found.own_fraction[n], foreign.float().mean())


def test_cutmix_follows_its_probability_in_every_size():
    x = torch.zeros(4000, 1, 20, 20, dtype=torch.uint8)
    share = cutmix(x, seeded_generator(0), probability=0.5).own_fraction
    assert 0.45 < float((share == 1).float().mean()) < 0.56  # some pieces are smaller than a pixel
    all_ = cutmix(x, seeded_generator(1), probability=1.0).own_fraction
    assert float(all_.min()) < 0.1
    assert float(all_.max()) > 0.98
    assert (
        float(cutmix(x[..., :4], seeded_generator(1), probability=1.0).own_fraction.min()) < 0.1
    )  # tall as the picture
    assert torch.equal(
        cutmix(x, seeded_generator(2), probability=0.0).own_fraction, torch.ones(4000)
    )


def test_label_smoothing_with_cutmix_is_the_cross_entropy_of_a_soft_label():
    logits, label, other = torch.randn(5, 4), torch.randint(4, (5,)), torch.randint(4, (5,))
    share = torch.rand(5)
    soft = share[:, None] * F.one_hot(label, 4) + (1 - share)[:, None] * F.one_hot(other, 4)
    want = F.cross_entropy(logits, soft, reduction="sum", label_smoothing=0.1)
    batch = {"pixels": logits, "label": label, "other": other, "share": share}
    assert_close(train.objective("class").loss_sum(nn.Identity(), batch, 0.1), want)


def batches(**changes) -> ImageBatches:
    pictures = torch.arange(12, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8)
    chosen = {"batch_size": 5, "shift": 1, "flip": True, "random_erasing": 0.5, "seed": 3} | changes
    return ImageBatches(pictures, torch.arange(12), **chosen)


def test_cutmix_changes_only_the_pasted_rectangles_of_a_batch():
    kinds = [islice(batches(**given), 4) for given in ({}, {"cutmix": 0.0}, {"cutmix": 1.0})]
    for plain, none, some in zip(*kinds, strict=True):
        assert list(plain) == list(none) == ["pixels", "label"]
        assert_close(plain, none, rtol=0, atol=0)
        assert torch.equal(some["label"], plain["label"])
        whole = some["share"] == 1
        assert torch.equal(some["pixels"][whole], plain["pixels"][whole])


def test_rectangles_carry_the_class_of_their_image():
    batch = next(iter(batches(cutmix=1.0, shift=0, flip=False, random_erasing=0.0)))
    for pixels, label, other, share in zip(*batch.values(), strict=True):
        foreign = (pixels * 255).round() != label
        assert bool(((pixels * 255).round()[foreign] == other).all())
        if label != other:
            assert_close(1 - share, foreign.float().mean())


def test_a_training_with_cutmix_and_rdrop_learns_and_resumes_bit_for_bit(tmp_path):
    def trainer(folder):
        torch.manual_seed(0)
        pictures = torch.zeros(24, 1, 8, 8, dtype=torch.uint8)
        labels = torch.arange(24) % 3
        for n, label in enumerate(labels.tolist()):
            pictures[n, 0, 2 * label : 2 * label + 3] = 200
        config = models.vision_tiny(
            3, image_size=8, channels=1, patch_size=4, layers=1, dim=16, heads=2, dropout=0.1
        )
        chosen = train.TrainConfig(
            steps=40, warmup=4, lr=1e-2, rdrop=0.5, label_smoothing=0.1, device="cpu",
            save_every=10, keep_last=3, average_last=3,
        )  # fmt: skip
        source = ImageBatches(pictures, labels, batch_size=12, cutmix=0.5, seed=1)
        model = models.VisionTransformer(config)
        return train.Trainer(model, train.objective("class"), source, chosen, folder=folder)

    whole = trainer(tmp_path / "whole")
    whole.run()
    assert whole.loss < 0.95  # from ln 3 = 1.10; a mixed label is ambiguous
    run_until(trainer(tmp_path / "parts"), 7)
    again = trainer(tmp_path / "parts")
    torch.manual_seed(99)
    assert again.resume() == []
    again.run()
    one, two = train.copy_weights(whole.model), train.copy_weights(again.model)
    assert all(torch.equal(one[name], two[name]) for name in one)
    mean = train.average_checkpoints(
        train.list_checkpoints(tmp_path / "whole" / "checkpoints")[-3:]
    )
    assert all(torch.equal(one[name], mean[name]) for name in one)


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_an_invalid_probability_raises():
    with pytest.raises(ConfigError, match=r"cutmix: needs to be from 0 to 1, got 1\.5"):
        ImagesTask(path="x", cutmix=1.5)
    with pytest.raises(ConfigError, match=r"cutmix: needs to be from 0 to 1, got -0\.1"):
        GlyphsTask(cutmix=-0.1)
