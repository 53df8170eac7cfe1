"""gettext .po catalogs: read as pairs, or filled and otherwise preserved byte for byte.

Babel's reader and writer change entries that nobody touched: they wrap lines, complete the header,
move obsolete messages to the end, keep octal escapes as text and turn `#|` into a comment.
"""

import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from gettext import c2py
from pathlib import Path
from typing import NamedTuple

from regard.data.table import TableRow
from regard.errors import FileError
from regard.files import iter_lines, open_binary, read_text

MAX_FORMS = 10  # of plurals; msgstr[9] is the last
BATCH_SIZE = 64  # messages per call of `translate`
# a translation must keep: %s %(name)d %1$s %%, {} {name}, ${name}, <b> </b>
_PLACEHOLDER = re.compile(
    r"%(?:\d+\$|\(\w+\))?[#0+-]*\d*(?:\.\d+)?(?:hh|h|ll|l|z|j|t)?[diouxXeEfFgGcrsa]"
    r"|%%|\$?\{[^{}]*\}|</?\w[^<>]*>"
)
_KEYWORD = re.compile(r"msgctxt|msgid|msgid_plural|msgstr(\[\d\])?")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\(?:([abfnrtv\\\"'?])|([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.?))", re.DOTALL)
_ESCAPED = dict(zip(b"abfnrtv\\\"'?", b"\a\b\f\n\r\t\v\\\"'?", strict=True))
_PLURAL_FORMS = re.compile(r"(?im)^Plural-Forms:\s*nplurals\s*=\s*(\d+)\s*;\s*plural\s*=([^;]+)")
_LANGUAGE = re.compile(r"(?im)^Language:\s*([\w-]+)")
_UNPAIRED = "msgstr[n] without msgid_plural, or the reverse"
_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # not splitlines: other line separators are text here
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def placeholders(text: str) -> Counter[str]:
    """Placeholders and tags of a text, which its translation must keep.

    >>> sorted(placeholders("%d files in {folder}, <b>100%</b>"))
    ['%d', '</b>', '<b>', '{folder}']
    """
    return Counter(_PLACEHOLDER.findall(text))


@dataclass(frozen=True)
class PluralForms:
    """The number of plural forms of a language, and which of them is for one thing.

    >>> PluralForms.parse("Plural-Forms: nplurals=3; plural=n==1 ? 0 : n<5 ? 1 : 2;")
    PluralForms(count=3, singular=0)
    >>> PluralForms.parse("Language: ar")
    PluralForms(count=6, singular=1)
    """

    count: int = 2
    singular: int = 0

    @classmethod
    def parse(cls, header: str, language: str = "") -> "PluralForms":
        """Those of a catalog's header, or of its language by Unicode's CLDR."""
        from babel.core import UnknownLocaleError
        from babel.messages.plurals import get_plural

        forms, named = _PLURAL_FORMS.search(header), _LANGUAGE.search(header)
        try:
            if forms is None:
                locale = (named[1] if named else language).replace("-", "_")
                rule = get_plural(locale)
                return cls(rule[0], c2py(rule[1])(1))
            count, singular = int(forms[1]), c2py(forms[2])(1)
            if 1 <= count <= MAX_FORMS and 0 <= singular < count:
                return cls(count, singular)
        except (ValueError, ArithmeticError, UnknownLocaleError):
            pass
        return cls()  # as in English


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
    plurals: PluralForms = PluralForms()

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
        """Source text per missing translation: the plural for all forms but that of one thing."""
        sources = {"msgstr": self.texts["msgid"]}
        if (plural := self.texts.get("msgid_plural")) is not None:
            sources = {f"msgstr[{n}]": plural for n in range(self.plurals.count)}
            if self.plurals.count > 1:
                sources[f"msgstr[{self.plurals.singular}]"] = self.texts["msgid"]
        return {
            name: source
            for name, source in sources.items()
            if self.is_fuzzy or not self.texts.get(name)
        }

    def fill(self, translations: dict[str, str], newline: str = "\n") -> None:
        """Insert translations and mark the message fuzzy, for review."""
        lines: list[tuple[str, str]] = []
        for kind, line in self.lines:
            if kind not in translations:
                lines.append((kind, line))
            elif not any(kind == written for written, _ in lines):
                lines += [(kind, new + newline) for new in _quoted(kind, translations[kind])]
        for name, text in translations.items():  # forms that the template does not have
            if all(kind != name for kind, _ in lines):
                last = max(n for n, (kind, _) in enumerate(lines) if kind.startswith("msgstr"))
                lines[last + 1 : last + 1] = [(name, new + newline) for new in _quoted(name, text)]
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
    """Result of filling a catalog: filled and unchanged messages, and the skipped with reasons."""

    filled: int
    unchanged: int
    skipped: list[str]


class PoCatalog:
    """The messages of a .po file in order; `str(catalog)` is the file, byte for byte.

    With `data`, its content, `path` is used in error messages only. `language` decides the plural
    forms where the header does not.

    >>> catalog = PoCatalog("de.po", b'msgid "%s days"\\nmsgstr ""\\n')
    >>> catalog.fill(lambda texts: [text.replace("days", "Tage") for text in texts]).filled
    1
    >>> print(catalog, end="")
    #, fuzzy
    msgid "%s days"
    msgstr "%s Tage"
    """

    def __init__(self, path: str | Path, data: bytes | None = None, *, language: str = ""):
        self.path = Path(path)
        if data is None:
            with open_binary(path) as opened:
                data = opened.read()
        text = read_text(path, data, converter="msgconv --to-code=UTF-8")
        self.bom = "\ufeff" if data.startswith(BOM_UTF8) else ""
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.messages = list(parse_messages(_LINE.findall(text)))
        headers = (m.texts.get("msgstr", "") for m in self.messages if m.texts.get("msgid") == "")
        plurals = PluralForms.parse(next(headers, ""), language)
        for message in self.messages:
            message.plurals = plurals
            if message.texts and ("msgid" not in message.texts or not message.translation_keys):
                end = message.start + len(message.lines)
                message.errors.append((end, "a message without msgid or msgstr before it"))
            for number, content in message.errors:
                raise FileError(
                    f"{self.path}: needs keywords and quoted texts, got {content} in line {number}"
                    "; try msgfmt --check"
                )

    def fill(
        self,
        translate: Callable[[list[str]], Sequence[str | None]],
        reject_reason: Callable[[str], str] = lambda text: "",
        skip_reason: Callable[[str], str] = lambda text: "no complete translation",
    ) -> FillResult:
        """Translate every untranslated message; skips those that would lose a placeholder.

        `translate` gets the texts of 64 messages at a time; None skips one, and `skip_reason` says
        why. `reject_reason` says why a text cannot be translated, "" if it can. Leading and
        trailing white space is kept.
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
                reason = self._fill(message, translations, skip_reason)
                skipped += [f"{_short(message)}: {reason}"] if reason else []
        unchanged = sum(bool(m.texts.get("msgid")) for m in self.messages) - len(pending)
        return FillResult(len(pending) - len(skipped), unchanged, skipped)

    def _fill(
        self,
        message: PoMessage,
        translations: Iterator[str | None],
        skip_reason: Callable[[str], str],
    ) -> str:
        sources = message.untranslated()
        answers = [next(translations) for _ in sources]
        accepted: dict[str, str] = {}
        for (name, source), text in zip(sources.items(), answers, strict=True):
            if text is None:
                return skip_reason(source.strip())
            text = _without_brackets(source, text)
            if lost := placeholders(source) - placeholders(text):
                return f"the translation lost {' '.join(sorted(lost))}"
            if added := placeholders(text) - placeholders(source):
                return f"the translation added {' '.join(sorted(added))}"
            white = source[: len(source) - len(source.lstrip())], source[len(source.rstrip()) :]
            accepted[name] = text.strip().join(white)
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
        text, content = line.strip(), repr(line.strip()[:40])
        new = text.startswith(("#", "msgid ", "msgctxt ")) and not text.startswith("#~")
        if new and message.translation_keys:
            yield message
            message, name = PoMessage(start=number), ""
        kind = text[:2] if text.startswith("#") else ""
        if text.startswith("msg"):
            name, _, text = text.partition(" ")
            text = text.strip()
            if not _KEYWORD.fullmatch(name) or name in message.texts:
                twice = f"{name} twice" if name in message.texts else content
                message.errors.append((number, twice))
            if name.startswith("msgstr") and ("[" in name) != ("msgid_plural" in message.texts):
                message.errors.append((number, _UNPAIRED))
            message.texts[name] = ""
        if text and not kind:
            part = unquote_po(text) if name else None
            if part is None:
                message.errors.append((number, content))
            else:
                message.texts[name] += part
                kind = name
        kind = name if not kind and line.lstrip().startswith("msg") else kind  # or without a text
        message.lines.append((kind, line))
    yield message


def unquote_po(line: str) -> str | None:
    """Text of a quoted .po line, whose escapes are those of C; None if it is not one.

    >>> unquote_po('"caf\\\\303\\\\251"'), unquote_po('"a" "b"')
    ('café', None)
    """
    quoted = _QUOTED.fullmatch(line)

    def plain(escape: re.Match[bytes]) -> bytes:
        name, octal, hexadecimal, _ = escape.groups()
        if name:
            return bytes([_ESCAPED[name[0]]])
        return bytes([int(octal, 8) & 255 if octal else int(hexadecimal, 16)])

    try:
        return None if quoted is None else _ESCAPE.sub(plain, quoted[1].encode()).decode()
    except (ValueError, TypeError):  # an unknown escape, or bytes that are not UTF-8
        return None


def read_po(path: Path) -> Iterator[TableRow]:
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
        yield from (TableRow(number, error=reason) for number, reason in bad.items())
        for number, content in message.errors:
            reason = content if content == _UNPAIRED else "neither a keyword nor a quoted text"
            yield TableRow(number, error=reason)
        texts = message.texts
        if bad or not texts.get("msgid"):  # reported by its lines; a comment, or the header
            continue
        kinds = [kind for kind, _ in message.lines]
        line = message.start + kinds.index("msgid")
        if message.is_fuzzy:
            yield TableRow(line, error="marked fuzzy")
            continue
        yield TableRow(line, (texts["msgid"], texts.get("msgstr", texts.get("msgstr[0]", ""))))
        if "msgstr[1]" in texts and "msgid_plural" in texts:
            yield TableRow(line, (texts["msgid_plural"], texts["msgstr[1]"]))


def _without_brackets(source: str, text: str) -> str:
    """The translation without the brackets that a model puts around placeholders: %s for <%s>."""
    for mark in placeholders(source):
        if mark[0] != "<" and f"<{mark}>" not in source:
            text = text.replace(f"<{mark}>", mark)
    return text


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
