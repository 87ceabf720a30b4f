"""Filling the frame cache ahead of a run: look at every medium, estimate, decode what is missing.

    found = survey(store, media, factors, workers)      content hashes: what is there, what is missing, what is the same file twice
    needed = estimate(store, found, factors, workers)   headers: bytes, and whether the disk has them
    report = fill(store, found, factors, workers)       decode and store

The work happens in the decoding processes of the store, one for each of the `workers` threads here. What is in the cache stays, so an
interrupted build goes on where it was. A medium that fails is a `Failure`, never an exception.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evr1_core.media.crew import Failure, Notify, Progress, Stop, each

if TYPE_CHECKING:
    from evr1_core.media.store import MediaStore
    from evr1_core.types import Budget, MediaRef, PatchFactors

SAMPLED = 256
"""Headers that an estimate reads at most, evenly spaced over the media."""

COMPACT_SHARE = 0.25
"""Bytes of a compact entry over those of a raw one, for estimates: the most that was measured on photographs (docs/cache.md)."""


Medium = tuple["MediaRef", "Budget"]


@dataclass(frozen=True, slots=True)
class Survey:
    """What a build finds before it decodes anything."""

    media: int
    """Different media asked for: a file and a part of it."""
    missing: tuple[tuple[Medium, ...], ...]
    """To decode: media with the same content, part and budget together."""
    already: int
    duplicates: int
    """Media with the content, part and budget of an earlier one: they need no entry of their own."""
    failures: tuple[Failure, ...]
    interrupted: bool


@dataclass(frozen=True, slots=True)
class Estimate:
    """Room that entries take, from headers."""

    bytes: int
    free: int
    """Bytes that the disk of the cache has."""
    sampled: int
    """Headers that were read; fewer than there are media to decode when those are many."""

    @property
    def fits(self) -> bool:
        return self.bytes <= self.free


@dataclass(frozen=True, slots=True)
class Report:
    """What a build did."""

    media: int
    stored: int
    already: int
    duplicates: int
    bytes: int
    seconds: float
    failures: tuple[Failure, ...]
    not_stored: int
    """Media that were decoded and could not be written; the first ends the build."""
    left: int
    """Media that were not looked at, because the build was interrupted or could not write."""
    interrupted: bool


def survey(
    store: MediaStore, media: Iterable[Medium], factors: PatchFactors, workers: int = 2, notify: Notify | None = None
) -> Survey:  # fmt: skip
    """Compare the media with the cache, by content. Each file is read once; its hash is remembered."""
    from evr1_core.media.cache import FrameCache

    cache = FrameCache(store.cache_dir)
    asked = list(dict.fromkeys(media))
    keys: list[str | None] = [None] * len(asked)
    failures: dict[int, Failure] = {}
    here: set[str] = set()

    def look(place: int) -> None:
        ref, budget = asked[place]
        key = keys[place] = store.key(ref, budget, factors)
        if cache.holds(key):
            here.add(key)

    progress = Progress("look", len(asked))
    whole = each(range(len(asked)), look, lambda place: asked[place][0].path, workers, progress, notify, failures)
    same: dict[str, list[Medium]] = {}
    for key, medium in zip(keys, asked, strict=True):
        if key is not None:
            same.setdefault(key, []).append(medium)
    return Survey(
        media=len(asked),
        missing=tuple(tuple(media) for key, media in same.items() if key not in here),
        already=len(here),
        duplicates=sum(len(media) - 1 for media in same.values()),
        failures=tuple(failures[place] for place in sorted(failures)),
        interrupted=not whole,
    )


def estimate(store: MediaStore, found: Survey, factors: PatchFactors, workers: int = 2, notify: Notify | None = None) -> Estimate:
    """The bytes that the missing entries will take, and the bytes that are free. Media whose headers can't be read count as nothing."""
    media = [same[0] for same in found.missing]
    chosen = media[:: -(-len(media) // SAMPLED) or 1]
    sizes: list[int] = []

    def size(medium: Medium) -> None:
        planned = store.plan(*medium, factors)
        sizes.append(planned.frames * 3 * planned.height * planned.width)

    if not each(chosen, size, lambda medium: medium[0].path, workers, Progress("estimate", len(chosen)), notify, {}):
        raise KeyboardInterrupt
    share = COMPACT_SHARE if store.codec != "raw" else 1.0
    total = round(sum(sizes) * share * len(media) / len(chosen)) if chosen else 0
    return Estimate(total, shutil.disk_usage(_existing(store.cache_dir)).free, len(chosen))


def fill(store: MediaStore, found: Survey, factors: PatchFactors, workers: int = 2, notify: Notify | None = None) -> Report:
    """Decode and store what is missing. Ctrl-C ends it with a report; so does the first entry that can't be written."""
    failures: dict[int, Failure] = {}
    before, stored, written = store.counters.store_failed, store.counters.stored, store.counters.bytes
    progress = Progress("decode", len(found.missing))

    def decode(place: int) -> None:
        if store.counters.store_failed > before:
            raise Stop
        store.load(*found.missing[place][0], factors)
        progress.bytes = store.counters.bytes - written

    interrupted = found.interrupted or not each(
        range(len(found.missing)), decode, lambda place: found.missing[place][0][0].path, workers, progress, notify, failures
    )
    not_stored = store.counters.store_failed - before
    return Report(
        media=found.media, stored=store.counters.stored - stored, already=found.already, duplicates=found.duplicates,
        bytes=store.counters.bytes - written, seconds=time.monotonic() - progress.began,
        failures=found.failures + tuple(twin for place in sorted(failures) for twin in _twins(found, place, failures[place])),
        not_stored=not_stored,
        left=len(found.missing) - progress.done, interrupted=interrupted,
    )  # fmt: skip


def _twins(found: Survey, place: int, failure: Failure) -> list[Failure]:
    """A bad file is bad under each of its names."""
    return [Failure(ref.path, failure.code, failure.reason) for ref, _ in found.missing[place]]


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.absolute().parents) if place.exists())
