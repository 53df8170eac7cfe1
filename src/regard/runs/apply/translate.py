"""A trained translator at work: each text is read once and written in every language asked for."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.data import Tokenizer, normalize_text
from regard.errors import ConfigError, suggestion
from regard.models import RecurrentTranslator, Translator
from regard.runs.run import Run
from regard.tasks.translation.data import TranslationData
from regard.tasks.translation.search import SearchConfig, Translation, TranslationSearch

LONGEST = 2048  # tokens of a text: the memory of attention grows with their square


class TranslationCounts(NamedTuple):
    """What was done: texts, tokens read (once each) and tokens written (in all languages)."""

    texts: int = 0
    source_tokens: int = 0
    target_tokens: int = 0


class TranslationPipeline:
    """A run that translates into some languages; a beam of `width`, of which the `best` are given.

    >>> words = rg.data.ByteTokenizer(languages=("de", "fr"))
    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=words.vocab)).eval()
    >>> run = Run(None, rg.tasks.recipe("phrases"), model, words, [], {})
    >>> interpreter = TranslationPipeline(run, ["de", "fr"], max_new_tokens=4)
    >>> answers = interpreter.translate(["2 days", "3 days"])
    >>> len(answers), len(answers[0]), len(answers[0][0])  # texts, languages, best
    (2, 2, 1)
    """

    def __init__(
        self,
        run: Run,
        languages: Sequence[str] = (),
        *,
        beam_width: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        max_new_tokens: int | None = None,
    ):
        self.model, self.tokenizer = _parts(run)
        self.threshold = 0.0 if run.calibration is None else run.calibration.threshold
        self.languages = _known(languages, target_languages(run))
        config = translation_data(run).search
        self.beam_width = max(n_best, config.beam_width) if beam_width is None else beam_width
        self.length_penalty = config.length_penalty if length_penalty is None else length_penalty
        self.n_best, self.counts = n_best, TranslationCounts()
        if self.beam_width < 1 or not 1 <= n_best <= self.beam_width:
            raise ConfigError(
                f"best: needs 1 to width={self.beam_width}, got {n_best}; try a wider beam, 1 or more"
            )
        table = _table(self.model)
        self.max_source_tokens = LONGEST if table is None else table
        wanted = config.max_new_tokens if max_new_tokens is None else max_new_tokens
        self.max_new_tokens = wanted if table is None else min(wanted, table)
        config = SearchConfig(
            beam_width=self.beam_width,
            length_penalty=self.length_penalty,
            max_new_tokens=self.max_new_tokens,
        )
        self.search = TranslationSearch(
            self.model, self.tokenizer, config, n_best=n_best, calibration=run.calibration
        )

    def refusal(self, text: str) -> str:
        """Why a text cannot be translated, in words; nothing where it can."""
        if not normalize_text(text, self.tokenizer.normalizers).strip():
            return "it needs words, got none"
        tokens = len(self.tokenizer.encode_input(text)) + 1
        if tokens > self.max_source_tokens:
            return (
                f"it needs at most {self.max_source_tokens} tokens, got {tokens}; try it in parts"
            )
        return ""

    def translate(self, texts: Sequence[str]) -> list[list[list[Translation]]]:
        """What each text becomes: by text, by language, the best first."""
        for text in texts:
            if wrong := self.refusal(text):
                raise ConfigError(f"text: needs to fit the model, got {_short(text)!r}; {wrong}")
        found = self.search(texts, [self.languages] * len(texts))
        self._count(texts, found)
        return found

    def is_unsure(self, answer: Translation) -> bool:
        """Whether an answer deserves a warning: it is empty, or its confidence is too low."""
        if answer.confidence is None:
            return False
        return not answer.text.strip() or answer.confidence < self.threshold

    def _count(self, texts: Sequence[str], found: list[list[list[Translation]]]) -> None:
        words = self.tokenizer
        read = sum(len(words.encode_input(text)) + 1 for text in texts)
        written = sum(len(words.encode(row[0].text)) + 1 for some in found for row in some)
        self.counts = TranslationCounts(
            self.counts.texts + len(texts),
            self.counts.source_tokens + read,
            self.counts.target_tokens + written,
        )


def translate_run(
    run: Run,
    texts: Sequence[str],
    to: Sequence[str] = (),
    *,
    beam_width: int | None = None,
    length_penalty: float | None = None,
    max_new_tokens: int | None = None,
) -> dict[str, list[str]]:
    """Texts in other languages, by language; each text is read once, whatever their number.

    Beam, penalty and limit are the recipe's if not given. This is `rg.translate`.

    >>> words = rg.data.ByteTokenizer(languages=("de", "fr"))
    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=words.vocab)).eval()
    >>> run = Run(None, rg.tasks.recipe("phrases"), model, words, [], {})
    >>> sorted(translate_run(run, ["2 days", "3 days"], to=["fr", "de"], max_new_tokens=4))
    ['de', 'fr']
    """
    texts = [texts] if isinstance(texts, str) else texts
    interpreter = TranslationPipeline(
        run, to, beam_width=beam_width, length_penalty=length_penalty, max_new_tokens=max_new_tokens
    )
    found = interpreter.translate(texts)
    return {to: [row[n][0].text for row in found] for n, to in enumerate(interpreter.languages)}


def target_languages(run: Run) -> list[str]:
    """The languages that a run was trained to write.

    >>> run = Run(None, rg.tasks.recipe("phrases"), None, rg.data.ByteTokenizer(("de", "en")), [], {})
    >>> target_languages(run)  # it reads English
    ['de']
    """
    return translation_data(run).target_languages(run.tokenizer)


def translation_data(run: Run) -> TranslationData:
    """The data module of a run of a translator."""
    assert isinstance(run.recipe.data, TranslationData)
    return run.recipe.data


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
            hint = suggestion(name.lower(), known, 0.4)
            raise ConfigError(f"to: needs one or more of {' '.join(known)}, got {name!r}{hint}")
    if len(set(asked)) < len(asked):
        raise ConfigError(f"to: needs each language once, got {' '.join(asked)}")
    return asked


def _table(model: nn.Module) -> int | None:
    config: Any = model.config
    return config.max_positions if getattr(config, "positions", "") == "learned" else None


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"
