"""Tasks: data settings, batches, loss, evaluation and use, registered by name; recipes."""

from regard.tasks.classification.evaluator import (
    CalibratedClassificationEvaluator,
    ClassificationEvaluator,
)
from regard.tasks.classification.glyphs import GlyphsTask
from regard.tasks.classification.images import ImageTask
from regard.tasks.classification.own_images import ImagesTask
from regard.tasks.data_report import DataReport, inspect_data
from regard.tasks.labels import LabelsTask
from regard.tasks.language.text import LanguageTask, TextTask
from regard.tasks.language.windows import LanguageEvaluator
from regard.tasks.proposals.kinds import propose
from regard.tasks.proposals.proposal import Proposal
from regard.tasks.recipe import DataContents, EvalSplit, Evaluator, Recipe, Task
from regard.tasks.recognition.evaluator import RecognitionEvaluator, edit_distance, error_rate
from regard.tasks.recognition.morse import MorseTask
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
from regard.tasks.tagging import Span, TaggedText, TaggingTask
from regard.tasks.translation.data import TranslationTask
from regard.tasks.translation.evaluator import TranslationEvaluator
from regard.tasks.translation.parallel_text import PairsTask
from regard.tasks.translation.phrases import PhrasesTask
from regard.tasks.translation.search import (
    SearchConfig,
    Translation,
    TranslationSearch,
    translate_texts,
)

__all__ = [
    "CalibratedClassificationEvaluator",
    "ClassificationEvaluator",
    "DataContents",
    "DataReport",
    "EvalSplit",
    "Evaluator",
    "GlyphsTask",
    "ImageTask",
    "ImagesTask",
    "LabelsTask",
    "LanguageEvaluator",
    "LanguageTask",
    "MorseTask",
    "PairsTask",
    "PhrasesTask",
    "Proposal",
    "Recipe",
    "RecognitionEvaluator",
    "SearchConfig",
    "Span",
    "SpeechTask",
    "TASKS",
    "TaggedText",
    "TaggingTask",
    "Task",
    "TextTask",
    "Transcript",
    "Translation",
    "TranslationEvaluator",
    "TranslationSearch",
    "TranslationTask",
    "edit_distance",
    "error_rate",
    "find_task",
    "inspect_data",
    "propose",
    "recipe",
    "recipe_config_types",
    "recipe_names",
    "recipe_text",
    "task",
    "transcribe_batch",
    "translate_texts",
]
