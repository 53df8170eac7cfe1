"""The public functions of linear mixers: one signature, several backends.

Every mixer of a model passes `mix`, where recorders and edits register: an edit proceeds with
another `LinearMixer` (other β, no write of a token, a state of another run).
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

from jaxtyping import Float
from torch import Tensor

from regard.errors import BackendError, ShapeError
from regard.ops.autocast import without_autocast
from regard.ops.indices import resolve_index, resolve_slice
from regard.ops.intercept import InterceptorRegistry
from regard.ops.maybe_none import MaybeNone
from regard.ops.mixers import chunked, reference, sweep
from regard.ops.mixers.linear_mixer import LinearMixer
from regard.ops.mixers.statistics import (
    MIXER_STATISTICS,
    MixerInfluence,
    MixerSurvey,
    WholeMixer,
    check_mixer_statistics,
)

MixerBackend = Literal["auto", "reference", "chunked"]
SweepBackend = Literal["auto", "reference", "chunked", "kernel"]


class MixResult(NamedTuple):
    """The outputs of a mixer and its last state; None where a model returns none."""

    out: Float[Tensor, "batch head time value"]
    state: Float[Tensor, "batch head key_dim value"] | MaybeNone


Proceed = Callable[[LinearMixer], MixResult]
MixerInterceptor = Callable[[LinearMixer, Proceed], MixResult]
_interceptors: InterceptorRegistry[MixerInterceptor] = InterceptorRegistry("mixer interceptors")
# registers an interceptor of mixers; the arguments are those of `ops.intercept.intercepting`
intercepting_mixers = _interceptors.register
# passes a mixer through all interceptors, then computes it
dispatch_mixer: Callable[..., MixResult] = _interceptors.dispatch


def is_mixing_intercepted() -> bool:
    """Whether mixers that run here are intercepted."""
    return bool(_interceptors.active())


def mix(mixer: LinearMixer, *, backend: MixerBackend = "auto") -> MixResult:
    """Run a linear mixer over its tokens; half precision is computed in float32.

    S_t = diag(e^{g_t}) S_{t-1} + β_t k_t r_tᵀ,   y_t = S_tᵀ q_t + own_t v_t

    Args:
        mixer: the quantities of each token.
        backend: "reference" is the recurrence; "chunked" the same by products of chunks of tokens.

    >>> one, mixers = torch.ones(1, 1, 2, 1), rg.ops.mixers
    >>> mixer = mixers.LinearMixer(q=one, k=one, v=one, log_decay=None, delta=True)
    >>> mixers.mix(mixer).out.flatten()  # the second 1 is already in the state
    tensor([1., 1.])
    """
    return _interceptors.dispatch(mixer, lambda mixer: compute_mix(mixer, backend))


@without_autocast
def compute_mix(mixer: LinearMixer, backend: MixerBackend = "auto") -> MixResult:
    """`mix` without interceptors."""
    out, _, state = _run(_prepare(mixer, backend), backend)
    return MixResult(out.to(mixer.v.dtype), state)


@without_autocast
def mix_window(
    mixer: LinearMixer,
    rows: slice | int = slice(None),
    keys: slice | int = slice(None),
    *,
    backend: MixerBackend = "auto",
) -> Float[Tensor, "batch head row column"]:
    """Exact signed weights w_tj of a range of queries and keys: y = W v.

    >>> one = torch.ones(1, 1, 2, 1)
    >>> mixer = rg.ops.mixers.LinearMixer(q=one, k=one, v=one, log_decay=None, delta=True)
    >>> rg.ops.mixers.mix_window(mixer)  # the second write replaces the first
    tensor([[[[1., 0.],
              [0., 1.]]]])
    """
    return _window(_prepare(mixer, backend), rows, keys, backend)


@without_autocast
def mix_influence_window(
    mixer: LinearMixer,
    rows: slice | int = slice(None),
    keys: slice | int = slice(None),
    *,
    backend: MixerBackend = "auto",
) -> Float[Tensor, "batch head row column"]:
    """Exact effects e_tj: how far output t moves if token j is not written.

    >>> one = torch.ones(1, 1, 2, 1)
    >>> mixer = rg.ops.mixers.LinearMixer(q=one, k=one, v=2 * one, log_decay=None)
    >>> rg.ops.mixers.mix_influence_window(mixer, rows=1)
    tensor([[[[2., 2.]]]])
    """
    mixer = replace(_prepare(mixer, backend), own=None)
    key = resolve_slice(keys, mixer.time, "keys")
    if backend == "reference":  # one run without each write
        row = resolve_slice(rows, mixer.time, "rows")
        return reference.effects(mixer)[..., row.start : row.stop, key.start : key.stop]
    past = chunked.slice_tokens(mixer, range(key.stop), mixer.state)
    norms = _run(past, backend)[1][:, :, None, key.start :].norm(dim=-1)
    return _window(mixer, rows, keys, backend).abs() * norms


@without_autocast
def mix_survey(
    mixer: LinearMixer, *, statistics: Collection[str] | None = None, backend: SweepBackend = "auto"
) -> MixerSurvey:
    """Statistics of the map, the gates and the states, with memory linear in n.

    mass, received and reach take time proportional to the pairs of tokens that are not forgotten:
    what adds less than 1e-7 to the mass of a query is left out (1e-15 in float64). The other
    statistics take time linear in n. Only backend="reference" has gradients.

    Args:
        mixer: the quantities of each token.
        statistics: names of fields of `MixerSurvey`; None computes all.
        backend: "reference" takes the whole map, "chunked" streams over it; "kernel" does so in
            Triton, which "auto" takes on CUDA for float32 and up to 256 key channels.

    >>> one = torch.ones(1, 1, 2, 1)
    >>> mixer = rg.ops.mixers.LinearMixer(q=one, k=one, v=one, log_decay=None, delta=True)
    >>> rg.ops.mixers.mix_survey(mixer).surprise.flatten()  # the second value was known
    tensor([1., 0.])
    """
    names = check_mixer_statistics(statistics)
    mixer = _prepare(mixer, backend, SweepBackend)
    if backend == "reference":
        whole = WholeMixer(mixer)
        return MixerSurvey(**{name: MIXER_STATISTICS[name]["formula"](whole) for name in names})
    return sweep.survey(mixer, names, backend)


@without_autocast
def mix_influence(mixer: LinearMixer, *, backend: SweepBackend = "auto") -> MixerInfluence:
    """The exact effect of not writing each token, summed over keys and over queries.

    e_tj = |w_tj| ‖r_j‖: a write that is left out changes every later output by a multiple of one
    vector. Other writes see the state without it, so its effect on them is in e.
    """
    mixer = _prepare(mixer, backend, SweepBackend)
    if backend == "reference":
        e = reference.effects(mixer)
        return MixerInfluence(effect_on_query=e.sum(-1), effect_of_key=e.sum(-2))
    return sweep.influence(mixer, backend)


@without_autocast
def mix_state(
    mixer: LinearMixer, token: int, *, backend: MixerBackend = "auto"
) -> Float[Tensor, "batch head key_dim value"]:
    """The state after a token; negative ones count from the end.

    >>> one = torch.ones(1, 1, 2, 1)
    >>> mixer = rg.ops.mixers.LinearMixer(q=one, k=one, v=one, log_decay=None)
    >>> rg.ops.mixers.mix_state(mixer, 0).flatten()
    tensor([1.])
    """
    mixer, token = _prepare(mixer, backend), resolve_index("token", token, mixer.time)
    past = chunked.slice_tokens(mixer, range(token + 1), mixer.state)
    return compute_mix(past, backend).state


def _run(mixer: LinearMixer, backend: str) -> tuple[Tensor, Tensor, Tensor]:
    if backend == "reference":
        return reference.mix(mixer)
    return chunked.run(mixer, chunked.chunk_size(mixer))


def _window(mixer: LinearMixer, rows: Any, keys: Any, backend: str) -> Tensor:
    row, key = (resolve_slice(x, mixer.time, name) for x, name in ((rows, "rows"), (keys, "keys")))
    if backend == "reference":
        return reference.weights(mixer)[..., row.start : row.stop, key.start : key.stop]
    return chunked.window(mixer, row, key, chunked.chunk_size(mixer))


def _prepare(mixer: LinearMixer, backend: str, backends: Any = MixerBackend) -> LinearMixer:
    """The mixer in at least float32, checked."""
    if backend not in get_args(backends):
        names = ", ".join(get_args(backends))
        raise BackendError(f"backend: needs {names}, got {backend!r}")
    mixer = mixer.upcast()
    if mixer.log_decay is not None and bool((mixer.log_decay > 0).any()):
        raise ShapeError("log_decay: needs 0 or less, got a state that grows; try its negative")
    return mixer
