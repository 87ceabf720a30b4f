"""Evaluation as a stream: loading, generating and scoring at the same time, each question written as it is done.

    questions of one video -> [loaders: threads] -> [engine: many prompts at a time] -> [scorers: threads] -> a row each

A medium is loaded once for all its questions, and its memory is given back with the last answer about it. How much is
loaded ahead is bounded in bytes; how much is asked at a time, by what the engine has use for. A sample that fails
anywhere is one outcome with its reason; the others go on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from evr1_core.errors import Evr1Error, RequestError
from evr1_core.evaluate.benchmark import Official
from evr1_core.evaluate.results import ResultStore, prompt_row
from evr1_core.rollout.async_engine import AsyncEngine, EngineDead
from evr1_core.rollout.engine import PromptMismatch, completion_seed
from evr1_core.types import Completion, Exclusion, Prompt, Sample, Sampling, Score

_log = logging.getLogger(__name__)

GROUP = 32
"""Questions whose prompts are made together, at most: those about one video, or so many without any medium."""
SCORE_ROWS = 64
"""Questions that are scored in one call, at most."""
SCORERS = 8
"""Calls to the scorer at a time: one may wait for a judge while others go on."""
READY = 512
"""Questions that are loaded and wait for the engine, at most."""
AT_ONCE = 0.5
"""Seconds in which work that is done may still be handed on when the rest is given up."""
DEAD = 3
"""Different media (or questions without one) in a row that the engine fails at, after which it is taken for dead."""


@dataclass(frozen=True)
class Limits:
    """How far the stream may go. No number of an evaluation depends on them."""

    media_bytes: int = 4 << 30
    """Frames and model inputs that are alive at a time. A medium of an unseen size may pass it once."""
    loaders: int = max(2, min(8, os.cpu_count() or 2))
    """Videos that are loaded side by side."""
    deadline: float = 1800.0
    """Seconds that one prompt may take, from when the engine gets it."""
    grace: float = 20.0
    """Seconds that prompts under way are waited for after a request to stop."""


class Builder(Protocol):
    """What the stream asks of `evr1_core.data.prompts.PromptBuilder`."""

    def build_batch(self, samples: Sequence[Sample]) -> tuple[list[Prompt], list[Exclusion]]: ...


class Pool(Protocol):
    """What the stream asks of `evr1_core.scoring.pool.ScoringPool`."""

    def score_completions(self, pairs: Any) -> list[Score]: ...

    def counters(self) -> dict[str, float]: ...


@dataclass(eq=False)
class Parcel:
    """The media of a group of questions, alive until the last of these is answered."""

    size: int
    """Bytes."""
    open: int
    """Questions that are not answered yet."""


@dataclass(eq=False)
class Question:
    """A prompt on its way. `row` is what its results say about it; `prompt` loses its media once they were used."""

    prompt: Prompt
    row: dict[str, Any]
    load: float
    """Seconds in which its group was loaded."""
    ready: float
    """Moment at which it was."""

    @property
    def medium(self) -> Any:
        return self.prompt.sample.media or self.prompt.sample.id


Answered = tuple[Question, list[Completion]]


class Stream:
    """One run over the samples that are missing; used once.

    Raises RequestError from builder or engine, and Evr1Error for a dead engine, after what was answered is written.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        builder: Builder,
        pool: Pool,
        sampling: Sampling,
        results: ResultStore,
        *,
        official: Callable[[Sample, str], Official | None] | None = None,
        tell: Callable[[int], None] = lambda done: None,
        limits: Limits | None = None,
    ) -> None:
        """`tell` is called with the number of questions that are done."""
        self.engine, self.builder, self.pool, self.sampling, self.results = engine, builder, pool, sampling, results
        self.official, self.tell, self.limits = official, tell, limits or Limits()
        self.slots = max(1, engine.width // sampling.n)
        self.done = 0
        self.peak = 0
        """Most bytes of media that were alive."""
        self.seconds: Counter[str] = Counter()
        """Sums over the questions that were asked: `load` (of their group), `wait` for the engine, `generate`."""
        self.faults: list[str] = []
        """Answers that the official reading broke on."""
        self.stopped = ""
        """Who asked to stop."""
        self._fault: BaseException | None = None
        self._held = self._largest = self._loading = self._asking = 0
        self._sized = False
        """The size of some group is known."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._suspects: list[tuple[Question, str]] = []
        """Questions that the engine failed at since it last answered one: outcomes only once it answers again."""

    async def run(self, samples: Sequence[Sample]) -> None:
        self._changed, self._ending = asyncio.Condition(), asyncio.Event()
        self._answers: asyncio.Queue[Answered | None] = asyncio.Queue(maxsize=max(2 * SCORE_ROWS, 2 * self.slots))
        # Bounded by the bytes of media alone, but for questions that have none.
        self._ready: asyncio.Queue[tuple[Question, Parcel] | None] = asyncio.Queue(maxsize=READY)
        groups = by_media(samples)
        self._threads = ThreadPoolExecutor(self.limits.loaders, thread_name_prefix="evr1-load")
        self._scoring = ThreadPoolExecutor(SCORERS, thread_name_prefix="evr1-score")
        scorers = [asyncio.create_task(self._score_all()) for _ in range(SCORERS)]
        # Twice as many as threads: a thread that ends a load finds its next one there, and needn't wait for this loop.
        loaders = [asyncio.create_task(self._guarded(self._load_all(groups))) for _ in range(2 * self.limits.loaders)]
        asker = asyncio.create_task(self._guarded(self._ask_all()))
        try:
            await self._until_ending(loaders)
            if self._ending.is_set():
                asker.cancel()
            else:
                await self._ready.put(None)
            await self._until_ending([asker])
            await self._until_ending(self._tasks, patient=True)
            for _ in scorers:
                await self._answers.put(None)
            await asyncio.gather(*scorers)
        finally:
            for task in (*loaders, asker, *self._tasks, *scorers):
                task.cancel()
            self._threads.shutdown(wait=not self._ending.is_set(), cancel_futures=True)  # a load at work is not waited for
            self._scoring.shutdown()
        if self._fault is not None:
            raise self._fault
        if not self.stopped:
            self._write_suspects()

    def stop(self, why: str) -> None:
        """Ask nothing more; what is under way is waited for, for a while, and written."""
        self.stopped = self.stopped or why
        self._ending.set()
        self._waking = asyncio.get_running_loop().create_task(self._wake())

    # Loading ---------------------------------------------------------------------------------------------------

    async def _load_all(self, groups: Iterator[list[Sample]]) -> None:
        for group in groups:
            if not await self._wait_for(self._room):
                return
            self._loading += 1
            try:
                made = await asyncio.get_running_loop().run_in_executor(self._threads, self._build, group)
            finally:
                self._loading -= 1
            questions, excluded, size, seconds = made
            self._held += size
            self._largest, self._sized = max(self._largest, size), True
            self.peak = max(self.peak, self._held)
            await self._wake()
            for exclusion, sample in excluded:
                self.results.exclude(exclusion, sample, self.sampling.n)
                self._count(1)
            now = time.monotonic()
            parcel = Parcel(size, len(questions))
            while questions:
                question = questions.pop(0)
                question.load, question.ready = seconds, now
                await self._ready.put((question, parcel))
                del question

    def _room(self) -> bool:
        """One more group fits by the largest so far; the first one goes alone, and one always goes."""
        if not self._sized:
            return not self._loading
        return self._held + (self._loading + 1) * self._largest <= self.limits.media_bytes or not (self._held or self._loading)

    def _slot(self) -> bool:
        return self._asking < self.slots and not self._doubt()

    def _build(self, samples: Sequence[Sample]) -> tuple[list[Question], list[tuple[Exclusion, Sample]], int, float]:
        """Questions and exclusions, together one per sample; the bytes of their media, the seconds that it took."""
        began = time.monotonic()
        prompts, excluded = self._prompts(samples)
        digests: dict[int, str] = {}
        questions = [Question(prompt, prompt_row(prompt, digests), 0.0, 0.0) for prompt in prompts]
        return questions, excluded, media_bytes(prompts), time.monotonic() - began

    def _prompts(self, samples: Sequence[Sample]) -> tuple[list[Prompt], list[tuple[Exclusion, Sample]]]:
        """A fault of our own at one sample is an exclusion of this one."""
        try:
            prompts, excluded = self.builder.build_batch(samples)
        except RequestError:
            raise
        except Exception as error:
            if len(samples) == 1:
                fault = Exclusion(samples[0].id, "prompt_failed", f"{type(error).__name__}: {error}"[:300])
                return [], [(fault, samples[0])]
            parts = [self._prompts([sample]) for sample in samples]
            return [prompt for made, _ in parts for prompt in made], [one for _, left_out in parts for one in left_out]
        by_id = {sample.id: sample for sample in samples}
        return prompts, [(exclusion, by_id[exclusion.sample_id]) for exclusion in excluded]

    # Asking ----------------------------------------------------------------------------------------------------

    async def _ask_all(self) -> None:
        """Hands on what is loaded when the engine has use for it."""
        while (loaded := await self._ready.get()) is not None and await self._wait_for(self._slot):
            self._asking += 1
            task = asyncio.create_task(self._guarded(self._ask(*loaded)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            del loaded

    async def _ask(self, question: Question, parcel: Parcel) -> None:
        began, reason, completions = time.monotonic(), "", []
        try:
            async with asyncio.timeout(self.limits.deadline):
                completions = await self.engine.answer(question.prompt, self.sampling)
        except PromptMismatch as error:
            reason = f"prompt_mismatch: {error.detail}"
        except (RequestError, EngineDead):
            raise
        except TimeoutError:
            reason = f"engine: timeout: no answer within {self.limits.deadline:g} s"
        except Exception as error:
            reason = f"engine: {type(error).__name__}: {error}"
        finally:
            question.prompt = replace(question.prompt, clips=(), features={}, token_ids=())
            self._asking -= 1
            parcel.open -= 1
            self._held -= 0 if parcel.open else parcel.size
        ended = time.monotonic()
        latency = {"load": question.load, "wait": began - question.ready, "generate": ended - began}
        question.row["latency"] = {name: round(seconds, 4) for name, seconds in latency.items()}
        self.seconds.update(latency)
        if completions or reason.startswith("prompt_mismatch"):
            self._write_suspects()
        if completions:
            await self._answers.put((question, completions))
        elif reason.startswith("prompt_mismatch"):
            self._fail(question, reason)
        else:
            self._suspects.append((question, reason))
        if self._doubt() and not self._asking:
            last, why = self._suspects[-1]
            raise Evr1Error(
                f"the engine fails again and again, last at sample {last.prompt.sample.id!r}: {why[:300]}. What was answered is kept: "
                "the same command goes on"
            )
        await self._wake()

    def _doubt(self) -> bool:
        """The engine may be dead: no more is asked until one of the prompts under way is answered, or the last of them failed."""
        return len({question.medium for question, _ in self._suspects}) >= DEAD

    def _write_suspects(self) -> None:
        for question, reason in self._suspects:
            self._fail(question, reason)
        self._suspects.clear()

    def _fail(self, question: Question, reason: str) -> None:
        self.results.fail(question.prompt.sample, self.sampling.n, reason[:300], question.row)
        self._count(1)

    # Scoring ---------------------------------------------------------------------------------------------------

    async def _score_all(self) -> None:
        """Answers that wait are scored together."""
        ended = False
        while not ended and (first := await self._answers.get()) is not None:
            batch = [first]
            while len(batch) < SCORE_ROWS and not self._answers.empty():
                if (more := self._answers.get_nowait()) is None:
                    ended = True
                    break
                batch.append(more)
            try:
                await asyncio.get_running_loop().run_in_executor(self._scoring, self._score, batch)
                self._count(len(batch))
            except Exception as error:  # ends the evaluation; what the other scorers are at is still written
                await self._end_with(error)

    def _score(self, batch: Sequence[Answered]) -> None:
        pairs = [(question.prompt, completion) for question, completions in batch for completion in completions]
        scores = iter(self.pool.score_completions(pairs))
        for question, completions in batch:
            sample = question.prompt.sample
            for index, completion in enumerate(completions):
                seed = completion_seed(self.sampling.seed, sample.id, index)
                drawn = {"temperature": self.sampling.temperature, "max_tokens": self.sampling.max_tokens, "seed": seed}
                row = {**question.row, "sampling": drawn}
                self.results.add(sample, index, completion, next(scores), row, self._official(sample, completion.text))

    def _official(self, sample: Sample, text: str) -> Official | None:
        """The benchmark's own reading. A fault in it must not cost the answer, which a later scoring can read again."""
        try:
            return self.official(sample, text) if self.official else None
        except Exception as error:
            self.faults.append(f"{sample.id}: {type(error).__name__}: {error}"[:300])
            return None

    # The whole -------------------------------------------------------------------------------------------------

    async def _until_ending(self, tasks: Collection[asyncio.Task[None]], patient: bool = False) -> None:
        """Wait for the tasks. Once the stream is to end they are given up; after a request to stop, with patience, a little later."""
        ending = asyncio.create_task(self._ending.wait())
        while waiting := {task for task in tasks if not task.done()}:
            if self._ending.is_set():
                await asyncio.wait(waiting, timeout=self.limits.grace if patient and not self._fault else AT_ONCE)
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
                break
            await asyncio.wait({ending, *waiting}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            await self._end_with(error)

    async def _end_with(self, fault: BaseException) -> None:
        if not (self.stopped and isinstance(fault, EngineDead)):  # a terminal's Ctrl-C may have ended the engine too
            self._fault = self._fault or fault
        self._ending.set()
        await self._wake()

    async def _wait_for(self, ready: Callable[[], bool]) -> bool:
        """False when the stream is to end."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._ending.is_set() or ready())
        return not self._ending.is_set()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _count(self, more: int) -> None:
        self.done += more
        self.tell(self.done)


def by_media(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    """Groups of samples that show the same videos (or images), in the order of their first one; text alone in the order of the rows."""
    groups: dict[Any, list[list[Sample]]] = {}
    order: list[list[Sample]] = []
    for sample in samples:
        parts = groups.setdefault(sample.videos or sample.media, [])
        if not parts or len(parts[-1]) == GROUP:
            parts.append([])
            order.append(parts[-1])
        parts[-1].append(sample)
    yield from order


def media_bytes(prompts: Sequence[Prompt]) -> int:
    """Memory of frames and model inputs, what several prompts share counted once."""
    clips = {id(clip): clip.frames.nbytes for prompt in prompts for clip in prompt.clips}
    tensors = {id(tensor): tensor.nbytes for prompt in prompts for tensor in prompt.features.values()}
    return sum(clips.values()) + sum(tensors.values())
