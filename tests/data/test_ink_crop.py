"""Ink is found whatever its colour, position and size; an image without any is blank."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from regard.data import crop_to_ink, open_image, read_image


def page(ink=0, ground=255, *, at=(10, 12), scale=1, size=(60, 50), mode="L") -> Image.Image:
    """An F of three bars."""
    picture = Image.new(mode, (size[0] * scale, size[1] * scale), ground)
    draw, (x, y) = ImageDraw.Draw(picture), at
    for box in ((0, 0, 3, 23), (4, 0, 15, 3), (4, 10, 11, 13)):
        left, top, right, bottom = ((p + q) * scale for p, q in zip((x, y) * 2, box, strict=True))
        draw.rectangle((left, top, right + scale - 1, bottom + scale - 1), ink)
    return picture


def test_light_on_dark_and_dark_on_light_are_the_same_ink():
    want = crop_to_ink(page(), 24)
    assert want.max() == 1
    assert 0.1 < want.mean() < 0.4
    for ink, ground in ((255, 0), (40, 90), (200, 120)):
        assert torch.allclose(crop_to_ink(page(ink, ground), 24), want, atol=0.02)


def test_where_it_stands_and_how_large_it_is_do_not_matter():
    want = crop_to_ink(page(), 24)
    assert torch.equal(crop_to_ink(page(at=(40, 22)), 24), want)
    assert torch.equal(crop_to_ink(page(at=(3, 3), size=(400, 300)), 24), want)
    assert (crop_to_ink(page(scale=4), 24) - want).abs().mean() < 0.03


def test_a_colour_as_light_as_its_ground_is_seen():
    red, green = (200, 60, 60), (60, 131, 60)
    assert len(np.unique(np.asarray(page(red, green, mode="RGB").convert("L")))) == 1
    found = crop_to_ink(page(red, green, mode="RGB"), 24)
    assert torch.allclose(found, crop_to_ink(page(), 24), atol=0.02)


def test_uneven_light_and_noise_are_no_ink():
    pixels = np.asarray(page(60, 140), dtype=float)
    pixels += np.linspace(-50, 50, 60) + np.random.default_rng(0).normal(0, 4, pixels.shape)
    found = crop_to_ink(Image.fromarray(pixels.clip(0, 255).astype("uint8")), 24)
    assert (found - crop_to_ink(page(), 24)).abs().mean() < 0.08


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 5), (40, 40), (3000, 20)])
def test_a_picture_without_contrast_is_blank(size):
    for mode in ("L", "RGB"):
        assert not crop_to_ink(Image.new(mode, size, "gray"), 16).any()


def test_dark_ink_that_leaves_no_border_is_dark_if_said_so():
    tight = page().crop((10, 12, 26, 36))
    want = crop_to_ink(page(), 24, invert=True)
    assert (crop_to_ink(tight, 24, invert=True) - want).abs().mean() < 0.02
    assert torch.allclose(want, crop_to_ink(page(), 24), atol=0.02)


def test_every_kind_of_file_shows_the_same_ink(tmp_path):
    want = crop_to_ink(page(), 24)
    ink = page(255, 0)
    clear = {name: Image.new("RGBA", ink.size, name) for name in ("black", "white")}
    for picture in clear.values():
        picture.putalpha(ink)  # the ink is opaque, the rest is not there
    kinds = clear | {
        "bits": page().convert("1"),
        "palette": page(mode="RGB").convert("P"),
        "deep": Image.fromarray(np.asarray(page()).astype(np.uint16) * 257),
        "print": page(mode="RGB").convert("CMYK"),
    }
    for name, picture in kinds.items():
        file = tmp_path / f"{name}.{'tif' if name == 'print' else 'png'}"
        picture.save(file)
        found = crop_to_ink(open_image(file, auto_background=True), 24)
        assert torch.allclose(found, want, atol=0.02), name


def test_sixteen_bits_of_grey_are_not_cut_off_at_eight(tmp_path):
    deep = np.array([[0, 128 * 257], [200 * 257, 255 * 257]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    want = torch.tensor([[0.0, 128], [200, 255]]) / 255
    assert torch.allclose(read_image(tmp_path / "deep.png")[0], want)
