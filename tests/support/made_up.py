"""Prompts over made-up frames, in the sizes of a family that counts in 32 pixels."""

from __future__ import annotations

from evr1_core.testing.media import all_prompts, make_clip, make_media, make_prompt
from evr1_core.types import PatchFactors

__all__ = ["MEDIA", "all_prompts", "make_clip", "make_prompt"]

MEDIA = make_media(PatchFactors(pixels=32, frames=2))
