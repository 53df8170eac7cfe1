"""Claims about recurrent networks in which each state attends to earlier ones."""

from graphlib import CycleError, TopologicalSorter

import torch

import regard as rg
from regard.claims.charts import Lines, Maps
from regard.claims.claim import Evidence, Measure, Trial, claim
from regard.claims.measurements import graph_depth, jacobian
from regard.claims.recall import parity_study, recall_study

HIDDEN = 16


@claim("J1", source="exercises", verdict="false")
def circular_definition(trial: Trial) -> Evidence:
    """The context a_t is computed from scores of h_t, and h_t from a_t.

    Correction: That is circular: the query is the state before a_t is added, or h_{t−1}.
    Refutation: an order of evaluation of the equations as written
    """
    written = {"h": {"state", "a"}, "a": {"scores"}, "scores": {"h", "past"}}
    orders = [_has_order(x) for x in (written, written | {"scores": {"state", "past"}})]
    layer = rg.nn.AttentiveRecurrent(4, HIDDEN, kind="rnn", combine="sum").double()
    x = trial.normal(1, 8, 4)
    changed = x.clone()
    changed[:, -1] += 1
    moved = (layer(changed)[0] - layer(x)[0]).abs().amax((0, 2))[:-1].max()
    return Evidence(
        holds=orders[0],
        corrected=orders[1] and moved == 0,
        measures={
            "can be evaluated: 1 is yes": {"as written": orders[0], "corrected": orders[1]},
            "change of earlier states by the last input": moved,
        },
    )


@claim("J2", source="exercises", verdict="false")
def attends_to_all_others(trial: Trial) -> Evidence:
    """In a recurrent network with attention each token attends to all others.

    Correction: To earlier ones only: later states do not exist yet.
    Refutation: an output that depends on a later input
    """
    layer = rg.nn.AttentiveRecurrent(4, HIDDEN, kind="rnn").double()
    x = trial.normal(1, 8, 4)
    # output time × input time
    norms = jacobian(lambda x: layer(x)[0], x)[0, :, :, 0].norm(dim=(1, 3))
    later, earlier = norms.triu(1), norms.tril()
    reached = earlier[earlier > 0]
    return Evidence(
        holds=(norms > 0).all(),
        corrected=later.max() == 0 and reached.numel() == 36,
        measures={
            "largest effect of a later input": later.max(),
            "smallest effect of an earlier one": reached.min(),
        },
        chart=Maps({"‖∂h_t/∂x_j‖": norms}, "input j", "state t"),
    )


@claim("J3", source="exercises", verdict="false")
def attention_makes_parallel(trial: Trial) -> Evidence:
    """Attention over the states makes a recurrent network parallel.

    Correction: Each state needs all earlier ones: the chain of operations is longer than before.
    Refutation: a chain of dependent operations whose length does not grow with T
    """
    lengths = [4, 8, 16, 32]
    layers = {
        "RNN": rg.nn.Recurrent(4, HIDDEN, kind="rnn"),
        "RNN with attention": rg.nn.AttentiveRecurrent(4, HIDDEN, kind="rnn"),
    }
    depths = {
        name: [_depth(layer, trial.normal(1, n, 4).float()) for n in lengths]
        for name, layer in layers.items()
    }
    attention = rg.nn.MultiHeadAttention(HIDDEN, 2)
    alone = [graph_depth(attention(trial.normal(1, n, HIDDEN).float())) for n in lengths]
    rnn, hybrid = depths.values()
    depths["self-attention"] = alone
    return Evidence(
        holds=hybrid[-1] <= 2 * hybrid[0],
        corrected=hybrid[-1] > rnn[-1] > 4 * alone[-1] and len(set(alone)) == 1,
        measures={f"{name}, T = 32": d[-1] for name, d in depths.items()},
        chart=Lines(lengths, depths, "T", "dependent operations", log="xy"),
    )


@claim("J4", source="exercises", verdict="false")
def context_is_harmless(trial: Trial) -> Evidence:
    """Adding the context a_t to the state is harmless.

    Correction: Sums of states grow with t: only a normalisation keeps them bounded.
    Refutation: states that stay of the same size over 200 steps without a normalisation
    """
    x = trial.normal(4, 200, HIDDEN).float()
    sizes = {}
    for combine in ("sum", "norm"):
        layer = rg.nn.AttentiveRecurrent(HIDDEN, HIDDEN, kind="rnn", score="dot", combine=combine)
        with torch.no_grad():
            sizes[combine] = layer(x)[0].abs().amax((0, 2))
    growth = {name: size[-1] / size[4] for name, size in sizes.items()}
    curves = {"ĥ + a": sizes["sum"], "norm(ĥ + a)": sizes["norm"]}
    return Evidence(
        holds=growth["sum"] < 2,
        corrected=growth["sum"] > 10 and growth["norm"] < 2 and (sizes["sum"] <= 200).all(),
        measures={
            "largest number after 200 steps, sum": sizes["sum"][-1],
            "with layer norm": sizes["norm"][-1],
        },
        chart=Lines(range(1, 201), curves, "step", "largest number", log="y"),
    )


@claim("J5", source="exercises", verdict="true", trained=True, study="recall")
def attention_improves_memory(trial: Trial) -> Evidence:
    """Attention over earlier states gives a recurrent network a better long-range memory.

    Remark: Settled here for recall of the first of 40 tokens; other tasks may differ.
    Refutation: accuracy of the network with attention within 0.1 of that without
    """
    study = recall_study(trial, 40, ("rnn", "hybrid"), seeds=(5, 10))
    pairs = zip(*study.values(), strict=True)
    gain = Measure.mean("gain in accuracy by attention", [b - a for a, b in pairs])
    names = {"RNN": study["rnn"], "RNN with attention": study["hybrid"]}
    return Evidence(
        holds=gain.above(0.1),
        measures={"accuracy over 40 tokens, chance 0.25": names, gain.name: gain},
    )


@claim("X12", source="exam", verdict="conditional", trained=True, study="recall")
def attention_converges_faster(trial: Trial) -> Evidence:
    """Attention uses the hardware better and converges faster than recurrence.

    Condition: Distant tokens matter: on a running parity a GRU converges faster.
    Remark: Its chain of dependent operations is shorter on every task.
    Refutation: a GRU ahead on recall, or attention not behind on parity
    """
    kinds = ("gru", "attention")
    studies = {
        "recall over 40": recall_study(trial, 40, kinds, seeds=(5, 10)),
        "parity of 6": parity_study(trial, 6, kinds),
    }
    recall, parity = (
        Measure.mean(name, [b - a for a, b in zip(*study.values(), strict=True)])
        for name, study in studies.items()
    )
    ahead, behind = recall.above(0), parity.below(0)
    gru = _depth(rg.nn.Recurrent(8, 8), trial.normal(1, 40, 8).float())
    attention = graph_depth(rg.nn.MultiHeadAttention(8, 2)(trial.normal(1, 40, 8).float()))
    return Evidence(
        holds=ahead and parity.above(0) and attention < gru,
        holds_if=ahead and behind and attention < gru,
        measures={
            "accuracy after the same updates": studies,
            "attention − GRU": {m.name: m for m in (recall, parity)},
            "dependent operations of a GRU over 40 tokens": gru,
            "of attention": attention,
        },
    )


def _has_order(graph: dict[str, set[str]]) -> bool:
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError:
        return False
    return True


def _depth(layer: torch.nn.Module, x: torch.Tensor) -> int:
    options = {"backend": "reference"} if isinstance(layer, rg.nn.Recurrent) else {}
    return graph_depth(layer(x, **options)[0][:, -1])
