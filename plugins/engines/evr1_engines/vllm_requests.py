"""Requests and answers of vLLM, the same for the engine of training and the one of evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from PIL import Image

from evr1_core.policy.adapter import ModelAdapter
from evr1_core.rollout.engine import PromptMismatch
from evr1_core.types import Clip, Completion, Prompt, Sampling

FORBID = -1e9
"""Logit bias that leaves a token no probability at all in float32."""


def request(adapter: ModelAdapter, prompt: Prompt) -> dict[str, Any]:
    """Text with unexpanded placeholders, and the frames with their clock. The engine expands the placeholders itself.

    Every medium has a name, by which the engine knows it in its caches: frames are not hashed, and prepared once.
    """
    data: dict[str, list[Any]] = {}
    names: dict[str, list[str]] = {}
    for clip in prompt.clips:
        names.setdefault(clip.kind, []).append(medium_name(clip))
        if clip.kind == "image":
            data.setdefault("image", []).append(Image.fromarray(clip.frames[0].transpose(1, 2, 0)))
        else:
            metadata = {**adapter.video_metadata(clip), "do_sample_frames": False}
            data.setdefault("video", []).append((clip.frames.transpose(0, 2, 3, 1), metadata))
    if not data:
        return {"prompt_token_ids": list(prompt.token_ids)}
    kwargs = {"do_resize": False, "do_sample_frames": False} if "video" in data else {"do_resize": False}
    return {"prompt": prompt.text, "multi_modal_data": data, "multi_modal_uuids": names, "mm_processor_kwargs": kwargs}


def medium_name(clip: Clip) -> str:
    """The same for two clips only if they hold the same frames at the same times."""
    told = (clip.key, clip.kind, clip.frames.shape, clip.indices, clip.times, clip.source_fps, clip.source_frames, clip.span)
    return hashlib.sha256(repr(told).encode()).hexdigest()


def parameters(adapter: ModelAdapter, sampling: Sampling, seed: int) -> Any:
    """`vllm.SamplingParams` of one answer."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        seed=seed,
        logprobs=0,
        stop_token_ids=list(adapter.stop_token_ids),
        logit_bias={token: FORBID for token in adapter.forbidden_token_ids},
        # Sampling defaults saved beside a model must not change what is drawn.
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        repetition_penalty=1.0,
        skip_special_tokens=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def completion(adapter: ModelAdapter, output: Any, weight_version: int = 0) -> Completion:
    """From vLLM's `CompletionOutput`."""
    ids = tuple(output.token_ids)
    return Completion(
        token_ids=ids,
        logprobs=tuple(entry[token].logprob for token, entry in zip(ids, output.logprobs, strict=True)),
        text=adapter.decode(ids),
        finish_reason="stop" if ids and ids[-1] in adapter.stop_token_ids else "length",
        weight_version=weight_version,
    )


def prompt_mismatch(prompt: Prompt, seen: Sequence[int] | None) -> PromptMismatch | None:
    """The engine's expanded prompt must be the trainer's, id by id: None, or what is different."""
    found = tuple(seen or ())
    if found == prompt.token_ids:
        return None
    place = next(
        (i for i, (a, b) in enumerate(zip(found, prompt.token_ids, strict=False)) if a != b), min(len(found), len(prompt.token_ids))
    )
    return PromptMismatch(
        prompt.sample.id,
        f"the engine built {len(found)} prompt tokens, the trainer {len(prompt.token_ids)}; they first differ at token {place}. "
        "Engine and trainer would learn from different prompts: "
        "check that both load the same processor files and supported versions (docs/engines.md)",
    )
