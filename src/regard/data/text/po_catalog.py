"""A gettext catalog, kept line by line: what is untranslated is filled, all else stays as it is."""

import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from regard.data.text.parallel_formats import unquote_po
from regard.errors import FileError
from regard.files import open_binary, read_text

# what a translation must keep: %s %(name)d %1$s %%, {} {name}, ${name}, <b> </b>
_PLACEHOLDER = re.compile(
    r"%(?:\d+\$|\(\w+\))?[#0+-]*\d*(?:\.\d+)?(?:hh|h|ll|l|z|j|t)?[diouxXeEfFgGcrsa]"
    r"|%%|\$?\{[^{}]*\}|</?\w[^<>]*>"
)
_KEYWORD = re.compile(r"msgctxt|msgid|msgid_plural|msgstr(\[\d\])?")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # not splitlines: other signs of a line's end are text here
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def placeholders(text: str) -> Counter[str]:
    """What stands in a text for something else, and so must stand in its translation too.

    >>> sorted(placeholders("%d files in {folder}, <b>100%</b>"))
    ['%d', '</b>', '<b>', '{folder}']
    """
    return Counter(_PLACEHOLDER.findall(text))


@dataclass
class PoMessage:
    """One message: its lines with what each belongs to, and its texts by keyword.

    >>> message = PoMessage([("msgid", 'msgid "two"\\n'), ("msgstr", 'msgstr ""\\n')])
    >>> message.texts.update(msgid="two", msgstr="")
    >>> message.needs_translation
    True
    """

    lines: list[tuple[str, str]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def is_fuzzy(self) -> bool:
        """Whether it is marked to be looked at again."""
        flags = [line for kind, line in self.lines if kind == "#,"]
        return any("fuzzy" in re.split(r"[,\s]+", line) for line in flags)

    @property
    def translation_keys(self) -> list[str]:
        """The keywords of its translations: msgstr, or msgstr[0] and so on for plurals."""
        return [name for name in self.texts if name.startswith("msgstr")]

    @property
    def needs_translation(self) -> bool:
        """Whether it waits for a translation; the header never does."""
        if not self.texts.get("msgid"):
            return False
        return self.is_fuzzy or not all(self.texts[name] for name in self.translation_keys)

    def untranslated(self) -> dict[str, str]:
        """The text that each missing translation is of: the plural for all but the first form."""
        plural = self.texts.get("msgid_plural", self.texts.get("msgid", ""))
        return {
            name: self.texts["msgid"] if name in ("msgstr", "msgstr[0]") else plural
            for name in self.translation_keys
            if self.is_fuzzy or not self.texts[name]
        }

    def fill(self, translations: dict[str, str], newline: str = "\n") -> None:
        """Put translations in, and mark the message fuzzy: a person is to look at them."""
        lines: list[tuple[str, str]] = []
        for kind, line in self.lines:
            if kind not in translations:
                lines.append((kind, line))
            elif not any(kind == done for done, _ in lines):
                lines += [(kind, new + newline) for new in _quoted(kind, translations[kind])]
        self.lines, self.texts = lines, self.texts | translations
        if not self.is_fuzzy:
            self._mark(newline)

    def _mark(self, newline: str) -> None:
        kinds = [kind for kind, _ in self.lines]
        if "#," in kinds:
            at = kinds.index("#,")
            self.lines[at] = "#,", f"{self.lines[at][1].rstrip()}, fuzzy{newline}"
        else:  # after the other comments, before what the message was and is
            first = next(n for n, kind in enumerate(kinds) if kind == "#|" or kind.startswith("m"))
            self.lines.insert(first, ("#,", f"#, fuzzy{newline}"))

    def __str__(self) -> str:
        return "".join(line for _, line in self.lines)


class FillResult(NamedTuple):
    """What filling a catalog did: messages filled, kept as they were, and left for a reason.

    >>> FillResult(2, 5, []).filled
    2
    """

    filled: int
    unchanged: int
    skipped: list[str]


class PoCatalog:
    """The messages of a .po file, in order; `str` of it is the file, to the last byte.

    What the file holds may be given as `data`; the name is then only for messages.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "de.po"
    >>> _ = file.write_text('# greeting\\nmsgid "%s days"\\nmsgstr ""\\n')
    >>> catalog = PoCatalog(file)
    >>> str(catalog) == file.read_text()
    True
    >>> catalog.fill(lambda texts: [text.replace("days", "Tage") for text in texts]).filled
    1
    >>> print(catalog, end="")
    # greeting
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
        self.bom = "\ufeff" if data.startswith(BOM_UTF8) else ""  # it stays, to the byte
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.messages = list(self._read(text))

    def fill(
        self,
        translate: Callable[[list[str]], Sequence[str | None]],
        reject_reason: Callable[[str], str] = lambda text: "",
        *,
        batch_size: int = 64,
    ) -> FillResult:
        """Fill every open message; one that would lose a placeholder, or cannot be, is left.

        `wrong` says why a text cannot be translated. White space at the ends stays as it is. None
        as a translation leaves the message too.
        """
        ready, left = [], []
        waiting = [message for message in self.messages if message.needs_translation]
        for message in waiting:
            reasons = [reject_reason(ask.strip()) for ask in message.untranslated().values()]
            if any(reasons):
                left.append(f"{_short(message)}: {next(filter(None, reasons))}")
            else:
                ready.append(message)
        for at in range(0, len(ready), batch_size):
            some = ready[at : at + batch_size]
            asked = [ask for message in some for ask in message.untranslated().values()]
            given = iter(translate([ask.strip() for ask in asked]))
            for message in some:
                reason = self._fill(message, given)
                left += [f"{_short(message)}: {reason}"] if reason else []
        kept = sum(bool(m.texts.get("msgid")) for m in self.messages) - len(waiting)
        return FillResult(len(waiting) - len(left), kept, left)

    def _fill(self, message: PoMessage, given: Iterator[str | None]) -> str:
        asks = message.untranslated()
        answers = {name: next(given) for name in asks}
        done: dict[str, str] = {}
        for name, answer in answers.items():
            if answer is None:
                return "no whole translation was found"
            if lost := placeholders(asks[name]) - placeholders(answer):
                return f"the translation lost {' '.join(sorted(lost))}"
            if more := placeholders(answer) - placeholders(asks[name]):
                return f"the translation has {' '.join(sorted(more))} that was not there"
            done[name] = _ends_of(asks[name], answer)
        message.fill(done, self.newline)
        return ""

    def __str__(self) -> str:
        return self.bom + "".join(map(str, self.messages))

    def _read(self, text: str) -> Iterator[PoMessage]:
        message, name = PoMessage(), ""
        for number, line in enumerate(_LINE.findall(text), 1):
            said = line.strip()
            new = said.startswith(("#", "msgid ", "msgctxt ")) and not said.startswith("#~")
            if new and message.translation_keys and not said.startswith("msgid_plural"):
                yield self._checked(message, number)
                message, name = PoMessage(), ""
            kind = said[:2] if said.startswith("#") else ""
            if said.startswith("msg"):
                name, _, said = said.partition(" ")
                said = said.strip()
                if not _KEYWORD.fullmatch(name):
                    raise self._broken(number, repr(line.strip()[:40]))
                if name in message.texts:
                    raise self._broken(number, f"{name} twice")
                message.texts[name] = ""
            if said and not kind:
                if not name or (part := unquote_po(said)) is None:
                    raise self._broken(number, repr(line.strip()[:40]))
                message.texts[name] += part
                kind = name
            message.lines.append((kind, line))
        yield self._checked(message, text.count("\n") + 1)

    def _checked(self, message: PoMessage, number: int) -> PoMessage:
        if message.texts and ("msgid" not in message.texts or not message.translation_keys):
            raise self._broken(number, "a message without msgid or msgstr before it")
        return message

    def _broken(self, number: int, what: str) -> FileError:
        return FileError(
            f"{self.path}: needs keywords and quoted texts, got {what} in line {number}; "
            "try msgfmt --check"
        )


def _quoted(name: str, text: str) -> list[str]:
    """A text as lines of a catalog; one with several lines starts below its keyword."""
    escaped = "".join(_ESCAPES.get(letter, letter) for letter in text)
    parts = [part for part in re.split(r"(?<=\\n)", escaped) if part]
    if len(parts) < 2:
        return [f'{name} "{escaped}"']
    return [f'{name} ""', *(f'"{part}"' for part in parts)]


def _ends_of(ask: str, answer: str) -> str:
    """The answer between the white space that was around what was asked."""
    core = ask.strip()
    before, _, after = ask.partition(core)
    return before + answer.strip() + after


def _short(message: PoMessage) -> str:
    text = message.texts["msgid"]
    return repr(text if len(text) <= 40 else f"{text[:39]}…")
