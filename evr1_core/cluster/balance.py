"""Work to ranks: nearly equal cost for each, and as much as possible where it was prepared."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def spread(costs: Sequence[float], parts: int, homes: Sequence[int | None] | None = None) -> list[list[int]]:
    """Places of items for each of `parts`, in order: longest first to the part that has least (Graham, 1969: at most 4/3 of the best).

    `homes`: the part that holds what an item needs. Parts are interchangeable until then, so they are numbered such that
    much of the cost stays at home.
    """
    loads = [(0.0, part) for part in range(parts)]
    found: list[list[int]] = [[] for _ in range(parts)]
    for place in sorted(range(len(costs)), key=lambda place: (-costs[place], place)):
        load, part = heapq.heappop(loads)
        found[part].append(place)
        heapq.heappush(loads, (load + costs[place], part))
    if homes is not None:
        found = _at_home(found, costs, homes)
    return [sorted(part) for part in found]


def _at_home(found: list[list[int]], costs: Sequence[float], homes: Sequence[int | None]) -> list[list[int]]:
    """The same parts in another order: the pair of part and home with the most common cost first."""
    common = [
        (sum(costs[place] for place in part if homes[place] == home), -number, -home)
        for number, part in enumerate(found)
        for home in range(len(found))
    ]
    order: dict[int, list[int]] = {}
    taken: set[int] = set()
    for _, number, home in sorted(common, reverse=True):
        if -home not in order and -number not in taken:
            order[-home] = found[-number]
            taken.add(-number)
    return [order[home] for home in range(len(found))]


def in_parts(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Items in order, cut into exactly `parts` runs of nearly equal cost, none empty; needs at least `parts` items."""
    assert 0 < parts <= len(costs)
    found: list[list[int]] = []
    start, left = 0, sum(costs)
    for part in range(parts, 0, -1):
        wanted, end, held = left / part, start + 1, costs[start]
        # An item goes to the run whose cost it brings nearer to the mean; each later run keeps one at least.
        while end < len(costs) - (part - 1) and (part == 1 or held + costs[end] / 2 <= wanted):
            held += costs[end]
            end += 1
        found.append(list(range(start, end)))
        start, left = end, left - held
    return found
