"""Translation by the model of a run: one encoding per text, decoded into every target language."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from regard.costs import shared_encoding_cost
from regard.data import Pair, normalize_text
from regard.errors import ConfigError, FileError, suggestion
from regard.models import TokenConfig
from regard.models.config import get_config
from regard.tasks.pipeline import (
    Answer,
    Device,
    JobInput,
    Pipeline,
    Row,
    TrainedRun,
    format_confidence,
    one_line,
    require_verb,
    shorten,
)
from regard.tasks.reporter import confidence_warning
from regard.tasks.translation.alignment import Alignment, align
from regard.tasks.translation.catalog import CatalogDocument
from regard.tasks.translation.search import SearchConfig, Translation, TranslationSearch
from regard.tasks.translation.verb import Translate, TranslateOptions

MAX_SOURCE_TOKENS = 2048  # of models without a position table: attention memory is quadratic


class TranslationCounts(NamedTuple):
    """Texts, tokens encoded (once per text) and tokens decoded (in all languages)."""

    texts: int = 0
    source_tokens: int = 0
    target_tokens: int = 0


class Translations(dict[str, str]):
    """The best translation of one text per language; `ranked` has all of them, best first.

    >>> Translations({"de": [Translation("3 Tage", -0.1, True)]})
    {'de': '3 Tage'}
    """

    def __init__(self, ranked: dict[str, list[Translation]]):
        super().__init__({to: best.text for to, (best, *_) in ranked.items()})
        self.ranked = ranked


class TranslationPipeline(Pipeline):
    """Translates texts into fixed target languages with the model of a run.

    Args:
        run: a run of a translator.
        options: `TranslateOptions`, or the target languages, which may be none if the run has only
            one. Without a beam width it is the recipe's, or `n_best` if that is larger.
        device: where to decode, on a copy of the model; None is where the model is.
        values: options by name, beside the languages.

    >>> tokenizer = rg.data.ByteTokenizer(languages=("de", "fr"))
    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=tokenizer.vocab)).eval()
    >>> run = rg.Run(None, rg.tasks.recipe("phrases"), model, tokenizer)
    >>> pipeline = TranslationPipeline(run, ["de", "fr"], max_new_tokens=4)
    >>> translations = pipeline.translate(["2 days", "3 days"])
    >>> len(translations), len(translations[0]), len(translations[0][0])  # texts, languages, n_best
    (2, 2, 1)
    """

    declares = Translate
    formats = ("lines", "tsv", "po")

    def __init__(
        self,
        run: TrainedRun,
        options: TranslateOptions | str | Sequence[str] = (),
        *,
        device: Device | None = None,
        **values: Any,
    ):
        require_verb(run, "translate")
        if not isinstance(options, TranslateOptions):
            to = (options,) if isinstance(options, str) else tuple(options)
            options = TranslateOptions(to=to, **values)
        super().__init__(run, options, device=device)
        self.model.eval()
        self.tokenizer, task = run.tokenizer, run.recipe.data
        self.threshold = 0.0 if run.calibration is None else run.calibration.threshold
        self.languages = _check_languages(
            options.to, run.recipe.data.target_languages(run.tokenizer)
        )
        self.n_best, self.counts = options.n_best, TranslationCounts()
        width = options.beam_width or max(self.n_best, task.search.beam_width)
        if not 1 <= self.n_best <= width:
            raise ConfigError(
                f"n_best: needs 1 to beam_width={width}, got {self.n_best}; try a wider beam"
            )
        limit, positions = (
            options.max_new_tokens or task.search.max_new_tokens,
            _positions(self.model),
        )
        self.max_source_tokens = positions or MAX_SOURCE_TOKENS
        self.max_new_tokens = min(limit, positions or limit)
        penalty = options.length_penalty
        config = SearchConfig(
            beam_width=width,
            length_penalty=task.search.length_penalty if penalty is None else penalty,
            max_new_tokens=self.max_new_tokens,
        )
        self.search = TranslationSearch(
            self.model, self.tokenizer, config, n_best=self.n_best, calibration=run.calibration
        )

    def __call__(self, inputs: Sequence[str]) -> list[Translations]:
        rows = self.translate(inputs)
        return [Translations(dict(zip(self.languages, row, strict=True))) for row in rows]

    def refusal(self, text: str) -> str:
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

    def check(self, file_format: str, inputs: int) -> None:
        super().check(file_format, inputs)
        languages, options = self.languages, self.options
        if options.plot is not None and (inputs != 1 or len(languages) != 1):
            raise ConfigError("plot: needs one text and one language, got others; try fewer")
        if file_format in ("tsv", "po") and (options.align or self.n_best > 1):
            raise ConfigError(f"format: needs lines for --align and --n-best, got {file_format}")
        if file_format == "po" and len(languages) > 1:
            raise ConfigError(
                f"to: needs one language for a .po, got {' '.join(languages)}; "
                "try one file per language"
            )

    def document(self, name: Any, content: bytes | None) -> CatalogDocument:
        return CatalogDocument(self, name, content)

    def columns(self, confidence: bool) -> int:
        return len(self.languages) * (1 + confidence)

    def answer(self, given: JobInput, output: Translations, *, confidence: bool = False) -> Answer:
        """One column per language; of texts that are listed, or with ranks, one row per language.

        The alignment is below each translation.
        """
        rows, problems, warnings, notes = list[Row](), list[str](), list[str](), list[str]()
        by_language = given.is_listed and len(self.languages) > 1

        def columns(translation: Translation) -> Row:
            sure = format_confidence(translation.confidence) if confidence else ()
            return (one_line(translation.text), *sure)

        if self.n_best == 1 and not by_language:
            rows.append(tuple(x for best, *_ in output.ranked.values() for x in columns(best)))
        for to, translations in output.ranked.items():
            best = translations[0]
            if self.n_best > 1:
                start = str(given.number), to
                rows += [(*start, f"{x.score:.4f}", *columns(x)) for x in translations]
            elif by_language:
                rows.append((to, *columns(best)))
            if (self.options.align or self.options.plot) and best.text.strip():
                alignment = align(self.model, self.tokenizer, Pair(given.text, best.text, to))
                links = alignment.links if self.options.align else []
                rows += [("", x.target, x.source, f"{x.weight:.2f}") for x in links]
                notes += self._draw(alignment)
            if not best.ended:
                limit = f"{self.max_new_tokens} tokens"
                problems.append(f"{given.name}: the translation into {to} was cut at {limit}")
            elif self.is_unsure(best):
                warnings.append(self._warning(f"{given.name} ({to})", best))
        return Answer(rows, tuple(problems), tuple(warnings), tuple(notes))

    def _warning(self, name: str, best: Translation) -> str:
        consequence = "the translation may be wrong" if best.text.strip() else "no translation"
        return confidence_warning(name, best.confidence or 0.0, self.threshold, consequence)

    def _draw(self, alignment: Alignment) -> list[str]:
        if (path := self.options.plot) is None:
            return []
        from regard.inspection.figures.maps import draw_alignment  # imports matplotlib

        try:
            draw_alignment(alignment.site, alignment.head, path=path)
        except FileError:
            raise
        except ValueError as error:
            raise FileError(f"{path}: cannot be drawn, {error}") from error
        return [f"{path}: {alignment.site.name}, head {alignment.head}"]

    def as_json(self, output: Translations) -> dict[str, Any]:
        """Text and confidence by language; the others too, where several are requested."""
        facts = {}
        for to, (best, *others) in output.ranked.items():
            facts[to] = {"text": best.text, "confidence": best.confidence}
            if others:
                facts[to]["others"] = [{"text": x.text, "score": x.score} for x in others]
        return facts

    def summary(self) -> str:
        """What encoding once for all languages has saved, if that is requested."""
        return format_shared_cost(self) if self.options.cost else ""


class Translates:
    """`run.translate`."""

    def translate(
        self: TrainedRun,
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
            texts: one text or several.
            to: target languages; may be empty if the run has only one.
            beam_width: 1 is greedy; None takes the recipe's.
            length_penalty: of the beam search; None takes the recipe's.
            max_new_tokens: the most tokens per translation; None takes the recipe's.
            device: where to decode, on a copy of the model; None is where the model is.

        >>> tokenizer = rg.data.ByteTokenizer(languages=("de", "fr"))
        >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=tokenizer.vocab)).eval()
        >>> run = rg.Run(None, rg.tasks.recipe("phrases"), model, tokenizer)
        >>> sorted(run.translate(["2 days", "3 days"], to=["fr", "de"], max_new_tokens=4))
        ['de', 'fr']
        """
        pipeline = TranslationPipeline(
            self, to, beam_width=beam_width, length_penalty=length_penalty,
            max_new_tokens=max_new_tokens, device=device,
        )  # fmt: skip
        rows = pipeline.translate([texts] if isinstance(texts, str) else texts)
        return {to: [row[n][0].text for row in rows] for n, to in enumerate(pipeline.languages)}


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


def _check_languages(to: Sequence[str], known: list[str]) -> list[str]:
    names = list(to)
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


def _positions(model: nn.Module) -> int | None:
    config = get_config(model)
    if isinstance(config, TokenConfig) and config.positions == "learned":
        return config.max_positions
    return None
