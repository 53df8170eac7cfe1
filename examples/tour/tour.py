"""A short overview of the library in the terminal, every number computed live.

python examples/tour/tour.py                     # seconds on one CPU core
python examples/tour/tour.py docs/start/tour.svg # the picture of the README
"""

import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from regard import models
from regard.errors import BackendError
from regard.files import write_text
from regard.ops import (
    Causal,
    Chunked,
    Documents,
    Local,
    Mask,
    Padding,
    attend,
    attention_weights,
    dot,
    softargmax,
)
from regard.ops.attend.op import AttendBackend
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting

WIDTH = 80  # of a plain terminal and of the README's figure

# Three tokens of four features and the weights of one head; all results are exact fractions.
TOKENS = [[1, -1, 0, 2], [0, -1, 2, 1], [-2, 2, -1, 0]]
W_Q = [[0, 1], [1, 0], [-0.5, 0], [1, 1]]
W_K = [[1, -0.5], [0, 1], [0.5, -0.5], [1, 0.5]]
W_V = [[1, 0.5], [-0.5, 0], [-1, 2], [0.5, -1]]


def main(svg: Path | None = None) -> None:
    """Print attention by hand, sharpness, masks, backends that agree, and the models."""
    console = Console(record=svg is not None, width=WIDTH, highlight=False)
    print_head_by_hand(console)
    print_sharpness(console)
    print_masks(console)
    print_backends(console)
    print_models(console)
    if svg is not None:
        write_text(svg, console.export_svg(title="regard"))


def print_head_by_hand(console: Console) -> None:
    """One attention head over three tokens, step by step."""
    _heading(console, "One head by hand", "rows are tokens; scores have one row per query")
    x, w_q, w_k, w_v = (torch.tensor(m, dtype=torch.float64) for m in (TOKENS, W_Q, W_K, W_V))
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    _beside(
        console,
        _matrix("Q = X W_Q", q, _fraction),
        _matrix("K = X W_K", k, _fraction),
        _matrix("V = X W_V", v, _fraction),
        _matrix("scores = Q Kᵀ", dot(q, k), _fraction),
    )
    variants = {
        "unscaled": {"scale": 1.0},
        "scaled by 1/√2": {},
        "causal, unscaled": {"scale": 1.0, "mask": Causal()},
    }
    for name, terms in variants.items():
        weights, (out, _) = attention_weights(q, k, **terms), attend(q, k, v, **terms)
        console.print()
        _beside(console, _matrix(f"weights, {name}", weights), _matrix("output = weights V", out))


def print_sharpness(console: Console) -> None:
    """Softmax from uniform (beta 0) to argmax (beta ∞); both limits are exact, ties are shared."""
    _heading(console, "Sharpness", "weights of the scores 1, 2, 2, 0 as beta grows")
    scores = torch.tensor([1.0, 2.0, 2.0, 0.0], dtype=torch.float64)
    table = Table(box=None, pad_edge=False)
    for column in ("beta", "1", "2", "2", "0", "entropy / log 4"):
        table.add_column(column, justify="right")
    for beta in (0.0, 0.5, 1.0, 4.0, torch.inf):
        w = softargmax(scores, beta)
        entropy = torch.special.entr(w).sum() / torch.tensor(4.0).log()
        name = "∞" if beta == torch.inf else f"{beta:g}"
        table.add_row(name, *(f"{x:.4f}" for x in w.tolist()), f"{entropy:.3f}")
    console.print(table)


def print_masks(console: Console) -> None:
    """The keys that each mask allows a query to attend to."""
    _heading(console, "Masks", "one row per query, one column per key; & and | combine them")
    ids = torch.tensor([[0] * 3 + [1] * 2 + [2] * 4])
    zoo: dict[str, Mask] = {
        "Causal()": Causal(),
        "Local(2)": Local(2),
        "Causal() & Local(2)": Causal() & Local(2),
        "Chunked(3, left=1)": Chunked(3, left_chunks=1),
        "Causal() & Documents": Causal() & Documents(ids),
        "Causal() & Padding(6)": Causal() & Padding(torch.tensor(6)),
    }
    pictures = [f"[cyan]{name}[/]\n{_mask_text(mask, 9)}" for name, mask in zoo.items()]
    _beside(console, *pictures[:3])
    console.print()
    _beside(console, *pictures[3:])


def print_backends(console: Console) -> None:
    """The same attention by every backend, compared with the reference in float64."""
    _heading(console, "One definition, several backends", "largest difference from float64")
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(
        3, 2, 4, 64, 16, generator=generator
    )  # batch 2, heads 4, time 64, head_dim 16
    mask = Causal() & Local(20)
    truth = _outputs(q.double(), k.double(), v.double(), mask, "reference")
    table, refused = Table(box=None, pad_edge=False), []
    for column in ("backend", "output", "lse", "gradient of q"):
        table.add_column(column)
    for backend in ("reference", "tiled", "fused", "flex"):
        try:
            got = _outputs(q, k, v, mask, backend)
        except BackendError as error:
            refused.append(str(error))
            continue
        errors = ((a - b).abs().max().item() for a, b in zip(got, truth, strict=True))
        table.add_row(backend, *(f"{error:.1e}" for error in errors))
    console.print(table)
    for reason in refused:
        console.print(f"[dim]{reason}[/]")


def print_models(console: Console) -> None:
    """Every model, small and untrained: input and output shapes, parameters, attention calls."""
    _heading(console, "Models", "batch 2, untrained; attention calls are counted as they run")
    table = Table(box=None, pad_edge=False)
    for column in ("", "in", "out", "parameters", "attentions"):
        numeric = column in ("parameters", "attentions")
        table.add_column(column, justify="right" if numeric else "left")
    for model, inputs in _models():
        out, attentions = _run(model.eval(), inputs)
        table.add_row(
            type(model).__name__,
            ", ".join(_shape(x) for x in inputs),
            _shape(out),
            f"{sum(p.numel() for p in model.parameters()):,}",
            str(attentions),
        )
    console.print(table)


def _models() -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
    tokens = torch.arange(24).view(2, 12)
    picture, sound = torch.zeros(2, 1, 28, 28), torch.zeros(2, 100, 40)
    vision = models.VisionTransformer(models.vision_tiny(classes=10))
    size = sum(p.numel() for p in vision.parameters())
    return [
        (models.Translator(models.translator_tiny(vocab=100)), (tokens, tokens[:, :9])),
        (models.RecurrentTranslator(models.recurrent_tiny(vocab=100)), (tokens, tokens[:, :9])),
        (models.LanguageModel(models.language_tiny(vocab=100)), (tokens,)),
        (models.Classifier(models.classifier_tiny(vocab=100, classes=3)), (tokens,)),
        (vision, (picture,)),
        (models.ResNet(models.resnet_of_size(size, models.ResNetConfig(classes=10))), (picture,)),
        (models.MLP(models.MLPConfig(inputs=784, classes=10)), (picture,)),
        (models.Recogniser(models.recogniser_tiny(vocab=30)), (sound,)),
        (models.WordRecogniser(models.WordRecogniserConfig(vocab=30)), (sound,)),
    ]


@torch.no_grad()
def _run(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, int]:
    calls: list[AttentionCall] = []

    def count(call: AttentionCall, proceed: Proceed) -> AttentionResult:
        calls.append(call)
        return proceed(call)

    with intercepting(count):
        out = model(*inputs)
    return (out[0] if isinstance(out, tuple) else out), len(calls)


def _shape(x: Tensor) -> str:
    return " × ".join(str(size) for size in x.shape[1:])


def _outputs(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, backend: AttendBackend
) -> tuple[Tensor, ...]:
    q = q.clone().requires_grad_()
    out, lse = attend(q, k, v, mask=mask, backend=backend)
    (grad,) = torch.autograd.grad(out.square().sum() + lse.sum(), q)
    return out, lse, grad


def _heading(console: Console, title: str, note: str) -> None:
    console.print(f"\n[bold]{title}[/]  [dim]{note}[/]\n")


def _fraction(x: float) -> str:
    return str(Fraction(x).limit_denominator(64))


def _decimal(x: float) -> str:
    return f"{x:.4f}" if x == 0 or abs(x) >= 1e-3 else f"{x:.0e}"


def _matrix(title: str, rows: Tensor, show: Callable[[float], str] = _decimal) -> str:
    cells = [[show(x) for x in row] for row in rows.tolist()]
    width = max(len(cell) for row in cells for cell in row)
    lines = ("  ".join(cell.rjust(width) for cell in row) for row in cells)
    return "\n".join([f"[cyan]{title}[/]", *lines])


def _mask_text(mask: Mask, size: int) -> str:
    rows = mask.dense(size, size).tolist()
    return "\n".join("".join("██" if allowed else "··" for allowed in row) for row in rows)


def _beside(console: Console, *blocks: str) -> None:
    grid = Table.grid(padding=(0, 4))
    for _ in blocks:
        grid.add_column(no_wrap=True)
    grid.add_row(*blocks)
    console.print(grid)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
