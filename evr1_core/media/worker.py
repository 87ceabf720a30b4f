"""The decoding child of `guard.DecodeGuard`: `python -m evr1_core.media.worker`."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from evr1_core.errors import MediaError
from evr1_core.media.decode import decode_video
from evr1_core.media.image import decode_image
from evr1_core.media.plan import Plan, plan
from evr1_core.media.probe import MediaInfo, probe
from evr1_core.types import Budget, ImageBudget, MediaRef, PatchFactors, VideoBudget

if TYPE_CHECKING:
    import numpy as np


def make_request(ref: MediaRef, budget: Budget, factors: PatchFactors) -> dict[str, Any]:
    """What `answer` reads, as plain JSON; with `"frames": False` added it asks for the plan only."""
    return {"ref": asdict(ref), "budget": asdict(budget), "factors": asdict(factors)}


def look(ref: MediaRef, budget: Budget, factors: PatchFactors) -> tuple[Plan, MediaInfo]:
    """Probe and plan one medium in this process."""
    info = probe(ref.path, ref.kind)
    return plan(info, ref, budget, factors), info


def decode(ref: MediaRef, budget: Budget, factors: PatchFactors, until: float | None = None) -> tuple[Plan, int, np.ndarray]:
    """(plan, rotation, frames) of one medium, decoded in this process."""
    planned, info = look(ref, budget, factors)
    if info.kind == "image":
        return planned, info.rotation, decode_image(ref.path, planned.height, planned.width)
    return planned, info.rotation, decode_video(info, planned.indices, planned.height, planned.width, until)


def answer(request: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray | None]:
    """(the answer as JSON, the frames) of one request."""
    limits = request["budget"]
    budget = Budget(VideoBudget(**limits["video"]), ImageBudget(**limits["image"]))
    ref, factors = MediaRef(**request["ref"]), PatchFactors(**request["factors"])
    try:
        if not request.get("frames", True):
            planned, info = look(ref, budget, factors)
            return {"plan": asdict(planned), "rotation": info.rotation}, None
        planned, rotation, frames = decode(ref, budget, factors)
    except MediaError as error:
        return {"error": error.code, "reason": error.reason}, None
    except MemoryError:
        return {"error": "unsupported", "reason": "decoding it takes more memory than there is"}, None
    return {"plan": asdict(planned), "rotation": rotation, "shape": list(frames.shape)}, frames


def main() -> None:
    """Answer requests until the caller closes the pipe."""
    import av.logging

    # What a library says about a bad file is in the answer already, once.
    av.logging.set_level(av.logging.PANIC)
    # Libraries that print must not write into the answers.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        # Should the caller die while this hangs, the default action of the alarm ends this process too.
        signal.alarm(int(request["deadline"]) + 10)
        head, frames = answer(request)
        text = json.dumps(head).encode()
        out.write(len(text).to_bytes(4, "little") + text)
        if frames is not None:
            out.write(frames.reshape(-1).data)
        out.flush()
        signal.alarm(0)


if __name__ == "__main__":
    main()
