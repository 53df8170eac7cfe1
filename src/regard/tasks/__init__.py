"""Tasks: data modules, evaluators and recipes, registered by name."""

from regard.tasks.classification.evaluator import (
    CalibratedClassificationEvaluator,
    ClassificationEvaluator,
)
from regard.tasks.classification.fashion import FashionData
from regard.tasks.classification.glyphs import GlyphsData
from regard.tasks.classification.images import ImageData
from regard.tasks.language.text import LanguageData, TextData
from regard.tasks.language.windows import LanguageEvaluator
from regard.tasks.recipe import DataModule, EvalSplit, Evaluator, Recipe
from regard.tasks.recognition.evaluator import RecognitionEvaluator, edit_distance, error_rate
from regard.tasks.recognition.morse import MorseData
from regard.tasks.recognition.speech import SpeechData
from regard.tasks.recognition.transcripts import Transcript, best_path, transcribe_batch
from regard.tasks.registry import DATA_MODULES, RECIPES, recipe, recipe_config_types, register
from regard.tasks.translation.data import TranslationData
from regard.tasks.translation.evaluator import TranslationEvaluator
from regard.tasks.translation.parallel_text import ParallelTextData
from regard.tasks.translation.phrases import PhrasesData
from regard.tasks.translation.search import (
    SearchConfig,
    Translation,
    TranslationSearch,
    translate_texts,
)

__all__ = [
    "CalibratedClassificationEvaluator",
    "ClassificationEvaluator",
    "DATA_MODULES",
    "DataModule",
    "EvalSplit",
    "Evaluator",
    "FashionData",
    "GlyphsData",
    "ImageData",
    "LanguageData",
    "LanguageEvaluator",
    "MorseData",
    "ParallelTextData",
    "PhrasesData",
    "RECIPES",
    "Recipe",
    "RecognitionEvaluator",
    "SearchConfig",
    "SpeechData",
    "TextData",
    "Transcript",
    "Translation",
    "TranslationData",
    "TranslationEvaluator",
    "TranslationSearch",
    "best_path",
    "edit_distance",
    "error_rate",
    "recipe",
    "recipe_config_types",
    "register",
    "transcribe_batch",
    "translate_texts",
]
