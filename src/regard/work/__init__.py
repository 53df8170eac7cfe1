"""A computation told step by step, exact; and the first wrong step of an answer."""

from regard.work.attention import attention, cross, mask_of
from regard.work.autograd import Beside, autograd_as_text, by_autograd
from regard.work.block import decoder, encoder, feed_forward, layer_norm
from regard.work.check import Finding, check, first_wrong, is_finished
from regard.work.constructions import convolution, identity, permutation
from regard.work.cost import cost
from regard.work.counts import counts
from regard.work.explain import Explanation, explain
from regard.work.formats import FORMATS, form_of, several_as, shown_as
from regard.work.gates import gates
from regard.work.gradients import bptt
from regard.work.hybrid import hybrid
from regard.work.making import (
    PLANS,
    Exercise,
    Paper,
    make,
    papers,
    papers_as_text,
    sheet,
    sheet_as,
    write_sheet,
)
from regard.work.mathml import mathml
from regard.work.moments import moments
from regard.work.multi_head import multi_head
from regard.work.numbers import decimal, matrix, number
from regard.work.page import write_page
from regard.work.perturb import perturb
from regard.work.positions import positions, rotary
from regard.work.problem import (
    FAMILIES,
    problem_names,
    problem_titles,
    read_problem,
    read_toml,
    work,
)
from regard.work.proofs import proof
from regard.work.recurrent import unrolled
from regard.work.rules import RULES, Rule, rule
from regard.work.shapes import Sized, convention_of, shapes_as_text, shapes_of
from regard.work.sharpness import sharpness
from regard.work.show_html import as_html
from regard.work.show_marks import findings_as_text, marks_as, marks_of, marks_of_papers
from regard.work.show_tex import as_latex, as_markdown
from regard.work.show_text import as_rich, as_text, worked_entry
from regard.work.shown import has_name, need_names
from regard.work.shuffle import shuffle
from regard.work.solution import Slip, Solution, Step, Working
from regard.work.vision import resized, vit

__all__ = [
    "Beside",
    "Exercise",
    "Explanation",
    "FAMILIES",
    "FORMATS",
    "Finding",
    "PLANS",
    "Paper",
    "RULES",
    "Rule",
    "Sized",
    "Slip",
    "Solution",
    "Step",
    "Working",
    "as_html",
    "as_latex",
    "as_markdown",
    "as_rich",
    "as_text",
    "attention",
    "autograd_as_text",
    "bptt",
    "by_autograd",
    "check",
    "convention_of",
    "convolution",
    "cost",
    "counts",
    "cross",
    "decimal",
    "decoder",
    "encoder",
    "explain",
    "feed_forward",
    "findings_as_text",
    "first_wrong",
    "form_of",
    "gates",
    "has_name",
    "hybrid",
    "identity",
    "is_finished",
    "layer_norm",
    "make",
    "marks_as",
    "marks_of",
    "marks_of_papers",
    "mask_of",
    "mathml",
    "matrix",
    "moments",
    "multi_head",
    "need_names",
    "number",
    "papers",
    "papers_as_text",
    "permutation",
    "perturb",
    "positions",
    "problem_names",
    "problem_titles",
    "proof",
    "read_problem",
    "read_toml",
    "resized",
    "rotary",
    "rule",
    "several_as",
    "shapes_as_text",
    "shapes_of",
    "sharpness",
    "sheet",
    "sheet_as",
    "shown_as",
    "shuffle",
    "unrolled",
    "vit",
    "work",
    "worked_entry",
    "write_page",
    "write_sheet",
]
