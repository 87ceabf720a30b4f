"""Signs of life of the ranks that have not answered a call yet, and which of them is the late one."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

LOOK_SECONDS = 5.0
SHOWN_WAITING = 4


@dataclass(frozen=True)
class Sign:
    """One rank, as it was seen last."""

    steps: int
    """Pieces of work that it has begun in this call."""
    quiet: float
    """Seconds since it began the last of them."""
    silent: float
    """Seconds since it answered."""
    waits: bool = False
    """It waits for other ranks: the innermost frame of its working thread is in torch.distributed."""


def choose_late(signs: Mapping[int, Sign], deadline: float, silence: float) -> int | None:
    """The rank that the others wait for, where it or they have made no progress for longer than `deadline` seconds.

    A rank that has given no answer for `silence` seconds is late. Else it is the one that is not inside a collective, then the one that
    is behind, then the one that has been quiet for longest. As long as that one moves, the others wait for up to twice the deadline.
    """
    if not signs:
        return None
    mute = max(signs, key=lambda rank: signs[rank].silent)
    if signs[mute].silent > silence:
        return mute
    late = min(signs, key=lambda rank: (signs[rank].waits, signs[rank].steps, -signs[rank].quiet))
    longest = max(sign.quiet for sign in signs.values())
    return late if signs[late].quiet > deadline or longest > 2 * deadline else None


def in_collective(stack: str) -> bool:
    """Whether the innermost frame of a stack is in torch.distributed."""
    files = re.findall(r'File "([^"]+)"', stack)
    return bool(files) and "torch/distributed/" in files[-1]


class Heartbeat:
    """Asks the actors of a group for their state, without waiting for the answers."""

    def __init__(self, actors: Sequence[Any], deadline: float) -> None:
        self._actors, self._deadline = actors, deadline
        self._begun = time.monotonic()
        self._asked: dict[int, Any] = {}
        self._states: dict[int, dict[str, Any]] = {}
        self._heard: dict[int, float] = {}

    def state(self, rank: int) -> dict[str, Any]:
        """What a rank was doing when it answered last; empty where it never has."""
        return self._states.get(rank, {})

    def beat(self, ranks: Sequence[int]) -> None:
        """Take the answers that have come, and ask again."""
        import ray
        from ray.exceptions import RayError

        for rank in ranks:
            asked = self._asked.get(rank)
            if asked is not None:
                if not ray.wait([asked], timeout=0)[0]:
                    continue
                with suppress(RayError):  # the call itself brings the same error, and it is handled there
                    self._states[rank], self._heard[rank] = ray.get(asked), time.monotonic()
            self._asked[rank] = self._actors[rank].status.options(concurrency_group="control").remote()

    def late(self, ranks: Sequence[int], over: bool = False) -> tuple[int, Sign, dict[int, dict[str, Any]]] | None:
        """The late rank, how it was seen, and what was seen of all; None while the call goes on as it should.

        `over`: the time of the whole call is over, so that one of them is late in any case.
        """
        deadline, silence = (0.0, LOOK_SECONDS) if over else (self._deadline, self._deadline)
        signs = {rank: self._sign(rank) for rank in ranks}
        if all(sign.quiet <= deadline and sign.silent <= silence for sign in signs.values()):
            return None
        seen = self._look(ranks)
        signs = {rank: self._sign(rank, in_collective(seen.get(rank, {}).get("stack", ""))) for rank in ranks}
        late = choose_late(signs, deadline, silence)
        return None if late is None else (late, signs[late], seen)

    def _sign(self, rank: int, waits: bool = False) -> Sign:
        now = time.monotonic()
        state = self.state(rank)
        silent = now - self._heard.get(rank, self._begun)
        # An answer from before the call counts no time from before it.
        quiet = min(now - self._begun, silent + float(state.get("seconds", 0.0)))
        return Sign(int(state.get("steps", 0)), quiet, silent, waits)

    def _look(self, ranks: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Stack and last lines of the ranks that give them within a few seconds."""
        import ray
        from ray.exceptions import RayError

        asked = {self._actors[rank].look.options(concurrency_group="control").remote(): rank for rank in ranks}
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=LOOK_SECONDS)
        seen: dict[int, dict[str, Any]] = {}
        for answer in ready:
            try:
                found = ray.get(answer)
            except RayError:
                continue  # it ended just now: its call says so
            seen[asked[answer]] = self._states[asked[answer]] = found
            self._heard[asked[answer]] = time.monotonic()
        return seen


def waiting_lines(late: int, seen: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """One line for each rank beside the late one: what it waits in, and for how long."""
    lines = []
    for rank, state in sorted(seen.items()):
        if rank != late:
            detail = f" ({state['detail']})" if state["detail"] else ""
            frames = re.findall(r'File "[^"]*?([^"/]+)", line (\d+), in (\S+)', str(state["stack"]))
            at = f", at {frames[-1][2]} ({frames[-1][0]}:{frames[-1][1]})" if frames else ""
            lines.append(f"rank {rank} has been in {state['phase']}{detail} for {state['seconds']:,.0f} s{at}")
    more = len(lines) - SHOWN_WAITING
    return lines[:SHOWN_WAITING] + ([f"and {more} more ranks"] if more > 0 else [])
