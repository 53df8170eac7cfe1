"""Papers of a class, written by numpy alone: each rounds, and some make one mistake."""

import csv
import json
from fractions import Fraction
from pathlib import Path

import numpy as np

MISTAKES = {  # step where it shows, and words that have to name it; "" is a right paper
    "": ("", ""),
    "W_K for W_Q": ("Q", "W_K was used for W_Q"),
    "K for V": ("H", "K was used for V"),
    "not normalised": ("A", "not divided"),
    "exp left out": ("A", "exponential"),
    "S sign": ("S", "sign"),
}


def solve(problem: dict, mistake: str = "") -> dict[str, np.ndarray]:
    """Self-attention without a scale; tokens are rows."""
    given = {
        name: np.array([[float(Fraction(str(x))) for x in row] for row in rows])
        for name, rows in problem["given"].items()
    }
    x = given["X"]
    q = x @ given["W_K" if mistake == "W_K for W_Q" else "W_Q"]
    k, v = x @ given["W_K"], x @ given["W_V"]
    s = q @ k.T
    if mistake == "S sign":
        s[np.unravel_index(np.argmax(abs(s)), s.shape)] *= -1
    e = s if mistake == "exp left out" else np.exp(s)
    with np.errstate(all="ignore"):
        a = e if mistake == "not normalised" else e / e.sum(1, keepdims=True)
        h = a @ (k if mistake == "K for V" else v)
    return {"Q": q, "K": k, "V": v, "S": s, "A": a, "H": h}


def written(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if value != round(value) else str(int(value))


def draw_papers(folder: Path, seed: int = 0) -> dict[str, str]:
    """Fill in the table of a class; returns the mistake of each student."""
    rng = np.random.default_rng(seed)
    students = json.loads((folder / "class.json").read_text())["students"]
    text = (folder / "answers/answers.csv").read_text(encoding="utf-8-sig")
    table = list(csv.reader(text.splitlines()))
    drawn = {}
    for n, (student, row) in enumerate(zip(students, table[1:], strict=True)):
        right = solve(student["problem"])
        names = list(MISTAKES)
        for mistake in [names[n % len(names)], *names]:
            wrong, step = solve(student["problem"], mistake), MISTAKES[mistake][0]
            if not mistake or (
                np.isfinite(wrong["A"]).all() and np.max(abs(wrong[step] - right[step])) > 0.05
            ):
                break
        drawn[student["name"]] = mistake
        decimals = int(rng.integers(3, 6))
        cells = [
            written(wrong[head.partition("[")[0]][int(i) - 1, int(j) - 1], decimals)
            for head in table[0][2:]
            for i, j in [head[head.index("[") + 1 : -1].split(",")]
        ]
        row += cells
    with (folder / "answers/answers.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(table)
    return drawn
