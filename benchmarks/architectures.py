"""`look`, `cost` and `verify` on every architecture of transformers, from tiny random configs.

python benchmarks/architectures.py              # writes docs/look/verified.md; 20 minutes on a core
python benchmarks/architectures.py bloom xlnet  # prints and replaces the rows of some of them
python benchmarks/architectures.py --layers     # the first table alone, in a third of the time

Every type of the mappings of causal, masked and sequence-to-sequence language models, of image
classifiers and of image-text models has a row: how many of the layers through which positions
influence each other are recorded, the others by name, and why a type has no numbers. Types with a
head over a vocabulary then go through all checks of `regard verify`.
"""

import re
import signal
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_models
import torch
import transformers
from tiny_models import MAPPINGS, all_kinds, make_first, mappings_of, text_inputs
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import regard as rg
from regard.errors import RegardError
from regard.inspection.verification import CHECKS
from regard.ops.terms import repeat_kv

SECONDS = 40  # of CPU per type
LANGUAGE = ("causal LM", "seq2seq", "masked LM")
PAGE_FILE = Path(__file__).parents[1] / "docs/look/verified.md"
PAGE = """# Verified architectures

`python benchmarks/architectures.py` writes this page: every type of the causal, masked and
sequence-to-sequence language models, the image classifiers and the image-text models of
`transformers` as a tiny random model, here with {versions}.

## Layers

A layer is a module through which positions influence each other. *All*: every one is recorded as a
site. *Named*: the others are in `sight.skipped` with the reason. *Refused*: none can be recorded,
and the error says why. The errors, relative: of the model's output under `look` (0 is equal to the
bit), and of weights · values against the output of the model's own attention or linear mixer.
Batches are padded.

{summary}

{layers}

## Checks

All [checks](verification.md) on the {count} types with a head over a vocabulary that have a site:
on {passed} no error is above its bound. A number is the largest relative error of a check; a number
in brackets is the reason below why the check does not apply. The last column says whether `rg.cost`
has every parameter and the FLOPs of torch's counter.

{checks}

{reasons}
"""


class TooSlow(Exception):
    """The time limit of one type."""


@dataclass
class Row:
    """What `look` found on one type."""

    kind: str
    status: str
    layers: str = ""
    error: str = ""
    why: str = ""

    def __str__(self) -> str:
        cells = (self.kind, ", ".join(mappings_of(self.kind)), self.status, self.layers, self.error)
        return f"| {' | '.join((*cells, self.why.replace('|', '∣')))} |"


@torch.no_grad()
def check_look(model: nn.Module, kind: str) -> Row:
    """How many layers are recorded, and the errors of output and of weights · values."""
    want = tiny_models.run(model, kind)
    try:
        with rg.look(model) as sight:
            got = tiny_models.run(model, kind)
    except RegardError as error:
        return Row(kind, "refused", why=shorten(str(error)))
    output = float((got - want).nan_to_num().abs().max() / want.nan_to_num().abs().max())
    errors = [output]
    for site in sight:
        off = (site.weights() @ repeat_kv(site.v, site.q) - site.out).abs().max()
        errors.append(float(off / site.v.abs().max().clamp(min=1e-9)))
    for site in sight.mixers:
        m = site.mixer
        is_linear = isinstance(m, rg.ops.mixers.LinearMixer)
        y = site.weights() @ m.v if is_linear else m.output()[..., None]
        errors.append(float((y - site.out).abs().max() / site.out.abs().max().clamp(min=1e-9)))
    names = {site.name for site in (*sight.sites, *sight.mixers)}
    layers = f"{len(names)} of {len(names | {*sight.skipped})}"
    whys = Counter(shorten(why) for why in sight.skipped.values())
    parts = [f"{count} × {text}" for text, count in whys.items()]
    if hasattr(model, "get_image_features") and not tiny_models.run_vision(model):
        parts.append("its vision tower could not be run")
    why = "; ".join(parts)
    weights = max(errors[1:], default=0.0)
    error = f"{output:.0e}, {weights:.0e}".replace("e+00", "").replace("e-0", "e-")
    return Row(kind, "named" if sight.skipped else "all", layers, error, why)


def check_cost(model: Any, given: dict[str, Any]) -> str:
    """Whether parameters and FLOPs are exact, or "refused"."""
    sizes = {"target": 7} if "decoder_input_ids" in given else {}
    try:
        cost = rg.cost(model, source=12, batch=1, **sizes)
    except RegardError:
        return "refused"
    for setting in (model.set_attn_implementation, model.set_experts_implementation):
        try:
            setting("eager")  # the counter does not know every fused kernel
        except (ValueError, NotImplementedError):
            continue
    counter = FlopCounterMode(display=False)
    with counter:
        model.requires_grad_(False)(**given)
    same = cost.parameters == sum(p.numel() for p in model.parameters())
    same = same and cost.flops == counter.get_total_flops()
    return "exact" if same else "differs"


class Page:
    """The rows of both tables by type, and the numbered reasons."""

    def __init__(self, page: str = "") -> None:
        self.rows: dict[str, str] = {}
        self.checks: dict[str, str] = {}
        self.reasons: dict[str, str] = {}  # their numbers
        for line in page.splitlines():
            cells = line.split(" | ")
            if line.startswith("- ("):
                number, _, reason = line[3:].partition(") ")
                self.reasons[reason] = number
            elif (kind := cells[0].removeprefix("| ")) in all_kinds():
                (self.rows if len(cells) == 6 else self.checks)[kind] = line

    def add(self, kind: str, layers_only: bool) -> None:
        """Make and check one type."""
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        model, what = None, "could not be built"
        try:
            model = make_first(kind, mappings_of(kind))
            what = "could not be run"
            with torch.no_grad():
                tiny_models.run(model, kind)
            what = "raises"
            row = check_look(model, kind)
        except (Exception, TooSlow) as error:
            row = Row(kind, what, why=shorten(tiny_models.one_line(error)))
        self.rows[kind] = f"{row}"
        print(row, flush=True)
        is_checked = row.status in ("all", "named") and not layers_only
        if is_checked and any(m in LANGUAGE for m in mappings_of(kind)):
            try:
                self._verify(kind, model)
            except (Exception, TooSlow) as error:
                print(f"{kind}: {error!r}", flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _verify(self, kind: str, model: Any) -> None:
        given = text_inputs(model, batch=1)
        found = rg.inspection.verify(model, given)
        cells = []
        for result in found.results:
            if result.error is None:
                number = len(self.reasons) + 1
                cells.append(f"({self.reasons.setdefault(shorten(result.reason), f'{number}')})")
            else:
                mark = "" if result.status == "ok" else " **wrong**"
                cells.append(f"{result.error:.0e}".replace("e+00", "").replace("e-0", "e-") + mark)
        cells.append(check_cost(model, given))
        self.checks[kind] = f"| {kind} | {' | '.join(cells)} |"
        print(self.checks[kind], flush=True)

    def summary(self) -> str:
        """One row per mapping: how many types have each status."""
        found = {kind: row.split(" | ")[2] for kind, row in self.rows.items()}
        states = ("all", "named", "refused", "raises", "could not be run", "could not be built")
        states = [state for state in states if state in found.values()]
        lines = [f"| | types | {' | '.join(states)} |\n|---{'|---' * (len(states) + 1)}|"]
        for mapping in MAPPINGS:
            counts = Counter(found[kind] for kind in found if mapping in mappings_of(kind))
            numbers = " | ".join(str(counts[state]) for state in states)
            lines.append(f"| {mapping} | {counts.total()} | {numbers} |")
        return "\n".join(lines)

    def __str__(self) -> str:
        versions = f"transformers {transformers.__version__} and torch {torch.__version__}"
        head = "| type | mappings | layers | recorded | errors | why |\n|---|---|---|---|---|---|"
        layers = "\n".join((head, *(self.rows[kind] for kind in sorted(self.rows))))
        checks = f"| type | {' | '.join(CHECKS)} | cost |\n|---{'|---' * len(CHECKS)}|---|"
        limits = " | ".join(f"*{2e-2 if name == 'gradients' else 1e-4:.0e}*" for name in CHECKS)
        rows = [self.checks[kind] for kind in sorted(self.checks)]
        passed = sum("**" not in row for row in rows)
        return PAGE.format(
            versions=versions, summary=self.summary(), layers=layers, count=len(rows),
            passed=passed, checks="\n".join((checks, f"| *bound* | {limits} | |", *rows)),
            reasons="\n".join(f"- ({number}) {reason}" for reason, number in self.reasons.items()),
        )  # fmt: skip


def shorten(reason: str) -> str:
    """A reason without the names and sizes of one model."""
    if "needs a call too" in reason:
        return "name: needs a call too, as the blocks run several times"
    reason = re.sub(r" in \w+(Model|LM)$|: The size of .*| \(relative error.*", "", reason)
    reason = re.sub(r"got (an? )?[\w.]+ (whose|that|without)", r"got one \2", reason)
    reason = re.sub(r"'?\b(encoder|decoder)(\.\d+)?(\.\w+)*\b'?", "it", reason)
    reason = re.sub(r"\([\d, ]+\)", "one shape", reason, count=1)
    reason = re.sub(r"\([\d, ]+\)", "another", reason)
    reason = re.sub(r"block \d+", "a block", reason)
    reason = re.sub(r"\b(got|state,|one of|batch of) \d[\d.e-]*", r"\1 another", reason)
    return " ".join(reason.split())


def stop(*_: object) -> None:
    raise TooSlow(f"needs more than {SECONDS} s")


def main(kinds: list[str]) -> None:
    """Write the page; print that of some types."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    signal.signal(signal.SIGPROF, stop)
    layers_only = "--layers" in kinds
    page = Page(PAGE_FILE.read_text() if kinds else "")
    for kind in [kind for kind in kinds if kind != "--layers"] or all_kinds():
        page.add(kind, layers_only)
        PAGE_FILE.write_text(f"{page}")


if __name__ == "__main__":
    main(sys.argv[1:])
