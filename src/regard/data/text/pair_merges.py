"""Merging of adjacent symbols by rank, as byte-pair encoding applies its merges."""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush


def merge_pairs(
    symbols: Sequence[str],
    rank: Callable[[str, str], float | None],
    drop: Callable[[], bool] | None = None,
) -> list[str]:
    """Merge the adjacent pair of the lowest rank, leftmost first, until no pair has a rank.

    With `drop`, called before every merge, some merges are skipped at each step: BPE dropout
    (Provilkov et al. 2020, algorithm 1).

    >>> ranks = {("l", "o"): 0, ("lo", "w"): 1}
    >>> merge_pairs("slow", lambda *pair: ranks.get(pair))
    ['s', 'low']
    >>> merge_pairs("slow", lambda *pair: ranks.get(pair), drop=lambda: True)
    ['s', 'l', 'o', 'w']
    """
    parts, size = list(symbols), len(symbols)
    after, before = list(range(1, size + 1)), list(range(-1, size - 1))

    def candidate(left: int) -> tuple[float, int, str, str] | None:
        right = after[left]
        if left < 0 or right >= size:
            return None
        value = rank(parts[left], parts[right])
        return None if value is None else (value, left, parts[left], parts[right])

    heap, skipped = [pair for left in range(size - 1) if (pair := candidate(left))], []
    heapify(heap)
    while heap:
        pair = heappop(heap)
        _, left, *texts = pair
        right = after[left]
        if right >= size or [parts[left], parts[right]] != texts:
            continue  # one of the two has been merged
        if drop is not None and drop():
            skipped.append(pair)
            continue
        parts[left], parts[right] = parts[left] + parts[right], ""
        after[left] = after[right]
        if after[left] < size:
            before[after[left]] = left
        for new in filter(None, (candidate(before[left]), candidate(left), *skipped)):
            heappush(heap, new)
        skipped.clear()
    return [part for part in parts if part]
