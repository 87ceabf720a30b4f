"""Groups with signal that a step had no place for: the next step trains on them first.

Dynamic sampling draws whole batches of prompts, so the last try of a step leaves up to a batch of groups over. They were paid
for; one update later they are off-policy by that one update, which the ratio to the policy that drew them corrects:
their log-probabilities under those weights are computed before the update and kept with them. A group waits for one
step at most. Model inputs are not kept, neither in memory (a long video is hundreds of megabytes) nor in the checkpoint:
the prompt is made anew, from the frame cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from evr1_core.errors import Evr1Error
from evr1_core.policy.forward import Row
from evr1_core.types import Completion, Exclusion, Group, Prompt, Rollout, Sample, Score

Build = Callable[[Sequence[Sample]], tuple[list[Prompt], list[Exclusion]]]


class Surplus:
    """What waits for the next step. State is exact: a resumed run trains on the same groups with the same numbers."""

    def __init__(self) -> None:
        self._waiting: list[Group] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, groups: Sequence[Group], logprobs: Callable[[Sequence[Row]], Sequence[Tensor]]) -> None:
        """Keep groups with their log-probabilities under the present weights; to be called before the update."""
        rows = [Row(group.prompt, rollout.completion.token_ids) for group in groups for rollout in group.rollouts]
        known = iter(logprobs(rows)) if rows else iter(())
        for group in groups:
            rollouts = tuple(replace(rollout, old_logprobs=tuple(next(known).tolist())) for rollout in group.rollouts)
            prompt = replace(group.prompt, clips=(), features={})
            self._waiting.append(replace(group, prompt=prompt, rollouts=rollouts, displaced=()))

    def take(self, build: Build) -> tuple[list[Group], list[Exclusion]]:
        """All that waits, with prompts made anew; and what has no prompt any more.

        Raises Evr1Error when a prompt is not what was answered: template, budget or media were changed in between.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return [], []
        prompts, excluded = build([group.sample for group in waiting])
        by_id = {prompt.sample.id: prompt for prompt in prompts}
        found: list[Group] = []
        for group in waiting:
            prompt = by_id.get(group.sample.id)
            if prompt is None:
                continue
            if prompt.token_ids != group.prompt.token_ids:
                raise Evr1Error(
                    f"sample {group.sample.id!r}: its prompt is not the one that was answered in the last step "
                    f"({len(group.prompt.token_ids)} tokens then, {len(prompt.token_ids)} now): "
                    "go on with the same template and media budget, or set algorithm.surplus=drop"
                )
            found.append(replace(group, prompt=prompt))
        return found, excluded

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Token ids and log-probabilities for the checkpoint; nothing when nothing waits."""
        answers = [one.completion for group in self._waiting for one in _all(group)]
        if not answers:
            return {}
        numbers = {
            "prompts": [token for group in self._waiting for token in group.prompt.token_ids],
            "tokens": [token for one in answers for token in one.token_ids],
        }
        reals = {
            "logprobs": [value for one in answers for value in one.logprobs],
            "old_logprobs": [value for group in self._waiting for one in _all(group) for value in one.old_logprobs],
        }
        integers = {name: torch.tensor(values, dtype=torch.int64) for name, values in numbers.items()}
        return {"surplus": integers | {name: torch.tensor(values, dtype=torch.float64) for name, values in reals.items()}}

    def state_dict(self) -> list[dict[str, Any]]:
        """All else of the groups, in order."""
        return [
            {
                "sample": group.sample.id,
                "prompt": len(group.prompt.token_ids),
                "answers": [_answer_state(rollout) for rollout in group.rollouts],
                "baseline": _answer_state(group.baseline) if group.baseline else None,
            }
            for group in self._waiting
        ]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor], samples: Sequence[Sample]) -> None:
        by_id = {sample.id: sample for sample in samples}
        cursor = _Cursor(tensors)
        self._waiting = []
        for entry in state:
            prompt = Prompt(by_id[entry["sample"]], (), "", tuple(cursor.next("prompts", entry["prompt"])))
            rollouts = tuple(_answer(one, cursor) for one in entry["answers"])
            baseline = _answer(entry["baseline"], cursor) if entry["baseline"] else None
            self._waiting.append(Group(prompt, rollouts, baseline))


class _Cursor:
    """Reads flat tensors piece by piece."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._values = {name: tensor.tolist() for name, tensor in tensors.items()}
        self._at = dict.fromkeys(self._values, 0)

    def next(self, name: str, count: int) -> list[Any]:
        start = self._at.get(name, 0)
        self._at[name] = start + count
        return self._values[name][start : start + count] if count else []


def _all(group: Group) -> list[Rollout]:
    return [*group.rollouts, *([group.baseline] if group.baseline else [])]


def _answer_state(rollout: Rollout) -> dict[str, Any]:
    one = rollout.completion
    return {
        "lengths": {"tokens": len(one.token_ids), "logprobs": len(one.logprobs), "old_logprobs": len(rollout.old_logprobs)},
        "text": one.text,
        "finish_reason": one.finish_reason,
        "weight_version": one.weight_version,
        "provenance": rollout.provenance,
        "score": asdict(rollout.score),
    }


def _answer(state: Mapping[str, Any], cursor: _Cursor) -> Rollout:
    found = {name: tuple(cursor.next(name, count)) for name, count in state["lengths"].items()}
    completion = Completion(found["tokens"], found["logprobs"], state["text"], state["finish_reason"], state["weight_version"])
    return Rollout(completion, Score(**state["score"]), state["provenance"], found["old_logprobs"])
