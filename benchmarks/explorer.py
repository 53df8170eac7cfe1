"""The explorer under load: latency of each kind of request, memory over time, size of the page.

python benchmarks/explorer.py                       # 50 users, one minute
python benchmarks/explorer.py --minutes 60          # an hour, to see whether memory grows
python benchmarks/explorer.py --users 1             # what one person waits for

The server is a process of its own on loopback; each user has a connection, a text nobody else
has, and sends the next request when the answer is there, without a pause: an hour of this is many
hours of clicking. A user opens the page and lists the models, then reads a text, looks at heads
(maps and tiles of the atlas), moves a slider of What-if, and asks what a model costs. One answer in
three was asked before by someone else, as with the page's examples.
"""

import argparse
import asyncio
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median, quantiles

Times = dict[str, list[float]]
SHARED_TEXTS = ["3 days", "March 5, 2024", "Monday, Tuesday, and Friday", "5 hours and 20 minutes"]
TIMEOUT = 120


def start(folder: Path, port: int, threads: int | None) -> subprocess.Popen:
    """A server of the pretrained models, once it answers."""
    command = [sys.executable, "-m", "regard", "serve", "--port", str(port), "--runs", str(folder)]
    command += [] if threads is None else ["--threads", str(threads)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server
        time.sleep(0.1)


def rss(pid: int) -> float:
    """Resident memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class User:
    """One person with one window: clicks through the views until the time is over."""

    def __init__(self, client, number: int, times: Times):
        self.client, self.number, self.times = client, number, times
        self.rng = random.Random(number)

    async def send(self, kind: str, method: str, path: str, **options):
        started = time.perf_counter()
        while (response := await self.client.request(method, path, **options)).status_code == 503:
            await asyncio.sleep(0.2)  # as the page does, only sooner
        self.times[kind].append(time.perf_counter() - started)
        return response

    async def ask(self, name: str, kind: str | None = None, **body):
        headers = {"X-Regard": "1", "X-Regard-View": f"{self.number}/{name}"}
        response = await self.send(
            kind or name, "POST", f"/explore/{name}", json=body, headers=headers
        )
        if response.status_code != 200:
            self.times[f"{name}: refused, {response.json()['error'][:60]}"].append(0.0)
            return None
        return response.json()

    def text(self) -> str:
        if self.rng.random() < 1 / 3:
            return self.rng.choice(SHARED_TEXTS)
        return f"{self.rng.randrange(2, 10_000)} days and {self.rng.randrange(2, 24)} hours"

    async def open_page(self, paths: list[str]) -> None:
        started = time.perf_counter()
        await asyncio.gather(*(self.client.get(path) for path in paths))
        self.times["page, all files"].append(time.perf_counter() - started)
        await self.ask("models")

    async def read_a_text(self) -> None:
        reads = {"model": "phrases", "text": self.text(), "to": self.rng.choice(["de", "fr"])}
        answer = await self.ask("text", **reads)
        if not answer:
            return
        for site in self.rng.sample(answer["sites"], min(3, len(answer["sites"]))):
            where = reads | {"site": site["name"], "head": 0}
            await self.ask("text.map", **where)
            await self.ask("text.cell", **where, query=0, key=0)
        factor = round(self.rng.uniform(0.5, 2), 2)
        await self.ask("what-if", **reads, edits=f"scale_scores('*', {factor})")

    async def look_at_a_long_map(self) -> None:
        text = f"# {self.number} {self.rng.random()}\n" + "import os\nprint(os.name)\n" * 40
        opened = await self.ask("atlas", model="stdlib", text=text)
        if opened:
            level, shown = opened["levels"] - 1, {"id": opened["id"]}
            await self.ask("atlas.margins", **shown, level=level, rows=8, columns=8)
            for place in ("0/0/0", f"{level}/0/0"):
                await self.send(
                    "atlas tiles", "GET", "/explore/atlas/tiles", params=shown | {"tiles": place}
                )

    async def reckon_costs(self) -> None:
        await self.ask("cost", target=self.rng.choice([256, 1000, 4096, 10_000]))

    async def click(self, until: float, paths: list[str]) -> None:
        await self.open_page(paths)
        while time.monotonic() < until:
            deeds = (self.read_a_text, self.look_at_a_long_map, self.reckon_costs)
            (deed,) = self.rng.choices(deeds, (6, 1, 2))
            await deed()


async def click_all(port: int, users: int, seconds: float, watch) -> Times:
    """What all users waited, by kind of request."""
    import httpx

    from regard.page import page_files

    times: Times = defaultdict(list)
    until, paths = time.monotonic() + seconds, list(page_files())

    async def sit_down(number: int) -> None:
        limits = httpx.Limits(max_connections=6)  # as browsers open them
        address = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(
            base_url=address, timeout=TIMEOUT, limits=limits, verify=False
        ) as client:
            await User(client, number, times).click(until, paths)

    watching = asyncio.ensure_future(watch())
    await asyncio.gather(*map(sit_down, range(users)))
    watching.cancel()
    return times


def slope(points: list[tuple[float, float]]) -> float:
    """Least-squares slope of the second half of a curve: what is kept on purpose has filled up."""
    points = points[len(points) // 2 :]
    if len(points) < 2:
        return float("nan")
    x, y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def measure(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        server = start(Path(folder), port, options.threads)
        memory: list[tuple[float, float]] = []
        started, cpu = time.monotonic(), cpu_seconds(server.pid)

        async def watch() -> None:
            while True:
                memory.append(((time.monotonic() - started) / 60, rss(server.pid)))
                await asyncio.sleep(min(1.0, options.minutes * 2))

        try:
            times = asyncio.run(click_all(port, options.users, 60 * options.minutes, watch))
            wall, used = time.monotonic() - started, cpu_seconds(server.pid) - cpu
        finally:
            server.terminate()
            server.wait()
    print_table(times, options.users, wall, used)
    print_memory(memory)
    print_page()


def print_table(times: Times, users: int, wall: float, used: float) -> None:
    print(f"\n{users} users, {wall:.0f} s, load of the machine {os.getloadavg()[0]:.1f}\n")
    print("| request | count | p50 ms | p95 ms |\n|---|---:|---:|---:|")
    for kind, values in sorted(times.items()):
        p95 = quantiles(values, n=20)[-1] if len(values) > 1 else values[0]
        print(f"| {kind} | {len(values)} | {1e3 * median(values):.0f} | {1e3 * p95:.0f} |")
    total = sum(map(len, times.values()))
    print(
        f"\n{total / wall:.1f} requests per second; {1e3 * used / total:.1f} ms of CPU per request"
    )


def print_memory(memory: list[tuple[float, float]]) -> None:
    first, last = memory[min(2, len(memory) - 1)][1], memory[-1][1]
    peak = max(x for _, x in memory)
    print(
        f"memory: {first:.0f} MB at the start, {last:.0f} MB at the end, {peak:.0f} MB at most; "
        f"{slope(memory):+.1f} MB per minute over the second half"
    )


def print_page() -> None:
    from regard.page import page_files

    files = page_files().values()
    size = sum(len(file.content) for file in files)
    print(f"page: {size / 1e3:.0f} kB in {len(files)} files, without compression")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--threads", type=int, help="of the models; the server's own default")
    measure(parser.parse_args())
