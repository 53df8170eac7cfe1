"""Single-head attention of recurrent states over other states."""

from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError, suggestion
from regard.ops import Padding, attend

ScoreKind = Literal["dot", "scaled_dot", "general", "additive"]


class StateAttention(nn.Module):
    """Attention with one head and unprojected values, by a score chosen by name.

    dot: q · k,   scaled_dot: q · k / √hidden,   general: q W k,   additive: v · tanh(W_q q + W_k k)

    `project_keys` computes the part of the score that does not depend on the query, for reuse.

    >>> layer, past = StateAttention(2, 2, "dot"), torch.tensor([[[1.0, 0.0], [3.0, 0.0]]])
    >>> layer(torch.zeros(1, 1, 2), layer.project_keys(past), past)
    tensor([[[2., 0.]]])
    """

    def __init__(self, dim: int, source_dim: int, score: ScoreKind = "scaled_dot"):
        super().__init__()
        kinds = ("dot", "scaled_dot", "general", "additive")
        if score not in kinds:
            hint = suggestion(str(score), kinds)
            raise ConfigError(f"score: needs {', '.join(kinds)}, got {score!r}{hint}")
        if "dot" in score and dim != source_dim:
            raise ConfigError(
                f"source_dim: needs dim={dim} for a {score} score, got {source_dim}; try 'general'"
            )
        self.score: ScoreKind = score
        has_weights = score in ("general", "additive")
        self.to_key = nn.Linear(source_dim, dim, bias=False) if has_weights else None
        self.to_query = nn.Linear(dim, dim, bias=False) if score == "additive" else None
        self.v = nn.Parameter(torch.randn(dim) * dim**-0.5) if score == "additive" else None

    def project_keys(
        self, source: Float[Tensor, "*batch key source_dim"]
    ) -> Float[Tensor, "*batch key dim"]:
        """The keys of the source, projected by W where the score has one."""
        return source if self.to_key is None else self.to_key(source)

    def forward(
        self,
        query: Float[Tensor, "batch query dim"],
        keys: Float[Tensor, "batch key dim"],
        values: Float[Tensor, "batch key value"],
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch query value"]:
        q = query if self.to_query is None else self.to_query(query)
        score = None if self.v is None else partial(_additive_of_keys, v=self.v)
        out, _ = attend(
            q[:, None],  # one head
            keys[:, None],
            values[:, None],
            mask=None if lengths is None else Padding(lengths),
            scale=1.0 if self.score in ("dot", "general") else None,
            score=score,
        )
        return out[:, 0]


def _additive_of_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3)) @ v
