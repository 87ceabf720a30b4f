"""Which way up a decoded frame is shown: rotation by quarter turns, and mirroring."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Orientation:
    """What makes a stored picture upright: first the flip of left and right when `mirrored`, then the rotation. The eight values
    are those of EXIF."""

    rotation: int = 0
    """Degrees clockwise: 0, 90, 180 or 270."""
    mirrored: bool = False

    @property
    def swaps_sides(self) -> bool:
        """Whether the upright picture is as wide as the stored one is high."""
        return self.rotation in (90, 270)

    def upright(self, picture: np.ndarray) -> np.ndarray:
        """[H, W, ...] as stored -> as shown; a view. Sides are swapped where `swaps_sides` says so."""
        import numpy as np

        if self.mirrored:
            picture = picture[:, ::-1]
        return np.rot90(picture, -self.rotation // 90) if self.rotation else picture


def orientation(frame: Any) -> Orientation:
    """The orientation of a decoded video frame, from its display matrix; angles between quarter turns go to the nearest one."""
    try:
        matrix = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:
        # The library stops at kinds of side data that are newer than it; the angle alone can still be had (counter-clockwise).
        return Orientation(round(-frame.rotation / 90) % 4 * 90)
    return Orientation() if matrix is None else from_matrix(bytes(matrix))


def from_matrix(matrix: bytes) -> Orientation:
    """The orientation in a display matrix: nine int32 `a b u  c d v  x y w`, where a stored point (p, q), q downwards, is shown at
    (a p + c q + x, b p + d q + y); libavutil/display.h. A matrix that shows nothing (singular) is taken for none."""
    import numpy as np

    a, b, _, c, d = (int(value) for value in np.frombuffer(matrix, np.int32)[:5])
    area = a * d - b * c
    if not area:
        return Orientation()
    mirrored = area < 0
    if mirrored:
        a, b = -a, -b
    return Orientation(round(math.degrees(math.atan2(b, a)) / 90) % 4 * 90, mirrored)
