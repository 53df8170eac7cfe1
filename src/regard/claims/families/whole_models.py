"""Claims about whole models and about reading them."""

from collections import Counter

import torch
from torch import Tensor

import regard as rg
from regard.claims.charts import Bars, Lines, Maps, Points
from regard.claims.claim import Evidence, Measure, Trial, claim
from regard.claims.measurements import outputs_of
from regard.models import LanguageModel, Translator, language_tiny, translator_tiny

VOCAB = 20


@claim("M2", source="exam", verdict="conditional")
def weights_explain(trial: Trial) -> Evidence:
    """Attention weights explain what the model does.

    Condition: An intervention confirms it: other weights can give the same output.
    Refutation: no second weighting with the same output, or removals that follow the weights
    """

    def draw() -> dict[str, Tensor]:
        values, weights = trial.normal(6, 3), trial.normal(6).softmax(0)
        # 6 weights, 4 equations: a direction that keeps the sum of the weights and the output
        system = torch.cat([values.mT, torch.ones(1, 6, dtype=torch.float64)])
        direction = torch.linalg.svd(system).Vh[-1]
        limits = torch.where(direction < 0, -weights / direction, torch.inf)
        change = 0.99 * limits.min() * direction
        return {"distance": change.abs().sum() / 2, "same": (change @ values).abs().max()}

    distances, same = trial.repeat(50, draw).values()
    distance = Measure.mean("distance", distances)
    q, k, v = trial.normal(8, 4), trial.normal(12, 4), trial.normal(12, 4)
    effect = rg.ops.influence_window(q, k, v, *rg.attend(q, k, v)).flatten()
    weight = rg.ops.attention_weights(q, k).flatten()
    top = weight > weight.median()
    correlation = torch.corrcoef(torch.stack([weight[top], effect[top]]))[0, 1]
    axes = "attention weight", "change of the output without the key"
    return Evidence(
        holds=distance.below(0.01) or correlation > 0.99,
        holds_if=distance.above(0.05) and same.max() < 1e-12 and correlation > 0.3,
        measures={
            "total variation between two weightings of the same output": distance,
            "largest difference of their outputs": same.max(),
            "correlation of weight and effect of removing the key": correlation,
        },
        chart=Points({"key of a query": (weight, effect)}, *axes),
    )


@claim("M3", source="exercises", verdict="true")
def encoder_is_independent(trial: Trial) -> Evidence:
    """The encoder of a translator does not depend on the decoder.

    Remark: In the forward pass; in training its gradient comes through the decoder.
    Refutation: an encoding that changes with the target
    """
    model, source, target = _translation(trial)

    def encode(source: Tensor, target: Tensor) -> Tensor:
        return outputs_of(model.encoder, lambda: model(source, target))[0].detach()

    before = encode(source, target)

    def change(source: Tensor, target: Tensor) -> Tensor:
        return (encode(source, target) - before).abs().max()

    changes = {
        "a target token": [change(source, _other(target, n)) for n in range(5)],
        "a source token": [change(_other(source, n), target) for n in range(5)],
    }
    loss = model(source, target).square().sum()
    gradient = torch.autograd.grad(loss, list(model.encoder.parameters()))
    norm = torch.stack([g.norm() for g in gradient]).norm()
    by_target, by_source = changes.values()
    bars = {f"position {n + 1}": {k: v[n] for k, v in changes.items()} for n in range(5)}
    largest = {f"largest change of the encoding by {k}": max(v) for k, v in changes.items()}
    return Evidence(
        holds=max(by_target) == 0 and min(by_source) > 1e-6 and norm > 0,
        measures=largest | {"norm of the encoder's gradient from the decoder's loss": norm},
        chart=Bars(bars, "change of the encoding"),
    )


@claim("M4", source="exercises", verdict="true")
def decoder_reads_all(trial: Trial) -> Evidence:
    """Every output of the decoder depends on all of the source.

    Refutation: a source token whose change leaves some output as it was
    """
    model, source, target = _translation(trial)
    before = model(source, target)
    others = [model(_other(source, n), target) for n in range(source.shape[1])]
    change = torch.stack([(x - before).abs().amax(-1)[0] for x in others], 1)
    return Evidence(
        holds=change.min() > 1e-6,
        measures={"smallest change of an output by a source token": change.min()},
        chart=Maps({"change": change}, "source token", "output"),
    )


@claim("M5", source="exercises", verdict="conditional")
def second_language(trial: Trial) -> Evidence:
    """Translating into a second language costs O(N² k + M N k) more.

    Condition: The encoding is shared, and projections, feed-forward and vocabulary are added.
    Refutation: attention maps that make up most of the decoder at ordinary lengths
    """
    model = Translator(translator_tiny(vocab=1000, dim=256, heads=4, decoder_layers=2))
    costs = {n: rg.costs.shared_encoding_cost(model, n, n, languages=2) for n in (30, 512, 2048)}
    # 2 layers: self- and cross-attention
    shares = {n: 8 * n * n * 256 / cost.decoder_multiply_adds for n, cost in costs.items()}
    cost, curves = costs[30], {"share of the decoder's cost": list(shares.values())}
    return Evidence(
        holds=shares[30] > 0.5,
        holds_if=shares[30] < 0.1 < shares[2048]
        and cost.shared_total < cost.separate_total
        and cost.shared_total - cost.encoder_multiply_adds == 2 * cost.decoder_multiply_adds,
        measures={
            **{f"share of N² k + M N k in the decoder, M = N = {n}": x for n, x in shares.items()},
            "saved by one encoding for two languages, M = N = 30": cost.saving,
        },
        chart=Lines(list(shares), curves, "M = N", log="x"),
    )


@claim("M6", source="problem set", verdict="false")
def transformers_are_recurrent(trial: Trial) -> Evidence:
    """A standard Transformer is recurrent in some cases.

    Correction: It never is: within a pass no layer reads its own output.
    Refutation: a module of a standard model that runs twice in a pass, on its own output
    """
    model = trial.build(lambda: LanguageModel(language_tiny(vocab=VOCAB, layers=4)))
    shared = trial.build(lambda: rg.nn.RecurrentCell(8, 8, "rnn"))
    kinds = rg.nn.EncoderBlock | rg.nn.DecoderBlock
    blocks, tokens = (
        [x for x in model.modules() if isinstance(x, kinds)],
        trial.integers(VOCAB, 1, 12),
    )
    calls = [len(outputs_of(block, lambda: model(tokens))) for block in blocks]
    state, steps = None, 0
    for x in trial.normal(12, 8):  # what recurrence is: one cell, its output as its next input
        state, steps = shared(x, state).state, steps + 1
    bars = {f"block {n + 1}": c for n, c in enumerate(calls)} | {"RNN cell": steps}
    return Evidence(
        holds=max(calls) > 1,
        corrected=calls == [1] * 4 and steps == 12,
        measures={"calls in one pass over 12 tokens": bars},
    )


@claim("M7", source="problem set", verdict="false")
def state_is_own_value(trial: Trial) -> Evidence:
    """A state of a Transformer is the token's own value vector plus context.

    Correction: It is the residual input plus a mixture of all values, the token's own among them.
    Refutation: an output that equals the own value plus the mixture of the other values
    """
    block = trial.build(lambda: rg.nn.EncoderBlock(16, 2, norm_first=True))
    x = trial.normal(1, 6, 16)
    attention = block.self_attention
    normed = block.self_residual.norm(x)
    mixed, itself = attention(normed), attention.to_out(attention.to_v(normed))
    state = _after_attention(block, x)
    literal, corrected = ((state - (y + mixed)).abs().max() for y in (itself, x))
    errors = {"own value + context": literal, "residual + mixture": corrected}
    return Evidence(
        holds=literal < 1e-6,
        corrected=corrected < 1e-12,
        measures={"largest difference": errors},
        chart=Bars(errors, "largest difference", log="y"),
    )


@claim("M8", source="problem set", verdict="false")
def only_mlps_stack(trial: Trial) -> Evidence:
    """Only MLPs compute states from the states of the layer before.

    Correction: So does every layer of a stacked Transformer.
    Refutation: a layer whose output does not change with the output of the layer before
    """
    model = trial.build(lambda: LanguageModel(language_tiny(vocab=VOCAB, layers=4)))
    tokens = trial.integers(VOCAB, 1, 8)
    before = _block_outputs(model, tokens)
    noise = trial.normal(*before[0].shape)
    with rg.what_if(model, rg.edit.add_to_activation("decoder.0.residual_out", noise)):
        after = _block_outputs(model, tokens)
    changes = [(b - a).norm() for a, b in zip(before, after, strict=True)][1:]
    bars = {f"block {n}": c for n, c in enumerate(changes, 2)}
    return Evidence(
        holds=max(changes) == 0,
        corrected=min(changes) > 0.1,
        measures={"change after editing block 1": bars},
    )


@claim("M10", source="problem set", verdict="false")
def scores_are_weights(trial: Trial) -> Evidence:
    """A row of Q Kᵀ holds the attention weights of a token.

    Correction: It holds scores; the weights are its softmax, and the token itself is among them.
    Refutation: rows of Q Kᵀ that are non-negative and sum to 1
    """
    q, k = trial.normal(5, 4), trial.normal(5, 4)
    maps = {"Q Kᵀ": rg.ops.dot(q, k), "weights": rg.ops.attention_weights(q, k, scale=1.0)}
    scores, weights = maps.values()
    sums, error = scores.sum(-1), (weights.sum(-1) - 1).abs().max()
    return Evidence(
        holds=(scores >= 0).all() and (sums - 1).abs().max() < 1e-9,
        corrected=(weights >= 0).all()
        and error < 1e-9
        and (scores.softmax(-1) - weights).abs().max() < 1e-12,
        measures={
            "smallest sum of a row of Q Kᵀ": sums.min(),
            "largest": sums.max(),
            "largest |sum − 1| of the weights": error,
        },
        chart=Maps(maps),
    )


@claim("M11", source="problem set", verdict="true")
def kinds_of_attention(trial: Trial) -> Evidence:
    """An encoder has self-attention only; a decoder has masked self- and cross-attention.

    Remark: In the model of 2017; a decoder-only model has no cross-attention.
    Refutation: another set of attentions recorded in a translator
    """
    model, source, target = _translation(trial)
    with torch.no_grad(), rg.look(model) as sight:
        model(source, target)
    kinds = Counter()
    for site in sight.sites:
        stack, _, kind = site.name.split(".")
        masked = "masked " if isinstance(site.terms.mask, rg.Causal) else ""
        kinds[f"{stack}, {masked}{kind}"] += 1
    language = LanguageModel(language_tiny(vocab=VOCAB)).eval()
    with torch.no_grad(), rg.look(language) as other:
        language(source)
    crossing = sum(site.name.endswith("cross") for site in other.sites)
    return Evidence(
        holds=set(kinds) == {"encoder, self", "decoder, masked self", "decoder, cross"},
        measures={"layers": kinds, "cross-attentions of a language model": crossing},
    )


def _translation(trial: Trial) -> tuple[Translator, Tensor, Tensor]:
    model = trial.build(lambda: Translator(translator_tiny(vocab=VOCAB))).requires_grad_()
    return model, trial.integers(VOCAB, 1, 7), trial.integers(VOCAB, 1, 5)


def _other(tokens: Tensor, position: int) -> Tensor:
    """The tokens, with another one at a position."""
    tokens = tokens.clone()
    tokens[0, position] = (tokens[0, position] + 1) % VOCAB
    return tokens


def _block_outputs(model: LanguageModel, tokens: Tensor) -> list[Tensor]:
    names = [f"decoder.{n}.residual_out" for n in range(model.config.layers)]
    with torch.no_grad(), rg.look(model, activations=names) as sight:
        model(tokens)
    return [sight.activations[name] for name in names]


def _after_attention(block: rg.nn.EncoderBlock, x: Tensor) -> Tensor:
    """The residual stream between attention and feed-forward."""
    inputs, residual = [], block.feed_forward_residual
    with residual.register_forward_pre_hook(lambda _, args: inputs.append(args[0])):
        block(x)
    return inputs[0]
