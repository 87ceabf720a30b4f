"""Plans of data: counts, what is kept and when it is used again, the rule that makes media smaller; with a stand-in for model and store."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from media_clips import clip

from evr1_core.data.lengths import Fitted, Lengths, Row
from evr1_core.data.plan import DataPlan, plan_rows
from evr1_core.data.plan_file import KEPT, PlanFile, Stored, plan_key
from evr1_core.data.plan_report import distribution, report
from evr1_core.data.prompts import PromptBuilder
from evr1_core.data.shrink import changes
from evr1_core.errors import MediaError
from evr1_core.media.plan import Plan, plan
from evr1_core.media.probe import MediaInfo
from evr1_core.media.store import MediaStore
from evr1_core.policy.load import load_adapter
from evr1_core.types import Budget, ImageBudget, MediaRef, PatchFactors, Sample, VideoBudget

FACTORS = PatchFactors(pixels=32)


class Adapter:
    """One token per character and per cell, five more per temporal patch; `#` is the place of a medium."""

    factors = FACTORS
    special_texts = frozenset({"<|end|>"})

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.counted = 0

    def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        return "".join(item.get("text", "#") for turn in messages for item in turn["content"]), ""

    def encode(self, text: str, clips: Sequence[Any]) -> Any:
        raise AssertionError("planning builds no prompt")

    def plan_tokens(self, text: str, plans: Sequence[Plan]) -> int:
        assert text.count("#") == len(plans)
        self.counted += 1
        return len(text) - len(plans) + sum(map(self.tokens, plans))

    def tokens(self, made: Plan) -> int:
        cells = made.height // 32 * (made.width // 32)
        return cells if made.kind == "image" else -(-made.frames // 2) * (cells + 5)


class Store:
    """A medium is a JSON file with its frames, height and width."""

    def __init__(self) -> None:
        self.looked: list[str] = []

    def load_many(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("planning loads nothing")

    def plan_many(self, refs: Sequence[MediaRef], budget: Any, factors: PatchFactors, workers: int) -> list[Plan | MediaError]:
        return [self.plan(ref, limits) for ref, limits in zip(refs, budget, strict=True)]

    def plan(self, ref: MediaRef, budget: Budget) -> Plan | MediaError:
        self.looked.append(Path(ref.path).name)
        try:
            frames, height, width = json.loads(Path(ref.path).read_text())
        except FileNotFoundError:
            return MediaError(ref.path, "missing", "no such file")
        except ValueError:
            return MediaError(ref.path, "damaged", "no header")
        return plan(info(ref.path, ref.kind, frames, height, width), ref, budget, FACTORS)


def info(path: str, kind: Any, frames: int, height: int, width: int) -> MediaInfo:
    if kind == "image":
        return MediaInfo(path, "image", width, height, "png", "png")
    return MediaInfo(path, "video", width, height, "h264", "mp4", frames=frames, fps=2.0, duration=frames / 2, stamps=np.arange(frames))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, size in {"a.mp4": (20, 320, 320), "b.mp4": (6, 64, 96), "c.png": (1, 96, 64)}.items():
        (tmp_path / name).write_text(json.dumps(size))
    (tmp_path / "broken.mp4").write_text("<html>")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_text("weights")
    (tmp_path / "own.j2").write_text("{{ problem }} {{ hint }}")
    return tmp_path


def ref(folder: Path, name: str) -> MediaRef:
    return MediaRef(str(folder / name), "image" if name.endswith("png") else "video")


def rows(folder: Path) -> list[Sample]:
    media = [("a.mp4",), ("a.mp4", "b.mp4"), ("c.png", "a.mp4"), (), ("broken.mp4",), ("none.mp4", "a.mp4"), ("b.mp4",)]
    refs = [tuple(ref(folder, name) for name in names) for names in media]
    hints = ["x"] * 6 + ["<|end|>"]
    return [Sample(f"r{at}", "Why?", "A", "qa", one, extra={"hint": hint}) for at, (one, hint) in enumerate(zip(refs, hints, strict=True))]


def builder(folder: Path, **options: Any) -> PromptBuilder:
    budget = options.pop("budget", Budget())
    return PromptBuilder(Adapter(folder / "model"), Store(), budget, str(folder / "own.j2"), **{"bad_rows": "exclude", **options})


def looked(made: PromptBuilder) -> list[str]:
    return sorted(made.store.looked)  # type: ignore[attr-defined]


# Counting --------------------------------------------------------------------------------------------------------


def test_every_row_has_its_numbers_or_its_fault_and_each_medium_is_looked_at_once(folder: Path) -> None:
    made = builder(folder)
    planned = plan_rows(rows(folder), made)
    # 6 characters of text; a.mp4: 10 patches of 100 cells and 5; b.mp4: 3 of 6 and 5; c.png: 6 cells.
    assert [(row.id, row.tokens, row.vision, row.frames) for row in planned.rows[:4]] == [
        ("r0", 6 + 1050, 1000, 20),
        ("r1", 6 + 1050 + 33, 1018, 26),
        ("r2", 6 + 6 + 1050, 1006, 20),
        ("r3", 6, 0, 0),
    ]
    assert planned.rows[2].sizes == (("image", 1, 96, 64), ("video", 20, 320, 320))
    assert [(one.sample_id, one.reason) for one in planned.exclusions] == [
        ("r4", "damaged_media"),
        ("r5", "missing_media"),
        ("r6", "special_token"),
    ]
    assert looked(made) == ["a.mp4", "b.mp4", "broken.mp4", "c.png", "none.mp4"] and planned.media == 5
    for row, sample in zip(planned.rows[:4], rows(folder), strict=False):
        assert made.plan_tokens(sample) == row.tokens


def test_a_row_one_token_over_the_limit_is_left_out_with_the_numbers(folder: Path) -> None:
    samples = rows(folder)[:1]
    assert not plan_rows(samples, builder(folder, max_prompt_tokens=1056)).exclusions
    [fault] = plan_rows(samples, builder(folder, max_prompt_tokens=1055)).exclusions
    assert fault.reason == "too_long" and fault.detail.startswith("1056 prompt tokens, allowed are 1055;")


def test_no_rows(folder: Path) -> None:
    planned = plan_rows([], builder(folder), folder / "cache")
    assert planned.rows == [] and report(planned, [], 10, Budget(), FACTORS)["tokens"] == {}


# Kept plans ------------------------------------------------------------------------------------------------------


def planned_again(folder: Path, samples: list[Sample], **options: Any) -> tuple[DataPlan, PromptBuilder]:
    made = builder(folder, **options)
    return plan_rows(samples, made, folder / "cache"), made


def test_the_second_time_nothing_is_read_but_what_could_not_be_used(folder: Path) -> None:
    samples = rows(folder)
    first, _ = planned_again(folder, samples)
    file = next((folder / "cache/plans").iterdir())
    before = file.stat().st_mtime_ns
    again, made = planned_again(folder, samples)
    assert again.rows == first.rows and again.planned == 2
    assert looked(made) == ["a.mp4", "broken.mp4", "none.mp4"], "a.mp4 is shown by a row that has to be planned anew"
    assert file.stat().st_mtime_ns == before, "the same plan is not written twice"
    good = samples[:4]
    planned_again(folder, good)
    again, made = planned_again(folder, good)
    assert again.planned == 0 and not looked(made) and made.adapter.counted == 0  # type: ignore[attr-defined]


def test_rows_of_a_changed_medium_are_planned_again(folder: Path) -> None:
    samples = rows(folder)
    planned_again(folder, samples)
    (folder / "b.mp4").write_text(json.dumps((6, 64, 64)))
    (folder / "broken.mp4").write_text(json.dumps((6, 64, 64)))
    (folder / "none.mp4").write_text(json.dumps((6, 64, 64)))
    again, made = planned_again(folder, samples)
    assert [row.tokens for row in again.rows[1:]] == [6 + 1050 + 27, 6 + 6 + 1050, 6, 6 + 27, 6 + 27 + 1050, None]
    assert "c.png" not in looked(made) and again.planned == 4
    (folder / "a.mp4").unlink()
    again, _ = planned_again(folder, samples)
    assert [row.reason for row in again.rows] == ["missing_media"] * 3 + ["", "", "missing_media", "special_token"]


def test_everything_that_shapes_the_numbers_is_in_the_key(folder: Path) -> None:
    samples = rows(folder)
    key = plan_key(samples, builder(folder))
    assert key == plan_key(samples, builder(folder))
    same = [
        plan_key([replace(samples[0], answer="B", offline=("x",)), *samples[1:]], builder(folder)),
        plan_key(samples, builder(folder, max_prompt_tokens=9)),
        plan_key(samples, builder(folder, workers=7)),
    ]
    assert set(same) == {key}, "what no prompt shows, the limit and the workers don't count"
    others = [
        plan_key(samples[:-1], builder(folder)),
        plan_key([replace(samples[0], problem="How?"), *samples[1:]], builder(folder)),
        plan_key([replace(samples[0], extra={"hint": "y"}), *samples[1:]], builder(folder)),
        plan_key([replace(samples[0], media=(replace(samples[0].media[0], start=1.0),)), *samples[1:]], builder(folder)),
        plan_key(samples, builder(folder, system="Be brief.")),
        plan_key(samples, builder(folder, budget=Budget(VideoBudget(fps=1)))),
        plan_key(samples, builder(folder, overlong="shrink", max_prompt_tokens=9)),
        plan_key(samples, builder(folder, overlong="shrink", max_prompt_tokens=10)),
    ]
    for name in ("own.j2", "model/tokenizer.json"):
        with (folder / name).open("a") as file:
            file.write(" ")
        others.append(plan_key(samples, builder(folder)))
    (folder / "model/model.safetensors").write_text("other weights")
    assert plan_key(samples, builder(folder)) == others[-1]
    assert len({key, *others}) == len(others) + 1


@pytest.mark.parametrize("harm", ["cut", "empty", "changed", "another", "folder"])
def test_a_torn_or_foreign_file_is_a_miss(folder: Path, harm: str) -> None:
    samples = rows(folder)[:4]
    first, _ = planned_again(folder, samples)
    [file] = (folder / "cache/plans").iterdir()
    content = file.read_bytes()
    if harm == "folder":
        file.unlink()
        file.mkdir()
    elif harm == "another":
        PlanFile(folder / "x", "y").write(Stored([], {}))
        file.write_bytes((folder / "x/y.jsonl").read_bytes())
    else:
        file.write_bytes({"cut": content[:-80], "empty": b"", "changed": content.replace(b'"r0"', b'"r9"')}[harm])
    again, made = planned_again(folder, samples)
    assert again.rows == first.rows and again.planned == 4 and len(looked(made)) == 3
    assert bool(again.trouble) == (harm == "folder")
    assert not list((folder / "cache/plans").glob(".writing*"))
    if harm != "folder":
        assert planned_again(folder, samples)[0].planned == 0


def test_a_full_disk_is_told_and_does_no_harm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    planned, _ = planned_again(folder, rows(folder))
    assert "could not be kept for the next time (No space left on device)" in planned.trouble and len(planned.rows) == 7
    assert not list((folder / "cache/plans").iterdir())


def test_the_oldest_plans_go_first(folder: Path) -> None:
    for at in range(KEPT + 3):
        file = PlanFile(folder / "cache", f"{at:03}")
        file.write(Stored([], {}))
        os.utime(file.path, (at, at))
    PlanFile(folder / "cache", "last").write(Stored([], {}))
    left = sorted(path.stem for path in (folder / "cache").iterdir())
    assert len(left) == KEPT and left[0] == "004" and left[-1] == "last"


# Making media smaller --------------------------------------------------------------------------------------------

MEDIA = st.lists(
    st.tuples(st.sampled_from(["image", "video"]), st.integers(1, 60), st.integers(8, 900), st.integers(8, 900)), min_size=1, max_size=4
)


class Sizes(Store):
    """The path of a medium tells its size."""

    def plan(self, ref: MediaRef, budget: Budget) -> Plan:
        frames, height, width = map(int, ref.path.split("x"))
        return plan(info(ref.path, ref.kind, frames, height, width), ref, budget, FACTORS)


@settings(max_examples=150, deadline=None)
@given(media=MEDIA, limit=st.integers(1, 3_000), frames=st.sampled_from([None, 16]), total=st.sampled_from([None, 400_000]))
def test_media_become_as_small_as_needed_and_no_smaller_than_allowed(media: Any, limit: int, frames: Any, total: Any) -> None:
    whole = Budget(VideoBudget(min_frames=3, max_frames=40, frames=frames, total_pixels=total), ImageBudget())
    refs = tuple(MediaRef(f"{count}x{height}x{width}", kind) for kind, count, height, width in media)
    row = Row(50 + sum(6 if ref.kind == "video" else 1 for ref in refs), refs)
    lengths = Lengths(Adapter(Path()), Sizes(), whole, 1)
    [plain], [found] = lengths.measure([row]), lengths.measure([row], limit)
    assert isinstance(plain, Fitted) and isinstance(found, Fitted) and found.full == plain.length.tokens
    budget = found.length.budget
    if plain.length.tokens <= limit:
        assert found == plain and budget == whole
        return
    if found.least is not None:
        assert found.least > limit and budget == whole
        return
    assert found.length.tokens <= limit
    assert budget.video.min_pixels == whole.video.min_pixels <= budget.video.max_pixels <= whole.video.max_pixels
    assert budget.image.min_pixels <= budget.image.max_pixels <= whole.image.max_pixels
    assert budget.video.min_frames <= budget.video.max_frames
    if budget.video.max_frames < whole.video.max_frames:
        assert budget.video.max_pixels == whole.video.min_pixels, "frames go only when pixels can't"
    assert Lengths(Adapter(Path()), Sizes(), whole, 1).measure([row], limit) == [found]
    assert (changes(whole, budget) != "") == (budget != whole)


def test_pixels_first_then_frames_then_the_row_is_left_out(folder: Path) -> None:
    samples = rows(folder)[:3]
    made = builder(folder, overlong="shrink", max_prompt_tokens=600)
    planned = plan_rows(samples, made, folder / "cache")
    assert all(row.tokens is not None and row.tokens <= 600 and not row.reason for row in planned.rows)
    assert planned.rows[1].sizes[1] == ("video", 6, 64, 96), "a small medium is left as it is until the cap reaches it"
    assert planned.shrunk(made.budget)[0] == (
        f"r0: media made smaller, 1056 -> {planned.rows[0].tokens} prompt tokens (video.max_pixels 262144 -> 56300)"
    )
    again = builder(folder, overlong="shrink", max_prompt_tokens=600)
    assert plan_rows(samples, again, folder / "cache").rows == planned.rows and not looked(again)
    assert [again.budget_of(sample) for sample in samples] == [row.budget for row in planned.rows]
    for limit, frames in ((70, 14), (40, 6)):
        row = plan_rows(samples[:1], builder(folder, overlong="shrink", max_prompt_tokens=limit)).rows[0]
        assert row.budget is not None and row.budget.video.max_pixels == 4096 and row.frames == frames and row.tokens is not None
    [fault] = plan_rows(samples[:1], builder(folder, overlong="shrink", max_prompt_tokens=11)).exclusions
    assert fault.detail.startswith("1056 prompt tokens, allowed are 11; with its media as small as they may be it has 12;")


# Reports ---------------------------------------------------------------------------------------------------------


def test_percentiles_are_values_of_the_data() -> None:
    assert distribution(range(1, 201)) == {"min": 1, "5%": 10, "25%": 50, "50%": 100, "75%": 150, "95%": 190, "99%": 198, "max": 200}
    assert set(distribution([7]).values()) == {7} and distribution([]) == {}


def test_a_report_counts_by_type_and_names_a_budget_that_would_do(folder: Path) -> None:
    samples = rows(folder)
    planned = plan_rows(samples, builder(folder, max_prompt_tokens=500))
    found = report(planned, samples, 500, Budget(), FACTORS)
    assert json.loads(json.dumps(found)) and (found["rows"], found["fit"], len(found["too_long"])) == (7, 1, 3)
    assert {reason: len(rows) for reason, rows in found["unusable"].items()} == {"damaged_media": 1, "missing_media": 1, "special_token": 1}
    assert found["data_types"]["video"]["rows"] == 5 and found["data_types"]["video"]["too_long"] == 2
    assert found["problem_types"]["qa"]["unusable"] == 3
    assert found["vision_share"] == round(3024 / 3213, 4)
    pixels = found["fitting_pixels"]
    smaller = Budget(VideoBudget(max_pixels=pixels["video.max_pixels"]), ImageBudget(max_pixels=pixels["image.max_pixels"]))
    fitting = plan_rows(samples, builder(folder, max_prompt_tokens=500, budget=smaller))
    assert not [row for row in fitting.rows if row.reason == "too_long"]
    assert report(plan_rows(samples, builder(folder, max_prompt_tokens=40)), samples, 40, Budget(), FACTORS)["fitting_pixels"] is None


@pytest.mark.parametrize("frames", [32, 22])
def test_a_clip_that_misses_frames_makes_a_shorter_prompt(tmp_path: Path, tiny_directory: Path, frames: int) -> None:
    """`media.tolerate`: planned from headers, 10 of 64 frames can be decoded. Tokens, positions and features are those of what came."""
    adapter = load_adapter(str(tiny_directory))
    store = MediaStore(tmp_path, tolerate=0.9)
    budget = Budget(VideoBudget(frames=frames))
    builder = PromptBuilder(adapter, store, budget, "default", max_prompt_tokens=4000)
    row = Sample("q", "<video>What?", "A", "multiple choice", (MediaRef(clip("trunc_mid.mp4"), "video"),))
    planned = plan_rows([row], builder).rows[0]
    prompts, excluded = builder.build_batch([row])
    [prompt], [loaded] = prompts, prompts[0].clips
    assert planned.frames == frames and not excluded and loaded.missing > 0 and len(loaded.frames) + loaded.missing == frames
    grid = prompt.features["video_grid_thw"][0].tolist()
    assert grid[0] == -(-len(loaded.frames) // 2) and len(prompt.features["pixel_values_videos"]) == grid[0] * grid[1] * grid[2]
    assert planned.tokens is not None and len(prompt.token_ids) < planned.tokens
    assert adapter.position_ids(prompt.token_ids, prompt.features).shape == (3, len(prompt.token_ids))
