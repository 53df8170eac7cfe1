"""One loop for every model: schedules, checkpoints, exact resume, runs on disk."""

from regard.train.checkpoint import (
    Checkpoint,
    average_checkpoints,
    list_checkpoints,
    load_weights,
    load_last_valid,
    load_checkpoint,
    save_checkpoint,
    copy_weights,
)
from regard.train.classifying import ClassPrediction, classify_run
from regard.train.confidence import (
    Calibration,
    Gradable,
    GradedAnswer,
    calibrate,
    load_calibration,
    calibration_metrics,
    save_calibration,
)
from regard.train.config import TrainConfig
from regard.train.evaluate import AnswerEvaluator, Evaluation, Mistake, evaluate_run
from regard.train.evaluation import TranslationEvaluator, mean_loss, score_texts
from regard.train.evaluation_images import ClassificationEvaluator, CalibratedClassificationEvaluator
from regard.train.evaluation_speech import (
    RecognitionEvaluator,
    Transcript,
    best_path,
    edit_distance,
    error_rate,
    transcribe_batch,
)
from regard.train.exporting import export_run
from regard.train.generating import generate_run
from regard.train.interpreter import TranslationPipeline, translate_run
from regard.train.interrupts import defer_signals
from regard.train.loop import Outcome, Trainer
from regard.train.loss import Objective, symmetric_kl, objective, label_smoothed_cross_entropy
from regard.train.metrics import read_metrics
from regard.train.progress import Progress
from regard.train.quantizing import QuantizationResult, quantize_run
from regard.train.ranks import Ranks, init_distributed, shutdown_distributed
from regard.train.recipes import (
    RECIPES,
    DigitsData,
    FashionData,
    GlyphsData,
    MorseData,
    PhrasesData,
    Recipe,
    DataModule,
    recipe,
)
from regard.train.run import Run, load_run, new_run_folder, read_recipe, resume_run, start_run
from regard.train.runs import list_runs
from regard.train.schedules import lr_factor
from regard.train.settings import override_settings, config_from_json, iter_settings, parse_value, config_to_json
from regard.train.specimens import find_run, load_pretrained, pretrained_names
from regard.train.transcribing import transcribe_run, transcribe_run_detailed
from regard.train.translating import Translation, TranslationSearch, translate_texts

__all__ = [
    "AnswerEvaluator",
    "Calibration",
    "Checkpoint",
    "ClassificationEvaluator",
    "ClassPrediction",
    "DigitsData",
    "Evaluation",
    "FashionData",
    "GlyphsData",
    "Gradable",
    "GradedAnswer",
    "CalibratedClassificationEvaluator",
    "TranslationPipeline",
    "Mistake",
    "MorseData",
    "Objective",
    "Outcome",
    "PhrasesData",
    "Progress",
    "QuantizationResult",
    "RECIPES",
    "Ranks",
    "Recipe",
    "Run",
    "RecognitionEvaluator",
    "DataModule",
    "TrainConfig",
    "Trainer",
    "Transcript",
    "Translation",
    "TranslationEvaluator",
    "TranslationSearch",
    "average_checkpoints",
    "best_path",
    "calibrate",
    "override_settings",
    "list_checkpoints",
    "classify_run",
    "symmetric_kl",
    "edit_distance",
    "error_rate",
    "evaluate_run",
    "export_run",
    "load_weights",
    "find_run",
    "config_from_json",
    "generate_run",
    "defer_signals",
    "init_distributed",
    "load_last_valid",
    "shutdown_distributed",
    "list_runs",
    "load_calibration",
    "load_checkpoint",
    "load_run",
    "mean_loss",
    "iter_settings",
    "new_run_folder",
    "objective",
    "quantize_run",
    "lr_factor",
    "read_metrics",
    "read_recipe",
    "parse_value",
    "recipe",
    "calibration_metrics",
    "resume_run",
    "save_calibration",
    "save_checkpoint",
    "score_texts",
    "label_smoothed_cross_entropy",
    "load_pretrained",
    "pretrained_names",
    "start_run",
    "config_to_json",
    "transcribe_batch",
    "transcribe_run",
    "transcribe_run_detailed",
    "translate_texts",
    "translate_run",
    "copy_weights",
]
