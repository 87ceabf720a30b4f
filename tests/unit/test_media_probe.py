"""What headers and packets tell: size as displayed, orientation, clock, and what a hostile header can't do."""

from __future__ import annotations

import logging
import math
import os
import shutil
import struct
import time
import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from media_clips import clip, corners, write_clip
from PIL import Image

from evr1_core.errors import MediaError
from evr1_core.media import probe as probe_module
from evr1_core.media.container import packets
from evr1_core.media.extent import missing_bytes
from evr1_core.media.image import decode_image
from evr1_core.media.orientation import Orientation, from_matrix, orientation
from evr1_core.media.plan import plan
from evr1_core.media.probe import first_frame, probe
from evr1_core.media.store import MediaStore
from evr1_core.types import Budget, MediaRef, PatchFactors

ORIENTATIONS = [Orientation(rotation, mirrored) for rotation in (0, 90, 180, 270) for mirrored in (False, True)]


def stored(up: Orientation) -> np.ndarray:
    """The corners as a camera stores them that was held so."""
    picture = np.rot90(corners(0), up.rotation // 90)
    return np.ascontiguousarray(picture[:, ::-1] if up.mirrored else picture)


def shown(stream: Any, up: Orientation) -> None:
    # The library turns first and mirrors then, so a mirrored turn goes the other way.
    stream.set_display_rotation(up.rotation if up.mirrored else -up.rotation, hflip=up.mirrored)


@pytest.mark.parametrize("up", ORIENTATIONS)
@pytest.mark.parametrize("name", ["x.mp4", "x.mkv"])
def test_all_eight_orientations(tmp_path: Path, name: str, up: Orientation) -> None:
    path = write_clip(tmp_path / name, 2, paint=lambda _: stored(up), prepare=lambda stream: shown(stream, up))
    info = probe(path)
    assert (info.width, info.height, info.rotation, info.mirrored) == (64, 48, up.rotation, up.mirrored)
    frame, *_ = first_frame(path)
    picture = orientation(frame).upright(frame.to_ndarray(format="rgb24")).astype(int)
    for y, x in ((5, 5), (5, 58), (42, 5), (42, 58)):
        assert np.abs(picture[y, x] - corners(0)[y, x]).max() < 60, (y, x)


def test_matrices() -> None:
    def matrix(a: int, b: int, c: int, d: int) -> Orientation:
        return from_matrix(struct.pack("=9i", a, b, 0, c, d, 0, 7, 7, 1 << 30))

    one = 1 << 16
    assert matrix(one, 0, 0, one) == Orientation() == matrix(3 * one, 0, 0, one)
    assert matrix(0, one, -one, 0) == Orientation(90) and matrix(0, -one, one, 0) == Orientation(270)
    assert matrix(-one, 0, 0, -one) == Orientation(180)
    assert matrix(-one, 0, 0, one) == Orientation(0, True) and matrix(one, 0, 0, -one) == Orientation(180, True)
    # Two degrees off, and nothing at all.
    assert matrix(2287, 65496, -65496, 2287) == Orientation(90) and matrix(0, 0, 0, 0) == Orientation()


def test_side_data_that_the_library_does_not_know() -> None:
    """PyAV stops at kinds of side data that are newer than it; the rotation is still to be had."""

    class Frame:
        rotation = -90

        @property
        def side_data(self) -> Any:
            raise ValueError("29 is not a valid Type")

    assert orientation(Frame()) == Orientation(90)
    assert orientation(SimpleNamespace(side_data={})) == Orientation()


def wide_pixels(stream: Any) -> None:
    stream.codec_context.sample_aspect_ratio = Fraction(16, 11)


@pytest.mark.parametrize(("name", "codec"), [("x.mp4", "libx264"), ("x.mkv", "libx264"), ("x.ts", "libx264"), ("x.avi", "mpeg4")])
def test_pixels_that_are_not_square(tmp_path: Path, name: str, codec: str) -> None:
    info = probe(write_clip(tmp_path / name, 4, codec, prepare=wide_pixels))
    assert (info.width, info.height, info.sample_aspect) == (93, 48, Fraction(16, 11))
    planned = plan(info, MediaRef(info.path, "video"), Budget(), PatchFactors(16))
    assert (planned.height, planned.width) == (48, 96)


def test_pixels_that_are_not_square_turned(tmp_path: Path) -> None:
    def prepare(stream: Any) -> None:
        wide_pixels(stream)
        stream.set_display_rotation(-90)

    info = probe(write_clip(tmp_path / "x.mp4", 4, prepare=prepare))
    assert (info.width, info.height, info.rotation) == (48, 93, 90)


@pytest.mark.parametrize(("number", "hdr"), [(16, "PQ"), (18, "HLG"), (1, "")])
def test_high_dynamic_range_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int, hdr: str) -> None:
    def prepare(stream: Any) -> None:
        stream.codec_context.color_trc = number

    paths = [write_clip(tmp_path / name, 4, prepare=prepare) for name in ("x.mp4", "y.mp4")]
    assert probe(paths[0]).hdr == hdr
    store = MediaStore(tmp_path, "decode-only", isolate=False)
    with caplog.at_level(logging.WARNING):
        for path in paths * 2:
            store.plan(MediaRef(path, "video"), Budget(), PatchFactors(32))
            store.load(MediaRef(path, "video"), Budget(), PatchFactors(32))
    warnings = [record.getMessage() for record in caplog.records if "dynamic range" in record.getMessage()]
    assert len(warnings) == bool(hdr) and all(paths[0] in warning and hdr in warning for warning in warnings)


UNEVEN = [0, 100, 200, 300, 1300, 3300, 3400, 6000]


@pytest.mark.parametrize("name", ["x.mp4", "x.mkv", "x.ts", "x.mov", "x.flv"])
def test_varying_rate(tmp_path: Path, name: str) -> None:
    info = probe(write_clip(tmp_path / name, 8, milliseconds=UNEVEN))
    assert info.frames == 8 and not info.constant and info.scanned
    np.testing.assert_allclose(info.times(), np.array(UNEVEN) / 1000, atol=1.1e-3)
    assert 6 < info.duration < 9 and info.fps == pytest.approx(8 / info.duration)


def two_bframes(stream: Any) -> None:
    stream.codec_context.max_b_frames = 2


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "live recording": ("x.mkv", {"container": {"live": "1"}}),
    "fragments": ("x.mp4", {"container": {"movflags": "frag_keyframe+empty_moov"}}),
    "fragments of a second": ("x.mp4", {"container": {"movflags": "frag_every_frame+empty_moov+default_base_moof"}}),
    "index in front": ("x.mp4", {"container": {"movflags": "faststart"}}),
    "transport stream": ("x.ts", {}),
    "program stream": ("x.mpg", {"codec": "mpeg2video", "muxer": "vob", "prepare": two_bframes}),
    "avi": ("x.avi", {"codec": "mpeg4"}),
    "avi with b-frames": ("x.avi", {"codec": "mpeg4", "options": {"bf": "2"}}),
    "webm": ("x.webm", {"codec": "libvpx-vp9"}),
    "gif": ("x.gif", {"codec": "gif", "prepare": lambda stream: setattr(stream, "pix_fmt", "rgb8")}),
    "raw h264": ("x.h264", {}),
    "raw h264 with b-frames": ("x.264", {"options": {"bf": "3"}, "muxer": "h264"}),
    "raw hevc": ("x.hevc", {"codec": "libx265", "options": {"x265-params": "log-level=none:pools=1"}}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_twenty_frames_at_ten_a_second(tmp_path: Path, kind: str) -> None:
    name, how = KINDS[kind]
    info = probe(write_clip(tmp_path / name, 20, **how), "video")
    assert (info.frames, info.fps, info.constant) == (20, pytest.approx(10, rel=1e-6), True)
    assert info.duration == pytest.approx(2.0) and info.times()[-1] == pytest.approx(1.9, abs=1e-3)


@pytest.mark.parametrize("name", ["x.mkv", "x.ts", "x.mp4"])
def test_a_clock_that_starts_late(tmp_path: Path, name: str) -> None:
    info = probe(write_clip(tmp_path / name, 20, milliseconds=range(5000, 7000, 100)))
    assert info.frames == 20 and info.times()[0] == 0 and info.times()[-1] == pytest.approx(1.9, abs=1e-3)
    assert info.start == 5.0


@pytest.mark.parametrize("name", ["x.mkv", "x.mp4"])
def test_sound_longer_than_the_picture(tmp_path: Path, name: str) -> None:
    with av.open(str(tmp_path / name), "w") as out:
        video, audio = out.add_stream("libx264", rate=10), out.add_stream("aac", rate=8000)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        for _ in range(20):
            out.mux(video.encode(av.VideoFrame.from_ndarray(corners(0), format="rgb24")))
        out.mux(video.encode())
        for index in range(50):
            sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            sound.sample_rate, sound.pts = 8000, 1024 * index
            out.mux(audio.encode(sound))
        out.mux(audio.encode())
    info = probe(tmp_path / name)
    assert (info.frames, info.fps, info.duration) == (20, 10, 2.0)


def cut_copy(source: str, target: Path, seconds: Fraction) -> str:
    """A copy of the packets with the clock moved back, so that an edit list hides what comes before 0."""
    with av.open(source) as given, av.open(str(target), "w") as cut:
        stream = given.streams.video[0]
        copy = cut.add_stream_from_template(stream)
        for packet in given.demux(stream):
            if packet.size and packet.pts is not None and packet.dts is not None and stream.time_base:
                shift = int(seconds / stream.time_base)
                packet.pts, packet.dts, packet.stream = packet.pts - shift, packet.dts - shift, copy
                cut.mux(packet)
    return str(target)


@pytest.mark.parametrize("hidden", [1, 2, 5, 12])
@pytest.mark.parametrize("bframes", ["0", "3"])
def test_frames_before_the_first_one_shown(tmp_path: Path, hidden: int, bframes: str) -> None:
    """The hidden key frame is still decoded; the first frame shown is time 0."""
    source = write_clip(tmp_path / "source.mp4", 40, options={"bf": bframes})
    path = cut_copy(source, tmp_path / "cut.mp4", Fraction(hidden, 10))
    info = probe(path)
    frame, *_ = first_frame(path)
    assert info.frames == 40 - hidden and info.times()[0] == 0 and info.fps == pytest.approx(10)
    assert abs(int(frame.to_ndarray(format="rgb24")[20, 20, 0]) - 6 * hidden) < 4


def patched(data: bytes, box: bytes, offset: int, layout: str, *values: float) -> bytes:
    place = data.index(box) + len(box) + offset
    return data[:place] + struct.pack(layout, *values) + data[place + struct.calcsize(layout) :]


def mp4(tmp_path: Path) -> bytes:
    return Path(write_clip(tmp_path / "whole.mp4", 20, options={"bf": "0"})).read_bytes()


def test_lengths_that_headers_claim_do_not_count(tmp_path: Path) -> None:
    whole = mp4(tmp_path)
    for box, offset in ((b"mdhd", 16), (b"mvhd", 16), (b"tkhd", 20)):
        (tmp_path / "x.mp4").write_bytes(patched(whole, box, offset, ">I", 2**31 - 1))
        info = probe(tmp_path / "x.mp4")
        assert (info.frames, info.fps, info.duration) == (20, 10, 2.0), box
    mkv = Path(write_clip(tmp_path / "whole.mkv", 20)).read_bytes()
    for length in (1e300, math.nan, -1.0):
        (tmp_path / "x.mkv").write_bytes(patched(mkv, b"\x44\x89\x88", 0, ">d", length))
        info = probe(tmp_path / "x.mkv")
        assert (info.frames, info.fps, info.duration) == (20, 10, 2.0), length


def test_an_index_that_contradicts_its_times_is_not_believed(tmp_path: Path) -> None:
    """The table of times stretched to double length: the edit list ends where the header says, and packets decide."""
    whole = mp4(tmp_path)
    ticks = struct.unpack(">I", whole[whole.index(b"stts") + 16 :][:4])[0]
    (tmp_path / "x.mp4").write_bytes(patched(whole, b"stts", 12, ">I", 2 * ticks))
    info = probe(tmp_path / "x.mp4")
    assert info.scanned and info.frames == 10 and info.fps == pytest.approx(5)


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "a billion sizes": lambda data: patched(data, b"stsz", 8, ">I", 10**9),
    "two billion frames of a byte": lambda data: patched(patched(data, b"stsz", 4, ">II", 1, 2**31 - 1), b"stsc", 12, ">I", 2**31 - 1),
    "a million frames of a byte": lambda data: patched(
        patched(patched(data, b"stsz", 4, ">II", 1, 10**6), b"stsc", 12, ">I", 10**6), b"stts", 8, ">I", 10**6
    ),
    "two billion times": lambda data: patched(data, b"stts", 8, ">I", 2**31 - 1),
    "steps of no time": lambda data: patched(data, b"stts", 12, ">I", 0),
    "steps of a century": lambda data: patched(data, b"stts", 12, ">I", 2**31 - 1),
    "steps backwards": lambda data: patched(data, b"stts", 12, ">I", 2**32 - 256),
    "a clock of no ticks": lambda data: patched(data, b"mdhd", 12, ">I", 0),
    "a clock of four billion ticks": lambda data: patched(data, b"mdhd", 12, ">I", 2**32 - 1),
    "no width and height": lambda data: patched(patched(data, b"tkhd", 76, ">II", 0, 0), b"avc1", 24, ">HH", 0, 0),
    "all width and height": lambda data: patched(data, b"avc1", 24, ">HH", 65_535, 65_535),
    "a flat matrix": lambda data: patched(data, b"tkhd", 40, ">9i", *[0] * 9),
    "a matrix of extremes": lambda data: patched(data, b"tkhd", 40, ">9i", *[-(2**31)] * 9),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_headers(tmp_path: Path, what: str) -> None:
    """Each ends soon, as a plan or as an error with a reason, and nothing is allocated for what is merely claimed."""
    (tmp_path / "x.mp4").write_bytes(HOSTILE[what](mp4(tmp_path)))
    began = time.monotonic()
    tracemalloc.start()
    try:
        info = probe(tmp_path / "x.mp4")
        planned = plan(info, MediaRef(info.path, "video"), Budget(), PatchFactors(16))
        assert 1 <= planned.frames <= info.frames <= 20 and all(math.isfinite(moment) for moment in planned.times)
        assert planned.sampled_fps >= 0 and math.isfinite(planned.sampled_fps)
    except MediaError as error:
        assert error.code in ("damaged", "unsupported") and len(error.reason) <= 200
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert time.monotonic() - began < 5 and peak < 2**22


def test_the_scan_ends_at_more_packets_than_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packet = SimpleNamespace(size=1, is_discard=False, pts=0, dts=0, duration=1, is_keyframe=True)
    endless = SimpleNamespace(demux=lambda _: iter(lambda: packet, None))
    stream = SimpleNamespace(codec_context=SimpleNamespace(name="h264"))
    (tmp_path / "x").write_bytes(bytes(1000))
    with pytest.raises(MediaError, match=r"damaged: its index names more frames than the file has bytes \(1000\)"):
        list(probe_module._shown(str(tmp_path / "x"), endless, stream))
    monkeypatch.setattr(probe_module, "MAX_FRAMES", 100)
    with pytest.raises(MediaError, match="unsupported: more than 100 frames"):
        list(probe_module._shown(str(tmp_path / "x"), endless, stream))


def test_too_many_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evr1_core.media.image.MAX_PIXELS", 3000)
    with pytest.raises(MediaError, match="unsupported: 64x48 pixels; at most 3,000 are decoded"):
        probe(clip("n31.mp4"))


@pytest.mark.parametrize(("code", "name"), [(b"evc1", "evc"), (b"xyz1", "xyz1")])
def test_a_codec_without_a_decoder_is_named(tmp_path: Path, code: bytes, name: str) -> None:
    (tmp_path / "x.mp4").write_bytes(Path(clip("n31.mp4")).read_bytes().replace(b"avc1", code))
    with pytest.raises(MediaError, match=f"unsupported: codec {name} has no decoder here"):
        probe(tmp_path / "x.mp4")


@pytest.mark.parametrize("name", ["x.mp4", "x.mkv", "x.avi"])
def test_titles_in_other_encodings(tmp_path: Path, name: str) -> None:
    def prepare(stream: Any) -> None:
        stream.metadata["title"] = "XXtitleXX"
        stream.container.metadata["title"] = "XXtitleXX"

    whole = Path(write_clip(tmp_path / name, 20, "mpeg4" if name == "x.avi" else "libx264", prepare=prepare)).read_bytes()
    assert b"XXtitleXX" in whole
    (tmp_path / name).write_bytes(whole.replace(b"XXtitleXX", "Größe Überx".encode("latin-1")[:9]))
    assert probe(tmp_path / name).frames == 20


def test_a_broken_first_packet_leaves_the_headers_readable(tmp_path: Path) -> None:
    """Size and clock are known; how much can be decoded is for the decoder to say."""
    whole = Path(write_clip(tmp_path / "whole.mp4", 20, options={"g": "5", "bf": "0"})).read_bytes()
    with av.open(str(tmp_path / "whole.mp4")) as container:
        first = next(container.demux(video=0))
        assert first.pos is not None
        start, size = first.pos, first.size
    (tmp_path / "x.mp4").write_bytes(whole[:start] + bytes(size) + whole[start + size :])
    info = probe(tmp_path / "x.mp4")
    assert (info.frames, info.width, info.height) == (20, 64, 48)
    (tmp_path / "none.mp4").write_bytes(whole[:start] + b"\xff" * (whole.index(b"moov") - 4 - start) + whole[whole.index(b"moov") - 4 :])
    with pytest.raises(MediaError, match="damaged"):
        probe(tmp_path / "none.mp4")


@pytest.mark.parametrize("kind", ["vfr.mp4", "vfr.mkv", "vfr.mov", "fragments", "fragments of a second", "avi", "webm"])
def test_a_stopped_download_is_not_used_in_part(tmp_path: Path, kind: str) -> None:
    """Where no index counts the frames, those that are there look like a whole video: the length that the container promises tells."""
    name, how = KINDS.get(kind, (kind, {"milliseconds": UNEVEN, "container": {"movflags": "faststart"}}))
    path = Path(write_clip(tmp_path / name, 8, **how))
    assert missing_bytes(str(path)) == 0 and probe(path).frames == 8
    path.write_bytes(path.read_bytes()[:-40])
    assert missing_bytes(str(path)) == 40
    # AVI keeps an index at its end: without it, the packets are read.
    with pytest.raises(MediaError, match="damaged: the end of the file is missing: 40 bytes"):
        probe(path)


@pytest.mark.parametrize("name", ["x.ts", "x.h264", "x.gif", "nothing"])
def test_files_that_promise_no_length(tmp_path: Path, name: str) -> None:
    (tmp_path / "nothing").write_bytes(b"\x1aE\xdf\xa3")
    if name != "nothing":
        codec, prepare = ("gif", lambda stream: setattr(stream, "pix_fmt", "rgb8")) if name == "x.gif" else ("libx264", None)
        write_clip(tmp_path / name, 4, codec, prepare=prepare)
    assert missing_bytes(str(tmp_path / name)) == 0


@example(b"\x01" + bytes([254] * 7) + bytes(8), b"\x1aE\xdf\xa3")
@given(st.binary(max_size=64), st.sampled_from([b"\x1aE\xdf\xa3", b"RIFF", b"\0\0\0\x08ftyp", b"\0\0\0\x01mdat", b""]))
def test_any_bytes_have_an_extent(tmp_path_factory: pytest.TempPathFactory, data: bytes, head: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "extent"
    path.write_bytes(head + data)
    assert missing_bytes(str(path)) >= 0


def test_outcomes_of_bad_files_are_distinct(tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "page.mp4").write_text("<!doctype html><title>404</title>" * 100)
    (tmp_path / "noise.mp4").write_bytes(np.random.default_rng(0).bytes(5000))
    (tmp_path / "cut.mp4").write_bytes(mp4(tmp_path)[:900])
    Image.new("RGB", (8, 8)).save(tmp_path / "picture.mp4", format="PNG")
    expected = {
        "absent.mp4": ("missing", "No such file"), "empty.mp4": ("empty", "0 bytes"), "page.mp4": ("damaged", "not a video file"),
        "noise.mp4": ("damaged", "not a video file"), "cut.mp4": ("damaged", "header is incomplete"),
        "picture.mp4": ("unsupported", "this is an image (PNG)"),
    }  # fmt: skip
    for name, (code, reason) in expected.items():
        with pytest.raises(MediaError) as caught:
            probe(tmp_path / name, "video")
        assert caught.value.code == code and reason in caught.value.reason, name
        assert caught.value.path == str(tmp_path / name) and len(caught.value.reason) <= 200


@pytest.mark.parametrize("name", ["with space #1 %20?.mp4", "Größe '\".mp4", os.fsdecode(b"\xff.mp4"), "file:x.mp4"])
def test_any_file_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(clip("n31.mp4"), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert probe(name).frames == probe(tmp_path / name).frames == 31
    with pytest.raises(MediaError, match="missing: embedded null"):
        probe("a\0b.mp4")


def test_an_avif_is_an_image_though_its_container_is_that_of_a_video(tmp_path: Path) -> None:
    Image.new("RGB", (64, 48), (200, 100, 50)).save(tmp_path / "x.avif")
    assert probe(tmp_path / "x.avif").kind == "image"
    assert np.abs(decode_image(tmp_path / "x.avif", 48, 64)[0, :, 20, 20].astype(int) - [200, 100, 50]).max() < 6
    with pytest.raises(MediaError, match=r"this is an image \(AVIF\)"):
        probe(tmp_path / "x.avif", "video")


def test_a_cut_inside_the_index_is_damage(tmp_path: Path) -> None:
    """MP4 with its index at the end, all of whose sample tables come before `udta`: the file isn't of a kind that can't be read."""
    whole = Path(write_clip(tmp_path / "whole.mp4", 30)).read_bytes()
    for length in range(whole.index(b"moov"), whole.index(b"stco"), 40):
        (tmp_path / "cut.mp4").write_bytes(whole[:length])
        with pytest.raises(MediaError) as caught:
            probe(str(tmp_path / "cut.mp4"))
        assert caught.value.code == "damaged", f"{length} of {len(whole)}: {caught.value}"


def test_streams_that_appear_in_the_middle() -> None:
    """The library fails on them after the last packet; the video has been read by then."""

    def demux(_: Any) -> Any:
        yield from range(3)
        raise IndexError("list index out of range")

    assert list(packets(SimpleNamespace(demux=demux), None)) == [0, 1, 2]
