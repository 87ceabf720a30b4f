"""The policy: positions, packing, micro-batches, optimizer, freezing; and the transformers engine against it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evr1_core.config.models import ModelSection, TrainSection
from evr1_core.errors import RequestError
from evr1_core.media.plan import Plan
from evr1_core.policy import head
from evr1_core.policy.forward import Row, answer_logprobs, micro_batches
from evr1_core.policy.optimizer import learning_rate
from evr1_core.policy.policy import Policy
from evr1_core.rollout.engine import EngineContext
from evr1_core.rollout.setup import choose_device
from evr1_core.types import Prompt, Sampling
from evr1_engines.hf import HFEngine, Options
from evr1_models.adapter import KINDS, choose_attention, normalised
from evr1_models.qwen3_vl import Qwen3VL
from tests.support.made_up import MEDIA, all_prompts, make_clip, make_prompt


@pytest.fixture(scope="module")
def adapter(tiny_directory: Path) -> Qwen3VL:
    return Qwen3VL(tiny_directory)


@pytest.fixture(scope="module")
def prompts(adapter: Qwen3VL) -> list[Prompt]:
    return all_prompts(adapter)


@pytest.fixture(scope="module")
def model(adapter: Qwen3VL) -> torch.nn.Module:
    return adapter.load_model(torch.float32)


def rows_of(prompts: list[Prompt]) -> list[Row]:
    return [Row(prompt, tuple(range(10 + i, 13 + i + i % 3))) for i, prompt in enumerate(prompts)]


def policy(adapter: Qwen3VL, dtype: str = "float32", **train: object) -> Policy:
    section = ModelSection.model_validate({"dtype": dtype, "gradient_checkpointing": False, "freeze": train.pop("freeze", ())})
    return Policy(adapter, section, TrainSection.model_validate(train), temperature=1.0, device="cpu", total_steps=10)


def test_positions_are_those_of_transformers(adapter: Qwen3VL, prompts: list[Prompt], model: torch.nn.Module) -> None:
    for row in rows_of(prompts):
        ids = torch.tensor([row.token_ids])
        kinds = torch.zeros_like(ids).masked_fill(ids == adapter.image_token_id, 1).masked_fill(ids == adapter.video_token_id, 2)
        grids = {name: row.prompt.features.get(name) for name in ("image_grid_thw", "video_grid_thw")}
        expected, _ = model.get_submodule("model").get_rope_index(ids, kinds, **grids)  # type: ignore[operator]
        torch.testing.assert_close(adapter.position_ids(row.token_ids, row.prompt.features), expected[:, 0])


@pytest.mark.parametrize("last", [9.9505, 9.9495, 9.95])
def test_a_rounded_clock_is_planned_as_it_is_written(adapter: Qwen3VL, last: float) -> None:
    """Times in milliseconds beside a rate: the plan must round the same number as the processor, 9.9 or 10.0."""
    clip = replace(make_clip(1, 64, 64), times=(last,), indices=(199,), source_fps=20.0, source_frames=400, duration=20.0)
    prompt = make_prompt(adapter, "one", [clip])
    plan = Plan("video", 1, 64, 64, clip.indices, clip.times, clip.source_fps, clip.source_frames, clip.duration, 20.0)
    assert adapter.plan_tokens(prompt.text, [plan]) == len(prompt.token_ids)


def test_the_tokenizers_own_end_ends_an_answer(tiny_directory: Path, tmp_path: Path) -> None:
    """Engines stop there unasked; it must not look like an answer that was cut off."""
    base = shutil.copytree(tiny_directory, tmp_path / "base")
    (base / "generation_config.json").unlink()
    settings = json.loads((base / "tokenizer_config.json").read_text())
    (base / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<|endoftext|>"}))
    stops = Qwen3VL(base).stop_token_ids
    assert [Qwen3VL(base).tokenizer.convert_ids_to_tokens(stop) for stop in stops] == ["<|im_end|>", "<|endoftext|>"]


def test_attention_of_a_gpu_fits_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert choose_attention("auto", "cuda", torch.bfloat16) == "flash_attention_2"
    assert choose_attention("auto", "cuda", torch.float32) == "sdpa" == choose_attention("auto", "cpu", torch.bfloat16)
    assert choose_attention("eager", "cuda", torch.float32) == "eager"
    assert choose_attention("flash_attention_3", "cuda", torch.bfloat16) == "flash_attention_3"
    for name in ("flash_attention_2", "flash_attention_3"):
        for device, dtype in (("cpu", torch.bfloat16), ("cuda", torch.float32)):
            with pytest.raises(RequestError, match=f"model.attention = {name}: needs a CUDA GPU, bfloat16 and the package flash-attn"):
                choose_attention(name, device, dtype)


def test_a_gpu_that_is_not_there_is_a_wrong_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == "cpu"
    with pytest.raises(RequestError, match="no CUDA GPU here"):
        choose_device("cuda")


def test_patches_wait_as_bytes_and_become_what_the_processor_makes(adapter: Qwen3VL, prompts: list[Prompt]) -> None:
    for prompt in prompts:
        if not prompt.clips:
            continue
        assert all(tensor.dtype == torch.uint8 for name, tensor in prompt.features.items() if name.startswith("pixel"))
        images = [torch.from_numpy(clip.frames[0]) for clip in prompt.clips if clip.kind == "image"]
        videos = [clip for clip in prompt.clips if clip.kind == "video"]
        media: dict[str, object] = {"images": images} if images else {}
        if videos:
            metadata = [adapter.video_metadata(clip) for clip in videos]
            media["videos"] = [torch.from_numpy(clip.frames) for clip in videos]
            media["videos_kwargs"] = {"video_metadata": metadata, "do_sample_frames": False, "cap_pixels_per_frame": False}
        whole = adapter.processor(text=[prompt.text], do_resize=False, return_tensors="pt", **media)
        for kind, pixels, grid in KINDS:
            if pixels in prompt.features:
                processor = getattr(adapter.processor, f"{kind}_processor")
                assert torch.equal(normalised(prompt.features[pixels], processor), whole[pixels])
                assert torch.equal(prompt.features[grid], whole[grid])


@pytest.mark.parametrize("packing", [True, False])
def test_together_equals_alone(adapter: Qwen3VL, prompts: list[Prompt], model: torch.nn.Module, packing: bool) -> None:
    rows = rows_of(prompts)
    together = answer_logprobs(model, adapter, rows, packing=packing, temperature=0.7, device="cpu")
    for row, line in zip(rows, together, strict=True):
        alone = answer_logprobs(model, adapter, [row], packing=True, temperature=0.7, device="cpu")[0]
        torch.testing.assert_close(line[: len(row.answer)], alone, rtol=0, atol=1e-5)
        assert line[len(row.answer) :].eq(0).all()


def test_gradient_is_the_same_for_any_split(adapter: Qwen3VL, prompts: list[Prompt]) -> None:
    rows, gradients = rows_of(prompts), []
    for tokens, packing in ((10_000, True), (10_000, False), (120, True), (1, False)):
        one = policy(adapter, micro_batch_tokens=tokens, packing=packing)
        for indices in one.micro_batches(rows):
            one.logprobs([rows[i] for i in indices]).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in one.model.parameters() if p.grad is not None]).double())
    for other in gradients[1:]:
        assert float((other - gradients[0]).norm() / gradients[0].norm()) < 1e-5


def test_gradient_checkpointing_changes_nothing(adapter: Qwen3VL, prompts: list[Prompt]) -> None:
    found = []
    for on in (False, True):
        section = ModelSection(dtype="float32", gradient_checkpointing=on)
        one = Policy(adapter, section, TrainSection(), temperature=1.0, device="cpu", total_steps=1)
        one.logprobs(rows_of(prompts)).sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in one.model.parameters() if p.grad is not None]))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_head_in_pieces_equals_the_whole(adapter: Qwen3VL, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch) -> None:
    """A large vocabulary is worked off in pieces; value and gradient stay."""
    found = []
    for size in (head.HEAD_BYTES, 3 * 4 * 400):
        monkeypatch.setattr(head, "HEAD_BYTES", size)
        one = policy(adapter)
        logprobs = one.logprobs(rows_of(prompts))
        logprobs.sum().backward()
        found.append((logprobs.detach(), torch.cat([p.grad.flatten() for p in one.model.parameters() if p.grad is not None])))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


def test_micro_batches_cover_every_row_once_and_respect_the_limit(prompts: list[Prompt]) -> None:
    rows = rows_of(prompts)
    for packing in (True, False):
        found = list(micro_batches(rows, 150, packing))
        assert [i for batch in found for i in batch] == list(range(len(rows)))
        for batch in found:
            sizes = [len(rows[i]) for i in batch]
            assert len(batch) == 1 or (sum(sizes) if packing else max(sizes) * len(sizes)) <= 150


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tiny_learning_rate_moves_the_masters(adapter: Qwen3VL, prompts: list[Prompt], dtype: str) -> None:
    one = policy(adapter, dtype, lr=1e-6)
    before = {name: master.detach().clone() for name, master in one.optimizer.masters.items()}
    one.logprobs(rows_of(prompts)[:2]).sum().backward()
    stats = one.step()
    assert stats["policy/grad_norm"] > 0 and all(master.dtype == torch.float32 for master in one.optimizer.masters.values())
    moved = [name for name, master in one.optimizer.masters.items() if not torch.equal(master, before[name])]
    assert "model.language_model.embed_tokens.weight" in moved and len(moved) > len(before) / 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_state_goes_on_bit_for_bit(adapter: Qwen3VL, prompts: list[Prompt], dtype: str) -> None:
    def step(one: Policy) -> None:
        one.logprobs(rows_of(prompts)[:3]).sum().backward()
        one.step()

    straight, first, second = (policy(adapter, dtype, lr=1e-3) for _ in range(3))
    step(straight)
    step(straight)
    step(first)
    saved = {kind: {name: tensor.clone() for name, tensor in part.items()} for kind, part in first.tensors().items()}
    second.load_tensors(saved, steps=first.steps)
    step(second)
    for (name, a), b in zip(straight.model.named_parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_a_checkpoint_of_another_model_is_refused(adapter: Qwen3VL) -> None:
    one = policy(adapter)
    saved = one.tensors()
    name = next(iter(saved["model"]))
    with pytest.raises(RequestError, match=f"belongs to another model: {name} is .* there"):
        one.load_tensors({**saved, "model": {**saved["model"], name: torch.zeros(1, 2, 3)}}, steps=0)


def test_a_checkpoint_goes_on_in_the_other_precision(adapter: Qwen3VL) -> None:
    """Trained weights, not those of the base model, are what the float32 copies start from."""
    trained = policy(adapter)
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.add_(0.123)
    lower = policy(adapter, "bfloat16", lr=0)
    lower.load_tensors(trained.tensors(), steps=1)
    wanted = dict(trained.model.named_parameters())
    assert all(torch.equal(master, wanted[name]) for name, master in lower.optimizer.masters.items())
    lower.step()
    assert all(torch.equal(parameter, wanted[name].bfloat16()) for name, parameter in lower.model.named_parameters())
    back = policy(adapter)
    back.load_tensors(lower.tensors(), steps=1)
    assert all(torch.equal(parameter, wanted[name]) for name, parameter in back.model.named_parameters())


def test_frozen_parts_stay_bit_equal(adapter: Qwen3VL, prompts: list[Prompt]) -> None:
    one = policy(adapter, lr=1e-2, freeze=["vision", "projector"])
    visual = {name: p.detach().clone() for name, p in one.model.named_parameters() if ".visual." in name}
    assert sum(one.frozen.values()) == sum(p.numel() for p in visual.values())
    one.logprobs(rows_of(prompts)).sum().backward()
    one.step()
    now = dict(one.model.named_parameters())
    assert all(torch.equal(now[name], value) for name, value in visual.items())
    with pytest.raises(RequestError, match="visio.*it has deepstack, language, positions, projector, vision"):
        policy(adapter, freeze=["visio"])


def test_learning_rate_schedules() -> None:
    section = TrainSection(lr=1.0, warmup_steps=2, schedule="cosine", min_lr_ratio=0.1)
    assert [round(learning_rate(step, 12, section), 3) for step in (0, 1, 2, 7, 12, 20)] == [0.5, 1.0, 1.0, 0.55, 0.1, 0.1]
    assert learning_rate(7, 12, TrainSection(lr=1.0, schedule="linear")) == pytest.approx(5 / 12)


def test_the_schedule_counts_steps_whatever_the_mini_batches(adapter: Qwen3VL) -> None:
    one = policy(adapter, lr=1.0, schedule="linear", warmup_steps=1, mini_batches=2)  # 10 steps of 2 updates
    rates = [one.step()["policy/lr"] for _ in range(20)]
    assert rates[:2] == [1.0, 1.0] and rates[2:4] == [1.0, 1.0] and rates[4] == rates[5] == pytest.approx(8 / 9)
    assert rates[-1] == rates[-2] == pytest.approx(1 / 9)


# The transformers engine ---------------------------------------------------------------------------------------------


def engine_for(adapter: Qwen3VL, model: torch.nn.Module, **options: int) -> HFEngine:
    context = EngineContext(adapter=adapter, dtype="float32", device="cpu", max_prompt_tokens=400, max_tokens=12, seed=0, model=model)
    return HFEngine(context, Options.model_validate(options))


def test_engine_reports_the_policys_logprobs(adapter: Qwen3VL, prompts: list[Prompt], model: torch.nn.Module) -> None:
    answers = engine_for(adapter, model).generate(prompts, Sampling(n=3, temperature=0.8, max_tokens=12, seed=1))
    rows = [Row(prompt, completion.token_ids) for prompt, group in zip(prompts, answers, strict=True) for completion in group]
    trainer = answer_logprobs(model, adapter, rows, packing=True, temperature=0.8, device="cpu")
    for line, completion in zip(trainer, (c for group in answers for c in group), strict=True):
        torch.testing.assert_close(line[: len(completion.token_ids)], torch.tensor(completion.logprobs), rtol=0, atol=1e-5)
        assert not set(completion.token_ids) & set(adapter.forbidden_token_ids)


def test_answers_do_not_depend_on_the_batch(adapter: Qwen3VL, prompts: list[Prompt], model: torch.nn.Module) -> None:
    sampling = Sampling(n=2, temperature=1.0, max_tokens=12, seed=1)
    together = engine_for(adapter, model).generate(prompts, sampling)
    small = engine_for(adapter, model, batch_rows=3).generate(list(reversed(prompts)), sampling)
    assert [[c.token_ids for c in group] for group in together] == [[c.token_ids for c in group] for group in reversed(small)]
    other = engine_for(adapter, model).generate(prompts, Sampling(n=2, temperature=1.0, max_tokens=12, seed=2))
    assert [c.token_ids for c in together[0]] != [c.token_ids for c in other[0]]


def test_greedy_takes_the_likeliest_token(adapter: Qwen3VL, model: torch.nn.Module) -> None:
    prompt = make_prompt(adapter, "one", MEDIA["video"])
    (completion,), *_ = engine_for(adapter, model).generate([prompt], Sampling(temperature=0, max_tokens=4))
    for place in range(len(completion.token_ids)):
        candidates = [Row(prompt, (*completion.token_ids[:place], token)) for token in (completion.token_ids[place], 40, 300)]
        last = [answer_logprobs(model, adapter, [row], packing=True, temperature=1.0, device="cpu")[0, -1] for row in candidates]
        assert last[0] >= max(last)
