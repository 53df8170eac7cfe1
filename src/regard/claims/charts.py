"""Pictures of experiments: data of a chart, stored with the evidence and drawn on demand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from regard.inspection.figures.canvas import COLORMAP, COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = Any  # a sequence of numbers, or a tensor; stored as a list
Log = Literal["", "x", "y", "xy"]
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = "osD^vPX"
ZERO = 1e-17  # an exact zero on a logarithmic axis, below rounding in float64


@dataclass(frozen=True)
class Lines:
    """Curves over a common axis; `bands` are (low, high) limits of curves of the same name.

    A curve of samples, one row per x, is their mean, and its band is from the least to the largest.
    Without a label, the y axis has the name of the only curve.

    >>> Lines([1, 2], {"entropy": [0.5, 0.3]}, x_label="β", y_label="nats").curves
    {'entropy': [0.5, 0.3]}
    """

    x: Numbers
    curves: Mapping[str, Numbers]
    x_label: str
    y_label: str = ""
    log: Log = ""
    bands: Mapping[str, Sequence[Numbers]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        samples = {k: y for k, y in self.curves.items() if isinstance(y, Tensor) and y.ndim == 2}
        bands = {name: (y.amin(1), y.amax(1)) for name, y in samples.items()}
        curves = {**self.curves, **{name: y.mean(1) for name, y in samples.items()}}
        object.__setattr__(self, "bands", {**bands, **self.bands})
        object.__setattr__(self, "curves", curves)
        object.__setattr__(self, "y_label", self.y_label or next(iter(curves), ""))
        _to_lists(self, "x", "curves", "bands")

    def draw(self, axes: "Axes") -> None:
        """Draw on matplotlib axes."""
        for n, (name, y) in enumerate(self.curves.items()):
            marker = MARKERS[n % 7] if len(y) <= 30 else None
            style = {"color": COLOURS[n % 7], "linestyle": DASHES[n % 7], "marker": marker}
            axes.plot(self.x, y, label=name, markersize=4, **style)
            if name in self.bands:
                low, high = self.bands[name]
                axes.fill_between(self.x, low, high, color=COLOURS[n % 7], alpha=0.2, linewidth=0)
        _finish(axes, self.x_label, self.y_label, self.log, legend=len(self.curves) > 1)
        if "x" in self.log and len(self.x) <= 6:  # labels of a log axis would overlap
            axes.set_xticks(self.x, [f"{x:g}" for x in self.x])
            axes.xaxis.minorticks_off()


@dataclass(frozen=True)
class Bars:
    """One bar per name; or, with several groups, one per name and group.

    >>> Bars({"mean pool": 1e-16, "tokens": 7.7}, y_label="largest change", log="y").log
    'y'
    """

    values: Mapping[str, Any]  # numbers, or mappings from group to number
    y_label: str = ""
    log: Log = ""
    intervals: Mapping[str, Numbers] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _to_lists(self, "values", "intervals")

    def draw(self, axes: "Axes") -> None:
        """Draw on matplotlib axes."""
        first = next(iter(self.values.values()))
        groups = list(first) if isinstance(first, Mapping) else [""]
        width = 0.8 / len(groups)
        for n, group in enumerate(groups):
            heights = [v[group] if group else v for v in self.values.values()]
            places = [i + (n - (len(groups) - 1) / 2) * width for i in range(len(heights))]
            axes.bar(places, heights, width * 0.95, label=group, color=COLOURS[n % 7])
            for i, name in enumerate(self.values if not group else ()):
                if name in self.intervals:
                    low, high = self.intervals[name]
                    axes.vlines(places[i], low, high, color="black", linewidth=1.5)
        axes.set_xticks(range(len(self.values)), list(self.values))
        if max(map(len, self.values)) * len(self.values) > 60:
            axes.tick_params(axis="x", rotation=20)
        _finish(axes, "", self.y_label, self.log, legend=len(groups) > 1)


@dataclass(frozen=True)
class Points:
    """Scattered points: pairs of x and y per group; `curves` are drawn behind them.

    >>> Points({"a": ([1, 2], [3, 4])}, x_label="weight", y_label="change").groups
    {'a': [[1, 2], [3, 4]]}
    """

    groups: Mapping[str, Sequence[Numbers]]
    x_label: str
    y_label: str
    log: Log = ""
    curves: Mapping[str, Sequence[Numbers]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _to_lists(self, "groups", "curves")

    def draw(self, axes: "Axes") -> None:
        """Draw on matplotlib axes."""
        for n, (name, (x, y)) in enumerate(self.groups.items()):
            axes.scatter(x, y, s=14, label=name, color=COLOURS[n % 7], marker=MARKERS[n % 7])
        for n, (name, (x, y)) in enumerate(self.curves.items()):
            axes.plot(x, y, label=name, color="black", linestyle=DASHES[n % 7], linewidth=1)
        _finish(axes, self.x_label, self.y_label, self.log, len(self.groups) + len(self.curves) > 1)


@dataclass(frozen=True)
class Maps:
    """Matrices as shaded cells side by side, on one colour scale.

    >>> Maps({"scores": torch.eye(2)}).maps["scores"]
    [[1.0, 0.0], [0.0, 1.0]]
    """

    maps: Mapping[str, Any]
    x_label: str = "key"
    y_label: str = "query"

    def __post_init__(self) -> None:
        _to_lists(self, "maps")


Chart = Lines | Bars | Points | Maps


def draw_chart(chart: Chart, title: str = "") -> "Figure":
    """A matplotlib figure of a chart.

    >>> draw_chart(Bars({"a": 1.0, "b": 2.0})).get_size_inches().tolist()
    [5.2, 3.2]
    """
    if isinstance(chart, Maps):
        return _draw_maps(chart, title)
    figure = new_figure(5.2, 3.2)
    axes = figure.subplots()
    chart.draw(axes)
    figure.suptitle(title, fontsize=10)
    return figure


def describe_chart(chart: Chart) -> str:
    """One sentence for people who do not see the picture.

    >>> describe_chart(Bars({"a": 1.0, "b": 2.0}, y_label="error"))
    'error: a 1, b 2'
    """
    if isinstance(chart, Maps):
        return f"Maps of {', '.join(chart.maps)}: {chart.y_label} by {chart.x_label}"
    if isinstance(chart, Bars):
        values = ", ".join(f"{name} {_short(v)}" for name, v in chart.values.items())
        return f"{chart.y_label}: {values}".lstrip(": ")
    if isinstance(chart, Points):
        return f"{chart.y_label} against {chart.x_label}: {', '.join(chart.groups)}"
    ends = ", ".join(f"{n} from {y[0]:.3g} to {y[-1]:.3g}" for n, y in chart.curves.items())
    span = f"{chart.x_label} from {chart.x[0]:.3g} to {chart.x[-1]:.3g}"
    return f"{chart.y_label} for {span}: {ends}"


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"({group}) {v:.3g}" for group, v in value.items())
    return f"{value:.3g}"


def _draw_maps(chart: Maps, title: str) -> "Figure":
    count = len(chart.maps)
    figure = new_figure(max(3.2, 2.4 * count + 0.6), 3.0)
    numbers = [x for rows in chart.maps.values() for row in rows for x in row]
    low, high = min(0.0, *numbers), max(numbers)
    # a diverging scale where there are negative numbers, which cividis would hide
    limit = max(-low, high)
    scale = (
        {"vmin": -limit, "vmax": limit, "cmap": "RdBu_r"} if low < 0 else {"vmin": 0, "vmax": high}
    )
    panels, image = figure.subplots(1, count, squeeze=False)[0], None
    for axes, (name, rows) in zip(panels, chart.maps.items(), strict=True):
        image = axes.imshow(rows, **{"cmap": COLORMAP, "interpolation": "nearest"} | scale)
        axes.set_title(name, fontsize=9)
        axes.locator_params(integer=True)
        axes.set_xlabel(chart.x_label, fontsize=9)
        axes.tick_params(labelsize=7)
    panels[0].set_ylabel(chart.y_label, fontsize=9)
    assert image is not None
    figure.colorbar(image, ax=panels.tolist(), shrink=0.8).ax.tick_params(labelsize=7)
    figure.suptitle(title, fontsize=10)
    return figure


def _finish(axes: "Axes", x_label: str, y_label: str, log: str, legend: bool) -> None:
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_ylabel(y_label, fontsize=9)
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(fontsize=8, frameon=False)


def _to_lists(chart: Any, *names: str) -> None:
    for name in names:
        data = _to_list(getattr(chart, name))
        is_log = name in ("curves", "values") and "y" in chart.log
        object.__setattr__(chart, name, _raise_zeros(data) if is_log else data)


def _raise_zeros(x: Any) -> Any:
    """Zeros as `ZERO`, which a logarithmic axis can show."""
    if isinstance(x, dict):
        return {name: _raise_zeros(value) for name, value in x.items()}
    return [_raise_zeros(value) for value in x] if isinstance(x, list) else x or ZERO


def _to_list(x: Any) -> Any:
    """Tensors, in any nesting, as lists of numbers, so that a chart is JSON."""
    if isinstance(x, Tensor):
        return x.detach().double().tolist() if x.is_floating_point() else x.tolist()
    if isinstance(x, Mapping):
        return {str(key): _to_list(value) for key, value in x.items()}
    if isinstance(x, Sequence) and not isinstance(x, str):
        return [_to_list(value) for value in x]
    return x
