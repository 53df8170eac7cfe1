"""Rendered glyphs: test fonts are never trained on, and some images are out of distribution."""

from itertools import islice
from pathlib import Path

import pytest
import torch

from regard.data import RenderedGlyphs
from regard.data.content.glyphs.fonts import FONTS, PILLOW_FONT, find_fonts
from regard.errors import ConfigError, FileError
from regard.tasks.classification.glyphs import GlyphsTask, render_glyphs

CLASSES = GlyphsTask().classes


def test_no_face_is_in_two_splits_and_all_of_them_are_there():
    found = {split: find_fonts(split, characters=CLASSES) for split in FONTS}
    names = [Path(face).stem for faces in found.values() for face in faces]
    assert len(set(names)) == len(names) == sum(map(len, FONTS.values()))


def test_a_folder_adds_faces_to_training_alone(tmp_path):
    held = Path(find_fonts("test", characters="AB")[0])
    (tmp_path / held.name).write_bytes(held.read_bytes())
    (tmp_path / "Mine.ttf").write_bytes(Path(find_fonts("train", characters="AB")[1]).read_bytes())
    more = find_fonts("train", characters="AB", folder=str(tmp_path))
    assert more == (*find_fonts("train", characters="AB"), str(tmp_path / "Mine.ttf"))
    assert find_fonts("test", characters="AB", folder=str(tmp_path / "gone"))  # trained, and moved
    with pytest.raises(FileError, match="font_folder: needs a folder of .ttf or .otf files"):
        find_fonts("train", characters="AB", folder=str(tmp_path / "gone"))
    (tmp_path / "Bad.ttf").write_bytes(b"no font")
    find_fonts.cache_clear()
    with pytest.raises(FileError, match="Bad.ttf: needs to be a TrueType or OpenType font"):
        find_fonts("train", characters="AB", folder=str(tmp_path))


def test_a_face_that_lacks_a_character_is_left_out():
    greek = [Path(face).stem for face in find_fonts("train", characters="ΣΩ")]
    assert "DejaVuSans" in greek
    assert PILLOW_FONT not in greek
    with pytest.raises(ConfigError, match="classes: need characters that a font of train has"):
        find_fonts("train", characters="漢字")


def test_an_image_depends_on_its_index():
    source = RenderedGlyphs(CLASSES, ood_fraction=0.3, eval_size=6)
    whole = list(islice(source.examples("train", 1), 6))
    again = list(islice(source.examples("train", 1, start=3), 3))
    assert all(torch.equal(a.image, b.image) for a, b in zip(whole[3:], again, strict=True))
    assert [a.label for a in whole[3:]] == [b.label for b in again]
    assert not torch.equal(whole[0].image, next(source.examples("test", 1)).image)
    assert len(list(source.examples("valid", 0))) == 6


def test_as_many_are_foreign_as_asked():
    labels = [
        one.label
        for one in islice(RenderedGlyphs("AB", ood_fraction=0.3).examples("train", 0), 300)
    ]
    assert 60 < labels.count(-1) < 120
    assert set(labels) == {-1, 0, 1}


@pytest.mark.slow
def test_several_processes_draw_the_same():
    source = RenderedGlyphs("AB", ood_fraction=0.1)
    one, two = (render_glyphs(source, "train", 0, 1100, workers) for workers in (1, 2))
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])
