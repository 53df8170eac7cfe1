"""How fast models train, beside those of torch.nn, transformers and x-transformers.

python benchmarks/train_speed.py --task translator --seconds 300        # on an H200, 200 seconds
python benchmarks/train_speed.py --task language vision --seconds 270   # and mostly compiling

One update is forward, backward, clipping and fused AdamW, in bfloat16 autocast. Ours go through
`train.Trainer`, batches from the host; the peers get theirs on the GPU and a bare loop that never
waits. Each contender is a process of its own, compiled side by side; then they are timed in turns,
one at a time, and the median over the rounds is taken.

translator  6 + 6 layers of 512, 8 heads, 2048 hidden, 32,000 words, one table for all
            three ends, dropout 0.1; about 16,000 tokens a side, lengths 52 … 128 in three buckets
language    the sizes of GPT-2: 12 layers of 768, 50,257 words, 8 × 1024 tokens
vision      ViT-B/16, 64 pictures of 224 × 224
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
# graphs: compiled, and replayed as CUDA graphs, which our loop does by itself where it can
MODES = ("eager", "compiled", "graphs")
FULL = SimpleNamespace(
    dim=512, heads=8, layers=6, vocab=32000, buckets=((256, 64), (170, 96), (128, 128)),
    language=(12, 768, 12, 50257, 8, 1024), vision=(12, 768, 12, 224, 16, 64), steps=15,
)  # fmt: skip
TINY = SimpleNamespace(
    dim=32, heads=2, layers=1, vocab=50, buckets=((8, 8), (5, 12), (4, 16)),
    language=(1, 32, 2, 50, 2, 16), vision=(1, 32, 2, 32, 16, 2), steps=3,
)  # fmt: skip


# ---- what is trained on: the same batches for everybody


def batches_of(task, size):
    import torch

    luck = torch.Generator().manual_seed(0)
    draw = partial(torch.randint, generator=luck)
    if task == "vision":
        _, _, _, image, _, rows = size.vision
        pixels = torch.randn(rows, 3, image, image, generator=luck)
        return [{"pixels": pixels, "label": draw(0, 1000, (rows,))}]
    if task == "language":
        *_, vocab, rows, time_ = size.language
        return [{"tokens": draw(4, vocab, (rows, time_ + 1))}]
    found = []
    for rows, time_ in size.buckets:
        low = time_ * 13 // 16
        lengths = draw(low, time_ + 1, (2, rows))
        lengths[:, 0] = time_
        source, target = draw(4, size.vocab, (rows, time_)), draw(4, size.vocab, (rows, time_ + 1))
        found.append({"source": source, "source_lengths": lengths[0]})
        found[-1] |= {"target": target, "target_lengths": lengths[1] + 1}
    return found


def counted(task, batch):
    """Tokens that are read or told, without padding; pictures."""
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
        changes = {"layers": layers, "dim": dim, "heads": heads, "image": image, "patch": patch}
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
            self.held = batches_of(task, size)

        def __iter__(self):
            while True:
                self.position += 1
                yield self.held[(self.position - 1) % len(self.held)]

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
        trainer._update()

    return update, lambda: trainer.updater.read_stats()


def their_update(task, kind, size, device, mode):
    import torch
    import torch.nn.functional as F

    model, call = peer(task, kind, size)
    model = model.to(device).train()
    held = [{k: x.to(device) for k, x in batch.items()} for batch in batches_of(task, size)]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, betas=(0.9, 0.98), fused=True)

    def loss_of(model, batch):
        logits, targets = call(model, batch)
        return F.cross_entropy(
            logits.flatten(0, -2).float(), targets.flatten(), label_smoothing=_smoothing(task)
        )

    if mode != "eager":  # each of the three shapes as it is
        how = "reduce-overhead" if mode == "graphs" else None
        loss_of = torch.compile(loss_of, dynamic=False, mode=how)
    turn = iter(range(1 << 40))
    half = torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda")

    def update():
        optimizer.zero_grad(set_to_none=True)
        torch.compiler.cudagraph_mark_step_begin()
        with half:
            loss = loss_of(model, held[next(turn) % len(held)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return update, lambda: None


def _smoothing(task):
    return 0.1 if task == "translator" else 0.0


# ---- contenders as processes, timed in turns


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
            _settle(device)
            pipe.send({"ready": time.perf_counter() - began})
            _let_go(device)
        batches = batches_of(task, size)
        amount = sum(counted(task, batch) for batch in batches) / len(batches)
        while pipe.recv() != "end":
            for _ in range(len(batches)):
                update()
            _settle(device)
            pipe.send(_time(update, size.steps, amount, device))
            read()
            _let_go(device)
    except BaseException:
        pipe.send({"error": traceback.format_exc()[-1500:]})


def _time(update, steps, amount, device):
    import torch

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    for _ in range(steps):
        update()
    _settle(device)
    took = (time.perf_counter() - began) / steps
    peak = torch.cuda.max_memory_reserved() / 2**30 if device == "cuda" else 0.0
    return {"ms": took * 1e3, "per_second": amount / took, "gib": peak}


def _settle(device):
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _let_go(device):
    import torch

    if device == "cuda":
        torch.cuda.empty_cache()


def compare(tasks, kinds, modes, *, tiny=False, seconds=240.0, rounds=5, at_once=12, say=print):
    """Times of all contenders: a row each, with what went wrong where something did."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, context = TINY if tiny else FULL, mp.get_context("spawn")
    end, gate = time.monotonic() + seconds, context.Semaphore(at_once)
    rows, pipes, processes = [], [], []
    for task in tasks:
        for kind in CONTENDERS[task]:
            for mode in modes:
                if kind in kinds:
                    mine, theirs = context.Pipe()
                    given = (theirs, gate, task, kind, mode, size, device)
                    processes.append(context.Process(target=work, args=given, daemon=True))
                    processes[-1].start()
                    pipes.append(mine)
                    rows.append({"task": task, "kind": kind, "mode": mode, "times": []})
    try:
        for pipe, row, process in zip(pipes, rows, processes, strict=True):
            _hear(pipe, row, end - 0.3 * seconds, say)
            if "error" in row:
                process.terminate()  # or it would compile while the others are timed
        for n in range(rounds):
            for pipe, row in zip(pipes, rows, strict=True):
                if "error" not in row and time.monotonic() < end - 5:
                    pipe.send("time")
                    heard = _hear(pipe, {}, end, lambda *_: None)
                    row["times"].append(heard)
                    row |= {"error": heard["error"]} if "error" in heard else {}
            say(f"round {n + 1} of {rounds} done")
    finally:
        for process in processes:
            process.terminate()
    for row in rows:
        good = [one for one in row.pop("times") if "ms" in one]
        if good:
            row["ms"] = statistics.median(one["ms"] for one in good)
            row["per_second"] = statistics.median(one["per_second"] for one in good)
            row["gib"], row["spread"] = good[-1]["gib"], [round(one["ms"], 2) for one in good]
    return rows


def _hear(pipe, row, end, say):
    said = {"error": "not ready in time"}
    try:
        if pipe.poll(max(0.0, end - time.monotonic())):
            said = pipe.recv()
    except EOFError:
        said = {"error": "died"}
    row |= said
    name = " ".join(str(row.get(k)) for k in ("task", "kind", "mode"))
    say(f"{name}: {said.get('error', round(said.get('ready', 0.0), 1))}")
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
    asked = parser.parse_args()
    kinds = [kind for kind in asked.only if find_spec(kind.replace("-", "_")) is not None]
    for kind in set(asked.only) - set(kinds):
        print(f"{kind} is not installed here, so it is not compared")
    rows = compare(
        asked.task, kinds, asked.mode, tiny=asked.tiny, seconds=asked.seconds, rounds=asked.rounds
    )
    print(table(rows))
    if asked.json:
        with open(asked.json, "w") as out:
            json.dump(rows, out, indent=1)


if __name__ == "__main__":
    sys.exit(main())
