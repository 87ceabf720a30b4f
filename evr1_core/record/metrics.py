"""Numbers of one step from its groups, its timings and this process. Keys are `area/what`."""

from __future__ import annotations

import math
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evr1_core.scoring.score import cause
from evr1_core.types import Group, Rollout

GIB = 2**30
LEFT_OUT, SAME_ANSWER, UNPARSED = 0.01, 0.9, 0.5
"""Shares of a step's answers above which a warning is given: without a number, with one text, unreadable."""
FEW = 16
"""Answers below which a share of equal or unreadable ones says nothing."""


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Means over all answers of the policy in a step, dropped groups included, offline trajectories not.

    `reward/*` are means over the answers that have the number; `score/*` are shares of all answers, so that a mean
    over few is seen as such: by status, by status and cause, and `score/whole` of answers without an answer block.
    `accuracy/*`, `value/*` and `format/*` are means, `unparsed/*` and `failed/*` shares, within one problem type;
    `source_accuracy/*` and `source_value/*` means within one source. `baseline/*` are means of the greedy answers.
    """
    rollouts = [rollout for group in groups for rollout in own(group)]
    if not rollouts:
        return {}
    values: dict[str, list[float]] = defaultdict(list)
    counts: Counter[str] = Counter(dict.fromkeys(("scored", "unparsed", "failed", "invalid_gold", "whole"), 0))
    for group in groups:
        kind, source = group.sample.problem_type, group.sample.source
        if group.baseline is not None and group.baseline.score.value is not None:
            values["baseline/value"].append(group.baseline.score.value)
            values["baseline/accuracy"].append(group.baseline.score.accuracy or 0.0)
        for rollout in own(group):
            score = rollout.score
            counts[score.status] += 1
            counts["whole"] += score.source == "whole"
            if score.status != "scored":
                counts[f"{score.status}/{cause(score)}"] += 1
            named = {"reward/value": score.value, "reward/accuracy": score.accuracy, "reward/format": score.format}
            named |= {f"reward/part_{name}": part for name, part in score.parts.items()}
            named |= {f"accuracy/{kind}": score.accuracy, f"value/{kind}": score.value, f"format/{kind}": score.format}
            named |= {f"source_accuracy/{source}": score.accuracy, f"source_value/{source}": score.value} if source else {}
            named |= {f"{status}/{kind}": float(score.status == status) for status in ("unparsed", "failed")}
            for name, value in named.items():
                if value is not None:
                    values[name].append(value)
    lengths = [len(rollout.completion.token_ids) for rollout in rollouts]
    cut = sum(rollout.completion.finish_reason == "length" for rollout in rollouts)
    return {
        **{name: sum(found) / len(found) for name, found in values.items()},
        **{f"score/{name}": count / len(rollouts) for name, count in counts.items()},
        "rollout/groups": len(groups),
        "rollout/answers": len(rollouts),
        "rollout/tokens_mean": sum(lengths) / len(lengths),
        "rollout/tokens_max": max(lengths),
        "rollout/truncated": cut / len(rollouts),
        "rollout/prompt_tokens_max": max(len(group.prompt.token_ids) for group in groups),
    }


def own(group: Group) -> list[Rollout]:
    """The answers that the policy drew, wherever they went."""
    return [rollout for rollout in (*group.rollouts, *group.displaced) if rollout.provenance == "policy"]


def complaints(groups: Sequence[Group]) -> list[str]:
    """What is wrong with the answers of a step, for people."""
    scores = [rollout.score for group in groups for rollout in own(group)]
    found = []
    lost = [score for score in scores if score.status in ("failed", "invalid_gold")]
    if len(lost) > LEFT_OUT * len(scores):
        found.append(f"{len(lost)} of {len(scores)} answers could not be scored, the first: {lost[0].status}: {lost[0].reason}")
    if len(scores) < FEW:
        return found
    unparsed = [score for score in scores if score.status == "unparsed"]
    if len(unparsed) > UNPARSED * len(scores):
        reason, count = Counter(map(cause, unparsed)).most_common(1)[0]
        found.append(f"{len(unparsed)} of {len(scores)} answers can't be read, {count} of them: {reason}")
    texts = Counter(rollout.score.answer or rollout.completion.text.strip() for group in groups for rollout in own(group))
    text, count = texts.most_common(1)[0]
    if count > SAME_ANSWER * len(scores) and len(groups) > 1:
        found.append(f"{count} of {len(scores)} answers are the same: {text[:80]!r}")
    return found


def memory_metrics() -> dict[str, float]:
    """GiB of memory of this process, of its children (scorers, decoders) and of the accelerator, where each is known."""
    found = {"memory/host_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB}
    own = _resident("self")
    if own is not None:
        found["memory/host"] = own
        found["memory/children"] = sum(_resident(child) or 0.0 for child in _children())
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        found["memory/device_peak"] = torch.cuda.max_memory_allocated() / GIB
        torch.cuda.reset_peak_memory_stats()
    return found


def split_finite(metrics: Mapping[str, Any]) -> tuple[dict[str, float | None], list[str]]:
    """(numbers, with None for those that are not finite; names of these)."""
    plain: dict[str, float | None] = {}
    strange: list[str] = []
    for name, value in metrics.items():
        number = int(value) if isinstance(value, (bool, int)) else float(value)
        if math.isfinite(number):
            plain[name] = number
        else:
            plain[name] = None
            strange.append(name)
    return plain, strange


def _resident(process: str) -> float | None:
    """Resident memory in GiB; None where the system doesn't tell or the process is gone."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * resource.getpagesize() / GIB


def _children() -> Iterable[str]:
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            yield from path.read_text().split()
        except OSError:  # the thread ended while we looked
            continue
