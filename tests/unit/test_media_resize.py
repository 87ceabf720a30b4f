"""The size a picture gets, and the resize itself."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evr1_core.media.resize import image_size, resize_rgb, smart_size, video_size
from evr1_core.types import ImageBudget, PatchFactors, VideoBudget


@pytest.mark.parametrize(
    ("height", "width", "factor", "low", "high", "size"),
    [
        (1080, 1920, 32, 4096, 262144, (384, 672)),
        (720, 1280, 32, 4096, 262144, (384, 672)),
        (48, 64, 32, 4096, 262144, (64, 64)),
        (240, 320, 32, 262144, 262144, (448, 608)),  # the published rule: growing may go past the maximum
        (1080, 1920, 28, 4096, 262144, (364, 672)),
        # The published rule gives a side of 0 here.
        (31, 639, 28, 3136, 20 * 28 * 28, (28, 560)),
        (639, 31, 28, 3136, 20 * 28 * 28, (560, 28)),
        (1024, 32, 32, 4096, 16384, (512, 32)),
    ],
)
def test_sizes(height: int, width: int, factor: int, low: int, high: int, size: tuple[int, int]) -> None:
    assert smart_size(height, width, factor, low, high) == size


@given(st.integers(1, 4000), st.integers(1, 4000), st.sampled_from([1, 14, 28, 32]), st.integers(1, 400_000), st.integers(0, 10**6))
def test_any_size(height: int, width: int, factor: int, low: int, more: int) -> None:
    high = low + more
    if max(height, width) / min(height, width) > 200:
        with pytest.raises(ValueError, match="factor of at most 200"):
            smart_size(height, width, factor, low, high)
        return
    tall, wide = smart_size(height, width, factor, low, high)
    assert tall >= factor and wide >= factor and tall % factor == 0 and wide % factor == 0
    grew = tall * wide > max(factor, round(height / factor) * factor) * max(factor, round(width / factor) * factor)
    assert grew or tall * wide <= max(high, factor * factor)


def test_total_pixels_counts_one_frame_per_temporal_patch() -> None:
    factors = PatchFactors(32, 2)
    assert video_size(1080, 1920, 128, VideoBudget(), factors) == (384, 672)
    # 64 patches of at most 131,072 pixels.
    assert video_size(1080, 1920, 128, VideoBudget(total_pixels=64 * 131_072), factors) == (256, 480)
    assert video_size(1080, 1920, 2, VideoBudget(total_pixels=64 * 131_072), factors) == (384, 672)
    # Never below 1.05 times min_pixels.
    assert video_size(1080, 1920, 128, VideoBudget(min_pixels=65_536, total_pixels=1), factors) == (192, 320)
    assert image_size(1080, 1920, ImageBudget(max_pixels=262_144), factors) == (384, 672)


def natural(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """uint8 [height, width, 3]: noise whose large scales are the strongest, as in photographs, with hard edges."""
    picture = np.zeros((height, width, 3))
    for size in (4, 16, 64):
        coarse = random.normal(0, size**0.5, (height // size + 1, width // size + 1, 3))
        picture += coarse.repeat(size, 0).repeat(size, 1)[:height, :width]
    picture = (picture - picture.min()) / np.ptp(picture) * 255
    picture[height // 3 : height // 2, width // 4 : width // 2] = (250, 10, 30)
    picture[:, width // 2 : width // 2 + 2] = 255
    return picture.astype(np.uint8)


@pytest.mark.parametrize("size", [(384, 672), (200, 352), (608, 1088), (736, 1280)])
def test_close_to_the_antialiased_bicubic_of_torch(size: tuple[int, int]) -> None:
    """The reference pipeline in float32, smaller and larger; what differs is the rounding to eight bits."""
    torch = pytest.importorskip("torch")
    picture = natural(np.random.default_rng(0), 480, 832)
    source = torch.from_numpy(picture).permute(2, 0, 1)[None].float()
    exact = torch.nn.functional.interpolate(source, size=size, mode="bicubic", antialias=True, align_corners=False)
    difference = np.abs(exact.clamp(0, 255)[0].permute(1, 2, 0).numpy() - resize_rgb(picture, *size))
    assert difference.mean() < 1 and difference.max() < 8


@pytest.mark.parametrize("size", [(272, 480), (64, 96), (90, 192)])
def test_even_noise_agrees_inside(size: tuple[int, int]) -> None:
    """The kernel is that of torch (a = -0.5), and nothing is cut off between the two passes. Only beyond the edge do the two differ."""
    torch = pytest.importorskip("torch")
    noise = np.random.default_rng(0).integers(0, 256, (90, 160, 3), dtype=np.uint8)
    source = torch.from_numpy(noise.astype(np.float32)).permute(2, 0, 1)[None]
    exact = torch.nn.functional.interpolate(source, size=size, mode="bicubic", antialias=True, align_corners=False)
    difference = np.abs(exact.clamp(0, 255).round()[0].permute(1, 2, 0).numpy() - resize_rgb(noise, *size))
    edge = 1 + 3 * size[0] // 90
    assert difference[edge:-edge, edge:-edge].max() <= 1
    assert difference.mean() < 0.5 and difference.max() < 30


@pytest.mark.parametrize("side", [2, 3, 4, 5, 7])
def test_a_picture_of_a_few_pixels(side: int) -> None:
    """Narrower than the kernel: still the same curve. torch leaves out the weight beyond the edge, which all of this picture is near."""
    torch = pytest.importorskip("torch")
    picture = np.zeros((side, 20, 3), np.uint8)
    picture[side // 2 :] = 200
    source = torch.from_numpy(picture.astype(np.float32)).permute(2, 0, 1)[None]
    exact = torch.nn.functional.interpolate(source, size=(96, 64), mode="bicubic", antialias=True, align_corners=False)
    for got, turned in ((resize_rgb(picture, 96, 64), False), (resize_rgb(picture.transpose(1, 0, 2), 64, 96), True)):
        upright = got.transpose(1, 0, 2) if turned else got
        difference = np.abs(exact.clamp(0, 255)[0].permute(1, 2, 0).numpy() - upright)
        assert difference.max() < 15 and difference.mean() < 3


@pytest.mark.parametrize(("height", "width", "size"), [(1, 1, (32, 32)), (3, 5, (32, 64)), (4000, 30, (64, 32)), (10, 3000, (32, 320))])
def test_a_flat_picture_stays_flat_at_any_size(height: int, width: int, size: tuple[int, int]) -> None:
    picture = np.full((height, width, 3), (255, 128, 0), np.uint8)
    small = resize_rgb(picture, *size)
    assert small.shape == (*size, 3) and np.abs(small.astype(int) - (255, 128, 0)).max() <= 1


def test_more_than_the_scaler_holds_is_a_question_of_memory() -> None:
    with pytest.raises(MemoryError, match="9x9 to 180000x180000 pixels"):
        resize_rgb(np.zeros((1, 1, 3), np.uint8), 20_000, 20_000)


def test_threads_do_not_share_a_scaler() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (24, 40, 64, 3), dtype=np.uint8)
    alone = [resize_rgb(picture, 32, 64) for picture in pictures]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda picture: resize_rgb(picture, 32, 64), pictures))
    assert all((one == other).all() for one, other in zip(alone, together, strict=True))


def test_a_process_can_be_forked_from_another_thread() -> None:
    """Programs that start others with a function to run between fork and exec do that; threads of a filter don't come along."""
    script = """
import subprocess, threading
import numpy as np
from evr1_core.media.resize import resize_rgb
resize_rgb(np.zeros((480, 640, 3), np.uint8), 240, 320)
fork = threading.Thread(target=lambda: subprocess.run(["true"], preexec_fn=lambda: None, check=True))
fork.start()
fork.join()
print("done")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "done", done.stderr
