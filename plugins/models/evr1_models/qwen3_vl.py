"""Qwen3-VL (arXiv 2511.21631): every two frames become one temporal patch, announced by a written timestamp.

A video's `<|video_pad|>` becomes a run of `<1.5 seconds><|vision_start|>..pads..<|vision_end|>` blocks, one per
temporal patch. Checked against transformers 5.19 (`modeling_qwen3_vl.py`, `processing_qwen3_vl.py`) by the contract tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from evr1_core.types import Clip
from evr1_models.adapter import Block, QwenVL

if TYPE_CHECKING:
    from evr1_core.media.plan import Plan


class Qwen3VL(QwenVL):
    """Adapter of `model_type: qwen3_vl`."""

    model_class = "Qwen3VLForConditionalGeneration"

    def video_metadata(self, clip: Clip) -> dict[str, Any]:
        height, width = clip.size
        indices, fps = clock(clip)
        total = clip.source_frames if fps == clip.source_fps else max(round(clip.duration * fps), indices[-1] + 1)
        return {
            "fps": fps,
            "frames_indices": indices,
            "total_num_frames": total,
            "duration": clip.duration,
            "height": height,
            "width": width,
            "video_backend": clip.decoder,
        }

    def _video_tokens(self, plan: Plan) -> int:
        cells = self._cells(plan)
        return sum(len(self.tokenize(stamp)) + cells + 2 for stamp in self._timestamps(*clock(plan)))

    def _timestamps(self, indices: Sequence[int], fps: float) -> list[str]:
        """`<1.5 seconds>` per temporal patch: the middle of its first and last frame."""
        step = self.factors.frames
        times = [index / fps for index in indices]
        padded = times + [times[-1]] * (-len(times) % step)
        return [f"<{(padded[i] + padded[i + step - 1]) / 2:.1f} seconds>" for i in range(0, len(padded), step)]

    def _video_blocks(self, features: Mapping[str, Tensor]) -> Iterator[Block]:
        """Each temporal patch stands alone behind its timestamp."""
        for grid in features.get("video_grid_thw", ()):
            frames, height, width = grid.tolist()
            yield from [self._block((1, height, width))] * frames


def clock(clip: Clip | Plan) -> tuple[list[int], float]:
    """(indices, rate): timestamps are written as `index / rate`.

    A constant-rate clip gives its own indices and rate; where that clock would be wrong (variable rate, odd start), the
    true times are given as indices in microseconds.
    """
    fps = clip.source_fps
    if fps > 0 and all(abs(index / fps - time) < 1e-3 for index, time in zip(clip.indices, clip.times, strict=True)):
        return list(clip.indices), fps
    return [round(time * 1_000_000) for time in clip.times], 1_000_000.0
