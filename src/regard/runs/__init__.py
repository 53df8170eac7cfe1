"""TODO."""

from regard.runs.alignment import Alignment, Link, align
from regard.runs.apply.classify import ClassPrediction, classify_run
from regard.runs.apply.generate import generate_run
from regard.runs.apply.transcribe import transcribe_run, transcribe_run_detailed
from regard.runs.apply.translate import TranslationPipeline, translate_run
from regard.runs.evaluate import AnswerEvaluator, Evaluation, Mistake, evaluate_run
from regard.runs.export import export_run
from regard.runs.listing import list_runs
from regard.runs.named_models import build_or_load_model
from regard.runs.pretrained import find_run, load_pretrained, pretrained_names
from regard.runs.quantize import QuantizationResult, quantize_run
from regard.runs.run import Run, load_run, new_run_folder, read_recipe, resume_run, start_run
from regard.runs.settings import (
    config_from_json,
    config_to_json,
    iter_settings,
    override_settings,
    parse_value,
)
from regard.runs.text_model import TextModel, load_text_model
from regard.runs.translation_sight import record_translation, with_output_tokens

__all__ = [
    "Alignment",
    "AnswerEvaluator",
    "ClassPrediction",
    "Evaluation",
    "Link",
    "Mistake",
    "QuantizationResult",
    "Run",
    "TextModel",
    "TranslationPipeline",
    "align",
    "build_or_load_model",
    "classify_run",
    "config_from_json",
    "config_to_json",
    "evaluate_run",
    "export_run",
    "find_run",
    "generate_run",
    "iter_settings",
    "list_runs",
    "load_pretrained",
    "load_run",
    "load_text_model",
    "new_run_folder",
    "override_settings",
    "parse_value",
    "pretrained_names",
    "quantize_run",
    "read_recipe",
    "record_translation",
    "resume_run",
    "start_run",
    "transcribe_run",
    "transcribe_run_detailed",
    "translate_run",
    "with_output_tokens",
]
