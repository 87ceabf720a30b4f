"""Several engines as one: questions about one video go to one engine while it isn't much busier than the others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from evr1_core.rollout.async_engine import AsyncEngine, EngineDead
from evr1_core.types import Completion, Prompt, Sampling

HOMES = 4096
"""Media whose engine is remembered, the latest."""
SLACK = 0.25
"""Share of its width by which the engine of a video may be busier than another before that one gets the question."""


class EngineGroup:
    """Replicas of one engine. Which of them answers changes no answer; one that dies leaves its prompts to the others."""

    def __init__(self, engines: Sequence[AsyncEngine]) -> None:
        self.engines = list(engines)
        self.width = sum(engine.width for engine in engines)
        self.asked = [0] * len(self.engines)
        """Prompts that each engine was given."""
        self._busy = [0] * len(self.engines)
        self._dead: dict[int, EngineDead] = {}
        self._homes: OrderedDict[Hashable, int] = OrderedDict()

    async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        while True:
            place = self._place(prompt)
            self._busy[place] += sampling.n
            self.asked[place] += 1
            try:
                return await self.engines[place].answer(prompt, sampling)
            except EngineDead as error:
                self._dead[place] = error
            finally:
                self._busy[place] -= sampling.n

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    def _place(self, prompt: Prompt) -> int:
        alive = [place for place in range(len(self.engines)) if place not in self._dead]
        if not alive:
            raise EngineDead(f"all {len(self.engines)} engines ended, the last one: {next(reversed(self._dead.values()))}")
        sample = prompt.sample
        medium: Hashable = sample.videos or sample.media or sample.id
        load = {place: self._busy[place] / self.engines[place].width for place in alive}
        calmest = min(alive, key=lambda place: (load[place], self.asked[place]))
        home = self._homes.get(medium)
        if home not in load or load[home] - load[calmest] > SLACK:
            home = calmest
        self._homes[medium] = home
        self._homes.move_to_end(medium)
        if len(self._homes) > HOMES:
            self._homes.popitem(last=False)
        return home
