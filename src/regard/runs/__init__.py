"""Trained runs on disk and what one does with them: open, train, evaluate, apply, export."""

from regard.runs.alignment import (
    Alignment,
    Link,
    align,
    alignment_head,
    record_translation,
    with_output_tokens,
)
from regard.runs.apply.answers import (
    Answer,
    Answerer,
    AudioAnswers,
    ImageAnswers,
    JobInput,
    TaskAnswers,
    TranslationAnswers,
    make_answers,
)
from regard.runs.apply.classify import (
    ClassifiedFile,
    ClassPrediction,
    classify_files,
    classify_run,
)
from regard.runs.apply.file_job import FileJob, JobReport, apply_file, run_identity
from regard.runs.apply.generate import (
    TextGenerator,
    generate_run,
    generate_texts,
    score_prompt,
)
from regard.runs.apply.look import LookReport, compare_texts, look_report
from regard.runs.apply.report import Reporter
from regard.runs.apply.search import search_files
from regard.runs.apply.text_stream import ScoredToken, TextPiece, TextStream
from regard.runs.apply.transcribe import TranscribeJob, TranscriptChunk, transcribe_run_detailed
from regard.runs.apply.translate import TranslationPipeline, translate_run
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

__all__ = [
    "Alignment",
    "Answer",
    "AnswerEvaluator",
    "Answerer",
    "AudioAnswers",
    "ClassPrediction",
    "ClassifiedFile",
    "EvaluatedAnswer",
    "Evaluation",
    "FileJob",
    "ImageAnswers",
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
    "TranslationAnswers",
    "TranslationPipeline",
    "align",
    "alignment_head",
    "apply_file",
    "build_or_load_model",
    "classify_files",
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
    "list_runs",
    "load",
    "load_run",
    "look_report",
    "make_answers",
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
    "transcribe_run_detailed",
    "translate_run",
    "verify_text",
    "with_output_tokens",
]
