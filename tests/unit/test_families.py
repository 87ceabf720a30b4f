"""The families on tiny models: positions and clocks with known values, one vision pass, the road from real files, presets.

What holds for every family is a rule of `evr1_core.testing.models`, run by tests/contract over everything that is registered.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from media_clips import video
from torch import Tensor

from evr1_core import discovery, plugins
from evr1_core.errors import RequestError
from evr1_core.media.store import MediaStore
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.load import load_adapter
from evr1_core.specs import ModelSpec
from evr1_core.testing.media import all_prompts, make_clip, make_media, make_prompt
from evr1_core.types import Budget, Clip, MediaRef, PatchFactors, VideoBudget
from evr1_models.adapter import KINDS, QwenVL
from evr1_models.qwen2_5_vl import Qwen2_5VL
from evr1_models.qwen2_vl import Qwen2VL

MADE = sorted(name for offer in plugins.catalogue().offers if isinstance(offer.spec, ModelSpec) for name in offer.spec.made)
QWEN2 = ("tiny-qwen2-vl", "tiny-qwen2-5-vl")
FILES = ("bframes.mp4", "vfr.mp4", "one_frame.mp4", "n31.mp4", "rot90.mp4")


@cache
def family(name: str) -> Any:
    return load_adapter(name)


@cache
def model_of(name: str) -> Any:
    return family(name).load_model(torch.float32).eval()


# The road from files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
def test_real_files_decoded_or_from_the_cache_are_the_same_prompt(name: str, tmp_path: Path) -> None:
    """Tokens planned from headers are those of the prompt, and the cache changes neither ids nor features."""
    adapter: ModelAdapter = family(name)
    budget = Budget(video=VideoBudget(max_frames=5, max_pixels=8_000, min_pixels=1_024))
    direct, cold, warm = (MediaStore(tmp_path, mode=mode, isolate=False) for mode in ("decode-only", "auto", "cache-only"))
    for file in FILES:
        ref = video(file)
        clips = [store.load(ref, budget, adapter.factors) for store in (direct, cold, warm)]
        one, *others = (make_prompt(adapter, file, [clip]) for clip in clips)
        planned = direct.plan(ref, budget, adapter.factors)
        assert adapter.plan_tokens(one.text, [planned]) == len(one.token_ids)
        for other in others:
            assert other.token_ids == one.token_ids and other.features.keys() == one.features.keys()
            assert all(torch.equal(other.features[key], tensor) for key, tensor in one.features.items())
    assert cold.counters.decoded == len(FILES) and warm.counters.decoded == 0


# One vision pass -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
def test_one_vision_pass_gives_what_transformers_gives_for_each_medium_alone(name: str) -> None:
    """As many features as media tokens, and windows of one medium never see another."""
    adapter: QwenVL = family(name)
    model, rows = model_of(name), [prompt.features for prompt in all_prompts(adapter) if prompt.clips]
    ids = torch.tensor([[token for prompt in all_prompts(adapter) if prompt.clips for token in prompt.token_ids]])
    with torch.no_grad():
        outputs = adapter.model_inputs(model, ids, rows)["mm_encoder_outputs"]
        for kind, pixels, grid in KINDS:
            given = torch.cat(list(outputs[kind].pooler_output))
            assert len(given) == int((ids == getattr(adapter, f"{kind}_token_id")).sum())
            alone: list[Tensor] = []
            for row in rows:
                if pixels in row:
                    one_each = row[pixels].split(row[grid].prod(dim=-1).tolist())
                    for patches, sides in zip(one_each, row[grid], strict=True):
                        visual = model.model.visual(adapter._normalised(patches, kind), grid_thw=sides[None], return_dict=True)
                        alone.append(visual.pooler_output)
            torch.testing.assert_close(given, torch.cat(alone), rtol=0, atol=1e-5)


def test_tiny_pictures_have_several_windows() -> None:
    """Otherwise the test above shows nothing about windows."""
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

    module: Any = modeling_qwen2_5_vl
    vision = family("tiny-qwen2-5-vl").config.vision_config
    _, bounds = module.get_vision_window_index(
        torch.tensor([[3, 4, 6]]), spatial_merge_size=2, window_size=vision.window_size, patch_size=14
    )
    assert len(torch.unique_consecutive(bounds)) - 1 == 6 and vision.fullatt_block_indexes == [1]


# Positions -------------------------------------------------------------------------------------------------------------


def transformers_positions(name: str, ids: Sequence[int], features: Mapping[str, Tensor]) -> Tensor:
    """[3, L] by the function that transformers' own forward pass uses."""
    adapter, tokens = family(name), torch.tensor([list(ids)])
    kinds = torch.zeros_like(tokens).masked_fill(tokens == adapter.image_token_id, 1).masked_fill(tokens == adapter.video_token_id, 2)
    names = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")
    found, _ = model_of(name).model.get_rope_index(tokens, kinds, **{key: features.get(key) for key in names})
    return found[:, 0]


@pytest.mark.parametrize("name", QWEN2)
def test_positions_are_those_of_transformers_but_behind_a_long_video(name: str) -> None:
    """Both agree within every medium, and everywhere while no video lasts longer than it is high or wide."""
    adapter = family(name)
    differing = set()
    for prompt in all_prompts(adapter):
        ours, theirs = adapter.position_ids(prompt.token_ids, prompt.features), None
        theirs = transformers_positions(name, prompt.token_ids, prompt.features)
        shift = ours - theirs
        # Behind a video the two run on in parallel, ours ahead by as much as time passes height and width.
        assert torch.equal(shift[0], shift[1]) and torch.equal(shift[0], shift[2])
        assert shift.min() >= 0 and (shift[0].diff() >= 0).all()
        if shift.any():
            differing.add(prompt.sample.id)
    # Three temporal patches on 1 x 2 or 2 x 3 tokens; 2.5 counts two positions a second, so that two on 2 x 2 are long already.
    long = {"tiny-qwen2-vl": {"two videos"}, "tiny-qwen2-5-vl": {"video", "odd frames", "two videos", "image and video"}}
    assert differing == long[name]


def unequal(name: str, folder: Path) -> QwenVL:
    """The family with 4 frames per temporal patch, so that no constant is taken for another by luck; 3 positions a second."""
    directory = shutil.copytree(family(name).directory, folder / name)
    config = json.loads((directory / "config.json").read_text())
    config["vision_config"]["temporal_patch_size"] = 4
    if "tokens_per_second" in config["vision_config"]:
        config["vision_config"]["tokens_per_second"] = 3
    (directory / "config.json").write_text(json.dumps(config))
    for file in directory.glob("*preprocessor_config.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"temporal_patch_size": 4}))
    return type(family(name))(directory)


@pytest.mark.parametrize(("name", "times"), [("tiny-qwen2-vl", [0, 1, 2]), ("tiny-qwen2-5-vl", [0, 4, 8])])
def test_golden_positions_with_unequal_constants(name: str, times: list[int], tmp_path: Path) -> None:
    """9 frames at 3 a second make 3 temporal patches of 4 frames; each lasts 4/3 s, which is 4 positions at 3 a second."""
    adapter = unequal(name, tmp_path)
    assert adapter.factors == PatchFactors(pixels=28, frames=4)
    prompt = make_prompt(adapter, "golden", [make_clip(9, 28, 56, span=3.0)], "Go")
    positions = adapter.position_ids(prompt.token_ids, prompt.features)
    start = prompt.token_ids.index(adapter.video_token_id)
    assert prompt.token_ids.count(adapter.video_token_id) == 3 * 1 * 2
    block = positions[:, start : start + 6] - start
    assert block.tolist() == [[t for t in times for _ in range(2)], [0] * 6, [0, 1] * 3]
    after = positions[:, start + 6 :]
    assert after[0, 0] == start + times[-1] + 1 and torch.equal(after, after[:1].expand(3, -1))


@pytest.mark.parametrize(
    ("fps", "seconds", "frames", "expected"),
    [(1, 8, 8, 2.0), (2, 8, 16, 1.0), (4, 8, 32, 0.5), (2, 20, 16, 2 / 0.8), (2, 1.6, 4, 0.8)],
)
def test_a_temporal_patch_lasts_what_two_frames_last(fps: int, seconds: float, frames: int, expected: float) -> None:
    """Also where a limit of frames lowers the rate (16 frames for 20 s), and where the rate varies."""
    clip = replace(make_clip(frames, 28, 28, span=seconds), source_fps=29.97, source_frames=1_000)
    features = make_prompt(family("tiny-qwen2-5-vl"), "clock", [clip]).features
    assert features["second_per_grid_ts"].tolist() == pytest.approx([expected])


@pytest.mark.parametrize("file", ["vfr.mp4", "bframes.mp4"])
def test_the_clock_of_a_real_file_reaches_the_positions(file: str) -> None:
    """A part of a file too: its seconds count, not those of the whole file."""
    adapter: Qwen2_5VL = family("tiny-qwen2-5-vl")
    store = MediaStore(mode="decode-only", isolate=False)
    for ref in (video(file), video(file, 0.2, 0.9)):
        clip = store.load(ref, Budget(), adapter.factors)
        seconds = make_prompt(adapter, file, [clip]).features["second_per_grid_ts"]
        assert float(seconds) == pytest.approx(2 * clip.span / len(clip.indices))


def test_the_same_frames_at_another_rate_have_other_positions() -> None:
    adapter: Qwen2_5VL = family("tiny-qwen2-5-vl")
    media = make_media(adapter.factors)
    one, other = (make_prompt(adapter, name, media[name]) for name in ("video", "variable rate"))
    assert one.token_ids == other.token_ids and torch.equal(one.features["pixel_values_videos"], other.features["pixel_values_videos"])
    assert not torch.equal(adapter.position_ids(one.token_ids, one.features), adapter.position_ids(other.token_ids, other.features))


# Turns, presets, versions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QWEN2)
def test_a_default_system_turn_only_where_none_is_given(name: str) -> None:
    adapter: Qwen2VL = family(name)
    user = {"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "What?"}]}
    turn = "<|im_start|>user\n<|vision_start|><|video_pad|><|vision_end|>What?<|im_end|>\n<|im_start|>assistant\n"
    assert adapter.render([user]) == ("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + turn, "")
    assert adapter.render([{"role": "system", "content": "Be brief."}, user])[0] == "<|im_start|>system\nBe brief.<|im_end|>\n" + turn


@pytest.mark.parametrize("name", QWEN2)
def test_parts_of_a_family_without_position_embeddings(name: str) -> None:
    parts = family(name).parts(model_of(name))
    assert sorted(parts) == ["language", "projector", "vision"]
    counts = {part: sum(p.numel() for module in modules for p in module.parameters()) for part, modules in parts.items()}
    assert sum(counts.values()) == model_of(name).num_parameters()


def test_arguments_of_the_chat_template_open_or_close_thoughts() -> None:
    for chat, prefill in ({}, "<think>\n"), ({"enable_thinking": False}, "<think>\n\n</think>\n\n"):
        adapter = load_adapter("tiny-qwen3-5", chat)
        prompt = make_prompt(adapter, "thoughts", [])
        assert adapter.chat == chat and prompt.prefill == prefill and prompt.text.endswith(prefill)
    with pytest.raises(RequestError, match=r"model\.chat\.enable_thinkin: the chat template of .* never reads it"):
        load_adapter("tiny-qwen3-5", {"enable_thinkin": False})
    with pytest.raises(RequestError, match=r"model\.chat\.tokenize: evr1 sets it itself"):
        load_adapter("tiny-qwen3-5", {"tokenize": True})


def test_presets_of_all_released_sizes() -> None:
    for size in ("2b", "7b", "72b"):
        assert plugins.preset(f"qwen2-vl-{size}") == f"Qwen/Qwen2-VL-{size.upper()}-Instruct"
    for size in ("3b", "7b", "32b", "72b"):
        assert plugins.preset(f"qwen2.5-vl-{size}") == f"Qwen/Qwen2.5-VL-{size.upper()}-Instruct"
    for size in ("2b", "4b", "8b", "32b", "30b-a3b", "235b-a22b"):
        assert plugins.preset(f"qwen3-vl-{size}") == f"Qwen/Qwen3-VL-{size.upper()}-Instruct"
        assert plugins.preset(f"qwen3-vl-{size}-thinking") == f"Qwen/Qwen3-VL-{size.upper()}-Thinking"


@pytest.mark.parametrize("name", MADE)
def test_a_directory_is_matched_by_its_model_type(name: str) -> None:
    assert type(load_adapter(str(family(name).directory))) is type(family(name))


def test_an_unsupported_version_says_which_one_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "version", lambda name: "9.1.0")
    with pytest.raises(RequestError, match=r"model 'qwen2-vl' needs transformers>=.*\(here is transformers 9\.1\.0\): pip install"):
        load_adapter(str(family("tiny-qwen2-vl").directory))


def test_media_in_another_number_than_placeholders_are_refused() -> None:
    adapter: Qwen2VL = family("tiny-qwen2-vl")
    clip: Clip = make_clip(2, 28, 28)
    text = make_prompt(adapter, "one", [clip]).text
    with pytest.raises(ValueError, match="1 video placeholders in the prompt, 2 videos given"):
        adapter.encode(text, [clip, clip])


def test_images_and_videos_count_in_the_same_unit(tmp_path: Path) -> None:
    """Sizes that a budget gives are multiples of patch times merge, whatever the file."""
    for name in MADE:
        factors = family(name).factors
        store = MediaStore(mode="decode-only", isolate=False)
        plan = store.plan(MediaRef(video("tall.mp4").path, "video"), Budget(), factors)
        assert plan.height % factors.pixels == plan.width % factors.pixels == 0
