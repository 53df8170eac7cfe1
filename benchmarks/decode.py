"""Decoding at Transformer-base size on a CPU: ours, transformers' Marian, and CTranslate2.

python benchmarks/decode.py                        # about 12 minutes on one core
python benchmarks/decode.py --batch 8 --rounds 1   # one batch size, fast
python benchmarks/decode.py --threads 2

All contenders have the same random weights: a MarianMTModel of 6 + 6 layers, dim 512, 8 heads,
ffn_dim 2048, 32,000 tokens, tied; converted by `models.from_transformers` and by CTranslate2's own
converter (`pip install ctranslate2`; without it its columns are left out). The source has 32 tokens
and exactly 32 are generated, greedily and with a beam of 5, encoding included. Each contender is a
process; they are timed in turns. Reported is the minimum time per step: CPU time with one thread,
wall time with more. Ratios above 1: ours is that much faster. The time to read the weights once is
a lower bound for any float32 program at batch 1.
"""

import argparse
import copy
import multiprocessing
import tempfile
import time
import warnings

import torch

from regard import decode, models

VOCAB, LENGTH, START, END = 32000, 32, 1, 2
PAUSE = 0.3  # seconds: threads of the previous contender spin for a while after their work


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
    stepper, rules = decode.make_stepper(model), [decode.MinNewTokens(LENGTH, end=END)]

    @torch.no_grad()
    def run(source: torch.Tensor, width: int):
        state, given = (
            stepper.start(source),
            {"end": END, "max_new_tokens": LENGTH, "constraints": rules},
        )
        first = torch.full((len(source),), START)
        if width == 1:
            return decode.greedy(stepper, state, first, **given).to_lists()
        return decode.beam(
            stepper, state, first, width=width, length_penalty=0.0, **given
        ).to_lists()

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
    """The same weights by CTranslate2's converter, without a tokenizer: words are token ids."""
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


def program(name: str, threads: int):
    """One contender; all create the same weights from the same seed."""
    theirs = marian()
    if name == "generate":
        return generate(theirs)
    if name.startswith("ct2"):
        return ctranslate(theirs, "int8" if "int8" in name else "float32", threads)
    mine = models.from_transformers(theirs.state_dict(), theirs.config.to_dict()).eval()
    return ours(models.quantize(mine) if "int8" in name else mine)


def serve(pipe, name: str, threads: int) -> None:
    """A contender in its own process: two kinds of thread pools in one slow each other down.

    Each call is made twice and the second counts: while the others have their turn the system may
    take one's memory away.
    """
    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore")
    clock = time.process_time if threads == 1 else time.perf_counter
    try:
        work = program(name, threads)
    except ImportError:
        pipe.send(None)
        return
    pipe.send(name)
    while (asked := pipe.recv()) is not None:
        work(*asked)
        start = clock()
        found = work(*asked)
        pipe.send((1000 * (clock() - start) / LENGTH, found))


def started(threads: int) -> dict:
    """Pipes to all available contenders."""
    context, pipes = multiprocessing.get_context("spawn"), {}
    for name in ("ours", "generate", "ct2", "ours int8", "ct2 int8"):
        mine, theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, name, threads), daemon=True).start()
        pipes[name] = mine
    found = {name: pipe for name, pipe in pipes.items() if pipe.recv() is not None}
    if "ct2" not in found:
        print("without CTranslate2: pip install ctranslate2")
    return found


def least(pipes: dict, source, width: int, rounds: int) -> dict[str, float]:
    """Milliseconds per step: the minimum over rounds, in turns."""
    times = {name: [] for name in pipes}
    for _ in range(rounds):
        for name, pipe in pipes.items():
            time.sleep(PAUSE)
            pipe.send((source, width))
            times[name].append(pipe.recv()[0])
    return {name: min(kept) for name, kept in times.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--width", type=int, nargs="*", default=[1, 5])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    print(
        f"{asked.threads} threads; reading the weights takes {floor():.1f} ms per step at batch 1"
    )
    pipes = started(asked.threads)
    for batch in asked.batch:
        source = torch.randint(3, VOCAB, (batch, LENGTH))
        for width in asked.width:
            tell(batch, width, least(pipes, source, width, asked.rounds))
    answers = []
    for name in ("ours", "generate", "ct2"):
        if name in pipes:
            pipes[name].send((source[:2], 1))
            answers.append(pipes[name].recv()[1])
    print("greedy tokens in float32 are the same:", all(one == answers[0] for one in answers))
    for pipe in pipes.values():
        pipe.send(None)


def tell(batch: int, width: int, took: dict[str, float]) -> None:
    how = "greedy" if width == 1 else f"beam {width}"
    parts = ", ".join(f"{name} {ms:.1f}" for name, ms in took.items())
    pairs = [("ours", "generate"), ("ours", "ct2"), ("ours int8", "ct2 int8")]
    ratios = [f"{took[b] / took[a]:.2f} of {b}" for a, b in pairs if b in took]
    print(f"batch {batch:2} {how:6}: {parts} ms per step; {', '.join(ratios)}", flush=True)


if __name__ == "__main__":
    main()
