"""Tasks: data settings, batches, loss, evaluation and use, registered by name; recipes.

Names are imported on first use: `regard --help` reads the verbs, without torch.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.tasks.base import DataContents, EvalSplit, Evaluator, Recipe, Task
    from regard.tasks.classification.evaluator import (
        CalibratedClassificationEvaluator,
        ClassificationEvaluator,
    )
    from regard.tasks.classification.glyphs import GlyphsTask
    from regard.tasks.classification.images import ImageTask
    from regard.tasks.classification.own_images import ImagesTask
    from regard.tasks.classification.pipeline import (
        ClassificationPipeline,
        ClassPrediction,
        classify_run,
    )
    from regard.tasks.data_report import DataReport, inspect_data
    from regard.tasks.labels import LabelsTask, label_run
    from regard.tasks.language.generate import (
        GenerationPipeline,
        TextGenerator,
        generate_run,
        generate_texts,
        score_prompt,
    )
    from regard.tasks.language.text import LanguageTask, TextTask
    from regard.tasks.language.text_stream import ScoredToken, TextPiece, TextStream
    from regard.tasks.language.windows import LanguageEvaluator
    from regard.tasks.pipeline import Answer, JobInput, Pipeline, TrainedRun
    from regard.tasks.proposals.kinds import propose
    from regard.tasks.proposals.proposal import Proposal
    from regard.tasks.recognition.evaluator import RecognitionEvaluator, edit_distance, error_rate
    from regard.tasks.recognition.morse import MorseTask
    from regard.tasks.recognition.pipeline import (
        TranscribeJob,
        TranscriptChunk,
        transcribe_run_detailed,
    )
    from regard.tasks.recognition.speech import SpeechTask
    from regard.tasks.recognition.transcripts import Transcript, transcribe_batch
    from regard.tasks.registry import (
        TASKS,
        find_task,
        recipe,
        recipe_config_types,
        recipe_names,
        recipe_text,
        task,
    )
    from regard.tasks.reporter import Reporter
    from regard.tasks.tagging import Span, TaggedText, TaggingTask, tag_run
    from regard.tasks.translation.alignment import (
        Alignment,
        Link,
        align,
        alignment_head,
        record_translation,
        with_output_tokens,
    )
    from regard.tasks.translation.data import TranslationTask
    from regard.tasks.translation.evaluator import TranslationEvaluator
    from regard.tasks.translation.parallel_text import PairsTask
    from regard.tasks.translation.phrases import PhrasesTask
    from regard.tasks.translation.pipeline import TranslationPipeline, Translations, translate_run
    from regard.tasks.translation.search import (
        SearchConfig,
        Translation,
        TranslationSearch,
        translate_texts,
    )
    from regard.tasks.verb import (
        ImageFile,
        InputKind,
        Option,
        Prompt,
        SoundFile,
        TaskOptions,
        Text,
        Verb,
        option,
    )

__all__ = [
    "Alignment",
    "Answer",
    "CalibratedClassificationEvaluator",
    "ClassPrediction",
    "ClassificationEvaluator",
    "ClassificationPipeline",
    "DataContents",
    "DataReport",
    "EvalSplit",
    "Evaluator",
    "GenerationPipeline",
    "GlyphsTask",
    "ImageFile",
    "ImageTask",
    "ImagesTask",
    "InputKind",
    "JobInput",
    "LabelsTask",
    "LanguageEvaluator",
    "LanguageTask",
    "Link",
    "MorseTask",
    "Option",
    "PairsTask",
    "PhrasesTask",
    "Pipeline",
    "Prompt",
    "Proposal",
    "Recipe",
    "RecognitionEvaluator",
    "Reporter",
    "ScoredToken",
    "SearchConfig",
    "SoundFile",
    "Span",
    "SpeechTask",
    "TASKS",
    "TaggedText",
    "TaggingTask",
    "Task",
    "TaskOptions",
    "Text",
    "TextGenerator",
    "TextPiece",
    "TextStream",
    "TextTask",
    "TrainedRun",
    "TranscribeJob",
    "Transcript",
    "TranscriptChunk",
    "Translation",
    "TranslationEvaluator",
    "TranslationPipeline",
    "TranslationSearch",
    "TranslationTask",
    "Translations",
    "Verb",
    "align",
    "alignment_head",
    "classify_run",
    "edit_distance",
    "error_rate",
    "find_task",
    "generate_run",
    "generate_texts",
    "inspect_data",
    "label_run",
    "option",
    "propose",
    "recipe",
    "recipe_config_types",
    "recipe_names",
    "recipe_text",
    "record_translation",
    "score_prompt",
    "tag_run",
    "task",
    "transcribe_batch",
    "transcribe_run_detailed",
    "translate_run",
    "translate_texts",
    "with_output_tokens",
]

# the module that each name is imported from
_HOME = {
    alias.name: node.module or ""
    for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard.")
    for alias in node.names
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
