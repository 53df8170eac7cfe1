"""Decoding at GPT-2-medium size on a GPU: ours and transformers' generate.

python benchmarks/decode_gpu.py                  # about two minutes on an H200
python benchmarks/decode_gpu.py --no-theirs      # ours alone
python benchmarks/decode_gpu.py --only calls     # whole calls; also check, steps or kernels
python benchmarks/decode_gpu.py --tune           # more tunings

24 layers, dim 1024, 16 heads, 50,257 tokens, random weights, bfloat16; a prompt of 64 tokens, 128
generated greedily, at batch 1 and 32. Theirs: a static cache, which generate compiles by itself
(mode "reduce-overhead"), and torch's fused attention, in its own process; whole calls alternate,
medians. First our logits are compared with the plain path's (tests/decode/test_decode_gpu.py tests
more), then tunings are timed with CUDA events, next to the time to read all weights once; whole
calls use the best tuning of each batch size. Last, each kind of kernel alone in a chain, and the
time per token without it.
"""

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time

import torch

from regard import decode, models
from regard.decode.gpu import engine
from regard.decode.gpu.launcher import StepLauncher, Tuning
from regard.decode.language_stepper import GpuState

BEGAN = time.time()
VOCAB, PROMPT, NEW, NO_END = 50257, 64, 128, -1
DRY = "--dry" in sys.argv  # everything once, tiny, in Triton's interpreter
DEVICE = "cpu" if DRY else "cuda"


def say(*what):
    print(f"[{time.time() - BEGAN:6.1f}s]", *what, flush=True)


def tried(name, work):
    """A part that fails does not stop the others."""
    try:
        return work()
    except Exception as error:
        say(f"{name}: FAILED {type(error).__name__}: {str(error)[:500]}")
        return None


# ---------------------------------------------------------------- theirs, in its own process


def child(batch):
    """Two calls to compile, then one per input line; prints its seconds."""
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers import logging as their_logging

    their_logging.set_verbosity_error()
    config = GPT2Config(n_layer=24, n_embd=1024, n_head=16, attn_implementation="sdpa")
    with torch.device("cuda"):
        model = GPT2LMHeadModel(config).to(torch.bfloat16).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    prompt = torch.randint(3, VOCAB, (batch, PROMPT), device="cuda")
    given = {"do_sample": False, "max_new_tokens": NEW, "cache_implementation": "static"}

    def call():
        start = time.perf_counter()
        with torch.no_grad():
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), **given)
        torch.cuda.synchronize()
        assert out.shape[1] == PROMPT + NEW, out.shape
        return time.perf_counter() - start

    print("ANSWER", min(call(), call()), flush=True)
    for _ in sys.stdin:
        print("ANSWER", call(), flush=True)


class Theirs:
    """A process per batch size: two compile in parallel, while ours is checked."""

    def __init__(self, batch):
        command = [sys.executable, "-W", "ignore", __file__, "--child", str(batch)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, **pipes)

    def answer(self):
        """Seconds of a call; None if the process failed."""
        for line in self.process.stdout:
            if line.startswith("ANSWER "):
                return [float(line[7:])]
        return []

    def ask(self):
        try:
            print(file=self.process.stdin, flush=True)
        except OSError:
            return []
        return self.answer()


# ---------------------------------------------------------------- ours


def made(dtype, **changes):
    torch.manual_seed(0)
    medium = {"layers": 24, "dim": 1024, "heads": 16}
    small = {"layers": 1, "dim": 32, "heads": 2} if DRY else {}
    config = models.language_base(**({"vocab": VOCAB} | medium | changes | small))
    with torch.device(DEVICE):
        # Triton's interpreter treats bfloat16 as integers in a product
        return models.LanguageModel(config).to(torch.float16 if DRY else dtype).eval()


def stepper_of(model, tuning):
    stepper = decode.make_stepper(model)
    stepper.engine.tuning = tuning
    return stepper


@torch.no_grad()
def check(model, batch):
    """Logits of the captured and the plain path, and tokens that repeat exactly."""
    stepper, worst = decode.make_stepper(model), 0.0
    prompt = torch.randint(3, VOCAB, (batch, 9), device=DEVICE)
    quick = stepper.start(prompt)
    with torch.enable_grad():
        plain = stepper.start(prompt)
    assert isinstance(quick, GpuState)
    assert not isinstance(plain, GpuState)
    token = prompt[:, -1]
    for _ in range(4):
        a, quick = stepper.step(token, quick)
        b, plain = stepper.step(token, plain)
        worst, token = max(worst, float((a - b).abs().max())), b.argmax(-1)
    given = {"end": NO_END, "max_new_tokens": 3 if DRY else 21}
    written = [decode.greedy(stepper, stepper.start(prompt), token, **given) for _ in range(3)]
    again = all(torch.equal(one.tokens, written[0].tokens) for one in written)
    std = float(b.float().std())
    say(f"batch {batch:2}: logits off by {worst:.1e}, their deviation {std:.2f}; again: {again}")


@torch.no_grad()
def steps_alone(model, tuning, batch):
    """Milliseconds per token, from CUDA events."""
    stepper, took = stepper_of(model, tuning), []
    prompt = torch.randint(3, VOCAB, (batch, PROMPT), device=DEVICE)
    for _ in range(3 if DRY else 7):
        state, b = begun(stepper, prompt)
        took.append(clocked(lambda b=b: stepper.engine.run_steps(b, NEW, None)) / NEW)
        del state, b  # so that the next turn gets the same buffers and their graphs
    return statistics.median(took[2:])


def clocked(work):
    """Milliseconds, from CUDA events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def begun(stepper, prompt):
    state, b = stepper._ready(stepper.start(prompt), NEW)
    b.token.copy_(prompt[:, -1])
    b.start_lengths.copy_(b.lengths)
    b.ended.zero_()
    b.end.fill_(NO_END)
    b.suppress_mask.zero_()
    return state, b


def whole_call(stepper, prompt):
    """Seconds of reading and writing."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    with torch.no_grad():
        state = stepper.start(prompt)
        found = decode.greedy(stepper, state, prompt[:, -1], end=NO_END, max_new_tokens=NEW)
    torch.cuda.synchronize()
    assert found.tokens.shape[1] == NEW
    return time.perf_counter() - start


def floor():
    """Read bandwidth in GB/s, the maximum of several."""
    x = torch.ones(1 << 20 if DRY else 1 << 29, device=DEVICE)  # 2 GiB
    return x.nbytes / min(clocked(lambda: x.view(1 << 14, -1).amax(1)) for _ in range(12)) / 1e6


# ---------------------------------------------------------------- kernels one by one


class Noted:
    """A module of kernels that records launches without launching."""

    def __init__(self, module, calls):
        self.module, self.calls = module, calls

    def __getattr__(self, name):
        found = getattr(self.module, name)
        return _Kernel(name, found, self.calls) if hasattr(found, "warmup") else found


class _Kernel:
    def __init__(self, name, kernel, calls):
        self.name, self.kernel, self.calls = name, kernel, calls

    def __getitem__(self, grid):
        def call(*given, **settings):
            jobs = ("qkv", "ffn_up", "residual", "logits", "split_k")
            kind = f"{self.name} {jobs[settings['JOB']]}" if "JOB" in settings else self.name
            kind += " first" if settings.get("FIRST") else f" {settings.get('DEEP', '')}"
            self.calls.append((kind, lambda: self.kernel[grid](*given, **settings)))

        return call


@torch.no_grad()
def alone(model, tuning, batch):
    """Per kind of kernel: µs in its own chain, and the time saved per token without it."""
    stepper = stepper_of(model, tuning)
    prompt = torch.randint(3, VOCAB, (batch, PROMPT), device=DEVICE)
    state, b = begun(stepper, prompt)
    b.lengths += 64  # halfway through the generation
    launcher, calls = StepLauncher(model, tuning), []
    launcher.kernels = Noted(launcher.kernels, calls)
    launcher.launch(b)
    whole = timed([work for _, work in calls])
    say(f"batch {batch}: kernels of a token {whole:.1f} µs, {len(calls)} of them")
    for kind in dict.fromkeys(kind for kind, _ in calls):
        own = [work for k, work in calls if k == kind]
        rest = [work for k, work in calls if k != kind]
        many = (own * (96 // len(own) + 1))[: max(96, len(own))] if len(own) > 1 else own * 8
        each = timed(many) / len(many)
        less = whole - timed(rest)
        say(
            f"    {kind:20} {len(own):3} a token, alone {each:6.2f} µs each,"
            f" without them {less:6.1f} µs less ({less / len(own):.2f} each)"
        )
    del state


def timed(calls):
    """µs of all these in one graph, median of several."""
    if DRY:
        for work in calls[:2]:
            work()
        return 1.0
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for work in calls:
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for work in calls:
            work()
    took = [clocked(lambda: [graph.replay() for _ in range(4)]) / 4 for _ in range(12)]
    return 1000 * statistics.median(took[2:])


# ---------------------------------------------------------------- the run


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=150, help="time limit, approximate")
    parser.add_argument("--tune", action="store_true", help="time more tunings")
    parser.add_argument("--only", choices=["check", "steps", "calls", "kernels"])
    parser.add_argument("--no-theirs", action="store_true")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--dry", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        return child(asked.child)
    stop_at(BEGAN + asked.seconds)
    theirs = {}
    if not (asked.no_theirs or DRY) and asked.only in (None, "calls"):
        theirs = {batch: Theirs(batch) for batch in (1, 32)}
    if DRY:
        pretend()
    say(torch.__version__, "" if DRY else torch.cuda.get_device_name())
    model, best = made(torch.bfloat16), {1: Tuning(), 32: Tuning()}
    if asked.only in (None, "check"):
        for batch in (1, 32):
            tried("check", lambda b=batch: check(model, b))
    for batch, one in theirs.items():
        say(f"theirs, batch {batch}, compiled: {one.answer()} s a call")
    if asked.only in (None, "steps"):
        best = steps(model, ways(asked.tune))
    if asked.only in (None, "calls"):
        tried("calls", lambda: calls(model, best, theirs))
    for one in theirs.values():
        one.process.kill()
    if asked.only in (None, "kernels"):
        for batch in (32, 1):
            tried("kernels", lambda b=batch: alone(model, best[b], b))
    say("done")
    return None


def stop_at(moment):
    def give_up():
        say("out of time")
        os._exit(3)

    watch = threading.Timer(moment - time.time(), give_up)
    watch.daemon = True
    watch.start()


def ways(tune):
    """The tunings to time, by batch size."""
    one = {
        "as it is": {},
        "attention in two": {"max_fused_keys": 0},
        "without tensor cores": {"mma_warps": 0},
        "plain": {"chained": False},
    }
    some = {
        "as it is": {},
        "weights after the wait": {"weights_in_registers": False},
        "plain": {"chained_rows": False},
    }
    if tune:
        one |= {"8 slices, 256 keys": {"out_splits": 8, "keys": 256}}
        some |= {
            "128 keys": {"keys_rows": 128},
            "80 registers": {"keys_rows_regs": 80},
            "128 programs": {"programs": 128},
            "16 outputs": {"held_outs": 16},
        }
    return {1: one, 32: some}


def steps(model, ways):
    """Time every tuning by batch size; returns the best."""
    speed, weights = floor(), 2 * (24 * 12 * 1024 * 1024 + VOCAB * 1024)
    least = weights / speed / 1e3
    say(f"{speed:.0f} GB/s: {weights / 1e6:.0f} MB of weights take {least:.0f} µs")
    best = {}
    for batch, some in ways.items():
        took = {}
        for name, changes in some.items():
            ms = tried(name, lambda b=batch, c=changes: steps_alone(model, Tuning(**c), b))
            if ms is None:
                continue
            took[name] = 1000 * ms
            share = f", {100 * least / took[name]:.0f}% of the floor's speed" if batch == 1 else ""
            say(f"batch {batch:2} {name:26} {took[name]:7.1f} µs a token{share}")
        found = min(took, key=lambda name: took[name], default="as it is")
        best[batch] = Tuning(**some[found])
        say(f"batch {batch:2} best: {found}")
    return best


def calls(model, best, theirs):
    for batch in (1, 32):
        stepper, ours, other = stepper_of(model, best[batch]), [], []
        prompt = torch.randint(3, VOCAB, (batch, PROMPT), device=DEVICE)
        for turn in range(3 if DRY else 10):
            ours.append(whole_call(stepper, prompt))
            other += theirs[batch].ask() if turn > 2 and batch in theirs else []
        ms = 1000 * statistics.median(ours[2 if DRY else 3 :])
        line = f"batch {batch:2}, {NEW} tokens: ours {ms:.1f} ms"
        if other:
            their_ms = 1000 * statistics.median(other)
            line += f", transformers {their_ms:.1f} ms, {their_ms / ms:.2f} times ours"
        say(line)


def pretend():
    """A CPU in place of the GPU, to test this script itself."""

    class Event:
        def __init__(self, **_):
            self.at = 0.0

        def record(self):
            self.at = time.time()

        def elapsed_time(self, other):
            return 1000 * (other.at - self.at) + 1e-3

    engine._TRY_ON_CPU = True
    torch.cuda.synchronize, torch.cuda.Event = (lambda: None), Event
    globals().update(VOCAB=64, PROMPT=5, NEW=3)


if __name__ == "__main__":
    main()
