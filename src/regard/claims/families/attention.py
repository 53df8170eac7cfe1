"""Claims about basic attention: weights, mixtures, projections, masks."""

import torch

from regard.claims.charts import Lines
from regard.claims.claim import Evidence, Measure, Trial, claim
from regard.ops import attention_weights


@claim(
    "A1",
    "The attention weights of a query sum to 1.",
    source="exam",
    verdict="true",
    refutation="a sum that differs from 1 by more than 1e-12 in float64",
)
def weights_sum_to_one(trial: Trial) -> Evidence:
    lengths = [1, 2, 8, 64, 512]
    errors = [
        (attention_weights(trial.normal(16, 8), trial.normal(n, 8)).sum(-1) - 1).abs().max()
        for n in lengths
    ]
    errors = torch.stack(errors)
    return Evidence(
        holds=errors.max() < 1e-12,
        measures=[Measure("largest |Σ weights − 1|", errors.max())],
        chart=Lines(
            lengths, {"error": errors + 1e-18}, x_label="keys", y_label="|Σ − 1|", log="xy"
        ),
    )


@claim(
    "A4",
    "In attention without projections, a token attends mostly to itself.",
    source="exam",
    verdict="false",
    correction="It does where all vectors have the same norm; a longer vector takes the weight.",
    refutation="a token that keeps its largest weight on itself beside a neighbour of any norm",
)
def token_attends_to_itself(trial: Trial) -> Evidence:
    neighbour = torch.tensor([2.0, 0.5], dtype=torch.float64) / 2.0616
    scales = torch.linspace(0.5, 3, 26)
    rows = []
    for scale in scales:
        tokens = torch.stack([torch.tensor([1.0, 0.0], dtype=torch.float64), scale * neighbour])
        rows.append(attention_weights(tokens[:1], tokens)[0])
    own, other = torch.stack(rows).unbind(-1)
    return Evidence(
        holds=(own > other).all(),
        corrected=own[scales < 0.99].gt(0.5).all() and own[-1] < other[-1],
        measures=[
            Measure("weight on itself, equal norms", own[5]),
            Measure("weight on itself, neighbour 3 times as long", own[-1]),
        ],
        chart=Lines(
            scales,
            {"itself": own, "neighbour": other},
            x_label="norm of the neighbour",
            y_label="weight",
        ),
    )
