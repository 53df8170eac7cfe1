"""Decoding at Transformer-base size on a CPU: ours, transformers' Marian, and CTranslate2.

python benchmarks/decode.py                        # about 12 minutes on one core
python benchmarks/decode.py --batch 8 --rounds 1   # one batch size, quickly
python benchmarks/decode.py --threads 2

One set of random weights for all: MarianMTModel of 6 + 6 layers of 512, 8 heads, feed-forward 2048,
32,000 words, tied; converted by `models.from_transformers` and by CTranslate2's own converter
(`pip install ctranslate2`; without it its columns are left out). 32 tokens are read and exactly 32
written, greedily and by a beam of 5, encoding included. Interleaved repeats; the least time a step:
of the processor with one thread, of the clock with more. Ratios above 1: ours is that much quicker.
What a step must read of the weights is the floor that no program of float32 can pass at batch 1.
"""

import argparse
import copy
import tempfile
import time
import warnings

import torch

from regard import decode, models

VOCAB, LENGTH, START, END = 32000, 32, 1, 2


def marian():
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=VOCAB, d_model=512, encoder_layers=6, decoder_layers=6, pad_token_id=0,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=2048,
        decoder_ffn_dim=2048, max_position_embeddings=512, eos_token_id=END, bos_token_id=START,
        decoder_start_token_id=START, forced_eos_token_id=None, scale_embedding=True,
        activation_function="relu", share_encoder_decoder_embeddings=True, init_std=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = MarianMTModel(config).eval()
    model.generation_config.bad_words_ids = None
    model.generation_config.decoder_start_token_id = START
    return model


def ours(model):
    stepper, rules = decode.make_stepper(model), [decode.AtLeast(LENGTH, end=END)]

    @torch.no_grad()
    def run(source: torch.Tensor, width: int):
        state, given = stepper.start(source), {"end": END, "limit": LENGTH, "rules": rules}
        first = torch.full((len(source),), START)
        if width == 1:
            return decode.greedy(stepper, state, first, **given).lists()
        return decode.beam(stepper, state, first, width=width, penalty=0.0, **given).lists()

    return run


def generate(model):
    def run(source: torch.Tensor, width: int):
        found = model.generate(
            input_ids=source, attention_mask=torch.ones_like(source), num_beams=width,
            do_sample=False, min_new_tokens=LENGTH, max_new_tokens=LENGTH, length_penalty=0.0,
        )  # fmt: skip
        return found[:, 1:].tolist()

    return run


def ctranslate(model, kind: str, threads: int):
    """The same weights by CTranslate2's converter, without a tokenizer: words are their numbers."""
    import ctranslate2
    from ctranslate2.converters.transformers import BartLoader

    model = copy.deepcopy(model)  # its converter writes into the weights
    model.config.normalize_before = model.config.normalize_embedding = False
    spec, words = BartLoader().get_model_spec(model), [f"w{n}" for n in range(VOCAB)]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = words[1], words[2], "w3"
    spec.config.decoder_start_token = words[START]
    spec.validate()
    spec.optimize(quantization=None if kind == "float32" else kind)
    folder = tempfile.mkdtemp()
    spec.save(folder)
    translator = ctranslate2.Translator(
        folder, device="cpu", compute_type=kind, intra_threads=threads, inter_threads=1
    )

    def run(source: torch.Tensor, width: int):
        found = translator.translate_batch(
            [[words[n] for n in row] for row in source.tolist()], beam_size=width,
            min_decoding_length=LENGTH, max_decoding_length=LENGTH, length_penalty=0.0,
        )  # fmt: skip
        return [[int(word[1:]) for word in one.hypotheses[0]] for one in found]

    return run


def least(works, source, width: int, rounds: int, clock) -> list[float]:
    """Milliseconds a step: the least of some rounds, after one to warm up."""
    times = [[] for _ in works]
    for _ in range(rounds + 1):
        for kept, work in zip(times, works, strict=True):
            start = clock()
            work(source, width)
            kept.append(1000 * (clock() - start) / LENGTH)
    return [min(kept[1:]) for kept in times]


def floor() -> float:
    """Milliseconds to read the decoder's weights once: the readout's product, scaled to all."""
    weight, x = torch.randn(VOCAB, 512), torch.randn(1, 512)
    all_of = (6 * (6 * 512 * 512 + 2 * 512 * 2048) + VOCAB * 512) / (VOCAB * 512)
    took = []
    for _ in range(9):
        start = time.process_time()
        torch.nn.functional.linear(x, weight)
        took.append(1000 * (time.process_time() - start))
    return min(took) * all_of


def programs(threads: int) -> dict:
    theirs = marian()
    mine = models.from_transformers(theirs.state_dict(), theirs.config.to_dict()).eval()
    found = {"ours": ours(mine), "generate": generate(theirs)}
    try:
        found["ct2"] = ctranslate(theirs, "float32", threads)
    except ImportError:
        print("without CTranslate2: pip install ctranslate2")
    found["ours int8"] = ours(models.quantize(mine))
    if "ct2" in found:
        found["ct2 int8"] = ctranslate(theirs, "int8", threads)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--width", type=int, nargs="*", default=[1, 5])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    warnings.filterwarnings("ignore")
    clock = time.process_time if asked.threads == 1 else time.perf_counter
    print(f"{asked.threads} threads; the weights alone take {floor():.1f} ms a step at batch 1")
    works = programs(asked.threads)
    for batch in asked.batch:
        source = torch.randint(3, VOCAB, (batch, LENGTH))
        for width in asked.width:
            took = least(works.values(), source, width, asked.rounds, clock)
            tell(batch, width, dict(zip(works, took, strict=True)))
    same = [work(source[:2], 1) for name, work in works.items() if "int8" not in name]
    print("greedy tokens in float32 are the same:", all(one == same[0] for one in same))


def tell(batch: int, width: int, took: dict[str, float]) -> None:
    how = "greedy" if width == 1 else f"beam {width}"
    parts = ", ".join(f"{name} {ms:.1f}" for name, ms in took.items())
    pairs = [("ours", "generate"), ("ours", "ct2"), ("ours int8", "ct2 int8")]
    ratios = [f"{took[b] / took[a]:.2f} of {b}" for a, b in pairs if b in took]
    print(f"batch {batch:2} {how:6}: {parts} ms a step; {', '.join(ratios)}", flush=True)


if __name__ == "__main__":
    main()
