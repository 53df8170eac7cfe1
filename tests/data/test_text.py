"""Text is streamed, split by content, packed without loss, and read from any position."""

import tracemalloc
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import Batches, ByteTokenizer, PackedText, TextFiles, pack_text
from regard.data.source import permute_index
from regard.data.text.documents import stdlib_files
from regard.errors import ConfigError, FileError

SPLITS = ("train", "valid", "test")


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for i in range(60):
        (folder / f"{i:02}.txt").write_text(f"document {i}\n" * (1 + i % 5))
    return folder


@pytest.fixture
def packed(corpus, tmp_path):
    pack_text(TextFiles([corpus]), ByteTokenizer(), tmp_path / "packed")
    return tmp_path / "packed"


def test_the_library_of_python_is_there():
    text = TextFiles()
    assert len(stdlib_files()) > 300
    assert sum(path.stat().st_size for path in text.files["train"]) > 5_000_000


def test_every_document_is_in_one_split_and_a_copy_is_where_the_first_is(corpus):
    (corpus / "copy.txt").write_text((corpus / "07.txt").read_text())
    text = TextFiles([corpus])
    found = {split: [d.text for d in text.documents(split)] for split in SPLITS}
    assert sum(map(len, found.values())) == 61
    twice = (corpus / "07.txt").read_text()
    assert sorted(texts.count(twice) for texts in found.values()) == [0, 0, 2]


def test_a_long_file_is_cut_between_lines_and_nothing_is_lost(tmp_path):
    file = tmp_path / "long.txt"
    file.write_bytes("".join(f"línea {i}\r\n" for i in range(500)).encode())
    pieces = [d.text for d in TextFiles([file], [file], [file], max_chars=100).documents("train")]
    assert len(pieces) > 10
    assert all(piece.endswith("\r\n") for piece in pieces)
    assert "".join(pieces).encode() == file.read_bytes()


def test_what_is_not_text_is_counted_and_named(corpus):
    (corpus / "picture.txt").write_bytes(b"\x89PNG\xff\xfe")
    text = TextFiles([corpus])
    kept = sum(len(list(text.documents(split))) for split in SPLITS)
    assert kept == 60
    assert text.report.skipped == 1
    assert "picture.txt" in str(text.report)


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    file = tmp_path / "long.txt"
    file.write_text("a line of text\n" * 400_000)
    tracemalloc.start()
    pack_text(
        TextFiles([file], [file], [file], max_chars=10_000), ByteTokenizer(), tmp_path / "packed"
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000  # of 6 million characters, three times


def test_train_repeats_forever_in_a_new_order_each_epoch(corpus):
    text = TextFiles([corpus])
    once = [d.name for d in text.documents("train")]
    turns = [d.name for d in islice(text.examples("train", seed=0), 2 * len(once))]
    assert sorted(turns[: len(once)]) == sorted(turns[len(once) :]) == once
    assert turns[: len(once)] != turns[len(once) :]
    later = text.examples("train", seed=0, start=70)
    assert [d.name for d in islice(later, 20)] == turns[70:90]


@given(st.integers(1, 300), st.text(max_size=3))
def test_permute_index_is_a_permutation(size, key):
    assert sorted(permute_index(i, size, key) for i in range(size)) == list(range(size))


def test_packed_text_is_the_text(corpus, packed):
    tokenizer, source = ByteTokenizer(), PackedText(packed, length=16)
    windows = list(source.examples("test", seed=0))
    row = torch.cat([windows[0].tokens[:1], *(window.tokens[1:] for window in windows)])
    texts = [d.text for d in TextFiles([corpus]).documents("test")]
    assert tokenizer.decode(row.tolist()) == "".join(texts)
    assert row.eq(tokenizer.eos_id).sum() == len(texts)
    assert all(len(window.tokens) == 17 for window in windows[:-1])


def test_document_ids_change_after_each_end(packed):
    for window in islice(PackedText(packed, length=40).examples("train", 0), 30):
        ends = window.tokens.eq(ByteTokenizer.eos_id).long()
        assert torch.equal(window.documents, ends.cumsum(0) - ends)


@pytest.mark.parametrize("start", [0, 1, 50, 333])
def test_a_window_is_known_by_its_number(packed, start):
    source = PackedText(packed, length=16)
    whole = list(islice(source.examples("train", 1), start, start + 5))
    for one, two in zip(whole, source.examples("train", 1, start), strict=False):
        assert torch.equal(one.tokens, two.tokens)


def test_training_sees_every_token(packed):
    source, seen = PackedText(packed, length=16), set()
    rows = source._row("train")[:]
    for window in islice(source.examples("train", 0), 17 * len(rows) // 16):
        seen.add(tuple(window.tokens.tolist()))
    covered = {t[i : i + 2] for t in seen for i in range(16)}
    assert {(int(a), int(b)) for a, b in zip(rows, rows[1:], strict=False)} <= covered


def test_windows_make_batches(packed):
    batches = Batches(
        PackedText(packed, length=16),
        lambda window: window._asdict(),
        split="train",
        batch_tokens=170,
    )
    batch = next(iter(batches))
    assert batch["tokens"].shape == batch["documents"].shape == (10, 17)


@pytest.mark.usefixtures("users_view")
def test_mistakes_with_text_are_reported_in_one_line(corpus, packed, tmp_path):
    with pytest.raises(FileError, match="needs to be a file or a folder"):
        TextFiles([tmp_path / "nothing"])
    with pytest.raises(ConfigError, match="valid, test: need to be given both"):
        TextFiles([corpus], [corpus])
    (corpus / "bad.txt").write_bytes(b"\xff")
    with pytest.raises(FileError, match=r"bad\.txt: not UTF-8"):
        list(TextFiles([corpus], on_error="raise").documents("train"))
    with pytest.raises(ConfigError, match="length: needs more than that in train"):
        next(PackedText(packed, length=10**6).examples("train", 0))
    with (packed / "train" / "text.tokens").open("ab") as file:
        file.write(b"x")
    with pytest.raises(FileError, match="cut short"):
        PackedText(packed, length=4)
