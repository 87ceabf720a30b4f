"""The answers of a step as the ranks of a worker group run them: equal tokens, and the same number of forward passes on every rank.

Answers to one prompt stay together, since they share its prepared media. A rank that has too few rows for its passes runs dummy
passes: every pass is a collective, and a rank that leaves one out makes the others wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from evr1_core.cluster.balance import in_parts, spread
from evr1_core.policy.forward import Row
from evr1_core.train.messages import Asked, Share
from evr1_core.train.update import mini_batches

VISION = 0.3
"""Work of the vision tower on the patches of one media token, in that of the language model on one token: a tower of 0.6 billion
parameters on four patches beside a model of 8 billion. It runs once for all answers to a prompt."""

Micro = Callable[[Sequence[Row]], Iterable[Sequence[int]]]
"""Rows in order -> micro-batches."""


def shares(
    rows: Sequence[Row], parts: int, ranks: int, micro: Micro, homes: Mapping[str, int], media: frozenset[int], digest: Callable[[Row], str]
) -> list[Share]:
    """The share of each of `ranks`. `parts`: mini-batches; `homes`: sample id -> rank that has the prompt; `media`: ids of media tokens."""
    plans: list[list[tuple[tuple[int, ...], ...]]] = [[] for _ in range(ranks)]
    for indices in mini_batches(len(rows), parts):
        for plan, one in zip(plans, _mini_batch(rows, indices, ranks, micro, homes, media), strict=True):
            plan.append(one)
    return [_share(rows, plan, digest) for plan in plans]


def _mini_batch(
    rows: Sequence[Row], indices: Sequence[int], ranks: int, micro: Micro, homes: Mapping[str, int], media: frozenset[int]
) -> list[tuple[tuple[int, ...], ...]]:
    """Micro-batches of each rank, as many for each."""
    groups: list[list[int]] = []
    for index in indices:
        if groups and rows[groups[-1][-1]].prompt is rows[index].prompt:
            groups[-1].append(index)
        else:
            groups.append([index])
    costs = [sum(len(rows[i]) for i in group) + VISION * sum(t in media for t in rows[group[0]].prompt.token_ids) for group in groups]
    assigned = spread(costs, ranks, [homes.get(rows[group[0]].prompt.sample.id) for group in groups])
    own = [[index for place in part for index in groups[place]] for part in assigned]
    cut = [[[mine[i] for i in one] for one in micro([rows[i] for i in mine])] if mine else [] for mine in own]
    passes = max((len(one) for one in cut), default=0)
    return [_level(one, passes, rows) for one in cut]


def _level(cut: Sequence[Sequence[int]], passes: int, rows: Sequence[Row]) -> tuple[tuple[int, ...], ...]:
    """Exactly `passes` micro-batches: real rows are spread over them before dummies are. Those that there are get cut in two, the
    largest first, so that none grows beyond what one pass may take."""
    found = [list(one) for one in cut]
    while len(found) < passes and any(len(one) > 1 for one in found):
        sizes = [sum(len(rows[i]) for i in one) if len(one) > 1 else 0 for one in found]
        place = sizes.index(max(sizes))
        largest = found[place]
        found[place : place + 1] = [[largest[i] for i in half] for half in in_parts([len(rows[i]) for i in largest], 2)]
    return (*(tuple(one) for one in found), *(() for _ in range(passes - len(found))))


def _share(rows: Sequence[Row], plan: Sequence[Sequence[Sequence[int]]], digest: Callable[[Row], str]) -> Share:
    places = [index for part in plan for micro in part for index in micro]
    local = {index: number for number, index in enumerate(places)}
    prompts: dict[int, int] = {}
    asked: list[Asked] = []
    for index in places:
        if id(rows[index].prompt) not in prompts:
            prompts[id(rows[index].prompt)] = len(asked)
            asked.append(Asked(rows[index].prompt.sample, digest(rows[index])))
    return Share(
        prompts=tuple(asked),
        rows=tuple((prompts[id(rows[index].prompt)], rows[index].answer) for index in places),
        places=tuple(places),
        plan=tuple(tuple(tuple(local[index] for index in micro) for micro in part) for part in plan),
    )
