"""Parallel corpora from the user's files, streamed; bad lines are counted in a report."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.data.batches import Encoded
from regard.data.source import LoadReport, OnError, repeat_epochs
from regard.data.split import Split, hash_split
from regard.data.table import TableRow, read_table, table_kind
from regard.data.text.normalizers import normalize_text
from regard.data.text.parallel_formats import read_aligned, read_mo, read_tmx
from regard.data.text.po_catalog import read_po
from regard.data.text.tokenizers import Tokenizer
from regard.errors import ConfigError, FileError
from regard.files import list_tree

# one file of pairs, or two line-aligned files
CorpusPath = str | Path | tuple[str | Path, str | Path]
SUFFIXES = (".tsv", ".csv", ".jsonl", ".po", ".mo", ".tmx")


class Pair(NamedTuple):
    """A source text and its translation; `language` is the target's, None for a single one."""

    source: str
    target: str
    language: str | None


def pair_preprocessor(tokenizer: Tokenizer) -> Callable[[Pair], Encoded]:
    """Encoder of pairs: source + EOS, and language token (or BOS) + target + EOS.

    The language is the first decoder token, so one source encoding serves every target language.
    The tokenizer's normalizers apply to the source only.

    >>> encode = pair_preprocessor(rg.data.ByteTokenizer(("de",)))
    >>> {name: len(ids) for name, ids in encode(Pair("a", "bc", "de")).items()}
    {'source': 2, 'target': 4}
    """

    def encode(pair: Pair) -> Encoded:
        first = tokenizer.bos_id if pair.language is None else tokenizer.language_id(pair.language)
        texts = normalize_text(pair.source, tokenizer.normalizers), pair.target
        source, target = tokenizer.encode_batch(texts)
        return {"source": [*source, tokenizer.eos_id], "target": [first, *target, tokenizer.eos_id]}

    return encode


class ParallelCorpus:
    """Translation pairs from two aligned files, .tsv, .csv, .jsonl, .po, .mo or .tmx, or gzipped.

    A folder stands for all .po files in it.

    Without `valid` and `test` a hash of the source assigns each pair to a split, so all
    translations of a sentence are in the same split. Train repeats in file order; `Batches`
    shuffles within its window.

    Args:
        train: one file of pairs, or a tuple (source, target) of aligned files.
        valid: the same for validation; needs `test` too.
        test: the same for testing.
        languages: (source, target); needed for .tmx, and the target language of the pairs.
        columns: of source and target in a table, by number, or by name with `header` or in .jsonl.
        header: whether the first line of a .tsv or .csv names its columns.
        on_error: "skip" counts bad lines in `report`, "raise" stops at the first.
        max_chars: longest side, in characters.
        max_length_ratio: longest side over shortest, for pairs of more than 40 characters.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "pairs.tsv"
    >>> _ = file.write_text("one\\teins\\ntwo\\t\\n")
    >>> pairs = ParallelCorpus(file, file, file, languages=("en", "de"))
    >>> list(pairs.examples("test", seed=0))
    [Pair(source='one', target='eins', language='de')]
    >>> print(pairs.report)
    loaded 1, skipped 1
      1 × an empty side: pairs.tsv:2
    """

    def __init__(
        self,
        train: CorpusPath,
        valid: CorpusPath | None = None,
        test: CorpusPath | None = None,
        *,
        languages: tuple[str, str] | None = None,
        columns: tuple[str, str] = ("1", "2"),
        header: bool = False,
        on_error: OnError = "skip",
        max_chars: int = 1000,
        max_length_ratio: float = 9.0,
    ):
        if (valid is None) != (test is None):
            raise ConfigError("valid, test: need to be given both or not at all, got one of them")
        given: dict[Split, CorpusPath | None] = {"train": train, "valid": valid, "test": test}
        self.paths: dict[Split, tuple[Path, ...]] = {
            split: _check(path) for split, path in given.items() if path is not None
        }
        self.languages, self.columns, self.header = languages, columns, header
        self.max_chars, self.max_length_ratio = max_chars, max_length_ratio
        self.report = LoadReport(on_error)

    @property
    def files(self) -> list[Path]:
        """The files of all splits."""
        return [file for split in self.paths for part in self._parts(split) for file in part]

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[Pair]:
        """Pairs from number `start`; train repeats forever."""
        missing = FileError(f"{self.files[0].name}: needs pairs, got none that can be used")
        return repeat_epochs(lambda epoch: self.pairs(split), split, start, missing)

    def pairs(self, split: Split) -> Iterator[Pair]:
        """One pass over the pairs of a split; resets the report."""
        self.report.clear()
        for assigned, pair in self._read(split):
            if assigned == split:
                self.report.loaded += 1
                yield pair

    def assigned_pairs(self) -> Iterator[tuple[Split, Pair]]:
        """One pass over all pairs, each with its split; resets the report."""
        self.report.clear()
        for split in self.paths:
            for assigned, pair in self._read(split):
                self.report.loaded += 1
                yield assigned, pair

    def _read(self, split: Split) -> Iterator[tuple[Split, Pair]]:
        """The usable pairs of the files of a split; with one file only, each with its split."""
        language = self.languages[1] if self.languages else None
        is_hashed = len(self.paths) == 1
        for part in self._parts(split):
            for line, values, error in self._rows(*part):
                source, target = (text.strip() for text in values or ("", ""))
                if reason := error or self._reject_reason(len(source), len(target)):
                    self.report.skip(part[0].name, line, reason)
                    continue
                key = source.encode(errors="replace")
                yield hash_split(key) if is_hashed else split, Pair(source, target, language)

    def _rows(self, path: Path, target: Path | None = None) -> Iterator[TableRow]:
        if target is not None:
            return read_aligned(path, target)
        match corpus_suffix(path):
            case ".tmx":
                if self.languages is None:
                    raise ConfigError("languages: need source and target of the .tmx, got none")
                return read_tmx(path, *self.languages)
            case ".po":
                return read_po(path)
            case ".mo":
                return read_mo(path)
            case _:
                return read_table(path, self.columns, header=self.header)

    def _reject_reason(self, source: int, target: int) -> str:
        shorter, longer = (source, target) if source < target else (target, source)
        if not shorter:
            return "an empty side"
        if longer > self.max_chars:
            return f"longer than {self.max_chars} characters"
        # short pairs may differ more: 'ok' and 'einverstanden'
        if longer > self.max_length_ratio * shorter and longer > 40:
            return f"one side {self.max_length_ratio:g} times longer than the other"
        return ""

    def _parts(self, split: Split) -> Sequence[tuple[Path, ...]]:
        """One file of pairs, two aligned files, or each catalog of a folder."""
        files = self.paths["train" if len(self.paths) == 1 else split]
        return [(file,) for file in list_catalogs(files[0])] if files[0].is_dir() else [files]


def _check(path: CorpusPath) -> tuple[Path, ...]:
    files = tuple(map(Path, path)) if isinstance(path, tuple) else (Path(path),)
    if len(files) == 1 and list_catalogs(files[0]):
        return files
    for file in files:
        if not file.is_file():
            raise FileError(f"{file}: needs to be a file, got no such file")
    if len(files) == 1 and corpus_suffix(files[0]) not in SUFFIXES and table_kind(files[0]) is None:
        raise FileError(
            f"{files[0]}: needs to end in {', '.join(SUFFIXES)}, got {files[0].suffix!r}; "
            f"try two files, (source, target)"
        )
    return files


def list_catalogs(path: Path) -> list[Path]:
    """The .po files of a folder and those below it; none of a file."""
    files = list_tree(path) if path.is_dir() else []
    return [file for file in files if corpus_suffix(file) == ".po"]


def corpus_suffix(path: Path) -> str:
    """The suffix that tells the format, before a .gz.

    >>> corpus_suffix(Path("pairs.TSV.gz"))
    '.tsv'
    """
    return Path(path.name.lower().removesuffix(".gz")).suffix
