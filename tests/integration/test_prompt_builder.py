"""The prompt builder with a real media store and a model family: planned tokens are the tokens of the prompt."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from evr1_core.data.prompts import PromptBuilder
from evr1_core.data.rows import read_samples
from evr1_core.media.store import MediaStore
from evr1_core.types import Budget, VideoBudget

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
