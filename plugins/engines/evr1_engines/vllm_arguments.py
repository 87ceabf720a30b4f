"""Arguments of vLLM: what follows from the run, what the options give, and what would be silently wrong."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field

from evr1_core.config.models import Section
from evr1_core.errors import RequestError
from evr1_core.rollout.engine import EngineContext


class Options(Section):
    """Options of the vLLM engine; the memory options follow vLLM's own names."""

    dtype: Literal["bfloat16", "float32"] | None = None
    """Type of the engine's weights; null is model.dtype. Another type than the trainer's parts the two (`rollout/mismatch`): set
    train.max_mismatch, and algorithm.tis to correct for it."""
    gpu_memory_utilization: float = Field(0.6, gt=0, le=1)
    """Share of the GPU's memory that the engine takes, its weights included."""
    tensor_parallel_size: int = Field(1, ge=1)
    """GPUs that one engine is spread over; in a worker group, neighbouring workers that form one engine."""
    max_num_seqs: int = Field(256, ge=1)
    """Answers drawn side by side."""
    max_num_batched_tokens: int | None = Field(None, ge=1)
    """Tokens of one engine step; null leaves it to vLLM."""
    enforce_eager: bool = False
    """Run without compiled graphs: slower on a GPU, starts at once."""
    media_gib: float = Field(4.0, gt=0)
    """Decoded frames handed over at once, in GiB; their model inputs take about four times as much."""
    media_cache_gib: float = Field(4.0, gt=0)
    """Model inputs of media that the engine keeps for further prompts over the same medium, in GiB; new weights empty it."""
    cpu_kv_cache_gib: int = Field(1, ge=1)
    """Memory of the key-value cache on CPU, in GiB."""
    sleep: Literal["off", 1, 2] = "off"
    """Give the GPU to the trainer between rollout and new weights: 1 keeps the old weights in host memory, 2 drops them too, since new
    ones come. On a CPU there is nothing to give."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `vllm.LLM`, as they are. Those that follow from the run, or that would part engine and trainer, are refused."""


class EngineArguments(Protocol):
    """What the arguments are made of: the options above, or those of another engine on vLLM that has them too."""

    dtype: Literal["bfloat16", "float32"] | None
    gpu_memory_utilization: float
    tensor_parallel_size: int
    max_num_seqs: int
    max_num_batched_tokens: int | None
    enforce_eager: bool
    media_cache_gib: float
    engine_args: dict[str, Any]


FROM_RUN = {
    "model": "model.path",
    "dtype": "model.dtype, or rollout.options.dtype",
    "seed": "seed",
    "max_model_len": "data.max_prompt_tokens and rollout.max_tokens",
    "limit_mm_per_prompt": "the media of the rows",
    "enable_sleep_mode": "rollout.options.sleep",
    "mm_processor_cache_gb": "rollout.options.media_cache_gib",
    "disable_log_stats": "nothing: the run keeps its own record",
}
"""Argument -> what it follows from."""

IN_RANKS = {
    "distributed_executor_backend": "the workers are the engine's processes already",
    "data_parallel_size": "each engine of the group answers its own prompts",
    "prefill_context_parallel_size": "it is not tested in a worker group; take rollout.options.tensor_parallel_size",
}
"""Argument -> why the ranks of a worker group decide it."""

PARTING = {
    "logprobs_mode": "the trainer compares with log-probabilities of the distribution that was drawn from, media tokens excluded",
    "mm_device_do_normalize": "pixels of videos would be normalised differently from training",
    "mm_processor_kwargs": "frames are final: the engine must neither resize nor sample them again",
    "media_io_kwargs": "frames are final: the engine must not read media by itself",
    "tokenizer": "engine and trainer read one tokenizer, that of the model",
    "skip_tokenizer_init": "prompts come as text with one placeholder per medium",
    "load_format": "the first answers must come from the weights in model.path",
    "quantization": "new weights are full weights of model.dtype, loaded into the same layers",
    "hf_overrides": "engine and trainer must run the same model",
}
"""Argument -> what goes wrong with another value than the engine's own."""


def workers_per_engine(options: EngineArguments) -> int:
    """Processes, one GPU each, that one engine is spread over."""
    return options.tensor_parallel_size * int(options.engine_args.get("pipeline_parallel_size", 1))


def check_ranks(ranks: int, width: int) -> None:
    """Raises RequestError where engines of `width` ranks don't fill the worker group."""
    if ranks % width:
        raise RequestError(
            f"rollout.options.tensor_parallel_size: engines of {width} neighbouring workers don't fill a group of {ranks}; "
            f"take a number that divides {ranks}"
        )


def prepare_environment(device: str, cpu_kv_cache_gib: int) -> None:
    """vLLM reads these at import. The engine stays in this process, so that weights reach it without a copy."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # Weight updates hand tensors to the worker of the same process.
    os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    if device == "cpu":
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(cpu_kv_cache_gib))
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def llm_arguments(context: EngineContext, options: EngineArguments) -> dict[str, Any]:
    """Arguments of `vllm.LLM`. Raises RequestError for keys of `engine_args` that the run or the options decide, or that are unknown."""
    arguments: dict[str, Any] = {
        "model": str(context.adapter.directory),
        "dtype": options.dtype or context.dtype,
        "seed": context.seed,
        "max_model_len": context.max_prompt_tokens + context.max_tokens,
        "max_num_seqs": options.max_num_seqs,
        "tensor_parallel_size": options.tensor_parallel_size,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "enforce_eager": options.enforce_eager or context.device == "cpu",
        "limit_mm_per_prompt": {"image": context.max_images, "video": context.max_videos},
        "logprobs_mode": "processed_logprobs",
        "mm_device_do_normalize": False,
        "mm_processor_cache_gb": options.media_cache_gib,
        "disable_log_stats": True,
    }
    if context.device == "cpu":
        # Where a step ends inside a prompt, vLLM 0.32 rewinds the seeded generator of its answer, which a CPU generator can't do.
        arguments["enable_chunked_prefill"] = False
        if has_state(context.adapter.directory):
            arguments["enable_prefix_caching"] = False  # vLLM stores states of a prefix at steps that end inside a prompt
    if options.max_num_batched_tokens is not None:
        arguments["max_num_batched_tokens"] = options.max_num_batched_tokens
    if context.ranks:
        arguments["distributed_executor_backend"] = "external_launcher"
        if context.device == "cuda" and workers_per_engine(options) > 1:
            arguments["disable_custom_all_reduce"] = True  # it maps the GPUs of its peers, and a worker sees its own alone
        for name in IN_RANKS.keys() & options.engine_args.keys():
            raise RequestError(f"rollout.options.engine_args.{name} is refused in a worker group: {IN_RANKS[name]}")
    check_arguments(options.engine_args, arguments, known_arguments())
    return {**arguments, **options.engine_args}


def has_state(directory: Path) -> bool:
    """Whether layers of the language model carry a state along the sequence, beside those of attention."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    kinds = set(config.get("text_config", config).get("layer_types") or ())
    return not kinds <= {"full_attention", "sliding_attention", "chunked_attention"}


def known_arguments() -> list[str]:
    """Names that the installed vLLM takes."""
    import dataclasses

    from vllm.engine.arg_utils import EngineArgs

    return [field.name for field in dataclasses.fields(EngineArgs)]


def check_arguments(given: Mapping[str, Any], own: Mapping[str, Any], known: list[str]) -> None:
    """Nothing is overridden in silence. Raises RequestError."""
    for name, value in given.items():
        where = f"rollout.options.engine_args.{name} = {value!r}"
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            raise RequestError(f"{where}: this vLLM has no such argument{f'; did you mean {close[0]!r}?' if close else ''}")
        if name in own and own[name] == value:
            continue
        if name in PARTING:
            raise RequestError(f"{where} is refused: {PARTING[name]}")
        if name in FROM_RUN:
            raise RequestError(f"{where} is refused: it follows from {FROM_RUN[name]}")
        if name in Options.model_fields:
            raise RequestError(f"{where} is an option of its own: give rollout.options.{name}")


def check_sleep(sleep: Literal["off", 1, 2], device: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raises RequestError where vLLM would not sleep, or pretend to (it frees 0 bytes with expandable segments)."""
    if sleep == "off":
        return
    if device == "cpu":
        raise RequestError(f"rollout.options.sleep = {sleep}: vLLM's CPU build can't sleep; set rollout.options.sleep=off")
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if "expandable_segments:true" in environment.get(name, "").lower().replace(" ", ""):
            raise RequestError(
                f"rollout.options.sleep = {sleep}: {name} has expandable_segments:True, with which sleeping frees nothing; "
                "take it out of the variable, or set rollout.options.sleep=off"
            )
