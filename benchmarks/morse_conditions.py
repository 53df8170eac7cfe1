"""Character error rate of the Morse recogniser by condition, on audio of a second synthesiser.

python benchmarks/morse_conditions.py                 # the pretrained model, 12 texts per condition
python benchmarks/morse_conditions.py --run runs/morse --texts 30

The synthesiser shares no code with the training data: its own code table and timing, a keyed sine
with raised-cosine edges, and other implementations of each effect (the limiter is an arc tangent,
the gain control a recursion over samples, and so on). Recordings are written as 16-bit WAV files.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import soundfile
import typer

TABLE = """
A .- B -... C -.-. D -.. E . F ..-. G --. H .... I .. J .--- K -.- L .-.. M -- N -. O --- P .--.
Q --.- R .-. S ... T - U ..- V ...- W .-- X -..- Y -.-- Z --.. 1 .---- 2 ..--- 3 ...-- 4 ....-
5 ..... 6 -.... 7 --... 8 ---.. 9 ----. 0 ----- . .-.-.- , --..-- ? ..--.. / -..-. = -...-
"""
ITU = dict(zip(TABLE.split()[::2], TABLE.split()[1::2], strict=True))
SENT = """
CQ CQ DE DL1ABC K
THE QUICK BROWN FOX
UR RST 599 599 BK
NAME IS PETER
QTH BERLIN = WX SUNNY
73 ES GL
RIG 100W ANT DIPOLE
PSE AGN?
JUMPS OVER
LAZY DOGS 2024
QRZ DE OH2XYZ/P
TNX FER QSO,
SOS SOS SOS
TEST VVV TEST
HELLO WORLD
EEE TTT 5555
M1 M2 M3
ZULU YANKEE
PARIS PARIS
QSL VIA BURO.
"""
WORDS = SENT.strip().splitlines()


@dataclass(frozen=True)
class Condition:
    """Effects on a recording; the default is clean code with standard timing."""

    wpm: float = 20.0
    pitch: float = 600.0
    rate: int = 8000
    before: float = 0.5
    after: float = 1.0
    snr: float | None = None  # dB, full band
    spacing: float = 1.0  # factor of the gaps between letters and words
    jitter: float = 0.0  # uniform, relative
    level: float = -6.0  # dBFS
    limit: float = 0.0  # dB into a limiter
    clip: float = 0.0  # dB into a clipper
    agc: bool = False
    hum: float = 0.0
    other: float = 0.0  # amplitude of a second station, 250 Hz above
    drift: float = 0.0  # Hz over the whole recording
    rise: float = 0.004
    offset: float = 0.0
    fade: float = 0.0  # dB, twice in three seconds
    pause: float = 0.0  # extra seconds between words


CONDITIONS = {
    "clean, 20 wpm, 600 Hz": Condition(),
    "8 wpm": Condition(wpm=8),
    "10 wpm": Condition(wpm=10),
    "15 wpm": Condition(wpm=15),
    "30 wpm": Condition(wpm=30),
    "40 wpm": Condition(wpm=40),
    "45 wpm": Condition(wpm=45),
    "300 Hz": Condition(pitch=300),
    "1,000 Hz": Condition(pitch=1000),
    "1,200 Hz": Condition(pitch=1200),
    "starts on the first dot, ends on the last": Condition(before=0, after=0),
    "the same, 12 wpm, noise 10 dB below": Condition(wpm=12, before=0, after=0, snr=10),
    "4 s of silence around": Condition(before=4, after=4),
    "pauses of 1 s between words": Condition(pause=1),
    "pauses of 4 s between words": Condition(pause=4),
    "noise 10 dB below": Condition(snr=10),
    "noise 3 dB below": Condition(snr=3),
    "noise as loud (0 dB)": Condition(snr=0),
    "noise 3 dB above": Condition(snr=-3),
    "noise 6 dB above": Condition(snr=-6),
    "clipped by 20 dB": Condition(clip=20),
    "clipped by 20 dB, noise 10 dB below": Condition(clip=20, snr=10),
    "limited by 20 dB": Condition(limit=20),
    "limited by 30 dB, noise 6 dB below": Condition(limit=30, snr=6),
    "gain control, noise 12 dB below": Condition(agc=True, snr=12),
    "gain control, noise 6 dB below": Condition(agc=True, snr=6),
    "Farnsworth, gaps x 1.5": Condition(spacing=1.5),
    "Farnsworth, gaps x 2": Condition(spacing=2.0),
    "Farnsworth, gaps x 3": Condition(spacing=3.0),
    "timing +-10%": Condition(jitter=0.1),
    "timing +-20%": Condition(jitter=0.2),
    "timing +-20%, noise 6 dB below": Condition(jitter=0.2, snr=6),
    "pitch drifts by 60 Hz": Condition(drift=60),
    "hard keying, 0.3 ms": Condition(rise=0.0003),
    "mains hum at half the amplitude": Condition(hum=0.5),
    "second station 12 dB below, 250 Hz above": Condition(other=0.25),
    "second station 6 dB below, 250 Hz above": Condition(other=0.5),
    "fading by 12 dB, noise 10 dB below": Condition(fade=12, snr=10),
    "-40 dBFS": Condition(level=-40),
    "full scale": Condition(level=0),
    "constant offset of 0.2": Condition(offset=0.2, level=-12),
    "44,100 Hz": Condition(rate=44100),
}


def keyed(text: str, how: Condition, rng: np.random.Generator) -> np.ndarray:
    """Envelope of the key from 0 to 1, with silence at both ends."""
    unit = 60 / 50 / how.wpm  # PARIS is 50 units long
    marks: list[tuple[float, float]] = []
    now = how.before

    def jittered(units: float) -> float:
        return unit * units * (1 + how.jitter * rng.uniform(-1, 1))

    for word in text.split():
        for letter in word:
            for symbol in ITU[letter]:
                length = jittered(1 if symbol == "." else 3)
                marks.append((now, now + length))
                now += length + jittered(1)
            now += jittered(3 * how.spacing - 1)
        now += jittered(4 * how.spacing) + how.pause
    time = np.arange(round((marks[-1][1] + how.after) * how.rate)) / how.rate
    envelope = np.zeros(len(time))
    for on, off in marks:
        near = slice(int(on * how.rate), int((off + how.rise) * how.rate) + 1)
        up = np.clip((time[near] - on) / how.rise, 0, 1)
        down = np.clip((off + how.rise - time[near]) / how.rise, 0, 1)
        envelope[near] = np.minimum(
            0.5 - 0.5 * np.cos(np.pi * up), 0.5 - 0.5 * np.cos(np.pi * down)
        )
    return envelope


def synthesize(text: str, how: Condition, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    envelope = keyed(text, how, rng)
    time = np.arange(len(envelope)) / how.rate
    fraction = time / time[-1]
    phase = 2 * np.pi * np.cumsum(how.pitch + how.drift * (fraction - 0.5)) / how.rate
    wave = envelope * np.cos(phase + rng.uniform(0, 6))
    wave *= 10 ** (-how.fade / 20 * (0.5 - 0.5 * np.cos(2 * np.pi * time / 1.5)))
    if how.other:
        second = keyed(WORDS[(seed + 7) % len(WORDS)], replace(how, wpm=how.wpm * 1.2), rng)
        second = np.resize(second, len(wave))
        wave += how.other * second * np.cos(2 * np.pi * (how.pitch + 250) * time)
    wave += how.hum * np.cos(2 * np.pi * 50 * time) + how.hum / 3 * np.cos(2 * np.pi * 150 * time)
    if how.snr is not None:
        wave += rng.standard_normal(len(wave)) * np.sqrt(0.5 * 10 ** (-how.snr / 10))
    if how.agc:
        wave = _gain_controlled(wave, how.rate)
    wave /= np.abs(wave).max()
    if how.clip:
        wave = np.clip(wave * 10 ** (how.clip / 20), -1, 1)
    if how.limit:
        driven = wave * 10 ** (how.limit / 20)
        wave = 2 / np.pi * np.arctan(np.pi / 2 * driven)
    return wave / np.abs(wave).max() * 10 ** (how.level / 20) + how.offset


def _gain_controlled(wave: np.ndarray, rate: int) -> np.ndarray:
    """Automatic gain control: attack 2 ms, release 400 ms, output level 1."""
    attack, release = np.exp(-1 / (0.002 * rate)), np.exp(-1 / (0.4 * rate))
    level, out = 0.05, np.empty(len(wave))
    for n, x in enumerate(wave):
        keep = attack if abs(x) > level else release
        level = max(1e-3, keep * level + (1 - keep) * abs(x))
        out[n] = x / level
    return out


def write_all(folder: Path, how: Condition, texts: int) -> list[tuple[Path, str]]:
    """Write WAV files of a condition; returns path and text of each."""
    files = []
    for n in range(texts):
        text = WORDS[n % len(WORDS)]
        path = folder / f"{n}.wav"
        wave = np.clip(synthesize(text, how, n), -1, 32767 / 32768)
        soundfile.write(path, wave, how.rate, subtype="PCM_16")
        files.append((path, text))
    return files


def main(
    run: Annotated[str, typer.Option(help="Run folder or name of a pretrained model.")] = "morse",
    texts: Annotated[int, typer.Option(help="Texts per condition, up to 20.")] = 12,
    only: Annotated[str, typer.Option(help="Substring of the conditions to run.")] = "",
) -> None:
    from regard import runs, tasks

    opened = runs.load_run(runs.find_run(run))
    threshold = opened.calibration.threshold if opened.calibration else 0.0
    print("| condition | character error rate | exact | low confidence |\n|---|---|---|---|")
    for name, how in CONDITIONS.items():
        if only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            files = write_all(Path(folder), how, texts)
            transcripts = opened.apply([path for path, _ in files])
        references = [text for _, text in files]
        answers = [transcript.text for transcript in transcripts]
        error = tasks.error_rate(answers, references)
        exact = sum(a == b for a, b in zip(answers, references, strict=True))
        unsure = sum(not x.text or (x.confidence or 0.0) < threshold for x in transcripts)
        print(f"| {name} | {error:.1%} | {exact} of {texts} | {unsure} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
