"""Qwen2-VL (arXiv 2409.12191): a video is one run of tokens, its temporal patches one position apart.

`<|video_pad|>` becomes T x H x W of itself between one start and one end token. Checked against transformers 5.19
(`modeling_qwen2_vl.py`) and vLLM 0.32 (`qwen2_vl.py`) by the contract tests. Text after a video goes on behind the largest of
its three positions, as in vLLM; transformers goes on behind height and width alone (docs/models.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from evr1_core.types import Clip
from evr1_models.adapter import Block, QwenVL

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from evr1_core.media.plan import Plan


class Qwen2VL(QwenVL):
    """Adapter of `model_type: qwen2_vl`."""

    model_class = "Qwen2VLForConditionalGeneration"

    def video_metadata(self, clip: Clip) -> dict[str, Any]:
        """The frames as a video of their own, at the rate at which they were really taken: frames over the seconds they stand for.

        Processors of these families read one number from it, `frames_indices / total_num_frames * fps`, so no count of source
        frames may be rounded into it.
        """
        # A still of unknown length has no rate; it is one temporal patch, whose length places nothing.
        count, fps = len(clip.indices), clip.sampled_fps or 1.0
        height, width = clip.size
        return {
            "fps": fps,
            "frames_indices": list(range(count)),
            "total_num_frames": count,
            "duration": count / fps,
            "height": height,
            "width": width,
            "video_backend": clip.decoder,
        }

    def engine_weights(self, model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
        """The releases are older than the modules `language_model` and `visual` of transformers' `model`."""
        for name, tensor in super().engine_weights(model):
            yield name.replace("model.language_model.", "model.", 1).replace("model.visual.", "visual.", 1), tensor

    def _video_tokens(self, plan: Plan) -> int:
        return -(-plan.frames // self.factors.frames) * self._cells(plan)

    def _video_blocks(self, features: Mapping[str, Tensor]) -> Iterator[Block]:
        for grid in features.get("video_grid_thw", ()):
            yield self._block(grid.tolist())
