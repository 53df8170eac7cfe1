"""Glyphs depend on their seed alone; IDX files and folders are read as images."""

import gzip
import struct
import time
from itertools import islice

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data import Batches, Glyphs, load_images, read_idx
from regard.errors import ConfigError, FileError


def idx(array):
    kind = {"uint8": 8, "float32": 13}[str(array.dtype)]
    head = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.fixture
def mnist(tmp_path):
    for name, count in (("train", 20), ("t10k", 5)):
        images = np.arange(count * 16, dtype="uint8").reshape(count, 4, 4)
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        labels = (np.arange(count) % 3).astype("uint8")
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels))
    return tmp_path


@pytest.fixture
def folder(tmp_path):
    for i in range(40):
        place = tmp_path / "ab"[i % 2]
        place.mkdir(exist_ok=True)
        Image.new("RGB", (6, 5), (i, 2 * i, 3 * i)).save(place / f"{i}.png")
    return tmp_path


def same(one, two):
    return one.label == two.label and torch.equal(one.image, two.image)


def test_a_still_glyph_is_bright_where_the_letter_is():
    still = Glyphs("I-", size=15, translate=0, degrees=0, shear=0, scale=0, noise=0)
    pictures = {p.label: p.image[0] for p in islice(still.examples("train", 0), 20)}
    assert pictures[0].sum(0).argmax() == 7  # I stands
    assert pictures[1].sum(1).max() > pictures[1].sum(0).max()  # - lies


def test_an_image_depends_on_its_index_and_splits_differ():
    glyphs = Glyphs(eval_size=9)
    whole = list(islice(glyphs.examples("train", seed=2), 9))
    assert all(map(same, whole[4:], glyphs.examples("train", seed=2, start=4)))
    assert not same(whole[0], next(glyphs.examples("train", seed=3)))
    assert not same(whole[0], next(glyphs.examples("test", seed=2)))
    assert len(list(glyphs.examples("test", 0))) == 9
    assert all(map(same, glyphs.examples("test", 0), glyphs.examples("test", 1)))


def test_glyphs_are_separable_by_the_nearest_mean():
    glyphs = Glyphs(
        "0123456789", degrees=8, shear=0.1, translate=0.04, scale=0.1, noise=0.05, eval_size=100
    )
    means = torch.zeros(10, 28 * 28)
    for picture in islice(glyphs.examples("train", 0), 300):
        means[picture.label] += picture.image.flatten()
    means /= means.norm(dim=1, keepdim=True)
    right = [
        int((means @ p.image.flatten()).argmax()) == p.label for p in glyphs.examples("test", 0)
    ]
    assert sum(right) > 75


def test_all_classes_come_and_values_are_from_0_to_1():
    pictures = list(islice(Glyphs("abc").examples("train", 0), 60))
    assert {p.label for p in pictures} == {0, 1, 2}
    assert all(p.image.min() >= 0 and p.image.max() <= 1 for p in pictures)


@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_an_idx_file_comes_back(kind, tmp_path):
    array = np.arange(24).reshape(2, 3, 4).astype(kind)
    (tmp_path / "a").write_bytes(idx(array))
    assert np.array_equal(read_idx(tmp_path / "a"), array)
    assert read_idx(tmp_path / "a").dtype == array.dtype


def test_images_of_idx_files_and_their_split(mnist):
    images = load_images(mnist, size=4, valid_size=4)
    assert [len(images.labels[split]) for split in ("train", "valid", "test")] == [16, 4, 5]
    assert images.images["test"][1, 0, 0].tolist() == [16, 17, 18, 19]
    assert images.classes == ("0", "1", "2")


def test_images_of_a_folder_are_each_in_one_split(folder):
    images = load_images(folder, size=4, channels=3)
    assert images.classes == ("a", "b")
    assert sum(len(labels) for labels in images.labels.values()) == 40
    assert images.images["train"].shape[1:] == (3, 4, 4)
    # the class of an image is its folder: even numbers, and so even reds, are in a
    reds = images.images["train"][:, 0, 0, 0]
    assert torch.equal(reds % 2, images.labels["train"].to(torch.uint8))


def test_files_that_are_not_images_are_counted(folder):
    for name in ("a", "b"):
        for i in range(5):
            (folder / name / f"bad{i}.png").write_bytes(b"not an image" * (1 + i))
    (folder / "a" / ".DS_Store").write_bytes(b"hidden")
    report = load_images(folder, size=4).report
    assert (report.loaded, report.skipped) == (40, 10)
    assert "not an image" in str(report)
    with pytest.raises(FileError, match="not an image"):
        load_images(folder, size=4, on_error="raise")


def test_pictures_make_batches():
    batches = Batches(Glyphs(size=8), lambda p: p._asdict(), split="train", batch_tokens=16)
    batch = next(iter(batches))
    assert batch["image"].shape == (16, 1, 8, 8)
    assert batch["label"].shape == (16,)


@pytest.mark.usefixtures("users_view")
def test_mistakes_with_pictures_are_reported_in_one_line(mnist, tmp_path):
    with pytest.raises(ConfigError, match="classes: need two or more"):
        Glyphs("aa")
    (tmp_path / "x").write_bytes(b"hello")
    with pytest.raises(FileError, match="needs an IDX file"):
        read_idx(tmp_path / "x")
    whole = (mnist / "train-images-idx3-ubyte.gz").read_bytes()
    (mnist / "train-images-idx3-ubyte.gz").write_bytes(whole[:-20])
    with pytest.raises(FileError, match="needs a complete gzip file"):
        load_images(mnist, size=4, valid_size=2)
    (tmp_path / "x").write_bytes(idx(np.zeros((2, 3), "uint8"))[:-1])
    with pytest.raises(FileError, match=r"needs 6 bytes for \(2, 3\), got 5, a truncated"):
        read_idx(tmp_path / "x")


def test_the_sizes_of_an_idx_file_are_not_believed(tmp_path):
    def claim(*sizes: int) -> bytes:
        return bytes([0, 0, 8, len(sizes)]) + b"".join(size.to_bytes(4) for size in sizes)

    file = tmp_path / "x"
    for held, message in (
        (claim(65536, 65536, 65536, 65536), "at most 1 GiB"),  # 2**64: no overflow to 0
        (gzip.compress(claim(3, 50_000, 50_000) + bytes(99)), "at most 1 GiB"),
        (gzip.compress(claim(3) + bytes(99_000_000)), "needs 3 bytes for .3,., got more"),
        (claim(3, 4)[:9], "sizes of 1 to 32 axes, got a header cut short"),
        (claim(), "sizes of 1 to 32 axes, got 0 axes"),
        (claim(2, 2) + b"abc", "got 3, a truncated file"),
    ):
        file.write_bytes(held)
        began = time.process_time()
        with pytest.raises(FileError, match=message):
            read_idx(file)
        assert time.process_time() - began < 0.5
