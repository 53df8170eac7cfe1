"""Recipes for labelled texts and tagged tokens: files, columns, vocabulary and model."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data import Split
from regard.data.table import detect_table, read_table, table_kind
from regard.data.text.parallel_corpus import corpus_suffix
from regard.errors import ConfigError, FileError, counted
from regard.files import iter_lines
from regard.models import ClassifierConfig
from regard.tasks.proposals.proposal import (
    Proposal,
    choose_size,
    find_splits,
    inspect_or_raise,
    list_files,
    make_proposal,
    one_path,
)
from regard.tasks.registry import find_task

TEXT_COLUMNS = ("text", "sentence", "content", "review", "comment", "message", "body", "title")
LABEL_COLUMNS = ("label", "class", "category", "target", "sentiment", "topic", "intent", "labels")
TAG_SUFFIXES = (".conll", ".conllu", ".tsv", ".txt", ".jsonl", ".iob", ".bio", ".iob2")
CONLLU_COLUMNS = 10  # word 2, universal part of speech 4
BATCH_TOKENS = 2048
NGRAMS = 1 << 17
EPOCHS = 20
MIN_STEPS = 1000
VOCAB_SIZE = 8000  # words in one piece; an embedding costs no time
SAMPLE_ROWS = 200  # that decide which of two unnamed columns is the label
# (train examples below which it applies, layers, dim)
SIZES = [(2_000, 2, 64), (20_000, 2, 128), (float("inf"), 3, 192)]


def propose_labels(paths: Sequence[Path], name: str) -> Proposal:
    """A text classifier for a table of texts and labels, or a folder of splits."""
    comments: dict[str, str] = {}
    files = _find(paths, lambda file: table_kind(file) is not None, ".csv, .tsv or .jsonl")
    columns = _label_columns(Path(files["train"]), comments)
    kind: Any = find_task("labels")
    task = kind(**files, **columns)
    return _propose(task, name, "labelled texts", "text", "accuracy", comments)


def propose_tags(paths: Sequence[Path], name: str) -> Proposal:
    """A tagger for a CoNLL-like file, JSON lines of tokens and tags, or a folder of splits."""
    comments: dict[str, str] = {}
    files = _find(paths, lambda f: corpus_suffix(f) in TAG_SUFFIXES, ", ".join(TAG_SUFFIXES))
    columns = _tag_columns(Path(files["train"]), comments)
    kind: Any = find_task("tagging")
    task = kind(**files, **columns)
    proposal = _propose(task, name, "tagged sentences", "tokens", "f1", comments)
    split, rate = task.measure_split()
    reason = f"of a text to tag: it reproduces {rate:.1%} of these words"
    data: Any = replace(proposal.recipe.data, word_split=split)  # pyright: ignore[reportArgumentType]
    return replace(
        proposal,
        recipe=replace(proposal.recipe, data=data),
        comments=proposal.comments | {"data.word_split": reason},
    )


def _propose(
    task: Any, name: str, what: str, field: str, monitor: str, comments: dict[str, str]
) -> Proposal:
    report = inspect_or_raise(task, what, [Path(task.train)])
    train = report.sizes["train"]
    layers, dim = choose_size(SIZES, train)
    tokens = report.length(field).total / (3.5 if field == "text" else 0.7)
    rule = f"for {train:,} train examples"
    linear = "linear model on n-grams" if field == "text" else "CRF on words and their shapes"
    comments |= {
        "data.vocab_size": "at most: frequent words are one token each",
        "model.layers": f"{counted(layers, 'layer')} of {dim} {rule}",
        "model.ngrams": f"hashed features of a {linear}, mixed in as the valid split decides",
    }
    if not (task.valid and task.test):
        missing = " and ".join(split for split in ("valid", "test") if not getattr(task, split))
        comments["data.train"] = f"5% each become {missing}, by a hash of the text"
    model = ClassifierConfig(
        vocab=1, classes=1, layers=layers, dim=dim, heads=dim // 32, ffn_dim=2 * dim,
        dropout=0.2, pooling="mean" if field == "text" else "first",
        ngrams=NGRAMS,
    )  # fmt: skip
    return make_proposal(
        name, replace(task, vocab_size=VOCAB_SIZE), model, report, comments,
        epoch_steps=tokens / BATCH_TOKENS, epochs=EPOCHS, min_steps=MIN_STEPS, monitor=monitor,
        batch_tokens=BATCH_TOKENS, label_smoothing=0.1,
    )  # fmt: skip


def _find(
    paths: Sequence[Path], accepts: Callable[[Path], bool], suffixes: str
) -> dict[Split, str]:
    """The file of each split."""
    path = one_path(paths, "one file, or a folder of splits")
    if path.is_file() and not accepts(path):
        raise FileError(f"{path}: needs to end in {suffixes}, got {path.suffix!r}")
    files = list_files(path)
    splits: dict[Split, list[Path]] = {"train": files}
    if path.is_dir():
        splits = find_splits(files, accepts)
    if len(splits.get("train", ())) != 1:
        names = ", ".join(file.name for file in files[:6]) or "no files"
        raise FileError(f"{path}: needs one file, or train, valid and test, got {names}")
    return {split: str(group[0].resolve()) for split, group in splits.items()}


def _label_columns(file: Path, comments: dict[str, str]) -> dict[str, Any]:
    """The columns of text and label by their names; without names by their values."""
    table = detect_table(file, header=True)
    named = table.find_columns(TEXT_COLUMNS, LABEL_COLUMNS)
    if named is not None:
        comments["data.text_column"] = f"of {', '.join(table.columns)}"
        return {"text_column": named[0], "label_column": named[1]}
    if table.kind == "jsonl" or len(table.columns) != 2:
        raise ConfigError(
            f"{file}: needs a column {' or '.join(TEXT_COLUMNS[:3])} and one "
            f"{' or '.join(LABEL_COLUMNS[:3])}, got {', '.join(table.columns)}; try renaming them"
        )
    rows = [row.values for row in islice(read_table(file, ["1", "2"], header=False), SAMPLE_ROWS)]
    values = [[row[n] for row in rows if row] for n in (0, 1)]
    label = min((0, 1), key=lambda n: len(set(values[n])))  # labels repeat, texts differ
    header = len(rows) > 2 and values[label][0] not in values[label][1:]
    names = table.columns if header else ("1", "2")
    comments["data.text_column"] = "the other column has fewer different values"
    comments["data.header"] = (
        f"{values[label][0]!r} is in the first line only: it names the column"
        if header
        else "the first line is an example, not names of columns"
    )
    return {"text_column": names[1 - label], "label_column": names[label], "header": header}


def _tag_columns(file: Path, comments: dict[str, str]) -> dict[str, int]:
    """The columns of word and tag: those of CoNLL-U, else the first and the last."""
    if table_kind(file) == "jsonl":
        return {}
    for line in iter_lines(file):
        text = line.decode(errors="replace").strip()
        if not text or text.startswith("#"):
            continue
        columns = text.split("\t") if "\t" in text else text.split()
        if len(columns) == CONLLU_COLUMNS and re.fullmatch(r"\d+([-.]\d+)?", columns[0]):
            comments["data.token_column"] = "word of CoNLL-U"
            comments["data.tag_column"] = "universal part of speech of CoNLL-U"
            return {"token_column": 2, "tag_column": 4}
        comments["data.token_column"] = "the first column"
        comments["data.tag_column"] = f"the last of {len(columns)} columns"
        return {}
    raise FileError(f"{file}: needs tagged tokens, got an empty file")
