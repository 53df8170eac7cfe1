"""Real-time factor of streaming recognition: seconds of work per second of audio.

python benchmarks/live.py        # a minute on two CPU cores

The audio is Morse code; models are the pretrained `morse` and `recogniser_small` with random
weights (12 layers of 256, chunks of 16). `chunk` is the audio per call; 40 ms is one output. CPU
time sums over threads; wall time includes other processes of the machine.
"""

import argparse
import time

import torch

from regard import data, decode, models, runs


def measure(model: torch.nn.Module, wave: torch.Tensor, chunk: int, search: bool) -> tuple:
    """CPU and wall seconds per second of audio, and the longest call."""
    tokenizer = runs.load("morse", device="cpu").tokenizer
    beam = decode.PrefixBeam(width=8) if search else None
    transcriber = decode.Transcriber(model, tokenizer, search=beam)
    seconds = len(wave) / transcriber.sample_rate
    longest, cpu, clock = 0.0, time.process_time(), time.perf_counter()
    for part in wave.split(chunk):
        began = time.perf_counter()
        transcriber.push(part)
        longest = max(longest, time.perf_counter() - began)
    transcriber.finish()
    return (time.process_time() - cpu) / seconds, (time.perf_counter() - clock) / seconds, longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of audio")
    seconds = parser.parse_args().seconds
    pretrained = runs.load("morse", device="cpu")
    small = models.Recogniser(models.recogniser_small(vocab=pretrained.tokenizer.vocab)).eval()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads by default")
    print("model    threads  chunk ms  search      cpu     wall  longest chunk ms")
    for name, model in (("morse", pretrained.model), ("small", small)):
        rate = model.config.sample_rate
        audio = data.Morse(letters=(40, 40), rate=rate).examples("train", 0)
        wave = torch.cat([next(audio).wave for _ in range(2)])[: int(seconds * rate)]
        for threads in (1, 2):
            torch.set_num_threads(threads)
            measure(model, wave[: 2 * rate], rate // 10, False)  # warm up
            for ms, search in ((40, False), (100, False), (100, True), (1000, False)):
                cpu, clock, longest = measure(model, wave, rate * ms // 1000, search)
                decoder = "beam 8" if search else "greedy"
                print(
                    f"{name:8} {threads:7} {ms:9}  {decoder:7} {cpu:8.4f} {clock:8.4f} "
                    f"{1000 * longest:17.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
