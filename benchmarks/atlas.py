"""Deep zoom over one head's attention map: first picture, background pass, fine tiles.

python benchmarks/atlas.py                            # 16k and 32k, seconds on two CPU cores
python benchmarks/atlas.py --n 131072                 # under a minute
python benchmarks/atlas.py --device cuda --dtype bfloat16 --n 131072

One head of 64 features. `first` is the coarsest tile of a new pyramid, `pass` the rest of the
background pass, `tile` a random visible tile of levels 0 to 4, `band` one of the diagonal.
"""

import argparse
import random
import resource
import statistics
import time
from functools import partial
from itertools import pairwise

import torch

import regard as rg
from regard.inspection import MapPyramid, Site
from regard.ops.terms import make_terms

MASKS = {"full": None, "causal": rg.Causal(), "local": rg.Causal() & rg.Local(4096)}


def make_long_site(n, mask, device, dtype):
    """A site of one head whose attention is partly local, with the lse of a fused kernel."""
    q, k = torch.randn(2, 1, 1, n, 64, device=device, dtype=dtype).unbind(0)
    v = torch.zeros(1, 1, n, 8, device=device, dtype=dtype) if device == "cpu" else k
    out, lse = rg.attend(q, k, v, mask=mask)
    terms = make_terms(q, k, mask=mask)
    return Site(name="bench", path="bench", q=q, k=k, v=v, out=out, lse=lse, terms=terms)


def timed(work):
    start = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def read_tiles(pyramid, count, view):
    """Times of random tiles of levels 0 to 4, on or below the diagonal, in milliseconds."""
    times = []
    for i in range(count):
        level = i % min(5, pyramid.levels)
        row = random.randrange(-(-pyramid.level_shape(level)[0] // 256))
        column = random.randrange(row + 1) if view == "tile" else 0
        read = partial(getattr(pyramid, view), level, row, column)
        times.append(1e3 * timed(lambda read=read: read().to_bytes())[0])
    return statistics.median(times), statistics.quantiles(times, n=20)[-1], max(times)


def measure(n, name, device, dtype, count):
    site = make_long_site(n, MASKS[name], device, dtype)

    def first_picture():
        pyramid = MapPyramid(site, 0)
        return pyramid, pyramid.tile(pyramid.levels - 1, 0, 0).to_bytes()

    first_picture()  # warm-up: the first product of a process is slow
    first, (pyramid, _) = timed(first_picture)
    at = [time.perf_counter()]
    whole, _ = timed(lambda: at.extend(time.perf_counter() for _ in pyramid.advance()))
    laps = [b - a for a, b in pairwise(at)]
    stored, _ = timed(lambda: pyramid.tile(pyramid.levels - 1, 0, 0).to_bytes())
    median, p95, slowest = read_tiles(pyramid, count, "tile")
    band, band95, _ = read_tiles(pyramid, count, "band")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:6} n = {n}: first {first:.2f} s, pass {whole:.2f} s in {len(laps)} steps (longest "
        f"{1e3 * max(laps):.0f} ms), coarsest tile then {1e3 * stored:.0f} ms; tile median "
        f"{median:.0f} ms, p95 {p95:.0f}, max {slowest:.0f}; band {band:.0f}, p95 {band95:.0f}; "
        f"stored {stored_bytes(pyramid) / 2**20:.0f} MiB, process peak {memory:.0f} MiB"
    )


def stored_bytes(pyramid):
    levels = [level for tile in pyramid._pass.stored.values() for level in tile]
    return sum(cells.mean.nbytes + cells.max.nbytes for cells in levels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, nargs="+", default=[16384, 32768])
    parser.add_argument("--mask", nargs="+", default=["causal"], choices=MASKS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiles", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    random.seed(0)
    for n in args.n:
        for name in args.mask:
            measure(n, name, args.device, getattr(torch, args.dtype), args.tiles)


if __name__ == "__main__":
    main()
