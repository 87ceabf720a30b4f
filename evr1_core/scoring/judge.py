"""The judge: a language model that grades answers, for every reward that asks one. Training and evaluation share it.

    reward: answer.ask(prompt)  ->  Judge  ->  a reply from the cache, or from the model behind it

`Judge` is what all of them have in common: replies from the disk, one request for equal questions, a limit of how many are
under way, retries, a budget, counters. What answers is a `JudgeModel`: an endpoint (judge_endpoint.py) or an engine in this
process (evr1_core/rollout/judge.py). Its work runs on an event loop in a thread of its own, so that it can be asked from
threads and from asyncio, and one that hangs is cancelled.

A failure is `ScoringFailed("judge_unavailable: why")`, never a reply that nobody gave.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from evr1_core.config.rewards import JudgeSection
from evr1_core.scoring.judge_cache import JudgeCache, reply_key
from evr1_core.scoring.reward import ScoringFailed

BACK_OFF = 1.0
"""Seconds before the second try, at most; doubled for each further one."""
MAX_BACK_OFF = 30.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered."""

    text: str
    tokens: int = 0
    """Of the question and the reply; 0 where the model doesn't tell."""


class Passing(Exception):
    """A fault that may pass, so that the question is asked again; `after`: seconds that the model asks to wait before."""

    def __init__(self, why: str, after: float | None = None) -> None:
        self.why, self.after = why, after
        super().__init__(why)


class JudgeModel(Protocol):
    """What answers the questions."""

    identity: Mapping[str, Any]
    """Everything that may change a reply, as JSON values: part of the key of a stored reply."""

    async def reply(self, prompt: str) -> Reply:
        """One try. Raises Passing, or ScoringFailed (see `unavailable`) where another try is of no use."""
        ...

    async def close(self) -> None:
        """Give back connections, memory and processes."""
        ...


@dataclass
class JudgeCounters:
    """What a judge did since it was made."""

    asked: int = 0
    """Questions of rewards."""
    cached: int = 0
    """Questions whose reply was on the disk."""
    shared: int = 0
    """Questions that were being asked already."""
    requests: int = 0
    """Requests to the model, retries included."""
    retried: int = 0
    failed: int = 0
    """Questions without a reply."""
    tokens: int = 0
    """Of questions and replies, as the model reports them."""
    seconds: float = 0.0
    """Waiting for the model, added up over questions."""
    cache_failed: int = 0
    """Replies that were used but could not be written to the disk."""

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def unavailable(why: str) -> ScoringFailed:
    """The failure of a judge that gives no reply."""
    return ScoringFailed(f"judge_unavailable: {why}"[:300])


class Judge:
    """Asks a model; usable from threads and from asyncio, a context manager."""

    def __init__(self, model: JudgeModel, section: JudgeSection) -> None:
        """Raises RequestError when the folder of the cache can't be written."""
        self.section, self.counters = section, JudgeCounters()
        self._model = model
        self._cache = JudgeCache(section.cache_dir) if section.cache else None
        self._slots = asyncio.Semaphore(section.concurrency)
        self._under_way: dict[str, asyncio.Task[str]] = {}
        self._resume_at = 0.0
        """Clock time before which the model wants no request."""
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="evr1-judge", daemon=True)
        self._thread.start()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, prompt: str) -> str:
        """The reply. Raises ScoringFailed: the cause begins with `judge_unavailable` and says why."""
        return self.submit(prompt).result()

    def submit(self, prompt: str) -> Future[str]:
        """The reply when it is there; `asyncio.wrap_future` makes it awaitable."""
        if self._closed:
            failed: Future[str] = Future()
            failed.set_exception(unavailable("it was closed"))
            return failed
        return asyncio.run_coroutine_threadsafe(self._ask(prompt), self._loop)

    def close(self) -> None:
        """Cancel what is under way. May be called twice."""
        if self._closed:
            return
        self._closed = True
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_default_executor()  # a model in this process ends what it is at
        await self._model.close()

    async def _ask(self, prompt: str) -> str:
        """Equal questions that are under way at the same time are one."""
        self.counters.asked += 1
        prompt = prompt.encode("utf-8", "replace").decode()  # a lone surrogate of a row can't be sent
        key = reply_key(self._model.identity, prompt)
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = self._loop.create_task(self._answer(key, prompt))
            task.add_done_callback(lambda done: self._forget(key, done))
        else:
            self.counters.shared += 1
        return await asyncio.shield(task)

    def _forget(self, key: str, done: asyncio.Task[str]) -> None:
        del self._under_way[key]
        if not done.cancelled():
            done.exception()  # seen, also where nobody waits for it any more

    async def _answer(self, key: str, prompt: str) -> str:
        if self._cache:
            stored = await asyncio.to_thread(self._cache.get, key)
            if stored is not None:
                self.counters.cached += 1
                return stored
        async with self._slots:
            start = time.monotonic()
            try:
                reply = await self._request(prompt)
            except ScoringFailed:
                self.counters.failed += 1
                raise
            finally:
                self.counters.seconds += time.monotonic() - start
        self.counters.tokens += reply.tokens
        if self._cache:
            try:
                await asyncio.to_thread(self._cache.put, key, self._model.identity, prompt, reply.text)
            except OSError:  # a full disk must not cost a reply that is there; the count is in the metrics
                self.counters.cache_failed += 1
        return reply.text

    async def _request(self, prompt: str) -> Reply:
        """Up to `tries` requests, each within `timeout`."""
        for number in range(1, self.section.tries + 1):
            await asyncio.sleep(self._resume_at - time.monotonic())
            self._spend()
            try:
                async with asyncio.timeout(self.section.timeout):
                    return await self._model.reply(prompt)
            except TimeoutError:
                fault = Passing(f"no reply within {self.section.timeout:g} s")
            except Passing as passing:
                fault = passing
            if number == self.section.tries:
                raise unavailable(f"{fault.why} (tries: {number})")
            if fault.after is not None and fault.after > self.section.timeout:
                raise unavailable(f"{fault.why}; it asks to wait {fault.after:.0f} s, longer than rewards.judge.timeout")
            self.counters.retried += 1
            await asyncio.sleep(self._delay(number, fault.after))
        raise AssertionError("unreachable: tries is at least 1")

    def _spend(self) -> None:
        """Take one request from the budget."""
        section, spent = self.section, self.counters
        if section.max_requests is not None and spent.requests >= section.max_requests:
            raise unavailable(f"the budget rewards.judge.max_requests={section.max_requests} is used up")
        if section.max_total_tokens is not None and spent.tokens >= section.max_total_tokens:
            raise unavailable(f"the budget rewards.judge.max_total_tokens={section.max_total_tokens} is used up")
        spent.requests += 1

    def _delay(self, number: int, after: float | None) -> float:
        """Seconds before the next try: exponential with jitter, so that many don't come back at once. What the model asks for holds
        for every question."""
        jitter = min(BACK_OFF * 2 ** (number - 1), MAX_BACK_OFF) * random.uniform(0.5, 1)
        if after is None:
            return jitter
        self._resume_at = max(self._resume_at, time.monotonic() + after)
        return after + 0.1 * jitter


def open_judge(section: JudgeSection | None) -> Judge | None:
    """The judge of a configuration, None without one.

    Raises RequestError for a missing key, library or model; nothing is asked yet.
    """
    if section is None:
        return None
    if section.engine is None:
        from evr1_core.scoring.judge_endpoint import EndpointModel

        return Judge(EndpointModel(section), section)
    from evr1_core.rollout.judge import EngineModel  # torch, and a model's weights

    return Judge(EngineModel(section), section)
