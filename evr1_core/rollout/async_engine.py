"""What evaluation asks of an engine: answers to prompts as they come, many at a time, from weights that stay.

Three kinds are served by one protocol: an engine that takes requests by itself (a process of its own, or a server), any
batch engine (`Batched`: prompts that wait are its next batch), and several engines side by side (`EngineGroup`).
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from evr1_core import plugins
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.rollout.engine import Engine, EngineContext, PromptMismatch, choose_engine, open_engine
from evr1_core.types import Completion, Prompt, Sampling

BATCH = 64
"""Prompts that a batch engine is given at once, at most."""
JOIN_SECONDS = 10.0
"""How long closing waits for a batch at work; a hanging one is left to the end of the program."""


class EngineDead(Evr1Error):
    """The engine will not answer any prompt any more."""


@runtime_checkable
class AsyncEngine(Protocol):
    """An engine of evaluation. Plugins are built as `Engine(context, options)`, see `EngineSpec.async_target`.

    It may be used from one event loop after another: what belongs to one loop stays on a loop of its own (`LoopThread`).
    """

    width: int
    """Answers it has use for at a time, the ones that wait inside it included; more only hold memory."""

    async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """`sampling.n` completions, answer j drawn from `completion_seed(sampling.seed, sample id, j)`.

        Neither other prompts nor their order change it. Cancelled, it gives up the prompt. Raises PromptMismatch for a
        prompt that the engine built otherwise, RequestError where no prompt could be answered as things are set,
        EngineDead when it ended, and whatever else where this prompt failed.
        """
        ...

    def close(self) -> None:
        """Give back memory and processes. Prompts that wait raise EngineDead."""
        ...


@dataclass(eq=False)
class _Asked:
    """A prompt that waits in a batch engine."""

    prompt: Prompt
    sampling: Sampling
    answers: Future[list[Completion]] = field(default_factory=Future)


class Batched:
    """A batch engine as an AsyncEngine: while it is at one batch, the prompts that come in are its next one.

    The engine runs in a thread of its own, on the caller's CUDA device. A batch that fails as a whole is asked again prompt
    by prompt, so that only the prompts at fault fail.
    """

    def __init__(self, engine: Engine, batch: int = BATCH, own: bool = True) -> None:
        """`own`: closing this closes the engine too."""
        self.engine, self._batch, self._own = engine, batch, own
        self.width = 2 * batch
        self.retries: list[str] = []
        """Batches that failed as a whole, with the reason."""
        self._waiting: deque[_Asked] = deque()
        self._wake = threading.Condition()
        self._closed = ""
        self._thread = threading.Thread(target=self._work, args=(_same_device(),), name="evr1-engine", daemon=True)

    async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        asked = _Asked(prompt, sampling)
        with self._wake:
            if self._closed:
                raise EngineDead(self._closed)
            if self._thread.ident is None:
                self._thread.start()
            self._waiting.append(asked)
            self._wake.notify()
        return await asyncio.wrap_future(asked.answers)

    def close(self) -> None:
        self._end("the engine was closed")
        if self._thread.ident is not None:
            self._thread.join(JOIN_SECONDS)
        if self._own and not self._thread.is_alive():
            self.engine.close()

    def _end(self, why: str) -> None:
        with self._wake:
            self._closed = self._closed or why
            waiting = list(self._waiting)
            self._waiting.clear()
            self._wake.notify()
        for asked in waiting:
            if asked.answers.set_running_or_notify_cancel():
                asked.answers.set_exception(EngineDead(self._closed))

    def _work(self, begin: Callable[[], None]) -> None:
        begin()
        while batch := self._next():
            try:
                self._serve(batch)
            except BaseException as error:  # not this batch alone: the program is to end, or the engine's thread is
                self._end(f"the engine stopped: {type(error).__name__}: {error}")
                for asked in batch:
                    if not asked.answers.done():
                        asked.answers.set_exception(EngineDead(self._closed))
                return

    def _next(self) -> list[_Asked]:
        """Prompts that are asked alike; empty when it is closed."""
        batch: list[_Asked] = []
        with self._wake:
            while not batch and not self._closed:
                self._wake.wait_for(lambda: self._waiting or self._closed)
                sampling = self._waiting[0].sampling if self._waiting else None
                while self._waiting and len(batch) < self._batch and self._waiting[0].sampling == sampling:
                    asked = self._waiting.popleft()
                    if asked.answers.set_running_or_notify_cancel():
                        batch.append(asked)
        return batch

    def _serve(self, batch: Sequence[_Asked]) -> None:
        try:
            found = self.engine.generate([asked.prompt for asked in batch], batch[0].sampling)
        except Exception as error:
            if len(batch) == 1 or isinstance(error, RequestError):
                for asked in batch:
                    asked.answers.set_exception(error)
                return
            self.retries.append(f"{len(batch)} prompts at once: {type(error).__name__}: {error}"[:300])
            for asked in batch:
                self._serve([asked])
            return
        for asked, answers in zip(batch, found, strict=True):
            if isinstance(answers, PromptMismatch):
                asked.answers.set_exception(answers)
            else:
                asked.answers.set_result(answers)


def _same_device() -> Callable[[], None]:
    """Makes this thread's CUDA device that of another thread: torch keeps one per thread."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return lambda: None
    device = torch.cuda.current_device()
    return lambda: torch.cuda.set_device(device)


def open_async_engine(name: str, options: Mapping[str, Any], context: EngineContext, engines: int = 1) -> AsyncEngine:
    """The engine `name` (or `auto`) for evaluation, started: its own asynchronous form where it has one, else in batches.

    `engines`: so many of them, each in a process of its own that Ray places.
    """
    if engines > 1:
        from evr1_core.rollout.replicas import open_replicas

        return open_replicas(name, options, context, engines)
    spec = choose_engine(name, context.device)
    if spec.async_target is None:
        return Batched(open_engine(spec.name, options, context))
    plugins.check_requirements(spec)
    return plugins.resolve(spec.async_target)(context, plugins.options(spec, options, where="rollout.options"))
