"""Training speed compared with torch.nn, transformers and x-transformers.

python benchmarks/train_speed.py --task translator --seconds 300        # on an H200, 200 seconds
python benchmarks/train_speed.py --task language vision --seconds 270   # and mostly compiling

One update is forward, backward, clipping and fused AdamW, in bfloat16 autocast. Ours go through
`train.Trainer`, with batches from the CPU; the peers get theirs on the GPU and a bare loop without
synchronisation. Each contender is a process; they compile in parallel, then are timed in turns, one
at a time. Reported is the median over the rounds.

translator  6 + 6 layers, dim 512, 8 heads, ffn_dim 2048, vocabulary of 32,000, shared and tied
            embeddings, dropout 0.1; about 16,000 tokens per side, lengths 52 … 128 in three buckets
language    the sizes of GPT-2: 12 layers, dim 768, vocabulary of 50,257, batches of 8 × 1024 tokens
vision      ViT-B/16, 64 images of 224 × 224
"""

import argparse
import json
import multiprocessing as mp
import os
import statistics
import sys
import time
import traceback
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace

from train_peers import peer

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
CONTENDERS = {
    "translator": ("regard", "torch.nn", "transformers", "x-transformers"),
    "language": ("regard", "transformers", "x-transformers"),
    "vision": ("regard", "torch.nn", "transformers", "x-transformers"),
}
# graphs: compiled and replayed as CUDA graphs, as our loop does by default where it can
MODES = ("eager", "compiled", "graphs")
FULL = SimpleNamespace(
    dim=512, heads=8, layers=6, vocab=32000, buckets=((256, 64), (170, 96), (128, 128)),
    language=(12, 768, 12, 50257, 8, 1024), vision=(12, 768, 12, 224, 16, 64), steps=15,
)  # fmt: skip
TINY = SimpleNamespace(
    dim=32, heads=2, layers=1, vocab=50, buckets=((8, 8), (5, 12), (4, 16)),
    language=(1, 32, 2, 50, 2, 16), vision=(1, 32, 2, 32, 16, 2), steps=3,
)  # fmt: skip


# ---- data: the same batches for every contender


def batches_of(task, size):
    import torch

    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randint, generator=generator)
    if task == "vision":
        _, _, _, image, _, rows = size.vision
        pixels = torch.randn(rows, 3, image, image, generator=generator)
        return [{"pixels": pixels, "label": draw(0, 1000, (rows,))}]
    if task == "language":
        *_, vocab, rows, time_ = size.language
        return [{"tokens": draw(4, vocab, (rows, time_ + 1))}]
    batches = []
    for rows, time_ in size.buckets:
        low = time_ * 13 // 16
        lengths = draw(low, time_ + 1, (2, rows))
        lengths[:, 0] = time_
        source, target = draw(4, size.vocab, (rows, time_)), draw(4, size.vocab, (rows, time_ + 1))
        batches.append({"source": source, "source_lengths": lengths[0]})
        batches[-1] |= {"target": target, "target_lengths": lengths[1] + 1}
    return batches


def count(task, batch):
    """Source and target tokens without padding, or images."""
    if task == "vision":
        return len(batch["label"])
    if task == "language":
        return batch["tokens"][:, 1:].numel()
    return int(batch["source_lengths"].sum() + batch["target_lengths"].sum()) - len(batch["source"])


# ---- the models


def ours(task, size):
    from regard import models

    if task == "vision":
        layers, dim, heads, image, patch, _ = size.vision
        changes = {
            "layers": layers,
            "dim": dim,
            "heads": heads,
            "image_size": image,
            "patch_size": patch,
        }
        return models.VisionTransformer(models.vision_base(1000, **changes)), "class"
    if task == "language":
        layers, dim, heads, vocab, _, time_ = size.language
        changes = {"layers": layers, "dim": dim, "heads": heads, "max_positions": time_}
        return models.LanguageModel(models.language_base(vocab, **changes)), "next_token"
    changes = {"layers": size.layers, "decoder_layers": size.layers, "dim": size.dim}
    config = models.translator_base(size.vocab, heads=size.heads, **changes)
    return models.Translator(config), "translation"


# ---- an update


def our_update(task, size, device, mode):
    from regard import train

    class Cycle:
        position = 0

        def __init__(self):
            self.batches = batches_of(task, size)

        def __iter__(self):
            while True:
                self.position += 1
                yield self.batches[(self.position - 1) % len(self.batches)]

        def state(self):
            return {"position": self.position}

        def restore(self, state):
            self.position = state["position"]

    model, loss = ours(task, size)
    config = train.TrainConfig(
        steps=1 << 40,
        label_smoothing=_smoothing(task),
        device=device,
        compile="off" if mode == "eager" else "on",
    )
    trainer = train.Trainer(model, train.objective(loss), Cycle(), config)
    trainer.updater.compile_policy.graphs &= mode == "graphs"

    def update():
        trainer.step += 1
        trainer.updater.step(trainer.objective, trainer.step, config.lr)

    return update, lambda: trainer.updater.read_stats()


def their_update(task, kind, size, device, mode):
    import torch
    import torch.nn.functional as F

    model, call = peer(task, kind, size)
    model = model.to(device).train()
    batches = [{k: x.to(device) for k, x in batch.items()} for batch in batches_of(task, size)]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, betas=(0.9, 0.98), fused=True)

    def loss_of(model, batch):
        logits, targets = call(model, batch)
        return F.cross_entropy(
            logits.flatten(0, -2).float(), targets.flatten(), label_smoothing=_smoothing(task)
        )

    if mode != "eager":  # the three shapes are compiled one by one
        options = "reduce-overhead" if mode == "graphs" else None
        loss_of = torch.compile(loss_of, dynamic=False, mode=options)
    turn = iter(range(1 << 40))
    half = torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda")

    def update():
        optimizer.zero_grad(set_to_none=True)
        torch.compiler.cudagraph_mark_step_begin()
        with half:
            loss = loss_of(model, batches[next(turn) % len(batches)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return update, lambda: None


def _smoothing(task):
    return 0.1 if task == "translator" else 0.0


# ---- contenders: one process each, timed in turns


def work(pipe, gate, task, kind, mode, size, device):
    import torch

    torch.set_num_threads(2)
    torch.manual_seed(0)
    try:
        if kind == "regard":
            update, read = our_update(task, size, device, mode)
        else:
            update, read = their_update(task, kind, size, device, mode)
        with gate:  # as many at a time as the memory holds
            began = time.perf_counter()
            for _ in range(6 if mode == "eager" else 18):
                update()
            read()
            _synchronize(device)
            pipe.send({"ready": time.perf_counter() - began})
            _empty_cache(device)
        batches = batches_of(task, size)
        amount = sum(count(task, batch) for batch in batches) / len(batches)
        while pipe.recv() != "end":
            for _ in range(len(batches)):
                update()
            _synchronize(device)
            pipe.send(_time(update, size.steps, amount, device))
            read()
            _empty_cache(device)
    except BaseException:
        pipe.send({"error": traceback.format_exc()[-1500:]})


def _time(update, steps, amount, device):
    import torch

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for _ in range(steps):
        update()
    _synchronize(device)
    seconds = (time.perf_counter() - start) / steps
    peak = torch.cuda.max_memory_reserved() / 2**30 if device == "cuda" else 0.0
    return {"ms": seconds * 1e3, "per_second": amount / seconds, "gib": peak}


def _synchronize(device):
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _empty_cache(device):
    import torch

    if device == "cuda":
        torch.cuda.empty_cache()


def compare(
    tasks, kinds, modes, *, tiny=False, seconds=240.0, rounds=5, max_compiling=12, log=print
):
    """Timings of all contenders, one row each, with the error of those that failed."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, context = TINY if tiny else FULL, mp.get_context("spawn")
    end, gate = time.monotonic() + seconds, context.Semaphore(max_compiling)
    rows, pipes, processes = [], [], []
    for task in tasks:
        for kind in CONTENDERS[task]:
            for mode in modes:
                if kind in kinds:
                    mine, theirs = context.Pipe()
                    args = (theirs, gate, task, kind, mode, size, device)
                    processes.append(context.Process(target=work, args=args, daemon=True))
                    processes[-1].start()
                    pipes.append(mine)
                    rows.append({"task": task, "kind": kind, "mode": mode, "times": []})
    try:
        for pipe, row, process in zip(pipes, rows, processes, strict=True):
            _receive(pipe, row, end - 0.3 * seconds, log)
            if "error" in row:
                process.terminate()  # or it would compile while the others are timed
        for n in range(rounds):
            for pipe, row in zip(pipes, rows, strict=True):
                if "error" not in row and time.monotonic() < end - 5:
                    pipe.send("time")
                    timing = _receive(pipe, {}, end, lambda *_: None)
                    row["times"].append(timing)
                    row |= {"error": timing["error"]} if "error" in timing else {}
            log(f"round {n + 1} of {rounds} done")
    finally:
        for process in processes:
            process.terminate()
    for row in rows:
        times = [timing for timing in row.pop("times") if "ms" in timing]
        if times:
            row["ms"] = statistics.median(timing["ms"] for timing in times)
            row["per_second"] = statistics.median(timing["per_second"] for timing in times)
            row["gib"] = times[-1]["gib"]
            row["rounds_ms"] = [round(timing["ms"], 2) for timing in times]
    return rows


def _receive(pipe, row, end, log):
    message = {"error": "not ready in time"}
    try:
        if pipe.poll(max(0.0, end - time.monotonic())):
            message = pipe.recv()
    except EOFError:
        message = {"error": "died"}
    row |= message
    name = " ".join(str(row.get(k)) for k in ("task", "kind", "mode"))
    log(f"{name}: {message.get('error', round(message.get('ready', 0.0), 1))}")
    return row


def table(rows):
    lines = ["task        contender       mode       ms/update   per second   of best peer   GiB"]
    for row in rows:
        if "ms" not in row:
            lines.append(f"{row['task']:11} {row['kind']:15} {row['mode']:8} {row.get('error')}")
            continue
        same = [r for r in rows if r["task"] == row["task"] and "ms" in r]
        peers = [r["per_second"] for r in same if r["kind"] != "regard"] or [row["per_second"]]
        lines.append(
            f"{row['task']:11} {row['kind']:15} {row['mode']:8} {row['ms']:10.2f} "
            f"{row['per_second']:13,.0f} {row['per_second'] / max(peers):10.2f} {row['gib']:12.1f}"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--only", nargs="+", default=list(CONTENDERS["translator"]))
    parser.add_argument("--mode", nargs="+", default=list(MODES))
    parser.add_argument("--tiny", action="store_true", help="Small sizes, to try it on a CPU.")
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", default=None)
    args = parser.parse_args()
    kinds = [kind for kind in args.only if find_spec(kind.replace("-", "_")) is not None]
    for kind in set(args.only) - set(kinds):
        print(f"{kind} is not installed here, so it is not compared")
    rows = compare(
        args.task, kinds, args.mode, tiny=args.tiny, seconds=args.seconds, rounds=args.rounds
    )
    print(table(rows))
    if args.json:
        with open(args.json, "w") as out:
            json.dump(rows, out, indent=1)


if __name__ == "__main__":
    sys.exit(main())
