"""Images: the same road as video, with Pillow as the decoder."""

from __future__ import annotations

import os
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evr1_core.errors import MediaError
from evr1_core.media.orientation import Orientation
from evr1_core.media.probe import MediaInfo, check_file
from evr1_core.media.resize import resize_rgb

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

MAX_PIXELS = 178_956_970
"""Pixels of a source image above which it is refused as a decompression bomb (2 GiB / 4 / 3 bytes, Pillow's own figure times two)."""

_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "JPEG2000", "PPM")
"""Formats that are opened (JPEG includes MPO, what some phones write). Others of Pillow's start programs (EPS)."""
_ORIENTATIONS = {
    2: Orientation(0, True), 3: Orientation(180), 4: Orientation(180, True), 5: Orientation(270, True),
    6: Orientation(90), 7: Orientation(90, True), 8: Orientation(270),
}  # fmt: skip
"""By the EXIF number; 1 is upright."""
_SIGNATURES = {
    b"\xff\xd8\xff": "JPEG", b"\x89PNG\r\n": "PNG", b"GIF8": "GIF", b"BM": "BMP", b"II*\x00": "TIFF", b"MM\x00*": "TIFF",
    b"\x00\x00\x00\x0cjP  ": "JPEG2000", b"\xff\x4f\xff\x51": "JPEG2000", b"\xff\x0a": "JPEG XL", b"\x00\x00\x00\x0cJXL ": "JPEG XL",
}  # fmt: skip
_BRANDS = {
    b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"heim": "HEIC", b"heis": "HEIC", b"mif1": "HEIC", b"msf1": "HEIC"
}  # fmt: skip


def sniff(path: str) -> str:
    """Name of the image format by the first bytes; empty for anything else."""
    with open(path, "rb") as file:
        head = file.read(256)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    if head[4:8] == b"ftyp" and head[8:12] in _BRANDS:
        return "AVIF" if b"avif" in head[8:64] else _BRANDS[head[8:12]]
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"<svg", b"<?xml")) and b"<svg" in head:
        return "SVG"
    return next((name for magic, name in _SIGNATURES.items() if head.startswith(magic)), "")


@contextmanager
def _opened(path: str) -> Iterator[Image.Image]:
    from PIL import Image, UnidentifiedImageError

    name = check_file(path)
    try:
        with warnings.catch_warnings():
            # Of half of what Pillow refuses (the limit that counts is ours, below), and of tags that it can't read and skips.
            warnings.simplefilter("ignore")
            with Image.open(name, formats=_FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise MediaError(name, "unsupported", f"{image.width}x{image.height} pixels; at most {MAX_PIXELS:,} are decoded")
                yield image
    except UnidentifiedImageError as error:
        raise _unidentified(name) from error
    except Image.DecompressionBombError as error:
        raise MediaError(name, "unsupported", f"too many pixels; at most {MAX_PIXELS:,} are decoded") from error
    except (OSError, SyntaxError, ValueError, EOFError, RuntimeError, struct.error) as error:
        # The ways in which Pillow's readers report a broken file.
        raise MediaError(name, "damaged", f"{error or type(error).__name__}"[:200]) from error


def _unidentified(path: str) -> MediaError:
    """What a file is that Pillow doesn't open."""
    from PIL import features

    signature = sniff(path)
    if signature in ("HEIC", "JPEG XL", "SVG") or (signature == "AVIF" and not features.check("avif")):
        return MediaError(path, "unsupported", f"{signature} isn't read here; convert it to PNG or JPEG")
    if signature:
        return MediaError(path, "damaged", f"it begins as {signature}, but its header is broken")
    with open(path, "rb") as file:
        head = file.read(256)
    if head[4:8] == b"ftyp" or head.startswith((b"\x1aE\xdf\xa3", b"RIFF", b"FLV", b"\x00\x00\x01\xba")):
        return MediaError(path, "unsupported", "this looks like a video, and an image is asked for")
    if not head.strip(bytes(range(32, 127)) + b"\t\r\n"):
        return MediaError(path, "damaged", "the file holds text, not an image (an error page that was saved?)")
    return MediaError(path, "damaged", "not an image file that is read here")


def is_animated(path: str | os.PathLike[str]) -> bool:
    """Whether an image file holds more than one picture."""
    with _opened(os.fspath(path)) as image:
        return getattr(image, "is_animated", False)


def probe_image(path: str | os.PathLike[str]) -> MediaInfo:
    """Size, format and orientation of an image file, from its header."""
    with _opened(os.fspath(path)) as image:
        up = _orientation(image)
        # Pillow itself turns a TIFF while it loads, and gives the sides after that.
        wide, tall = image.size[::-1] if up.swaps_sides and image.format != "TIFF" else image.size
        return MediaInfo(
            path=os.fspath(path), kind="image", width=wide, height=tall, codec=(image.format or "").lower(),
            container=(image.format or "").lower(), pixel_format=image.mode, rotation=up.rotation, mirrored=up.mirrored,
        )  # fmt: skip


def decode_image(path: str | os.PathLike[str], height: int, width: int) -> np.ndarray:
    """uint8 [1, 3, height, width], RGB, upright; transparent pixels on white; the first picture of an animation."""
    import numpy as np

    with _opened(os.fspath(path)) as image:
        image.load()
        picture = resize_rgb(_orientation(image).upright(np.asarray(_rgb(image))), height, width)
    return np.ascontiguousarray(picture.transpose(2, 0, 1))[None]


def _orientation(image: Image.Image) -> Orientation:
    """By EXIF. A tag that can't be read says nothing about the picture, which is then taken as it is stored."""
    try:
        return _ORIENTATIONS.get(image.getexif().get(0x0112, 1), Orientation())
    except (ValueError, SyntaxError, TypeError, KeyError, IndexError, struct.error):
        return Orientation()


def _rgb(image: Any) -> Image.Image:
    """8-bit RGB of any mode; transparency on white."""
    import numpy as np
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        grey = Image.fromarray(_eight_bits(np.asarray(image), image.mode))
        clear = image.info.get("transparency")
        if isinstance(clear, int):
            grey = Image.fromarray(np.where(np.asarray(image) == clear, np.uint8(255), np.asarray(grey)))
        return grey.convert("RGB")
    if image.has_transparency_data:
        over = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", over.size, (255, 255, 255, 255)), over).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: np.ndarray, mode: str) -> np.ndarray:
    """16-bit grey (`I;16`, and `I` where it goes above 255) scaled by 1/257; float grey is 0..1, or 0..255 when it goes above."""
    import numpy as np

    if mode == "F":
        values = np.nan_to_num(values, nan=0.0, posinf=255.0, neginf=0.0)
        scale = 255.0 if float(values.max(initial=0.0)) <= 1.0 else 1.0
        return np.clip(np.rint(values * scale), 0, 255).astype(np.uint8)
    top = int(values.max(initial=0))
    return (np.clip(values, 0, 65_535) / (257 if mode != "I" or top > 255 else 1) + 0.5).astype(np.uint8)
