"""Merging of adjacent symbols by rank, as byte-pair encoding applies its merges."""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush


def merge_pairs(
    symbols: Sequence[str],
    rank: Callable[[tuple[str, str]], float | None],
    drop: Callable[[], bool] | None = None,
) -> list[str]:
    """Merge the adjacent pair of the lowest rank, leftmost first, until no pair has a rank.

    With `drop`, called before every merge, some merges are skipped at each step: BPE dropout
    (Provilkov et al. 2020, algorithm 1).

    >>> ranks = {("l", "o"): 0, ("lo", "w"): 1}
    >>> merge_pairs("slow", ranks.get)
    ['s', 'low']
    >>> merge_pairs("slow", ranks.get, drop=lambda: True)
    ['s', 'l', 'o', 'w']
    """
    parts, size, heap, skipped = list(symbols), len(symbols), [], []
    before, after = list(range(-1, size - 1)), list(range(1, size + 1))
    fresh: Iterable[int] = range(size)  # where a pair may be new
    while True:
        for left in fresh:
            if left >= 0 and after[left] < size:
                texts = parts[left], parts[after[left]]
                if (value := rank(texts)) is not None:
                    heappush(heap, (value, left, texts))
        while heap:
            _, left, texts = best = heappop(heap)
            right = after[left]
            if right == size or (parts[left], parts[right]) != texts:
                continue  # one of the two has been merged
            if drop is None or not drop():
                break
            skipped.append(best)
        else:
            return [part for part in parts if part]
        parts[left], parts[right], after[left] = "".join(texts), "", after[right]
        if after[left] < size:
            before[after[left]] = left
        for pair in skipped:
            heappush(heap, pair)
        skipped.clear()
        fresh = (before[left], left)
