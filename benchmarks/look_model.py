"""A whole model under look, against its own fused forward and against eager attention maps.

python benchmarks/look_model.py          # about a minute on an H200

A Llama-like model of one billion random weights (16 layers, 32 heads, 8 kv_heads, head_dim 64),
bf16, one sequence. `look` surveys every head of every layer while the fused kernels run; eager
returns every map, as attention viewers need. Times are medians of interleaved repeats in
milliseconds, memory is the peak of the forward beyond the plain one, in MiB.
"""

import argparse
import statistics
import time

import torch
from transformers import LlamaConfig, LlamaModel

import regard as rg
from regard.ops.survey.statistics import DEFAULT_STATISTICS


def build(implementation):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072,
        attn_implementation=implementation,
    )  # fmt: skip
    with torch.device("cuda"):
        return LlamaModel(config).to(torch.bfloat16).eval()


def timed(work):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    kept = work()
    torch.cuda.synchronize()
    took = (time.perf_counter() - start) * 1e3
    peak = torch.cuda.max_memory_allocated() / 2**20
    del kept
    return took, peak


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, nargs="+", default=[8192])
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    model = build("sdpa")
    eager = build("eager")
    for n in asked.n:
        tokens = torch.randint(0, 32000, (1, n), device="cuda")

        def plain(tokens=tokens):
            return model(tokens, use_cache=False).last_hidden_state

        def looked(tokens=tokens):
            with rg.look(model, survey=DEFAULT_STATISTICS) as sight:
                model(tokens, use_cache=False)
            return sight

        def maps(tokens=tokens):
            return eager(tokens, use_cache=False, output_attentions=True).attentions

        ways = {"fused": plain, "look": looked} | ({"eager": maps} if n <= 8192 else {})
        times, peaks = {name: [] for name in ways}, {}
        with torch.no_grad():
            same = (plain() - _under_look(model, tokens)).abs().max().item()
            for _ in range(asked.rounds):
                for name, work in ways.items():
                    took, peaks[name] = timed(work)
                    times[name].append(took)
        median = {name: statistics.median(t) for name, t in times.items()}
        extra = {name: peaks[name] - peaks["fused"] for name in ways}
        print(f"n = {n}, largest difference of the output under look: {same:.1e}")
        for name in ways:
            line = f"{median[name]:9.1f} ms  {median[name] / median['fused']:6.2f} of fused"
            print(f"{name:6} {line}  {extra[name]:9.0f} MiB extra")
        if "eager" in ways:
            print(
                f"look is {median['eager'] / median['look']:.1f} times faster than eager, "
                f"with 1/{extra['eager'] / max(extra['look'], 1):.0f} of its extra memory"
            )


def _under_look(model, tokens):
    with rg.look(model, survey=("entropy",)):
        return model(tokens, use_cache=False).last_hidden_state


if __name__ == "__main__":
    main()
