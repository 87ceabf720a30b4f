"""Rollouts with vLLM, in this process (offline engine).

Four settings make it agree with the trainer to the last digits, each silently wrong when missed:
- `mm_device_do_normalize=False`: pixels are normalised once, by the processor, as in training;
- `do_resize=False, do_sample_frames=False` on every request: frames are final;
- `logprobs_mode="processed_logprobs"` with a logit bias on media tokens: the reported log-probabilities are those of
  the distribution that was sampled from, at its temperature;
- after new weights, the encoder, multimodal and prefix caches are emptied on the engine core.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import Field
from torch import Tensor

from evr1_core.config.models import Section
from evr1_core.rollout.engine import EngineContext, completion_seed
from evr1_core.types import Completion, Prompt, Sampling
from evr1_engines.vllm_requests import check_prompt, completion, parameters, request


class Options(Section):
    """Options of the vLLM engine; the memory options follow vLLM's own names."""

    gpu_memory_utilization: float = Field(0.6, gt=0, le=1)
    """Share of the GPU's memory that the engine takes, its weights included."""
    tensor_parallel_size: int = Field(1, ge=1)
    """GPUs that one engine is spread over."""
    max_num_seqs: int = Field(256, ge=1)
    """Answers drawn side by side."""
    max_num_batched_tokens: int | None = Field(None, ge=1)
    """Tokens of one engine step; null leaves it to vLLM."""
    enforce_eager: bool = False
    """Run without compiled graphs: slower on a GPU, starts at once."""
    media_gib: float = Field(4.0, gt=0)
    """Decoded frames handed over at once, in GiB; their model inputs take about four times as much."""
    cpu_kv_cache_gib: int = Field(1, ge=1)
    """Memory of the key-value cache on CPU, in GiB."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `vllm.LLM`, as they are."""


def prepare_environment(device: str, options: Options) -> None:
    """vLLM reads these at import. The engine stays in this process, so that weights reach it without a copy."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # Weight updates hand tensors to the worker of the same process.
    os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    if device == "cpu":
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(options.cpu_kv_cache_gib))
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


class VLLMEngine:
    """Engine on `vllm.LLM`."""

    def __init__(self, context: EngineContext, options: Options) -> None:
        prepare_environment(context.device, options)
        from vllm import LLM

        self.adapter, self.weight_version = context.adapter, 0
        self.media_bytes = options.media_gib * 2**30
        arguments: dict[str, Any] = {
            "model": str(context.adapter.directory),
            "dtype": context.dtype,
            "seed": context.seed,
            "max_model_len": context.max_prompt_tokens + context.max_tokens,
            "max_num_seqs": options.max_num_seqs,
            "tensor_parallel_size": options.tensor_parallel_size,
            "gpu_memory_utilization": options.gpu_memory_utilization,
            "enforce_eager": options.enforce_eager or context.device == "cpu",
            "limit_mm_per_prompt": {"image": context.max_images, "video": context.max_videos},
            "logprobs_mode": "processed_logprobs",
            "mm_device_do_normalize": False,
            "disable_log_stats": True,
        }
        if options.max_num_batched_tokens is not None:
            arguments["max_num_batched_tokens"] = options.max_num_batched_tokens
        self.llm = LLM(**{**arguments, **options.engine_args})

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        groups: list[list[Completion]] = []
        for part in self._parts(prompts):
            groups += self._generate_part(part, sampling)
        return groups

    def _parts(self, prompts: Sequence[Prompt]) -> Iterable[list[Prompt]]:
        """Prompts in order, cut where their frames would pass `media_gib`: the engine holds those of all waiting requests."""
        part: list[Prompt] = []
        held = 0
        for prompt in prompts:
            size = sum(clip.frames.nbytes for clip in prompt.clips)
            if part and held + size > self.media_bytes:
                yield part
                part, held = [], 0
            part.append(prompt)
            held += size
        if part:
            yield part

    def _generate_part(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        requests, wanted = [], []
        for prompt in prompts:
            one = request(self.adapter, prompt)
            # One request per answer, each with its own seed: the answer depends on nothing but its sample and index.
            for index in range(sampling.n):
                requests.append(one)
                wanted.append(parameters(self.adapter, sampling, completion_seed(sampling.seed, prompt.sample.id, index)))
        outputs = self.llm.generate(requests, wanted, use_tqdm=False)
        groups: list[list[Completion]] = []
        for number, prompt in enumerate(prompts):
            mine = outputs[number * sampling.n : (number + 1) * sampling.n]
            for output in mine:
                check_prompt(prompt, output.prompt_token_ids)
            groups.append([completion(self.adapter, output.outputs[0], self.weight_version) for output in mine])
        return groups

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """The model's own loader on a fresh layout (its loaded layers were repacked), then every cache emptied."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": list(weights)})
        core = self.llm.llm_engine.engine_core
        core.reset_encoder_cache()
        core.reset_mm_cache()
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not empty its prefix cache after a weight update: requests are still running")
        self.llm.reset_mm_cache()
        self.weight_version = version

    def close(self) -> None:
        core = self.llm.llm_engine.engine_core
        core.shutdown()
        del self.llm
        gc.collect()
