"""Rows of rollouts.jsonl: one per answer, with everything that explains its score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evr1_core.record.files import to_json
from evr1_core.types import Clip, Group, Score


def rollout_rows(
    step: int, groups: Sequence[Group], kept: Sequence[bool], advantages: Sequence[float | None] | None = None
) -> Iterator[dict]:
    """`kept[i]` tells whether group i was trained on. `advantages` holds one number per answer of the groups, in order.

    Answers that are never trained on come last in their group: own ones that a trajectory displaced, then the greedy baseline.
    """
    position = 0
    for index, (group, used) in enumerate(zip(groups, kept, strict=True)):
        sample = group.sample
        frames = [media_row(clip) for clip in group.prompt.clips]
        beside = (*group.displaced, group.baseline) if group.baseline else group.displaced
        for answer, rollout in enumerate((*group.rollouts, *beside)):
            completion = rollout.completion
            trained = answer < len(group.rollouts)
            yield {
                "step": step,
                "group": index,
                "answer": answer,
                "sample": sample.id,
                "problem_type": sample.problem_type,
                "source": sample.source,
                "gold": plain(sample.answer),
                "text": completion.text,
                "tokens": len(completion.token_ids),
                "prompt_tokens": len(group.prompt.token_ids),
                "finish_reason": completion.finish_reason,
                "weight_version": completion.weight_version,
                "provenance": rollout.provenance,
                "kept": used and trained,
                "advantage": advantages[position] if advantages is not None and trained else None,
                "score": score_row(rollout.score),
                "media": frames,
            }
            position += trained


def plain(value: Any) -> Any:
    """The value where JSON has it; else its printed form (dates, numbers that are not finite), and of bytes their number."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"  # a picture in a column: never into every row
    if callable(to_list := getattr(value, "tolist", None)):
        return plain(to_list())
    try:
        to_json(value)
    except (TypeError, ValueError):
        return repr(value)
    return value


def score_row(score: Score) -> dict[str, Any]:
    """A score as plain JSON values."""
    return {
        "status": score.status,
        "value": score.value,
        "accuracy": score.accuracy,
        "format": score.format,
        "parts": dict(score.parts),
        "answer": score.answer,
        "reason": score.reason,
        "source": score.source,
    }


def media_row(clip: Clip) -> dict[str, Any]:
    """What the model was really shown of one medium: frames, size, rate, and the key of the cached frames."""
    height, width = clip.size
    return {
        "kind": clip.kind,
        "frames": len(clip.times),
        "height": height,
        "width": width,
        "fps": round(clip.sampled_fps, 6),
        "duration": clip.duration,
        "key": clip.key,
        "content": clip.content_hash,
        "decoder": clip.decoder,
    }
