"""CTC decoding: best path and prefix beam search, offline or streaming."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.decode.stepper import Stepper
from regard.errors import ConfigError, ShapeError
from regard.models.speech import BLANK

LabelLanguageModel = Callable[[tuple[int, ...]], Sequence[float]]
MAX_STATES = 4096  # cached prefixes of a language model
LM_CONTEXT = 128  # stable labels that the language model still sees
SCORE_CONTEXT = 20  # outputs around a label that enter its score: 0.8 s
MAX_UNSTABLE = 50  # labels at the end in which prefixes may differ; the best decides older ones


class CtcHypothesis(NamedTuple):
    """A label sequence, its CTC log-probability, and its score with language model and bonus."""

    labels: tuple[int, ...]
    log_prob: float
    score: float


class BestPath:
    """Streaming best-path decoding: merges repeats, also across calls, and removes blanks.

    >>> path = torch.nn.functional.one_hot(torch.tensor([1, 1, 0, 1, 2, 2]), 3).float().log()
    >>> decode = BestPath()
    >>> decode(path[:1]), decode(path[1:5]), decode(path[5:])
    ([1], [1, 2], [])
    """

    def __init__(self) -> None:
        self.last = BLANK

    def __call__(self, log_probs: Float[Tensor, "time vocab"]) -> list[int]:
        labels = []
        for label in log_probs.argmax(-1).tolist():
            if label not in (BLANK, self.last):
                labels.append(label)
            self.last = label
        return labels


class PathScore:
    """Confidence of a transcript: log-probability of the best path around its labels, per label.

    score = Σ_{t near a label} max_label log p(label | t) / labels

    Outputs further than SCORE_CONTEXT from every label are ignored, so that pauses do not lower the
    score. Call it with consecutive outputs.

    >>> path = torch.tensor([[0.5, 0.5], [0.1, 0.9]]).log()
    >>> score = PathScore()
    >>> score(path)
    >>> round(score.per_label(1), 4) == round(math.log(0.5) + math.log(0.9), 4)
    True
    """

    def __init__(self) -> None:
        self.total, self.after = 0.0, 0
        self.before = deque[float](maxlen=SCORE_CONTEXT)

    def __call__(self, log_probs: Float[Tensor, "time vocab"]) -> None:
        best = log_probs.max(-1)
        for label, log_prob in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            if label != BLANK:
                self.total += sum(self.before) + log_prob
                self.before.clear()
                self.after = SCORE_CONTEXT
            elif self.after:
                self.total, self.after = self.total + log_prob, self.after - 1
            else:
                self.before.append(log_prob)

    def per_label(self, labels: int) -> float:
        """The score of a transcript with this many labels."""
        return self.total / max(1, labels)


def prefix_beam(
    log_probs: Float[Tensor, "time vocab"],
    *,
    width: int = 16,
    n_best: int = 1,
    language_model: LabelLanguageModel | None = None,
    lm_weight: float = 0.5,
    length_bonus: float = 0.0,
    min_log_prob: float = -12.0,
) -> list[CtcHypothesis]:
    """CTC prefix beam search (Hannun et al. 2014): the `n_best` label sequences, best first.

    score(y) = log Σ_{paths of y} Π_t p(path_t | t) + lm_weight · log p_lm(y) + length_bonus · |y|

    All paths of a label sequence are summed, where best-path decoding counts one.

    Args:
        log_probs: Log-probabilities of the labels at each output, label 0 the blank.
        width: Prefixes per beam.
        n_best: Sequences returned, at most `width`.
        language_model: Log-probabilities of all next labels after a prefix.
        lm_weight: Weight of the language model.
        length_bonus: Added per label.
        min_log_prob: Labels below this at an output are skipped there.

    >>> p = torch.tensor([[0.6, 0.4], [0.6, 0.4]])  # the best path is two blanks: 0.36
    >>> (best,) = prefix_beam(p.log())
    >>> best.labels, round(best.log_prob, 4) == round(math.log(0.16 + 2 * 0.24), 4)
    ((1,), True)
    """
    search = PrefixBeam(
        width=width, language_model=language_model, lm_weight=lm_weight,
        length_bonus=length_bonus, min_log_prob=min_log_prob,
    )  # fmt: skip
    if not 1 <= n_best <= width:
        raise ConfigError(f"n_best: needs 1 to width={width}, got {n_best}; try a wider beam")
    search(log_probs)
    return search.hypotheses()[:n_best]


class PrefixBeam:
    """Streaming `prefix_beam`: call it with outputs, then `pop_stable_labels` for decided labels.

    p(y, t) = p_blank(y, t) + p_label(y, t): paths of y up to t that end in a blank, in a label

    >>> search = PrefixBeam(width=4)
    >>> search(torch.tensor([[0.1, 0.9], [0.9, 0.1]]).log())
    >>> search.hypotheses()[0].labels
    (1,)
    """

    def __init__(
        self,
        *,
        width: int = 16,
        language_model: LabelLanguageModel | None = None,
        lm_weight: float = 0.5,
        length_bonus: float = 0.0,
        min_log_prob: float = -12.0,
    ):
        if width < 1:
            raise ConfigError(f"width: needs 1 or more, got {width}")
        self.width, self.language_model, self.lm_weight = width, language_model, lm_weight
        self.length_bonus, self.min_log_prob = length_bonus, min_log_prob
        self.reset()

    def reset(self) -> None:
        """Start a new stream."""
        # log-probability of the paths that end in a blank, and in the last label
        self.beam: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -math.inf)}
        self.lm_log_probs: dict[tuple[int, ...], float] = {(): 0.0}
        self.stable_length = 0  # labels that `pop_stable_labels` has returned

    def __call__(self, log_probs: Float[Tensor, "time vocab"]) -> None:
        if log_probs.ndim != 2:
            raise ShapeError(
                f"log_probs: needs time and vocab, got {tuple(log_probs.shape)}; try log_probs[0]"
            )
        for row in log_probs.tolist():
            self._step(row)

    def hypotheses(self) -> list[CtcHypothesis]:
        """The beam, best first."""
        beam = self.beam.items()
        prefixes = [CtcHypothesis(y, _add(*ends), self._score(y, ends)) for y, ends in beam]
        return sorted(prefixes, key=lambda prefix: -prefix.score)

    def pop_stable_labels(self) -> list[int]:
        """New labels that all prefixes of the beam share: they will not change any more."""
        first, *rest = self.beam
        shared = len(first)
        for other in rest:
            shared = min(shared, len(other))
            while first[:shared] != other[:shared]:
                shared -= 1
        new = list(first[self.stable_length : shared])
        self.stable_length = max(self.stable_length, shared)
        keep = 1 if self.language_model is None else LM_CONTEXT
        if self.stable_length > 2 * keep:  # drop old shared labels, so that memory stays bounded
            old, self.stable_length = self.stable_length - keep, keep
            self.beam = {prefix[old:]: ends for prefix, ends in self.beam.items()}
            self.lm_log_probs = {prefix[old:]: p for prefix, p in self.lm_log_probs.items()}
        return new

    def unstable_labels(self) -> list[int]:
        """The rest of the best prefix, which may still change."""
        return list(self.hypotheses()[0].labels[self.stable_length :])

    def _step(self, row: Sequence[float]) -> None:
        grown: dict[tuple[int, ...], tuple[float, float]] = {}
        labels = [c for c, p in enumerate(row) if c != BLANK and p > self.min_log_prob]

        def add(prefix: tuple[int, ...], blank: float, label: float) -> None:
            old = grown.get(prefix, (-math.inf, -math.inf))
            grown[prefix] = (_add(old[0], blank), _add(old[1], label))

        for prefix, (blank, label) in self.beam.items():
            both, last = _add(blank, label), prefix[-1] if prefix else BLANK
            # repeating the last label extends it, unless a blank came between
            again = label + row[last] if prefix else -math.inf
            add(prefix, both + row[BLANK], again)
            for c in labels:
                add((*prefix, c), -math.inf, row[c] + (blank if c == last else both))
        self._update_lm(grown)
        best = sorted(grown.items(), key=lambda item: -self._score(*item))[: self.width]
        (first, _), shared = best[0], len(best[0][0]) - MAX_UNSTABLE
        if shared > 0:
            best = [(y, ends) for y, ends in best if y[:shared] == first[:shared]]
        self.beam = dict(best)
        self.lm_log_probs = {prefix: self.lm_log_probs[prefix] for prefix in self.beam}

    def _update_lm(self, grown: dict[tuple[int, ...], tuple[float, float]]) -> None:
        if self.language_model is None:
            self.lm_log_probs = dict.fromkeys(grown, 0.0)
            return
        next_log_probs: dict[tuple[int, ...], Sequence[float]] = {}
        for prefix in grown:
            if prefix not in self.lm_log_probs:
                before = prefix[:-1]
                if before not in next_log_probs:
                    next_log_probs[before] = self.language_model(before)
                log_prob = float(next_log_probs[before][prefix[-1]])
                self.lm_log_probs[prefix] = self.lm_log_probs[before] + log_prob

    def _score(self, prefix: tuple[int, ...], ends: tuple[float, float]) -> float:
        prior = self.lm_weight * self.lm_log_probs[prefix]
        return _add(*ends) + prior + self.length_bonus * len(prefix)


class StepperLanguageModel:
    """A stepper as the language model of a prefix beam: log p(next label | prefix), with a cache.

    log_softmax(step(prefix)), starting from the token `first`

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> language = StepperLanguageModel(rg.decode.make_stepper(model))
    >>> len(language((4, 5))), round(sum(math.exp(p) for p in language((4, 5))), 4)
    (9, 1.0)
    """

    def __init__(self, stepper: Stepper, *, first: int = 1):
        self.stepper, self.first = stepper, first
        self.states: dict[tuple[int, ...], tuple[list[float], object]] = {}

    @torch.no_grad()
    def __call__(self, prefix: tuple[int, ...]) -> list[float]:
        if prefix in self.states:
            self.states[prefix] = self.states.pop(prefix)  # least recently used first
            return self.states[prefix][0]
        after = len(prefix)
        while after and prefix[: after - 1] not in self.states:
            after -= 1
        if after:
            state = self.states[prefix[: after - 1]][1]
        else:
            state = self.stepper.start(torch.tensor([[self.first]]))
        for size in range(after, len(prefix) + 1):
            last = prefix[size - 1] if size else self.first
            logits, state = self.stepper.step(torch.tensor([last]), state)
            self.states[prefix[:size]] = logits[0].log_softmax(-1).tolist(), state
        while len(self.states) > MAX_STATES:
            del self.states[next(iter(self.states))]
        return self.states[prefix][0]


def _add(a: float, b: float) -> float:
    """log(e^a + e^b)."""
    if a < b:
        a, b = b, a
    return a if b == -math.inf else a + math.log1p(math.exp(b - a))
