"""What translation tasks share: the search, the target languages, the model's vocabulary."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

from regard.data import Tokenizer
from regard.tasks.base import Task
from regard.tasks.translation.pipeline import TranslationPipeline
from regard.tasks.translation.search import SearchConfig
from regard.tasks.translation.verb import Translate


class TranslationTask(Translate, Task):
    """Translation.

    >>> rg.tasks.recipe("phrases").data.search.beam_width
    1
    """

    objective: ClassVar[str] = "translation"
    pipeline_type = TranslationPipeline

    search: SearchConfig  # of the test split and of `regard translate`

    @abstractmethod
    def target_languages(self, tokenizer: Tokenizer) -> list[str]:
        """The languages that a model is trained to translate into."""

    def format_output(self, output: dict[str, str]) -> str:
        return "\t".join(output.values())

    def example(self, run: Any) -> tuple[str, dict[str, Any]]:
        """A text, and the last of the languages."""
        languages = getattr(run.tokenizer, "languages", ())
        return self.reads.example, {"to": languages[-1]} if languages else {}

    def resolve(self, model: Any, tokenizer: Tokenizer) -> Any:
        return replace(model, source_vocab=tokenizer.vocab, target_vocab=tokenizer.vocab)
