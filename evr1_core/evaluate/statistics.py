"""How sure a number is. Plain functions, fixed seeds: the same results give the same intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""
RESAMPLES = 2_000
_AT_ONCE = 1 << 22
"""Draws that are held in memory together."""

Statistic = Callable[[np.ndarray], np.ndarray]
"""Means, float64 [..., parts] (NaN for a part without questions) -> a number for each, [...]."""


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
    means = {name: math.fsum(found) / len(found) for name, found in values.items() if found}
    leaves = sorted({paths[name] for name in means})
    parts = [{name: mean for name, mean in means.items() if paths[name] == leaf} for leaf in leaves]
    return combined(parts, lambda found: _outwards(found, leaves), clusters)


def _outwards(means: np.ndarray, leaves: Sequence[Path]) -> np.ndarray:
    """Means [..., leaves] -> the mean of means, [...]; NaN, a leaf without questions, is left out."""
    names = list(leaves)
    while names and names[0]:
        outer = sorted({name[:-1] for name in names})
        columns = [means[..., [name[:-1] == one for name in names]] for one in outer]
        means = np.stack([np.nansum(column, -1) / np.isfinite(column).sum(-1) for column in columns], -1)
        names = outer
    return means[..., 0]


def combined(parts: Sequence[Mapping[str, float]], statistic: Statistic, clusters: Mapping[str, str] | None = None) -> Figure:
    """A number made of several means, with its interval by a bootstrap over the videos: a difference, a gain.

    `parts`: for each mean its questions and their values; a question may be in several. Whole videos are drawn from those of
    all parts together, as in `bootstrap`; resamples for which the statistic is no number don't count.
    """
    questions = sorted({name for part in parts for name in part})
    if not questions:
        return Figure(None, None, None, 0)
    videos = {name: at for at, name in enumerate(dict.fromkeys((clusters or {}).get(name, name) for name in questions))}
    sums, counts = np.zeros((len(videos), len(parts))), np.zeros((len(videos), len(parts)))
    for at, part in enumerate(parts):
        for name, value in part.items():
            video = videos[(clusters or {}).get(name, name)]
            sums[video, at] += value
            counts[video, at] += 1
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(statistic(sums.sum(0) / counts.sum(0)))
        found = np.concatenate([statistic((times @ sums) / (times @ counts)) for times in _draws(len(videos))])
    found = found[np.isfinite(found)]
    if math.isnan(value) or not len(found):
        return Figure(None, None, None, len(questions))
    low, high = np.quantile(found, [0.025, 0.975])
    return Figure(value, float(low), float(high), len(questions))


def _draws(n: int, seed: int = 0) -> Iterator[np.ndarray]:
    """How often each of n videos is drawn, float64 [some, n]; RESAMPLES rows in all."""
    generator = np.random.default_rng(seed)
    step = max(1, _AT_ONCE // n)
    for start in range(0, RESAMPLES, step):
        rows = min(step, RESAMPLES - start)
        chosen = generator.integers(0, n, (rows, n)) + np.arange(rows)[:, None] * n
        yield np.bincount(chosen.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


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


def compare(first: Mapping[str, float], second: Mapping[str, float], clusters: Mapping[str, str] | None = None) -> Comparison:
    """Paired comparison of two evaluations: question -> accuracy. Questions that only one has are left out; see `n`.

    `clusters`: question -> its video; the interval draws whole videos then.
    """
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise ValueError("the two evaluations have no question in common")
    differences = [second[name] - first[name] for name in shared]
    better, worse = sum(value > 0 for value in differences), sum(value < 0 for value in differences)
    low, high = bootstrap(differences, [clusters.get(name, name) for name in shared] if clusters else None)
    return Comparison(math.fsum(differences) / len(shared), low, high, len(shared), better, worse, sign_test(better, worse))


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact binomial p-value of `better` of `better + worse` at probability one half."""
    n, k = better + worse, min(better, worse)
    if n == 0:
        return 1.0
    # Sums of logarithms: 2^n is no float for n above 1023.
    logs = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2) for i in range(k + 1)]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))
