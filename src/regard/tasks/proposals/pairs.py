"""A recipe for sentence pairs: files, columns, languages, vocabulary and model."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.data import Split
from regard.data.table import detect_table, table_kind
from regard.data.text.parallel_corpus import SUFFIXES, corpus_suffix, list_catalogs
from regard.errors import FileError
from regard.files import iter_lines
from regard.models import TranslatorConfig
from regard.tasks.proposals.proposal import (
    Proposal,
    choose_size,
    find_splits,
    inspect_or_raise,
    list_files,
    make_proposal,
)
from regard.tasks.translation.parallel_text import PairsTask

SIDES = ("source", "src", "target", "tgt", "trg", "translation")
# two-letter codes of ISO 639-1 that file and column names are searched for
CODES = """
    af am ar az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gl gu he hi hr hu hy id is
    it ja ka kk km ko ky la lb lo lt lv mk ml mn mr ms mt my nb ne nl nn no pa pl ps pt ro ru si
    sk sl sq
    sr sv sw ta te tg th tk tl tr uk ur uz vi zh
""".split()  # noqa: SIM905
BATCH_TOKENS = 2048
CHARS_PER_TOKEN = 3.5  # of byte pairs, in European languages
EPOCHS = 30
MAX_EVAL_PAIRS = 2000  # of valid and of test: more would take longer than the training
MIN_STEPS, MAX_STEPS = 1000, 2000
MAX_PHRASES = 5000  # pairs below which a phrase table is kept
TMX_HEAD_LINES = 2000  # searched for languages
# (train pairs below which it applies, vocabulary, layers per side, dim, dropout)
SIZES = [
    (5_000, 2000, 2, 128, 0.3),
    (20_000, 4000, 2, 128, 0.2),
    (100_000, 4000, 2, 192, 0.1),
    (float("inf"), 8000, 3, 192, 0.1),
]


def propose_pairs(paths: Sequence[Path], name: str) -> Proposal:
    """A translator for one file of pairs, two aligned files, or a folder of splits."""
    comments: dict[str, str] = {}
    files = _find(paths, comments)
    folder = os.path.commonpath(
        [file.resolve().parent for group in files.values() for file in group]
    )
    names: dict[str, Any] = {
        split: tuple(os.path.relpath(file.resolve(), folder) for file in group)
        for split, group in files.items()
    }
    columns, header, heads = _columns(files["train"], comments)
    source, target = _languages(files["train"], heads, comments)
    task = PairsTask(
        folder=folder, **names, columns=columns, header=header,
        source_language=source, target_language=target,
    )  # fmt: skip
    report = inspect_or_raise(task, "pairs", [file for group in files.values() for file in group])
    train = report.sizes["train"]
    vocab, layers, dim, dropout = choose_size(SIZES, train)
    characters = max(report.length("source").total, report.length("target").total)
    comments |= {
        "data.folder": "the files are relative to it, and it to this file",
        "data.vocab_size": f"byte pairs of both sides, for {train:,} pairs",
        "model.layers": f"{layers}+{layers} layers of {dim} for {train:,} train pairs",
        "model.dropout": "less for more data, which is seen fewer times",
    }
    held_out, eval_pairs = max(report.sizes["valid"], report.sizes["test"]), None
    if held_out > MAX_EVAL_PAIRS:
        eval_pairs = MAX_EVAL_PAIRS
        comments["data.eval_pairs"] = f"a sample of up to {held_out:,} held-out pairs, to be quick"
    if train > task.tokenizer_pairs:
        comments["data.vocab_size"] += f", trained on a sample of {task.tokenizer_pairs:,}"
    if table := train < MAX_PHRASES:
        comments["data.phrase_table"] = "words and train pairs to fall back on, as valid decides"
    if "valid" not in names:
        comments["data.train"] = "5% each become valid and test, by a hash of the source"
    model = TranslatorConfig(
        source_vocab=1, target_vocab=1, layers=layers, decoder_layers=layers, dim=dim,
        heads=dim // 32, ffn_dim=2 * dim, dropout=dropout,
    )  # fmt: skip
    return make_proposal(
        name, replace(task, vocab_size=vocab, eval_pairs=eval_pairs, phrase_table=table), model,
        report, comments,
        epoch_steps=characters / CHARS_PER_TOKEN / BATCH_TOKENS, epochs=EPOCHS,
        min_steps=MIN_STEPS, max_steps=MAX_STEPS, monitor="bleu", batch_tokens=BATCH_TOKENS,
        label_smoothing=0.1,
    )  # fmt: skip


def _find(paths: Sequence[Path], comments: dict[str, str]) -> dict[Split, list[Path]]:
    """The one or two files of each split."""
    if len(paths) > 2:
        raise FileError(f"data: needs a folder, one file, or two aligned files, got {len(paths)}")
    if len(paths) == 2:
        return {"train": [file for path in paths for file in list_files(path)[:1]]}
    files = list_files(paths[0])
    if paths[0].is_file():
        if corpus_suffix(paths[0]) not in SUFFIXES and table_kind(paths[0]) is None:
            raise FileError(
                f"{paths[0]}: needs to end in {', '.join(SUFFIXES)}, got {paths[0].suffix!r}; "
                "try two aligned files, source and target"
            )
        return {"train": files}
    catalogs = list_catalogs(paths[0])
    if len(catalogs) > 1 and all(corpus_suffix(file) in (".po", ".pot") for file in files):
        return {"train": [_one_language(paths[0], catalogs)]}
    splits = find_splits(files, lambda file: corpus_suffix(file) in SUFFIXES)
    if len(splits.get("train", ())) != 1:
        splits = find_splits(files, _has_language_suffix)
    _check_languages(paths[0], splits.get("train", ()))
    for split in list(splits):
        splits[split] = _one_pair(splits[split]) if len(splits[split]) > 1 else splits[split]
    if len(splits.get("train", ())) not in (1, 2):
        raise FileError(
            f"{paths[0]}: needs train.tsv (or {', '.join(SUFFIXES[1:])}), or train.de and "
            f"train.en, got {', '.join(file.name for file in files[:6]) or 'no files'}; try both "
            "aligned files: regard new pairs SOURCE TARGET"
        )
    if len(splits["train"]) == 2:
        comments["data.source_language"] = "swap the files and languages for the other direction"
    return _complete(splits, comments)


def _one_language(folder: Path, catalogs: Sequence[Path]) -> Path:
    """The folder, if its catalogs are all of one language."""
    languages = {_po_language(file): file for file in reversed(catalogs)}
    if len(languages) > 1:
        names = ", ".join(f"{name or 'unnamed'} ({languages[name].name})" for name in languages)
        raise FileError(
            f"{folder}: needs catalogs of one language, got {len(languages)}: {names}; "
            f"try one of them: regard new pairs {next(iter(languages.values()))}"
        )
    return folder


def _check_languages(folder: Path, files: Sequence[Path]) -> None:
    """Raise for more than two aligned files of one stem, and name their languages."""
    codes = [corpus_suffix(file)[1:] for file in files if _has_language_suffix(file)]
    if len(set(codes)) > 2:
        first, second = (next(x for x in files if corpus_suffix(x)[1:] == c) for c in codes[:2])
        raise FileError(
            f"{folder}: needs two languages, got {len(set(codes))}: "
            f"{', '.join(dict.fromkeys(codes))}; try two files: regard new pairs {first} {second}"
        )


def _complete(splits: dict[Split, list[Path]], comments: dict[str, str]) -> dict[Split, list[Path]]:
    """With valid and test, where one of them is missing."""
    if ("valid" in splits) == ("test" in splits):
        return splits
    given: Split = "valid" if "valid" in splits else "test"
    other: Split = "test" if given == "valid" else "valid"
    comments[f"data.{other}"] = f"no file of its own: the {given} split again; scores are too good"
    return {**splits, other: splits[given]}


def _has_language_suffix(file: Path) -> bool:
    return corpus_suffix(file)[1:] in CODES


def _one_pair(files: list[Path]) -> list[Path]:
    """The files of the first stem that has two languages; of tables the first one."""
    stems: dict[str, list[Path]] = {}
    for file in files:
        stem = file.name.lower().removesuffix(".gz").rpartition(".")[0]
        stems.setdefault(stem, []).append(file)
    return next((group for group in stems.values() if len(group) == 2), files[:1])


def _columns(
    files: Sequence[Path], comments: dict[str, str]
) -> tuple[tuple[str, str], bool, tuple[str, str]]:
    """Columns of source and target, whether a header names them, and their names."""
    if len(files) == 2 or (kind := table_kind(files[0])) is None:
        return ("1", "2"), False, ("", "")
    table = detect_table(files[0], header=True)
    known = [name for name in table.columns if name.lower() in SIDES or name.lower() in CODES]
    if len(known) > 2:  # Indonesian, or more likely a number
        known = [name for name in known if name.lower() != "id"]
    if kind == "jsonl":
        names = (known if len(known) >= 2 else list(table.columns))[:2]
        if len(names) < 2:
            raise FileError(
                f"{files[0]}: needs two keys per line, got {', '.join(table.columns) or 'none'}"
            )
        comments["data.columns"] = f"of {', '.join(table.columns)}"
        return (names[0], names[1]), False, (names[0], names[1])
    if len(known) >= 2:
        comments["data.columns"] = f"of {', '.join(table.columns)}"
        comments["data.header"] = "the first line names the columns"
        return (known[0], known[1]), True, (known[0], known[1])
    texts = [str(n) for n, cell in enumerate(table.columns, 1) if not cell.strip().isdecimal()]
    if len(texts) < 2:
        raise FileError(
            f"{files[0]}: needs two columns of text, got {len(texts)} in its first line"
        )
    comments["data.columns"] = f"the first two of text, of {len(table.columns)}"
    comments["data.header"] = "the first line is a pair, not names of columns"
    return (texts[0], texts[1]), False, ("", "")


def _languages(
    files: Sequence[Path], heads: tuple[str, str], comments: dict[str, str]
) -> tuple[str, str]:
    """The languages by suffixes, column names, the catalog's header or the file's name."""
    if len(files) == 2:
        codes = tuple(corpus_suffix(file)[1:] for file in files)
        if codes[0] != codes[1] and all(code in CODES for code in codes):
            return codes[0], codes[1]
    if all(head.lower() in CODES for head in heads) and heads[0] != heads[1]:
        return heads[0].lower(), heads[1].lower()
    suffix = corpus_suffix(files[0])
    if suffix == ".tmx":
        return _tmx_languages(files[0], comments)
    catalogs = list_catalogs(files[0]) or list(files)
    if corpus_suffix(catalogs[0]) == ".po" and (target := _po_language(catalogs[0])):
        comments["data.source_language"] = "of the msgid; .po files do not say it"
        return "en", target
    for match in re.finditer(r"(?<![a-z])([a-z]{2})[-_]([a-z]{2})(?![a-z])", files[0].name.lower()):
        if match[1] in CODES and match[2] in CODES:
            comments["data.source_language"] = "by the name of the file"
            return match[1], match[2]
    comments["data.source_language"] = "not in the data: write names such as en and de"
    return "source", "target"


def _tmx_languages(file: Path, comments: dict[str, str]) -> tuple[str, str]:
    counts: Counter[str] = Counter()
    source = ""
    for number, line in enumerate(iter_lines(file)):
        text = line.decode(errors="replace")
        if match := re.search(r"srclang\s*=\s*[\"']([\w-]+)", text):
            source = match[1]
        counts.update(re.findall(r"<tuv[^>]*?lang\s*=\s*[\"']([\w-]+)", text))
        if number > TMX_HEAD_LINES:
            break
    if len(counts) < 2:
        raise FileError(f"{file}: needs units in two languages, got {', '.join(counts) or 'none'}")
    languages = [language for language, _ in counts.most_common()]
    source = source if source in languages else languages[0]
    target = next(language for language in languages if language != source)
    comments["data.source_language"] = f"of {', '.join(languages)} in the file"
    return source, target


def _po_language(file: Path) -> str:
    for line in iter_lines(file):
        if match := re.search(rb'"Language:\s*([\w-]+)', line):
            return match[1].decode()
        if line.startswith(b"msgid ") and line.strip() != b'msgid ""':
            break
    return ""
