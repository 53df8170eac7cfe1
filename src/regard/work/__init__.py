"""A computation told step by step, exact; and the first wrong step of an answer."""

from regard.work.exact.numbers import format_decimal, parse_matrix, parse_number
from regard.work.explain import Explanation, explain
from regard.work.families.attention import parse_mask, solve_attention, solve_cross_attention
from regard.work.families.block import (
    solve_decoder,
    solve_encoder,
    solve_feed_forward,
    solve_layer_norm,
)
from regard.work.families.constructions import solve_convolution, solve_identity, solve_permutation
from regard.work.families.cost import solve_cost
from regard.work.families.counts import solve_counts
from regard.work.families.moments import solve_moments
from regard.work.families.multi_head import solve_multi_head
from regard.work.families.perturb import solve_perturb
from regard.work.families.positions import solve_positions, solve_rotary
from regard.work.families.proofs import solve_proof
from regard.work.families.recurrent.attention import solve_recurrent_attention
from regard.work.families.recurrent.autograd import (
    GradientComparison,
    autograd_as_text,
    compare_with_autograd,
)
from regard.work.families.recurrent.bptt import solve_bptt
from regard.work.families.recurrent.cells import solve_recurrent
from regard.work.families.recurrent.gates import solve_gates
from regard.work.families.sharpness import solve_sharpness
from regard.work.families.shuffle import solve_shuffle
from regard.work.families.vision import solve_position_resize, solve_vit
from regard.work.making import (
    EXERCISE_TEMPLATES,
    Exercise,
    Submission,
    check_submissions,
    format_sheet,
    make_exercise,
    make_sheet,
    submissions_as_text,
    write_sheet,
)
from regard.work.marking.findings import Finding, check_answers, first_wrong, is_complete
from regard.work.problem import (
    FAMILIES,
    problem_names,
    problem_titles,
    read_problem,
    read_toml,
    solve,
)
from regard.work.rules import RULES, Rule, get_rule
from regard.work.show.formats import FORMATS, format_solution, format_solutions, infer_format
from regard.work.show.html import as_html
from regard.work.show.latex import as_latex, as_markdown
from regard.work.show.marks import (
    findings_as_text,
    format_marks,
    marks_from_findings,
    marks_from_submissions,
)
from regard.work.show.mathml import tex_to_mathml
from regard.work.show.page import write_page
from regard.work.show.selection import check_names, has_name
from regard.work.show.shapes import ShapeRow, detect_convention, list_shapes, shapes_as_text
from regard.work.show.text import as_rich, as_text, entry_text
from regard.work.solution import KnownMistake, Solution, SolutionBuilder, Step

__all__ = [
    "GradientComparison",
    "Exercise",
    "Explanation",
    "FAMILIES",
    "FORMATS",
    "Finding",
    "EXERCISE_TEMPLATES",
    "Submission",
    "RULES",
    "Rule",
    "ShapeRow",
    "KnownMistake",
    "Solution",
    "Step",
    "SolutionBuilder",
    "as_html",
    "as_latex",
    "as_markdown",
    "as_rich",
    "as_text",
    "solve_attention",
    "autograd_as_text",
    "solve_bptt",
    "compare_with_autograd",
    "check_answers",
    "detect_convention",
    "solve_convolution",
    "solve_cost",
    "solve_counts",
    "solve_cross_attention",
    "format_decimal",
    "solve_decoder",
    "solve_encoder",
    "explain",
    "solve_feed_forward",
    "findings_as_text",
    "first_wrong",
    "infer_format",
    "solve_gates",
    "has_name",
    "solve_recurrent_attention",
    "solve_identity",
    "is_complete",
    "solve_layer_norm",
    "make_exercise",
    "format_marks",
    "marks_from_findings",
    "marks_from_submissions",
    "parse_mask",
    "tex_to_mathml",
    "parse_matrix",
    "solve_moments",
    "solve_multi_head",
    "check_names",
    "parse_number",
    "check_submissions",
    "submissions_as_text",
    "solve_permutation",
    "solve_perturb",
    "solve_positions",
    "problem_names",
    "problem_titles",
    "solve_proof",
    "read_problem",
    "read_toml",
    "solve_position_resize",
    "solve_rotary",
    "get_rule",
    "format_solutions",
    "shapes_as_text",
    "list_shapes",
    "solve_sharpness",
    "make_sheet",
    "format_sheet",
    "format_solution",
    "solve_shuffle",
    "solve_recurrent",
    "solve_vit",
    "solve",
    "entry_text",
    "write_page",
    "write_sheet",
]
