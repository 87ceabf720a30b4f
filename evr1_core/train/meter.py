"""Means over tokens that no split changes: counts and sums are kept, never means of means."""

from __future__ import annotations

import torch
from torch import Tensor


class Meter:
    """Per-token numbers of a step, collected from blocks and micro-batches in any order."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        """name -> float64 [count, sum], or [count, sum, sum of squares, -minimum, maximum] where the spread is wanted."""
        self._totals: dict[str, Tensor] = {}

    def add(self, name: str, values: Tensor, mask: Tensor, *, spread: bool = False) -> None:
        """`values` where `mask` is True; NaN there is a token that the number doesn't concern."""
        known = mask & ~values.isnan()
        kept = torch.where(known, values, torch.zeros_like(values))
        found = [known.sum(), kept.sum(dtype=torch.float64)]
        if spread:
            found += [
                kept.square().sum(dtype=torch.float64),
                torch.where(known, -values, -torch.inf).max(),
                torch.where(known, values, -torch.inf).max(),
            ]
        self._merge(name, torch.stack([one.detach().double() for one in found]))

    def total(self, name: str, share: Tensor) -> None:
        """A part of a number that is a sum already, such as a share of the loss."""
        self._totals[name] = self._totals.get(name, 0.0) + share.detach().double()

    def merge(self, other: Meter) -> None:
        for name, found in other._sums.items():
            self._merge(name, found)
        for name, share in other._totals.items():
            self.total(name, share)

    def mean(self, name: str) -> float:
        """0 where nothing was counted."""
        count, total = self._sums[name][:2].tolist() if name in self._sums else (0.0, 0.0)
        return total / count if count else 0.0

    def summary(self) -> dict[str, float]:
        """`name`, the mean; with a spread `name_min`, `name_max` and, where none is negative, `name_ess` too.

        ess is the effective sample size (sum r)^2 / (n sum r^2), a share of the tokens: 1 when all weigh the same.
        """
        found = {name: float(value) for name, value in self._totals.items()}
        for name, sums in self._sums.items():
            count, total, *spread = sums.tolist()
            if not count:
                continue
            found[name] = total / count
            if spread:
                squares, low, high = spread
                found |= {f"{name}_min": -low, f"{name}_max": high}
                if low <= 0:
                    found[f"{name}_ess"] = total**2 / (count * squares) if squares else 0.0
        return found

    def _merge(self, name: str, found: Tensor) -> None:
        known = self._sums.get(name)
        self._sums[name] = found if known is None else torch.cat([known[:3] + found[:3], torch.maximum(known[3:], found[3:])])
