"""Clips by reference: from the frame cache, else decoded and stored. The only way from a file to frames."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from evr1_core.errors import MediaError
from evr1_core.media import sampling
from evr1_core.media.cache import Codec, ContentHashes, Fingerprint, FrameCache, make_key
from evr1_core.media.decode import decoder_version
from evr1_core.media.entry import as_stored, entry_path, unfinished
from evr1_core.media.folder import check_source
from evr1_core.media.guard import Answer, DecodeGuard, Fill
from evr1_core.media.plan import Plan, check_request
from evr1_core.media.probe import check_file
from evr1_core.media.worker import EntryPlace, Request, allowed_missing, clip_fields, perform
from evr1_core.types import Budget, Clip, MediaRef, PatchFactors

if TYPE_CHECKING:
    import numpy as np

_log = logging.getLogger(__name__)

Mode = Literal["auto", "cache-only", "decode-only"]

MOST_THREADS = 8
"""Decoder threads of one request at most: more take memory and save little time."""

THREADS_PER_CORE = 4
"""Of a request that has several cores for itself: decoder threads wait for each other's pictures, the more so where some are skipped."""

MOST_PLANS = 4096
"""Plans that are remembered, the latest: some 40 MB at 128 frames each."""

RETRY = 60.0
"""Seconds without storing after the disk refused an entry."""


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
    `deadline`: seconds one decode may take. Files are opened in a child process that is killed then; with `isolate=False` in
    this process, and the deadline is looked at between packets only.
    `tolerate`: the share of the chosen frames of a video that may be missing, because they can't be decoded.
    `codec`: how new entries of the cache hold frames.
    """

    def __init__(
        self,
        cache_dir: Path | None = None,
        mode: Mode = "auto",
        deadline: float = 120.0,
        isolate: bool = True,
        tolerate: float = 0.0,
        codec: Codec = "raw",
    ) -> None:
        self.cache_dir = Path(cache_dir) if cache_dir is not None else default_cache_dir()
        self.mode: Mode = mode
        self.deadline = deadline
        self.tolerate = tolerate
        self.codec: Codec = codec
        self.counters = Counters()
        self.hashes = ContentHashes(None if mode == "decode-only" else self.cache_dir / "hashes")
        self._cache = FrameCache(self.cache_dir, codec)
        self._guard = DecodeGuard(deadline) if isolate else None
        self._plans: dict[tuple[Fingerprint, MediaRef, Budget, PatchFactors], Plan] = {}
        self._lock = threading.Lock()
        self._running: dict[str, tuple[threading.Lock, int]] = {}
        self._callers = 0
        """Threads that load now: they share the processor."""
        self._full_until = 0.0
        """Moment of `time.monotonic` until which nothing is stored, since the disk refused."""
        self._reported: set[str] = set()
        self._told_of_hdr = False

    def load(self, ref: MediaRef, budget: Budget, factors: PatchFactors) -> Clip:
        """The clip of `ref`: uint8 frames [T, 3, H, W] with their clock.

        Raises MediaError: missing (the file, or in cache-only mode the entry), empty, damaged, unsupported, timeout.
        """
        with self._calling(1):
            return self._load(ref, budget, factors)

    def load_many(
        self, refs: Sequence[MediaRef], budget: Budget | Sequence[Budget], factors: PatchFactors, workers: int = 2
    ) -> list[Clip | MediaError]:
        """`load` of each, `workers` at a time, in the order of `refs`; a medium that fails gives its error.

        `budget` is one for all, or one for each of `refs`.
        """
        with self._calling(max(1, min(workers, len(refs)))):
            return _each(lambda ref, limits: self._load(ref, limits, factors), refs, budget, workers)

    def plan_many(
        self, refs: Sequence[MediaRef], budget: Budget | Sequence[Budget], factors: PatchFactors, workers: int = 2
    ) -> list[Plan | MediaError]:
        """`plan` of each, as `load_many` does."""
        return _each(lambda ref, limits: self.plan(ref, limits, factors), refs, budget, workers)

    def plan(self, ref: MediaRef, budget: Budget, factors: PatchFactors) -> Plan:
        """Shape and clock of what `load` returns, from headers; remembered for each state of the file.

        Raises MediaError as `load` does, but for files whose damage only decoding shows.
        """
        check_request(ref, budget, factors)
        asked = (Fingerprint.of(check_source(ref)), ref, budget, factors)
        known = self._plans.get(asked)
        if known is None:
            known = self._ask(replace(_request(ref, budget, factors), frames=False))[1]
            with self._lock:
                self._plans[asked] = known
                if len(self._plans) > MOST_PLANS:
                    del self._plans[next(iter(self._plans))]
        return known

    def look(
        self, path: str, budget: Budget, factors: PatchFactors, start: float | None = None, end: float | None = None
    ) -> tuple[dict[str, Any], Plan]:  # fmt: skip
        """Facts of a file, by the names of `MediaInfo`, and its plan. The content decides whether it is an image or a video.

        Raises MediaError as `plan` does.
        """
        check_request(MediaRef(path, "video", start, end), budget, factors)
        answer, planned = self._ask(Request(check_file(path), None, start, end, budget, factors, frames=False))
        return answer.info, planned

    def key(self, ref: MediaRef, budget: Budget, factors: PatchFactors) -> str:
        """The cache key of `ref`: content, part, budget, factors, codec, and the versions of sampler and decoder."""
        return self._key(self.hashes.of(check_source(ref))[0], ref, budget, factors)

    def close(self) -> None:
        """End the decoding processes."""
        if self._guard is not None:
            self._guard.close()

    def _key(self, content: str, ref: MediaRef, budget: Budget, factors: PatchFactors) -> str:
        limits = budget.image if ref.kind == "image" else budget.video
        folder = {} if ref.fps is None else {"fps": ref.fps}
        return make_key(
            content, **folder, kind=ref.kind, start=ref.start, end=ref.end, budget=limits, factors=factors, codec=self.codec,
            sampler=sampling.VERSION, decoder=decoder_version(ref.kind if ref.fps is None else "image"),
        )  # fmt: skip

    def _load(self, ref: MediaRef, budget: Budget, factors: PatchFactors) -> Clip:
        check_request(ref, budget, factors)
        path = check_source(ref)
        content, state = self.hashes.of(path)
        key = self._key(content, ref, budget, factors)
        # One decode per clip, however many threads ask for it at a time.
        with self._alone(key):
            if self.mode != "decode-only":
                clip = self._cache.get(key)
                if clip is not None:
                    self._count(hits=1)
                    return self._tolerated(clip, path)
                self._count(misses=1)
                if self.mode == "cache-only":
                    raise MediaError(path, "missing", f"no frames in the cache {self.cache_dir} for this file and budget; "
                                     "build it with `evr1 cache build`, or set media.mode to auto")  # fmt: skip
            request = replace(_request(ref, budget, factors), tolerate=self.tolerate, threads=self._threads())
            clip = self._stored(request, key, content, state) if self.mode == "auto" else None
            if clip is None:
                answer, planned = self._ask(request)
                if Fingerprint.of(path) != state:
                    raise MediaError(path, "damaged", "the file changed while it was read")
                frames = as_stored(answer.frames, self.codec) if self.mode == "auto" else answer.frames
                clip = Clip(frames=frames, **clip_fields(answer.info, planned, (answer.end or {})["places"], content, key))
            self._count(decoded=1)
            return self._tolerated(clip, path)

    def _stored(self, request: Request, key: str, content: str, state: Fingerprint) -> Clip | None:
        """Decode straight into the cache and map the entry, so that the page cache holds the frames instead of this process.

        None when the system refuses to store it: the caller then decodes it for itself. For a while nothing more is stored, lest every
        medium be decoded twice.
        """
        if time.monotonic() < self._full_until:
            self._count(store_failed=1)
            return None
        temporary = unfinished(entry_path(self.cache_dir, key).parent)
        entry = EntryPlace(str(self.cache_dir), key, self.codec, content, state, str(temporary))
        end = self._ask(replace(request, entry=entry))[0].end or {}
        if "unstored" in end:
            self._full_until = time.monotonic() + RETRY
            self._cache.warn(OSError(*end["unstored"]))
            self._count(store_failed=1)
            return None
        self._count(stored=1, bytes=end["stored"])
        return self._cache.get(key)

    def _ask(self, request: Request) -> tuple[Answer, Plan]:
        if self._guard is not None:
            answer = self._guard.ask(request)
        else:
            answer = Answer()
            perform(request, lambda message, frame: answer.take(message, _copy(frame)), time.monotonic() + self.deadline)
        assert answer.plan is not None
        if answer.info["hdr"] and not self._told_of_hdr:
            self._told_of_hdr = True
            _log.warning("%s has high dynamic range (%s): colours are used as stored, without tone mapping. Not said again.",
                         request.path, answer.info["hdr"])  # fmt: skip
        return answer, answer.plan

    def _tolerated(self, clip: Clip, path: str) -> Clip:
        """The clip, unless it misses more frames than this store tolerates; said once per file."""
        if not clip.missing:
            return clip
        count = len(clip.indices) + clip.missing
        if clip.missing > allowed_missing(self.tolerate, count):
            raise MediaError(
                path, "damaged", f"{clip.missing} of the {count} chosen frames could not be decoded; media.tolerate is {self.tolerate:g}"
            )
        with self._lock:
            first = path not in self._reported
            self._reported.add(path)
        if first:
            _log.warning("%s: %d of the %d chosen frames could not be decoded and are left out", path, clip.missing, count)
        return clip

    def _threads(self) -> int:
        """Decoder threads of one request, by its share of the processor."""
        cores = len(os.sched_getaffinity(0)) // max(1, self._callers)
        return min(MOST_THREADS, THREADS_PER_CORE * cores) if cores > 1 else 1

    @contextmanager
    def _calling(self, callers: int) -> Iterator[None]:
        with self._lock:
            self._callers += callers
        try:
            yield
        finally:
            with self._lock:
                self._callers -= callers

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


def _request(ref: MediaRef, budget: Budget, factors: PatchFactors) -> Request:
    return Request(ref.path, ref.kind, ref.start, ref.end, budget, factors, fps=ref.fps)


def _copy(frame: np.ndarray | None) -> Fill:
    def fill(buffer: memoryview) -> None:
        assert frame is not None
        buffer[:] = frame.reshape(-1).data

    return fill


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
        outcomes = [pool.submit(one, *pair) for pair in zip(refs, budgets, strict=True)]
        try:
            return [outcome.result() for outcome in outcomes]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C waits for the media at work, not for all
            raise
