"""Logit lens, and direct logit attribution: which parts of the model made a prediction."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import LookError, check_choice
from regard.inspection.adapters.block_layout import is_linear, linear_matrix
from regard.inspection.adapters.model_calls import get_logits, run_model
from regard.inspection.attribution.residual_parts import (
    By,
    ResidualStream,
    freeze_norm,
    record_stream,
)
from regard.inspection.edits.activations import set_activation
from regard.inspection.edits.what_if import what_if
from regard.nn import Readout
from regard.ops.indices import resolve_index
from regard.ops.packed_linear import linear
from regard.tables import text_table

IdToToken = Callable[[int], str]
MAX_SHOWN_PARTS = 16


@dataclass(frozen=True, eq=False, repr=False)
class LogitLens:
    """What a model would predict if it stopped after each block.

    `logits[l]` are those of the residual stream before block l, through the final norm and head;
    the last ones are those of the model.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=2)).eval()
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> lens = rg.inspection.logit_lens(model, tokens)
    >>> lens.logits.shape, torch.allclose(lens.logits[-1], model(tokens), atol=1e-5)
    (torch.Size([3, 1, 3, 9]), True)
    """

    logits: Float[Tensor, "depth batch position vocab"]
    id_to_token: IdToToken | None = None

    def probability(self, token: int) -> Float[Tensor, "depth batch position"]:
        """The probability of a token after each block."""
        return self.logits.float().softmax(-1)[..., token]

    def rank(self, token: int) -> Float[Tensor, "depth batch position"]:
        """How many tokens are more likely, after each block."""
        return (self.logits > self.logits[..., token, None]).sum(-1).float()

    def kl(self) -> Float[Tensor, "depth batch position"]:
        """KL divergence of the final prediction from that after each block, in nats."""
        log_p = self.logits.float().log_softmax(-1)
        return (log_p[-1].exp() * (log_p[-1] - log_p)).sum(-1)

    def top(
        self, count: int = 5, *, batch: int = 0, position: int = -1
    ) -> list[list[tuple[Any, float]]]:
        """The most likely tokens and their probabilities after each block."""
        p = self.logits[:, batch, position].float().softmax(-1)
        p, ids = p.topk(min(count, p.shape[-1]))
        show = self.id_to_token or (lambda token: token)
        return [
            [(show(i), round(x, 4)) for i, x in zip(*row, strict=True)]
            for row in zip(ids.tolist(), p.tolist(), strict=True)
        ]

    def __repr__(self) -> str:
        names = ["embedding", *(f"block {i}" for i in range(len(self.logits) - 1))]
        tops = ("  ".join(f"{t!r} {p:.3f}" for t, p in row) for row in self.top(3))
        kls = (f"{kl:.3f}" for kl in self.kl()[:, 0, -1].tolist())
        columns = ("after", "most likely at the last position", "KL to the final prediction")
        return text_table(columns, zip(names, tops, kls, strict=True))


def logit_lens(
    model: nn.Module,
    inputs: Any,
    *,
    positions: Sequence[int] | None = None,
    stack: str | None = None,
    id_to_token: IdToToken | None = None,
) -> LogitLens:
    """The predictions of a model after each of its blocks (nostalgebraist 2020).

    logits_l = W norm(x_l),   x_l the residual stream before block l, norm the model's final one

    A head that is not W norm(x), such as BERT's, is run by the model itself, once per block.

    Args:
        model: A language model, ours or of transformers, in eval mode.
        inputs: What the model is called with: a tensor, a tuple of arguments or a mapping.
        positions: Positions whose logits are returned; all by default.
        stack: "encoder" or "decoder"; the last stack by default.
        id_to_token: Converts a token id to text, for printing.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=2)).eval()
    >>> lens = logit_lens(model, torch.tensor([[1, 2, 3]]), positions=[-1])
    >>> lens.kl()[-1]  # the last state gives the final prediction
    tensor([[0.]])
    """
    stream = record_stream(model, inputs, stack=stack, skip={"in", "out", "heads", "hidden"})
    states = [stream.state(depth) for depth in range(stream.depth + 1)]

    def choose(length: int) -> list[int]:
        given = range(length) if positions is None else positions
        # a model with one prediction per input has one position
        return [resolve_index("positions", p, length) for p in given] if length > 1 else [0]

    try:
        head = find_unembedding(stream)
    except LookError:  # the model's head, from the replaced state of its last block
        last = f"{stream.stack}.{stream.depth - 1}.residual_out"
        outputs = []
        for x in states:
            with torch.no_grad(), what_if(model, set_activation(last, x)):
                logits = get_logits(run_model(model, inputs))
            outputs.append(logits if logits.ndim == 3 else logits[:, None])  # one per input
        logits = torch.stack(outputs)
        return LogitLens(logits[:, :, choose(logits.shape[2])], id_to_token)
    chosen = choose(states[0].shape[1])
    batch = len(states[0])
    logits = head.logits(torch.cat([x[:, chosen] for x in states]))  # one product for all depths
    return LogitLens(logits.unflatten(0, (len(states), batch)), id_to_token)


@dataclass(frozen=True, eq=False, repr=False)
class LogitAttribution:
    """What each part of a model adds to a logit, or to a difference of two.

    logit = Σ parts + constant (of the biases of final norm and head), exactly: `error` is the
    difference by rounding

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=2)).eval()
    >>> result = rg.inspection.logit_attribution(model, torch.tensor([[1, 2, 3]]), 4, by="head")
    >>> abs(result.error) < 1e-4, [name for name in result.parts][:3]
    (True, ['embedding', 'decoder.0.self head 0', 'decoder.0.self head 1'])
    """

    logit: float
    parts: dict[str, float]
    constant: float

    @property
    def error(self) -> float:
        """The logit minus the sum of all parts."""
        return self.logit - sum(self.parts.values()) - self.constant

    def top(self, count: int = 10) -> list[tuple[str, float]]:
        """The parts with the largest absolute value, in descending order."""
        return sorted(self.parts.items(), key=lambda pair: -abs(pair[1]))[:count]

    def __repr__(self) -> str:
        shown, more = self.top(MAX_SHOWN_PARTS), len(self.parts) - MAX_SHOWN_PARTS
        if more > 0:
            rest = sum(self.parts.values()) - sum(value for _, value in shown)
            shown.append((f"{more} others", rest))
        shown += [("constant", self.constant), ("logit", self.logit)]
        rows = ((name, f"{value:+.4f}") for name, value in shown)
        return text_table(("part", "logit"), rows, right=["logit"])


@torch.no_grad()
def logit_attribution(
    model: nn.Module, inputs: Any, token: int, *, against: int | None = None, position: int = -1,
    batch: int = 0, by: By | Literal["neuron", "source"] = "part", stack: str | None = None,
) -> LogitAttribution:  # fmt: skip
    """Direct logit attribution: the logit of a token as a sum over the parts of the model.

    x_L = embedding + Σ parts,   logit = u · norm(x_L) = Σ a · part + constant

    a is the token's row of the unembedding, taken back through the final norm with its scale held
    fixed. What a part does through later parts counts as theirs. Where the model bounds its logits
    (softcap), the logit before the bound is split.

    Args:
        model: A language model, ours or of transformers, in eval mode.
        inputs: What the model is called with: a tensor, a tuple of arguments or a mapping.
        token: Id of the token whose logit is split.
        against: Id of a second token: the difference of both logits is split.
        position: Position of the prediction.
        batch: Sequence of the batch.
        by: "part" has one entry per attention and MLP, "head" one per head, "neuron" one per
            neuron, "source" one per attended position of each head.
        stack: "encoder" or "decoder"; the last stack by default.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=2)).eval()
    >>> result = logit_attribution(model, torch.tensor([[1, 2, 3]]), token=4, against=5)
    >>> list(result.parts)
    ['embedding', 'decoder.0.self', 'decoder.0.mlp', 'decoder.1.self', 'decoder.1.mlp']
    """
    check_choice("by", by, ("part", "head", "neuron", "source"), LookError)
    read = {"head": "heads", "source": "heads", "neuron": "hidden"}.get(by, "")
    skip = {"heads", "hidden"} - {read}
    at, only = "*" if by == "source" else "", (batch, position)
    stream = record_stream(model, inputs, stack=stack, at=at, only=only, skip=skip)
    end = stream.state(stream.depth)
    head = find_unembedding(stream)
    token = resolve_index("token", token, len(head.weight))
    against = None if against is None else resolve_index("against", against, len(head.weight))
    direction, constant = head.freeze(end[0, 0], token, against)
    first = stream.carried(0, stream.depth) * stream.state(0)[0, 0].to(direction)
    names, values = ["embedding"], [(first @ direction)[None]]
    if by == "source":
        pieces = _by_source(stream, batch, position, direction)
    else:
        pieces = _by_input(stream, by, read, direction)
    for labels, x in pieces:
        names += labels
        values.append(x)
    # one transfer for all parts
    parts = dict(zip(names, torch.cat(values).tolist(), strict=True))
    # the logit before a bound
    x = stream.logits if head.softcap is None else replace(head, softcap=None).logits(end)
    logit = x[0, 0, token] - (0.0 if against is None else x[0, 0, against])
    return LogitAttribution(float(logit), parts, float(constant))


Labelled = Iterator[tuple[list[str], Tensor]]


def _by_input(stream: ResidualStream, by: str, read: str, direction: Tensor) -> Labelled:
    """Parts by head or neuron: x_n · (w_n · direction), for all blocks at once.

    `read` names what the last matrix of a part reads, (head, value) or (neuron,).
    """
    parts = dict(stream.parts(stream.depth))
    del parts["embedding"]
    totals = torch.cat([*parts.values()]).flatten(1).to(direction) @ direction
    values_of = dict(zip(parts, totals.split(1), strict=True))
    inputs = {name: stream.activations.get(f"{name}.{read}") for name in parts}
    inputs = {name: x for name, x in inputs.items() if x is not None}
    for shape in {x.shape for x in inputs.values()}:  # one in most models
        same = [name for name, x in inputs.items() if x.shape == shape]
        x = torch.cat([inputs[name] for name in same])[:, 0].to(direction)
        back = [_back_to_input(stream, name, read, direction) for name in same]
        values = torch.stack(back).view_as(x) * x
        values = values.sum(-1) if by == "head" else values
        rest = torch.cat([values_of[name] for name in same]) - values.sum(1)
        values_of |= zip(same, torch.cat([values, rest[:, None]], 1).unbind(), strict=True)
    for name, x in values_of.items():
        labels = [f"{name} {by} {n}" for n in range(len(x) - 1)] if name in inputs else []
        yield [*labels, f"{name} bias" if labels else name], x


def _by_source(stream: ResidualStream, batch: int, position: int, direction: Tensor) -> Labelled:
    """Parts by head and attended position: w_ij (v_j W_O) · direction."""
    for name, out in itertools.islice(stream.parts(stream.depth), 1, None):  # without the embedding
        total, heads = out[0, 0].to(direction) @ direction, f"{name}.heads"
        site = stream.site(name)
        if site is None or heads not in stream.activations:
            yield [name], total[None]
            continue
        back = _back_to_input(stream, name, "heads", direction)
        by_head = back.unflatten(0, stream.activations[heads].shape[-2:])
        row = resolve_index("position", position, site.queries)
        w = site.window(rows=slice(row, row + 1))[batch, :, 0].to(direction)
        v = site.v[batch].to(direction).repeat_interleave(site.heads // site.v.shape[1], 0)
        values = w * torch.einsum("hjv,hv->hj", v, by_head)
        labels = [
            f"{name} head {h} from {j}" for h, j in itertools.product(*map(range, values.shape))
        ]
        rest = total - values.sum()
        yield [*labels, f"{name} bias"], torch.cat([values.flatten(), rest[None]])


def _back_to_input(stream: ResidualStream, name: str, read: str, direction: Tensor) -> Tensor:
    """The direction before the last matrix of a part, and before a norm behind it."""
    post = stream.post_norm(name)
    direction = direction if post is None else post.at(0, 0).pull_back(direction)
    back = stream.writer_weight(f"{name}.{read}").to(direction) @ direction
    factor = stream.factor(name)
    return back if factor == 1 else factor * back


TOLERANCE = 1e-3  # of the reproduced logits, relative; half precision 3e-2
SOFTCAPS = ("final_logit_softcapping", "output_softcap", "logits_soft_cap")
SOFTCAPS += ("output_logit_soft_cap",)
MAX_CHECKED = 64  # positions at which the head is compared with the model's logits


@dataclass(frozen=True, eq=False)
class Unembedding:
    """logits = softcap(factor · W norm(x) + bias) of one model.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=1)).eval()
    >>> stream = rg.inspection.record_stream(model, torch.tensor([[1, 2, 3]]))
    >>> head = find_unembedding(stream)
    >>> torch.allclose(head.logits(stream.state(1)), stream.logits, atol=1e-5)
    True
    """

    norm: nn.Module | None
    weight: Tensor  # (vocab, dim)
    bias: Tensor | None
    factor: float = 1.0
    softcap: float | None = None

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """The logits of a state of the residual stream (the logit lens)."""
        y = x if self.norm is None else self.norm(x.to(self.weight.dtype))
        out = linear(y.to(self.weight.dtype).flatten(0, -2), self.weight).view(*y.shape[:-1], -1)
        out = out if self.factor == 1 else out.mul_(self.factor)  # in place: as large as can be
        out = out if self.bias is None else out.add_(self.bias)
        return out if self.softcap is None else self.softcap * torch.tanh(out / self.softcap)

    def freeze(self, x: Tensor, token: int, against: int | None) -> tuple[Tensor, Tensor]:
        """Direction and constant of a logit, or a difference of two, without the softcap.

        direction · part is the logit of a part of x, the norm's scale held fixed; the constant is
        what the biases of norm and head add.
        """

        def difference(x: Tensor) -> Tensor:
            rows = x[[token] if against is None else [token, against]]
            rows = rows if x.dtype == torch.float64 else rows.float()
            return rows[0] if against is None else rows[0] - rows[1]

        u = self.factor * difference(self.weight)
        constant = u.new_zeros(()) if self.bias is None else difference(self.bias)
        if self.norm is None:
            return u, constant
        norm = freeze_norm(self.norm, x)
        return norm.pull_back(u), constant + u @ norm.bias


def find_unembedding(stream: ResidualStream) -> Unembedding:
    """The final norm and head of the model, checked against the logits of the recorded run."""
    model = stream.model
    point = stream.points.get(f"{stream.stack}.final_norm")
    norm = None if point is None or point.name not in stream.activations else point.module
    end, logits = stream.state(stream.depth), stream.logits.detach()
    if end.ndim != 3:
        raise LookError(
            "model: needs one residual stream to be split into parts, got states "
            f"{tuple(end.shape[2:])} of parallel streams per token"
        )
    if end.shape[:-1] == logits.shape[:-1]:  # a check of all would cost as much as the head
        step = max(1, -(-end.shape[1] // MAX_CHECKED))
        end, logits = end[:, ::step], logits[:, ::step]
    logits = logits.float()
    weight, bias = _head(model, end)
    config = getattr(model, "config", None)
    softcap = next((value for name in SOFTCAPS if (value := getattr(config, name, None))), None)
    if weight.shape[1] != end.shape[-1]:
        raise LookError(
            f"model: needs a head as wide as its last state, {end.shape[-1]}, got one of "
            f"{weight.shape[1]}"
        )
    allowed = 3e-2 if weight.dtype in (torch.float16, torch.bfloat16) else TOLERANCE
    errors = []
    for final in (norm, None):
        head = Unembedding(final, weight, bias, 1.0, softcap)
        lens = head.logits(end).float()
        if lens.shape != logits.shape:
            continue
        if softcap is None and bias is None:  # Cohere, Granite and T5 scale their logits
            factor = float((lens * logits).sum() / lens.square().sum())
            factor = 1.0 if abs(factor - 1) < 1e-5 else factor
            head, lens = replace(head, factor=factor), factor * lens
        errors.append(float((lens - logits).abs().max() / logits.abs().max().clamp(min=1e-30)))
        if errors[-1] < allowed:
            return head
    size = f" (relative error {min(errors):.2g})" if errors else ""
    raise LookError(
        f"model: needs logits that are W norm(x) of its last state, got a {type(model).__name__} "
        f"whose head computes something else{size}"
    )


def _head(model: nn.Module, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the head."""
    readout = getattr(model, "readout", None)
    if isinstance(readout, Readout):
        name = "embedding" if hasattr(model, "embedding") else "target_embedding"
        tied = getattr(model, name).token_embeddings
        return (tied if readout.weight is None else readout.weight), readout.bias
    get: Callable[[], nn.Module | None] = getattr(model, "get_output_embeddings", lambda: None)
    head = get() or getattr(model, "head", None) or getattr(model, "classifier", None)
    if not isinstance(head, nn.Module) or not (is_linear(head) or isinstance(head, nn.Embedding)):
        raise LookError(
            f"model: needs a linear head over a vocabulary, got {type(model).__name__} without; "
            "try the model class with a language-modelling head"
        )
    return linear_matrix(head, like).mT, getattr(head, "bias", None)
