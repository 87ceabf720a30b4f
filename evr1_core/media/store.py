"""Clips by reference: from the frame cache, else decoded and stored. The only way from a file to frames."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from evr1_core.errors import MediaError
from evr1_core.media import sampling
from evr1_core.media.cache import ContentHashes, Fingerprint, FrameCache, make_key
from evr1_core.media.decode import decoder_version
from evr1_core.media.guard import DecodeGuard
from evr1_core.media.plan import Plan
from evr1_core.media.probe import check_file
from evr1_core.media.worker import decode, look, make_request
from evr1_core.types import Budget, Clip, MediaRef, PatchFactors

Mode = Literal["auto", "cache-only", "decode-only"]


@dataclass(slots=True)
class Counters:
    """What a store did since it was made."""

    decoded: int = 0
    """Media that were decoded."""
    hits: int = 0
    misses: int = 0
    stored: int = 0
    store_failed: int = 0
    """Clips that were used but could not be written to the cache."""
    bytes: int = 0
    """Bytes written to the cache."""

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def default_cache_dir() -> Path:
    """`$EVR1_CACHE_DIR/frames`, else `~/.cache/evr1/frames`."""
    root = os.environ.get("EVR1_CACHE_DIR")
    return (Path(root) if root else Path.home() / ".cache" / "evr1") / "frames"


class MediaStore:
    """Loads media. Safe for threads; several processes may share one cache directory.

    `mode`: auto reads the cache, else decodes and stores; cache-only never decodes; decode-only neither reads nor writes the cache.
    `deadline`: seconds one decode may take. Videos are decoded in a child process that is killed then; with `isolate=False`
    they are decoded in this process, and the deadline is looked at between packets only. Images are always decoded here.
    """

    def __init__(
        self,
        cache_dir: Path | None = None,
        mode: Mode = "auto",
        deadline: float = 120.0,
        isolate: bool = True,
        tolerate: float = 0.0,
        codec: Literal["raw", "jpeg"] = "raw",
    ) -> None:
        self.cache_dir = Path(cache_dir) if cache_dir is not None else default_cache_dir()
        self.mode: Mode = mode
        self.deadline = deadline
        self.tolerate = tolerate
        self.codec: Literal["raw", "jpeg"] = codec
        self.counters = Counters()
        self.hashes = ContentHashes(None if mode == "decode-only" else self.cache_dir / "hashes")
        self._cache = FrameCache(self.cache_dir)
        self._guard = DecodeGuard(deadline) if isolate else None
        self._plans: dict[tuple[Fingerprint, MediaRef, Budget, PatchFactors], Plan] = {}
        self._lock = threading.Lock()
        self._running: dict[str, tuple[threading.Lock, int]] = {}

    def load(self, ref: MediaRef, budget: Budget, factors: PatchFactors) -> Clip:
        """The clip of `ref`: uint8 frames [T, 3, H, W] with their clock.

        Raises MediaError: missing (the file, or in cache-only mode the entry), empty, damaged, unsupported, timeout.
        """
        path = check_file(ref.path)
        content, state = self.hashes.of(path)
        key = self._key(content, ref, budget, factors)
        # One decode per clip, however many threads ask for it at a time.
        with self._alone(key):
            if self.mode != "decode-only":
                clip = self._cache.get(key)
                if clip is not None:
                    self._count(hits=1)
                    return clip
                self._count(misses=1)
                if self.mode == "cache-only":
                    raise MediaError(path, "missing", f"no frames in the cache {self.cache_dir} for this file and budget; "
                                     "build it with `evr1 cache build`, or set media.mode to auto")  # fmt: skip
            clip = self._decode(ref, budget, factors, content, key)
            if Fingerprint.of(path) != state:
                raise MediaError(path, "damaged", "the file changed while it was read")
            return clip if self.mode == "decode-only" else self._stored(clip)

    def load_many(
        self, refs: Sequence[MediaRef], budget: Budget | Sequence[Budget], factors: PatchFactors, workers: int = 2
    ) -> list[Clip | MediaError]:
        """`load` of each, `workers` at a time, in the order of `refs`; a medium that fails gives its error.

        `budget` is one for all, or one for each of `refs`.
        """
        return _each(lambda ref, limits: self.load(ref, limits, factors), refs, budget, workers)

    def plan_many(
        self, refs: Sequence[MediaRef], budget: Budget | Sequence[Budget], factors: PatchFactors, workers: int = 2
    ) -> list[Plan | MediaError]:
        """`plan` of each, as `load_many` does."""
        return _each(lambda ref, limits: self.plan(ref, limits, factors), refs, budget, workers)

    def plan(self, ref: MediaRef, budget: Budget, factors: PatchFactors) -> Plan:
        """Shape and clock of what `load` returns, from headers; remembered for each state of the file.

        Raises MediaError as `load` does, but for files whose damage only decoding shows.
        """
        asked = (Fingerprint.of(check_file(ref.path)), ref, budget, factors)
        known = self._plans.get(asked)
        if known is None:
            if self._guard is not None and ref.kind == "video":
                known, _, _ = self._guard.decode({**make_request(ref, budget, factors), "frames": False}, ref.path)
            else:
                known, _ = look(ref, budget, factors)
            self._plans[asked] = known
        return known

    def key(self, ref: MediaRef, budget: Budget, factors: PatchFactors) -> str:
        """The cache key of `ref`: content, part, budget, factors, and the versions of sampler and decoder."""
        return self._key(self.hashes.of(check_file(ref.path))[0], ref, budget, factors)

    def close(self) -> None:
        """End the decoding processes."""
        if self._guard is not None:
            self._guard.close()

    def _key(self, content: str, ref: MediaRef, budget: Budget, factors: PatchFactors) -> str:
        limits = budget.image if ref.kind == "image" else budget.video
        return make_key(
            content, kind=ref.kind, start=ref.start, end=ref.end, budget=limits, factors=factors,
            sampler=sampling.VERSION, decoder=decoder_version(ref.kind),
        )  # fmt: skip

    def _decode(self, ref: MediaRef, budget: Budget, factors: PatchFactors, content: str, key: str) -> Clip:
        if self._guard is not None and ref.kind == "video":
            planned, rotation, frames = self._guard.decode(make_request(ref, budget, factors), ref.path)
        else:
            planned, rotation, frames = decode(ref, budget, factors, time.monotonic() + self.deadline)
        self._count(decoded=1)
        return Clip(
            frames=frames, times=planned.times, indices=planned.indices, source_fps=planned.source_fps,
            source_frames=planned.source_frames, duration=planned.duration, span=planned.span, rotation=rotation,
            decoder=decoder_version(ref.kind), content_hash=content, key=key, kind=ref.kind,
        )  # fmt: skip

    def _stored(self, clip: Clip) -> Clip:
        """Write `clip` and return it mapped from its entry, so that the page cache holds the frames instead of this process."""
        size = self._cache.put(clip)
        if not size:
            self._count(store_failed=1)
            return clip
        self._count(stored=1, bytes=size)
        mapped = self._cache.get(clip.key)
        return clip if mapped is None else replace(clip, frames=mapped.frames)

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, value in more.items():
                setattr(self.counters, name, getattr(self.counters, name) + value)

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        with self._lock:
            lock, users = self._running.get(key, (threading.Lock(), 0))
            self._running[key] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, users = self._running[key]
                if users == 1:
                    del self._running[key]
                else:
                    self._running[key] = (lock, users - 1)


_T = TypeVar("_T")


def _each(
    action: Callable[[MediaRef, Budget], _T], refs: Sequence[MediaRef], budget: Budget | Sequence[Budget], workers: int
) -> list[_T | MediaError]:
    budgets = [budget] * len(refs) if isinstance(budget, Budget) else budget

    def one(ref: MediaRef, limits: Budget) -> _T | MediaError:
        try:
            return action(ref, limits)
        except MediaError as error:
            return error

    with ThreadPoolExecutor(max(1, min(workers, len(refs)))) as pool:
        return [outcome.result() for outcome in [pool.submit(one, *pair) for pair in zip(refs, budgets, strict=True)]]
