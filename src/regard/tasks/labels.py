"""Labelled texts: one class per text, such as a topic or a sentiment."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from regard.data import ByteTokenizer, LabeledText, LoadReport, Tokenizer, read_labeled_texts
from regard.data.batches import Encoded
from regard.errors import ConfigError
from regard.models import ClassifierConfig
from regard.tasks.annotated_text import (
    MAX_TOKENS,
    AnnotatedTextEvaluator,
    AnnotatedTextTask,
    compute_logits,
)
from regard.tasks.annotated_verb import Label, LabelOptions
from regard.tasks.base import Baseline, EvalSplit
from regard.tasks.baselines.linear_text import fit_linear_text
from regard.tasks.class_names import Classes, class_tally, format_classes
from regard.tasks.classification.evaluator import top_log_odds
from regard.tasks.registry import task
from regard.train.metrics import Tally


@task("labels")
@dataclass(frozen=True, kw_only=True)
class LabelsTask(Label, AnnotatedTextTask):
    """Labelled texts in .csv, .tsv or .jsonl files, see `data.read_labeled_texts`.

    Of a longer text the first `max_tokens` are read.

    Args:
        text_column, label_column: names of the columns, or numbers from "1" without a header.
        header: whether the first line of a .csv or .tsv names the columns.

    >>> LabelsTask(train="comments.csv").verb
    'label'
    """

    objective: ClassVar[str] = "class"
    unit: ClassVar[str] = "texts"

    text_column: str = "text"
    label_column: str = "label"
    header: bool = True

    def read(self, path: str, report: LoadReport) -> Iterator[LabeledText]:
        columns = {"text": self.text_column, "label": self.label_column}
        return read_labeled_texts(path, report, header=self.header, **columns)

    def text(self, example: LabeledText) -> str:
        return example.text

    def labels(self, example: LabeledText) -> Sequence[str]:
        return [example.label]

    def resolve(self, model: ClassifierConfig, tokenizer: Tokenizer) -> ClassifierConfig:
        config = super().resolve(model, tokenizer)
        if config.pooling == "none":
            raise ConfigError("model.pooling: needs mean or first for one label per text, got none")
        return config

    def encoder(self, tokenizer: Tokenizer) -> Callable[[LabeledText], Encoded]:
        numbers = {name: number for number, name in enumerate(self.class_names)}
        return lambda example: {
            "tokens": self.encode_text(tokenizer, example.text), "label": numbers[example.label]
        }  # fmt: skip

    def encode_text(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """`encode_text`, cut to `max_tokens`."""
        return encode_text(tokenizer, text, self.max_tokens)

    def evaluator(self, tokenizer: Tokenizer, split: EvalSplit) -> "LabelsEvaluator":
        return LabelsEvaluator(self, tokenizer, split)

    def fit_baseline(self) -> Baseline:
        """Logistic regression on the n-grams of words and characters."""
        examples, names = self.load().examples, list(self.class_names)
        train, valid = (
            ([x.text for x in rows], [names.index(x.label) for x in rows])
            for rows in (examples["train"], examples["valid"])
        )
        model = fit_linear_text(train, valid, len(names))
        return Baseline("linear model on n-grams", model, self.over_bytes(), ByteTokenizer())

    def apply(self, run: Any, inputs: Sequence[str], options: LabelOptions) -> list[Classes]:
        rows = [self.encode_text(run.tokenizer, text) for text in inputs]
        probabilities = (x.softmax(-1).tolist() for x in compute_logits(run.model, rows))
        classes = (zip(self.class_names, x, strict=True) for x in probabilities)
        return [sorted(row, key=lambda pair: -pair[1])[: options.top] for row in classes]

    def format_output(self, output: Classes) -> str:
        return format_classes(output)

    def confidence(self, output: Classes) -> float:
        return output[0][1]


def encode_text(tokenizer: Tokenizer, text: str, limit: int = MAX_TOKENS) -> list[int]:
    """The start token, whose vector `pooling="first"` takes, and the tokens of a text, cut.

    >>> encode_text(rg.data.ByteTokenizer(), "a")
    [1, 101]
    """
    return [tokenizer.bos_id, *tokenizer.encode_input(text)][:limit]


class LabelsEvaluator(AnnotatedTextEvaluator):
    """Loss, accuracy and macro F1 of a text classifier on a split."""

    @property
    def sources(self) -> list[str]:
        return [example.text for example in self.examples]

    @property
    def references(self) -> list[str]:
        return [example.label for example in self.examples]

    def predict(self, model: nn.Module) -> list[str]:
        return [name for name, _ in self.predict_scored(model)]

    def predict_scored(self, model: nn.Module) -> list[tuple[str, float]]:
        """The most probable class of each text with its log-odds."""
        rows = [self.data.encode_text(self.tokenizer, text) for text in self.sources]
        logits = torch.stack(compute_logits(model, rows))
        names, best = self.data.class_names, logits.argmax(-1).tolist()
        return list(zip((names[i] for i in best), top_log_odds(logits).tolist(), strict=True))

    def tally(self, answers: Sequence[str]) -> Tally:
        return class_tally(answers, self.references)
