"""Where a video begins: pictures that no decoder can show are no frames, and broken ones are damage."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from media_clips import write_clip

from evr1_core.errors import MediaError
from evr1_core.media.decode import decode_video
from evr1_core.media.probe import probe


def remux(source: str, path: Path, first: int) -> str:
    """The packets of `source` from number `first` on, with its clock beginning at 0."""
    with av.open(source) as whole, av.open(str(path), "w") as cut:
        stream = whole.streams.video[0]
        copy = cut.add_stream_from_template(stream)
        packets = [packet for packet in whole.demux(stream) if packet.size][first:]
        begin = min(packet.pts for packet in packets if packet.pts is not None)
        for packet in packets:
            assert packet.pts is not None
            packet.pts, packet.dts, packet.stream = packet.pts - begin, None if packet.dts is None else packet.dts - begin, copy
            cut.mux(packet)
    return str(path)


@pytest.mark.parametrize("name", ["x.mkv", "x.ts"])
@pytest.mark.parametrize("late", [0, 3])
def test_a_recording_that_begins_inside_a_group_of_pictures(tmp_path: Path, name: str, late: int) -> None:
    """What no decoder can show is no frame of the video: it begins with the first one that can be seen. The groups are open, so this also
    holds for a cut at a key frame (`late` 0)."""
    source = write_clip(tmp_path / "whole.mkv", 40, "mpeg2video", options={"g": "8", "bf": "2"}, prepare=twenty_five)
    with av.open(source) as whole:
        packets = [packet for packet in whole.demux(video=0) if packet.size]
    keys = [at for at, packet in enumerate(packets) if packet.is_keyframe]
    begin = keys[2] if late else keys[1]
    left = sum((packet.pts or 0) >= (packets[begin].pts or 0) for packet in packets[begin:])
    info = probe(remux(source, tmp_path / name, keys[1] + late))
    assert (info.frames, info.constant, info.fps) == (left, True, 25.0) and info.duration == pytest.approx(left / 25)
    whole_info = probe(source)
    same = range(whole_info.frames - left, whole_info.frames)
    cut = decode_video(info, range(left), 48, 64)
    np.testing.assert_array_equal(cut, decode_video(whole_info, same, 48, 64))


def twenty_five(stream: Any) -> None:
    stream.codec_context.framerate, stream.codec_context.time_base = Fraction(25), Fraction(1, 25)


@pytest.mark.parametrize("codec", ["mpeg2video", "libx264", "mpeg4"])
@pytest.mark.parametrize("kept", [0, 20])
def test_a_first_packet_that_is_damaged_is_no_late_beginning(tmp_path: Path, codec: str, kept: int) -> None:
    path = Path(write_clip(tmp_path / "x.mkv", 40, codec, options={"g": "8", "bf": "0"}, prepare=twenty_five))
    with av.open(str(path)) as container:
        first = bytes(next(container.demux(video=0)))
    path.write_bytes(path.read_bytes().replace(first, first[:kept].ljust(len(first), b"\xff")))
    info = probe(str(path))
    assert info.frames == 40
    with pytest.raises(MediaError, match="of 40 frames could be decoded"):
        decode_video(info, range(4), 48, 64)
