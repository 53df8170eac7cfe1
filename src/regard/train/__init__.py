"""One loop for every model: schedules, checkpoints, exact resume, runs on disk."""

from regard.train.checkpoint import (
    Checkpoint,
    average,
    checkpoints,
    fill,
    last_good,
    load_checkpoint,
    save_checkpoint,
    weights_of,
)
from regard.train.classifying import Classes, classify_run
from regard.train.confidence import (
    Calibration,
    Gradable,
    Graded,
    calibrate,
    load_calibration,
    reliability,
    save_calibration,
)
from regard.train.config import TrainConfig
from regard.train.evaluate import Answering, Evaluation, Mistake, evaluate_run
from regard.train.evaluation import TranslationScores, mean_loss, score_texts
from regard.train.evaluation_images import ClassScores, GradedClassScores
from regard.train.evaluation_speech import (
    SpeechScores,
    Transcript,
    best_path,
    edits,
    error_rate,
    transcribe,
)
from regard.train.exporting import export_run
from regard.train.generating import generate_run
from regard.train.interpreter import Interpreter, translate_run
from regard.train.interrupts import interrupts
from regard.train.loop import Outcome, Trainer
from regard.train.loss import Objective, disagreement, objective, smoothed_cross_entropy
from regard.train.metrics import read_metrics
from regard.train.progress import Progress
from regard.train.quantizing import Quantized, quantize_run
from regard.train.ranks import Ranks, join, leave
from regard.train.recipes import (
    RECIPES,
    DigitsData,
    FashionData,
    GlyphsData,
    MorseData,
    PhrasesData,
    Recipe,
    Task,
    recipe,
)
from regard.train.run import Run, load_run, next_folder, read_recipe, resume_run, start_run
from regard.train.runs import list_runs
from regard.train.schedules import rate_at
from regard.train.settings import change, from_json, names, read_value, to_json
from regard.train.specimens import find_run, specimen, specimen_names
from regard.train.transcribing import transcribe_run, transcripts_run
from regard.train.translating import Translation, TranslationSearch, translate

__all__ = [
    "Answering",
    "Calibration",
    "Checkpoint",
    "ClassScores",
    "Classes",
    "DigitsData",
    "Evaluation",
    "FashionData",
    "GlyphsData",
    "Gradable",
    "Graded",
    "GradedClassScores",
    "Interpreter",
    "Mistake",
    "MorseData",
    "Objective",
    "Outcome",
    "PhrasesData",
    "Progress",
    "Quantized",
    "RECIPES",
    "Ranks",
    "Recipe",
    "Run",
    "SpeechScores",
    "Task",
    "TrainConfig",
    "Trainer",
    "Transcript",
    "Translation",
    "TranslationScores",
    "TranslationSearch",
    "average",
    "best_path",
    "calibrate",
    "change",
    "checkpoints",
    "classify_run",
    "disagreement",
    "edits",
    "error_rate",
    "evaluate_run",
    "export_run",
    "fill",
    "find_run",
    "from_json",
    "generate_run",
    "interrupts",
    "join",
    "last_good",
    "leave",
    "list_runs",
    "load_calibration",
    "load_checkpoint",
    "load_run",
    "mean_loss",
    "names",
    "next_folder",
    "objective",
    "quantize_run",
    "rate_at",
    "read_metrics",
    "read_recipe",
    "read_value",
    "recipe",
    "reliability",
    "resume_run",
    "save_calibration",
    "save_checkpoint",
    "score_texts",
    "smoothed_cross_entropy",
    "specimen",
    "specimen_names",
    "start_run",
    "to_json",
    "transcribe",
    "transcribe_run",
    "transcripts_run",
    "translate",
    "translate_run",
    "weights_of",
]
