"""How much do gates, attention and doing without recurrence buy, for the same budget?

python benchmarks/ladder.py --out ladder.json --seconds 600 --workers 2   # trains ten models
python benchmarks/ladder.py --draw ladder.json                            # docs/results/figures/ladder.svg

RNN, GRU and LSTM, each without attention, with Luong's, and hybrid (attention to its own past too),
and a Transformer: the same phrases, the same number of tokens, about as many parameters. What each
gets on 1000 unseen facts, how far back in a long source the gradient reaches, and the time.
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
from regard.runs.run import build_model

CELLS = ("rnn", "gru", "lstm")
ATTENTIONS = {"": "none", "-attention": "luong", "-hybrid": "hybrid"}
RUNGS = (*(cell + more for cell in CELLS for more in ATTENTIONS), "transformer")
RATES = {"rnn": 1e-3, "gru": 3e-3, "lstm": 4e-3, "transformer": 5e-3}
STILL = 0.01  # of the last gradient: what is less has not reached there
LONG, COUNT = 20, 32  # source tokens at least, and phrases, that the reach is measured on
GRACE = 40  # seconds for scores, after the training was told to stop


def main(
    out: Annotated[Path | None, typer.Option(help="Where to write what was found.")] = None,
    seconds: Annotated[float, typer.Option(help="For all of it.")] = 600,
    workers: Annotated[int, typer.Option(help="Models that are trained side by side.")] = 2,
    steps: int = 1200,
    tokens: int = 4096,
    device: str = "auto",
    texts: int = 20000,
    test: int = 1000,
    only: Annotated[str, typer.Option(help="Some rungs, with commas.")] = ",".join(RUNGS),
    runs: Annotated[Path | None, typer.Option(help="Keep the runs in this folder.")] = None,
    draw: Annotated[Path | None, typer.Option(help="Draw what was found before.")] = None,
) -> None:
    if draw is not None:
        found = json.loads(draw.read_text(encoding="utf-8"))
        print(table(found["rungs"]))
        picture(found["rungs"], Path("docs/results/figures/ladder.svg"))
        return
    names = only.split(",")
    place = runs or Path(tempfile.mkdtemp())
    place.mkdir(parents=True, exist_ok=True)
    asked = {"steps": steps, "tokens": tokens, "device": device, "texts": texts, "test": test}
    rounds = -(-len(names) // workers)
    each = max(1.0, (seconds - 20) / rounds - GRACE)
    torch.set_num_threads(1)
    rungs = train_all(names, asked, place, workers, each)
    for row in rungs:  # alone on the machine, unlike its training
        row["update_ms"] = time_alone(row["rung"], asked)
        print(f"{row['rung']:16} an update alone {row['update_ms']:.1f} ms", flush=True)
    found = {"machine": machine(), "asked": asked, "rungs": rungs}
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(rungs))


# ---- the models, of one size


def recipe_of(rung: str, asked: dict[str, Any]) -> tasks.Recipe:
    """The phrases recipe with another model and the common budget."""
    base = tasks.recipe("phrases")
    cell, _, _ = rung.partition("-")
    steps, tokens = asked["steps"], asked["tokens"]
    loop = replace(
        base.train, steps=steps, tokens=tokens, lr=RATES[cell], warmup=min(200, steps // 5 + 1),
        evaluate_every=steps, save_every=steps, device=asked["device"], precision="float32",
        compile="off",
    )  # fmt: skip
    chosen = replace(base.data, texts=asked["texts"], test=asked["test"])
    # two layers that read and two that write, of about a million parameters like the other rungs
    model = replace(base.model, heads=4, layers=2, decoder_layers=2)
    recipe = replace(base, name=f"ladder-{rung}", data=chosen, train=loop, model=model)
    return recipe if rung == "transformer" else replace(recipe, model=matched(rung, recipe))


def matched(rung: str, recipe: tasks.Recipe) -> RecurrentTranslatorConfig:
    """The recurrent model whose parameters come nearest to the Transformer's."""
    vocab = words(recipe.data).vocab
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
def words(of: tasks.PhrasesData) -> data.Tokenizer:
    return of.tokenizer(0)


# ---- training, each in a process


def train_all(
    names: list[str], asked: dict[str, Any], place: Path, workers: int, seconds: float
) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    waiting, running = list(names), {}
    print(f"{len(names)} models, {workers} at a time, {seconds:.0f} s each at most", flush=True)
    while waiting or running:
        while waiting and len(running) < workers:
            name = waiting.pop(0)
            process = context.Process(target=climb, args=(name, asked, place, seconds))
            process.start()
            running[name] = process, time.monotonic() + seconds + GRACE
        time.sleep(0.2)
        for name, (process, late) in list(running.items()):
            if process.is_alive() and time.monotonic() > late:
                print(f"{name}: stopped without a result", flush=True)
                process.kill()
            if not process.is_alive():
                del running[name]
    files = [place / f"{name}.json" for name in names]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]


def climb(rung: str, asked: dict[str, Any], place: Path, seconds: float) -> None:
    """Train one model until its last step or its time is up, score it, and write that down."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.set_float32_matmul_precision("high")
    recipe = recipe_of(rung, asked)
    tokenizer = words(recipe.data)
    before = reach(build_model(recipe, tokenizer), recipe, tokenizer)
    folder = place / rung
    # the loop takes it as it would take Ctrl-C: it saves, and what is there is scored; once the
    # loop has ended it comes too late to matter
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    bell = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGTERM))
    bell.daemon = True
    bell.start()
    began = time.monotonic()
    outcome = runs.start_run(recipe, folder, show=False)
    bell.cancel()
    run = runs.load_run(folder)
    scores = run.result.get("test")
    if scores is None:
        scores = recipe.data.scores(tokenizer, "test")(run.model)
    row = {
        "rung": rung,
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "steps": outcome.step,
        "tokens": outcome.step * recipe.train.batch_tokens,
        "seconds": run.result.get("seconds", round(time.monotonic() - began, 1)),
        "exact": scores["exact"],
        "bleu": scores["bleu"],
        "loss": scores["loss"],
        "signature": scores["signature"],
        "reach_before": before,
        "reach": reach(run.model, recipe, tokenizer),
    }
    (place / f"{rung}.json").write_text(json.dumps(row), encoding="utf-8")
    print(f"{rung:16} exact {row['exact']:.3f} bleu {row['bleu']:.1f} "
          f"{outcome.step} steps {row['seconds']:.0f} s", flush=True)  # fmt: skip


def time_alone(rung: str, asked: dict[str, Any], count: int = 12) -> float:
    """Milliseconds of an update, the middle one of some; on a CPU its own time, of one thread."""
    recipe = recipe_of(rung, asked | {"steps": count})
    tokenizer = words(recipe.data)
    trainer = train.Trainer(
        build_model(recipe, tokenizer), train.objective(recipe.data.objective),
        recipe.data.batches(tokenizer, recipe.train), recipe.train,
    )  # fmt: skip
    on_gpu, took = trainer.device.type == "cuda", []
    clock = time.perf_counter if on_gpu else time.process_time
    for _ in range(count):
        began = clock()
        trainer._update()
        if on_gpu:
            torch.cuda.synchronize()
        took.append(clock() - began)
    trainer.prefetcher.close()
    return 1e3 * sorted(took[2:])[(count - 2) // 2]


# ---- how far back the gradient reaches


def reach(model: nn.Module, recipe: tasks.Recipe, tokenizer: data.Tokenizer) -> dict[str, float]:
    """How many steps back from the end of a source the gradient is still there.

    ‖∂J/∂h_t‖ ≥ STILL · ‖∂J/∂h_last‖ for all steps from t to the last; the memory C_t for an LSTM.
    J is the loss of the right answer. A Transformer has no steps: there x_t, what enters its
    encoder at each place, is asked instead.
    """
    model, encode = model.cpu().float(), data.pair_preprocessor(tokenizer)
    steps, of = [], []
    for pair in long_pairs(recipe, tokenizer):
        batch = data.collate([encode(pair)])
        norms = by_place(model, batch)
        last = float(norms[-1])
        back = 0
        while back + 1 < len(norms) and float(norms[-2 - back]) >= STILL * last:
            back += 1
        steps.append(back)
        of.append(len(norms) - 1)
    mean = sum(steps) / len(steps)
    return {"steps": mean, "of": sum(of) / len(of), "share": sum(steps) / sum(of)}


def by_place(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The norm of the gradient at each place of the source."""
    loss = train.objective("translation").loss_sum
    if isinstance(model, models.RecurrentTranslator):
        was, _ = model.training, model.eval()
        found = rg.gradient_norms(model, lambda: loss(model, batch, 0.0)).time["encoder.0"]
        model.train(was)
        return (found.h if found.c is None else found.c)[0]
    seen: list[torch.Tensor] = []
    hook = model.source_embedding.register_forward_hook(lambda *given: seen.append(given[-1]))
    j = loss(model, batch, 0.0)
    hook.remove()
    (grad,) = torch.autograd.grad(j, seen[:1])
    return grad[0].norm(dim=-1)


def long_pairs(recipe: tasks.Recipe, tokenizer: data.Tokenizer) -> list[data.Pair]:
    pairs = recipe.data.source(4000).examples("test", 0)
    found = (pair for pair in pairs if len(tokenizer.encode(pair.source)) >= LONG)
    return [pair for pair, _ in zip(found, range(COUNT), strict=False)]


# ---- telling


def machine() -> str:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{gpu}, {os.cpu_count()} cores, torch {torch.__version__}"


def table(rungs: list[dict[str, Any]]) -> str:
    """The ladder as Markdown."""
    lines = ["| rung | parameters | tokens | exact | BLEU | reach, untrained | reach | update |",
             "|---|---:|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for r in rungs:
        far = [f"{r[k]['steps']:.1f} of {r[k]['of']:.1f}" for k in ("reach_before", "reach")]
        lines.append(
            f"| {told(r['rung'])} | {r['parameters'] / 1e6:.2f} M | {r['tokens'] / 1e6:.1f} M "
            f"| {100 * r['exact']:.1f}% | {r['bleu']:.1f} | {far[0]} | {far[1]} "
            f"| {r['update_ms']:.0f} ms |"
        )
    return "\n".join(lines)


def told(rung: str) -> str:
    cell, _, more = rung.partition("-")
    name = "Transformer" if cell == "transformer" else cell.upper()
    return name + {"": "", "attention": " + attention", "hybrid": " hybrid"}[more]


def picture(rungs: list[dict[str, Any]], path: Path) -> None:
    """Four columns of bars, a row a rung."""
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
        bars = axes.barh([told(r["rung"]) for r in rungs], values, color=colours)
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
