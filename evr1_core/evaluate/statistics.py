"""How sure a number is. Plain functions, fixed seeds: the same results give the same intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""
RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean with its 95 % interval over `n` questions. `value` None where nothing was counted."""

    value: float | None
    low: float | None
    high: float | None
    n: int


def wilson(successes: float, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a share (J. Am. Stat. Assoc. 22, 1927). (0, 1) for n = 0."""
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def figure(values: Mapping[str, Sequence[float]], clusters: Mapping[str, str] | None = None) -> Figure:
    """Mean over questions of the mean over their answers. `values`: question -> numbers of its answers; `clusters`: question -> its video.

    One right-or-wrong answer per question, each about a video of its own, gives Wilson's interval; everything else (several
    answers, overlaps, several questions about one video) a bootstrap over the videos, since answers that share one are not
    independent.
    """
    means = {name: sum(found) / len(found) for name, found in values.items() if found}
    if not means:
        return Figure(None, None, None, 0)
    n, mean = len(means), math.fsum(means.values()) / len(means)
    groups = [(clusters or {}).get(name, name) for name in means]
    binary = all(value in (0.0, 1.0) for found in values.values() for value in found)
    if binary and len(set(groups)) == n and all(len(found) <= 1 for found in values.values()):
        return Figure(mean, *wilson(sum(means.values()), n), n)
    return Figure(mean, *bootstrap(list(means.values()), clusters=groups), n)


def bootstrap(
    values: Sequence[float], clusters: Sequence[str] | None = None, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile interval of the mean. With `clusters` whole clusters are drawn (Field and Welsh, J. R. Stat. Soc. B 69, 2007)."""
    data = np.asarray(values, dtype=np.float64)
    names, places = np.unique(np.asarray(clusters if clusters is not None else np.arange(len(data))), return_inverse=True)
    sums, counts = np.bincount(places, weights=data), np.bincount(places)
    generator = np.random.default_rng(seed)
    drawn = (generator.integers(0, len(names), len(names)) for _ in range(resamples))
    means = np.array([sums[chosen].sum() / counts[chosen].sum() for chosen in drawn])
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


Path = tuple[str, ...]
"""Where a question stands in a mean of means, from the outside in: for example (category, task)."""


def nested_figure(values: Mapping[str, Sequence[float]], paths: Mapping[str, Path], clusters: Mapping[str, str] | None = None) -> Figure:
    """Mean of means: over questions within a path, over paths with one beginning, and so on outwards, each weighing the same.

    `paths`: question -> its place; all of one length. The interval is a bootstrap over clusters (videos); a path of which a
    resample holds no question is left out of its mean there.
    """
    names = [name for name, found in values.items() if found]
    if not names:
        return Figure(None, None, None, 0)
    leaves = sorted({paths[name] for name in names})
    rows = {cluster: row for row, cluster in enumerate(dict.fromkeys((clusters or {}).get(name, name) for name in names))}
    columns = {leaf: column for column, leaf in enumerate(leaves)}
    sums, counts = np.zeros((len(rows), len(leaves))), np.zeros((len(rows), len(leaves)))
    for name in names:
        place = rows[(clusters or {}).get(name, name)], columns[paths[name]]
        sums[place] += math.fsum(values[name]) / len(values[name])
        counts[place] += 1
    whole = float(_outwards(sums.sum(0, keepdims=True), counts.sum(0, keepdims=True), leaves)[0])
    weights = np.random.default_rng(0).multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=RESAMPLES).astype(np.float64)
    low, high = np.nanquantile(_outwards(weights @ sums, weights @ counts, leaves), [0.025, 0.975])
    return Figure(whole, float(low), float(high), len(names))


def _outwards(sums: np.ndarray, counts: np.ndarray, leaves: Sequence[Path]) -> np.ndarray:
    """Sums and counts [R, leaves] -> the mean of means of each row, [R]."""
    with np.errstate(invalid="ignore"):
        means = sums / counts  # NaN where nothing was drawn
    names = list(leaves)
    while names and names[0]:
        outer = sorted({name[:-1] for name in names})
        columns = [means[:, [place for place, name in enumerate(names) if name[:-1] == one]] for one in outer]
        known = [~np.isnan(column) for column in columns]
        with np.errstate(invalid="ignore"):
            means = np.stack([np.where(k, c, 0).sum(1) / k.sum(1) for c, k in zip(columns, known, strict=True)], axis=1)
        names = outer
    return means[:, 0]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Second minus first, over the questions that both have."""

    difference: float
    low: float
    high: float
    n: int
    better: int
    """Questions on which the second is better."""
    worse: int
    p: float
    """Two-sided exact p-value that better and worse are equally likely (McNemar; a sign test where answers are not 0 or 1)."""


def compare(first: Mapping[str, float], second: Mapping[str, float]) -> Comparison:
    """Paired comparison of two evaluations: question -> accuracy. Questions that only one has are left out; see `n`."""
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise ValueError("the two evaluations have no question in common")
    differences = [second[name] - first[name] for name in shared]
    better, worse = sum(value > 0 for value in differences), sum(value < 0 for value in differences)
    low, high = bootstrap(differences)
    return Comparison(math.fsum(differences) / len(shared), low, high, len(shared), better, worse, sign_test(better, worse))


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact binomial p-value of `better` of `better + worse` at probability one half."""
    n, k = better + worse, min(better, worse)
    if n == 0:
        return 1.0
    # Sums of logarithms: 2^n is no float for n above 1023.
    logs = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2) for i in range(k + 1)]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))
