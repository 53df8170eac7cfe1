"""Attention of a run's model on a few test examples."""

from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import models
from regard.data import Pair
from regard.inspection import Sight, look
from regard.inspection.sites.labels import key_labels, query_labels
from regard.inspection.sites.site import Site
from regard.runs.report.facts import RunFacts
from regard.tasks import TranslationEvaluator, align

EXAMPLES = 2
MAX_TOKENS = 32  # longer inputs make a map unreadable
SEARCHED = 200  # examples among which short ones are looked for
CONTEXT = 24  # tokens of a language model's example


class AttentionExample(NamedTuple):
    """Attention weights on one example: labels of rows and columns, or the pixels of an image."""

    title: str
    rows: list[str]
    columns: list[str]
    weights: list[list[float]]
    image: Tensor | None = None


def attention_examples(facts: RunFacts) -> list[AttentionExample]:
    """Maps of the first short test examples; none for models and tasks without attention to show.

    For a translator the head that aligns words best, for others the mean over the last layer.
    """
    model, evaluator = facts.run.model, facts.evaluator
    if isinstance(model, models.Translator) and isinstance(evaluator, TranslationEvaluator):
        return [_alignment(facts, n) for n in _short(facts, len(evaluator.pairs))]
    images = getattr(evaluator, "images", ())
    if isinstance(model, models.VisionTransformer):
        return [_image(facts, n) for n in range(min(EXAMPLES, len(images)))]
    if not isinstance(model, models.LanguageModel | models.Classifier):
        return []
    rows = [row["tokens"] for row in islice(getattr(evaluator, "encoded", ()), SEARCHED)]
    text = getattr(evaluator, "row", None)
    if isinstance(text, Tensor):  # running text, evaluated in windows
        rows = [row.long() for row in text.split(CONTEXT)]
    short = [row for row in rows if 2 <= len(row) <= MAX_TOKENS]
    return [_tokens(facts, row) for row in short[:EXAMPLES]]


def _short(facts: RunFacts, count: int) -> list[int]:
    """Numbers of the first examples whose texts are short but not trivial."""
    texts = [str(answer.prediction) for answer in facts.answers[: min(count, SEARCHED)]]
    return [n for n, text in enumerate(texts) if 8 <= len(text) <= 2 * MAX_TOKENS][:EXAMPLES]


def _alignment(facts: RunFacts, n: int) -> AttentionExample:
    pair: Pair = facts.evaluator.pairs[n]
    answer = str(facts.answers[n].prediction)
    alignment = align(facts.run.model, facts.run.tokenizer, pair._replace(target=answer))
    title = f"{pair.source} → {answer} ({alignment.site.name}, head {alignment.head})"
    return _map(title, alignment.site, alignment.site.window(alignment.head)[0])


def _tokens(facts: RunFacts, ids: Tensor) -> AttentionExample:
    model, tokenizer = facts.run.model, facts.run.tokenizer
    labels = [tokenizer.id_to_token(i) for i in ids.tolist()]
    sight = _record(model, ids[None], tokens=labels)
    site = sight[sight.names[-1]]
    kinds = ", ".join(f"{count} {name}" for name, count in sight.heads().types.items())
    title = f"{site.name}, mean of {site.heads} heads (all heads: {kinds})"
    return _map(title, site, site.window()[0].float().mean(0))


def _image(facts: RunFacts, n: int) -> AttentionExample:
    """Attention of the class token, which alone is classified, to the patches."""
    image, model = facts.evaluator.images[n], facts.run.model
    sight = _record(model, image[None].float() / 255)
    site = sight[sight.names[-1]]
    height, width = model.config.grid
    weights = site.window(None, slice(0, 1))[0].float().mean(0)[0, 1:].reshape(height, width)
    answer = facts.answers[n]
    title = f"{answer.prediction} (reference {answer.reference}): {site.name}, class token"
    rows, columns = ([f"{i + 1}" for i in range(size)] for size in (height, width))
    return AttentionExample(title, rows, columns, (weights / weights.max()).tolist(), image)


@torch.no_grad()
def _record(model: Any, inputs: Tensor, **options: Any) -> Sight:
    with look(model, **options) as sight:
        model(inputs.to(next(model.parameters()).device))
    return sight


def _map(title: str, site: Site, weights: Tensor) -> AttentionExample:
    rows, columns = query_labels(site), key_labels(site)
    return AttentionExample(title, rows, columns, weights.float().tolist())
