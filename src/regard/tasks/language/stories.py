"""A language model of short sentences whose next word depends on words before."""

from dataclasses import dataclass

from regard.data.content.stories import Stories
from regard.tasks.language.text import TextTask
from regard.tasks.registry import task


@task("stories")
@dataclass(frozen=True, kw_only=True)
class StoriesTask(TextTask):
    """Names, agreement, brackets, copies and colours in drawn sentences.

    Args:
        sentences: of all splits.

    >>> next(StoriesTask(sentences=20).documents("valid")).name
    'story 13'
    """

    sentences: int = 100_000

    @property
    def size(self) -> tuple[int, int]:
        return 60 * self.sentences, self.sentences

    def _source(self) -> Stories:
        return Stories(self.sentences)
