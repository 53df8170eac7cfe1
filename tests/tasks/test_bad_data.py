"""Own data with everything wrong that happens: one clear line each, and nothing lost."""

import json
import os
import random
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from PIL import Image

from regard.data import LoadReport, TextFiles
from regard.data.image.image_collection import find_images
from regard.data.table import detect_table, read_table
from regard.data.text.annotated import read_tagged_tokens
from regard.errors import FileError
from regard.tasks import TaggingTask, inspect_data
from regard.tasks.proposals.kinds import propose
from regard.tasks.tagging import cut_words

SUBTYPES = [("wav", x) for x in ("PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")]
SUBTYPES += [("flac", "PCM_16"), ("ogg", "VORBIS"), ("mp3", "MPEG_LAYER_III")]


def draw(file, shade, mode="RGB"):
    """A picture of noise around a shade, in a colour mode."""
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(shade).integers(0, 40, (12, 10 + shade % 5, 3))
    image = Image.fromarray((noise + shade).astype("uint8"))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype("uint16") << 8)
    (image if mode == "I;16" else image.convert(mode)).save(file)


@pytest.fixture
def photos(tmp_path):
    """Pictures of two classes in every colour mode."""
    modes = ("RGB", "RGBA", "P", "L", "I;16", "CMYK")
    for n in range(100):
        mode = modes[n % 6]
        kind = "jpg" if mode == "CMYK" else "png"
        draw(tmp_path / "photos" / ("dim", "lit")[n % 2] / f"{n} ä.{kind}", n % 100 + n % 2, mode)
    return tmp_path / "photos"


def test_pictures_that_cannot_be_used_are_skipped_counted_and_listed(photos):
    whole = (photos / "dim/0 ä.png").read_bytes()
    (photos / "dim/cut.png").write_bytes(whole[:-100])
    (photos / "dim/notes.txt").write_text("no picture")
    (photos / "lit/empty.png").touch()
    (photos / "lit/loop").symlink_to("..")
    (photos / "lit/gone.png").symlink_to("nowhere")
    (photos / "nothing").mkdir()
    report = propose("images", [photos]).report
    assert report.total == report.skipped.loaded == 100
    assert {x.partition(" (")[2] or x: n for x, n in report.skipped.reasons.items()} == {
        "image file is truncated)": 1,
        "no known format)": 1,
        "an empty file)": 1,
        "a class without images": 1,
    }
    assert "mode: 6 different values, converted to one" in report.warnings()
    assert "name: " in str(report)
    with pytest.raises(FileError, match=f"dim: needs .* got images alone; try {photos}"):
        propose("images", [photos / "dim"])


def test_a_class_with_one_picture_and_a_class_that_is_not_listed(photos):
    draw(photos / "rare/1.png", 7)
    found = propose("images", [photos])
    held_out = "which train does not have"
    assert [x for x in found.report.warnings() if "rare" in x and ("fewer" in x or held_out in x)]
    table = photos / "labels.csv"
    table.write_text("file,label\n" + "".join(f"dim/{n} ä.png,odd\n" for n in (0, 2, 6, 8)))
    entries = find_images(table, LoadReport())
    assert {entry.label for entry in entries} == {"odd"}


def test_sounds_of_every_format_are_read_and_bad_ones_listed(tmp_path):
    lines, rng = ["file,text\n"], np.random.default_rng(0)
    for n in range(100):
        suffix, subtype = SUBTYPES[n % len(SUBTYPES)]
        shape = (4000, 2) if n % 3 else (4000,)  # stereo or mono
        file = tmp_path / f"take {n} ü.{suffix}"
        rate = (8000, 16000)[n % 2]
        soundfile.write(file, rng.normal(size=shape) * 0.1, rate, subtype=subtype)
        lines.append(f'{file.name},"ab, {n}"\n')
    soundfile.write(tmp_path / "zero.wav", np.zeros(0), 8000)
    (tmp_path / "text.wav").write_text("no sound")
    lines += ["zero.wav,a\n", "text.wav,a\n", "gone.wav,a\n", "take 0 ü.wav,\n"]
    lines += [f"take 0 ü.wav,{'too much ' * 40}\n"]
    (tmp_path / "manifest.csv").write_text("".join(lines))
    found = propose("speech", [tmp_path])
    assert found.report.total == 100
    assert found.report.skipped.reasons == {
        "a header and 0 samples": 1,
        "not an audio file (Format not recognised)": 1,
        "no such file": 1,
        "no text": 1,
        "too short for its text": 1,
    }
    assert "rate: 2 different values, converted to one" in found.report.warnings()


def test_aligned_files_of_different_lengths_are_a_warning(tmp_path):
    rows = [f"line {n}" for n in range(200)]
    (tmp_path / "a.de").write_text("\r\n".join(rows))
    (tmp_path / "a.en").write_text("\r\n".join(rows[:-3]).upper())
    report = propose("pairs", [tmp_path / "a.de", tmp_path / "a.en"]).report
    (warning,) = [line for line in report.warnings() if "no such line" in line]
    assert warning.startswith("no such line in a.en: a.de:198 and 2 more; if a line is missing")
    assert not any("\r" in sample.source + sample.target for sample in report.samples)


def test_a_quote_that_is_not_closed_is_named_with_the_lines_it_takes(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text('text,label\n"two\nlines, ""quoted""",x\n"open,y\n' + "row,y\n" * 50)
    rows = list(read_table(file, ["text", "label"]))
    assert rows[0].values == ('two\nlines, "quoted"', "x")
    assert rows[1].error == "1 column in 51 lines, a quote is not closed"
    assert rows[1].line == 4
    file.write_text("text,label\n" + "z" * 200_000 + ",x\na,y\n")
    long, good = read_table(file, ["text", "label"])
    assert (long.error, good.values) == ("a cell of more than 131,072 characters", ("a", "y"))


def test_files_of_text_that_cannot_be_read_are_listed_and_hidden_ones_left_out(
    tmp_path, unprivileged
):
    for n in range(50):
        (tmp_path / f"{n}.txt").write_text(f"good file {n}, with NUL \0. " * 9)
    (tmp_path / "latin.txt").write_bytes("müde".encode("latin-1") * 9)
    (tmp_path / "empty.txt").touch()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("hidden")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "0.txt").chmod(0)
    with unprivileged():
        report = propose("text", [tmp_path]).report
        (tmp_path / "closed").mkdir(mode=0)
        with pytest.raises(FileError, match="closed: cannot be read, Permission denied"):
            TextFiles([tmp_path])
    assert report.skipped.reasons == {
        "cannot be read (Permission denied)": 1,
        "an empty file": 1,
        "not UTF-8 (invalid start byte)": 1,
    }
    assert report.files[0] == "0.txt (unreadable)"
    assert report.files[-1] == "and 49 more"


def test_text_in_another_encoding_is_told_the_way_out(tmp_path):
    (tmp_path / "a.txt").write_bytes("müde".encode("latin-1") * 99)
    with pytest.raises(FileError, match=r"got not UTF-8 .*a\.txt\); try iconv -t UTF-8"):
        propose("text", [tmp_path / "a.txt"])


def test_data_without_held_out_examples_is_refused_before_it_is_trained(tmp_path):
    (tmp_path / "a.tsv").write_text("one\teins\ntwo\tzwei\n" * 99)
    with pytest.raises(FileError, match=r"for valid and test, got none of 198; try more different"):
        propose("pairs", [tmp_path / "a.tsv"])


def test_labels_that_are_not_listed_are_a_warning(tmp_path):
    rows = [{"text": f"text {n}", "label": "abc"[n % 3]} for n in range(300)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = propose("labels", [tmp_path / "a.jsonl"]).recipe.data
    assert "label: not in names: c" in inspect_data(replace(task, names=("a", "b"))).warnings()
    assert not [x for x in inspect_data(task).warnings() if "names" in x]


def test_a_link_to_itself_is_no_file(tmp_path):
    os.symlink("self.tsv", tmp_path / "self.tsv")
    with pytest.raises(FileError, match=r"self\.tsv: needs to be a file or a folder, got no such"):
        propose("pairs", [tmp_path / "self.tsv"])


def test_a_word_or_sentence_of_megabytes_is_cut(tmp_path):
    rows = "".join(f"row{n} O\nred B-X\n\n" for n in range(150))
    (tmp_path / "a.conll").write_text(rows + "z" * 1_000_000 + " O\n\n" + "go O\n" * 5000)
    task = TaggingTask(train=str(tmp_path / "a.conll"), vocab_size=300).fit(0)
    encoded = task.encoded(task.tokenizer(0), "train") + task.encoded(task.tokenizer(0), "valid")
    assert max(len(row["tokens"]) for row in encoded) == 1024
    assert all(len(row["tokens"]) == len(row["tags"]) for row in encoded)
    pieces = list(cut_words(["go"] * 5000, list))
    assert [word for piece in pieces for word, _ in piece] == ["go"] * 5000
    assert max(sum(len(tokens) for _, tokens in piece) for piece in pieces) == 1024


@pytest.mark.usefixtures("users_view")
def test_a_folder_of_several_languages_names_them_and_how_to_choose(tmp_path):
    for code in ("cs", "de", "en", "fr"):
        (tmp_path / f"train.{code}").write_text("one\n")
    with pytest.raises(FileError, match=r"two languages, got 4: cs, de, en, fr; try two files: "):
        propose("pairs", [tmp_path])


@pytest.mark.usefixtures("users_view")
def test_a_folder_of_catalogs_is_one_corpus_of_one_language(tmp_path):
    head = 'msgid ""\nmsgstr "Language: {}\\n"\n'
    for part in range(2):
        rows = (f'\nmsgid "{n} days"\nmsgstr "{n} Tage"\n' for n in range(part, 200, 2))
        (tmp_path / f"part{part}.po").write_text(head.replace("{}", "de") + "\n".join(rows))
    proposal = propose("pairs", [tmp_path])
    data = proposal.recipe.data
    assert (data.source_language, data.target_language) == ("en", "de")
    assert sum(proposal.report.sizes.values()) == 200
    (tmp_path / "cs.po").write_text(head.replace("{}", "cs"))
    with pytest.raises(
        FileError, match=r"one language, got 2: de \(part0.po\), cs \(cs.po\)|cs.*de"
    ):
        propose("pairs", [tmp_path])


@pytest.mark.parametrize("late", [1, 900])
def test_json_lines_may_lack_keys_that_later_lines_have(tmp_path, late):
    rows = [{"text": f"t{n}"} for n in range(late)] + [{"label": "a", "text": "b"}] * 2
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    table = detect_table(tmp_path / "a.jsonl", header=True)
    assert table.columns == ("text", "label")
    found = list(read_table(tmp_path / "a.jsonl", ["text", "label"]))
    assert [row.error for row in found].count("without label") == late
    assert [row.values for row in found if not row.error] == [("b", "a")] * 2


def test_a_binary_file_is_not_tagged_sentences(tmp_path):
    noise = random.Random(0).randbytes(100_000)
    (tmp_path / "a.conll").write_bytes(noise)
    report = LoadReport()
    assert list(read_tagged_tokens(tmp_path / "a.conll", report)) == []
