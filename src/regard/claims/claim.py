"""A claim: a statement about sequence models, the experiment that decides it, and its verdict."""

import inspect
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from regard.claims.charts import Bars
from regard.errors import ConfigError, check_choice

Verdict = Literal["true", "conditional", "false", "open", "literature"]
Source = Literal["exam", "homework", "problem set", "exercises", "common belief"]
FAMILIES = {
    "A": "Basic attention",
    "B": "Temperature, hard and soft attention",
    "C": "Perturbed keys and queries",
    "D": "Why divide by √d",
    "E": "Multiple heads",
    "F": "Position and order",
    "G": "Identity, permutation, convolution, masks",
    "H": "Residuals, normalisation, feed-forward, depth",
    "I": "RNN, GRU, LSTM",
    "J": "Recurrence with attention",
    "X": "Parallelism and cost",
    "L": "Vision",
    "M": "Whole models and what they show",
    "Z": "Your own",
}


@dataclass(frozen=True)
class Measure:
    """A number of an experiment, with its 95% interval if it was sampled.

    >>> print(Measure.mean("accuracy", [0.9, 1.0, 0.95]))
    accuracy: 0.95 [0.826, 1]
    """

    name: str
    value: Any  # a number, or a tensor of one; stored as float
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        value = self.value
        object.__setattr__(
            self, "value", float(value.detach() if isinstance(value, Tensor) else value)
        )

    @classmethod
    def mean(cls, name: str, samples: Iterable[float | Tensor]) -> "Measure":
        """Mean of independent samples and Student's t interval: mean ± t · s / √n.

        The interval of a measure whose name begins with "accuracy" or "share" ends at 0 and 1.
        """
        values = [float(x) for x in samples]
        mean = statistics.fmean(values)
        if len(values) < 2:
            return cls(name, mean)
        margin = student_t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
        low, high = mean - margin, mean + margin
        if name.startswith(("accuracy", "share")):
            low, high = max(low, 0.0), min(high, 1.0)
        return cls(name, mean, low, high)

    def above(self, bound: float) -> bool:
        """Whether the whole interval is above a bound.

        >>> Measure.mean("lead", [0.9, 1.0, 0.95]).above(0.8), Measure("lead", 0.9).above(0.8)
        (True, True)
        """
        return (self.value if self.low is None else self.low) > bound

    def below(self, bound: float) -> bool:
        """Whether the whole interval is below a bound."""
        return (self.value if self.high is None else self.high) < bound

    def __str__(self) -> str:
        interval = "" if self.low is None else f" [{self.low:.3g}, {self.high:.3g}]"
        return f"{self.name}: {self.value:.4g}{interval}"


def student_t(freedom: int) -> float:
    """97.5% quantile of Student's t distribution, to 2e-3 (Cornish–Fisher from 3 on).

    >>> [round(student_t(n), 2) for n in (1, 2, 4, 30)]
    [12.71, 4.3, 2.78, 2.04]
    """
    exact = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706}
    if freedom in exact:
        return exact[freedom]
    z, n = 1.959964, freedom
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    return z + (z**3 + z) / (4 * n) + second


Measures = Sequence[Measure] | Mapping[str, Any]


def name_measures(values: Any, name: str = "") -> list[Measure]:
    """Measures of nested mappings, named by the keys that lead to them.

    A number is a measure, several numbers are samples of one with its interval.

    >>> for measure in name_measures({"loss": {"softmax": [0.1, 0.3], "argmax": 2.0}}):
    ...     print(measure)
    loss, softmax: 0.2 [-1.07, 1.47]
    loss, argmax: 2
    """
    if isinstance(values, Mapping):
        prefix = f"{name}, " if name else ""
        return [m for key, x in values.items() for m in name_measures(x, f"{prefix}{key}")]
    if isinstance(values, Measure):
        return [replace(values, name=name)]
    several = values.ndim > 0 if isinstance(values, Tensor) else isinstance(values, Sequence)
    return [Measure.mean(name, values) if several else Measure(name, values)]


def derive_chart(measures: Measures) -> Bars:
    """Bars of the first measure that was taken under several conditions, or of all measures.

    >>> derive_chart({"loss": {"softmax": 0.1, "argmax": 2.0}, "steps": 20})
    Bars(values={'softmax': 0.1, 'argmax': 2.0}, y_label='loss', log='', intervals={})
    """
    if not isinstance(measures, Mapping):
        measures = {measure.name: measure for measure in measures}
    tables = ((name, x) for name, x in measures.items() if isinstance(x, Mapping))
    label, table = next(tables, ("", measures))
    flat = [m for name, x in table.items() for m in name_measures(x, str(name))]
    sizes = [abs(m.value) for m in flat if m.value]
    log = min(m.value for m in flat) >= 0 and max(sizes, default=1) > 1e4 * min(sizes, default=1)
    if any(isinstance(x, Mapping) for x in table.values()):
        values = {
            name: {k: name_measures(y)[0].value for k, y in x.items()} for name, x in table.items()
        }
        return Bars(values, label, log="y" if log else "")
    intervals = {m.name: (m.low, m.high) for m in flat if m.low is not None}
    values = {m.name: m.value for m in flat}
    return Bars(values, label, log="y" if log else "", intervals=intervals)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The result of an experiment; the verdict follows from it.

    Args:
        holds: whether the statement held in every case, as it is worded; None: not decided.
        holds_if: whether it held wherever the condition of the claim was met.
        corrected: whether the corrected statement held; False makes a false claim open.
        measures: the numbers behind it by name: a number, samples of one, or a mapping from
            conditions to them.
        chart: the picture; by default bars of the first mapping, or of all measures.
        note: what the numbers show, where they need a sentence.

    >>> Evidence(holds=False, holds_if=True, measures={"error": 0.5}).verdict
    'conditional'
    """

    holds: Any  # bool or None, or the result of a torch comparison; stored as bool
    holds_if: Any = False
    corrected: Any = True
    measures: Any  # `Measures`; stored as a list of Measure
    chart: Any = None  # a Chart; None is replaced
    note: str = ""

    def __post_init__(self) -> None:
        for name in ("holds", "holds_if", "corrected"):  # results of torch comparisons too
            value = getattr(self, name)
            object.__setattr__(self, name, value if value is None else bool(value))
        if self.chart is None:
            object.__setattr__(self, "chart", derive_chart(self.measures))
        if isinstance(self.measures, Mapping):
            object.__setattr__(self, "measures", name_measures(self.measures))

    @property
    def verdict(self) -> Verdict:
        """The verdict that the evidence supports."""
        if self.holds is None:
            return "open"
        if self.holds:
            return "true"
        if self.holds_if:
            return "conditional"
        return "false" if self.corrected else "open"


Module = TypeVar("Module", bound=nn.Module)


class Trial:
    """One run of an experiment: seed, size and device.

    >>> Trial(seed=1).normal(2, 3).shape, Trial(full=True).size(5, 20)
    (torch.Size([2, 3]), 20)
    """

    def __init__(self, seed: int = 0, *, full: bool = False, device: str = "cpu"):
        self.seed, self.full, self.device = seed, full, device
        self.rng = torch.Generator().manual_seed(seed)

    def size(self, fast: int, full: int) -> int:
        """A number of steps, samples or seeds, of a fast run or of a full one."""
        return full if self.full else fast

    def seeds(self, fast: int, full: int) -> range:
        """Seeds of repeated trainings."""
        return range(self.seed, self.seed + self.size(fast, full))

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers in float64; each call draws new ones."""
        return torch.randn(*shape, generator=self.rng, dtype=torch.float64)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform numbers from 0 to 1 in float64."""
        return torch.rand(*shape, generator=self.rng, dtype=torch.float64)

    def integers(self, high: int, *shape: int) -> Tensor:
        """Integers below `high`."""
        return torch.randint(high, shape, generator=self.rng)

    def repeat(self, count: int, draw: Callable[[], Mapping[str, Any]]) -> dict[str, Tensor]:
        """Numbers of repeated draws by name, stacked.

        >>> Trial().repeat(3, lambda: {"x": 1.0})
        {'x': tensor([1., 1., 1.], dtype=torch.float64)}
        """
        draws = [draw() for _ in range(count)]
        numbers = {
            name: [torch.as_tensor(x[name]).detach().double() for x in draws] for name in draws[0]
        }
        return {name: torch.stack(x) for name, x in numbers.items()}

    def build(self, make: Callable[[], Module]) -> Module:
        """A module with its usual random weights, new ones at each call: float64, not trained.

        >>> Trial().build(lambda: nn.Linear(2, 3)).weight.dtype
        torch.float64
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(self.integers(1 << 31)))
            return make().double().eval().requires_grad_(False)


Experiment = Callable[[Trial], Evidence]  # a plain function


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement, its declared verdict, and the experiment that tests it.

    >>> CLAIMS["A1"].statement, CLAIMS["A1"].verdict
    ('The attention weights of a query sum to 1.', 'true')
    """

    id: str
    statement: str
    source: Source
    verdict: Verdict
    refutation: str
    condition: str = ""
    correction: str = ""
    remark: str = ""
    trained: bool = False
    study: str = ""  # claims of one study share its trainings, so they run in one process
    experiment: Experiment | None = field(default=None, compare=False)

    @property
    def family(self) -> str:
        """Heading of the family that the first letter of the id stands for."""
        return FAMILIES[self.id[0]]

    @property
    def file(self) -> Path | None:
        """The file that defines the experiment."""
        return Path(self.experiment.__code__.co_filename) if self.experiment else None

    @property
    def code(self) -> str:
        """Source of the experiment."""
        return inspect.getsource(self.experiment) if self.experiment else ""

    def run(self, trial: Trial | None = None) -> Evidence:
        """Run the experiment."""
        if self.experiment is None:
            raise ConfigError(f"claim: needs an experiment, got {self.id}, known from literature")
        return self.experiment(trial or Trial())


CLAIMS: dict[str, Claim] = {}


def claim(
    name: str, *, source: Source, verdict: Verdict, trained: bool = False, study: str = ""
) -> Callable[[Experiment], Experiment]:
    """Register an experiment as the test of a claim, whose texts are its docstring.

    The first paragraph is the claim as courses teach it, in one sentence. Below it, each after its
    name: `Condition` under which a conditional claim holds, `Correction` of a false one,
    `Refutation`, the observation that would have given another verdict, and `Remark`.

    Args:
        name: id, the letter of the family and a number; Z is for custom claims.
        source: kind of document that states it.
        verdict: true, conditional, false or open.
        trained: whether the experiment trains models.
        study: name that it shares with other claims whose trainings it uses.

    >>> @claim("A99", source="exam", verdict="true")
    ... def weights_sum(trial):
    ...     '''Weights sum to 1.
    ...
    ...     Refutation: a sum of 2
    ...     '''
    >>> CLAIMS["A99"].statement, CLAIMS.pop("A99").refutation
    ('Weights sum to 1.', 'a sum of 2')
    """

    def register(experiment: Experiment) -> Experiment:
        texts = _parse_texts(experiment.__doc__ or "")
        _check(name, verdict, texts)
        file = Path(experiment.__code__.co_filename)
        if name in CLAIMS and CLAIMS[name].file != file:  # importing a file again is fine
            raise ConfigError(f"id: needs a new one, got {name}, which is registered; try Z1")
        kind: dict[str, Any] = {"source": source, "verdict": verdict}
        kind |= {"trained": trained, "study": study}
        CLAIMS[name] = Claim(id=name, experiment=experiment, **kind, **texts)
        return experiment

    return register


def _parse_texts(docstring: str) -> dict[str, Any]:
    """The statement, and the texts below it by name, each as one line."""
    statement, *rest = re.split(
        r"^(Condition|Correction|Refutation|Remark): ", inspect.cleandoc(docstring), flags=re.M
    )
    texts = {"statement": statement} | {
        key.lower(): text for key, text in zip(rest[::2], rest[1::2], strict=True)
    }
    return {key: " ".join(text.split()) for key, text in texts.items()}


def literature(name: str, statement: str, *, source: Source, remark: str) -> None:
    """Register a claim that is known from publications alone; the remark cites them.

    >>> literature("Z9", "More data helps.", source="common belief", remark="Not run here.")
    >>> CLAIMS.pop("Z9").verdict
    'literature'
    """
    texts: dict[str, Any] = {"statement": statement, "remark": remark}
    texts["refutation"] = "not an experiment of this size"
    _check(name, "literature", texts)
    CLAIMS[name] = Claim(id=name, source=source, verdict="literature", **texts)


def _check(name: str, verdict: str, texts: dict[str, Any]) -> None:
    if name[:1] not in FAMILIES or not name[1:].isdigit():
        families = ", ".join(FAMILIES)
        raise ConfigError(f"id: needs one of {families} and a number, got {name!r}")
    check_choice("verdict", verdict, get_args(Verdict))
    texts_of_verdict = {"conditional": ["condition"], "false": ["correction"]}.get(verdict, [])
    for text in ("statement", "refutation", *texts_of_verdict):
        if not texts.get(text):
            raise ConfigError(f"{text}: needs a sentence, as {name} is {verdict}, got none")
