"""Requests per second and latency of `regard serve`, beside one-by-one calls in Python.

python benchmarks/serve.py        # three minutes on two CPU cores

The server is a process of its own on loopback, the clients another: 1, 8 or 32 connections, each
sending its next request when it has the answer. Calls run in a third process, before the server
starts, with one thread, as the server does. Generation is 32 tokens of a prompt; its last column
is the median time to the first piece of a streamed text.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

CLIENTS = (1, 8, 32)
RUNS = {"phrases": "translate", "glyphs": "classify", "morse": "transcribe", "stdlib": "generate"}
TOKENS = 32


def inputs(folder: Path) -> dict[str, list]:
    """Different inputs per run: texts, an image or a sound as a file, prompts."""
    import numpy as np
    import soundfile
    from PIL import Image, ImageDraw, ImageFont

    from regard.data import key_text, keyed_tone

    images, sounds = [], []
    for letter in "ABCDEFGHKLMNPRSTUVXYZ":
        image = Image.new("L", (64, 64), 255)
        ImageDraw.Draw(image).text((20, 10), letter, 0, ImageFont.load_default(40))
        images.append(folder / f"{letter}.png")
        image.save(images[-1])
        down, _ = key_text(f"CQ DE {letter}", wpm=22, rate=8000)
        sounds.append(folder / f"{letter}.wav")
        soundfile.write(sounds[-1], keyed_tone(np.pad(down, (1600, 4000)), 600, 8000) / 2, 8000)
    texts = [f"{n} days and {n % 12} hours" for n in range(2, 60)]
    prompts = ["import ", "def main(", "class ", "for i in ", "try:\n    ", "x = "]
    return {"phrases": texts, "glyphs": images, "morse": sounds, "stdlib": prompts}


def one_by_one(seconds: float) -> dict[str, dict[str, float]]:
    """Calls per second, and their latency, with nothing beside them."""
    import torch

    import regard as rg

    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, values in inputs(Path(folder)).items():
            run, times, at = rg.load(name, device="cpu"), [], 0
            call = {
                "translate": lambda x, run=run: run.translate([x], to=["de"]),
                "classify": lambda x, run=run: run.classify([x]),
                "transcribe": lambda x, run=run: run.transcribe([x]),
                "generate": lambda x, run=run: run.generate(x, max_new_tokens=TOKENS),
            }[RUNS[name]]
            call(values[0])
            while sum(times) < seconds:
                started = time.perf_counter()
                call(values[at % len(values)])
                times.append(time.perf_counter() - started)
                at += 1
            results[name] = summary(times, sum(times))
    return results


def request(name: str, value, stream: bool = False) -> bytes:
    """A request as it is sent."""
    kind, path = "application/json", f"/{RUNS[name]}"
    if RUNS[name] == "translate":
        body = json.dumps({"texts": [value], "to": ["de"]}).encode()
    elif RUNS[name] == "generate":
        body = json.dumps({"prompt": value, "max_new_tokens": TOKENS, "stream": stream}).encode()
    else:
        kind, body = "application/octet-stream", Path(value).read_bytes()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def answer(reader: asyncio.StreamReader) -> float:
    """Read one answer; returns the time of its first data."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 200"), head
    if b"content-length: " in head:
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        return time.perf_counter()
    first = 0.0
    while size := int(await reader.readline(), 16):  # chunked
        await reader.readexactly(size + 2)
        first = first or time.perf_counter()
    await reader.readline()
    return first or time.perf_counter()


async def load(port: int, requests: list[bytes], clients: int, seconds: float) -> dict[str, float]:
    """The latencies of clients that send one request after the other, and of the first data."""
    times, firsts = [], []

    async def client(at: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end:
            started = time.perf_counter()
            writer.write(requests[at % len(requests)])
            firsts.append(await answer(reader) - started)
            times.append(time.perf_counter() - started)
            at += clients
        writer.close()

    started = time.perf_counter()
    end = started + seconds
    await asyncio.gather(*(client(n) for n in range(clients)))
    found = summary(times, time.perf_counter() - started)
    return {**found, "first": 1000 * median(firsts)}


def summary(times: list[float], seconds: float) -> dict[str, float]:
    ordered = sorted(times)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return {"rate": len(times) / seconds, "median": 1000 * median(times), "p95": 1000 * p95}


def clients(port: int, names: list[str], seconds: float) -> None:
    """The process of the clients: prints one JSON line per run and number of clients."""
    with tempfile.TemporaryDirectory() as folder:
        values = inputs(Path(folder))
        for name in names:
            whole = [request(name, value) for value in values[name]]
            for count in CLIENTS:
                asyncio.run(load(port, whole, count, 0.5))  # warm up
                row = asyncio.run(load(port, whole, count, seconds))
                del row["first"]
                if name == "stdlib":
                    pieces = [request(name, value, stream=True) for value in values[name]]
                    row["first"] = asyncio.run(load(port, pieces, count, seconds / 2))["first"]
                print(json.dumps({"name": name, "clients": count, **row}), flush=True)


def wait_until_ready(url: str, server: subprocess.Popen) -> None:
    import httpx

    while server.poll() is None:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise SystemExit("the server ended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=6.0, help="per measurement")
    parser.add_argument("--runs", default=",".join(RUNS), help="of these")
    parser.add_argument("--clients-of", help=argparse.SUPPRESS)
    parser.add_argument("--calls", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.runs.split(",")
    if given.clients_of:
        return clients(int(given.clients_of), names, given.seconds)
    if given.calls:
        return print(json.dumps(one_by_one(given.seconds)))
    own = [sys.executable, __file__, "--seconds", str(given.seconds), "--runs", given.runs]
    calls = json.loads(subprocess.check_output([*own, "--calls"]).splitlines()[-1])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, serve = f"http://127.0.0.1:{port}", [sys.executable, "-m", "regard", "serve", *names]
    server = subprocess.Popen([*serve, "--port", str(port), "--device", "cpu"])
    try:
        wait_until_ready(url, server)
        print("| run | caller | requests/s | median ms | p95 ms | first piece ms |")
        print("|---|---|---|---|---|---|")
        with subprocess.Popen([*own, "--clients-of", str(port)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            rows = [json.loads(line) for line in process.stdout]
        for name in names:
            found = [{"caller": "calls in Python", **calls[name]}]
            found += [{"caller": f"{x['clients']} clients", **x} for x in rows if x["name"] == name]
            for x in found:
                first = f"{x['first']:.0f}" if "first" in x else ""
                print(
                    f"| `{name}` | {x['caller']} | {x['rate']:.1f} | {x['median']:.1f} "
                    f"| {x['p95']:.1f} | {first} |"
                )
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
