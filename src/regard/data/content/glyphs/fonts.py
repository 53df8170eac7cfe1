"""Fonts of Pillow, matplotlib and an optional folder, split into train, valid and test."""

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from regard.data.split import Split
from regard.errors import ConfigError, FileError

PILLOW_FONT = "Aileron"  # built into Pillow, without a file
# whole fonts are held out: training sees no glyph of a valid or test font
FONTS: dict[Split, tuple[str, ...]] = {
    "train": (
        PILLOW_FONT,
        *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
        *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique"),
        *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
        *("cmr10", "cmb10", "cmti10"),
    ),
    "valid": ("STIXGeneralItalic", "STIXGeneralBolIta", "cmtt10"),
    "test": ("STIXGeneral", "STIXGeneralBol", "cmss10"),
}
FONT_SUFFIXES = (".ttf", ".otf")
MISSING_CHARACTER = "\U0010fffe"  # no font has it: renders as the missing-glyph box


@lru_cache(32)
def find_fonts(split: Split, *, characters: str, folder: str | None = None) -> tuple[str, ...]:
    """Fonts of a split that have all characters: paths, or the name of Pillow's built-in one.

    The fonts of `folder` are added to train, except held-out ones.

    >>> [Path(font).stem for font in find_fonts("test", characters="AB")]
    ['STIXGeneral', 'STIXGeneralBol', 'cmss10']
    """
    exists = folder is not None and Path(folder).expanduser().is_dir()
    spec = find_spec("matplotlib")  # its folder, without importing it (1 s)
    matplotlib = None if spec is None else f"{Path(spec.origin or '').parent}/mpl-data/fonts/ttf"
    added = _files(folder) if split == "train" or exists else ()  # only training needs it
    bundled = {path.stem: path for path in (*added, *_files(matplotlib))}
    bundled[PILLOW_FONT] = Path(PILLOW_FONT)
    fonts = [str(bundled.get(name, "")) for name in FONTS[split]]
    if split == "train":
        known = {name for names in FONTS.values() for name in names}
        fonts += [str(path) for path in added if path.stem not in known]
    usable = tuple(font for font in fonts if font and has_glyphs(font, characters))
    if not usable:
        raise ConfigError(
            f"classes: need characters that a font of {split} has, got {characters!r}; "
            "try others, or typefaces=one"
        )
    return usable


def _files(folder: str | None) -> tuple[Path, ...]:
    if folder is None:
        return ()
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise FileError(f"font_folder: needs a folder of .ttf or .otf files, got {folder}")
    return tuple(sorted(file for file in path.rglob("*") if file.suffix.lower() in FONT_SUFFIXES))


@lru_cache(4096)
def load_font(font: str, size: int) -> ImageFont.FreeTypeFont:
    """A font at a size in pixels."""
    if font == PILLOW_FONT:
        return ImageFont.load_default(size)  # type: ignore[return-value]
    try:
        return ImageFont.truetype(font, size, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise FileError(f"{font}: needs to be a TrueType or OpenType font, got {error}") from error


@lru_cache(None)
def has_glyphs(font: str, characters: str | Sequence[str]) -> bool:
    """Whether a font has a glyph for every character: neither blank nor the missing-glyph box.

    >>> has_glyphs(PILLOW_FONT, "AZ09"), has_glyphs(PILLOW_FONT, "漢")
    (True, False)
    """
    missing = _pixels(font, MISSING_CHARACTER)
    return all(any(x := _pixels(font, character)) and x != missing for character in characters)


def _pixels(font: str, character: str) -> bytes:
    image = Image.new("L", (48, 48))
    ImageDraw.Draw(image).text((8, 4), character, 255, load_font(font, 24))
    return image.tobytes()
