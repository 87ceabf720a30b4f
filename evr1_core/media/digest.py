"""A name for the pixels of a clip, to compare what two machines, two runs or two decoders made of a file."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evr1_core.types import Clip


def frames_digest(clip: Clip) -> str:
    """sha256 in hex over the shape, as the text `T,3,H,W` and a line feed, and the bytes of the frames."""
    digest = hashlib.sha256((",".join(map(str, clip.frames.shape)) + "\n").encode())
    for frame in clip.frames:
        digest.update(frame.tobytes())
    return digest.hexdigest()
