"""How well `regard work --check` marks: papers written by numpy, right and wrong.

    python benchmarks/marking.py --draws 20 --right 500            # 30 minutes on one core

A paper is computed here without Regard, in float64, with one mistake of a list or none; a student
may round at the end or work on with the rounded numbers. Printed are the right papers with a step
called wrong, the wrong papers that pass, the wrong papers whose first wrong step is named, and the
causes that are named rightly (alone or among equals) and wrongly. A draw is left out, and counted,
where its digits cannot show the mistake: the wrong numbers are within two units of the right ones,
or within what follows from the numbers written before, each moved by half a unit.
"""

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np

from regard import work

Given = dict[str, np.ndarray]
Paper = dict[str, np.ndarray]
DIGITS = (2, 3, 4, 5, 6)


def softmax(s: np.ndarray) -> np.ndarray:
    e = np.exp(s)
    return e / e.sum(1, keepdims=True)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


class Pupil:
    """Computes step by step: rounds what is written down where told to, and makes one mistake."""

    def __init__(self, mistake: str, digits: int | None, moved: int = -1):
        self.mistake, self.digits, self.paper = mistake, digits, {}
        self.first = ""
        self.moved = moved  # the rounded number, counted from 0, that is half a unit off
        self.rounded = 0

    def has(self, *mistakes: str) -> bool:
        return self.mistake in mistakes

    def write(self, name: str, value: Any, **wrong: Any) -> np.ndarray:
        """Write a step down; `wrong` has the value by the name of the mistake."""
        value = np.asarray(value, float)
        if self.mistake in wrong:
            value, self.first = np.asarray(wrong[self.mistake], float), self.first or name
        if self.digits is not None:
            exact, value = value, rounded(value, self.digits)
            moves = np.cumsum(value != exact) - 1 + self.rounded == self.moved
            moves = moves.reshape(value.shape) & (value != exact)
            self.rounded += int((value != exact).sum())
            value = np.where(moves, value + unit(value, self.digits) / 2, value)
        self.paper[name] = value
        return value


def rounded(x: np.ndarray, digits: int) -> np.ndarray:
    return np.vectorize(lambda v: v if np.isinf(v) else float(f"{v:.{digits - 1}e}"))(x)


def unit(x: np.ndarray, digits: int) -> np.ndarray:
    """One unit of the last of so many digits."""
    return 10.0 ** (np.floor(np.log10(np.maximum(abs(x), 1e-9))) - digits + 1)


def attention(g: Given, p: Pupil, suffix: str = "", scale: float | None = None) -> np.ndarray:
    """From queries, keys and values to outputs; rows are tokens."""
    q, k, v = g["q"], g["k"], g["v"]
    d, n = q.shape[1], k.shape[0]
    b = d**-0.5
    s = p.write(f"S{suffix}", q @ k.T, **{"S transposed": (q @ k.T).T if len(q) == n else q @ k.T})
    z = p.write(
        f"Z{suffix}",
        s * b,
        **{
            "no scale": s,
            "scale twice": s * b * b,
            "divided by d": s / d,
            "multiplied": s / b,
            "rounded scale": s * round(b, 2),
            "full width": s * float(g.get("width", np.array(d))) ** -0.5,
        },
    )
    e = p.write(
        f"E{suffix}", np.exp(z), **{"exp left out": z, "exp(-z)": np.exp(-z), "squared": z**2}
    )
    total = e.sum(1, keepdims=True)
    total = p.write(
        f"N{suffix}", total, **{"column sums": e.sum(0)[:, None] if len(e) == n else total}
    )
    a = p.write(
        f"A{suffix}",
        e / total,
        **{"not normalised": e, "divided by n": e / n, "divided by columns": e / e.sum(0)},
    )
    wrong_values = {"K for V": k, "X for V": g.get("x", v)}
    fits = {
        name: a @ x for name, x in wrong_values.items() if x.shape[0] == n and x.shape == v.shape
    }
    return p.write(f"H{suffix}", a @ v, **fits)


def projections(g: Given, p: Pupil, y: np.ndarray) -> Given:
    x, wq, wk, wv = g["X"], g["W_Q"], g["W_K"], g["W_V"]
    swaps = {"W_K for W_Q": x @ wk, "W_Q transposed": x @ wq.T, "W_V for W_Q": x @ wv}
    q = p.write("Q", x @ wq, **swaps)
    k = p.write(
        "K", y @ wk, **{"W_Q for W_K": y @ wq, "W_V for W_K": y @ wv, "W_K transposed": y @ wk.T}
    )
    v = p.write(
        "V", y @ wv, **{"W_K for W_V": y @ wk, "W_V transposed": y @ wv.T, "W_Q for W_V": y @ wq}
    )
    return {"q": q, "k": k, "v": v, "x": x}


def self_attention(g: Given, p: Pupil) -> None:
    attention(projections(g, p, g["X"]), p)


def cross_attention(g: Given, p: Pupil) -> None:
    attention(projections(g, p, g["Y"]), p)


def multi_head(g: Given, p: Pupil) -> None:
    x, heads, outputs = g["X"], 2, []
    width = x.shape[1] // heads
    parts = {name: x @ g[f"W_{name}"] for name in "QKV"}
    for h in range(heads):
        cut = slice(h * width, (h + 1) * width)
        q, k, v = (p.write(f"{name}_{h + 1}", parts[name][:, cut]) for name in "QKV")
        outputs.append(
            attention({"q": q, "k": k, "v": v, "width": np.array(x.shape[1])}, p, f"_{h + 1}")
        )
    joined = p.write("H", np.hstack(outputs), **{"heads swapped": np.hstack(outputs[::-1])})
    wrong = {"W_O left out": joined, "W_O transposed": joined @ g["W_O"].T}
    p.write("O", joined @ g["W_O"], **wrong)


def layer_norm(g: Given, p: Pupil) -> None:
    x, eps = g["X"], 1e-5
    m = p.write("m", x.mean(1, keepdims=True), **{"sum for mean": x.sum(1, keepdims=True)})
    c = p.write("c", x - m, **{"mean not subtracted": x, "mean added": x + m})
    var = (c**2).mean(1, keepdims=True)
    n = x.shape[1]
    v = p.write(
        "v",
        var,
        **{"n - 1": var * n / (n - 1), "sum of squares": var * n, "root already": np.sqrt(var)},
    )
    r = p.write(
        "r", 1 / np.sqrt(v + eps), **{"no root": 1 / (v + eps), "not inverted": np.sqrt(v + eps)}
    )
    y = p.write("n", c * r, **{"divided by r": c / r})
    gain, shift = g["gamma"], g["beta"]
    wrong = {"no gain": y + shift, "no shift": y * gain, "shift scaled": (y + shift) * gain}
    p.write("LN", y * gain + shift, **wrong)


def feed_forward(g: Given, p: Pupil) -> None:
    x, w1, b1, w2, b2 = (g[name] for name in ("X", "W_1", "b_1", "W_2", "b_2"))
    f = p.write("F", x @ w1 + b1, **{"no bias": x @ w1, "bias subtracted": x @ w1 - b1})
    wrong = {"no relu": f, "absolute": abs(f), "negative part": np.minimum(f, 0)}
    h = p.write("G", np.maximum(f, 0), **wrong)
    p.write("FF", h @ w2 + b2, **{"no second bias": h @ w2})


def rnn(g: Given, p: Pupil) -> None:
    x, w, u, h = g["x"], g["W"], g["U"], g["h"]
    for t in range(1, x.shape[1] + 1):
        xt = x[:, t - 1 : t]
        s = w @ xt + u @ h
        wrong = {"U h left out": w @ xt, "W x left out": u @ h, "U transposed": w @ xt + u.T @ h}
        s = p.write(f"hs_{t}", s, **(wrong if t == 1 else {}))
        wrong = {"no tanh": s, "sigma for tanh": sigmoid(s)}
        h = p.write(f"h_{t}", np.tanh(s), **(wrong if t == 1 else {}))


def gru(g: Given, p: Pupil) -> None:
    x, h = g["x"], g["h"]
    for t in range(1, x.shape[1] + 1):
        xt, first = x[:, t - 1 : t], t == 1
        z, r = (sigmoid(g[f"W_{k}"] @ xt + g[f"U_{k}"] @ h) for k in "zr")
        z = p.write(
            f"z_{t}",
            z,
            **(
                {"z and r swapped": r, "tanh for sigma": np.tanh(np.log(z / (1 - z)))}
                if first
                else {}
            ),
        )
        r = p.write(f"r_{t}", r)
        gh, gx = p.write(f"gh_{t}", g["U"] @ h), g["W"] @ xt
        total = gx + r * gh
        wrong = {"no reset": np.tanh(gx + gh), "no tanh": total, "sigma for tanh": sigmoid(total)}
        wrong["reset first"] = np.tanh(gx + g["U"] @ (r * h))
        c = p.write(f"g_{t}", np.tanh(total), **(wrong if first else {}))
        wrong = {"gate inverted": (1 - z) * c + z * h, "old state left out": z * c}
        wrong |= {"1 - z left out": h + z * c, "candidate not gated": (1 - z) * h + c}
        h = p.write(f"h_{t}", (1 - z) * h + z * c, **(wrong if first else {}))


def lstm(g: Given, p: Pupil) -> None:
    x, h, c = g["x"], g["h"], g["c"]
    for t in range(1, x.shape[1] + 1):
        xt, first = x[:, t - 1 : t], t == 1
        s = {k: g[f"W_{k}"] @ xt + g[f"U_{k}"] @ h for k in "ifoc"}
        gates = {k: sigmoid(s[k]) for k in "ifo"}
        wrong = {
            "i and f swapped": gates["f"],
            "U h left out": sigmoid(g["W_i"] @ xt),
            "tanh for sigma": np.tanh(s["i"]),
        }
        i = p.write(f"i_{t}", gates["i"], **(wrong if first else {}))
        f = p.write(f"f_{t}", gates["f"])
        o = p.write(f"o_{t}", gates["o"])
        wrong = {"no tanh": s["c"], "sigma for tanh": sigmoid(s["c"])}
        new = p.write(f"g_{t}", np.tanh(s["c"]), **(wrong if first else {}))
        wrong = {"forget gate left out": c + i * new, "input gate left out": f * c + new}
        wrong |= {"old cell left out": i * new, "gates swapped": i * c + f * new}
        c = p.write(f"c_{t}", f * c + i * new, **(wrong if first else {}))
        wrong = {"no tanh of the cell": o * c, "output gate left out": np.tanh(c)}
        h = p.write(f"h_{t}", o * np.tanh(c), **(wrong if first else {}))


def positions(g: Given, p: Pupil) -> None:
    index, width = np.arange(float(g["p"]))[:, None], int(g["d"])
    pair = np.arange(width // 2)
    wrong = {"2 left out": g["base"] ** (-pair / width)}
    omega = p.write("ω", g["base"] ** (-2 * pair / width), **wrong)[None]
    angles = p.write("Θ", index @ omega, **{"counted from 1": (index + 1) @ omega})
    sines, cosines = np.sin(angles), np.cos(angles)
    wrong = {"sines first": np.hstack([sines, cosines])}
    wrong["cosines first"] = np.stack([cosines, sines], 2).reshape(len(index), width)
    p.write("PE", np.stack([sines, cosines], 2).reshape(len(index), width), **wrong)


def moments(g: Given, p: Pupil) -> None:
    sigma, m, d = g["sigma"], g["mm"], g["d"]
    of_mean = p.write("v_1", 2 * sigma**2 * m, **{"2 left out": sigma**2 * m})
    of_noise = p.write("v_2", d * sigma**4, power=d * sigma**2)
    v = p.write("v", of_mean + of_noise, **{"mean term left out": of_noise})
    p.write("s", np.sqrt(v), **{"no root": v})


# what is computed, shapes that are drawn, options, and words that name each mistake
W22 = {f"W_{k}": (2, 2) for k in "QKV"}
ATTENTION = {
    "S transposed": "transposed",
    "no scale": "scale was left out",
    "scale twice": "twice",
    "divided by d": "without the root|twice",
    "multiplied": "divided instead",
    "rounded scale": "rounded",
    "exp left out": "exponential was left out",
    "exp(-z)": "sign of the exponent",
    "squared": "squared",
    "column sums": "columns were added|softmax was taken over",
    "not normalised": "not divided",
    "divided by n": "number of keys",
    "divided by columns": "column sums",
    "K for V": "K was used for V",
}
PROJECTIONS = {
    "W_K for W_Q": "W_K was used for W_Q",
    "W_Q transposed": "transposed",
    "W_V for W_Q": "W_V was used for W_Q",
    "W_Q for W_K": "W_Q was used for W_K",
    "W_V for W_K": "W_V was used for W_K",
    "W_K transposed": "transposed",
    "W_K for W_V": "W_K was used for W_V",
    "W_V transposed": "transposed",
    "W_Q for W_V": "W_Q was used for W_V",
}
GATES = dict.fromkeys(("W_z", "U_z", "W_r", "U_r", "W", "U"), (2, 2))
CELLS = {f"{m}_{k}": (2, 2) for m in "WU" for k in "ifoc"}
PROBLEMS: dict[str, tuple[Callable[[Given, Pupil], None], dict, dict, dict[str, str]]] = {
    "attention": (self_attention, {"X": (3, 2), **W22}, {}, ATTENTION | PROJECTIONS),
    "cross-attention": (
        cross_attention,
        {"X": (2, 2), "Y": (3, 2), **W22},
        {},
        {k: v for k, v in ATTENTION.items() if k not in ("S transposed", "column sums")}
        | PROJECTIONS,
    ),
    "multi-head": (
        multi_head,
        {"X": (3, 4), **{f"W_{k}": (4, 4) for k in "QKVO"}},
        {"heads": 2},
        {
            "full width": "√4",
            "not normalised": "not divided",
            "exp left out": "exponential",
            "no scale": "scale was left out",
            "W_O left out": "W_O was left out",
            "W_O transposed": "transposed",
            "heads swapped": "order",
        },
    ),
    "layer-norm": (
        layer_norm,
        {"X": (2, 4), "gamma": (1, 4), "beta": (1, 4)},
        {"eps": "1e-5"},
        {
            "sum for mean": "not divided",
            "mean not subtracted": "not subtracted",
            "mean added": "added",
            "n - 1": "n - 1",
            "sum of squares": "not divided",
            "root already": "root was already",
            "no root": "root was left out",
            "not inverted": "not inverted",
            "divided by r": "divided",
            "no gain": "gain was left out",
            "no shift": "shift was left out",
            "shift scaled": "scaled too",
        },
    ),
    "feed-forward": (
        feed_forward,
        {"X": (2, 2), "W_1": (2, 3), "b_1": (1, 3), "W_2": (3, 2), "b_2": (1, 2)},
        {},
        {
            "no bias": "bias was left out",
            "bias subtracted": "bias was subtracted",
            "no relu": "left out",
            "absolute": "absolute",
            "negative part": "negative part",
            "no second bias": "bias was left out",
        },
    ),
    "rnn": (
        rnn,
        {"x": (2, 2), "W": (2, 2), "U": (2, 2), "h": (2, 1)},
        {},
        {
            "U h left out": "left out|only",
            "W x left out": "left out|only",
            "U transposed": "transposed",
            "no tanh": "left out",
            "sigma for tanh": "σ was used",
        },
    ),
    "gru": (
        gru,
        {"x": (2, 2), **GATES, "h": (2, 1)},
        {},
        {
            "z and r swapped": "used for|swapped",
            "tanh for sigma": "tanh was used",
            "no reset": "r_1 was left out",
            "no tanh": "left out",
            "sigma for tanh": "σ was used",
            "reset first": "reset|before",
            "gate inverted": "inverted",
            "old state left out": "old state",
            "1 - z left out": "1 - z",
            "candidate not gated": "not gated",
        },
    ),
    "lstm": (
        lstm,
        {"x": (2, 2), **CELLS, "h": (2, 1), "c": (2, 1)},
        {},
        {
            "i and f swapped": "used for|swapped",
            "U h left out": "left out|only",
            "tanh for sigma": "tanh was used",
            "no tanh": "left out",
            "sigma for tanh": "σ was used",
            "forget gate left out": "left out",
            "input gate left out": "left out",
            "old cell left out": "left out",
            "gates swapped": "used for|swapped",
            "no tanh of the cell": "left out",
            "output gate left out": "left out",
        },
    ),
    "positions": (
        positions,
        {"p": [3, 4, 5], "d": [4, 6], "base": [100, 1000, 10000]},
        {},
        {
            "2 left out": "2 before i",
            "counted from 1": "counted from 1",
            "sines first": "sines come first",
            "cosines first": "swapped",
        },
    ),
    "moments": (
        moments,
        {"sigma": [0.5, 1.5, 2, 3], "mm": [2, 3, 5, 6.5], "d": [16, 25, 64, 100]},
        {"samples": 0},
        {
            "2 left out": "2 was left out",
            "power": "σ²",
            "mean term left out": "v_1 was left out",
            "no root": "root was left out",
        },
    ),
}


def papers(
    family: str, mistake: str, draws: int, count: Counter[str]
) -> Iterator[tuple[Any, Pupil, dict[str, Any]]]:
    """The solution, who wrote it, and the answers; draws where the mistake shows."""
    compute, shapes, options, _ = PROBLEMS[family]
    rng = np.random.default_rng(len(family) * 1000 + len(mistake))
    found = 0
    for attempt in range(20 * draws):
        given = {name: _draw(rng, shape) for name, shape in shapes.items()}
        digits, on_rounded = DIGITS[attempt % len(DIGITS)], bool(attempt % 2)
        pupil = Pupil(mistake, digits if on_rounded else None)
        compute(given, pupil)
        if mistake and not _shows(compute, given, pupil, digits):
            count["hidden"] += 1
            continue
        problem = {"family": family, **options, "given": {k: v.tolist() for k, v in given.items()}}
        solution = work.solve(problem)
        names = {step.name for step in solution.steps}
        answers = {name: _written(x, digits) for name, x in pupil.paper.items() if name in names}
        if pupil.first and pupil.first not in names:
            raise SystemExit(f"{family}: no step {pupil.first}, only {', '.join(names)}")
        yield solution, pupil, answers
        found += 1
        if found == draws:
            return


def _shows(
    compute: Callable[[Given, Pupil], None], given: Given, wrong: Pupil, digits: int
) -> bool:
    """Whether the numbers of the first wrong step differ by more than rounding explains."""
    if not wrong.first:
        return False

    def right(digits: int | None, moved: int = -1) -> np.ndarray:
        pupil = Pupil("", digits, moved)
        compute(given, pupil)
        return pupil.paper[wrong.first]

    exact, kept = right(None), Pupil("", digits)
    compute(given, kept)
    difference = abs(rounded(wrong.paper[wrong.first], digits) - exact)
    last = unit(exact, digits)
    if (difference <= 2 * last).all():
        return False
    following = kept.paper[wrong.first]
    room = sum(abs(right(digits, n) - following) for n in range(kept.rounded))
    difference = abs(rounded(wrong.paper[wrong.first], digits) - following)
    return bool((difference > room + last / 2).any())


def _draw(rng: np.random.Generator, shape: tuple[int, ...] | list[float]) -> np.ndarray:
    """Tenths of a shape, or one of a list."""
    return rng.choice(shape) if isinstance(shape, list) else rng.integers(-15, 16, shape) / 10


def _written(x: np.ndarray, digits: int) -> list[list[str]]:
    return [[_number(v, digits) for v in row] for row in np.atleast_2d(x)]


def _number(x: float, digits: int) -> str:
    """To so many significant digits, in powers of ten if it is larger."""
    text = f"{x:.{digits - 1}e}"
    return text if abs(x) >= 10**digits or np.isinf(x) else f"{Decimal(text):f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20, help="wrong papers per mistake and family")
    parser.add_argument("--right", type=int, default=200, help="right papers per family")
    parser.add_argument("--families", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--verbose", action="store_true", help="print every paper marked otherwise")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    started = time.monotonic()
    for family in options.families:
        count: Counter[str] = Counter()
        for solution, _, answers in papers(family, "", options.right, count):
            findings = work.check_answers(solution, answers)
            accused = [x for x in findings if x.verdict == "wrong"]
            count["right"] += 1
            count["accused"] += bool(accused)
            if accused and options.verbose:
                print(f"  {family}: accused {accused[0].name} {accused[0].differences}")
        for mistake, cause in PROBLEMS[family][3].items():
            for solution, pupil, answers in papers(family, mistake, options.draws, count):
                findings = work.check_answers(solution, answers)
                first = next((x for x in findings if x.verdict == "wrong"), None)
                count["wrong"] += 1
                count["passed"] += first is None
                count["step"] += first is not None and first.name == pupil.first
                said = first.diagnosis if first else ""
                count["cause"] += bool(re.search(cause, said))
                count["other cause"] += bool(said) and not re.search(cause, said)
                if options.verbose and not (
                    first and first.name == pupil.first and re.search(cause, said)
                ):
                    print(f"  {family}: {mistake} in {pupil.first}: {first and (first.name, said)}")
        _print(family, count)
        total += count
    _print(f"all, {time.monotonic() - started:.0f} s", total)


def _print(name: str, count: Counter[str]) -> None:
    wrong = max(count["wrong"], 1)
    print(
        f"{name:<16} accused {count['accused']} of {count['right']} · passed {count['passed']} of "
        f"{count['wrong']} · first wrong step {count['step'] / wrong:.1%} · cause "
        f"{count['cause'] / wrong:.1%}, another {count['other cause'] / wrong:.1%} · "
        f"{count['hidden']} left out",
        flush=True,
    )


if __name__ == "__main__":
    main()
