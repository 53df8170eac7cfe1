"""A .po catalog whose untranslated and fuzzy messages are filled."""

from typing import TYPE_CHECKING, Any

from regard.data import PoCatalog

if TYPE_CHECKING:
    from regard.tasks.translation.pipeline import TranslationPipeline


class CatalogDocument:
    """A .po catalog and the pipeline that fills it, in one language.

    >>> pipeline = rg.load("phrases", device="cpu").pipeline(to=["de"])
    >>> document = CatalogDocument(pipeline, "a.po", b'msgid "3 days"\\nmsgstr ""\\n')
    >>> _ = document.fill(lambda texts: document.restore(texts, document.compute(texts)))
    >>> print(document, end="")
    #, fuzzy
    msgid "3 days"
    msgstr "3 Tage"
    """

    def __init__(self, pipeline: "TranslationPipeline", name: Any, content: bytes | None):
        self.pipeline = pipeline
        given = () if content is None else (content,)
        self.catalog = PoCatalog(name, *given, language=pipeline.languages[0])
        pending = [message for message in self.catalog.messages if message.needs_translation]
        self.total = sum(len(message.untranslated()) for message in pending)
        self._unsure = dict[str, str]()  # text: why its translation is left out

    @property
    def warnings(self) -> int:
        """Translations that were left out for their confidence."""
        return len(self._unsure)

    def compute(self, texts: list[str]) -> list[Any]:
        """Translations, None where there is no complete one, and why others are left out."""
        pipeline = self.pipeline
        best = [by_language[0][0] for by_language in pipeline.translate(texts)]
        pairs = list(zip(texts, best, strict=True))
        reasons = {
            text: f"confidence {x.confidence:.2f} is below {pipeline.threshold:.2f}"
            for text, x in pairs
            if pipeline.is_unsure(x)
        }
        good = [x.text if x.ended and x.text and text not in reasons else None for text, x in pairs]
        return [good, reasons]

    def restore(self, texts: list[str], record: Any) -> list[str | None]:
        """The translations of what `compute` returned, now or in an earlier process."""
        translations, reasons = record
        self._unsure |= dict(reasons)
        return translations

    def fill(self, answer: Any) -> tuple[list[str], str]:
        """Fill the messages; the problems, and a summary."""
        result = self.catalog.fill(
            answer,
            self.pipeline.refusal,
            lambda text: self._unsure.get(text, "no complete translation"),
        )
        low = f", {self.warnings} of them with low confidence" if self.warnings else ""
        return [f"skipped: {reason}" for reason in result.skipped], (
            f"filled {result.filled} (marked fuzzy), kept {result.unchanged}, "
            f"skipped {len(result.skipped)}{low}"
        )

    def __str__(self) -> str:
        return str(self.catalog)
