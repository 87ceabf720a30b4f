"""Spatio-temporal video grounding on VidSTG (arXiv 2001.06891): when is it, and where at each time.

Default is the STVG part of ST-Align-Benchmark (LLaVA-ST, arXiv 2501.08282), 2,000 sentences of VidSTG's validation split;
VidSTG's own splits are variants and need the box annotations of VidOR beside them.

Both were made for models with tokens for times and boxes. Here times are seconds of the file, boxes 0 to 1000, and gold
boxes stand at whole seconds: the annotated frame that is nearest, at most half a second away. A model sees a part of the file only, and
not every family writes the times of the file beside its frames: the question says which seconds are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.release import Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import MediaError, RequestError
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy_of, mean
from evr1_core.media.probe import probe
from evr1_core.types import MediaRef, Sample, Wording

LIMITS = (0.3, 0.5, 0.7)
NOMINAL_FPS = 30.0
"""For a record without a rate whose file is missing: it can't be asked, so its times don't matter."""

PROMPT = (
    "{problem}\nPlease find the time period of the event in the video, in seconds, and the box of the object at every whole second in it. "
    'Answer in JSON: {{"time": [start, end], "boxes": {{"second": [x1, y1, x2, y2], ...}}}}, with coordinates from 0 to 1000, '
    "0 at the left and at the top, 1000 at the right and at the bottom."
)
SHOWN = "The part from {:.2f} to {:.2f} seconds of the video is shown; times count from the start of the whole video."
"""Part of the question wherever that part doesn't begin with the video: the clock of a model may begin at its first frame."""
Boxes = Mapping[int, Sequence[float]]
"""Frame -> [x1, y1, x2, y2] in pixels."""


class STVG(Release):
    variants = ("st-align", "vidstg-val", "vidstg-test")
    converted = ("stvg.json",)

    def read(self, root: Path, variant: str) -> list[Sample]:
        if variant == "st-align":
            path = files.find(root, "stvg.json", "*/stvg.json")
            return files.each(path, files.rows(path)[:2000], lambda row, number: self._aligned(path.parent, path, number, row))
        split = variant.removeprefix("vidstg-")
        path = files.find(root, f"{split}_annotations.json", f"annotations/{split}_annotations.json")
        return self._vidstg(root, path)

    def _aligned(self, root: Path, path: Path, number: int, row: dict[str, Any]) -> Sample:
        """A record of ST-Align: frames in `time_token`, boxes by frame as [x, y, w, h] in `spatial_token`, the part shown in `split`."""
        meta = files.field(row, "meta", path, number)
        first, last = (int(frame) for frame in files.field(meta, "split", path, number))
        video = files.video([root / "sources", root / "videos", root], files.text_of(row, "video_path", path, number))
        fps = float(meta.get("fps") or _fps(video))
        tokens = files.field(meta, "time_token", path, number)
        boxes = {
            int(frame): (x, y, x + width, y + height)
            for frame, (x, y, width, height) in files.field(meta, "spatial_token", path, number)["<bboxes>"].items()
        }
        said = files.field(row, "conversations", path, number)[0]["value"].replace("<video>", "").strip()
        span = (int(tokens["<s>"]), int(tokens["<e>"]))
        size = (files.number_of(meta, "width", path, number), files.number_of(meta, "height", path, number))
        return grounding(f"{number}", said, video, fps, (first, last), span, boxes, _fitting(size, boxes, video), {})

    def _vidstg(self, root: Path, path: Path) -> list[Sample]:
        folder = files.find(root, "vidor", "annotation", "annotations")
        tracks = {file.stem: file for file in sorted(folder.glob("**/*.json")) if file != path}
        videos = {file.stem: file for file in sorted(root.glob("**/*.mp4"))}

        def both(row: dict[str, Any], number: int) -> list[Sample]:
            """The sentences of one relation, in both forms."""
            name = files.text_of(row, "vid", path, number)
            if name not in tracks:
                raise RequestError(
                    f"{path}, record {number}: no box annotation {name}.json below {folder}; they are part of VidOR's release"
                )
            video = str(videos.get(name, root / "videos" / f"{name}.mp4").absolute())
            used, gold = files.field(row, "used_segment", path, number), files.field(row, "temporal_gt", path, number)
            part, span = ((one["begin_fid"], one["end_fid"] - 1) for one in (used, gold))  # ends are exclusive
            fps = files.number_of(row, "fps", path, number)
            size = (files.number_of(row, "width", path, number), files.number_of(row, "height", path, number))
            samples: list[Sample] = []
            for form, key in (("declarative", "captions"), ("interrogative", "questions")):
                for index, sentence in enumerate(files.field(row, key, path, number)):
                    boxes = _track(tracks[name], sentence["target_id"], span)
                    fitting = _fitting(size, boxes, video)
                    told = files.text_of(sentence, "description", path, number)
                    samples.append(grounding(f"{number}-{form}-{index}", told, video, fps, part, span, boxes, fitting, {"form": form}))
            return samples

        return [sample for made in files.each(path, files.rows(path), both) for sample in made]

    def adopt(self, sample: Sample) -> Sample:
        """Its gold boxes are pixels of the file, of which it doesn't give the size; its prompt and all others mean 0 to 1000."""
        size = _displayed(sample.media[0].path)
        return replace(sample, extra={**sample.extra, **frames(size)}) if size else sample

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        return Wording((0, PROMPT.format(problem=sample.problem)))

    def official(self, sample: Sample, text: str) -> Official | None:
        """Official scripts read the tokens of their own models."""
        return None

    def aggregate(self, records: Sequence[Record]) -> Report:
        forms = sorted({str(record.sample.extra.get("form", "all")) for record in records})
        official = {"m_tIoU": mean(records, part("tiou")), "m_vIoU": mean(records, part("viou"))}
        official |= {f"vIoU@{limit}": mean(records, reached("viou", limit)) for limit in LIMITS[:2]}
        tables = {
            "grounding": {
                **official,
                **{f"tIoU@{limit}": mean(records, reached("tiou", limit)) for limit in LIMITS},
                f"vIoU@{LIMITS[2]}": mean(records, reached("viou", LIMITS[2])),
                "half tIoU, half mean box IoU": mean(records, accuracy_of),
            }
        }
        for form in forms if len(forms) > 1 else ():
            some = [record for record in records if record.sample.extra.get("form") == form]
            tables[form] = {"m_tIoU": mean(some, part("tiou")), "m_vIoU": mean(some, part("viou"))}
        asked = [record for record in records if isinstance(record.sample.answer, dict) and record.sample.answer.get("boxes")]
        return Report(mean(asked, lambda record: part("viou")(record) or 0.0), "m_vIoU", tables=tables, official=official)

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        bare = [sample.id for sample in samples if isinstance(sample.answer, dict) and not sample.answer.get("boxes")]
        return [f"{len(bare)} events hold no annotated whole second: only their time is scored"] if bare else []


def grounding(
    name: str,
    problem: str,
    video: str,
    fps: float,
    part: tuple[int, int],
    span: tuple[int, int],
    boxes: Boxes,
    size: tuple[float, float],
    extra: Mapping[str, Any],
) -> Sample:
    """A question from frame numbers (ends inclusive): `part` is what the model sees, `span` the event. ValueError for a rate of 0."""
    if not fps > 0:
        raise ValueError(f"the video has {fps} frames per second")
    shown = (part[0] / fps, (part[1] + 1) / fps)
    return Sample(
        id=name,
        problem=f"{problem}\n{SHOWN.format(*shown)}" if part[0] else problem,
        answer={"time": [span[0] / fps, (span[1] + 1) / fps], "boxes": at_seconds(boxes, span, fps)},
        problem_type="spatial-temporal-grounding",
        media=(MediaRef(video, "video", *shown),),
        source="stvg",
        extra={**frames(size), **extra},
    )


def frames(size: tuple[float, float]) -> dict[str, Any]:
    """Columns by which answers from 0 to 1000 are brought to gold boxes in pixels."""
    return {"width": size[0], "height": size[1], "box_frame": "pixel", "answer_box_frame": "thousand"}


def at_seconds(boxes: Boxes, span: tuple[int, int], fps: float) -> dict[str, list[float]]:
    """Second -> the box of the nearest annotated frame within half a second, for the whole seconds of the event."""
    found: dict[str, list[float]] = {}
    for second in range(-int(-span[0] // fps), int(span[1] / fps) + 1):
        near = min(boxes, key=lambda frame: abs(frame - second * fps), default=None)
        if near is not None and abs(near - second * fps) <= fps / 2:
            found[str(second)] = [float(side) for side in boxes[near]]
    return found


def _fitting(size: tuple[float, float], boxes: Boxes, video: str) -> tuple[float, float]:
    """The size that a record names, or where boxes lie outside of it (portrait videos) that of the file, if they are inside that one."""
    right, below = (max((box[side] for box in boxes.values()), default=0.0) for side in (2, 3))
    if right <= size[0] and below <= size[1]:
        return size
    found = _displayed(video)
    return found if found and right <= found[0] and below <= found[1] else size


@cache
def _displayed(video: str) -> tuple[float, float] | None:
    """Width and height of a file; None where it can't be read: it will be excluded, with this reason."""
    try:
        found = probe(video, "video")
    except MediaError:
        return None
    return found.width, found.height


@cache
def _fps(video: str) -> float:
    try:
        return probe(video, "video").fps
    except MediaError:
        return NOMINAL_FPS  # it will be excluded, with this reason


@cache
def _trajectories(path: Path) -> list[Any]:
    return files.load(path)["trajectories"]


def _track(path: Path, target: int, span: tuple[int, int]) -> dict[int, tuple[float, ...]]:
    """Boxes of one object of VidOR over the frames of the event."""
    frames = _trajectories(path)
    return {
        frame: tuple(one["bbox"][side] for side in ("xmin", "ymin", "xmax", "ymax"))
        for frame in range(span[0], min(span[1] + 1, len(frames)))
        for one in frames[frame]
        if one["tid"] == target
    }


def part(name: str) -> Callable[[Record], float | None]:
    """A part of the score; 0 where there is none because the answer was unreadable."""

    def value(record: Record) -> float | None:
        if record.accuracy is None or record.score is None:
            return None
        if name == "viou" and isinstance(record.sample.answer, dict) and not record.sample.answer.get("boxes"):
            return None  # nothing to compare with
        return float(record.score.parts.get(name, 0.0))

    return value


def reached(name: str, limit: float) -> Callable[[Record], float | None]:
    """1 where a part of the score is at least `limit`."""
    value = part(name)

    def counted(record: Record) -> float | None:
        found = value(record)
        return None if found is None else float(found >= limit)

    return counted
