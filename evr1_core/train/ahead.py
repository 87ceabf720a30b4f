"""Asynchronous training: answers for the next steps are drawn while the present one is trained on (`train.async_steps`).

With k steps ahead the answers of a step come from weights at most k updates old. The loss of such answers is weighed by the
probability of each token under the weights at the start of the update over that under the weights that drew it, truncated
(the decoupled objective of AReaL, arXiv 2505.24298; `algorithm.tis` chooses the form); answers of the present weights are not.

One thread collects, step by step, so that data and seeds come in the order of a synchronous run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from evr1_core.errors import RequestError
from evr1_core.record.record import Record, StepRecord
from evr1_core.types import Group

Collected = tuple[list[Group], list[Group]]
"""(groups to learn from, groups beyond the batch)."""


@dataclass(frozen=True)
class Batch:
    """The groups of one step."""

    step: int
    groups: Collected
    record: StepRecord
    order: dict[str, Any]
    """Position in the data behind them."""


class Ahead:
    """Collects the groups of a step up to `steps` steps before they are trained on."""

    def __init__(
        self, collect: Callable[[StepRecord, int], Collected | None], record: Record, order: Callable[[], dict], steps: int
    ) -> None:
        """`collect` gives None where the data are used up; `order` gives the position in the data."""
        self.steps = steps
        self._collect, self._record, self._order = collect, record, order
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="evr1-collect")
        self._waiting: deque[Future[Batch | None]] = deque()
        self._next: int | None = None
        self.position: dict[str, Any] | None = None
        """In the data, behind the step that is trained on: where a checkpoint goes on."""

    def take(self, record: StepRecord, step: int, last: int) -> Collected:
        """The groups of `step`, waited for; those of the `steps` after it, none beyond `last`, are on their way when this returns."""
        self._begin(step, last)
        start = time.perf_counter()
        batch = self._waiting.popleft().result()
        record.log({"async/waited": time.perf_counter() - start})
        assert batch is not None and batch.step == step
        record.adopt(batch.record)
        self.position = batch.order
        return batch.groups

    def _begin(self, step: int, last: int) -> None:
        first = step if self._next is None else self._next
        self._next = max(first, min(step + self.steps, last) + 1)
        for number in range(first, self._next):
            self._waiting.append(self._pool.submit(self._run, number))

    def _run(self, step: int) -> Batch | None:
        record = StepRecord(self._record, step, shown=False)
        groups = self._collect(record, step)
        return None if groups is None else Batch(step, groups, record, self._order())

    def idle(self) -> bool:
        """Whether nothing is on its way."""
        return not self._waiting

    def used_up(self) -> bool:
        """Whether the next step has no data. Waits for its groups."""
        return self._waiting[0].result() is None

    def close(self) -> None:
        """Nothing more is collected; what is being collected ends with the engine."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def check_async(steps: int, separate: bool, dynamic: bool, surplus: str) -> None:
    """Raises RequestError where rollouts can't overlap updates."""
    if not steps:
        return
    if not separate:
        raise RequestError(
            f"train.async_steps={steps} draws answers during the update: engines need workers of their own, "
            "so give cluster.backend=ray and rollout.placement=separate"
        )
    if dynamic and surplus == "keep":
        raise RequestError(
            f"train.async_steps={steps} goes with algorithm.surplus=drop: groups left over by one step are collected for another already"
        )
