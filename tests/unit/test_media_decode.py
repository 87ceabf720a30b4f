"""Headers, and the frames that come out of files."""

from __future__ import annotations

import gc
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from media_clips import CLIPS, clip, corners, write_clip
from PIL import Image

from evr1_core.errors import MediaError
from evr1_core.media.decode import PLANAR, VideoDecode, decode_video, upright_rgb
from evr1_core.media.orientation import Orientation
from evr1_core.media.plan import plan
from evr1_core.media.probe import MediaInfo, probe
from evr1_core.types import Budget, MediaRef, PatchFactors

# name: frames, fps, duration, start, constant, packets read
FACTS = {
    "anim.gif": (8, 7.9545, 1.0057, 0, True, True),
    "audio_longer.mkv": (16, 8, 2.0, 0, True, True),
    "av1.mp4": (8, 8, 1.0, 0, True, False),
    "bframes.mp4": (32, 8, 4.0, 0, True, False),
    "hevc10.mp4": (8, 8, 1.0, 0, True, False),
    "long_gop.mp4": (600, 30, 20.0, 0, True, False),
    "n31.mp4": (31, 8, 3.875, 0, True, False),
    "nodur.mkv": (16, 8, 2.0, 0, True, True),
    "ntsc.mp4": (60, 30000 / 1001, 2.002, 0, True, False),
    "odd_width.webm": (8, 8, 1.0, 0, True, True),
    "one_frame.mp4": (1, 8, 0.125, 0, True, True),
    "start_offset.mkv": (27, 8, 3.375, 4.625, True, True),
    "two_frame.mp4": (2, 8, 0.25, 0, True, False),
    "vfr.mp4": (16, 1.0666, 15.001, 0, False, True),
    "vfr.webm": (16, 1.0666, 15.001, 0, False, True),
}


@pytest.mark.parametrize("name", FACTS)
def test_probe(name: str) -> None:
    info = probe(clip(name))
    facts = (info.frames, info.fps, info.duration, info.start, info.constant, info.scanned)
    assert facts == pytest.approx(FACTS[name], abs=1e-3)
    assert len(info.times()) == info.frames and info.times()[0] == 0


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("audio_only.mp4", "unsupported", r"no video stream \(streams: audio\)"),
        ("text.mp4", "damaged", "not a video file"),
        ("trunc_nomoov.mp4", "damaged", "header is incomplete"),
        ("zero.mp4", "empty", "0 bytes"),
        ("absent.mp4", "missing", "No such file"),
        ("", "missing", "not a file"),
    ],
)
def test_files_that_are_no_videos(name: str, code: str, reason: str) -> None:
    with pytest.raises(MediaError, match=reason) as caught:
        probe(clip(name), "video")
    assert caught.value.code == code and caught.value.path == clip(name) and len(str(caught.value)) < 400


def test_an_image_is_not_a_video(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    with pytest.raises(MediaError, match=r"unsupported: this is an image \(PNG\)"):
        probe(tmp_path / "x.png", "video")
    assert probe(tmp_path / "x.png").kind == "image"


def test_playlists_are_not_followed(tmp_path: Path) -> None:
    write_clip(tmp_path / "x.ts")
    (tmp_path / "x.m3u8").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:2,\nx.ts\n#EXT-X-ENDLIST\n")
    with pytest.raises(MediaError, match="unsupported"):
        probe(tmp_path / "x.m3u8", "video")


def plain(info: MediaInfo) -> np.ndarray:
    """uint8 [T, 3, H, W]: every frame, decoded in the plainest way."""
    return np.stack([frame.transpose(2, 0, 1) for _, frame in reference(info.path)])


def reference(path: str) -> list[tuple[int | None, np.ndarray]]:
    """(pts, RGB) of every frame, decoded in the plainest way."""
    with av.open(path) as container:
        return [(frame.pts, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


@pytest.mark.parametrize("name", ["bframes.mp4", "vfr.mp4", "vfr.webm", "start_offset.mkv", "ntsc.mp4", "nodur.mkv", "av1.mp4", "n31.mp4"])
def test_frames_are_those_of_a_plain_decode(name: str) -> None:
    info = probe(clip(name))
    expected = reference(clip(name))
    assert info.stamps is not None and [pts for pts, _ in expected] == info.stamps.tolist()
    indices = tuple(range(1, info.frames, 3))
    frames = decode_video(info, indices, info.height, info.width)
    for frame, index in zip(frames, indices, strict=True):
        np.testing.assert_array_equal(frame.transpose(1, 2, 0), expected[index][1])


@pytest.mark.parametrize(("turn", "rotation"), [(0, 0), (-90, 90), (180, 180), (90, 270)])
def test_every_rotation_comes_out_upright(tmp_path: Path, turn: int, rotation: int) -> None:
    """A camera that was turned stores a turned picture and the angle; the corners tell."""
    path = write_clip(tmp_path / "x.mp4", 4, paint=lambda index: np.rot90(corners(index), 2 if rotation == 180 else 0), rotation=turn)
    info = probe(path)
    assert info.rotation == rotation and (info.width, info.height) == ((48, 64) if rotation in (90, 270) else (64, 48))
    frame = decode_video(info, (0,), info.height, info.width)[0].transpose(1, 2, 0)
    got = {name: tuple((frame[y, x] > 128).astype(int)) for name, (y, x) in
           {"tl": (4, 4), "tr": (4, -5), "bl": (-5, 4), "br": (-5, -5)}.items()}  # fmt: skip
    red, green, blue, black = (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)
    assert (
        got
        == {
            0: {"tl": red, "tr": green, "bl": blue, "br": black},
            90: {"tl": blue, "tr": red, "bl": black, "br": green},
            180: {"tl": red, "tr": green, "bl": blue, "br": black},
            270: {"tl": green, "tr": black, "bl": red, "br": blue},
        }[rotation]
    )


def test_phone_clip() -> None:
    info = probe(clip("rot90.mp4"))
    assert (info.width, info.height, info.rotation) == (48, 64, 90)
    frame = decode_video(info, (3,), 64, 48)[0].transpose(1, 2, 0)
    np.testing.assert_array_equal(frame, np.rot90(reference(clip("rot90.mp4"))[3][1], -1))


@pytest.mark.parametrize("name", ["x.avi", "x.ts", "x.flv", "x.mov", "x.mkv"])
def test_containers(tmp_path: Path, name: str) -> None:
    """Brightness tells the order: an AVI gives no presentation times, B-frames or not."""
    info = probe(write_clip(tmp_path / name))
    frames = decode_video(info, tuple(range(info.frames)), 48, 64)
    assert info.frames == 20 and info.fps == pytest.approx(10)
    assert np.abs(frames[:, 0, 20, 20].astype(int) - 6 * np.arange(20)).max() < 4


def test_fragmented_file(tmp_path: Path) -> None:
    info = probe(write_clip(tmp_path / "x.mp4", container={"movflags": "frag_keyframe+empty_moov"}))
    assert info.frames == 20 and info.scanned


@pytest.mark.parametrize("codec", ["libvpx", "libvpx-vp9"])
def test_reference_pictures_that_are_never_shown(tmp_path: Path, codec: str) -> None:
    info = probe(write_clip(tmp_path / "x.webm", 40, codec, options={"auto-alt-ref": "1", "lag-in-frames": "16"}))
    assert info.frames == 40 == len(decode_video(info, tuple(range(40)), 48, 64))


def test_leading_frames_that_an_edit_list_hides(tmp_path: Path) -> None:
    source = write_clip(tmp_path / "source.mp4", 40)
    with av.open(source) as given, av.open(str(tmp_path / "cut.mp4"), "w") as cut:
        stream = given.streams.video[0]
        copy = cut.add_stream_from_template(stream)
        for packet in given.demux(stream):
            if packet.size and packet.pts is not None and packet.dts is not None and stream.time_base:
                shift = int(Fraction(1, 2) / stream.time_base)
                packet.pts, packet.dts, packet.stream = packet.pts - shift, packet.dts - shift, copy
                cut.mux(packet)
    info = probe(tmp_path / "cut.mp4")
    frames = decode_video(info, tuple(range(info.frames)), 48, 64)
    assert info.frames == 35 and abs(int(frames[0, 0, 20, 20]) - 30) < 4


@pytest.mark.parametrize(("matrix", "kr", "kb"), [(1, 0.2126, 0.0722), (5, 0.299, 0.114)])
@pytest.mark.parametrize("full", [False, True])
def test_colour_matrix_and_range(tmp_path: Path, matrix: int, kr: float, kb: float, full: bool) -> None:
    luma, cb, cr = 100, 90, 180
    with av.open(str(tmp_path / "x.mkv"), "w") as out:
        stream = out.add_stream("libx264", rate=10, options={"qp": "0"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.color_range, stream.codec_context.colorspace = 2 if full else 1, matrix
        frame = av.VideoFrame(64, 48, "yuv420p")
        for plane, value in zip(frame.planes, (luma, cb, cr), strict=True):
            plane.update(bytes([value]) * plane.buffer_size)
        frame.color_range, frame.colorspace = 2 if full else 1, matrix
        out.mux(stream.encode(frame))
        out.mux(stream.encode())
    expected = rgb_of(luma, cb - 128, cr - 128, kr, kb, full)
    info = probe(tmp_path / "x.mkv")
    assert np.abs(decode_video(info, (0,), 48, 64)[0, :, 20, 20] - expected).max() < 3


@pytest.mark.parametrize("pixels", ["yuv420p", "yuvj420p", "yuv422p", "yuv444p"])
def test_the_last_columns_of_any_width(pixels: str) -> None:
    """Luma and chroma that change from left to right, against the BT.709 formula; chroma samples count for all their pixels."""
    for width in [*range(2, 20), 63, 65, 127, 635, 641]:
        frame = av.VideoFrame(width, 16, pixels)
        full = pixels == "yuvj420p"
        frame.colorspace, frame.color_range = 1, 2 if full else 1
        values = []
        for plane, (low, high) in zip(frame.planes, ((40, 200), (100, 150), (150, 100)), strict=True):
            row = np.linspace(low, high, plane.width).astype(np.uint8)
            padded = np.full((plane.height, plane.line_size), 77, np.uint8)
            padded[:, : plane.width] = row
            plane.update(padded.tobytes())
            values.append(np.repeat(row, 1 if plane.width == width else 2)[:width].astype(float))
        y, u, v = values[0], values[1] - 128, values[2] - 128
        expected = rgb_of(y, u, v, 0.2126, 0.0722, full)
        assert np.abs(upright_rgb(frame, Orientation(), 16, width)[:, 8] - expected).max() < 5, width


@pytest.mark.parametrize("pixels", PLANAR)
@pytest.mark.parametrize("width", [16, 48, 640, 1936])
def test_planes_hold_the_same_numbers_as_triples(pixels: str, width: int) -> None:
    frame = av.VideoFrame(width, 34, pixels)
    for plane in frame.planes:
        plane.update(np.random.default_rng(0).integers(0, 256, plane.buffer_size, dtype=np.uint8).tobytes())
    picture = upright_rgb(frame, Orientation(), 34, width)
    assert (picture.transpose(1, 2, 0) == frame.reformat(format="rgb24", threads=1).to_ndarray()).all()


@pytest.mark.parametrize("pixels", ["yuv420p10le", "yuv420p12le", "yuv422p10le", "yuv444p12le"])
@pytest.mark.parametrize(("matrix", "kr", "kb"), [(1, 0.2126, 0.0722), (2, 0.299, 0.114), (5, 0.299, 0.114), (9, 0.2627, 0.0593)])
@pytest.mark.parametrize("full", [False, True])
def test_deep_pixels_and_every_matrix(pixels: str, matrix: int, kr: float, kb: float, full: bool) -> None:
    """2 is "unspecified": BT.601."""
    frame = av.VideoFrame(64, 48, pixels)
    frame.colorspace, frame.color_range = matrix, 2 if full else 1
    for plane, value in zip(frame.planes, (100, 90, 180), strict=True):
        plane.update(np.full(plane.buffer_size // 2, value << (frame.format.components[0].bits - 8), np.uint16).tobytes())
    assert np.abs(upright_rgb(frame, Orientation(), 48, 64)[:, 24, 32] - rgb_of(100.0, -38.0, 52.0, kr, kb, full)).max() < 3


def rgb_of(y: Any, u: Any, v: Any, kr: float, kb: float, full: bool) -> np.ndarray:
    """The definition: luma and centred chroma -> RGB, 0..255."""
    if not full:
        y, u, v = (y - 16) * 255 / 219, u * 255 / 224, v * 255 / 224
    red, blue = y + 2 * (1 - kr) * v, y + 2 * (1 - kb) * u
    return np.clip([red, (y - kr * red - kb * blue) / (1 - kr - kb), blue], 0, 255)


def test_ten_bit_and_gif_give_eight_bit_pictures(tmp_path: Path) -> None:
    ten = probe(clip("hevc10.mp4"))
    assert ten.pixel_format == "yuv420p10le" and decode_video(ten, (0, 7), 64, 64).std() > 1
    clear = Image.new("RGBA", (64, 48), (0, 0, 0, 0))
    mark = Image.new("RGBA", (64, 48), (0, 0, 0, 0))
    mark.paste((255, 0, 0, 255), (0, 0, 16, 16))
    mark.save(tmp_path / "x.gif", save_all=True, append_images=[clear], duration=100, disposal=2)
    info = probe(tmp_path / "x.gif", "video")
    frames = decode_video(info, (0,), 48, 64)
    assert info.frames == 2 and frames[0, :, 40, 40].tolist() == [255, 255, 255] and frames[0, :, 4, 4].tolist() == [255, 0, 0]


def test_a_damaged_file_says_how_much_of_it_is_whole() -> None:
    info = probe(clip("trunc_mid.mp4"))
    with pytest.raises(MediaError, match="10 of 64 frames could be decoded") as caught:
        decode_video(info, (0, 63), 48, 64)
    assert caught.value.code == "damaged"
    # What is whole can be read as a part of the video.
    assert decode_video(info, (0, 5), 48, 64).shape == (2, 3, 48, 64)


def places(walk: VideoDecode) -> list[int]:
    return [place for place, _ in walk]


def test_what_a_broken_packet_reaches_is_missing(tmp_path: Path) -> None:
    """Noise in one packet: from it on to the next key frame nothing comes; all that comes is as in the whole file."""
    path = write_clip(tmp_path / "x.mp4", 90, paint=textured, options={"g": "30", "keyint_min": "30", "bf": "2"})
    info, whole = probe(path), plain(probe(path))
    with av.open(path) as container:
        spots = [(packet.pos, packet.size, packet.pts) for packet in container.demux(video=0) if packet.size]
    content = bytearray(Path(path).read_bytes())
    position, size, moment = max(spots[35:50], key=lambda spot: spot[1])
    assert position is not None and moment is not None and info.stamps is not None
    content[position + size // 4 : position + size] = b"\xff" * (size - size // 4)
    Path(path).write_bytes(content)
    for threads in (1, 2):
        walk = VideoDecode(info, range(90), 48, 64, threads=threads)
        found = dict(walk)
        assert set(range(30)) <= set(found) and set(range(60, 90)) <= set(found), "the other groups are whole"
        assert 35 <= len([place for place in range(60) if place in found]) < 59
        assert all(np.array_equal(frame, whole[place]) for place, frame in found.items())
        assert "of 90 frames could be decoded" in walk.damage()
    assert places(VideoDecode(info, (0, 10, 70, 80), 48, 64)) == [0, 1, 2, 3]


def test_a_count_that_is_lost_does_not_come_back(tmp_path: Path) -> None:
    """An AVI gives no times: after a broken packet nobody knows which frame is which."""
    path = write_clip(tmp_path / "x.avi", 60, "mpeg4", textured, {"g": "20"})
    info = probe(path)
    with av.open(path) as container:
        spots = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    content = bytearray(Path(path).read_bytes())
    position, size = spots[25]
    assert position is not None and info.ordinal
    content[position + 8 : position + 8 + size] = bytes(size)
    Path(path).write_bytes(content)
    found = places(VideoDecode(info, range(60), 48, 64))
    assert found == list(range(len(found))) and 20 <= len(found) <= 26


def test_a_file_that_ends_too_early_gives_what_it_has() -> None:
    walk = VideoDecode(probe(clip("trunc_mid.mp4")), range(0, 64, 2), 48, 64)
    assert places(walk) == [0, 1, 2, 3, 4] and walk.damage() == "10 of 64 frames could be decoded; 1 broken packets"


def test_deadline_between_packets() -> None:
    with pytest.raises(MediaError, match="timeout"):
        decode_video(probe(clip("long_gop.mp4")), (0, 599), 48, 64, until=time.monotonic() - 1)


def test_frames_are_given_back(walked: dict[str, tuple[MediaInfo, np.ndarray]]) -> None:
    """Pictures that have been converted don't stay, whatever the collector of cycles does."""
    info, _ = walked["b_frames-x.mp4"]
    gc.collect()
    gc.disable()
    try:
        for threads in (1, 2):
            most = 0
            for place, _ in VideoDecode(info, range(0, 200, 3), 48, 64, threads=threads):
                if place % 11 == 0:
                    most = max(most, sum(type(each).__name__ == "VideoFrame" for each in gc.get_objects()))
            assert 0 < most < 24
    finally:
        gc.enable()


def test_files_are_closed() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(30):
        decode_video(probe(clip("hevc10.mp4")), (0,), 32, 32)
        with pytest.raises(MediaError):
            probe(clip("audio_only.mp4"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("name", sorted(set(FACTS) | {"rot90.mp4", "tall.mp4", "gop8.mp4"}))
@pytest.mark.parametrize("part", [(None, None), (0.3, None), (0.2, 0.6)])
def test_the_plan_is_what_decoding_gives(name: str, part: tuple[float | None, float | None]) -> None:
    info = probe(CLIPS / name)
    ref = MediaRef(clip(name), "video", *part)
    try:
        planned = plan(info, ref, Budget(), PatchFactors(28, 2))
    except MediaError as error:
        assert error.code == "empty" and info.duration < 0.4
        return
    frames = decode_video(info, planned.indices, planned.height, planned.width)
    assert frames.shape == (planned.frames, 3, planned.height, planned.width)


def textured(index: int) -> np.ndarray:
    """A picture that moves and changes: every frame differs, and its successors refer to it."""
    y, x = np.mgrid[:48, :64]
    return np.stack([(3 * x + 5 * index) % 256, (7 * y + 2 * x + index) % 256, (x * y + 3 * index) % 256], -1).astype(np.uint8)


def write_uneven(path: Path, frames: int) -> str:
    """A clip with B-frames whose frames come at varying times, the first one at 2 s."""
    with av.open(str(path), "w") as out:
        stream: Any = out.add_stream("libx264", rate=10, options={"bf": "3", "g": "40"})
        stream.width, stream.height, stream.pix_fmt, stream.codec_context.time_base = 64, 48, "yuv420p", Fraction(1, 1000)
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(textured(index), format="rgb24")
            frame.pts, frame.time_base = 2000 + 40 * index + 7 * (index % 5), Fraction(1, 1000)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return str(path)


KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "b_frames": ("x.mp4", {"g": "30", "bf": "3"}),
    "long_gop": ("x.mp4", {"g": "250", "keyint_min": "250", "bf": "2"}),
    "open_gop": ("x.mkv", {"g": "30", "bf": "3", "x264-params": "open-gop=1"}),
    "intra_refresh": ("x.mp4", {"g": "60", "x264-params": "intra-refresh=1"}),
    "transport_stream": ("x.ts", {"g": "30", "bf": "3"}),
    "open_gop_stream": ("x.ts", {"g": "30", "bf": "3", "x264-params": "open-gop=1"}),
}


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[MediaInfo, np.ndarray]]:
    """Each kind of clip with all its frames."""
    folder = tmp_path_factory.mktemp("walked")
    paths = [*(write_clip(folder / f"{kind}-{name}", 200, paint=textured, options=options) for kind, (name, options) in KINDS.items())]
    paths += [write_uneven(folder / "uneven.mp4", 200), write_uneven(folder / "uneven.mkv", 200), clip("start_offset.mkv"), clip("vfr.mp4")]
    return {Path(path).name: (info := probe(path), plain(info)) for path in paths}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_request_gives_the_frames_of_a_plain_decode(walked: dict[str, tuple[MediaInfo, np.ndarray]], data: st.DataObject) -> None:
    """With jumps, left-out pictures and any number of threads."""
    info, frames = walked[data.draw(st.sampled_from(sorted(walked)))]
    indices = sorted(data.draw(st.sets(st.integers(0, info.frames - 1), min_size=1, max_size=8)))
    threads = data.draw(st.sampled_from([1, 2, 4]))
    np.testing.assert_array_equal(decode_video(info, indices, 48, 64, threads=threads), frames[indices])


def test_pictures_that_nobody_needs_are_not_decoded(walked: dict[str, tuple[MediaInfo, np.ndarray]]) -> None:
    info, _ = walked["long_gop-x.mp4"]
    walk = VideoDecode(info, (0, 50, 150), 48, 64)
    assert len(list(walk)) == 3 and walk.seen < 110, "of the 150 frames on the way"


def test_pictures_of_interlaced_video_are_all_decoded(tmp_path: Path) -> None:
    info = probe(write_clip(tmp_path / "x.ts", 60, paint=textured, options={"flags": "+ildct+ilme", "bf": "3"}))
    np.testing.assert_array_equal(decode_video(info, (3, 20, 41), 48, 64), plain(info)[[3, 20, 41]])


def test_a_late_part_does_not_decode_what_lies_before(tmp_path: Path) -> None:
    info = probe(write_clip(tmp_path / "x.mp4", 300, paint=corners, options={"g": "30"}))
    walk = VideoDecode(info, (250,), 48, 64)
    assert [place for place, _ in walk] == [0] and walk.seen < 40
