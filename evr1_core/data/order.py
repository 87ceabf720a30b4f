"""The order in which samples are drawn: a function of seed and position, so that a resumed run goes on exactly.

Epoch e is the permutation of (seed, e), or the order of the files without shuffling. A batch that reaches past the end
of an epoch is filled from the next one, so every sample is drawn once per epoch; rows that such a batch holds already
stand behind the others in the new epoch, so a batch never holds a sample twice. Only the very last batch of the data
may be smaller. With fewer samples than `batch_size` every epoch is one batch.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evr1_core.errors import RequestError
from evr1_core.types import Sample


class DataOrder:
    """Batches of samples. `epochs` None goes on for ever."""

    def __init__(self, samples: Sequence[Sample], batch_size: int, seed: int = 1, shuffle: bool = True, epochs: int | None = 1) -> None:
        if not samples:
            raise RequestError("there are no samples to draw: every row was excluded, or the files are empty")
        self.samples, self.seed, self.shuffle, self.epochs = list(samples), seed, shuffle, epochs
        self.batch_size = min(batch_size, len(self.samples))
        self.data_hash = hash_of(self.samples)
        self.epoch, self.position = 0, 0
        self._order = self._permutation(0)

    def __iter__(self) -> Iterator[list[Sample]]:
        return self

    def __next__(self) -> list[Sample]:
        return self.next()

    def next(self) -> list[Sample]:
        """The next batch; raises StopIteration when all epochs are drawn."""
        batch: list[int] = []
        while len(batch) < self.batch_size and not self.finished():
            if self.position == len(self.samples):
                self._begin(self.epoch + 1)
                continue
            taken = self._order[self.position : self.position + self.batch_size - len(batch)]
            batch += taken
            self.position += len(taken)
        if not batch:
            raise StopIteration
        return [self.samples[index] for index in batch]

    def steps_total(self) -> int | None:
        """Number of batches of all epochs; None when there is no end."""
        return None if self.epochs is None else -(-len(self.samples) * self.epochs // self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "batch_size": self.batch_size,
            "data_hash": self.data_hash,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the batches that were drawn. Raises RequestError when data, seed, shuffle or batch size differ."""
        if state["data_hash"] != self.data_hash:
            raise RequestError(
                f"the checkpoint was made with other data (hash {state['data_hash'][:12]}, now {self.data_hash[:12]}): "
                "give the same files, limit and exclusions, or start a new run from its weights"
            )
        for name in ("seed", "shuffle", "batch_size"):
            if state[name] != getattr(self, name):
                raise RequestError(f"the checkpoint was made with {name} {state[name]}, now {getattr(self, name)}: the order would differ")
        self._order = self._permutation(0)
        self.epoch = 0
        while self.epoch < state["epoch"]:
            self._begin(self.epoch + 1)
        self.position = state["position"]

    def finished(self) -> bool:
        """Whether all epochs are drawn."""
        return self.epochs is not None and (
            self.epoch + 1 > self.epochs or self.epoch + 1 == self.epochs and self.position == len(self.samples)
        )

    def _begin(self, epoch: int) -> None:
        """Go to the first position of an epoch. Depends on the end of the epoch before, by the rule at the top."""
        carried = len(self.samples) * epoch % self.batch_size
        held = set(self._order[len(self.samples) - carried :])
        order = self._permutation(epoch)
        fresh = [index for index in order if index not in held][: self.batch_size - carried] if carried else []
        first = set(fresh)
        self._order = fresh + [index for index in order if index not in first]
        self.epoch, self.position = epoch, 0

    def _permutation(self, epoch: int) -> list[int]:
        order = list(range(len(self.samples)))
        if self.shuffle:
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
        return order


def hash_of(samples: Sequence[Sample]) -> str:
    """Hash of what the samples say. Folders of media don't count: moving the data keeps the hash."""
    digest = hashlib.sha256()
    for sample in samples:
        media = [(ref.kind, Path(ref.path).name, ref.start, ref.end, *(() if ref.fps is None else (ref.fps,))) for ref in sample.media]
        options = dict(sample.options) if isinstance(sample.options, Mapping) else sample.options
        content = (sample.id, sample.problem, sample.answer, sample.problem_type, media, options, sample.offline, dict(sample.scoring))
        digest.update(json.dumps(content, default=repr).encode() + b"\n")
    return digest.hexdigest()
