"""Images take the same road."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from media_clips import clip, corners
from PIL import Image

from evr1_core.errors import MediaError
from evr1_core.media import image as image_module
from evr1_core.media.image import decode_image, is_animated, probe_image
from evr1_core.media.plan import plan
from evr1_core.media.probe import probe
from evr1_core.types import Budget, MediaRef, PatchFactors


def centre(path: Path) -> list[int]:
    return decode_image(path, 48, 64)[0, :, 24, 32].tolist()


@pytest.mark.parametrize("name", ["x.png", "x.jpg", "x.webp", "x.tiff", "x.avif"])
@pytest.mark.parametrize(
    ("number", "rotation", "mirrored"),
    [(1, 0, False), (2, 0, True), (3, 180, False), (4, 180, True), (5, 270, True), (6, 90, False), (7, 90, True), (8, 270, False)],
)
def test_exif_orientation(tmp_path: Path, name: str, number: int, rotation: int, mirrored: bool) -> None:
    """A camera stores what it saw and the number; corners and sides tell whether the picture comes out upright."""
    stored = np.rot90(corners(0), rotation // 90)
    stored = np.ascontiguousarray(stored[:, ::-1] if mirrored else stored)
    exif = Image.Exif()
    exif[0x0112] = number
    Image.fromarray(stored).save(tmp_path / name, exif=exif, quality=95)
    info = probe_image(tmp_path / name)
    assert (info.width, info.height, info.rotation, info.mirrored, info.kind) == (64, 48, rotation, mirrored, "image")
    got = decode_image(tmp_path / name, 48, 64)[0].transpose(1, 2, 0).astype(int)
    for y, x in ((5, 5), (5, 58), (42, 5), (42, 58), (24, 32)):
        assert np.abs(got[y, x] - corners(0)[y, x]).max() <= 12, (y, x)


@pytest.mark.filterwarnings("ignore:Truncated File Read", "ignore:Corrupt EXIF data")
def test_broken_exif_is_not_a_broken_picture(tmp_path: Path) -> None:
    Image.fromarray(corners(0)).save(tmp_path / "x.jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01")
    assert probe_image(tmp_path / "x.jpg").rotation == 0
    assert decode_image(tmp_path / "x.jpg", 48, 64).shape == (1, 3, 48, 64)


def make(mode: str, colour: Any, **save: Any) -> Any:
    def write(path: Path) -> None:
        Image.new(mode, (64, 48), colour).save(path, **save)

    return write


def deep_grey(value: int) -> Image.Image:
    return Image.fromarray(np.full((48, 64), value, np.uint16))


def half_palette() -> Image.Image:
    """Red at half opacity, by the transparency of its palette entry."""
    image = Image.new("P", (64, 48), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.info["transparency"] = bytes([255, 128])
    return image


def adobe(transform: int) -> bytes:
    """CMYK JPEG as Adobe writes it, inverted: by transform 0 red. By transform 2 (ITU-T T.872) the same four numbers are luma 255,
    chroma 0 and 0, black 255: red 255 - 1.402 * 128 = 76, green above 255, blue 255 - 1.772 * 128 = 28, all inverted."""
    buffer = BytesIO()
    Image.new("CMYK", (64, 48), (0, 255, 255, 0)).save(buffer, "JPEG", quality=100)
    data = buffer.getvalue()
    place = data.index(b"Adobe") + 11
    return data[:place] + bytes([transform]) + data[place + 1 :]


def deep_png(colour: int, pixel: tuple[int, ...]) -> bytes:
    """16 bits a channel, which Pillow doesn't write. `colour`: 2 RGB, 4 grey and alpha, 6 RGB and alpha."""
    line = b"\0" + struct.pack(f">{len(pixel)}H", *pixel) * 64
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", 64, 48, 16, colour, 0, 0, 0)), (b"IDAT", zlib.compress(line * 48)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


@pytest.mark.parametrize(
    ("name", "write", "expected"),
    [
        ("rgb.jpg", make("RGB", (200, 100, 50), quality=95), [200, 100, 50]),
        ("clear.png", make("RGBA", (9, 9, 9, 0)), [255, 255, 255]),
        ("half.png", make("RGBA", (0, 0, 0, 128)), [127, 127, 127]),
        ("grey_alpha.png", make("LA", (0, 0)), [255, 255, 255]),
        (
            "palette.png",
            lambda path: Image.new("RGB", (64, 48), (200, 100, 50)).convert("P", palette=Image.Palette.ADAPTIVE).save(path),
            [200, 100, 50],
        ),
        ("palette_clear.png", lambda path: Image.new("P", (64, 48), 0).save(path, transparency=0), [255, 255, 255]),
        ("cmyk.jpg", make("CMYK", (0, 255, 255, 0), quality=95), [254, 0, 0]),
        ("grey.png", make("L", 77), [77, 77, 77]),
        ("bit.png", make("1", 1), [255, 255, 255]),
        ("clear_colour.png", lambda path: Image.new("RGB", (64, 48), (9, 8, 7)).save(path, transparency=(9, 8, 7)), [255, 255, 255]),
        ("clear_grey.png", lambda path: Image.new("L", (64, 48), 9).save(path, transparency=9), [255, 255, 255]),
        ("clear_deep_grey.png", lambda path: deep_grey(51_400).save(path, transparency=51_400), [255, 255, 255]),
        ("palette_half.png", lambda path: half_palette().save(path), [255, 127, 127]),
        ("premultiplied.png", make("RGBA", (200, 100, 50, 51)), [244, 224, 214]),
        ("ycck.jpg", lambda path: path.write_bytes(adobe(2)), [179, 0, 227]),
        ("adobe_cmyk.jpg", lambda path: path.write_bytes(adobe(0)), [254, 0, 0]),
        ("long.tiff", lambda path: Image.fromarray(np.full((48, 64), 51_400, np.int32)).save(path), [200, 200, 200]),
        ("short.tiff", lambda path: Image.fromarray(np.full((48, 64), 77, np.int32)).save(path), [77, 77, 77]),
        ("nan.tiff", lambda path: Image.fromarray(np.full((48, 64), np.nan, np.float32)).save(path), [0, 0, 0]),
        ("bytes.tiff", lambda path: Image.fromarray(np.full((48, 64), 200, np.float32)).save(path), [200, 200, 200]),
        ("deep_rgb.png", lambda path: path.write_bytes(deep_png(2, (51_400, 25_700, 12_850))), [200, 100, 50]),
        ("deep_alpha.png", lambda path: path.write_bytes(deep_png(6, (0, 0, 0, 32_896))), [127, 127, 127]),
        ("deep_grey_alpha.png", lambda path: path.write_bytes(deep_png(4, (0, 0))), [255, 255, 255]),
        ("x.avif", make("RGB", (200, 100, 50), quality=100), [200, 100, 50]),
        ("x.jp2", make("RGB", (200, 100, 50)), [200, 100, 50]),
        ("x.bmp", make("RGB", (200, 100, 50)), [200, 100, 50]),
        ("deep.png", lambda path: Image.fromarray(np.full((48, 64), 51_400, np.uint16)).save(path), [200, 200, 200]),
        ("float.tiff", lambda path: Image.fromarray(np.full((48, 64), 0.5, np.float32)).save(path), [128, 128, 128]),
        ("x.webp", make("RGB", (200, 100, 50), lossless=True), [200, 100, 50]),
    ],
)
def test_modes(tmp_path: Path, name: str, write: Any, expected: list[int]) -> None:
    write(tmp_path / name)
    assert np.abs(np.array(centre(tmp_path / name)) - expected).max() <= 2


@pytest.mark.parametrize("name", ["x.gif", "x.webp", "x.png", "x.avif", "x.tiff"])
def test_first_picture_of_an_animation(tmp_path: Path, name: str) -> None:
    frames = [Image.new("RGB", (64, 48), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], duration=100, lossless=True, quality=100)
    assert np.abs(np.array(centre(tmp_path / name)) - [255, 0, 0]).max() <= 2
    assert is_animated(tmp_path / name)
    assert probe(tmp_path / name).kind == ("video" if name == "x.gif" else "image")


def test_a_gif_of_one_picture_is_an_image(tmp_path: Path) -> None:
    make("P", 0)(tmp_path / "x.gif")
    assert probe(tmp_path / "x.gif").kind == "image" and probe(tmp_path / "x.gif", "video").frames == 1


def test_smallest_picture(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1), (10, 20, 30)).save(tmp_path / "x.png")
    planned = plan(probe_image(tmp_path / "x.png"), MediaRef(str(tmp_path / "x.png"), "image"), Budget(), PatchFactors(32))
    assert (planned.height, planned.width) == (64, 64)
    assert set(decode_image(tmp_path / "x.png", 64, 64).reshape(3, -1)[:, 7].tolist()) == {10, 20, 30}


def test_a_line_is_refused_by_name_of_the_rule(tmp_path: Path) -> None:
    Image.new("L", (2010, 10)).save(tmp_path / "x.png")
    with pytest.raises(MediaError, match=r"unsupported: the picture is 2010x10 pixels; sides may differ by a factor of at most 200"):
        plan(probe_image(tmp_path / "x.png"), MediaRef("x.png", "image"), Budget(), PatchFactors(32))


def test_half_a_file_is_damaged(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    for name in ("x.jpg", "x.png", "x.webp"):
        Image.fromarray(noise).save(tmp_path / name)
        whole = (tmp_path / name).read_bytes()
        for share in (0.5, 0.02):
            (tmp_path / name).write_bytes(whole[: int(len(whole) * share)])
            with pytest.raises(MediaError) as caught:
                decode_image(tmp_path / name, 32, 32)
            assert caught.value.code == "damaged", name


@pytest.mark.parametrize(
    ("content", "code", "reason"),
    [
        (b"", "empty", "0 bytes"),
        (b"<!doctype html><p>404", "damaged", "the file holds text"),
        (b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>", "unsupported", "SVG isn't read here"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "unsupported", "HEIC isn't read here"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "unsupported", "JPEG XL isn't read here"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isommp41", "unsupported", "looks like a video"),
        (b"\0\0\0\x18ftypavif\0\0\0\0mif1avif" + bytes(40), "damaged", "it begins as AVIF, but its header is broken"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "damaged", "it begins as PNG, but its header is broken"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "damaged", "the file holds text"),
        (bytes(range(256)), "damaged", "not an image file that is read here"),
    ],
)
def test_what_is_no_image(tmp_path: Path, content: bytes, code: str, reason: str) -> None:
    (tmp_path / "x.png").write_bytes(content)
    for read in (probe_image, lambda path: probe(path, "image")):
        with pytest.raises(MediaError, match=reason) as caught:
            read(tmp_path / "x.png")
        assert caught.value.code == code and caught.value.path == str(tmp_path / "x.png") and len(caught.value.reason) <= 200


def test_a_missing_image_and_a_video() -> None:
    for path, code in ((clip("bframes.mp4"), "unsupported"), ("absent.png", "missing")):
        with pytest.raises(MediaError) as caught:
            probe_image(path)
        assert caught.value.code == code


def test_decompression_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_module, "MAX_PIXELS", 1000)
    make("L", 0)(tmp_path / "x.png")
    with pytest.raises(MediaError, match="unsupported: 64x48 pixels; at most 1,000"):
        probe_image(tmp_path / "x.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(MediaError, match="unsupported: too many pixels"):
        probe_image(tmp_path / "x.png")


def test_what_pillow_warns_of_is_not_printed(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Files without a name in the line, one for each broken tag."""
    exif = Image.Exif()
    exif[0x010E] = "a description"
    Image.new("RGB", (64, 48)).save(tmp_path / "x.tiff", exif=exif)
    content = (tmp_path / "x.tiff").read_bytes()
    place = content.index(struct.pack("<HH", 0x010E, 2))
    (tmp_path / "x.tiff").write_bytes(content[: place + 4] + struct.pack("<I", 10**6) + content[place + 8 :])
    with Image.open(tmp_path / "x.tiff") as image:
        image.getexif().get(0x0112)
    assert len(recwarn) == 1
    assert decode_image(tmp_path / "x.tiff", 48, 64).shape == (1, 3, 48, 64) and len(recwarn) == 1
