"""RNN, GRU, LSTM, attention and Transformer compared at an equal budget.

python benchmarks/ladder.py --out ladder.json --seconds 600 --workers 2   # trains ten models
python benchmarks/ladder.py --draw ladder.json       # docs/results/figures/ladder.svg

RNN, GRU and LSTM, each without attention, with Luong attention, and hybrid (attention to their own
past too), and a Transformer: the same phrases, the same number of tokens, about as many parameters.
Reported are exact match and BLEU on 1000 held-out phrases, how far back in a long source the
gradient reaches, and the time of an update.
"""

import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

import regard as rg
from regard import data, models, runs, tasks, train
from regard.models import RecurrentTranslatorConfig
from regard.runs.contents import build_model

CELLS = ("rnn", "gru", "lstm")
ATTENTIONS = {"": "none", "-attention": "luong", "-hybrid": "hybrid"}
RUNGS = (*(cell + more for cell in CELLS for more in ATTENTIONS), "transformer")
RATES = {"rnn": 1e-3, "gru": 3e-3, "lstm": 4e-3, "transformer": 5e-3}
THRESHOLD = 0.01  # of the last gradient norm: the gradient reaches where it is larger
MIN_TOKENS, PHRASES = 20, 32  # the reach is measured on so many phrases of so many tokens
GRACE = 40  # seconds for the evaluation after a training was stopped


def main(
    out: Annotated[Path | None, typer.Option(help="Write the results to this file.")] = None,
    seconds: Annotated[float, typer.Option(help="Time limit of all trainings.")] = 600,
    workers: Annotated[int, typer.Option(help="Models trained in parallel.")] = 2,
    steps: int = 1200,
    batch_tokens: int = 4096,
    device: str = "auto",
    vocab_texts: int = 20000,
    test_size: int = 1000,
    only: Annotated[str, typer.Option(help="Rungs to train, comma-separated.")] = ",".join(RUNGS),
    runs: Annotated[Path | None, typer.Option(help="Keep the runs in this folder.")] = None,
    draw: Annotated[Path | None, typer.Option(help="Draw the results in this file.")] = None,
) -> None:
    if draw is not None:
        results = json.loads(draw.read_text(encoding="utf-8"))
        print(table(results["rungs"]))
        draw_bars(results["rungs"], Path("docs/results/figures/ladder.svg"))
        return
    names = only.split(",")
    folder = runs or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    budget = {"steps": steps, "batch_tokens": batch_tokens, "device": device}
    budget |= {"vocab_texts": vocab_texts, "test_size": test_size}
    rounds = -(-len(names) // workers)
    each = max(1.0, (seconds - 20) / rounds - GRACE)
    torch.set_num_threads(1)
    rungs = train_all(names, budget, folder, workers, each)
    for row in rungs:  # nothing else runs now, unlike during training
        row["update_ms"] = time_update(row["rung"], budget)
        print(f"{row['rung']:16} update {row['update_ms']:.1f} ms", flush=True)
    results = {"machine": machine(), "budget": budget, "rungs": rungs}
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table(rungs))


# ---- the models, of one size


def recipe_of(rung: str, budget: dict[str, Any]) -> tasks.Recipe:
    """The phrases recipe with another model and the common budget."""
    base = tasks.recipe("phrases")
    cell, _, _ = rung.partition("-")
    steps = budget["steps"]
    loop = replace(
        base.train, steps=steps, batch_tokens=budget["batch_tokens"], lr=RATES[cell],
        warmup=min(200, steps // 5 + 1), evaluate_every=steps, save_every=steps,
        device=budget["device"], precision="float32", compile="off",
    )  # fmt: skip
    chosen = tasks.PhrasesTask(vocab_texts=budget["vocab_texts"], test_size=budget["test_size"])
    # two encoder and two decoder layers: about a million parameters, like the other rungs
    model = replace(base.model, heads=4, layers=2, decoder_layers=2)
    recipe = replace(base, name=f"ladder-{rung}", data=chosen, train=loop, model=model)
    return recipe if rung == "transformer" else replace(recipe, model=matched(rung, recipe))


def matched(rung: str, recipe: tasks.Recipe) -> RecurrentTranslatorConfig:
    """The recurrent model whose parameters come nearest to the Transformer's."""
    vocab = tokenizer_of(recipe.data).vocab
    cell, dash, more = rung.partition("-")

    def config(hidden: int, vocab: int) -> RecurrentTranslatorConfig:
        return RecurrentTranslatorConfig(
            source_vocab=vocab, target_vocab=vocab, cell=cell, attention=ATTENTIONS[dash + more],
            dim=recipe.model.dim, hidden=hidden,
        )  # fmt: skip

    def size(model: Any) -> int:
        with torch.device("meta"):
            return sum(p.numel() for p in models.build(model).parameters())

    want = size(replace(recipe.model, source_vocab=vocab, target_vocab=vocab))
    best = min(range(64, 1025, 8), key=lambda hidden: abs(size(config(hidden, vocab)) - want))
    return config(best, 1)


@cache
def tokenizer_of(phrases: tasks.Task) -> data.Tokenizer:
    tokenizer = phrases.tokenizer(0)
    assert tokenizer is not None
    return tokenizer


# ---- training, each in a process


def train_all(
    names: list[str], budget: dict[str, Any], folder: Path, workers: int, seconds: float
) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    waiting, running = list(names), {}
    print(f"{len(names)} models, {workers} at a time, {seconds:.0f} s each at most", flush=True)
    while waiting or running:
        while waiting and len(running) < workers:
            name = waiting.pop(0)
            process = context.Process(target=climb, args=(name, budget, folder, seconds))
            process.start()
            running[name] = process, time.monotonic() + seconds + GRACE
        time.sleep(0.2)
        for name, (process, late) in list(running.items()):
            if process.is_alive() and time.monotonic() > late:
                print(f"{name}: stopped without a result", flush=True)
                process.kill()
            if not process.is_alive():
                del running[name]
    files = [folder / f"{name}.json" for name in names]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]


def climb(rung: str, budget: dict[str, Any], parent: Path, seconds: float) -> None:
    """Train one model until its last step or the time limit, evaluate it, and write the result."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.set_float32_matmul_precision("high")
    recipe = recipe_of(rung, budget)
    tokenizer = tokenizer_of(recipe.data)
    before = reach(build_model(recipe, tokenizer), recipe, tokenizer)
    folder = parent / rung
    # the loop handles it like Ctrl-C: it saves, and the checkpoint is evaluated; after the loop has
    # ended it is ignored
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    timer = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    began = time.monotonic()
    outcome = runs.fit(recipe, folder, show=False)
    timer.cancel()
    run = runs.load_run(folder)
    scores = run.result.get("test")
    if scores is None:
        scores = recipe.data.evaluator(tokenizer, "test")(run.model)
    row = {
        "rung": rung,
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "steps": outcome.step,
        "tokens": outcome.step * recipe.data.batch_limit(recipe.train),
        "seconds": run.result.get("seconds", round(time.monotonic() - began, 1)),
        "exact": scores["exact"],
        "bleu": scores["bleu"],
        "loss": scores["loss"],
        "signature": scores["signature"],
        "reach_before": before,
        "reach": reach(run.model, recipe, tokenizer),
    }
    (parent / f"{rung}.json").write_text(json.dumps(row), encoding="utf-8")
    print(f"{rung:16} exact {row['exact']:.3f} bleu {row['bleu']:.1f} "
          f"{outcome.step} steps {row['seconds']:.0f} s", flush=True)  # fmt: skip


def time_update(rung: str, budget: dict[str, Any], count: int = 12) -> float:
    """Median milliseconds of an update; on a CPU its process time, of one thread."""
    recipe = recipe_of(rung, budget | {"steps": count})
    tokenizer = tokenizer_of(recipe.data)
    trainer = train.Trainer(
        build_model(recipe, tokenizer), train.objective(recipe.data.objective),
        recipe.data.batches(tokenizer, recipe.train), recipe.train,
    )  # fmt: skip
    on_gpu, times = trainer.device.type == "cuda", []
    clock = time.perf_counter if on_gpu else time.process_time
    for step in range(1, count + 1):
        began = clock()
        trainer.updater.step(trainer.objective, step, recipe.train.lr)
        if on_gpu:
            torch.cuda.synchronize()
        times.append(clock() - began)
    trainer.prefetcher.close()
    return 1e3 * sorted(times[2:])[(count - 2) // 2]


# ---- how far back the gradient reaches


def reach(model: nn.Module, recipe: tasks.Recipe, tokenizer: data.Tokenizer) -> dict[str, float]:
    """How many steps back from the end of a source the gradient reaches.

    ‖∂J/∂h_t‖ ≥ THRESHOLD · ‖∂J/∂h_last‖ for all steps from t to the last; of an LSTM the cell
    state C_t. J is the loss of the reference. For a Transformer, which has no steps, x_t is taken
    instead, the input of its encoder at each position.
    """
    model, encode = model.cpu().float(), data.pair_preprocessor(tokenizer)
    steps, of = [], []
    for pair in long_pairs(recipe, tokenizer):
        batch = data.collate([encode(pair)])
        norms = gradient_norms(model, batch)
        last = float(norms[-1])
        back = 0
        while back + 1 < len(norms) and float(norms[-2 - back]) >= THRESHOLD * last:
            back += 1
        steps.append(back)
        of.append(len(norms) - 1)
    mean = sum(steps) / len(steps)
    return {"steps": mean, "of": sum(of) / len(of), "share": sum(steps) / sum(of)}


def gradient_norms(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The norm of the gradient at each position of the source."""
    loss = train.objective("translation").loss_sum
    if isinstance(model, models.RecurrentTranslator):
        was, _ = model.training, model.eval()
        norms = rg.gradient_norms(model, lambda: loss(model, batch, 0.0)).time["encoder.0"]
        model.train(was)
        return (norms.h if norms.c is None else norms.c)[0]
    inputs: list[torch.Tensor] = []
    hook = model.source_embedding.register_forward_hook(lambda *args: inputs.append(args[-1]))
    j = loss(model, batch, 0.0)
    hook.remove()
    (grad,) = torch.autograd.grad(j, inputs[:1])
    return grad[0].norm(dim=-1)


def long_pairs(recipe: tasks.Recipe, tokenizer: data.Tokenizer) -> list[data.Pair]:
    assert isinstance(recipe.data, tasks.PhrasesTask)
    pairs = recipe.data.source(4000).examples("test", 0)
    long = (pair for pair in pairs if len(tokenizer.encode(pair.source)) >= MIN_TOKENS)
    return [pair for pair, _ in zip(long, range(PHRASES), strict=False)]


# ---- report


def machine() -> str:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{gpu}, {os.cpu_count()} cores, torch {torch.__version__}"


def table(rungs: list[dict[str, Any]]) -> str:
    """The results as a Markdown table."""
    lines = ["| rung | parameters | tokens | exact | BLEU | reach, untrained | reach | update |",
             "|---|---:|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for r in rungs:
        far = [f"{r[k]['steps']:.1f} of {r[k]['of']:.1f}" for k in ("reach_before", "reach")]
        lines.append(
            f"| {label(r['rung'])} | {r['parameters'] / 1e6:.2f} M | {r['tokens'] / 1e6:.1f} M "
            f"| {100 * r['exact']:.1f}% | {r['bleu']:.1f} | {far[0]} | {far[1]} "
            f"| {r['update_ms']:.0f} ms |"
        )
    return "\n".join(lines)


def label(rung: str) -> str:
    cell, _, more = rung.partition("-")
    name = "Transformer" if cell == "transformer" else cell.upper()
    return name + {"": "", "attention": " + attention", "hybrid": " hybrid"}[more]


def draw_bars(rungs: list[dict[str, Any]], path: Path) -> None:
    """Four bar charts, one row per rung."""
    from regard.inspection.figures.canvas import new_figure, save_figure

    columns = {
        "exact answers, %": [100 * r["exact"] for r in rungs],
        "BLEU": [r["bleu"] for r in rungs],
        "gradient reach, % of the source": [100 * r["reach"]["share"] for r in rungs],
        "an update, ms": [r["update_ms"] for r in rungs],
    }
    shades = {"rnn": "#00204d", "gru": "#565d6d", "lstm": "#a69c75", "transformer": "#e0c22f"}
    colours = [shades[r["rung"].partition("-")[0]] for r in rungs]
    figure = new_figure(11, 3.6)
    for axes, (title, values) in zip(figure.subplots(1, 4, sharey=True), columns.items(),
                                     strict=True):  # fmt: skip
        bars = axes.barh([label(r["rung"]) for r in rungs], values, color=colours)
        axes.bar_label(bars, fmt="%.0f", fontsize=8, padding=2)
        axes.set_title(title, fontsize=9)
        axes.margins(x=0.18)
        axes.spines[["top", "right"]].set_visible(False)
        if title == "gradient reach, % of the source":
            before = [100 * r["reach_before"]["share"] for r in rungs]
            axes.plot(before, range(len(rungs)), "|", color="#c1272d", ms=9, mew=2,
                      label="before training")  # fmt: skip
            axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False)
    figure.axes[0].invert_yaxis()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path)


if __name__ == "__main__":
    typer.run(main)
