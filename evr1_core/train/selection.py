"""Which groups a step learns from: dynamic sampling (DAPO, arXiv 2503.14476, section 3.2).

A group whose answers are all equally good has no advantage to learn from. With dynamic sampling such groups are
dropped and further prompts are drawn until the batch is full or the tries are used up.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

from evr1_core.config.models import RewardSection
from evr1_core.errors import Evr1Error
from evr1_core.scoring.score import evaluation_accuracy, rollout_value
from evr1_core.train.options import AlgorithmOptions
from evr1_core.types import Group

LOW, HIGH = 0.01, 0.99
"""Bounds of the mean for `mean_range`."""


class NoSignal(Evr1Error):
    """Step after step no group had anything to learn from."""


def metric(group: Group, options: AlgorithmOptions, rewards: RewardSection) -> list[float]:
    """The answers' accuracy or value, a failure that an answer caused counting as a wrong one; those without a number are left out."""
    if options.sampling_metric == "value":
        found = [rollout_value(group.sample, rollout, rewards) for rollout in group.rollouts]
    else:
        found = [evaluation_accuracy(rollout.score) for rollout in group.rollouts]
    return [value for value in found if value is not None]


def parts(group: Group) -> list[list[float]]:
    """Of each named part of the scores, accuracy and format among them, the numbers that the answers have."""
    scores = [rollout.score for rollout in group.rollouts]
    named = [{**score.parts, "accuracy": evaluation_accuracy(score), "format": score.format} for score in scores]
    names = sorted(set().union(*named))
    return [[value for one in named if (value := one.get(name)) is not None] for name in names]


def has_signal(group: Group, options: AlgorithmOptions, rewards: RewardSection) -> bool:
    """Whether the group's metric, or any of its parts, varies (`std`), or its mean is neither near 0 nor near 1 (`mean_range`)."""
    columns = parts(group) if options.sampling_metric == "parts" else [metric(group, options, rewards)]
    return any(len(values) > 1 and informative(values, options.sampling_criterion) for values in columns)


def informative(values: Sequence[float], criterion: Literal["std", "mean_range"], low: float = LOW, high: float = HIGH) -> bool:
    """Whether the metric of a group has a signal: it varies, or its mean lies between two bounds."""
    if criterion == "std":
        return bool(values) and max(values) > min(values)
    return bool(values) and low < sum(values) / len(values) < high


def keep(groups: Sequence[Group], options: AlgorithmOptions, rewards: RewardSection) -> list[Group]:
    """The groups to learn from: all of them, or with dynamic sampling those with signal."""
    return [group for group in groups if has_signal(group, options, rewards)] if options.dynamic_sampling else list(groups)


def dead(groups: Sequence[Group], options: AlgorithmOptions, rewards: RewardSection) -> dict[str, float]:
    """Shares of groups whose answers are all equally good: all of them, the all right and the all wrong ones. And `spread`, the mean
    standard deviation of the metric within a group."""
    values = [metric(group, options, rewards) for group in groups]
    spreads = [statistics.stdev(found) for found in values if len(found) > 1]
    flat = [found[0] for found in values if len(found) > 1 and max(found) == min(found)]
    counts = {"dead": len(flat), "dead_right": sum(value >= HIGH for value in flat), "dead_wrong": sum(value <= LOW for value in flat)}
    shares = {f"selection/{name}": count / max(1, len(groups)) for name, count in counts.items()}
    return {**shares, "selection/spread": sum(spreads) / max(1, len(spreads))}


def explain_no_signal(groups: Sequence[Group], options: AlgorithmOptions, rewards: RewardSection, tries: int) -> str:
    """Why nothing was left, and what to change."""
    values = [value for group in groups for value in metric(group, options, rewards)]
    where = f"{len(groups)} groups in {tries} tries, mean {options.sampling_metric} "
    if not groups:
        return where + "unknown: no prompt was left. See the exclusions in events.log"
    if not values:
        return where + "unknown: every score failed. Look at rollouts.jsonl, then at the reward"
    mean = sum(values) / len(values)
    if mean > HIGH:
        return where + f"{mean:.2f}: the questions are too easy. Take harder data or stop here"
    if mean < LOW:
        return (
            where + f"{mean:.2f}: never right. Check answers and format in rollouts.jsonl; take easier data, a larger rollout.n, "
            "or a longer rollout.max_tokens if answers are cut off"
        )
    return where + f"{mean:.2f}: answers of one prompt are all alike. Raise rollout.temperature or rollout.n"
