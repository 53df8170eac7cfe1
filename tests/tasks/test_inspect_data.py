"""Reports on own data, and the recipes proposed for it; the data is foreign, made by scripts."""

import gzip
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from regard.data import LabeledText, LoadReport
from regard.errors import ConfigError, FileError
from regard.tasks import (
    DataContents,
    PairsTask,
    TextTask,
    inspect_data,
    propose,
    recipe,
    recipe_text,
)
from regard.tasks.data_report import SAMPLE_SIZE, Distribution
from regard.tasks.proposals.kinds import default_name, write_proposal
from regard.tasks.proposals.proposal import split_of
from regard.tasks.recipe_file import parse_recipe

NUMBERS = [("one", "eins"), ("two", "zwei"), ("three", "drei"), ("four", "vier"), ("five", "fünf")]


def pairs(count=400):
    rng = random.Random(0)
    draws = ([rng.choice(NUMBERS) for _ in range(5)] for _ in range(count))
    return [tuple(" ".join(words) for words in zip(*draw, strict=True)) for draw in draws]


def tsv(rows):
    return "".join("\t".join(row) + "\n" for row in rows)


@pytest.fixture
def tsv_file(tmp_path):
    file = tmp_path / "en-de.tsv"
    file.write_text(tsv(pairs()), encoding="utf-8")
    return file


# what a report holds


def test_the_distribution_is_that_of_the_sorted_values():
    values = random.Random(0).choices(range(50), k=999)
    found = Distribution.of(Counter(values))
    assert found.median == sorted(values)[499]
    assert found.max == max(values)
    assert found.total == sum(values)
    assert found.p95 == pytest.approx(np.percentile(values, 95), abs=1)


def test_copies_conflicts_overlap_and_odd_lines_are_counted(tmp_path):
    (tmp_path / "train.tsv").write_text("a\tA\na\tA\na\tB\nb\t\nc\tc\nlonely\n", encoding="utf-8")
    (tmp_path / "dev.tsv").write_text("a\tA\nd\tD\n")
    (tmp_path / "test.tsv").write_text("e\tE\n")
    names = {"train": ("train.tsv",), "valid": ("dev.tsv",), "test": ("test.tsv",)}
    report = inspect_data(PairsTask(folder=str(tmp_path), **names))
    assert report.sizes == {"train": 4, "valid": 2, "test": 1}
    assert (report.duplicates, report.conflicts, report.untranslated) == (1, 1, 1)
    assert report.overlap == {"valid": 1, "test": 0}
    assert report.skipped.reasons == {"an empty side": 1, "1 column": 1}
    assert report.skipped.locations["an empty side"] == ["train.tsv:4"]
    text = str(report)
    assert "copies among the train examples: 1 (25.0%)" in text
    assert "inputs of valid in train too: 1 (50.0%), so scores are too good" in text


def test_one_pass_assigns_pairs_as_the_splits_do(tsv_file):
    data = PairsTask(folder=str(tsv_file.parent), train=(tsv_file.name,))
    sizes = {split: len(data.pairs(split)) for split in ("train", "valid", "test")}
    assert inspect_data(data).sizes == sizes
    assert sum(sizes.values()) == 400


def test_lengths_are_in_characters_and_in_tokens_of_the_tokenizer(tsv_file):
    data = PairsTask(folder=str(tsv_file.parent), train=(tsv_file.name,), vocab_size=300)
    report = inspect_data(data, tokenize=True)
    train, tokenizer = data.pairs("train"), data.tokenizer(0)
    assert report.length("source").max == max(len(p.source) for p in train)
    assert report.token_lengths["source"].max == max(len(tokenizer.encode(p.source)) for p in train)


def test_rare_and_unseen_classes_are_named():
    class Stub(TextTask):
        def contents(self):
            rows = [("train", LabeledText(f"{n}", "a")) for n in range(9)]
            rows += [("train", LabeledText("x", "b")), ("test", LabeledText("y", "new"))]
            return DataContents(rows, LoadReport(), [])

    warnings = inspect_data(Stub()).warnings()
    assert "the valid split is empty" in warnings
    assert "label: fewer than 5 train examples of b" in warnings
    assert "label: test has new, which train does not have" in warnings


def test_the_sample_stays_small(tmp_path):
    (tmp_path / "a.tsv").write_text("".join(f"line {n}\tZeile {n}\n" for n in range(3000)))
    report = inspect_data(PairsTask(folder=str(tmp_path), train=("a.tsv",)))
    assert len(report.samples) == SAMPLE_SIZE
    assert max(int(p.source.split()[1]) for p in report.samples) > 2900  # from all of the file


def test_a_task_without_files_says_so():
    with pytest.raises(ConfigError, match="task: needs one with data files of its own, got phra"):
        inspect_data(recipe("phrases").data)


# pairs: formats, columns, languages


def test_utf16_with_empty_sides_and_languages_in_the_name(tmp_path):
    file = tmp_path / "corpus.en-de.tsv"
    file.write_text(tsv([*pairs(), ("nothing", "")]), encoding="utf-16")
    found = propose("pairs", [file])
    data = found.recipe.data
    assert (data.source_language, data.target_language) == ("en", "de")
    assert (data.columns, data.header) == (("1", "2"), False)
    assert "UTF-16" in found.report.summary()
    assert "1 × an empty side: corpus.en-de.tsv:401" in found.report.summary()


def test_aligned_files_of_other_lengths_name_the_line(tmp_path):
    rows = pairs()
    (tmp_path / "all.en").write_text("".join(f"{a}\n" for a, _ in rows))
    (tmp_path / "all.de").write_text("".join(f"{b}\n" for _, b in rows[:-1]), encoding="utf-8")
    found = propose("pairs", [tmp_path / "all.en", tmp_path / "all.de"])
    assert found.recipe.data.train == ("all.en", "all.de")
    assert (found.recipe.data.source_language, found.recipe.data.target_language) == ("en", "de")
    assert "no such line in all.de: all.en:400" in found.report.summary()


def test_a_folder_of_aligned_splits(tmp_path):
    for stem in ("train", "val", "test_2016"):
        for side, name in enumerate(("de", "en")):
            text = "".join(f"{row[1 - side]}\n" for row in pairs(50))
            (tmp_path / f"{stem}.{name}.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "README.md").write_text("about")
    data = propose("pairs", [tmp_path]).recipe.data
    assert data.train == ("train.de.gz", "train.en.gz")
    assert data.valid == ("val.de.gz", "val.en.gz")
    assert data.test == ("test_2016.de.gz", "test_2016.en.gz")
    assert (data.source_language, data.target_language) == ("de", "en")


def test_a_missing_valid_file_is_a_stated_decision(tmp_path):
    for stem in ("train", "test"):
        (tmp_path / f"{stem}.tsv").write_text(tsv(pairs(60)), encoding="utf-8")
    found = propose("pairs", [tmp_path])
    assert found.recipe.data.valid == found.recipe.data.test == ("test.tsv",)
    assert "no file of its own: the test split again" in found.comments["data.valid"]


def test_columns_by_header_by_key_and_by_content(tmp_path):
    head = tmp_path / "head.csv"
    head.write_text("id,fr,en\n" + "".join(f"{n},{b},{a}\n" for n, (a, b) in enumerate(pairs())))
    data = propose("pairs", [head]).recipe.data
    assert (data.columns, data.header) == (("fr", "en"), True)
    assert (data.source_language, data.target_language) == ("fr", "en")
    keys = tmp_path / "keys.jsonl"
    keys.write_text("".join(f'{{"id": 1, "src": "{a}", "tgt": "{b}"}}\n' for a, b in pairs()))
    assert propose("pairs", [keys]).recipe.data.columns == ("src", "tgt")
    tatoeba = tmp_path / "tatoeba.tsv"
    tatoeba.write_text(tsv([("17", a, "93", b) for a, b in pairs()]), encoding="utf-8")
    found = propose("pairs", [tatoeba])
    assert found.recipe.data.columns == ("2", "4")
    assert found.recipe.data.target_language == "target"
    assert "not in the data" in found.comments["data.source_language"]


def test_gettext_catalogs_and_translation_memories(tmp_path):
    po = tmp_path / "app.po"
    entries = "".join(f'msgid "{a} {n}"\nmsgstr "{b} {n}"\n\n' for n, (a, b) in enumerate(pairs()))
    po.write_text(f'msgid ""\nmsgstr ""\n"Language: de\\n"\n\n{entries}', encoding="utf-8")
    data = propose("pairs", [po]).recipe.data
    assert (data.source_language, data.target_language) == ("en", "de")
    units = "".join(
        f'<tu><tuv xml:lang="de"><seg>{b} {n}</seg></tuv>'
        f'<tuv xml:lang="en"><seg>{a} {n}</seg></tuv></tu>\n'
        for n, (a, b) in enumerate(pairs())
    )
    tmx = tmp_path / "memory.tmx"
    tmx.write_text(f'<tmx><header srclang="en"/><body>{units}</body></tmx>', encoding="utf-8")
    found = propose("pairs", [tmx])
    assert (found.recipe.data.source_language, found.recipe.data.target_language) == ("en", "de")
    assert found.report.total == 400


def test_larger_data_gets_a_larger_model(tmp_path):
    dims = []
    for count in (50, 6000):
        file = tmp_path / f"{count}.tsv"
        file.write_text("".join(f"line {n}\tZeile {n}\n" for n in range(count)))
        dims.append(propose("pairs", [file]).recipe.data.vocab_size)
    assert dims == [2000, 4000]


# text


def test_text_is_split_by_files_where_there_are_enough(tmp_path):
    for n in range(120):
        (tmp_path / f"{n}.txt").write_text(f"file {n} says " + "again " * 50)
    (tmp_path / "120.txt.gz").write_bytes(gzip.compress(b"packed text " * 50))
    (tmp_path / "image.bin").write_bytes(bytes(range(128, 256)) * 9)
    found = propose("text", [tmp_path])
    assert found.recipe.data.split_by == "files"
    assert found.report.total == 121
    assert "1 × not UTF-8" in found.report.summary()


def test_one_text_file_is_split_by_its_tail_and_counted_once(tmp_path):
    file = tmp_path / "book.txt"
    file.write_text("all work and no play\n" * 500)
    found = propose("text", [file])
    assert found.recipe.data.split_by == "halves"
    assert found.recipe.data.tokenizer_type == "characters"
    assert found.report.length("text").total == 9 * 21 * 50


# recordings


@pytest.fixture
def common_voice(tmp_path):
    """A folder like Common Voice's, with recordings at several rates."""
    rng, folder = np.random.default_rng(0), tmp_path / "cv"
    (folder / "clips").mkdir(parents=True)
    lines = ["client_id\tpath\tsentence\tup_votes\n"]
    for n in range(120):
        rate = (8000, 8000, 8000, 16000, 22050)[n % 5]
        wave = rng.normal(size=rate) * 0.1
        soundfile.write(folder / "clips" / f"{n}.wav", wave, rate)
        lines.append(f"speaker\t{n}.wav\t{' '.join(['ab'] * (1 + n % 3))}\t2\n")
    (folder / "clips" / "bad.wav").write_bytes(b"no sound")
    lines += ["speaker\tbad.wav\tab\t0\n", "speaker\tgone.wav\tab\t0\n"]
    (folder / "validated.tsv").write_text("".join(lines))
    return folder


def test_recordings_of_common_voice_at_mixed_rates(common_voice):
    for path in (common_voice, common_voice / "validated.tsv"):
        found = propose("speech", [path])
        data = found.recipe.data
        assert (data.train, data.audio_folder) == ("validated.tsv", "clips")
        assert (data.sample_rate, data.n_mels) == (8000, 40)
        assert found.report.values("rate") == {8000: 72, 16000: 24, 22050: 24}
        assert found.report.skipped.reasons == {
            "not an audio file (Format not recognised)": 1,
            "no such file": 1,
        }
        assert "rate: 3 different values, converted to one" in found.report.warnings()


def test_units_and_batches_of_recordings(common_voice):
    """Commands, few words that are frequent, are recognised as words; batches hold 16 seconds."""
    found = propose("speech", [common_voice]).recipe
    assert (found.data.tokenizer_type, found.train.batch_size) == ("words", 16)
    other = common_voice / "other.tsv"
    text = (common_voice / "validated.tsv").read_text()
    other.write_text(text + "speaker\t1.wav\tonce\t2\n")
    assert propose("speech", [other]).recipe.data.tokenizer_type == "characters"


# images, labelled texts, tagged tokens


def test_images_of_mixed_modes(tmp_path):
    rng = np.random.default_rng(0)
    for n in range(100):
        folder = tmp_path / ("dark", "light")[n % 2]
        folder.mkdir(exist_ok=True)
        pixels = rng.integers(0, 128, (20, 30, 3)) + 127 * (n % 2)
        image = Image.fromarray(pixels.astype("uint8"))
        (image.convert("L") if n < 30 else image).save(folder / f"{n}.png")
    (tmp_path / "dark" / "broken.png").write_bytes(b"nothing")
    found = propose("images", [tmp_path])
    assert (found.recipe.data.size, found.recipe.data.channels) == (24, 3)
    assert found.report.values("mode") == {"RGB": 70, "L": 30}
    assert found.report.values("label") == {"dark": 50, "light": 50}
    assert found.report.skipped.skipped == 1


def test_labelled_texts_and_tagged_tokens(tmp_path):
    reviews = tmp_path / "reviews.csv"
    rows = "".join(f'{n},"film {n}, seen",{("yes", "no")[n % 2]}\n' for n in range(200))
    reviews.write_text(f"id,review,sentiment\n{rows}")
    data = propose("labels", [reviews]).recipe.data
    assert (data.text_column, data.label_column) == ("review", "sentiment")
    words = tmp_path / "words.conllu"
    line = "\t_\t_\t_\t_\t_\t_\n"
    words.write_text(
        "".join(f"1\tword{n}\tw\tNOUN{line}2\truns\tr\tVERB{line}\n" for n in range(200))
    )
    found = propose("tags", [words])
    assert (found.recipe.data.token_column, found.recipe.data.tag_column) == (2, 4)
    assert found.report.values("tags") == {"NOUN": 200, "VERB": 200}


# the written file


def test_every_decision_is_a_line_and_paths_are_relative(tsv_file, monkeypatch):
    monkeypatch.chdir(tsv_file.parent)
    out = tsv_file.parent / "mine.toml"
    found = write_proposal("pairs", [tsv_file], out)
    text = out.read_text(encoding="utf-8")
    assert str(tsv_file.parent) not in text.partition("[data]")[2]
    for name in found.comments:
        assert f"\n{name.rpartition('.')[2]} = " in text
    assert text.startswith("# Written by: regard new pairs")
    parsed = parse_recipe(text, "mine.toml", base=tsv_file.parent)
    assert parsed.name == "mine"
    assert parsed.data == found.recipe.data
    assert parsed.model == found.recipe.model
    assert parsed.train == found.recipe.train


def test_a_proposal_is_read_back_as_it_is(common_voice):
    found = write_proposal("speech", [common_voice], common_voice / "task.toml")
    text = (common_voice / "task.toml").read_text(encoding="utf-8")
    assert parse_recipe(text, "task.toml", base=common_voice) == found.recipe
    assert found.recipe.data.augmentation.spec_augment == 0  # 2 by default


def test_an_existing_file_is_kept(tsv_file):
    out = tsv_file.parent / "task.toml"
    out.write_text("mine")
    with pytest.raises(FileError, match="needs to be a new file, got one that exists; try --force"):
        write_proposal("pairs", [tsv_file], out)
    assert out.read_text() == "mine"
    assert write_proposal("pairs", [tsv_file], out, force=True).recipe.name == "en-de"


# errors


def test_recipes_are_named_by_their_data_or_its_folder(tmp_path):
    """Two folders with files of the same name do not become runs of the same name."""
    names = {"a/train.csv": "a", "b/train.de": "b", "c/data/manifest.tsv": "c", "c/d": "d"}
    names |= {"e/valid": "e", "My Pets/train.conll.gz": "my-pets", "f/train-2020.csv": "train-2020"}
    for path, name in names.items():
        assert default_name(tmp_path / path) == name
    assert default_name(Path("/data")) == "task"
    text = recipe_text("morse").replace('name = "morse"\n', "")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "task.toml").write_text(text)
        assert recipe(str(tmp_path / folder / "task.toml")).name == folder
    (tmp_path / "a" / "other.toml").write_text(text)
    assert recipe(str(tmp_path / "a" / "other.toml")).name == "other"


@pytest.mark.parametrize("kind", ["pairs", "text", "labels", "tags", "speech"])
def test_an_empty_file_is_named(tmp_path, kind):
    file = tmp_path / "empty.tsv"
    file.write_text("")
    with pytest.raises(FileError, match=r"empty\.tsv: needs .*, got an empty file"):
        propose(kind, [file])


@pytest.mark.parametrize("kind", ["pairs", "text", "labels", "tags", "speech", "images"])
def test_a_folder_without_permission_is_named(tmp_path, kind, unprivileged):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0)
    with (
        unprivileged(),
        pytest.raises(FileError, match="closed: cannot be read, Permission denied"),
    ):
        propose(kind, [folder])


def test_an_unknown_kind_gets_the_nearest():
    with pytest.raises(ConfigError, match=r"kind: needs one of .*, got 'imags'; try images"):
        propose("imags", ["x"])


def test_what_is_no_corpus_is_named(tmp_path):
    (tmp_path / "notes.md").write_text("about")
    with pytest.raises(FileError, match=r"needs train\.tsv .*, got notes\.md"):
        propose("pairs", [tmp_path])
    with pytest.raises(FileError, match=r"notes\.md: needs to end in .*; try two aligned files"):
        propose("pairs", [tmp_path / "notes.md"])
    one = tmp_path / "one.tsv"
    one.write_text("alone\nagain\n")
    with pytest.raises(FileError, match=r"one\.tsv: needs two columns of text, got 1"):
        propose("pairs", [one])


def test_names_of_splits():
    names = ["train.de", "dev.tsv", "validation-0.csv", "test_2016_flickr.en", "training.txt", "x"]
    assert [split_of(Path(name)) for name in names] == [
        "train", "valid", "valid", "test", "train", None,
    ]  # fmt: skip
