"""Checks of every look, edit and attribution on one model, against brute force.

Each check computes the same numbers twice; `verify` runs all, and reports the largest error.
"""

import glob
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.errors import LookError, RegardError
from regard.inspection.adapters.activation_points import find_activations
from regard.inspection.adapters.model_calls import get_output, run_model
from regard.inspection.adapters.module_tracker import check_eval_mode, uncompiled_modules
from regard.inspection.attribution.logits import logit_attribution, logit_lens
from regard.inspection.attribution.score_split import split_score
from regard.inspection.edits.activations import add_to_activation, set_activation
from regard.inspection.edits.mixers import drop_write
from regard.inspection.edits.weights import drop_head
from regard.inspection.edits.what_if import what_if
from regard.inspection.gradients import activation_gradients
from regard.inspection.patching.sweep import map_inputs, sweep
from regard.inspection.record.eager_maps import eager_maps
from regard.inspection.record.look import look
from regard.inspection.record.mixer_check import compare_mixer
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site
from regard.models.ngram import NgramMixture
from regard.tables import text_table

ROWS = 4  # attentions that are checked one by one
MAX_KEYS = 512
DIFFERENCE_BOUND = 2e-2  # of a finite difference, whose error is larger
# of finite differences: past a kink, such as of BLT's maxima over the bytes of a patch, or where a
# norm divides by little, only a short one is straight; rounding is the most of a shorter one
STEPS = (1e-2, 1e-3, 1e-4)


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, inputs for it, and one look that all checks share."""

    model: nn.Module
    inputs: Any
    sight: Sight
    logits: Tensor  # of a run without any look

    @property
    def sites(self) -> list[Site]:
        """The recorded attentions; raises if there is none."""
        if not self.sight.sites:
            raise LookError("model: needs an attention for this, got other mixers alone")
        return self.sight.sites

    @property
    def top_two(self) -> list[int]:
        """The two largest logits of the last position of the first sequence."""
        return _last_position(self.logits).topk(2).indices.tolist()

    def metric(self, logits: Tensor) -> Tensor:
        """The difference of the two largest logits of the run."""
        first, second = _last_position(logits)[self.top_two]
        return first - second


def _last_position(logits: Tensor) -> Tensor:
    return logits[0] if logits.ndim == 2 else logits[0, -1]


# the largest error, relative to the largest number; a LookError where a model has nothing for it
Check = Callable[[Subject], float]
CHECKS: dict[str, tuple[str, Check]] = {}  # by name, with its meaning


def check(name: str, meaning: str) -> Callable[[Check], Check]:
    """Register a check."""

    def register(function: Check) -> Check:
        CHECKS[name] = meaning, function
        return function

    return register


@check("output", "logits under look against logits without")
def _output(subject: Subject) -> float:
    with look(subject.model):
        recorded = get_output(run_model(subject.model, subject.inputs))
    return _error(recorded, subject.logits)


@check("maps", "recomputed weights against the maps of eager attention")
def _maps(subject: Subject) -> float:
    maps, logits = eager_maps(subject.model, subject.inputs, subject.sites)
    if len(maps) != len(subject.sites):
        raise LookError(f"maps: needs one map per attention of eager attention, got {len(maps)}")
    if not (change := _error(logits, subject.logits)) < 1e-2:
        raise LookError(
            f"maps: needs eager attention with the output of the fused one, got {change:.1g} "
            "difference by the model's code"
        )
    errors = []
    for site, expected in zip(subject.sites, maps, strict=True):
        got = site.window()
        if expected.min() < 0 or expected.sum(-1).max() > 1.01:
            raise LookError("maps: needs weights of eager attention, got scores")  # Falcon
        if expected.shape[-1] > got.shape[-1]:
            expected = expected[..., : got.shape[-1]]  # a column of sinks
        elif site.terms.sinks is not None and expected.sum(-1).min() > 0.999:
            # Granite's maps leave the sink out
            got = got / got.sum(-1, keepdim=True)
        if expected.shape != got.shape:
            raise LookError(
                f"maps: needs maps of {tuple(got.shape)}, got {tuple(expected.shape)} of eager "
                "attention"
            )
        errors.append(float((got - expected.to(got)).abs().max()))
    return max(errors)


@check("survey", "streamed statistics against those of the whole map in float64")
def _survey(subject: Subject) -> float:
    errors = []
    for site in subject.sites:
        survey, w = site.survey(), site.window().double()
        errors += [_error(survey.peak, w.amax(-1)), _error(survey.received, w.sum(-2))]
        uniform = torch.tensor(site.keys).log()  # where all is on one key, no entropy is left
        errors.append(_error(survey.entropy, torch.special.entr(w).sum(-1), uniform))
    return max(errors)


@check("influence", "effect of removing a key against the softmax without it, in float64")
def _influence(subject: Subject) -> float:
    errors = []
    for site in subject.sites[:ROWS]:
        last = range(site.queries - 1, site.queries)
        if not 2 <= site.keys <= MAX_KEYS or site.terms.sinks is not None:
            continue
        q, k = site.q.double(), site.k.double()
        scores = site.terms.score_tile(q, k, last)[:, :, 0]  # (batch, head, key)
        hidden = torch.eye(site.keys, dtype=torch.bool, device=q.device)
        without = scores[:, :, None].expand(-1, -1, site.keys, -1).masked_fill(hidden, -torch.inf)
        v = site.v.double().repeat_interleave(site.heads // site.v.shape[1], 1)
        change = without.softmax(-1) @ v - (scores.softmax(-1)[:, :, None] @ v)
        expected = change.norm(dim=-1).nan_to_num(0).sum(-1)
        out = site.out[:, :, -1].double().norm(dim=-1)  # where values are equal, no effect is left
        errors.append(_error(site.influence().effect_on_query[..., -1], expected, out))
    if not errors:
        raise LookError(
            f"influence: needs attentions with 2 to {MAX_KEYS} keys and without sinks, got none"
        )
    return max(errors)


@check("mixers", "maps, statistics, states and edits of linear mixers against float64 recurrences")
def _mixers(subject: Subject) -> float:
    sites = [x for x in subject.sight.mixers if 2 <= x.keys <= MAX_KEYS][:ROWS]
    if not sites:
        raise LookError(f"mixers: needs linear mixers of 2 to {MAX_KEYS} tokens, got none")
    errors = []
    for site in sites:
        edit = drop_write(glob.escape(site.path), site.keys // 2)
        with look(subject.model, glob.escape(site.path)) as edited, what_if(subject.model, edit):
            run_model(subject.model, subject.inputs)
        same = next(x for x in edited.mixers if x.call == site.call)  # Zamba calls one twice
        pairs = compare_mixer(site, same, site.keys // 2)
        errors += [_error(got, expected) for got, expected in pairs]
    return max(errors)


@check("edits", "a dropped head against a hook that zeroes it before W_O")
def _edits(subject: Subject) -> float:
    points = find_activations(subject.model)
    heads = [p for name, p in points.items() if name.endswith(".self.heads")]
    paths = [points[p.name.replace(".heads", ".in")].path for p in heads]
    pairs = [
        (point, site)
        for point, path in zip(heads, paths, strict=True)
        for site in subject.sites
        if site.path == path or site.path.startswith(f"{path}.")
    ]
    if not pairs:
        raise LookError("edits: needs an output projection, got none by name")
    names = [point.name for point, _ in pairs]
    with look(subject.model, "", activations=names, max_bytes=1 << 40) as recorded:
        run_model(subject.model, subject.inputs)
    errors = []
    for point, site in pairs[:ROWS]:
        edit = drop_head(glob.escape(site.path), site.heads - 1)
        with what_if(subject.model, edit):
            edited = get_output(run_model(subject.model, subject.inputs))
        with point.module.register_forward_pre_hook(partial(_zero_last, site.heads)):
            expected = get_output(run_model(subject.model, subject.inputs))
        errors.append(_error(edited, expected))
        calls = recorded.activations.calls(point.name)
        x = site.out.transpose(1, 2)
        same = [y for y in calls if y.shape == x.shape and _error(y, x) < 1e-2]
        if errors[-1] > 1e-2 and not len(calls) == len(same) == 1:
            raise LookError(
                "edits: needs heads that reach the output projection unchanged, got a norm or "
                "another mixture between"
            )
    return max(errors)


@check("patching", "one place of a sweep against one edited run")
def _patching(subject: Subject) -> float:
    corrupt = _shuffled(subject.inputs)
    names = find_activations(subject.model)
    kind = "mlp" if any(name.endswith(".mlp.out") for name in names) else "mixer"  # Mamba
    over = f"{kind}×position"
    result = sweep(subject.model, subject.inputs, corrupt, subject.metric, over=over)
    name = f"{result.labels[0][-1]}.{kind}.out"
    with look(subject.model, "", activations=name, max_bytes=1 << 40) as clean:
        run_model(subject.model, subject.inputs)
    edit = set_activation(name, clean.activations[name], positions=result.values.shape[1] - 1)
    with what_if(subject.model, edit):
        expected = float(subject.metric(get_output(run_model(subject.model, corrupt))))
    size = max(abs(result.clean), abs(result.corrupt), 1e-6)
    return abs(float(result.values[-1, -1]) - expected) / size


@check("lens", "the logit lens after the last block against the logits")
def _lens(subject: Subject) -> float:
    lens = logit_lens(subject.model, subject.inputs).logits[-1]
    if isinstance(mixture := getattr(subject.model, "ngrams", None), NgramMixture):
        lens = mixture(lens, subject.inputs)
    return _error(lens, subject.logits if subject.logits.ndim == 3 else subject.logits[:, None])


@check("logit attribution", "the sum over heads, neurons and sources against the logit")
def _logit_attribution(subject: Subject) -> float:
    (first, second), errors = subject.top_two, []
    for by in ("head", "neuron", "source"):
        result = logit_attribution(subject.model, subject.inputs, first, against=second, by=by)
        size = max(abs(x) for x in (*result.parts.values(), result.logit))
        errors.append(abs(result.error) / size)
    return max(errors)


@check("split score", "the sum over parts of query and key against the score")
def _split_score(subject: Subject) -> float:
    at = _last_activation(subject, ".self.in", "a self-attention in blocks").removesuffix(".in")
    length = subject.sites[-1].queries
    query, key = length - 1, length // 2
    split = split_score(subject.model, subject.inputs, at, head=0, query=query, key=key)
    return abs(split.error) / max(1e-6, float(split.pairs.abs().max()))


@check("gradients", "activation gradients against a finite difference")
def _gradients(subject: Subject) -> float:
    name = _last_activation(subject, ".mlp.out", "an MLP")

    def score(model: nn.Module) -> Tensor:
        return subject.metric(get_output(run_model(model, subject.inputs)))

    result = activation_gradients(subject.model, score, name)
    gradient, size = result.gradients[name].float(), float(result.activations[name].float().norm())
    direction = size * gradient / gradient.norm().clamp(min=1e-30)
    errors = []
    for length in STEPS:
        step, values = length * direction, []
        for sign in (1.0, -1.0):
            with torch.no_grad(), what_if(subject.model, add_to_activation(name, sign * step)):
                values.append(float(score(subject.model)))
        expected = (values[0] - values[1]) / 2
        linear = float((gradient * step).sum())
        errors.append(abs(linear - expected) / max(abs(expected), 1e-6))
        if errors[-1] <= DIFFERENCE_BOUND:
            break
    return min(errors)


def _last_activation(subject: Subject, ending: str, rule: str) -> str:
    names = [n for n in find_activations(subject.model) if n.endswith(ending)]
    if not names:
        raise LookError(f"model: needs {rule}, got none by name")
    return names[-1]


def _error(got: Tensor, expected: Tensor, size_like: Tensor | None = None) -> float:
    got, expected = got.detach().double(), expected.detach().double()
    finite = got.isfinite() & expected.isfinite()
    size = expected[finite].abs().max().clamp(min=1e-30)
    size = size if size_like is None else torch.maximum(size, size_like.max())
    return float((got - expected)[finite].abs().max() / size)


def _zero_last(heads: int, module: nn.Module, args: tuple) -> tuple:
    x = args[0].clone()
    x.unflatten(-1, (heads, -1))[..., -1, :] = 0
    return (x, *args[1:])


def _shuffled(inputs: Any) -> Any:
    """Other inputs of the same kind: token ids in another order."""

    def shuffle(x: Tensor) -> Tensor:
        is_ids = not x.is_floating_point() and x.ndim == 2 and x.unique().numel() > 2
        return x.roll(1, 1) if is_ids else x

    return map_inputs(inputs, shuffle)


# largest error that counts as rounding, by the dtype of the weights
BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class CheckResult:
    """The largest relative error of one check; `reason` where it does not apply."""

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
    bound = BOUNDS.get(next(model.parameters(), torch.zeros(())).dtype, BOUNDS[torch.float32])
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
