"""Replicas of an engine in processes that Ray places: one per GPU (or per group of GPUs), on this machine or a cluster.

`RAY_ADDRESS` names a running cluster; without it Ray is started on this machine.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from evr1_core.errors import Evr1Error, RequestError
from evr1_core.policy.load import load_adapter
from evr1_core.rollout.async_engine import EngineDead, open_async_engine
from evr1_core.rollout.engine import EngineContext, PromptMismatch
from evr1_core.rollout.group import EngineGroup
from evr1_core.types import Completion, Prompt, Sampling

_log = logging.getLogger(__name__)

START_SECONDS = 1800.0
"""Loading a large model on every GPU at once takes its time."""


def open_replicas(name: str, options: Mapping[str, Any], context: EngineContext, count: int) -> EngineGroup:
    """`count` engines, each in a Ray actor with its own GPUs. Raises RequestError where Ray is missing or has too few GPUs."""
    try:
        import ray
    except ImportError as error:
        raise RequestError(f"evaluate.engines={count} needs Ray, which is not installed: pip install 'evr1[ray]'") from error
    if context.model is not None:
        raise RequestError("replicas load the weights themselves: a policy's own module can't be shared with them")
    if not ray.is_initialized():
        # Ray starts its processes at a niceness of 15: on a busy machine this program's decoders would starve the engines.
        os.environ.setdefault("RAY_worker_niceness", "0")
        ray.init(address=os.environ.get("RAY_ADDRESS"), include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    gpus = int(options.get("tensor_parallel_size", 1)) if context.device == "cuda" else 0
    there = int(ray.cluster_resources().get("GPU", 0))
    if count * gpus > there:
        raise RequestError(f"evaluate.engines={count} with {gpus} GPUs each needs {count * gpus}, Ray has {there}")
    plain = {field.name: getattr(context, field.name) for field in fields(context) if field.name not in ("adapter", "model")}
    host: Any = ray.remote(Host)
    actors: list[Any] = [
        # Every prompt that the engine has use for runs at a time; the engine itself says which these are.
        host.options(num_gpus=gpus, num_cpus=1, max_concurrency=4096).remote(
            name, dict(options), (str(context.adapter.directory), dict(context.adapter.chat)), plain
        )
        for _ in range(count)
    ]
    try:
        widths = ray.get([actor.width.remote() for actor in actors], timeout=START_SECONDS)
    except BaseException:
        for actor in actors:
            ray.kill(actor)
        raise
    return EngineGroup([Replica(actor, width) for actor, width in zip(actors, widths, strict=True)])


class Replica:
    """AsyncEngine on an actor."""

    def __init__(self, actor: Any, width: int) -> None:
        self._actor, self.width = actor, width

    async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        from ray.exceptions import RayActorError

        try:
            kind, found = await self._actor.answer.remote(prompt, sampling)
        except RayActorError as error:
            raise EngineDead(f"its process ended: {error}") from error
        if kind == "answers":
            return found
        raise {"mismatch": PromptMismatch, "request": RequestError, "dead": EngineDead}.get(kind, Evr1Error)(*found)

    def close(self) -> None:
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError

        try:
            ray.get(self._actor.close.remote(), timeout=30)
        except (GetTimeoutError, RayActorError) as error:
            _log.info("an engine's process did not close by itself (%s) and is killed", type(error).__name__)
        ray.kill(self._actor)


class Host:
    """The actor: one engine in its own process. Errors travel as values, since not all of them can be pickled."""

    def __init__(self, name: str, options: dict[str, Any], model: tuple[str, dict[str, Any]], context: dict[str, Any]) -> None:
        self._engine = open_async_engine(name, options, EngineContext(adapter=load_adapter(*model), **context))

    async def width(self) -> int:
        return self._engine.width

    async def answer(self, prompt: Prompt, sampling: Sampling) -> tuple[str, Any]:
        try:
            return "answers", await self._engine.answer(prompt, sampling)
        except PromptMismatch as error:
            return "mismatch", (error.sample_id, error.detail)
        except RequestError as error:
            return "request", (str(error),)
        except EngineDead as error:
            return "dead", (str(error),)
        except Exception as error:
            return "failed", (f"{type(error).__name__}: {error}",)

    async def close(self) -> None:
        self._engine.close()
