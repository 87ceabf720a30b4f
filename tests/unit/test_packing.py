"""Packed rows, padded rows and rows alone are the same rows: in every family, for log-probabilities and gradients."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from evr1_core import plugins
from evr1_core.errors import Evr1Error
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.forward import Row, answer_logprobs, micro_batches
from evr1_core.policy.load import load_adapter
from evr1_core.rollout.engine import EngineContext
from evr1_core.specs import ModelSpec
from evr1_core.testing.media import make_clip, make_media, make_prompt
from evr1_core.types import Sampling
from evr1_engines.hf import HFEngine, Options
from evr1_models.attention import PACKED, linear_patches
from evr1_models.qwen3_5 import BOUNDARIES, CHUNK, _rectangles, boundaries

MADE = sorted(name for offer in plugins.catalogue().offers if isinstance(offer.spec, ModelSpec) for name in offer.spec.made)
LINEAR = ("tiny-qwen3-5", "tiny-qwen3-5-moe")
MIX = ("text", "image", "video", "image and video", "odd frames", "text")
NEAR = 1e-5


@cache
def family(name: str) -> Any:
    return load_adapter(name)


@cache
def model_of(name: str) -> Any:
    return family(name).load_model(torch.float32)


def rows_of(adapter: ModelAdapter, first: str = "Which way does it move?") -> list[Row]:
    """Rows of 1 to 6 answer tokens; only the first one's question differs."""
    media = make_media(adapter.factors)
    prompts = [make_prompt(adapter, str(i), media[kind], "Which?" if i else first) for i, kind in enumerate(MIX)]
    return [Row(prompt, tuple(range(10 + i, 11 + 2 * i))) for i, prompt in enumerate(prompts)]


def run(name: str, batches: list[list[Row]], packing: bool) -> tuple[list[Tensor], Tensor]:
    """Log-probabilities of each row, and the gradient of their weighted sum."""
    adapter, model = family(name), model_of(name)
    model.zero_grad()
    found: list[Tensor] = []
    for rows in batches:
        lines = answer_logprobs(model, adapter, rows, packing=packing, temperature=0.7, device="cpu")
        found += [line[: len(row.answer)] for row, line in zip(rows, lines, strict=True)]
        sum(line.sum() for line in lines).backward()  # type: ignore[union-attr]
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return [line.detach() for line in found], gradient.double()


@pytest.mark.parametrize("name", MADE)
def test_packed_and_padded_with_recomputed_activations_are_rows_alone_without(name: str) -> None:
    """The rule `packed-padded-alone` of the contract holds without gradient checkpointing; this is with it."""
    rows, model = rows_of(family(name)), model_of(name)
    model.train()
    alone, gradient = run(name, [[row] for row in rows], packing=True)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    try:
        for packing in (True, False):
            together, other = run(name, [rows], packing)
            for one, line in zip(alone, together, strict=True):
                torch.testing.assert_close(line, one, rtol=0, atol=NEAR)
            assert float((other - gradient).norm() / gradient.norm()) < NEAR
    finally:
        model.gradient_checkpointing_disable()


@pytest.mark.parametrize("name", MADE)
def test_nothing_leaks_from_one_row_into_the_next(name: str) -> None:
    """Another first row: of the same length, then the same arithmetic and not a bit of it behind; of another, then rounding at most."""
    adapter, model = family(name), model_of(name)
    first, same, longer = (rows_of(adapter, text) for text in ("Which way does it move?", "Which way does it move!", "Red or blue? " * 9))
    assert len(first[0]) == len(same[0]) < len(longer[0])
    with torch.no_grad():
        found = [answer_logprobs(model, adapter, rows, packing=True, temperature=0.7, device="cpu") for rows in (first, same, longer)]
    assert not torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[2][1:], found[0][1:], rtol=0, atol=5e-6)
    # Experts take their tokens of all rows together: another number of them is another order of summation.
    torch.testing.assert_close(found[1][1:], found[0][1:], rtol=0, atol=5e-6 if "moe" in name else 0.0)


@pytest.mark.parametrize("name", LINEAR)
def test_the_state_would_leak_without_the_boundaries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the boundaries are there for; and a layer that isn't handed them refuses packing."""
    adapter, model = family(name), model_of(name)
    rows = rows_of(adapter)
    with torch.no_grad():
        right = answer_logprobs(model, adapter, rows, packing=True, temperature=0.7, device="cpu")
        monkeypatch.setattr("evr1_models.qwen3_5.boundaries", lambda *_: {})
        wrong = answer_logprobs(model, adapter, rows, packing=True, temperature=0.7, device="cpu")
    assert float((wrong - right).abs().max()) > 1e-3
    layer = next(module for module in model.modules() if hasattr(module, "in_proj_qkv"))
    monkeypatch.setattr(layer, "forward", type(layer).forward.__get__(layer))
    with pytest.raises(Evr1Error, match="train.packing=false pads"):
        answer_logprobs(model, adapter, rows, packing=True, temperature=0.7, device="cpu")


def test_rectangles_hold_every_token_once_and_little_padding() -> None:
    lengths = [5, 700, 64, 65, 1, 640, 3_000, 66, 500]
    groups = _rectangles(boundaries(lengths, "cpu")[BOUNDARIES])
    places = torch.cat([tokens[valid] for tokens, valid in groups])
    assert places.sort().values.tolist() == list(range(sum(lengths)))
    chunked = sum(-(-length // CHUNK) * CHUNK for length in lengths)
    assert sum(tokens.numel() for tokens, _ in groups) <= 1.5 * chunked


@pytest.mark.parametrize("name", ["tiny-qwen3-vl", "tiny-qwen3-5"])
def test_rows_attend_one_by_one_as_under_the_mask_of_transformers(name: str) -> None:
    adapter, model, rows = family(name), model_of(name), rows_of(family(name))
    assert model.config.get_text_config()._attn_implementation == PACKED
    ours = run(name, [rows], packing=True)
    model.set_attn_implementation("sdpa")
    try:
        theirs = run(name, [rows], packing=True)
    finally:
        model.set_attn_implementation(PACKED)
    for one, other in zip(ours[0], theirs[0], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=NEAR)
    assert float((ours[1] - theirs[1]).norm() / theirs[1].norm()) < NEAR
    assert adapter.load_model(torch.float32, attention="eager").config.get_text_config()._attn_implementation == "eager"


@pytest.mark.parametrize("name", MADE)
def test_patches_by_a_matrix_product_are_those_of_the_convolution(name: str) -> None:
    # In float64, where rounding can't be taken for a difference.
    embed = copy.deepcopy(model_of(name).model.visual.patch_embed).double()
    patches = torch.randn(12, embed.proj.weight[0].numel(), dtype=torch.float64, requires_grad=True)
    ours, theirs = embed(patches), type(embed).forward(embed, patches)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    slopes = [torch.autograd.grad(out.square().sum(), [patches, embed.proj.weight]) for out in (ours, theirs)]
    torch.testing.assert_close(*slopes, rtol=1e-10, atol=1e-10)


def test_an_unknown_patch_embedding_is_left_alone() -> None:
    visual = torch.nn.Module()
    visual.patch_embed = torch.nn.Sequential(torch.nn.Conv3d(3, 4, (2, 2, 2)))
    before = visual.patch_embed.forward
    linear_patches(visual)
    linear_patches(torch.nn.Module())
    assert visual.patch_embed.forward == before


@pytest.mark.parametrize("name", MADE)
def test_engine_reports_the_policys_logprobs_of_answers_of_any_length(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding left of short prompts stays out of attention and of states; rows are repeated, and dropped where they end, in every layer."""
    adapter, model = family(name), model_of(name)
    monkeypatch.setattr(adapter, "stop_token_ids", (*adapter.stop_token_ids, *range(0, 300, 6)))  # else few answers end early
    prompts = [row.prompt for row in rows_of(adapter)]
    context = EngineContext(adapter=adapter, dtype="float32", device="cpu", max_prompt_tokens=400, max_tokens=8, seed=0, model=model)
    answers: Any = HFEngine(context, Options.model_validate({})).generate(prompts, Sampling(n=3, temperature=0.8, max_tokens=8, seed=1))
    given = [one for group in answers for one in group]
    assert len({len(one.token_ids) for one in given}) > 3 and len(given) == 3 * len(prompts)
    rows = [Row(prompt, one.token_ids) for prompt, group in zip(prompts, answers, strict=True) for one in group]
    with torch.no_grad():
        trainer = answer_logprobs(model, adapter, rows, packing=True, temperature=0.8, device="cpu")
    for line, one in zip(trainer, given, strict=True):
        torch.testing.assert_close(line[: len(one.token_ids)], torch.tensor(one.logprobs), rtol=0, atol=NEAR)


def test_micro_batches_count_vision_tokens_and_let_a_long_row_go_alone() -> None:
    adapter = family("tiny-qwen3-vl")
    text, video = (make_prompt(adapter, kind, clips) for kind, clips in (("t", []), ("v", [make_clip(16, 128, 128)])))
    row, large = Row(text, (5,) * 4), Row(video, (5,) * 4)
    grid = video.features["video_grid_thw"][0]
    assert len(large) > int(grid.prod()) // 4 > 2 * len(row)
    for packing in (True, False):
        assert list(micro_batches([row, row, large, row, row], 2 * len(row), packing)) == [[0, 1], [2], [3, 4]]
