"""Sites made from given tensors, without a model."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.sites.site import Site
from regard.ops.attend import attend
from regard.ops.grid import to_4d
from regard.ops.terms import make_terms


def make_site(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*keys_batch key other"],
    v: Float[Tensor, "*keys_batch key value"] | None = None,
    *,
    name: str = "attention",
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    **terms,
) -> Site:
    """Make a site from queries, keys and values, as if a model had computed them.

    Args:
        q: The queries.
        k: The keys.
        v: The values; the keys by default.
        name: Name of the site.
        tokens: One label per query; also of the keys, unless `key_tokens` is given.
        key_tokens: One label per key; makes it a cross-attention.
        terms: mask, bias, scale, softcap, sinks, score, offset, as in `rg.attend`.

    >>> q = k = torch.zeros(2, 4)
    >>> rg.make_site(q, k, tokens=["a", "b"]).weights()
    tensor([[[[0.5000, 0.5000],
              [0.5000, 0.5000]]]])
    """
    q, k = to_4d(q), to_4d(k)
    v = k if v is None else to_4d(v)
    for side, given, x in (("tokens", tokens, q), ("key_tokens", key_tokens, k)):
        if given is not None and len(given) != x.shape[-2]:
            raise ShapeError(f"{side}: needs {x.shape[-2]}, one per position, got {len(given)}")
    crosses = key_tokens is not None or q.shape[-2] + terms.get("offset", 0) != k.shape[-2]
    labels, batch = key_tokens if crosses else tokens, q.shape[0]
    out, lse = attend(q, k, v, **terms)
    return Site(
        name=name,
        path=name,
        kind="cross" if crosses else "self",
        q=q,
        k=k,
        v=v,
        out=out,
        lse=lse,
        terms=make_terms(q, k, **terms),
        query_tokens=None if tokens is None else [list(tokens)] * batch,
        key_tokens=None if labels is None else [list(labels)] * batch,
    )
