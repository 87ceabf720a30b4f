"""What training and evaluation build alike: the prompt builder, the engine's context, the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from evr1_core.config.models import RunConfig
from evr1_core.data.prompts import Ask, PromptBuilder
from evr1_core.errors import RequestError
from evr1_core.media.store import MediaStore
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.rollout.engine import EngineContext
from evr1_core.types import Sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def model_name(config: RunConfig) -> str:
    if config.model.path is None:
        raise RequestError("no model: give model.path or --model NAME; `evr1 models list` shows the presets")
    return config.model.path


def open_store(config: RunConfig) -> MediaStore:
    """The one way from files to frames."""
    media = config.media
    return MediaStore(media.cache_dir, media.mode, media.deadline, tolerate=media.tolerate, codec=media.codec)


def open_builder(
    config: RunConfig, adapter: ModelAdapter, store: MediaStore, phase: Literal["train", "evaluate"] = "train", ask: Ask | None = None
) -> PromptBuilder:
    """The one prompt builder, with the budget of `train` or `evaluate`; `ask` words the samples where that is not left to templates."""
    section = config.media.train if phase == "train" else config.media.evaluate
    return PromptBuilder(
        adapter,
        store,
        section.budget(),
        template=config.data.template,
        max_prompt_tokens=config.data.max_prompt_tokens,
        overlong=config.data.overlong,
        bad_rows=config.data.bad_rows,
        use=config.rewards.use,
        ask=ask,
    )


def engine_context(
    config: RunConfig,
    adapter: ModelAdapter,
    samples: Sequence[Sample],
    device: str,
    model: PreTrainedModel | None = None,
    max_tokens: int | None = None,
    ranks: int = 0,
) -> EngineContext:
    """What the engine must hold: the longest prompt and answer, the most media in one row; and the world that it lives in."""
    return EngineContext(
        adapter=adapter,
        dtype=config.model.dtype,
        device=device,
        max_prompt_tokens=config.data.max_prompt_tokens,
        max_tokens=max_tokens or config.rollout.max_tokens,
        seed=config.seed,
        max_images=max((len(sample.images) for sample in samples), default=0),
        max_videos=max((len(sample.videos) for sample in samples), default=0),
        attention=config.model.attention,
        model=model,
        ranks=ranks,
    )


def choose_device(wanted: str) -> str:
    if wanted == "cpu":
        return wanted
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        raise RequestError("model.device = cuda: torch finds no CUDA GPU here; take model.device=auto or cpu, or a CUDA build of torch")
    return "cpu"
