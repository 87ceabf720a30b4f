"""Prepared prompts of one worker: made when they are asked for, held as long as their bytes allow.

Frames and model inputs of one long video are hundreds of megabytes, and a step asks for its prompts several times: to make them known,
to answer them, to train on them. What does not fit is made anew from the frame cache.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from evr1_core.types import Clip, Exclusion, Prompt, Sample

if TYPE_CHECKING:
    from torch import Tensor

TOKEN_BYTES = 36
"""Of a token id in a tuple: its place, and its int. So prompts without media count too."""

Build = Callable[[Sequence[Sample]], tuple[list[Prompt], list[Exclusion]]]


class PreparedPrompts:
    """An ordered store of prompts by sample id, of at most `limit_bytes`; those that were asked for longest ago go first.

    The limit is on what is held here between two calls. What a call returns lives as long as its caller holds it: a prompt that is
    larger than the limit is handed out and not held.
    """

    def __init__(self, build: Build, limit_bytes: int) -> None:
        """`build` makes the prompts that are missing, in one call; samples that it excludes have none."""
        self.limit_bytes = limit_bytes
        self.bytes = 0
        """Held now; memory that several prompts share counts once."""
        self.rebuilt = 0
        """Prompts that were made a second time, because they had not been held until they were asked for again."""
        self._build = build
        self._held: OrderedDict[str, Prompt] = OrderedDict()
        self._parts: dict[str, dict[int | str, int]] = {}
        self._users: Counter[int | str] = Counter()
        self._dropped: set[str] = set()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, sample_id: object) -> bool:
        return sample_id in self._held

    def take(self, samples: Sequence[Sample]) -> tuple[list[Prompt | None], list[Exclusion]]:
        """(the prompt of each sample, None where it has none; why those have none). A sample that is given twice has one prompt."""
        missing = {sample.id: sample for sample in samples if sample.id not in self._held}
        made, excluded = self._build(list(missing.values())) if missing else ([], [])
        self.rebuilt += sum(prompt.sample.id in self._dropped for prompt in made)
        found = {sample.id: self._held[sample.id] for sample in samples if sample.id in self._held}
        found |= {prompt.sample.id: prompt for prompt in made}
        for sample in samples:
            if sample.id in found:
                self._hold(found[sample.id])
        self._shrink()
        return [found.get(sample.id) for sample in samples], excluded

    def release(self, sample_ids: Iterable[str]) -> None:
        """These are not asked for again, as far as is known."""
        for name in sample_ids:
            self._dropped.discard(name)
            if name in self._held:
                self._drop(name)

    def _hold(self, prompt: Prompt) -> None:
        name = prompt.sample.id
        self._dropped.discard(name)
        if name not in self._held:
            self._held[name], self._parts[name] = prompt, memory(prompt)
            for part, size in self._parts[name].items():
                self.bytes += 0 if self._users[part] else size
                self._users[part] += 1
        self._held.move_to_end(name)

    def _drop(self, name: str) -> None:
        del self._held[name]
        for part, size in self._parts.pop(name).items():
            self._users[part] -= 1
            if not self._users[part]:
                del self._users[part]
                self.bytes -= size

    def _shrink(self) -> None:
        while self.bytes > self.limit_bytes:
            oldest = next(iter(self._held))
            self._drop(oldest)
            self._dropped.add(oldest)


def memory(prompt: Prompt) -> dict[int | str, int]:
    """Pieces of memory of a prompt and their bytes, by address, or by cache key where a file of the frame cache is mapped."""
    parts: dict[int | str, int] = {id(prompt): TOKEN_BYTES * len(prompt.token_ids)}
    for clip in prompt.clips:
        parts |= _of_frames(clip)
    return parts | _of_tensors(prompt.features)


def _of_frames(clip: Clip) -> dict[int | str, int]:
    owner = clip.frames
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    # An array over a mapped file has the map as its base; two maps of one file share their pages.
    mapped = owner.base is not None and clip.key != ""
    return {clip.key if mapped else owner.__array_interface__["data"][0]: owner.nbytes}


def _of_tensors(features: Mapping[str, Tensor]) -> dict[int | str, int]:
    storages = [tensor.untyped_storage() for tensor in features.values()]
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}
