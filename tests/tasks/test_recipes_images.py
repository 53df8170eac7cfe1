"""Image recipes: held-out images are never trained on, and every image comes once per epoch."""

from itertools import islice

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from regard import models, runs, tasks
from regard.data import ImageBatches, augment, seeded_generator
from regard.errors import ConfigError, FileError
from regard.tasks import GlyphsTask, ImagesTask


def write_idx(file, array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    file.write_bytes(head + array.astype("u1").tobytes())


@pytest.fixture
def fashion(tmp_path):
    """Ten classes that differ in where they are bright; the first pixel is the image's number."""
    for part, count in (("train", 60), ("t10k", 20)):
        labels = np.arange(count) % 10
        images = np.zeros((count, 28, 28))
        for n, label in enumerate(labels):
            images[n, 2 * label + 4 : 2 * label + 7, 4:24] = 200
            images[n, 0, 0] = n
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", labels)
    return tmp_path


def counted(count=10, **settings):
    pictures = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 4, 4)
    return ImageBatches(pictures, torch.arange(count), **settings)


def test_every_image_comes_once_per_epoch():
    taken = [n for batch in islice(counted(batch_size=4), 5) for n in batch["label"].tolist()]
    assert sorted(taken[:10]) == list(range(10)) == sorted(taken[10:])
    assert taken[:10] != taken[10:]


def test_pixels_and_labels_stay_together():
    batch = next(iter(counted(batch_size=4)))
    assert_close(batch["pixels"].amax((1, 2, 3)) * 255, batch["label"].float())


def test_two_ranks_share_the_batches_of_one():
    alone = [batch["label"].tolist() for batch in islice(counted(batch_size=3, seed=1), 4)]
    ranks = [islice(counted(batch_size=3, seed=1, rank=r, world_size=2), 2) for r in range(2)]
    assert [b["label"].tolist() for pair in zip(*ranks, strict=True) for b in pair] == alone


def test_a_restored_source_continues_with_the_same_pixels():
    first = counted(batch_size=4, shift=1, flip=True, random_erasing=0.5, seed=3)
    stream = iter(first)
    for _ in range(3):
        next(stream)
    second = counted(batch_size=4, shift=1, flip=True, random_erasing=0.5, seed=3)
    second.restore(first.state())
    assert_close(next(iter(second)), next(stream), rtol=0, atol=0)


def test_a_shift_moves_the_image_and_pads_with_black():
    x = torch.zeros(200, 1, 9, 9)
    x[:, :, 4, 4] = 1
    moved = augment(x, seeded_generator(0), shift=2)
    places = moved.flatten(1).argmax(1)
    assert_close(moved.sum((1, 2, 3)), torch.ones(200))
    assert {(int(p) // 9 - 4, int(p) % 9 - 4) for p in places} == {
        (y, z) for y in range(-2, 3) for z in range(-2, 3)
    }


def test_a_flip_mirrors_about_half_of_the_images():
    x = torch.arange(12.0).reshape(1, 1, 3, 4).repeat(100, 2, 1, 1)
    seen = augment(x, seeded_generator(1), flip=True)
    mirrored = (seen == x.flip(-1)).all((1, 2, 3))
    assert ((seen == x).all((1, 2, 3)) | mirrored).all()
    assert 30 < int(mirrored.sum()) < 70


def test_random_erasing_erases_one_square_of_limited_side():
    gone = augment(torch.ones(300, 1, 10, 10), seeded_generator(2), random_erasing=0.4)[:, 0] == 0
    rows, columns = gone.any(2).sum(1), gone.any(1).sum(1)
    assert_close(gone.sum((1, 2)), rows * columns)
    assert int(rows.max()) == 4
    assert bool((rows == 0).any())


def test_valid_images_are_never_trained_on(fashion):
    data = ImagesTask(path=str(fashion), size=28, valid_images=20)
    numbers = data.train_split(0)[0][:, 0, 0, 0].tolist()
    assert numbers == list(range(40))
    assert data.evaluator(None, "valid").images[:, 0, 0, 0].tolist() == list(range(40, 60))
    assert len(data.evaluator(None, "test").labels) == 20


def test_a_smaller_train_split_is_sampled_by_the_seed(fashion):
    data = ImagesTask(path=str(fashion), size=28, valid_images=20, train_images=8)
    first, again, other = (data.train_split(seed)[0][:, 0, 0, 0].tolist() for seed in (0, 0, 1))
    assert first == again != other
    assert len(set(first)) == 8
    assert max(first) < 40


@pytest.mark.parametrize("name", ["fashion-vit", "fashion-resnet"])
def test_a_fashion_run_learns_and_loads(fashion, tmp_path, name):
    small = (
        ["layers=1", "heads=2", "dim=16", "patch_size=4"] if name == "fashion-vit" else ["width=8"]
    )
    settings = [
        f"path={fashion}",
        "valid_images=10",
        "steps=60",
        "batch_size=40",
        "warmup=5",
        "lr=1e-2",
    ]
    settings += [
        *small,
        "shift=0",
        "flip=no",
        "random_erasing=0",
        "label_smoothing=0",
        "device=cpu",
    ]
    outcome = runs.fit(runs.override_settings(tasks.recipe(name), settings), tmp_path / "run")
    assert outcome.scores["accuracy"] > 0.9
    run = runs.load_run(tmp_path / "run")
    scores = run.recipe.data.evaluator(None, "test")(run.model)
    assert_close(scores["loss"], outcome.scores["loss"], rtol=1e-4, atol=1e-4)


def test_glyphs_are_learned_in_seconds(tmp_path):
    settings = [
        "data.classes=01",
        "train_images=300",
        "steps=50",
        "batch_size=32",
        "layers=1",
        "dim=32",
    ]
    settings += ["noise=0", "warmup=5", "valid_size=50", "test_size=200", "device=cpu"]
    outcome = runs.fit(runs.override_settings(tasks.recipe("glyphs"), settings), tmp_path / "run")
    assert outcome.scores["accuracy"] > 0.8


def test_larger_train_splits_contain_smaller_ones_and_no_test_glyph():
    few, many = (GlyphsTask(train_images=n).train_split(0)[0] for n in (5, 20))
    assert torch.equal(many[:5], few)
    test = GlyphsTask(test_size=20).evaluator(None, "test").images
    assert not any(torch.equal(a, b) for a in many for b in test)


def test_vit_and_resnet_recipes_have_the_same_size():
    for pair in (("fashion-vit", "fashion-resnet"), ("glyphs", "glyphs-resnet")):
        sizes = [
            sum(p.numel() for p in models.build(tasks.recipe(name).model).parameters())
            for name in pair
        ]
        assert max(sizes) / min(sizes) < 1.05


@pytest.mark.usefixtures("users_view")
def test_invalid_image_settings_raise(fashion):
    with pytest.raises(FileError, match="nowhere: needs one folder per class or a table of labels"):
        ImagesTask(path="nowhere").train_split(0)
    with pytest.raises(ConfigError, match="train_images: needs to be from 1 to 50, got 51"):
        ImagesTask(path=str(fashion), size=28, valid_images=10, train_images=51).train_split(0)
    with pytest.raises(ConfigError, match="random_erasing: needs to be from 0 to 1, got 2"):
        ImagesTask(path="x", random_erasing=2)
    with pytest.raises(ConfigError, match="shift: needs 0 pixels or more, got -1"):
        GlyphsTask(shift=-1)
    with pytest.raises(ConfigError, match="train_images: needs to be a number"):
        GlyphsTask(train_images=None)
    with pytest.raises(ConfigError, match="batch_size: needs 1 or more, got 0"):
        counted(batch_size=0)
    with pytest.raises(ConfigError, match="seed: needs to be 0 as in the state, got 1"):
        counted(batch_size=1, seed=1).restore(counted(batch_size=1).state())
