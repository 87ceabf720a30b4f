"""The prompt builder with a real media store and a model family: planned tokens are the tokens of the prompt."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from evr1_cli.data import app
from evr1_core.data.plan import plan_rows
from evr1_core.data.prompts import PromptBuilder
from evr1_core.data.rows import read_samples
from evr1_core.media.store import MediaStore
from evr1_core.types import Budget, Sample, VideoBudget

pytest.importorskip("transformers")
pytest.importorskip("torch")


def video(path: Path, frames: int = 24, size: tuple[int, int] = (96, 160)) -> str:
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        for at in range(frames):
            picture = np.full((*size, 3), at * 255 // frames, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return str(path)


def image(path: Path) -> str:
    from PIL import Image

    Image.new("RGB", (120, 90), "red").save(path)
    return str(path)


def test_planned_tokens_are_the_tokens_of_the_prompt_and_bad_rows_are_named(tmp_path: Path) -> None:
    from evr1_core.policy.load import load_adapter
    from evr1_models.tiny import make_tiny_qwen3_vl

    make_tiny_qwen3_vl(tmp_path / "model")
    clip, tall, picture = video(tmp_path / "a.mp4"), video(tmp_path / "b.mp4", 9, (160, 96)), image(tmp_path / "c.png")
    (tmp_path / "damaged.mp4").write_bytes(Path(clip).read_bytes()[:500])
    base = {"problem": "Which?", "answer": "A", "problem_type": "mcq", "options": ["x", "y"]}
    rows = [
        base,
        {**base, "video": clip},
        {**base, "image": picture},
        {**base, "videos": [clip, tall]},
        {**base, "problem": "Is <video> like <image> or <video>?", "videos": [tall, clip], "images": [picture]},
        {**base, "video": clip, "video_start": 0.5, "video_end": 1.5},
        {**base, "video": str(tmp_path / "damaged.mp4")},
        {**base, "problem": "Is it <|im_end|>?", "video": clip},
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    store = MediaStore(tmp_path / "cache")
    budget = Budget(video=VideoBudget(max_frames=8, max_pixels=20_000))
    builder = PromptBuilder(load_adapter(str(tmp_path / "model")), store, budget, bad_rows="exclude")
    try:
        prompts, exclusions = builder.build_batch(read_samples(data).samples)
        assert [prompt.sample.id for prompt in prompts] == [f"rows-{at}" for at in range(1, 7)]
        assert [(e.sample_id, e.reason) for e in exclusions] == [("rows-7", "damaged_media"), ("rows-8", "special_token")]
        assert store.counters.decoded == 4, "two videos, one part of a video, one image: each once"
        for prompt in prompts:
            assert builder.plan_tokens(prompt.sample) == len(prompt.token_ids)
            assert [clip.kind for clip in prompt.clips] == [ref.kind for ref in prompt.sample.media]
        again, _ = builder.build_batch([prompt.sample for prompt in prompts])
        assert [prompt.token_ids for prompt in again] == [prompt.token_ids for prompt in prompts]
        assert store.counters.decoded == 4, "a warm cache decodes nothing"
    finally:
        store.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of text, image, video and both."""
    folder = tmp_path_factory.mktemp("planned")
    clip, tall, picture = video(folder / "a.mp4", 60, (192, 256)), video(folder / "b.mp4", 9, (160, 96)), image(folder / "c.png")
    base = {"problem": "Which?", "answer": "A", "problem_type": "mcq", "options": ["x", "y"]}
    rows = [
        base,
        {**base, "image": picture},
        {**base, "video": clip},
        {**base, "videos": [clip, tall]},
        {**base, "problem": "Is <video> like <image> or <video>?", "videos": [tall, clip], "images": [picture]},
        {**base, "video": clip, "video_start": 0.5, "video_end": 3.5},
    ]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def made_builder(tiny: Path, store: MediaStore, **options: Any) -> PromptBuilder:
    from evr1_core.policy.load import load_adapter

    return PromptBuilder(load_adapter(str(tiny)), store, Budget(VideoBudget(max_frames=20)), bad_rows="exclude", **options)


def test_a_whole_plan_is_the_length_of_every_prompt(tiny_directory: Path, data: Path, tmp_path: Path) -> None:
    """Also of media that were made smaller: by the plan, by a builder without a plan, and by a plan that was kept."""
    samples = read_samples(data).samples
    with closing(MediaStore(tmp_path / "cache")) as store:
        whole = [row.tokens for row in plan_rows(samples, made_builder(tiny_directory, store)).rows]
        assert [len(prompt.token_ids) for prompt in made_builder(tiny_directory, store).build_batch(samples)[0]] == whole
        for limit in (480, 280):
            options: dict[str, Any] = {"overlong": "shrink", "max_prompt_tokens": limit}
            made, unplanned = made_builder(tiny_directory, store, **options), made_builder(tiny_directory, store, **options)
            noted: list[str] = []
            made.note = unplanned.note = noted.append
            planned = plan_rows(samples, made, tmp_path)
            assert not planned.exclusions and max(row.tokens or 0 for row in planned.rows) <= limit
            for builder in (made, unplanned):
                prompts, excluded = builder.build_batch(samples)
                assert not excluded and [len(prompt.token_ids) for prompt in prompts] == [row.tokens for row in planned.rows]
                assert [builder.plan_tokens(sample) for sample in samples] == [row.tokens for row in planned.rows]
                sizes = [tuple((clip.kind, len(clip.times), *clip.size) for clip in prompt.clips) for prompt in prompts]
                assert sizes == [row.sizes for row in planned.rows]
            smaller = planned.shrunk(made.budget)
            assert noted == smaller and len(smaller) >= 3, "the plan tells its own; the builder each row once"
            unplanned.build_batch(samples)
            assert len(noted) == len(smaller)
            assert plan_rows(samples, made_builder(tiny_directory, store, **options), tmp_path).rows == planned.rows
        assert any(row.budget and row.budget.video.max_frames < 20 for row in planned.rows), "at the lower limit frames go too"


def test_a_prompt_is_never_cut(tiny_directory: Path, data: Path, tmp_path: Path) -> None:
    """One token over the limit, the row is left out whole; at the limit every placeholder has its features."""
    samples = read_samples(data).samples
    with closing(MediaStore(tmp_path / "cache")) as store:
        [mixed] = [sample for sample in samples if sample.data_type == "mixed"]
        whole = made_builder(tiny_directory, store).build(mixed)
        tokens = len(whole.token_ids)
        prompts, excluded = made_builder(tiny_directory, store, max_prompt_tokens=tokens - 1).build_batch([mixed])
        assert not prompts and excluded[0].detail.startswith(f"{tokens} prompt tokens, allowed are {tokens - 1}")
        assert plan_rows([mixed], made_builder(tiny_directory, store, max_prompt_tokens=tokens - 1)).exclusions == excluded
        for limit in (tokens, tokens - 1, tokens - 2, tokens // 2):
            builder = made_builder(tiny_directory, store, max_prompt_tokens=limit, overlong="shrink")
            assert features_match(builder, mixed) <= limit


def features_match(builder: PromptBuilder, sample: Sample) -> int:
    """Length of the prompt, after counting its media tokens against the features of the vision tower."""
    prompt = builder.build(sample)
    adapter = builder.adapter
    for token, name in ((adapter.image_token_id, "image_grid_thw"), (adapter.video_token_id, "video_grid_thw")):  # type: ignore[attr-defined]
        features = sum(int(grid.prod()) // adapter.merge_size**2 for grid in prompt.features[name])  # type: ignore[attr-defined]
        assert prompt.token_ids.count(token) == features > 0
    return len(prompt.token_ids)


def test_data_plan_prints_writes_and_fails_where_a_row_does_not_fit(tiny_directory: Path, data: Path, tmp_path: Path) -> None:
    command = ["plan", str(data), "--model", str(tiny_directory), "--set", f"media.cache_dir={tmp_path}"]
    done = CliRunner().invoke(app, [*command, "--rows", str(tmp_path / "rows.out")])
    assert done.exit_code == 0 and "6 rows, 3 media" in done.output and "6 fit into 20,000 tokens, 0 are too long" in done.output
    rows = [json.loads(line) for line in (tmp_path / "rows.out").read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"rows-{at}" for at in range(1, 7)] and rows[2]["sizes"] == [["video", 14, 192, 256]]
    longest = max(row["tokens"] for row in rows)
    done = CliRunner().invoke(app, [*command, "--max-prompt-tokens", str(longest - 1)])
    assert done.exit_code == 1 and "6 rows known before" in done.output
    assert f"too long  rows-5: {longest:,} tokens" in done.output and "all rows would fit with media.train.image.max_pixels=" in done.output
    done = CliRunner().invoke(app, [*command, "--max-prompt-tokens", str(longest - 1), "--set", "data.overlong=shrink", "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and [row["id"] for row in found["shrunk"]] == ["rows-5"] and found["tokens"]["max"] < longest
    (data.parent / "bad.jsonl").write_text(json.dumps({"problem": "", "answer": "A", "problem_type": "mcq"}), encoding="utf-8")
    done = CliRunner().invoke(app, ["plan", str(data.parent / "bad.jsonl"), *command[2:], "--phase", "evaluate"])
    assert done.exit_code == 1 and "bad.jsonl:1: problem: is empty" in done.output and "1 can't be used" in done.output
