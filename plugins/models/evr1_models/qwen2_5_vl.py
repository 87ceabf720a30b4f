"""Qwen2.5-VL (arXiv 2502.13923): temporal positions in true time, and attention in windows inside the vision tower.

A temporal patch lasts `second_per_grid_ts` seconds, two frames at the rate at which they were taken, and a second is
`tokens_per_second` positions. The number is a feature of each video, made by the processor from the clip's clock, so that
trainer and engine round the same float. Checked against transformers 5.19 and vLLM 0.32 by the contract tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from evr1_core.types import Clip
from evr1_models.adapter import Block
from evr1_models.qwen2_vl import Qwen2VL

SECONDS = "second_per_grid_ts"


class Qwen2_5VL(Qwen2VL):
    """Adapter of `model_type: qwen2_5_vl`."""

    model_class = "Qwen2_5_VLForConditionalGeneration"

    def _features(self, encoded: Mapping[str, Any], clips: Sequence[Clip]) -> dict[str, Tensor]:
        features = super()._features(encoded, clips)
        if SECONDS in encoded:
            features[SECONDS] = torch.as_tensor(encoded[SECONDS], dtype=torch.float32)
        return features

    def _video_blocks(self, features: Mapping[str, Tensor]) -> Iterator[Block]:
        grids = features.get("video_grid_thw", ())
        for grid, seconds in zip(grids, features.get(SECONDS, ()), strict=True):
            yield self._block(grid.tolist(), float(seconds) * self.config.vision_config.tokens_per_second)
