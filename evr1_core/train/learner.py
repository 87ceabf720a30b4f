"""The trained model as the loop sees it: log-probabilities before an update, the update, weights for the engine, its part of a checkpoint.

`LocalLearner` has it all in this process; `evr1_core.train.remote` spreads it over workers. The loop knows the protocol alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from evr1_core.policy.forward import Row
from evr1_core.policy.policy import Policy
from evr1_core.policy.reference import BaseReference, Reference
from evr1_core.record.resources import Reading
from evr1_core.rollout.engine import Engine
from evr1_core.train.algorithm import Algorithm
from evr1_core.train.batch import TrainBatch
from evr1_core.train.checkpoint import Checkpoints
from evr1_core.train.checkpoint_files import read_into
from evr1_core.train.update import frozen_in, mini_batches, old_logprobs, plan_alone, run_updates

Named = Mapping[str, Mapping[str, Tensor]]
"""Kind -> name -> tensor, as in a checkpoint."""


class Learner(Protocol):
    """Policy, optimizer and frozen reference of a run, wherever they live. Log-probabilities are float32 [n_i], one tensor per row."""

    has_reference: bool
    """Whether a KL penalty has its reference loaded."""

    @property
    def steps(self) -> int:
        """Optimizer updates taken."""
        ...

    def frozen_logprobs(self, rows: Sequence[Row]) -> list[Tensor]:
        """Under the present weights, without a graph."""
        ...

    def old_logprobs(self, rows: Sequence[Row], known: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """Under the present weights where they aren't known, in the micro-batches of the update."""
        ...

    def reference_logprobs(self, rows: Sequence[Row]) -> tuple[Tensor, ...]:
        """Under the frozen reference, in the micro-batches of the update."""
        ...

    def update(self, batch: TrainBatch) -> dict[str, float]:
        """The optimizer updates of a step; metrics are means over all its tokens. Raises NonFinite, with nothing of that update made."""
        ...

    def sync(self, engine: Engine, version: int) -> None:
        """Give the present weights to the engine."""
        ...

    def aside(self, *, shared: bool) -> AbstractContextManager[None]:
        """Within it the policy is not updated; see `Policy.aside`."""
        ...

    def notes(self) -> list[str]:
        """What is trained and what is frozen, in words."""
        ...

    def counters(self) -> dict[str, int]:
        """Of media, since the start, over all processes that prepare prompts."""
        ...

    def readings(self) -> list[Reading]:
        """Memory and disks of the workers' machines; empty where there are none beside this process."""
        ...

    def checkpoint_bytes(self) -> int:
        """How large a checkpoint becomes, as far as is known before the first update."""
        ...

    def save(
        self, checkpoints: Checkpoints, step: int, more: Named, state: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> Path:
        """Write a checkpoint of itself, the tensors `more` and the `state` of the rest of the run; `metrics` are those of a validation
        of these very weights."""
        ...

    def load(self, checkpoints: Checkpoints, path: Path) -> tuple[Named, dict[str, Any]]:
        """Go on from a checkpoint; gives the tensors and the state that aren't its own."""
        ...


class LocalLearner:
    """All of it in this process."""

    def __init__(self, policy: Policy, reference: Reference | BaseReference | None, algorithm: Algorithm, counters: Any) -> None:
        self.policy, self.reference, self.algorithm = policy, reference, algorithm
        self.has_reference = reference is not None
        self._counters = counters

    @property
    def steps(self) -> int:
        return self.policy.steps

    def frozen_logprobs(self, rows: Sequence[Row]) -> list[Tensor]:
        return self.policy.frozen_logprobs(rows)

    def old_logprobs(self, rows: Sequence[Row], known: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        return old_logprobs(self.policy, rows, known, self._plan(rows))

    def reference_logprobs(self, rows: Sequence[Row]) -> tuple[Tensor, ...]:
        assert self.reference is not None
        return tuple(one for one in frozen_in(self.reference.logprobs, rows, self._plan(rows)) if one is not None)

    def _plan(self, rows: Sequence[Row]) -> list[list[list[int]]]:
        return [
            [[indices[i] for i in micro] for micro in self.policy.micro_batches([rows[i] for i in indices])]
            for indices in mini_batches(len(rows), self.policy.section.mini_batches)
        ]

    def update(self, batch: TrainBatch) -> dict[str, float]:
        plan = plan_alone(self.policy, batch)
        return run_updates(self.policy, batch, self.algorithm, plan).metrics(batch, len(plan))

    def sync(self, engine: Engine, version: int) -> None:
        engine.load_weights(self.policy.weights(), version=version)

    def aside(self, *, shared: bool) -> AbstractContextManager[None]:
        return self.policy.aside(shared=shared)

    def notes(self) -> list[str]:
        return [*(f"frozen: {part}, {count:,} parameters" for part, count in self.policy.frozen.items()), *self.policy.trained()]

    def counters(self) -> dict[str, int]:
        return self._counters.as_dict()

    def readings(self) -> list[Reading]:
        return []  # the driver's own, which it makes itself

    def checkpoint_bytes(self) -> int:
        tensors = self.policy.tensors()
        known = sum(tensor.nbytes for named in tensors.values() for tensor in named.values())
        if any(name.startswith("exp_avg") for name in tensors["optimizer"]):
            return known
        moments = 2 if self.policy.section.optimizer == "adamw_8bit" else 8
        return known + moments * sum(one.numel() for one in self.policy.model.parameters() if one.requires_grad)

    def save(
        self, checkpoints: Checkpoints, step: int, more: Named, state: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> Path:
        own = {"updates": self.policy.steps, "policy": self.policy.describe()}
        return checkpoints.save(step, {**self.policy.tensors(), **more}, {**state, **own}, metrics)

    def load(self, checkpoints: Checkpoints, path: Path) -> tuple[Named, dict[str, Any]]:
        tensors, state = checkpoints.load(path)
        read_into(tensors, self.policy.slots({kind: one.meta() for kind, one in tensors.items()}, state.get("policy")))
        self.policy.loaded(state["updates"])
        return tensors, state
