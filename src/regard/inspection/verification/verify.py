"""`verify`: runs every check on a model, and reports the largest error of each."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from regard.errors import RegardError
from regard.inspection.adapters.model_calls import get_output, run_model
from regard.inspection.adapters.module_tracker import check_eval_mode, uncompiled_modules
from regard.inspection.record.look import look
from regard.inspection.verification.checks import CHECKS, Subject
from regard.tables import text_table

# largest error that counts as rounding, by the dtype of the weights
BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
DIFFERENCE_BOUND = 2e-2  # of a finite difference, whose error is larger


@dataclass(frozen=True)
class CheckResult:
    """The largest relative error of one check; `reason` where it does not apply.

    >>> CheckResult("maps", "weights against eager", 2e-7, 1e-4).status
    'ok'
    """

    name: str
    meaning: str
    error: float | None
    bound: float
    reason: str = ""

    @property
    def status(self) -> Literal["ok", "wrong", "not applicable"]:
        """Whether the error is within its bound."""
        if self.error is None:
            return "not applicable"
        return "ok" if self.error <= self.bound else "wrong"


@dataclass(frozen=True, repr=False)
class Verification:
    """The results of all checks on one model.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=2)).eval()
    >>> rg.inspection.verify(model, torch.tensor([[1, 2, 3, 4]])).passed
    True
    """

    results: list[CheckResult]

    @property
    def passed(self) -> bool:
        """Whether no error is above its bound."""
        return all(result.status != "wrong" for result in self.results)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per check, for JSON."""
        return [vars(result) | {"status": result.status} for result in self.results]

    def __repr__(self) -> str:
        rows = []
        for r in self.results:
            error = "" if r.error is None else f"{r.error:.1e}"
            note = r.meaning if r.status == "ok" else r.reason or f"{r.status}: {r.meaning}"
            rows.append((r.name, error, f"{r.bound:.0e}", note))
        numbers = ("largest error", "bound")
        return text_table(("check", *numbers, ""), rows, right=numbers)


def verify(model: nn.Module, inputs: Any) -> Verification:
    """Check every look, edit and attribution on a model against brute force.

    Maps against eager attention, statistics against the whole map, influence against removal,
    edits against hooks, patching against edited runs, attributions against their sums, gradients
    against finite differences. The inputs should be short: whole maps are computed.

    Args:
        model: The model, ours or of transformers, in eval mode; it must not be compiled.
        inputs: What the model is called with: a tensor, a tuple of arguments or a mapping.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=2)).eval()
    >>> verification = verify(model, torch.tensor([[1, 2, 3, 4]]))
    >>> [result.name for result in verification.results][:3]
    ['output', 'maps', 'survey']
    """
    uncompiled_modules(model)  # raises if one is compiled
    check_eval_mode(model)
    parameter = next(model.parameters(), torch.zeros(()))
    bound = BOUNDS.get(parameter.dtype, BOUNDS[torch.float32])
    with torch.no_grad():
        logits = get_output(run_model(model, inputs)).detach()
        with look(model) as sight:
            run_model(model, inputs)
    subject, results = Subject(model, inputs, sight, logits), []
    for name, (meaning, function) in CHECKS.items():
        limit = max(bound, DIFFERENCE_BOUND) if name == "gradients" else bound
        try:
            with torch.no_grad():
                error, reason = function(subject), ""
        except RegardError as problem:
            error, reason = None, str(problem)
        except Exception as problem:  # a bug of the library: reported with the others
            error, reason = float("inf"), f"wrong: raised {problem!r}"
        results.append(CheckResult(name, meaning, error, limit, reason))
    return Verification(results)
