"""Trained runs on disk and what one does with them: open, train, evaluate, apply, export."""

from regard.runs.apply.answers import TaskAnswers, apply_run
from regard.runs.apply.file_job import FileJob, JobReport, apply_file, run_identity
from regard.runs.apply.look import LookReport, compare_texts, look_report
from regard.runs.apply.search import search_files
from regard.runs.apply.verify import verify_text
from regard.runs.contents import new_run_folder, read_recipe
from regard.runs.evaluate import AnswerEvaluator, EvaluatedAnswer, Evaluation, evaluate_run
from regard.runs.export import QuantizationResult, export_run, quantize_run, save_run_pretrained
from regard.runs.load import (
    build_or_load_model,
    find_run,
    list_runs,
    load,
    pretrained_names,
)
from regard.runs.report.card import model_card
from regard.runs.report.facts import RunFacts, collect_facts
from regard.runs.report.page import report_run
from regard.runs.run import Run, load_run
from regard.runs.settings import (
    config_from_json,
    config_to_json,
    iter_settings,
    override_settings,
    parse_value,
)
from regard.runs.text_model import TextModel
from regard.runs.training import fit
from regard.tasks import (
    Alignment,
    Answer,
    ClassPrediction,
    JobInput,
    Link,
    Reporter,
    ScoredToken,
    TextGenerator,
    TextPiece,
    TextStream,
    TranscribeJob,
    TranscriptChunk,
    TranslationPipeline,
    align,
    alignment_head,
    classify_run,
    generate_run,
    generate_texts,
    label_run,
    record_translation,
    score_prompt,
    tag_run,
    transcribe_run_detailed,
    translate_run,
    with_output_tokens,
)

__all__ = [
    "Alignment",
    "Answer",
    "AnswerEvaluator",
    "ClassPrediction",
    "EvaluatedAnswer",
    "Evaluation",
    "FileJob",
    "JobInput",
    "JobReport",
    "Link",
    "LookReport",
    "QuantizationResult",
    "Reporter",
    "Run",
    "RunFacts",
    "ScoredToken",
    "TaskAnswers",
    "TextGenerator",
    "TextModel",
    "TextPiece",
    "TextStream",
    "TranscribeJob",
    "TranscriptChunk",
    "TranslationPipeline",
    "align",
    "alignment_head",
    "apply_file",
    "apply_run",
    "build_or_load_model",
    "classify_run",
    "collect_facts",
    "compare_texts",
    "config_from_json",
    "config_to_json",
    "evaluate_run",
    "export_run",
    "find_run",
    "fit",
    "generate_run",
    "generate_texts",
    "iter_settings",
    "label_run",
    "list_runs",
    "load",
    "load_run",
    "look_report",
    "model_card",
    "new_run_folder",
    "override_settings",
    "parse_value",
    "pretrained_names",
    "quantize_run",
    "read_recipe",
    "record_translation",
    "report_run",
    "run_identity",
    "save_run_pretrained",
    "score_prompt",
    "search_files",
    "tag_run",
    "transcribe_run_detailed",
    "translate_run",
    "verify_text",
    "with_output_tokens",
]
