"""Decoding at Transformer-base size on a CPU: ours against transformers' MarianMTModel.generate.

python benchmarks/decode.py                        # about 8 minutes on two cores
python benchmarks/decode.py --batch 8 --rounds 1   # one batch size, quickly

Random weights of the same sizes: 6 + 6 layers of 512, 8 heads, feed-forward 2048, 32,000 words,
tied, float32. 32 tokens are read and exactly 32 written, greedily and by a beam of 5, encoding
included. Interleaved repeats; the least time of the processor (all threads) a step, and the ratio.
What a step must read of the weights is the floor that no program of float32 can pass at batch 1.
"""

import argparse
import time
import warnings

import torch

from regard import decode, models

VOCAB, LENGTH, END = 32000, 32, 2


def ours(source: torch.Tensor):
    torch.manual_seed(0)
    model = models.Translator(models.translator_base(VOCAB)).eval()
    stepper, first = decode.make_stepper(model), torch.ones(len(source), dtype=torch.long)
    rules = [decode.AtLeast(LENGTH, end=END)]

    @torch.no_grad()
    def run(width: int):
        state, given = stepper.start(source), {"end": END, "limit": LENGTH, "rules": rules}
        if width == 1:
            return decode.greedy(stepper, state, first, **given)
        return decode.beam(stepper, state, first, width=width, **given)

    return run


def theirs(source: torch.Tensor):
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=VOCAB, d_model=512, encoder_layers=6, decoder_layers=6, pad_token_id=0,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=2048,
        decoder_ffn_dim=2048, max_position_embeddings=512, eos_token_id=END, bos_token_id=1,
        decoder_start_token_id=1, forced_eos_token_id=None, scale_embedding=True,
        activation_function="relu", share_encoder_decoder_embeddings=True,
    )  # fmt: skip
    model, seen = MarianMTModel(config).eval(), torch.ones_like(source)
    model.generation_config.bad_words_ids = None

    def run(width: int):
        return model.generate(
            input_ids=source, attention_mask=seen, num_beams=width, do_sample=False,
            min_new_tokens=LENGTH, max_new_tokens=LENGTH,
        )  # fmt: skip

    return run


def least(works, width: int, rounds: int) -> list[float]:
    """Milliseconds of the processor a step: the least of some rounds, after one to warm up."""
    times = [[] for _ in works]
    for _ in range(rounds + 1):
        for kept, work in zip(times, works, strict=True):
            start = time.process_time()
            work(width)
            kept.append(1000 * (time.process_time() - start) / LENGTH)
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    warnings.filterwarnings("ignore")
    print(f"{asked.threads} threads; the weights alone take {floor():.1f} ms a step at batch 1")
    for batch in asked.batch:
        source = torch.randint(3, VOCAB, (batch, LENGTH))
        works = [ours(source), theirs(source)]
        for width in (1, 5):
            a, b = least(works, width, asked.rounds)
            how = "greedy" if width == 1 else f"beam {width}"
            print(
                f"batch {batch:2} {how:6}: ours {a:6.1f} ms a step, generate {b:6.1f}, "
                f"{b / a:.2f} times as fast",
                flush=True,
            )


if __name__ == "__main__":
    main()
