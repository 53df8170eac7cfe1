"""Decoding at GPT-2-medium size on a GPU: ours beside transformers' generate.

python benchmarks/decode_gpu.py                  # about two minutes on an H200
python benchmarks/decode_gpu.py --no-theirs      # ours alone
python benchmarks/decode_gpu.py --only calls     # whole calls; also checks, steps or kernels
python benchmarks/decode_gpu.py --tune           # more ways to cut the work

24 layers of 1024, 16 heads, 50,257 tokens, random weights, bfloat16; 64 tokens are read and 128
written, greedily, at batch 1 and 32. Theirs: a static cache, which generate compiles by itself
(mode "reduce-overhead"), and torch's fused attention, in a process of its own; whole calls take
turns, medians. First our kernels are checked against the plain path, then ways to cut the work are
timed by the GPU's own clock, beside what it takes to read all weights once; whole calls then take
the best way of each batch. Last, each kind of kernel in a chain of its own, and what a token is
less without it. Where two paths write other tokens, the gap is how far apart the model found the
two: rounding, if no more than the logits differ. Results go to $OUT/q/decode_gpu.json if OUT is
set.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path

import torch

BEGAN = time.time()
VOCAB, PROMPT, NEW = 50257, 64, 128
END, NO_END = 2, -1
DRY = "--dry" in sys.argv  # everything once, tiny, in Triton's interpreter
DEVICE = "cpu" if DRY else "cuda"
RESULTS = {}


def say(*what):
    print(f"[{time.time() - BEGAN:6.1f}s]", *what, flush=True)


def save():
    if "OUT" in os.environ:
        folder = Path(os.environ["OUT"]) / "q"
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(RESULTS, indent=1, default=str)
        (folder / "decode_gpu.json").write_text(text)


def tried(name, work):
    """One part that fails does not take the others along."""
    try:
        return work()
    except Exception as error:
        say(f"{name}: FAILED {type(error).__name__}: {str(error)[:500]}")
        RESULTS.setdefault("failed", {})[name] = traceback.format_exc()[-3000:]
        save()
        return None


# ---------------------------------------------------------------- theirs, in a process of its own


def child():
    import warnings

    warnings.filterwarnings("ignore")
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers import logging as their_logging

    their_logging.set_verbosity_error()
    config = GPT2Config(n_layer=24, n_embd=1024, n_head=16, attn_implementation="sdpa")
    with torch.device("cuda"):
        model = GPT2LMHeadModel(config).to(torch.bfloat16).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    prompts = {b: torch.randint(3, VOCAB, (b, PROMPT), device="cuda") for b in (1, 32)}
    for line in sys.stdin:
        prompt = prompts[int(line)]
        given = {"do_sample": False, "max_new_tokens": NEW, "cache_implementation": "static"}
        try:
            start = time.perf_counter()
            with torch.no_grad():
                out = model.generate(prompt, attention_mask=torch.ones_like(prompt), **given)
            torch.cuda.synchronize()
            answer = {"seconds": time.perf_counter() - start}
            assert out.shape[1] == PROMPT + NEW, out.shape
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        print("ANSWER " + json.dumps(answer), flush=True)


class Theirs:
    """A process for one batch: two compile side by side."""

    def __init__(self, batch, deadline):
        self.batch, self.deadline, self.answers, self.ready = batch, deadline, [], False
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        self.thread = threading.Thread(target=self._warm_up, daemon=True)
        self.thread.start()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("ANSWER "):
                self.answers.append(json.loads(line[7:]))

    def _warm_up(self):
        """They compile while ours are checked."""
        took = [self.ask() for _ in range(2)]
        self.ready = all("seconds" in answer for answer in took)
        say(f"theirs, batch {self.batch}, warming up: {took}")

    def ask(self):
        before = len(self.answers)
        try:
            self.process.stdin.write(f"{self.batch}\n")
            self.process.stdin.flush()
        except OSError as error:
            return {"error": f"gone: {error}"}
        while len(self.answers) == before:
            if time.time() > self.deadline or self.process.poll() is not None:
                return {"error": "out of time" if self.process.poll() is None else "ended"}
            time.sleep(0.001)
        return self.answers[before]


# ---------------------------------------------------------------- ours


def made(dtype, **changes):
    from regard import models

    torch.manual_seed(0)
    medium = {"layers": 24, "dim": 1024, "heads": 16}
    if DRY:
        changes |= {"vocab": VOCAB, "layers": 1, "dim": 32, "heads": 2}
        changes |= {"hidden": 64} if "hidden" in changes else {}
    config = models.language_base(**({"vocab": VOCAB} | medium | changes))
    with torch.device(DEVICE):
        return models.LanguageModel(config).to(dtype).eval()


def stepper_of(model, tuning):
    from regard import decode

    stepper = decode.make_stepper(model)
    stepper.engine.tuning = tuning
    return stepper


def check(name, model, tuning, batch, *, ragged=True, beams=False):
    """Logits and tokens of the captured path beside the plain one's."""
    from regard import decode
    from regard.decode.language import CapturedState

    torch.manual_seed(1)
    prompt = torch.randint(3, model.config.vocab, (batch, 9), device=DEVICE)
    lengths = torch.randint(1, 10, (batch,), device=DEVICE) if ragged and batch > 1 else None
    first, stepper = decode.last_tokens(prompt, lengths), stepper_of(model, tuning)
    given = {"end": END, "limit": 3 if DRY else 21}
    how = decode.Sampling(top_k=40, seed=5)
    with torch.no_grad():
        quick = stepper.start(prompt, lengths)
        assert isinstance(quick, CapturedState), "not captured"
        with torch.enable_grad():
            slow = stepper.start(prompt, lengths)
        assert not isinstance(slow, CapturedState)
        token, plain, worst = first, slow, 0.0
        for _ in range(4):
            a, quick = stepper.step(token, quick)
            b, plain = stepper.step(token, plain)
            worst = max(worst, float((a - b).abs().max()))
            token = b.argmax(-1)
        found = {"logits": worst, "std": float(b.float().std())}
        searches = {
            "greedy": lambda state: decode.greedy(stepper, state, first, **given),
            "sample": lambda state: decode.sample(stepper, state, first, how=how, **given),
        }
        if beams:
            searches["beam"] = lambda state: decode.beam(stepper, state, first, width=3, **given)
        for kind, search in searches.items():
            want = search(slow).lists()
            # three times: a prompt of a length that has come before is replayed
            got = [search(stepper.start(prompt, lengths)).lists() for _ in range(3)]
            found[kind] = all(one == want for one in got)
            found[f"{kind} again"] = all(one == got[0] for one in got)
            if kind != "beam" and got[0] != want:
                sampling = how if kind == "sample" else None
                found[f"{kind} gaps"] = gaps(model, prompt, lengths, got[0], want, sampling)
    RESULTS.setdefault("checks", {})[name] = found
    say(
        f"check {name:22} logits off by {worst:.1e}",
        {k: v for k, v in found.items() if k != "logits"},
    )
    save()


def gaps(model, prompt, lengths, got, want, how):
    """Where rows part: the gap between the two logits; for a draw, of its luck from an edge."""
    from regard.decode.sampling import fortunes, likely

    found = []
    for n, (a, b) in enumerate(zip(got, want, strict=True)):
        if a == b:
            continue
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        at = min(len(a), len(b)) if at is None else at
        length = prompt.shape[1] if lengths is None else int(lengths[n])
        before = [*prompt[n, :length].tolist(), *a[:at]]
        logits = model(torch.tensor([before], device=prompt.device))[0, -1].float()
        x, y = (tokens[at] if at < len(tokens) else END for tokens in (a, b))
        one = {"row": n, "step": at, "gap": float((logits[x] - logits[y]).abs())}
        if how is not None:
            edges = likely(logits, how)[0].double().cumsum(-1).cpu()
            one["edge"] = float((edges - fortunes(how.seed, n + 1, at + 1)[n, at]).abs().min())
        found.append(one)
    return {"rows": len(found), "largest": max(one["gap"] for one in found), "first": found[:4]}


def steps_alone(model, tuning, batch, repeats=5):
    """Milliseconds a token, from events on the GPU."""
    stepper, took = stepper_of(model, tuning), []
    prompt = torch.randint(3, VOCAB, (batch, PROMPT), device=DEVICE)
    for turn in range(2 if DRY else repeats + 2):
        with torch.no_grad():
            state, b = begun(stepper, prompt)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            stepper.engine.run(b, NEW, None)
            end.record()
            torch.cuda.synchronize()
        if turn >= 2 or DRY:
            took.append(begin.elapsed_time(end) / NEW)
        del state, b  # so that the next turn gets the same buffers and their graphs
    return statistics.median(took)


def begun(stepper, prompt):
    state, b = stepper._ready(stepper.start(prompt), NEW)
    b.token.copy_(prompt[:, -1])
    b.base.copy_(b.time)
    b.ended.zero_()
    b.end.fill_(NO_END)
    b.barred.zero_()
    return state, b


def whole_call(stepper, batch):
    """Seconds of reading, and of all."""
    from regard import decode

    prompt = torch.randint(3, VOCAB, (batch, PROMPT), device=DEVICE)

    def run():
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.no_grad():
            state = stepper.start(prompt)
            sent = time.perf_counter()
            found = decode.greedy(stepper, state, prompt[:, -1], end=NO_END, limit=NEW)
        torch.cuda.synchronize()
        assert found.tokens.shape[1] == NEW
        return sent - start, time.perf_counter() - start

    return run


def floor():
    """GB/s of reading and of copying, the best of some."""
    x = torch.ones(1 << 20 if DRY else 1 << 29, device=DEVICE)  # 2 GiB
    y, found = torch.empty_like(x), {}
    for name, work, count in (
        ("read", lambda: x.view(1 << 14, -1).amax(1), 1),
        ("copy", lambda: y.copy_(x), 2),
    ):
        times = []
        for _ in range(12):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        found[name] = count * x.nbytes / min(times) / 1e6
    return found


# ---------------------------------------------------------------- the run


def checks(tuning):
    """In float32 the tokens are equal; in bfloat16 up to rounding."""
    small = {"vocab": 1000, "layers": 3, "dim": 256, "heads": 4, "max_time": 128}
    rotary = {"positions": "none", "rotary": 10000.0, "key_heads": 2, "hidden": 704, "gated": True,
              "activation": "silu", "norm": "rms", "bias": False}  # fmt: skip
    gpt, llama = made(torch.float32, **small), made(torch.float32, **(small | rotary))
    plain = replace(tuning, chained=False)
    apart = replace(tuning, joined_keys=0, held=False)
    for name, *given, beams in (
        ("gpt 1", gpt, tuning, 1, False),
        ("gpt 1 plain", gpt, plain, 1, False),
        ("gpt 3", gpt, tuning, 3, True),
        ("gpt 1 apart", gpt, apart, 1, False),
        ("gpt 3 plain", gpt, replace(tuning, chained_rows=False), 3, True),
        ("llama 1", llama, tuning, 1, True),
        ("llama 33", llama, tuning, 33, False),
    ):
        tried(name, lambda n=name, g=given, b=beams: check(n, *g, beams=b))


def ways(tune):
    """What is timed, by batch: how the work may be cut."""
    one = {
        "as it is": {},
        "attention in two": {"joined_keys": 0},
        "without tensor cores": {"cores": 0},
        "plain": {"chained": False},
    }
    some = {
        "as it is": {},
        "weights after the wait": {"held": False},
        "plain": {"chained_rows": False},
    }
    if tune:
        one |= {"8 slices, 256 keys": {"slices": 8, "keys": 256}}
        some |= {
            "128 keys": {"keys_rows": 128},
            "80 registers": {"keys_rows_regs": 80},
            "128 programs": {"programs": 128},
            "16 outputs": {"held_outs": 16},
        }
    return {1: one, 32: some}


# ---------------------------------------------------------------- kernels one by one


class Noted:
    """A module of kernels that notes what would be launched, and launches nothing."""

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
            jobs = ("qkv", "up", "added", "scores", "parts")  # as step_kernels numbers them
            kind = f"{self.name} {jobs[settings['JOB']]}" if "JOB" in settings else self.name
            kind += " first" if settings.get("FIRST") else f" {settings.get('DEEP', '')}"
            self.calls.append((kind, lambda: self.kernel[grid](*given, **settings)))

        return call


@torch.no_grad()
def alone(model, tuning, batch):
    """Of each kind of kernel: µs in a chain of its own, and what a token is less without it."""
    from regard.decode.launch import Launcher

    stepper = stepper_of(model, tuning)
    prompt = torch.randint(3, VOCAB, (batch, PROMPT), device=DEVICE)
    state, b = begun(stepper, prompt)
    b.time += 64  # in the middle of what is written
    launcher, calls = Launcher(model, tuning), []
    for name in ("kernels", "ones", "somes", "attentions"):
        setattr(launcher, name, Noted(getattr(launcher, name), calls))
    launcher.launch(b)
    whole = timed([work for _, work in calls])
    say(f"batch {batch}: kernels of a token {whole:.1f} µs, {len(calls)} of them")
    table = {}
    for kind in dict.fromkeys(kind for kind, _ in calls):
        own = [work for k, work in calls if k == kind]
        rest = [work for k, work in calls if k != kind]
        many = (own * (96 // len(own) + 1))[: max(96, len(own))] if len(own) > 1 else own * 8
        each = timed(many) / len(many)
        less = whole - timed(rest)
        table[kind] = {"count": len(own), "alone": each, "less": less, "less each": less / len(own)}
        say(
            f"    {kind:20} {len(own):3} a token, alone {each:6.2f} µs each,"
            f" without them {less:6.1f} µs less ({less / len(own):.2f} each)"
        )
    RESULTS.setdefault("alone", {})[batch] = {"whole": whole, "kinds": table}
    save()
    del state


def timed(calls):
    """µs of all these in one graph, the median of some."""
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
    graph, took = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for work in calls:
            work()
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(4):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        took.append(begin.elapsed_time(end) / 4 * 1000)
    return statistics.median(took[2:])


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=150, help="stop about then")
    parser.add_argument("--tune", action="store_true", help="time more ways to cut the work")
    parser.add_argument("--only", choices=["checks", "steps", "calls", "kernels"])
    parser.add_argument("--no-theirs", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--dry", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        return child()
    deadline = BEGAN + asked.seconds
    stop_at(deadline + 6)
    theirs = {}
    if not (asked.no_theirs or DRY) and asked.only in (None, "calls"):
        theirs = {batch: Theirs(batch, deadline) for batch in (1, 32)}
    if DRY:
        pretend()
    from regard.decode.launch import Tuning

    RESULTS["machine"] = [torch.__version__, "" if DRY else torch.cuda.get_device_name()]
    say(*RESULTS["machine"])
    tuning, best = Tuning(), {1: Tuning(), 32: Tuning()}
    model = made(torch.bfloat16)
    if asked.only in (None, "checks"):
        checks(tuning)
        tried("bf16 1", lambda: check("medium bf16 1", model, tuning, 1))
        tried("bf16 32", lambda: check("medium bf16 32", model, tuning, 32, ragged=False))
    for one in theirs.values():
        one.thread.join(max(0.0, deadline - 40 - time.time()))
    if asked.only in (None, "steps"):
        best = steps(model, ways(asked.tune), deadline)
    if asked.only in (None, "calls"):
        calls(model, best, theirs, deadline)
    for one in theirs.values():
        one.process.kill()
    if asked.only in (None, "kernels"):
        for batch in (32, 1):
            tried("kernels", lambda b=batch: alone(model, best[b], b))
    save()
    say("done")
    return None


def stop_at(moment):
    def give_up():
        say("out of time")
        save()
        os._exit(3)

    watch = threading.Timer(moment - time.time(), give_up)
    watch.daemon = True
    watch.start()


def steps(model, ways, deadline):
    """Each way by batch; the best, for what follows."""
    from regard.decode.launch import Tuning

    speeds = floor()
    weights = 2 * (24 * 12 * 1024 * 1024 + VOCAB * 1024)
    least = weights / max(speeds.values()) / 1e3
    say(f"GB/s {speeds}; {weights / 1e6:.0f} MB of weights take {least:.0f} µs")
    RESULTS["floor"] = {"GB/s": speeds, "µs": least}
    best = {}
    for batch, some in ways.items():
        took = {}
        for name, changes in some.items():
            if time.time() > deadline - 26:
                say("no time for", batch, name)
                continue
            ms = tried(name, lambda b=batch, c=changes: steps_alone(model, Tuning(**c), b))
            if ms is None:
                continue
            took[name] = 1000 * ms
            share = f", {100 * least / took[name]:.0f}% of the floor's speed" if batch == 1 else ""
            say(f"batch {batch:2} {name:26} {took[name]:7.1f} µs a token{share}")
        RESULTS.setdefault("steps", {})[batch] = took
        save()
        found = min(took, key=lambda name: took[name], default="as it is")
        best[batch] = Tuning(**some[found])
        say(f"batch {batch:2} best: {found}")
    return best


def calls(model, best, theirs, deadline):
    for batch in (1, 32):
        run = whole_call(stepper_of(model, best[batch]), batch)
        tried("warm", lambda r=run: [r() for _ in range(3)])
        ready = batch in theirs and theirs[batch].ready
        ours, other = [], []
        for _ in range(1 if DRY else 7):
            if time.time() > deadline - (12 if batch == 1 else 6):
                break
            ours.append(tried("ours", run))
            answer = theirs[batch].ask() if ready else {}
            other += [answer["seconds"]] if "seconds" in answer else []
        ours = [one for one in ours if one is not None]
        if not ours:
            continue
        read, whole = (1000 * statistics.median(column) for column in zip(*ours, strict=True))
        found = {"ours ms": whole, "sent after ms": read, "all": ours}
        line = f"batch {batch:2}, {NEW} tokens: ours {whole:.1f} ms (prompt sent after {read:.1f})"
        if other:
            found |= {"theirs ms": 1000 * statistics.median(other), "theirs": other}
            found["times"] = found["theirs ms"] / whole
            line += f", transformers {found['theirs ms']:.1f} ms, {found['times']:.2f} times ours"
        RESULTS.setdefault("calls", {})[batch] = found
        say(line)
        save()


def pretend():
    """A CPU in place of the GPU, to see that this script itself runs."""
    from regard.decode import captured

    class Event:
        def __init__(self, **_):
            self.at = 0.0

        def record(self):
            self.at = time.time()

        def elapsed_time(self, other):
            return 1000 * (other.at - self.at) + 1e-3

    captured._TRY_ON_CPU = True
    torch.cuda.synchronize, torch.cuda.Event = (lambda: None), Event
    globals().update(VOCAB=64, PROMPT=5, NEW=3)


if __name__ == "__main__":
    main()
