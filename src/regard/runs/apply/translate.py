"""Translation by the model of a run: one encoding per text, decoded into every target language."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from regard.costs import shared_encoding_cost
from regard.data import normalize_text
from regard.errors import ConfigError, suggestion
from regard.models import TokenConfig
from regard.models.config import get_config
from regard.runs.contents import Device, RunContents, require_verb
from regard.runs.text_model import model_on
from regard.tasks import SearchConfig, Translation, TranslationSearch

MAX_SOURCE_TOKENS = 2048  # of models without a position table: attention memory is quadratic


class TranslationCounts(NamedTuple):
    """Texts, tokens encoded (once per text) and tokens decoded (in all languages)."""

    texts: int = 0
    source_tokens: int = 0
    target_tokens: int = 0


class TranslationPipeline:
    """Translates texts into fixed target languages with the model of a run.

    Args:
        run: a run of a translator.
        languages: target languages; may be empty if the run has only one.
        beam_width: 1 is greedy; None takes the recipe's, or `n_best` if that is larger.
        length_penalty: of the beam search; None takes the recipe's.
        n_best: translations returned per text and language.
        max_new_tokens: the most tokens per translation; None takes the recipe's.
        device: where to decode, on a copy of the model; None is where the model is.

    >>> tokenizer = rg.data.ByteTokenizer(languages=("de", "fr"))
    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=tokenizer.vocab)).eval()
    >>> run = rg.Run(None, rg.tasks.recipe("phrases"), model, tokenizer)
    >>> pipeline = TranslationPipeline(run, ["de", "fr"], max_new_tokens=4)
    >>> translations = pipeline.translate(["2 days", "3 days"])
    >>> len(translations), len(translations[0]), len(translations[0][0])  # texts, languages, n_best
    (2, 2, 1)
    """

    def __init__(
        self,
        run: RunContents,
        languages: str | Sequence[str] = (),
        *,
        beam_width: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        max_new_tokens: int | None = None,
        device: Device | None = None,
    ):
        require_verb(run, "translate")
        data, search = run.data, run.data.search
        self.model, self.tokenizer = model_on(run.model, device).eval(), run.tokenizer
        self.threshold = 0.0 if run.calibration is None else run.calibration.threshold
        self.languages = _check_languages(languages, data.target_languages(run.tokenizer))
        if beam_width is None:
            beam_width = max(n_best, search.beam_width)
        if beam_width < 1 or not 1 <= n_best <= beam_width:
            raise ConfigError(
                f"n_best: needs 1 to beam_width={beam_width}, got {n_best}; try a wider beam"
            )
        limit, positions = max_new_tokens or search.max_new_tokens, _max_positions(self.model)
        self.max_source_tokens = positions or MAX_SOURCE_TOKENS
        self.max_new_tokens = min(limit, positions or limit)
        self.n_best, self.counts = n_best, TranslationCounts()
        config = SearchConfig(
            beam_width=beam_width,
            length_penalty=search.length_penalty if length_penalty is None else length_penalty,
            max_new_tokens=self.max_new_tokens,
        )
        self.search = TranslationSearch(
            self.model, self.tokenizer, config, n_best=n_best, calibration=run.calibration
        )

    def refusal(self, text: str) -> str:
        """Why a text cannot be translated; empty if it can."""
        if not normalize_text(text, self.tokenizer.normalizers).strip():
            return "it needs words, got none"
        tokens = len(self.tokenizer.encode_input(text)) + 1
        if tokens > self.max_source_tokens:
            return (
                f"it needs at most {self.max_source_tokens} tokens, got {tokens}; try it in parts"
            )
        return ""

    def translate(self, texts: Sequence[str]) -> list[list[list[Translation]]]:
        """Translations indexed by text, language and rank, best first."""
        for text in texts:
            if reason := self.refusal(text):
                short = shorten(text, 40)
                raise ConfigError(f"text: needs to fit the model, got {short!r}; {reason}")
        translations = self.search(texts, [self.languages] * len(texts))
        self._count(texts, translations)
        return translations

    def is_unsure(self, translation: Translation) -> bool:
        """Whether a translation is empty or its confidence is below the run's threshold."""
        if translation.confidence is None:
            return False
        return not translation.text.strip() or translation.confidence < self.threshold

    def _count(self, texts: Sequence[str], translations: list[list[list[Translation]]]) -> None:
        sizes = [len(self.tokenizer.encode_input(text)) + 1 for text in texts]
        best = [ranked[0] for languages in translations for ranked in languages]
        self.counts = TranslationCounts(
            self.counts.texts + len(texts),
            self.counts.source_tokens + sum(sizes),
            self.counts.target_tokens + sum(len(self.tokenizer.encode(t.text)) + 1 for t in best),
        )


def translate_run(
    run: RunContents,
    texts: str | Sequence[str],
    to: str | Sequence[str] = (),
    *,
    beam_width: int | None = None,
    length_penalty: float | None = None,
    max_new_tokens: int | None = None,
    device: Device | None = None,
) -> dict[str, list[str]]:
    """Translations by target language; each text is encoded once for all languages.

    Args:
        run: a run of a translator.
        texts: one text or several.
        to: target languages; may be empty if the run has only one.
        beam_width: 1 is greedy; None takes the recipe's.
        length_penalty: of the beam search; None takes the recipe's.
        max_new_tokens: the most tokens per translation; None takes the recipe's.
        device: where to decode, on a copy of the model; None is where the model is.

    >>> tokenizer = rg.data.ByteTokenizer(languages=("de", "fr"))
    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=tokenizer.vocab)).eval()
    >>> run = rg.Run(None, rg.tasks.recipe("phrases"), model, tokenizer)
    >>> sorted(translate_run(run, ["2 days", "3 days"], to=["fr", "de"], max_new_tokens=4))
    ['de', 'fr']
    """
    pipeline = TranslationPipeline(
        run, to, beam_width=beam_width, length_penalty=length_penalty,
        max_new_tokens=max_new_tokens, device=device,
    )  # fmt: skip
    rows = pipeline.translate([texts] if isinstance(texts, str) else texts)
    return {name: [row[n][0].text for row in rows] for n, name in enumerate(pipeline.languages)}


def format_shared_cost(pipeline: TranslationPipeline) -> str:
    """What encoding once for all languages has saved, by formula, at the mean lengths so far."""
    texts, read, written = pipeline.counts
    if not texts:
        return ""
    count = len(pipeline.languages)
    source, target = -(-read // texts), -(-written // (texts * count))
    cost = shared_encoding_cost(pipeline.model, source, target, count)
    return (
        f"per text: M = {source} source tokens, N = {target} target tokens per language (means)\n"
        f"{cost}"
    )


def _check_languages(to: str | Sequence[str], known: list[str]) -> list[str]:
    names = [to] if isinstance(to, str) else list(to)
    if not names and len(known) == 1:
        return known
    if not names:
        raise ConfigError(f"to: needs one or more of {' '.join(known)}, got none")
    for name in names:
        if name not in known:
            hint = suggestion(name.lower(), known)
            raise ConfigError(f"to: needs one or more of {' '.join(known)}, got {name!r}{hint}")
    if len(set(names)) < len(names):
        raise ConfigError(f"to: needs each language once, got {' '.join(names)}")
    return names


def _max_positions(model: nn.Module) -> int | None:
    config = get_config(model)
    if isinstance(config, TokenConfig) and config.positions == "learned":
        return config.max_positions
    return None


def shorten(text: str, width: int) -> str:
    """The text, cut to a width."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
