"""Images take the same road."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from media_clips import clip, corners
from PIL import Image

from evr1_core.errors import MediaError
from evr1_core.media import image as image_module
from evr1_core.media.image import decode_image, probe_image


def centre(path: Path) -> list[int]:
    return decode_image(path, 48, 64)[0, :, 24, 32].tolist()


@pytest.mark.parametrize(("orientation", "rotation"), [(1, 0), (3, 180), (6, 90), (8, 270)])
def test_exif_rotation(tmp_path: Path, orientation: int, rotation: int) -> None:
    stored = np.rot90(corners(0), rotation // 90)  # counter-clockwise, as a turned camera stores it
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / "x.png", exif=exif)
    info = probe_image(tmp_path / "x.png")
    assert (info.width, info.height, info.rotation, info.kind) == (64, 48, rotation, "image")
    np.testing.assert_array_equal(decode_image(tmp_path / "x.png", 48, 64)[0].transpose(1, 2, 0), corners(0))


def test_mirrored_by_exif(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 5
    Image.fromarray(np.ascontiguousarray(corners(0).transpose(1, 0, 2))).save(tmp_path / "x.png", exif=exif)
    np.testing.assert_array_equal(decode_image(tmp_path / "x.png", 48, 64)[0].transpose(1, 2, 0), corners(0))


def make(mode: str, colour: Any, **save: Any) -> Any:
    def write(path: Path) -> None:
        Image.new(mode, (64, 48), colour).save(path, **save)

    return write


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
        ("deep.png", lambda path: Image.fromarray(np.full((48, 64), 51_400, np.uint16)).save(path), [200, 200, 200]),
        ("float.tiff", lambda path: Image.fromarray(np.full((48, 64), 0.5, np.float32)).save(path), [128, 128, 128]),
        ("x.webp", make("RGB", (200, 100, 50), lossless=True), [200, 100, 50]),
    ],
)
def test_modes(tmp_path: Path, name: str, write: Any, expected: list[int]) -> None:
    write(tmp_path / name)
    assert np.abs(np.array(centre(tmp_path / name)) - expected).max() <= 2


def test_first_picture_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (64, 48), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:], duration=100)
    assert centre(tmp_path / "x.gif") == [255, 0, 0]


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


def test_what_is_no_image(tmp_path: Path) -> None:
    for path, code in (
        (clip("bframes.mp4"), "damaged"),
        (clip("text.mp4"), "damaged"),
        (clip("zero.mp4"), "empty"),
        ("absent.png", "missing"),
    ):
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
