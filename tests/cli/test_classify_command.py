"""`regard classify`: classes of image files, and errors for unreadable ones."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result


def run(*args: object) -> Result:
    from regard.cli import app

    return CliRunner().invoke(app, ["classify", *map(str, args)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A few glyphs, their classes in their names; one twice as large; and what is no picture."""
    from regard.data import Glyphs

    place = tmp_path_factory.mktemp("pictures")
    source = Glyphs("XLT7", size=32, degrees=8, noise=0.02, eval_size=8)
    for number, (image, label) in enumerate(source.examples("test", 0)):
        pixels = (image[0].numpy() * 255).round().astype("uint8")
        Image.fromarray(pixels).save(place / f"{'XLT7'[label]}{number}.png")
        if number == 0:
            Image.fromarray(255 - pixels).save(place / "dark.png")
            Image.fromarray(np.kron(pixels, np.ones((2, 2), "uint8"))).save(place / "large.png")
    (place / "empty.png").write_bytes(b"")
    (place / "text.png").write_bytes(b"no picture")
    (place / "cut.png").write_bytes((place / "large.png").read_bytes()[:200])
    return place


def glyphs(folder) -> list:
    return sorted(path for path in folder.glob("*.png") if path.stem[-1:].isdigit())


def test_images_are_classified_with_probabilities(folder):
    files = glyphs(folder)
    done = run("glyphs", *files, "--top", 1)
    assert done.exit_code == 0
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == [str(file) for file in files]
    right = sum(row[1] == file.stem[0] for row, file in zip(rows, files, strict=True))
    assert right >= len(files) - 2
    assert all(0 < float(row[2]) <= 1 for row in rows)


def test_all_classes_have_a_probability_and_they_sum_to_one(folder):
    done = run("glyphs", glyphs(folder)[0], "--top", 99)
    chances = [float(line.split("\t")[2]) for line in done.stdout.splitlines()]
    assert len(chances) == 36
    assert chances == sorted(chances, reverse=True)
    assert abs(sum(chances) - 1) < 0.01


def test_dark_signs_on_light_ground_need_no_hint(folder):
    first = next(file for file in glyphs(folder) if file.stem.endswith("0"))
    want = [line.split("\t")[1] for line in run("glyphs", first).stdout.splitlines()]
    for hint in ((), ("--invert",)):
        got = run("glyphs", folder / "dark.png", *hint).stdout.splitlines()
        assert got[0].split("\t")[1] == want[0] == first.stem[0]


def test_other_sizes_are_seen_through_interpolated_positions(folder):
    for option in (("--own-size",), ("--size", 48)):
        done = run("glyphs", folder / "large.png", *option)
        assert done.exit_code in (0, 1)  # the answer may be unsure
        assert len(done.stdout.splitlines()) == 3
    shrunk = run("glyphs", folder / "large.png", "--top", 1).stdout.split("\t")[1]
    first = next(file for file in glyphs(folder) if file.stem.endswith("0"))
    assert shrunk == run("glyphs", first, "--top", 1).stdout.split("\t")[1]


def test_what_it_looked_at_is_drawn_for_each(folder, tmp_path):
    one, two = glyphs(folder)[:2]
    assert run("glyphs", one, "--overlay", tmp_path / "out.png").exit_code == 0
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.size[0] > 100
    assert run("glyphs", one, two, "--overlay", tmp_path / "all.png", "--own-size").exit_code < 2
    drawn = {path.name for path in tmp_path.glob("all*")}
    assert drawn == {f"all-{one.stem}.png", f"all-{two.stem}.png"}


def test_an_unreadable_image_is_reported_and_the_others_are_classified(folder):
    good = glyphs(folder)[0]
    bad = [folder / name for name in ("empty.png", "text.png", "cut.png", "none.png")]
    done = run("glyphs", *bad[:2], good, *bad[2:], "--top", 1)
    assert done.exit_code == 1
    assert done.stdout.startswith(f"{good}\t")
    assert [f"{file.name}: needs to be a" in done.stderr for file in bad] == [True] * 4
    assert run("glyphs", *bad).exit_code == 2


def test_invalid_options_raise(folder, tmp_path):
    good = glyphs(folder)[0]
    for args, message in (
        (("morse", good), "run: needs a model that can classify, got a Recogniser; try transcribe"),
        (("glyphs", good, "--top", 0), "top: needs 1 or more, got 0"),
        (("glyphs", good, "--size", 15), "size: needs a multiple of the patch, 4, got 15"),
        (("glyphs", good, "--size", 16, "--own-size"), "size: needs to be unset"),
        (("glyphs", good, "--overlay", tmp_path / "no/out.png"), "overlay: needs a folder"),
    ):
        done = run(*args)
        assert (done.exit_code, done.stdout) == (2, "")
        assert message in done.stderr
