"""TODO."""

from regard.tasks.classification.evaluator import (
    CalibratedClassificationEvaluator,
    ClassificationEvaluator,
)
from regard.tasks.recognition.evaluator import (
    RecognitionEvaluator,
    Transcript,
    best_path,
    edit_distance,
    error_rate,
    transcribe_batch,
)
from regard.tasks.registry import (
    RECIPES,
    DataModule,
    FashionData,
    GlyphsData,
    MorseData,
    PhrasesData,
    Recipe,
    recipe,
)
from regard.tasks.translation.evaluator import TranslationEvaluator, mean_loss, score_texts
from regard.tasks.translation.search import Translation, TranslationSearch, translate_texts

__all__ = [
    "CalibratedClassificationEvaluator",
    "ClassificationEvaluator",
    "DataModule",
    "FashionData",
    "GlyphsData",
    "MorseData",
    "PhrasesData",
    "RECIPES",
    "Recipe",
    "RecognitionEvaluator",
    "Transcript",
    "Translation",
    "TranslationEvaluator",
    "TranslationSearch",
    "best_path",
    "edit_distance",
    "error_rate",
    "mean_loss",
    "recipe",
    "score_texts",
    "transcribe_batch",
    "translate_texts",
]
