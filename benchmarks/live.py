"""How fast a recogniser hears live: seconds of work a second of sound, on one and two threads.

python benchmarks/live.py        # a minute on two CPU cores

Sound is Morse code; models are the morse specimen and `recogniser_small` with random weights (12
layers of 256, chunks of 16). `piece` is how much sound comes at a time; 40 ms is one output. CPU
time counts the work of all threads, the clock also what else runs on the machine.
"""

import argparse
import time

import torch

from regard import data, decode, models, runs


def measure(model: torch.nn.Module, wave: torch.Tensor, piece: int, search: bool) -> tuple:
    """Seconds of CPU and of the clock for a second of sound, and the longest of a piece."""
    words = runs.load_pretrained("morse").tokenizer
    beam = decode.PrefixBeam(width=8) if search else None
    transcriber = decode.Transcriber(model, words, search=beam)
    sound = len(wave) / transcriber.sample_rate
    longest, cpu, clock = 0.0, time.process_time(), time.perf_counter()
    for part in wave.split(piece):
        began = time.perf_counter()
        transcriber.push(part)
        longest = max(longest, time.perf_counter() - began)
    transcriber.finish()
    return (time.process_time() - cpu) / sound, (time.perf_counter() - clock) / sound, longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of sound")
    seconds = parser.parse_args().seconds
    specimen = runs.load_pretrained("morse")
    small = models.Recogniser(models.recogniser_small(vocab=specimen.tokenizer.vocab)).eval()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads by default")
    print("model    threads  piece ms  search      cpu    clock  longest piece ms")
    for name, model in (("morse", specimen.model), ("small", small)):
        rate = model.config.sample_rate
        sounds = data.Morse(letters=(40, 40), rate=rate).examples("train", 0)
        wave = torch.cat([next(sounds).wave for _ in range(2)])[: int(seconds * rate)]
        for threads in (1, 2):
            torch.set_num_threads(threads)
            measure(model, wave[: 2 * rate], rate // 10, False)  # warm
            for ms, search in ((40, False), (100, False), (100, True), (1000, False)):
                cpu, clock, longest = measure(model, wave, rate * ms // 1000, search)
                how = "beam 8" if search else "path"
                print(
                    f"{name:8} {threads:7} {ms:9}  {how:7} {cpu:8.4f} {clock:8.4f} "
                    f"{1000 * longest:17.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
