"""Claims about recurrent networks in which each state attends to earlier ones."""

from graphlib import CycleError, TopologicalSorter

import torch

import regard as rg
from regard.claims.charts import Bars, Lines, Maps
from regard.claims.claim import Evidence, Measure, Trial, claim
from regard.claims.families.complexity import graph_depth
from regard.claims.families.recurrent import parity_study, recall_study

HIDDEN = 16


@claim("J1", source="exercises", verdict="false")
def circular_definition(trial: Trial) -> Evidence:
    """The context a_t is computed from scores of h_t, and h_t from a_t.

    Correction: That is circular: the query is the state before a_t is added, or h_{t−1}.
    Refutation: an order of evaluation of the equations as written
    """
    written = {"h": {"state", "a"}, "a": {"scores"}, "scores": {"h", "past"}}
    corrected = written | {"scores": {"state", "past"}}
    layer = rg.nn.AttentiveRecurrent(4, HIDDEN, kind="rnn", combine="sum").double()
    x = trial.normal(1, 8, 4)
    out = layer(x)[0]
    changed = x.clone()
    changed[:, -1] += 1
    moved = (layer(changed)[0] - out).abs().amax((0, 2))
    return Evidence(
        holds=_has_order(written),
        corrected=_has_order(corrected) and bool((moved[:-1] == 0).all()),
        measures={
            "equations as written have an order": _has_order(written),
            "with the state before a_t as query": _has_order(corrected),
            "change of earlier states by the last input": moved[:-1].max(),
        },
        chart=Bars(
            {"as written": _has_order(written) + 0.0, "corrected": _has_order(corrected) + 0.0},
            "can be evaluated: 1 is yes",
        ),
    )


@claim("J2", source="exercises", verdict="false")
def attends_to_all_others(trial: Trial) -> Evidence:
    """In a recurrent network with attention each token attends to all others.

    Correction: To earlier ones only: later states do not exist yet.
    Refutation: an output that depends on a later input
    """
    layer = rg.nn.AttentiveRecurrent(4, HIDDEN, kind="rnn").double()
    x = trial.normal(1, 8, 4)
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x)[0], x)
    norms = jacobian[0, :, :, 0].norm(dim=(1, 3))  # output time × input time
    later, earlier = norms.triu(1), norms.tril()
    return Evidence(
        holds=bool((norms > 0).all()),
        corrected=later.max() == 0 and bool(earlier[earlier > 0].numel() == 36),
        measures={
            "largest effect of a later input": later.max(),
            "smallest effect of an earlier one": earlier[earlier > 0].min(),
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
    depths["self-attention"] = [
        graph_depth(attention(trial.normal(1, n, HIDDEN).float())) for n in lengths
    ]
    hybrid, rnn, own = (depths[k] for k in ("RNN with attention", "RNN", "self-attention"))
    return Evidence(
        holds=hybrid[-1] <= 2 * hybrid[0],
        corrected=hybrid[-1] > rnn[-1] > 4 * own[-1] and len(set(own)) == 1,
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
    growth = {name: float(size[-1] / size[4]) for name, size in sizes.items()}
    return Evidence(
        holds=growth["sum"] < 2,
        corrected=growth["sum"] > 10 and growth["norm"] < 2 and bool((sizes["sum"] <= 200).all()),
        measures={
            "largest number after 200 steps, sum": sizes["sum"][-1],
            "with layer norm": sizes["norm"][-1],
        },
        chart=Lines(
            range(1, 201),
            {"ĥ + a": sizes["sum"], "norm(ĥ + a)": sizes["norm"]},
            "step",
            "largest number",
            log="y",
        ),
    )


@claim("J5", source="exercises", verdict="true", trained=True, study="recall")
def attention_improves_memory(trial: Trial) -> Evidence:
    """Attention over earlier states gives a recurrent network a better long-range memory.

    Remark: Settled here for recall of the first of 40 tokens; other tasks may differ.
    Refutation: accuracy of the network with attention within 0.1 of that without
    """
    study = recall_study(trial, 40, ("rnn", "hybrid"), seeds=(5, 10))
    gain = Measure.mean(
        "gain in accuracy by attention",
        [b - a for a, b in zip(study["rnn"], study["hybrid"], strict=True)],
    )
    accuracies = [Measure.mean(name, values) for name, values in study.items()]
    return Evidence(
        holds=gain.low is not None and gain.low > 0.1,
        measures=[*accuracies, gain],
        chart=Bars(
            {"RNN": accuracies[0].value, "RNN with attention": accuracies[1].value},
            "accuracy over 40 tokens, chance 0.25",
            intervals={
                name: (m.low or m.value, m.high or m.value)
                for name, m in zip(("RNN", "RNN with attention"), accuracies, strict=True)
            },
        ),
    )


@claim("X12", source="exam", verdict="conditional", trained=True, study="recall")
def attention_converges_faster(trial: Trial) -> Evidence:
    """Attention uses the hardware better and converges faster than recurrence.

    Condition: Distant tokens matter: on a running parity a GRU converges faster.
    Remark: Its chain of dependent operations is shorter on every task.
    Refutation: a GRU ahead on recall, or attention not behind on parity
    """
    kinds = ("gru", "attention")
    recall = recall_study(trial, 40, kinds, seeds=(5, 10))
    parity = parity_study(trial, 6, kinds)
    gaps = {
        name: Measure.mean(
            f"attention − GRU, {name}",
            [b - a for a, b in zip(study["gru"], study["attention"], strict=True)],
        )
        for name, study in {"recall over 40": recall, "parity of 6": parity}.items()
    }
    ahead = {name: gap.low is not None and gap.low > 0 for name, gap in gaps.items()}
    behind = (gaps["parity of 6"].high or 0) < 0
    gru = graph_depth(
        rg.nn.Recurrent(8, 8)(trial.normal(1, 40, 8).float(), backend="reference")[0][:, -1]
    )
    attention = graph_depth(rg.nn.MultiHeadAttention(8, 2)(trial.normal(1, 40, 8).float()))
    return Evidence(
        holds=all(ahead.values()) and attention < gru,
        holds_if=ahead["recall over 40"] and behind and attention < gru,
        measures=[
            *gaps.values(),
            Measure("dependent operations of a GRU over 40 tokens", gru),
            Measure("of attention", attention),
        ],
        chart=Bars(
            {
                name: {kind: sum(values) / len(values) for kind, values in study.items()}
                for name, study in {"recall over 40": recall, "parity of 6": parity}.items()
            },
            "accuracy after the same updates",
        ),
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
