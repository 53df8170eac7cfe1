"""A trained translator at work: each text is read once and written in every language asked for."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.data import Tokenizer, normalized
from regard.errors import ConfigError, nearest
from regard.models import RecurrentTranslator, Translator
from regard.train.run import Run
from regard.train.translating import Translation, TranslationSearch

LONGEST = 2048  # tokens of a text: the memory of attention grows with their square
LIMIT = 100  # tokens of an answer, where a recipe does not say


class Work(NamedTuple):
    """What was done: texts, tokens read (once each) and tokens written (in all languages)."""

    texts: int = 0
    read: int = 0
    written: int = 0


class Interpreter:
    """A run that translates into some languages; a beam of `width`, of which the `best` are given.

    >>> words = rg.data.Bytes(languages=("de", "fr"))
    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=words.vocab)).eval()
    >>> run = Run(None, rg.train.recipe("phrases"), model, words, [], {})
    >>> interpreter = Interpreter(run, ["de", "fr"], limit=4)
    >>> answers = interpreter.answers(["2 days", "3 days"])
    >>> len(answers), len(answers[0]), len(answers[0][0])  # texts, languages, best
    (2, 2, 1)
    """

    def __init__(
        self,
        run: Run,
        to: Sequence[str] = (),
        *,
        width: int | None = None,
        penalty: float | None = None,
        best: int = 1,
        limit: int | None = None,
    ):
        self.model, self.tokenizer = _parts(run)
        self.threshold = 0.0 if run.calibration is None else run.calibration.threshold
        self.to = _known(to, targets(run))
        data = run.recipe.data
        self.width = max(best, getattr(data, "width", 1)) if width is None else width
        self.penalty = getattr(data, "penalty", 0.6) if penalty is None else penalty
        self.best, self.work = best, Work()
        if self.width < 1 or not 1 <= best <= self.width:
            raise ConfigError(
                f"best: needs 1 to width={self.width}, got {best}; try a wider beam, 1 or more"
            )
        table = _table(self.model)
        self.longest = LONGEST if table is None else table
        wanted = getattr(data, "longest", LIMIT) if limit is None else limit
        self.limit = wanted if table is None else min(wanted, table)
        self.search = TranslationSearch(
            self.model, self.tokenizer, width=self.width, penalty=self.penalty, best=best,
            limit=self.limit, calibration=run.calibration,
        )  # fmt: skip

    def wrong(self, text: str) -> str:
        """Why a text cannot be translated, in words; nothing where it can."""
        if not normalized(text, self.tokenizer.normalize).strip():
            return "it needs words, got none"
        tokens = len(self.tokenizer.read(text)) + 1
        if tokens > self.longest:
            return f"it needs at most {self.longest} tokens, got {tokens}; try it in parts"
        return ""

    def answers(self, texts: Sequence[str]) -> list[list[list[Translation]]]:
        """What each text becomes: by text, by language, the best first."""
        for text in texts:
            if wrong := self.wrong(text):
                raise ConfigError(f"text: needs to fit the model, got {_short(text)!r}; {wrong}")
        found = self.search(texts, [self.to] * len(texts))
        self._count(texts, found)
        return found

    def is_unsure(self, answer: Translation) -> bool:
        """Whether an answer deserves a warning: it is empty, or its confidence is too low."""
        if answer.confidence is None:
            return False
        return not answer.text.strip() or answer.confidence < self.threshold

    def _count(self, texts: Sequence[str], found: list[list[list[Translation]]]) -> None:
        words = self.tokenizer
        read = sum(len(words.read(text)) + 1 for text in texts)
        written = sum(len(words.encode(row[0].text)) + 1 for some in found for row in some)
        self.work = Work(
            self.work.texts + len(texts), self.work.read + read, self.work.written + written
        )


def translate_run(
    run: Run,
    texts: Sequence[str],
    to: Sequence[str] = (),
    *,
    width: int | None = None,
    penalty: float | None = None,
    limit: int | None = None,
) -> dict[str, list[str]]:
    """Texts in other languages, by language; each text is read once, whatever their number.

    Beam, penalty and limit are the recipe's if not given. This is `rg.translate`.

    >>> words = rg.data.Bytes(languages=("de", "fr"))
    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=words.vocab)).eval()
    >>> run = Run(None, rg.train.recipe("phrases"), model, words, [], {})
    >>> sorted(translate_run(run, ["2 days", "3 days"], to=["fr", "de"], limit=4))
    ['de', 'fr']
    """
    texts = [texts] if isinstance(texts, str) else texts
    interpreter = Interpreter(run, to, width=width, penalty=penalty, limit=limit)
    found = interpreter.answers(texts)
    return {to: [row[n][0].text for row in found] for n, to in enumerate(interpreter.to)}


def targets(run: Run) -> list[str]:
    """The languages that a run was trained to write.

    >>> run = Run(None, rg.train.recipe("phrases"), None, rg.data.Bytes(("de", "en")), [], {})
    >>> targets(run)  # it reads English
    ['de']
    """
    data, known = run.recipe.data, list(run.tokenizer.languages)
    if hasattr(data, "target"):
        return [data.target, *([data.source] if data.both else [])]
    sources = getattr(data, "sources", ())
    # of two sources each is a target of the other
    return [x for x in known if len(sources) != 1 or x not in sources]


def _parts(run: Run) -> tuple[nn.Module, Tokenizer]:
    if not isinstance(run.model, Translator | RecurrentTranslator):
        kind = type(run.model).__name__
        raise ConfigError(f"run: needs a translator, got a {kind}; try generate, or look")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return run.model.to(device).eval(), run.tokenizer


def _known(to: Sequence[str], known: list[str]) -> list[str]:
    asked = [to] if isinstance(to, str) else list(to)
    if not asked and len(known) == 1:
        return known
    if not asked:
        raise ConfigError(f"to: needs one or more of {' '.join(known)}, got none")
    for name in asked:
        if name not in known:
            hint = nearest(name.lower(), known, 0.4)
            raise ConfigError(f"to: needs one or more of {' '.join(known)}, got {name!r}{hint}")
    if len(set(asked)) < len(asked):
        raise ConfigError(f"to: needs each language once, got {' '.join(asked)}")
    return asked


def _table(model: nn.Module) -> int | None:
    config: Any = model.config
    return config.max_time if getattr(config, "positions", "") == "learned" else None


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"
