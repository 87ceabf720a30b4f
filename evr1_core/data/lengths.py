"""Lengths of prompts from the headers of their media: nothing is decoded, no prompt is built.

    tokens = tokens of the text with the smallest medium at every place + what each medium adds beyond that

Each medium adds the same number wherever it stands, so it is counted once, however many rows show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from evr1_core.data.shrink import Length, Size, smaller
from evr1_core.errors import MediaError
from evr1_core.media.plan import Plan
from evr1_core.types import Budget, MediaRef, PatchFactors

CHUNK = 256
"""Media after which progress is told."""

Pair = tuple[MediaRef, Budget]
Kind = Literal["image", "video"]
Progress = Callable[[str, int, int], None]
"""(what is being done, done, total)."""


class Store(Protocol):
    """What is asked of `evr1_core.media.store.MediaStore`."""

    def plan_many(
        self, refs: Sequence[MediaRef], budget: Budget | Sequence[Budget], factors: PatchFactors, workers: int
    ) -> Sequence[Plan | MediaError]: ...


class Adapter(Protocol):
    """What is asked of a model family."""

    factors: PatchFactors

    def render(self, messages: Sequence[Mapping[str, object]]) -> tuple[str, str]: ...

    def plan_tokens(self, text: str, plans: Sequence[Plan]) -> int: ...


class Row(NamedTuple):
    """What the length of a prompt depends on."""

    base: int
    """`Lengths.base` of its text."""
    media: tuple[MediaRef, ...]


class Fitted(NamedTuple):
    """The length of a row, and what a smaller budget did to it."""

    length: Length
    """Under the budget that the row gets: the whole one, or the largest that fits."""
    full: int
    """Tokens under the whole budget."""
    least: int | None = None
    """Tokens under the smallest budget tried, where not even that one fits; `length` is then under the whole budget."""


def nothing(what: str, done: int, total: int) -> None:
    """Progress that nobody wants to see."""


class Lengths:
    """Counts for one model and store. Sizes are remembered by file name: for rows of one run, not for files that change."""

    def __init__(self, adapter: Adapter, store: Store, budget: Budget, workers: int) -> None:
        self.adapter, self.store, self.budget, self.workers = adapter, store, budget, workers
        self._sizes: dict[Pair, Size] = {}
        side = adapter.factors.pixels
        self._units = {kind: Plan(kind, 1, side, side, (0,), (0.0,), 1.0, 1, 1.0, 1.0) for kind in ("image", "video")}
        self._alone: dict[Kind, tuple[str, int]] = {}

    def base(self, text: str, media: Sequence[MediaRef]) -> int:
        """Tokens of a prompt text when each of its media is as small as can be."""
        return self.adapter.plan_tokens(text, [self._units[ref.kind] for ref in media])

    def look(self, wanted: Iterable[Pair], progress: Progress, what: str) -> dict[Pair, MediaError]:
        """Read the headers of media whose sizes aren't known, each once; returns those that can't be used."""
        unknown = [pair for pair in dict.fromkeys(wanted) if pair not in self._sizes]
        failed: dict[Pair, MediaError] = {}
        progress(what, 0, len(unknown))
        for first in range(0, len(unknown), CHUNK):
            chunk = unknown[first : first + CHUNK]
            refs, budgets = [ref for ref, _ in chunk], [budget for _, budget in chunk]
            for pair, found in zip(chunk, self.store.plan_many(refs, budgets, self.adapter.factors, self.workers), strict=True):
                if isinstance(found, MediaError):
                    failed[pair] = found
                else:
                    self._sizes[pair] = self._size(found)
            progress(what, first + len(chunk), len(unknown))
        return failed

    def measure(self, rows: Sequence[Row], limit: int | None = None, progress: Progress = nothing) -> list[Fitted | MediaError]:
        """The length of each row. With a `limit`, the budget of a longer row is made smaller until it fits (`shrink`)."""
        found = self._under([(row, self.budget) for row in rows], progress, "media headers")
        fitted = [one if isinstance(one, MediaError) else Fitted(one, one.tokens) for one in found]
        if limit is not None:
            long = {at: one for at, one in enumerate(fitted) if isinstance(one, Fitted) and one.full > limit}
            for at, one in self._shrunk(rows, long, limit, progress).items():
                fitted[at] = one
        return fitted

    def _shrunk(self, rows: Sequence[Row], long: Mapping[int, Fitted], limit: int, progress: Progress) -> dict[int, Fitted | MediaError]:
        """Rows that are too long, by their place, with the first budget of the rule with which they fit."""
        made: dict[int, Fitted | MediaError] = {}
        trying = {at: one.length for at, one in long.items()}
        while trying:
            budgets: dict[int, Budget] = {}
            for at, length in trying.items():
                budget = smaller(self.budget, length, limit, self.adapter.factors)
                if budget is None:
                    made[at] = long[at]._replace(least=length.base if length.base > limit else length.tokens)
                else:
                    budgets[at] = budget
            wanted = [(rows[at], budget) for at, budget in budgets.items()]
            found = dict(zip(budgets, self._under(wanted, progress, "smaller media"), strict=True))
            trying = {}
            for at, one in found.items():
                if isinstance(one, MediaError):
                    made[at] = one
                elif one.tokens > limit:
                    trying[at] = one
                else:
                    made[at] = long[at]._replace(length=one)
        return made

    def _under(self, wanted: Sequence[tuple[Row, Budget]], progress: Progress, what: str) -> list[Length | MediaError]:
        failed = self.look(((ref, budget) for row, budget in wanted for ref in row.media), progress, what)

        def one(row: Row, budget: Budget) -> Length | MediaError:
            for ref in row.media:
                if (ref, budget) in failed:
                    return failed[ref, budget]
            return Length(row.base, tuple(self._sizes[ref, budget] for ref in row.media), budget)

        return [one(row, budget) for row, budget in wanted]

    def _size(self, plan: Plan) -> Size:
        factors = self.adapter.factors
        if plan.kind not in self._alone:
            text, _ = self.adapter.render([{"role": "user", "content": [{"type": plan.kind}]}])
            self._alone[plan.kind] = text, self.adapter.plan_tokens(text, [self._units[plan.kind]])
        text, smallest = self._alone[plan.kind]
        cells = (plan.height // factors.pixels) * (plan.width // factors.pixels)
        vision = cells * -(-plan.frames // factors.frames)
        return Size(plan.kind, plan.frames, plan.height, plan.width, vision, self.adapter.plan_tokens(text, [plan]) - smallest)
