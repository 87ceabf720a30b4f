"""Images: the same road as video, with Pillow as the decoder."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evr1_core.errors import MediaError
from evr1_core.media.probe import MediaInfo, check_file
from evr1_core.media.resize import resize_rgb

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

MAX_PIXELS = 178_956_970
"""Pixels of a source image above which it is refused as a decompression bomb (2 GiB / 4 / 3 bytes, Pillow's own figure times two)."""

_CLOCKWISE = {3: 180, 6: 90, 8: 270}
_SIGNATURES = {b"\xff\xd8\xff": "JPEG", b"\x89PNG\r\n": "PNG", b"GIF8": "GIF", b"BM": "BMP", b"II*\x00": "TIFF", b"MM\x00*": "TIFF"}


def sniff_image(path: str) -> str:
    """Name of the image format by the first bytes; empty for anything else."""
    with open(path, "rb") as file:
        head = file.read(16)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    return next((name for magic, name in _SIGNATURES.items() if head.startswith(magic)), "")


@contextmanager
def _opened(path: str) -> Iterator[Image.Image]:
    from PIL import Image, UnidentifiedImageError

    name = check_file(path)
    try:
        with warnings.catch_warnings():
            # Pillow warns at half of what it refuses; the limit that counts is ours, below.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(name) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise MediaError(name, "unsupported", f"{image.width}x{image.height} pixels; at most {MAX_PIXELS:,} are decoded")
                yield image
    except UnidentifiedImageError as error:
        raise MediaError(name, "damaged", "not an image file that is read here") from error
    except Image.DecompressionBombError as error:
        raise MediaError(name, "unsupported", f"too many pixels; at most {MAX_PIXELS:,} are decoded") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        # The ways in which Pillow's readers report a broken file.
        raise MediaError(name, "damaged", str(error)[:200]) from error


def probe_image(path: str | os.PathLike[str]) -> MediaInfo:
    """Size, format and rotation of an image file, from its header."""
    with _opened(os.fspath(path)) as image:
        orientation = image.getexif().get(0x0112, 1)
        wide, tall = (image.height, image.width) if orientation in (5, 6, 7, 8) else image.size
        return MediaInfo(
            path=os.fspath(path), kind="image", width=wide, height=tall, codec=(image.format or "").lower(),
            container=(image.format or "").lower(), pixel_format=image.mode, rotation=_CLOCKWISE.get(orientation, 0),
        )  # fmt: skip


def decode_image(path: str | os.PathLike[str], height: int, width: int) -> np.ndarray:
    """uint8 [1, 3, height, width], RGB, upright; transparent pixels on white."""
    import numpy as np
    from PIL import ImageOps

    with _opened(os.fspath(path)) as image:
        image.load()
        picture = resize_rgb(np.asarray(_rgb(ImageOps.exif_transpose(image))), height, width)
    return np.ascontiguousarray(picture.transpose(2, 0, 1))[None]


def _rgb(image: Any) -> Image.Image:
    """8-bit RGB of any mode; transparency on white."""
    import numpy as np
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_eight_bits(np.asarray(image), image.mode)).convert("RGB")
    if image.has_transparency_data:
        over = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", over.size, (255, 255, 255, 255)), over).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: np.ndarray, mode: str) -> np.ndarray:
    """16-bit grey (`I;16`, and `I` as older files are read) by its high byte; float grey is 0..1, or 0..255 when it goes above."""
    import numpy as np

    if mode == "F":
        scale = 255.0 if float(values.max(initial=0.0)) <= 1.0 else 1.0
        return np.clip(np.rint(values * scale), 0, 255).astype(np.uint8)
    top = int(values.max(initial=0))
    return (np.clip(values, 0, 65_535) / (257 if mode != "I" or top > 255 else 1) + 0.5).astype(np.uint8)
