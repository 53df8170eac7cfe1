"""Each check computes the same numbers twice, by the library and by brute force."""

import glob
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import LookError
from regard.inspection.adapters.activation_points import ActivationPoint, find_activations
from regard.inspection.adapters.model_calls import get_output, run_model
from regard.inspection.attribution.logits import logit_attribution, logit_lens
from regard.inspection.attribution.score_split import split_score
from regard.inspection.edits.activations import add_to_activation, set_activation
from regard.inspection.edits.weights import drop_head
from regard.inspection.edits.what_if import what_if
from regard.inspection.gradients import activation_gradients
from regard.inspection.patching.sweep import sweep
from regard.inspection.record.look import look
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site
from regard.ops.intercept import AttentionCall, intercepting

ROWS = 4  # attentions that are checked one by one
MAX_KEYS = 512


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, inputs for it, and one look that all checks share."""

    model: nn.Module
    inputs: Any
    sight: Sight
    logits: Tensor  # of a run without any look

    @property
    def last_logits(self) -> Tensor:
        """Logits of the last position of the first sequence, (vocab,)."""
        x = self.logits[0]
        return x[-1] if x.ndim == 2 else x

    def metric(self, logits: Tensor) -> Tensor:
        """The difference of the two largest logits of the run."""
        first, second = self.last_logits.topk(2).indices.tolist()
        x = logits[0]
        x = x[-1] if x.ndim == 2 else x
        return x[first] - x[second]


class NotApplicable(LookError):
    """A check that this model has nothing for."""


Check = Callable[[Subject], float]  # the largest error, relative to the largest number
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
        looked = get_output(run_model(subject.model, subject.inputs))
    return _error(looked, subject.logits)


@check("maps", "recomputed weights against the maps of eager attention")
def _maps(subject: Subject) -> float:
    with _eager_maps(subject) as (maps, logits):
        pairs = list(zip(subject.sight.sites, maps, strict=False))
    if len(maps) != len(subject.sight.sites):
        raise NotApplicable(
            f"maps: needs one map per attention of eager attention, got {len(maps)}"
        )
    if not (change := _error(logits, subject.logits)) < 1e-2:
        raise NotApplicable(
            f"maps: needs eager attention with the output of the fused one, got {change:.1g} "
            "difference by the model's code"
        )
    errors = []
    for site, expected in pairs:
        got = site.window()
        if expected.min() < 0 or expected.sum(-1).max() > 1.01:
            raise NotApplicable("maps: needs weights of eager attention, got scores")  # Falcon
        if expected.shape[-1] > got.shape[-1]:
            expected = expected[..., : got.shape[-1]]  # a column of sinks
        elif site.terms.sinks is not None and expected.sum(-1).min() > 0.999:
            # Granite's maps leave the sink out
            got = got / got.sum(-1, keepdim=True)
        if expected.shape != got.shape:
            raise NotApplicable(
                f"maps: needs maps of {tuple(got.shape)}, got {tuple(expected.shape)} of eager "
                "attention"
            )
        errors.append(float((got - expected.to(got)).abs().max()))
    return max(errors)


@check("survey", "streamed statistics against those of the whole map in float64")
def _survey(subject: Subject) -> float:
    return max(_survey_error(site) for site in subject.sight.sites)


def _survey_error(site: Site) -> float:
    w = site.window().double()
    survey = site.survey()
    log = torch.where(w > 0, w.clamp(min=1e-300).log(), 0.0)
    expected = {"entropy": -(w * log).sum(-1), "peak": w.amax(-1), "received": w.sum(-2)}
    values = ((name, getattr(survey, name), x) for name, x in expected.items())
    return max(_error(got, x) for _, got, x in values if got is not None)


@check("influence", "effect of removing a key against the softmax without it, in float64")
def _influence(subject: Subject) -> float:
    errors = []
    for site in subject.sight.sites[:ROWS]:
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
        raise NotApplicable(
            f"influence: needs attentions with 2 to {MAX_KEYS} keys and without sinks, got none"
        )
    return max(errors)


@check("edits", "a dropped head against a hook that zeroes it before W_O")
def _edits(subject: Subject) -> float:
    points = find_activations(subject.model)
    heads = [p for name, p in points.items() if name.endswith(".self.heads")]
    pairs = [(p, site) for p in heads for site in subject.sight.sites if _belongs(site, p, points)]
    if not pairs:
        raise NotApplicable("edits: needs an output projection, got none by name")
    names = [point.name for point, _ in pairs]
    with look(subject.model, "", activations=names, max_bytes=1 << 40) as recorded:
        run_model(subject.model, subject.inputs)
    errors = []
    for point, site in pairs[:ROWS]:
        edit = drop_head(glob.escape(site.path), site.heads - 1)
        with what_if(subject.model, edit):
            edited = get_output(run_model(subject.model, subject.inputs))
        handle = point.module.register_forward_pre_hook(_zero_last(site.heads))
        try:
            expected = get_output(run_model(subject.model, subject.inputs))
        finally:
            handle.remove()
        errors.append(_error(edited, expected))
        calls = recorded.activations.calls(point.name)
        unchanged = len(calls) == 1 and _is_same(calls[0], site.out.transpose(1, 2))
        if errors[-1] > 1e-2 and not unchanged:
            raise NotApplicable(
                "edits: needs heads that reach the output projection unchanged, got a norm or "
                "another mixture between"
            )
    return max(errors)


@check("patching", "one place of a sweep against one edited run")
def _patching(subject: Subject) -> float:
    corrupt = _shuffled(subject.inputs)
    result = sweep(subject.model, subject.inputs, corrupt, subject.metric, over="mlp×position")
    name = f"{result.labels[0][-1]}.mlp.out"
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
    return _error(lens, subject.logits if subject.logits.ndim == 3 else subject.logits[:, None])


@check("logit attribution", "the sum over heads, neurons and sources against the logit")
def _logit_attribution(subject: Subject) -> float:
    first, second = subject.last_logits.topk(2).indices.tolist()
    errors = []
    for by in ("head", "neuron", "source"):
        result = logit_attribution(subject.model, subject.inputs, first, against=second, by=by)
        size = max(abs(x) for x in (*result.parts.values(), result.logit))
        errors.append(abs(result.error) / size)
    return max(errors)


@check("split score", "the sum over parts of query and key against the score")
def _split_score(subject: Subject) -> float:
    names = [n for n in find_activations(subject.model) if n.endswith(".self.in")]
    if not names:
        raise NotApplicable("split score: needs a self-attention in blocks, got none by name")
    length = subject.sight.sites[-1].queries
    at = names[-1].removesuffix(".in")
    split = split_score(
        subject.model, subject.inputs, at, head=0, query=length - 1, key=length // 2
    )
    return abs(split.error) / max(1e-6, float(split.pairs.abs().max()))


@check("gradients", "activation gradients against a finite difference")
def _gradients(subject: Subject) -> float:
    names = [n for n in find_activations(subject.model) if n.endswith(".mlp.out")]
    if not names:
        raise NotApplicable("gradients: needs an MLP, got none by name")
    name = names[-1]

    def score(model: nn.Module) -> Tensor:
        return subject.metric(get_output(run_model(model, subject.inputs)))

    result = activation_gradients(subject.model, score, name)
    gradient, size = result.gradients[name].float(), float(result.activations[name].float().norm())
    step = 1e-2 * size * gradient / gradient.norm().clamp(min=1e-30)
    values = []
    for sign in (1.0, -1.0):
        with torch.no_grad(), what_if(subject.model, add_to_activation(name, sign * step)):
            values.append(float(score(subject.model)))
    expected = (values[0] - values[1]) / 2
    return abs(float((gradient * step).sum()) - expected) / max(abs(expected), 1e-6)


def _error(got: Tensor, expected: Tensor, size_like: Tensor | None = None) -> float:
    got, expected = got.detach().double(), expected.detach().double()
    finite = got.isfinite() & expected.isfinite()
    size = expected[finite].abs().max().clamp(min=1e-30)
    size = size if size_like is None else torch.maximum(size, size_like.max())
    return float((got - expected)[finite].abs().max() / size)


def _is_same(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and _error(x, y) < 1e-2


def _belongs(site: Site, point: ActivationPoint, points: dict[str, ActivationPoint]) -> bool:
    inside = points[point.name.replace(".heads", ".in")].path
    return site.path == inside or site.path.startswith(f"{inside}.")


def _zero_last(heads: int) -> Callable[[nn.Module, tuple], tuple]:
    def zero(module: nn.Module, args: tuple) -> tuple:
        x = args[0].clone()
        x.unflatten(-1, (heads, -1))[..., -1, :] = 0
        return (x, *args[1:])

    return zero


def _shuffled(inputs: Any) -> Any:
    """Other inputs of the same kind: token ids in another order."""

    def shuffle(x: Any) -> Any:
        is_ids = isinstance(x, Tensor) and not x.is_floating_point() and x.ndim == 2
        return x.roll(1, 1) if is_ids and x.unique().numel() > 2 else x

    if isinstance(inputs, dict):
        return {name: shuffle(x) for name, x in inputs.items()}
    return shuffle(inputs) if isinstance(inputs, Tensor) else tuple(shuffle(x) for x in inputs)


@contextmanager
def _eager_maps(subject: Subject) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Maps and output of the model's eager attention; for our models, softmax in float64."""
    model = subject.model
    if hasattr(model, "set_attn_implementation") and isinstance(subject.inputs, dict):
        before = model.config._attn_implementation  # pyright: ignore
        model.set_attn_implementation("eager")  # pyright: ignore
        try:
            out = model(**subject.inputs, output_attentions=True)
        finally:
            model.set_attn_implementation(before)  # pyright: ignore
        names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
        maps = {
            name: [x for x in getattr(out, name, None) or () if isinstance(x, Tensor)]
            for name in names
        }
        yield _in_order(subject.sight.sites, maps), get_output(out)
        return
    maps_of_calls: list[Tensor] = []

    def collect(call: AttentionCall, proceed: Any) -> Any:
        scores = call.terms.score_tile(call.q.double(), call.k.double())
        maps_of_calls.append(scores.softmax(-1).nan_to_num(0))
        return proceed(call)

    with intercepting(collect):
        out = run_model(model, subject.inputs)
    yield maps_of_calls, get_output(out)


def _in_order(sites: list[Site], maps: dict[str, list[Tensor]]) -> list[Tensor]:
    """The maps in the order of the sites."""
    if maps["attentions"]:
        return maps["attentions"]
    ordered = []
    left = {name: iter(x) for name, x in maps.items()}
    for site in sites:
        side = (
            "encoder"
            if "encoder" in site.path.split(".layers")[0].split(".block")[0]
            else "decoder"
        )
        name = "cross_attentions" if site.kind == "cross" else f"{side}_attentions"
        if (x := next(left[name], None)) is not None:
            ordered.append(x)
    return ordered
