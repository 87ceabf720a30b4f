"""An event loop in a thread of its own, for what must stay on one loop while its callers come and go."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Clients of a server or of an engine process belong to the loop that first used them; each evaluation runs a loop of its own.

    The thread is a daemon: a client that hangs does not keep the program from ending.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, for a caller on another loop; cancelling the caller cancels the work."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """The result of `work`, for a thread without a loop. Raises TimeoutError after `timeout` seconds."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def close(self) -> None:
        """Cancel what still runs and end the thread."""
        if self._loop.is_closed():
            return
        self.call(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Processes that this thread starts meanwhile, and theirs, never get SIGINT: a terminal sends Ctrl-C to all of a program's
    processes, and those that serve the program are ended by it, in their time. SIGTERM reaches them as ever.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a new process inherits the mask of the thread
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
