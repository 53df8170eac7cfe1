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


def request(name: str, value, stream: bool = False) -> dict:
    """Path and body of a request."""
    if RUNS[name] == "translate":
        return {"url": "/translate", "json": {"texts": [value], "to": ["de"]}}
    if RUNS[name] == "generate":
        body = {"prompt": value, "max_new_tokens": TOKENS, "stream": stream}
        return {"url": "/generate", "json": body}
    return {"url": f"/{RUNS[name]}", "content": Path(value).read_bytes()}


async def load(url: str, name: str, values: list, clients: int, seconds: float) -> dict:
    """The latencies of clients that send one request after the other."""
    import httpx

    requests, times = [request(name, value) for value in values], []
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:

        async def client(at: int) -> None:
            while time.perf_counter() < end:
                started = time.perf_counter()
                (await http.post(**requests[at % len(requests)])).raise_for_status()
                times.append(time.perf_counter() - started)
                at += clients

        await http.post(**requests[0])
        started = time.perf_counter()
        end = started + seconds
        await asyncio.gather(*(client(n) for n in range(clients)))
        return summary(times, time.perf_counter() - started)


async def first_piece(url: str, values: list, clients: int, seconds: float) -> float:
    """The median time to the first piece of a streamed text."""
    import httpx

    times = []
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:

        async def client(at: int) -> None:
            while time.perf_counter() < end:
                started, first = time.perf_counter(), None
                send = request("stdlib", values[at % len(values)], stream=True)
                async with http.stream("POST", **send) as answer:
                    async for line in answer.aiter_lines():
                        if line and first is None:
                            first = time.perf_counter() - started
                times.append(first)
                at += clients

        end = time.perf_counter() + seconds
        await asyncio.gather(*(client(n) for n in range(clients)))
    return 1000 * median(x for x in times if x is not None)


def summary(times: list[float], seconds: float) -> dict[str, float]:
    ordered = sorted(times)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return {"rate": len(times) / seconds, "median": 1000 * median(times), "p95": 1000 * p95}


def clients(url: str, names: list[str], seconds: float) -> None:
    """The process of the clients: prints one JSON line per run and number of clients."""
    with tempfile.TemporaryDirectory() as folder:
        values = inputs(Path(folder))
        for name in names:
            for count in CLIENTS:
                row = asyncio.run(load(url, name, values[name], count, seconds))
                if name == "stdlib":
                    pieces = first_piece(url, values[name], count, seconds / 2)
                    row["first"] = asyncio.run(pieces)
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
        return clients(given.clients_of, names, given.seconds)
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
        with subprocess.Popen([*own, "--clients-of", url], stdout=subprocess.PIPE) as process:
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
