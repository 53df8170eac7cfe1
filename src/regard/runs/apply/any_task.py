"""`run.apply`: the inputs of any task to its outputs."""

from collections.abc import Callable, Sequence
from typing import Any

from regard.errors import ConfigError
from regard.runs.apply.classify import classify_run
from regard.runs.apply.generate import generate_texts
from regard.runs.apply.transcribe import transcribe_run_detailed
from regard.runs.apply.translate import translate_run
from regard.runs.contents import RunContents
from regard.tasks import Task


def apply_run(run: RunContents, inputs: Any, **options: Any) -> list[Any]:
    """What the task of a run returns for inputs, one output per input.

    Inputs are texts for `translate`, `generate` and the text tasks, and files for `classify` and
    `transcribe`; options are those of the verb, such as `to=["de"]`.

    >>> apply_run(rg.load("phrases", device="cpu"), ["3 days"], to=["de", "es"])
    [{'de': '3 Tage', 'es': '3 días'}]
    """
    if run.recipe is None:
        raise ConfigError(
            "run: needs a recipe to be applied, got a model alone; try rg.look(model)"
        )
    items: Sequence[Any] = [inputs] if isinstance(inputs, str) else list(inputs)
    if has_own_apply(run):
        return run.data.apply(run, items, **options)
    return BY_VERB[run.data.verb](run, items, **options)


def has_own_apply(run: RunContents) -> bool:
    """Whether the task of a run computes outputs itself; others have a verb of the library."""
    return type(run.data).apply is not Task.apply


def _translate(run: RunContents, texts: Sequence[str], **options: Any) -> list[dict[str, str]]:
    by_language = translate_run(run, texts, **options)
    return [{to: by_language[to][n] for to in by_language} for n in range(len(texts))]


BY_VERB: dict[str, Callable[..., list[Any]]] = {
    "translate": _translate,
    "generate": generate_texts,
    "classify": classify_run,
    "transcribe": transcribe_run_detailed,
}
