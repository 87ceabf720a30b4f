"""What can be turned where a run doesn't fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from evr1_core.capacity.cluster import GIB
from evr1_core.capacity.memory import Setting
from evr1_core.config.models import LoraSection


@dataclass(frozen=True, slots=True, eq=False)
class Knob:
    """One change of a run."""

    text: str
    changes: dict[str, Any]
    """Dotted keys of the configuration -> values."""
    same_training: bool = True
    """The run learns the same, up to rounding, on the same machines."""
    longest: int | None = None
    """Tokens of the longest prompt after it."""
    gpus: int | None = None


def knobs(setting: Setting, over: float, tokens: int | None) -> Iterator[Knob]:
    """Everything that isn't turned yet. `over`: bytes that the worst phase takes too much; `tokens`: the largest micro-batch that fits."""
    config, placed = setting.config, setting.layout
    for key, value in _settings(setting).items():
        if _get(config, key) != value:
            yield Knob(f"{key}={str(value).lower() if isinstance(value, bool) else value}", {key: value})
    if config.train.optimizer_offload == "off":
        yield Knob("train.optimizer_offload=rollout", {"train.optimizer_offload": "rollout"})
    if tokens is not None and tokens < config.train.micro_batch_tokens:
        yield Knob(f"train.micro_batch_tokens={tokens}", {"train.micro_batch_tokens": tokens})
    yield from _engine(setting, over)
    yield from _other_training(setting)
    longest = setting.work.longest // 2
    yield Knob(f"data.max_prompt_tokens={longest}", {"data.max_prompt_tokens": longest}, same_training=False, longest=longest)
    more: dict[str, Any] = {} if placed.sharded else {"cluster.backend": "ray"}
    count = 2 * (placed.workers + placed.separate)
    text = f"{count} GPUs{' with cluster.backend=ray' if more else ''}"
    yield Knob(text, {**more, "cluster.workers": None}, same_training=False, gpus=count)


def _settings(setting: Setting) -> dict[str, Any]:
    """Keys and the values that need least memory."""
    config, placed = setting.config, setting.layout
    found: dict[str, Any] = {
        "model.gradient_checkpointing": True,
        "model.activation_offload": True,
        "train.optimizer_offload": "always",
        "model.weights_offload": True,
    }
    if config.model.attention == "eager":
        found["model.attention"] = "sdpa"
    if setting.reference:
        found["model.reference_device"] = "cpu"
    if placed.sharded:
        found |= {
            "train.optimizer": "adamw_fused",
            "cluster.shard.cpu_offload": True,
            "cluster.shard.reshard": True,
            "cluster.shard.sync": "every",
            "cluster.shard.replicas": 1,
            "cluster.sequence_parallel": 2 * config.cluster.sequence_parallel,
        }
    return found


def _engine(setting: Setting, over: float) -> Iterator[Knob]:
    engine = setting.engine
    if engine.sleep == "off" and not setting.layout.separate:
        yield Knob("rollout.options.sleep=2", {"rollout.options.sleep": 2})
    if engine.share is None:
        return
    width = 2 * engine.width
    yield Knob(f"rollout.options.tensor_parallel_size={width}", {"rollout.options.tensor_parallel_size": width})
    lower = int(100 * (engine.share - over / GIB / setting.gpu.gib)) / 100
    if over > 0 and lower > 0:
        yield Knob(f"rollout.options.gpu_memory_utilization={lower}", {"rollout.options.gpu_memory_utilization": lower})


def _other_training(setting: Setting) -> Iterator[Knob]:
    """Knobs with which the run learns something else, or with other numbers."""
    config, model = setting.config, setting.config.model
    if model.dtype != "bfloat16":
        yield Knob("model.dtype=bfloat16", {"model.dtype": "bfloat16"}, same_training=False)
    if not setting.layout.sharded and config.train.optimizer != "adamw_8bit":
        yield Knob("train.optimizer=adamw_8bit", {"train.optimizer": "adamw_8bit"}, same_training=False)
    if model.lora is None:
        yield Knob("model.lora={rank: 16}", {"model.lora": LoraSection()}, same_training=False)
        if "vision" not in model.freeze and setting.anatomy.parts.get("vision"):
            yield Knob("model.freeze=[vision]", {"model.freeze": (*model.freeze, "vision")}, same_training=False)


def _get(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config
