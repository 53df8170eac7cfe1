"""Typefaces to draw letters in: those of Pillow and matplotlib, and those of a folder."""

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from regard.data.split import Split
from regard.errors import ConfigError, FileError

PILLOW_FONT = "Aileron"  # the face inside Pillow: no file
# Whole faces are held out: no letter of a valid or test face is ever trained on.
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
MISSING_CHARACTER = "\U0010fffe"  # no face has it: what is drawn stands for a missing glyph


@lru_cache(32)
def find_fonts(split: Split, *, characters: str, folder: str | None = None) -> tuple[str, ...]:
    """Faces of a split that have all characters: files, or the name of Pillow's own.

    The fonts of `folder` are added to those of training, except where they are held out.

    >>> [Path(face).stem for face in find_fonts("test", characters="AB")]
    ['STIXGeneral', 'STIXGeneralBol', 'cmss10']
    """
    here = folder is not None and Path(folder).expanduser().is_dir()
    added = _files(folder) if split == "train" or here else ()  # a trained model needs no folder
    bundled = {path.stem: path for path in (*added, *_files(_matplotlib()))}
    faces = [
        PILLOW_FONT if name == PILLOW_FONT else str(bundled.get(name, "")) for name in FONTS[split]
    ]
    if split == "train":
        known = {name for names in FONTS.values() for name in names}
        faces += [str(path) for path in added if path.stem not in known]
    found = tuple(face for face in faces if face and has_glyphs(face, characters))
    if not found:
        raise ConfigError(
            f"classes: need characters that a face for {split} has, got {characters!r}; "
            "try other ones, or faces=one"
        )
    return found


def _matplotlib() -> str | None:
    """The folder of matplotlib's fonts, without the second that importing it takes."""
    spec = find_spec("matplotlib")
    places = spec.submodule_search_locations if spec else None
    return str(Path(next(iter(places))) / "mpl-data" / "fonts" / "ttf") if places else None


def _files(folder: str | None) -> tuple[Path, ...]:
    if folder is None:
        return ()
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise FileError(f"fonts: needs a folder of .ttf or .otf files, got {folder}")
    return tuple(sorted(path for path in place.rglob("*") if path.suffix.lower() in FONT_SUFFIXES))


@lru_cache(4096)
def load_font(font: str, size: int) -> ImageFont.FreeTypeFont:
    """A face at a size in pixels.

    >>> load_font(PILLOW_FONT, 12).size
    12
    """
    if font == PILLOW_FONT:
        return ImageFont.load_default(size)  # type: ignore[return-value]
    try:
        return ImageFont.truetype(font, size, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise FileError(f"{font}: needs to be a TrueType or OpenType font, got {error}") from error


@lru_cache(None)
def has_glyphs(font: str, characters: str | Sequence[str]) -> bool:
    """Whether a face draws every one of the characters: neither blank nor the sign for missing.

    >>> has_glyphs(PILLOW_FONT, "AZ09"), has_glyphs(PILLOW_FONT, "漢")
    (True, False)
    """
    missing = _pixels(font, MISSING_CHARACTER)
    return all(any(x := _pixels(font, one)) and x != missing for one in characters)


def _pixels(face: str, character: str) -> bytes:
    picture = Image.new("L", (48, 48))
    ImageDraw.Draw(picture).text((8, 4), character, 255, load_font(face, 24))
    return picture.tobytes()
