"""How fast models train, beside torch.nn's and transformers' of the same size.

python benchmarks/train_speed.py          # about four minutes on an H200, mostly compiling

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
from types import SimpleNamespace

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
CONTENDERS = {
    "translator": ("regard", "torch.nn", "transformers"),
    "language": ("regard", "transformers"),
    "vision": ("regard", "torch.nn", "transformers"),
}
VARIANTS = {}  # what to change before a kind of regard is built: to try an idea beside the rest
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
        changes = {"layers": layers, "dim": dim, "heads": heads, "max_time": time_}
        return models.LanguageModel(models.language_base(vocab, **changes)), "next_token"
    changes = {"layers": size.layers, "decoder_layers": size.layers, "dim": size.dim}
    config = models.translator_base(size.vocab, heads=size.heads, **changes)
    return models.Translator(config), "translation"


def peer(task, kind, size):
    """A model and the function from it and a batch to logits and targets, -100 where padded."""
    return {
        ("translator", "torch.nn"): torch_translator,
        ("translator", "transformers"): marian,
        ("language", "transformers"): gpt2,
        ("vision", "torch.nn"): torch_vit,
        ("vision", "transformers"): hf_vit,
    }[task, kind](size)


def torch_translator(size):
    import torch
    from torch import nn

    from regard.ops import sinusoidal

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(size.vocab, size.dim)
            nn.init.normal_(self.table.weight, std=size.dim**-0.5)
            self.body = nn.Transformer(
                size.dim, size.heads, size.layers, size.layers, 4 * size.dim, 0.1, batch_first=True
            )
            self.body.encoder.enable_nested_tensor = False
            self.drop = nn.Dropout(0.1)
            code = sinusoidal(torch.arange(512), size.dim).float()
            self.register_buffer("code", code, persistent=False)
            self.register_buffer("future", torch.triu(torch.ones(512, 512) > 0, 1), False)

        def embed(self, tokens):
            x = self.table(tokens) * size.dim**0.5
            return self.drop(x + self.code[: tokens.shape[1]])

        def forward(self, source, target, padded):
            n = target.shape[1]
            x = self.body(
                self.embed(source), self.embed(target), tgt_mask=self.future[:n, :n],
                src_key_padding_mask=padded, memory_key_padding_mask=padded, tgt_is_causal=True,
            )  # fmt: skip
            return x @ self.table.weight.T

    def call(model, batch):
        source, target = batch["source"], batch["target"]
        padded = _places(source) >= batch["source_lengths"][:, None]
        return model(source, target[:, :-1], padded), _targets(batch)

    return Model(), call


def marian(size):
    from transformers import MarianConfig, MarianMTModel

    model = MarianMTModel(
        MarianConfig(
            vocab_size=size.vocab, d_model=size.dim, encoder_layers=size.layers,
            decoder_layers=size.layers, encoder_attention_heads=size.heads,
            decoder_attention_heads=size.heads, encoder_ffn_dim=4 * size.dim,
            decoder_ffn_dim=4 * size.dim, activation_function="relu", dropout=0.1,
            scale_embedding=True, max_position_embeddings=512, pad_token_id=0, eos_token_id=2,
            decoder_start_token_id=1, attn_implementation="sdpa",
        )
    )  # fmt: skip

    def call(model, batch):
        seen = (_places(batch["source"]) < batch["source_lengths"][:, None]).long()
        told = model(
            input_ids=batch["source"], attention_mask=seen, use_cache=False,
            decoder_input_ids=batch["target"][:, :-1],
        )  # fmt: skip
        return told.logits, _targets(batch)

    return model, call


def gpt2(size):
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, dim, heads, vocab, _, time_ = size.language
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab, n_positions=time_, n_embd=dim, n_layer=layers, n_head=heads,
            bos_token_id=0, eos_token_id=0, attn_implementation="sdpa",
        )
    )  # fmt: skip

    def call(model, batch):
        tokens = batch["tokens"]
        return model(tokens[:, :-1], use_cache=False).logits, tokens[:, 1:]

    return model, call


def torch_vit(size):
    import torch
    from torch import nn

    layers, dim, heads, image, patch, _ = size.vision

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, dim, patch, patch)
            self.cls = nn.Parameter(torch.zeros(1, 1, dim))
            self.places = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, dim) * 0.02)
            layer = nn.TransformerEncoderLayer(
                dim, heads, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True
            )
            body = nn.TransformerEncoder(layer, layers, nn.LayerNorm(dim), False)
            self.body, self.head = body, nn.Linear(dim, 1000)

        def forward(self, pixels):
            x = self.patches(pixels).flatten(2).mT
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.places
            return self.head(self.body(x)[:, 0])

    return Model(), lambda model, batch: (model(batch["pixels"]), batch["label"])


def hf_vit(size):
    from transformers import ViTConfig, ViTForImageClassification

    layers, dim, heads, image, patch, _ = size.vision
    model = ViTForImageClassification(
        ViTConfig(
            hidden_size=dim, num_hidden_layers=layers, num_attention_heads=heads,
            intermediate_size=4 * dim, image_size=image, patch_size=patch, num_labels=1000,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
        )
    )  # fmt: skip
    return model, lambda model, batch: (model(batch["pixels"]).logits, batch["label"])


def _places(tokens):
    import torch

    return torch.arange(tokens.shape[1], device=tokens.device)


def _targets(batch):
    target = batch["target"][:, 1:]
    return target.masked_fill(_places(target) + 1 >= batch["target_lengths"][:, None], -100)


# ---- an update


def our_update(task, size, device, compiled):
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
        smoothing=_smoothing(task),
        device=device,
        compile="on" if compiled else "off",
    )
    trainer = train.Trainer(model, train.objective(loss), Cycle(), config)

    def update():
        trainer._update()

    return update, lambda: trainer.updates.read()


def their_update(task, kind, size, device, compiled):
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

    if compiled:
        loss_of = torch.compile(loss_of, dynamic=False)  # each of the three shapes as it is
    turn = iter(range(1 << 40))
    half = torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda")

    def update():
        optimizer.zero_grad(set_to_none=True)
        with half:
            loss = loss_of(model, held[next(turn) % len(held)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return update, lambda: None


def _smoothing(task):
    return 0.1 if task == "translator" else 0.0


# ---- contenders as processes, timed in turns


def work(pipe, gate, task, kind, compiled, size, device):
    import torch

    torch.set_num_threads(2)
    torch.manual_seed(0)
    try:
        if kind.startswith("regard"):
            VARIANTS.get(kind, lambda: None)()
            update, read = our_update(task, size, device, compiled)
        else:
            update, read = their_update(task, kind, size, device, compiled)
        with gate:  # as many at a time as the memory holds
            began = time.perf_counter()
            for _ in range(15 if compiled else 6):
                update()
            read()
            _settle(device)
            pipe.send({"ready": time.perf_counter() - began})
            _let_go(device)
        batches = batches_of(task, size)
        amount = sum(counted(task, batch) for batch in batches) / len(batches)
        while (order := pipe.recv()) != "end":
            for _ in range(len(batches)):
                update()
            _settle(device)
            if order == "profile":
                pipe.send(_profile(update, len(batches), device))
            else:
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
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    return {"ms": took * 1e3, "per_second": amount / took, "gib": peak}


def _profile(update, steps, device):
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=kinds) as seen:
        for _ in range(steps):
            update()
        _settle(device)
    by = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
    table = seen.key_averages().table(sort_by=by, row_limit=25, max_name_column_width=90)
    rows = [line[:92] + line[-130:] if len(line) > 230 else line for line in table.splitlines()]
    return {"profile": "\n".join(rows)}


def _settle(device):
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _let_go(device):
    import torch

    if device == "cuda":
        torch.cuda.empty_cache()


def compare(
    tasks, kinds, *, tiny=False, seconds=240.0, rounds=5, profile=(), at_once=10, say=print
):
    """Times of all contenders: a row each, with what went wrong where something did."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, context = TINY if tiny else FULL, mp.get_context("spawn")
    end, gate = time.monotonic() + seconds, context.Semaphore(at_once)
    rows, pipes, processes = [], [], []
    for task in tasks:
        for kind in CONTENDERS[task]:
            for compiled in (True, False):
                if kind in kinds and (compiled or kind not in VARIANTS):
                    mine, theirs = context.Pipe()
                    given = (theirs, gate, task, kind, compiled, size, device)
                    processes.append(context.Process(target=work, args=given, daemon=True))
                    processes[-1].start()
                    pipes.append(mine)
                    rows.append({"task": task, "kind": kind, "compiled": compiled, "times": []})
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
        for pipe, row in zip(pipes, rows, strict=True):
            name = (row["task"], row["kind"], row["compiled"])
            if name in profile and "error" not in row and time.monotonic() < end - 10:
                pipe.send("profile")
                row |= _hear(pipe, {}, end, lambda *_: None)
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
    name = " ".join(str(row.get(k)) for k in ("task", "kind", "compiled"))
    say(f"{name}: {said.get('error', round(said.get('ready', 0.0), 1))}")
    return row


def table(rows):
    lines = ["task        contender       compiled   ms/update   per second   of best peer   GiB"]
    for row in rows:
        if "ms" not in row:
            lines.append(
                f"{row['task']:11} {row['kind']:15} {row['compiled']!s:8} {row.get('error')}"
            )
            continue
        same = [r for r in rows if r["task"] == row["task"] and "ms" in r]
        peers = [r["per_second"] for r in same if not r["kind"].startswith("regard")] or [
            row["per_second"]
        ]
        lines.append(
            f"{row['task']:11} {row['kind']:15} {row['compiled']!s:8} {row['ms']:10.2f} "
            f"{row['per_second']:13,.0f} {row['per_second'] / max(peers):10.2f} {row['gib']:12.1f}"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--only", nargs="+", default=["regard", "torch.nn", "transformers"])
    parser.add_argument("--tiny", action="store_true", help="Small sizes, to try it on a CPU.")
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", default=None)
    asked = parser.parse_args()
    rows = compare(
        asked.task, asked.only, tiny=asked.tiny, seconds=asked.seconds, rounds=asked.rounds
    )
    print(table(rows))
    try:
        import x_transformers  # noqa: F401
    except ImportError:
        print("x-transformers is not installed here, so it is not compared")
    if asked.json:
        with open(asked.json, "w") as out:
            json.dump(rows, out, indent=1)


if __name__ == "__main__":
    sys.exit(main())
