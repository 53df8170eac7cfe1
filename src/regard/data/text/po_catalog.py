"""gettext .po catalogs: read as pairs, or filled and otherwise preserved byte for byte."""

import re
from ast import literal_eval
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from regard.data.text.parallel_formats import CorpusRow
from regard.errors import FileError
from regard.files import iter_lines, open_binary, read_text

BATCH_SIZE = 64  # messages per call of `translate`
# a translation must keep: %s %(name)d %1$s %%, {} {name}, ${name}, <b> </b>
_PLACEHOLDER = re.compile(
    r"%(?:\d+\$|\(\w+\))?[#0+-]*\d*(?:\.\d+)?(?:hh|h|ll|l|z|j|t)?[diouxXeEfFgGcrsa]"
    r"|%%|\$?\{[^{}]*\}|</?\w[^<>]*>"
)
_KEYWORD = re.compile(r"msgctxt|msgid|msgid_plural|msgstr(\[\d\])?")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # not splitlines: other line separators are text here
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def placeholders(text: str) -> Counter[str]:
    """Placeholders and tags of a text, which its translation must keep.

    >>> sorted(placeholders("%d files in {folder}, <b>100%</b>"))
    ['%d', '</b>', '<b>', '{folder}']
    """
    return Counter(_PLACEHOLDER.findall(text))


@dataclass
class PoMessage:
    """One message: its lines with the keyword of each, its texts by keyword, and what is wrong.

    >>> message = PoMessage([("msgid", 'msgid "two"\\n'), ("msgstr", 'msgstr ""\\n')])
    >>> message.texts.update(msgid="two", msgstr="")
    >>> message.needs_translation
    True
    """

    lines: list[tuple[str, str]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    start: int = 1  # number of its first line
    errors: list[tuple[int, str]] = field(default_factory=list)  # line number, what is there

    @property
    def is_fuzzy(self) -> bool:
        """Whether it is marked for review."""
        flags = [line for kind, line in self.lines if kind == "#,"]
        return any("fuzzy" in re.split(r"[,\s]+", line) for line in flags)

    @property
    def translation_keys(self) -> list[str]:
        """Keywords of its translations: msgstr, or msgstr[0], msgstr[1], … for plurals."""
        return [name for name in self.texts if name.startswith("msgstr")]

    @property
    def needs_translation(self) -> bool:
        """Whether a translation is missing or fuzzy; never for the header."""
        return bool(self.texts.get("msgid") and self.untranslated())

    def untranslated(self) -> dict[str, str]:
        """Source text per missing translation: the plural for all forms but the first."""
        plural = self.texts.get("msgid_plural", self.texts.get("msgid", ""))
        return {
            name: self.texts["msgid"] if name in ("msgstr", "msgstr[0]") else plural
            for name in self.translation_keys
            if self.is_fuzzy or not self.texts[name]
        }

    def fill(self, translations: dict[str, str], newline: str = "\n") -> None:
        """Insert translations and mark the message fuzzy, for review."""
        lines: list[tuple[str, str]] = []
        for kind, line in self.lines:
            if kind not in translations:
                lines.append((kind, line))
            elif not any(kind == written for written, _ in lines):
                lines += [(kind, new + newline) for new in _quoted(kind, translations[kind])]
        self.lines, self.texts = lines, self.texts | translations
        kinds = [kind for kind, _ in lines]
        if self.is_fuzzy:
            return
        if "#," in kinds:
            at = kinds.index("#,")
            lines[at] = "#,", f"{lines[at][1].rstrip()}, fuzzy{newline}"
        else:  # after other comments, before the previous and current message
            first = next(n for n, kind in enumerate(kinds) if kind == "#|" or kind.startswith("m"))
            lines.insert(first, ("#,", f"#, fuzzy{newline}"))

    def __str__(self) -> str:
        return "".join(line for _, line in self.lines)


class FillResult(NamedTuple):
    """Result of filling a catalog: filled and unchanged messages, and the skipped with reasons.

    >>> FillResult(2, 5, []).filled
    2
    """

    filled: int
    unchanged: int
    skipped: list[str]


class PoCatalog:
    """The messages of a .po file in order; `str(catalog)` is the file, byte for byte.

    With `data`, its content, `path` is used in error messages only.

    >>> catalog = PoCatalog("de.po", b'msgid "%s days"\\nmsgstr ""\\n')
    >>> catalog.fill(lambda texts: [text.replace("days", "Tage") for text in texts]).filled
    1
    >>> print(catalog, end="")
    #, fuzzy
    msgid "%s days"
    msgstr "%s Tage"
    """

    def __init__(self, path: str | Path, data: bytes | None = None):
        self.path = Path(path)
        if data is None:
            with open_binary(path) as opened:
                data = opened.read()
        text = read_text(path, data, converter="msgconv --to-code=UTF-8")
        self.bom = "\ufeff" if data.startswith(BOM_UTF8) else ""
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.messages = list(parse_messages(_LINE.findall(text)))
        for message in self.messages:
            if message.texts and ("msgid" not in message.texts or not message.translation_keys):
                end = message.start + len(message.lines)
                message.errors.append((end, "a message without msgid or msgstr before it"))
            for number, found in message.errors:
                raise FileError(
                    f"{self.path}: needs keywords and quoted texts, got {found} in line {number}; "
                    "try msgfmt --check"
                )

    def fill(
        self,
        translate: Callable[[list[str]], Sequence[str | None]],
        reject_reason: Callable[[str], str] = lambda text: "",
    ) -> FillResult:
        """Translate every untranslated message; skips those that would lose a placeholder.

        `translate` gets the texts of 64 messages at a time; None skips one. `reject_reason` says
        why a text cannot be translated, "" if it can. Leading and trailing white space is kept.
        """
        ready, skipped = [], []
        pending = [message for message in self.messages if message.needs_translation]
        for message in pending:
            reasons = [reject_reason(text.strip()) for text in message.untranslated().values()]
            if any(reasons):
                skipped.append(f"{_short(message)}: {next(filter(None, reasons))}")
            else:
                ready.append(message)
        for at in range(0, len(ready), BATCH_SIZE):
            batch = ready[at : at + BATCH_SIZE]
            texts = [text for message in batch for text in message.untranslated().values()]
            translations = iter(translate([text.strip() for text in texts]))
            for message in batch:
                reason = self._fill(message, translations)
                skipped += [f"{_short(message)}: {reason}"] if reason else []
        unchanged = sum(bool(m.texts.get("msgid")) for m in self.messages) - len(pending)
        return FillResult(len(pending) - len(skipped), unchanged, skipped)

    def _fill(self, message: PoMessage, translations: Iterator[str | None]) -> str:
        sources = message.untranslated()
        answers = [next(translations) for _ in sources]
        accepted: dict[str, str] = {}
        for (name, source), text in zip(sources.items(), answers, strict=True):
            if text is None:
                return "no complete translation"
            if lost := placeholders(source) - placeholders(text):
                return f"the translation lost {' '.join(sorted(lost))}"
            if added := placeholders(text) - placeholders(source):
                return f"the translation added {' '.join(sorted(added))}"
            before, _, after = source.partition(source.strip())  # white space
            accepted[name] = before + text.strip() + after
        message.fill(accepted, self.newline)
        return ""

    def __str__(self) -> str:
        return self.bom + "".join(map(str, self.messages))


def parse_messages(lines: Iterable[str]) -> Iterator[PoMessage]:
    """The messages of the lines of a catalog, each with its errors.

    >>> [message] = parse_messages(['msgid "two"', 'msgstr zwei'])
    >>> message.texts["msgid"], message.errors
    ('two', [(2, "'msgstr zwei'")])
    """
    message, name = PoMessage(), ""
    for number, line in enumerate(lines, 1):
        text, found = line.strip(), repr(line.strip()[:40])
        new = text.startswith(("#", "msgid ", "msgctxt ")) and not text.startswith("#~")
        if new and message.translation_keys:
            yield message
            message, name = PoMessage(start=number), ""
        kind = text[:2] if text.startswith("#") else ""
        if text.startswith("msg"):
            name, _, text = text.partition(" ")
            text = text.strip()
            if not _KEYWORD.fullmatch(name) or name in message.texts:
                twice = f"{name} twice" if name in message.texts else found
                message.errors.append((number, twice))
            message.texts[name] = ""
        if text and not kind:
            part = unquote_po(text) if name else None
            if part is None:
                message.errors.append((number, found))
            else:
                message.texts[name] += part
                kind = name
        message.lines.append((kind, line))
    yield message


def unquote_po(line: str) -> str | None:
    """Text of a quoted .po line; None if it is not quoted."""
    if len(line) < 2 or line[0] != '"' or line[-1] != '"':
        return None
    try:
        return str(literal_eval(line))  # C escapes are Python escapes
    except (SyntaxError, ValueError):
        return None


def read_po(path: Path) -> Iterator[CorpusRow]:
    """Messages of a catalog as pairs; singular and first plural form of one with plurals."""
    undecodable: dict[int, str] = {}

    def decode(number: int, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            undecodable[number] = f"not UTF-8 ({error.reason})"
            return line.decode(errors="replace")

    lines = (decode(number, line) for number, line in enumerate(iter_lines(path), 1))
    for message in parse_messages(lines):
        numbers = range(message.start, message.start + len(message.lines))
        bad = {n: undecodable.pop(n) for n in list(undecodable) if n in numbers}
        yield from (CorpusRow(number, error=reason) for number, reason in bad.items())
        for number, _ in message.errors:
            yield CorpusRow(number, error="neither a keyword nor a quoted text")
        texts = message.texts
        if bad or not texts.get("msgid"):  # reported by its lines; a comment, or the header
            continue
        kinds = [kind for kind, _ in message.lines]
        line = message.start + kinds.index("msgid")
        if message.is_fuzzy:
            yield CorpusRow(line, error="marked fuzzy")
            continue
        yield CorpusRow(line, texts["msgid"], texts.get("msgstr", texts.get("msgstr[0]", "")))
        if "msgstr[1]" in texts:
            yield CorpusRow(line, texts["msgid_plural"], texts["msgstr[1]"])


def _quoted(name: str, text: str) -> list[str]:
    """A text as catalog lines; a multi-line text starts on the line below its keyword."""
    escaped = "".join(_ESCAPES.get(letter, letter) for letter in text)
    parts = [part for part in re.split(r"(?<=\\n)", escaped) if part]
    if len(parts) < 2:
        return [f'{name} "{escaped}"']
    return [f'{name} ""', *(f'"{part}"' for part in parts)]


def _short(message: PoMessage) -> str:
    text = message.texts["msgid"]
    return repr(text if len(text) <= 40 else f"{text[:39]}…")
