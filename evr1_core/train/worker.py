"""What one rank of a worker group does in training: prompts of its own, an engine, a shard of the policy.

`PromptWorker` makes prompts and has them answered; `TrainWorker` holds a shard of the policy beside that. Prompts are made here, from
the frame cache, and stay here: the driver (`evr1_core.train.remote`) sees their token ids and the clocks of their media.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor

from evr1_core.cluster.channel import WeightsChannel
from evr1_core.cluster.policy import ShardedPolicy, ShardedReference
from evr1_core.cluster.prompts import PreparedPrompts
from evr1_core.cluster.rank import Rank
from evr1_core.cluster.watch import folders, memory_remedy
from evr1_core.config.models import RunConfig
from evr1_core.data.prompts import PromptFault
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.policy.forward import Row
from evr1_core.policy.load import load_adapter
from evr1_core.policy.reference import BaseReference
from evr1_core.record.resources import Reading, reading
from evr1_core.rollout.engine import Engine, EngineContext, PromptMismatch, open_engine, ranks_per_engine, update_engine, use_up
from evr1_core.rollout.setup import model_name, open_builder, open_store
from evr1_core.train.algorithm import Totals
from evr1_core.train.batch import TrainBatch
from evr1_core.train.checkpoint import random_state, set_random_state
from evr1_core.train.checkpoint_files import Named, open_tensors, read_into
from evr1_core.train.checkpoint_snapshot import Snapshot
from evr1_core.train.messages import Asked, Built, Limits, Phase, Share, digest, light
from evr1_core.train.run import run_algorithm, seed_everything
from evr1_core.train.update import MiniBatch, Outcome, frozen_in, old_logprobs, run_updates
from evr1_core.types import Budget, Exclusion, Prompt, Sample, Sampling


class PromptWorker:
    """Prompts and their answers, on one rank."""

    def __init__(self, rank: Rank, config: RunConfig, limits: Limits, engine: bool) -> None:
        """`engine`: open one here, in the world that the rank has joined."""
        self.rank, self.config, self.limits = rank, config, limits
        seed_everything(config.seed)
        try:
            self.adapter = load_adapter(model_name(config), config.model.chat)
        except RequestError as error:  # the driver has loaded it, so that this machine differs from the driver's
            raise RequestError(f"{self.here}: {error}. Models and packages must be the same on all machines of the run") from error
        self.store = open_store(config)
        self.notes: list[str] = []
        self.made: set[str] = set()
        """Sample ids of training prompts that may be held."""
        lenient = config.model_copy(update={"data": config.data.model_copy(update={"bad_rows": "exclude", "overlong": "exclude"})})
        self.builders = {
            "train": open_builder(config, self.adapter, self.store, "train"),
            "evaluate": open_builder(lenient, self.adapter, self.store, "evaluate"),
        }
        limit = int(config.cluster.prompts_gib * 2**30)
        self.prepared = {phase: PreparedPrompts(builder.build_batch, limit) for phase, builder in self.builders.items()}
        for builder in self.builders.values():
            builder.note = self.notes.append
        self.engine: Engine | None = None
        if engine:
            rank.progress.enter("start", detail="opening the engine")
            self.engine = open_engine(config.rollout.engine, config.rollout.options, self._context())

    @property
    def here(self) -> str:
        return f"rank {self.rank.rank} on node {self.rank.node}"

    def remedy(self, error: BaseException) -> str:
        """What the message of a failure says beside the error itself."""
        return memory_remedy(self.config, error)

    def _context(self) -> EngineContext:
        return EngineContext(
            adapter=self.adapter,
            dtype=self.config.model.dtype,
            device=self.rank.device,
            max_prompt_tokens=self.config.data.max_prompt_tokens,
            max_tokens=self.limits.max_tokens,
            seed=self.config.seed,
            max_images=self.limits.max_images,
            max_videos=self.limits.max_videos,
            attention=self.config.model.attention,
            ranks=self.rank.size,
        )

    def ranks_per_engine(self) -> int:
        return ranks_per_engine(self.engine) if self.engine is not None else 1

    def build(self, samples: Sequence[Sample], budgets: Sequence[Budget | None], phase: Phase) -> Built:
        """Prompts of samples, kept here. `budgets`: those that were settled for a sample in the data plan."""
        self.rank.progress.enter("prompts", [sample.id for sample in samples], f"{len(samples)} prompts")
        for sample, budget in zip(samples, budgets, strict=True):
            if budget is not None:
                self.builders[phase].settle(sample, budget)
        found, excluded = self._take(samples, phase)
        self.made |= {sample.id for sample in samples}
        notes, self.notes[:] = list(self.notes), []
        return Built([light(one) for one in found if one is not None], excluded, notes, self.store.counters.as_dict())

    def forget(self) -> None:
        """No prompt that was made so far is needed any more."""
        self.prepared["train"].release(self.made)
        self.made.clear()

    def generate(self, asked: Sequence[Asked], sampling: Sampling, phase: Phase) -> list[tuple[str, Any]]:
        """("answers", completions) or ("mismatch", (sample id, detail)) for each prompt."""
        assert self.engine is not None
        if not asked:
            return []
        prompts = self._prompts(asked, phase)
        self.rank.progress.enter("rollout", [one.sample.id for one in asked], f"{sampling.n} answers to {len(asked)} prompts")
        found = self.engine.generate(prompts, sampling)
        if phase == "evaluate":
            self.prepared[phase].release([one.sample.id for one in asked])
        return [("mismatch", (one.sample_id, one.detail)) if isinstance(one, PromptMismatch) else ("answers", one) for one in found]

    def _prompts(self, asked: Sequence[Asked], phase: Phase) -> list[Prompt]:
        """The prompts themselves; one that isn't held (another rank made it, or memory was short) is made from the frame cache."""
        found, excluded = self._take([one.sample for one in asked], phase)
        if phase == "train":
            self.made |= {one.sample.id for one in asked}
        if excluded:
            first = excluded[0]
            raise Evr1Error(
                f"{self.here}: sample {first.sample_id!r}: {first.reason}: {first.detail}. Its prompt was made before: its media must be "
                "readable on all machines of the run"
            )
        prompts = [one for one in found if one is not None]
        for one, prompt in zip(asked, prompts, strict=True):
            if digest(prompt.token_ids) != one.digest:
                raise Evr1Error(
                    f"{self.here}: sample {one.sample.id!r}: its prompt here isn't the one that was answered: its media or the template "
                    "were changed during the run, or differ between machines"
                )
        return prompts

    def _take(self, samples: Sequence[Sample], phase: Phase) -> tuple[list[Prompt | None], list[Exclusion]]:
        """Prepared prompts and exclusions. Raises PromptFault where rows may not be left out; RequestError for files of the training data
        that aren't on this machine, whatever may be left out: the driver has found them."""
        try:
            found, excluded = self.prepared[phase].take(samples)
        except PromptFault as fault:
            self._check_here(samples, [fault.exclusion], phase)
            raise
        self._check_here(samples, excluded, phase)
        return found, excluded

    def _check_here(self, samples: Sequence[Sample], excluded: Sequence[Exclusion], phase: Phase) -> None:
        missing = {one.sample_id: one for one in excluded if one.reason == "missing_media"}
        for sample in samples if phase == "train" else ():
            if sample.id in missing and not all(os.path.exists(ref.path) for ref in sample.media):
                raise RequestError(
                    f"{self.here}: sample {sample.id!r}: missing_media: {missing[sample.id].detail}. The driver has found it: media must "
                    "lie under the same path on all machines of the run"
                )

    def reading(self, group: str) -> Reading:
        """Memory and disks of this machine, and what this process uses."""
        return reading(f"{group} rank {self.rank.rank}", folders(self.config))

    def sleep(self) -> None:
        assert self.engine is not None
        self.rank.progress.enter("weights", detail="engine goes to sleep")
        self.engine.sleep()

    def wake(self) -> None:
        assert self.engine is not None
        self.rank.progress.enter("weights", detail="engine wakes")
        self.engine.wake()

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
        self.store.close()
        self.rank.leave()


class TrainWorker(PromptWorker):
    """A shard of the policy, and of the frozen reference where there is one."""

    def __init__(self, rank: Rank, config: RunConfig, limits: Limits, engine: bool, total_steps: int) -> None:
        rank.join()
        super().__init__(rank, config, limits, engine)
        if self.engine is not None:
            self.engine.sleep()  # until it gets the policy's weights
        rank.progress.enter("start", detail="loading the policy")
        # Adapters are drawn as in one process, whatever the engine has drawn when it loaded its own copy.
        seed_everything(config.seed)
        self.algorithm = run_algorithm(config)
        self.policy = ShardedPolicy(
            rank,
            self.adapter,
            config.model,
            config.train,
            shard=config.cluster.shard,
            sequence_parallel=config.cluster.sequence_parallel,
            temperature=config.rollout.temperature,
            total_steps=total_steps,
        )
        self.reference = self._reference() if self.algorithm.options.uses_reference else None
        self.apart = ExitStack()
        self.channel: WeightsChannel | None = None
        self.phase, self.passes = "start", 0
        self.policy.body.register_forward_pre_hook(self._alive)
        if isinstance(self.reference, ShardedReference):
            self.reference.body.register_forward_pre_hook(self._alive)

    def _reference(self) -> ShardedReference | BaseReference:
        if self.policy.lora is not None and self.config.model.reference_dtype in (None, self.config.model.dtype):
            return BaseReference(self.policy)
        return ShardedReference(
            self.rank,
            self.adapter,
            self.config.model,
            self.config.train,
            shard=self.config.cluster.shard,
            sequence=self.policy.sequence,
            temperature=self.config.rollout.temperature,
        )

    def _alive(self, module: object, arguments: tuple[Any, ...]) -> None:
        """Every forward pass is a sign of life that names its samples."""
        self.passes += 1
        self.rank.progress.enter(self.phase, [row.prompt.sample.id for row in arguments[0]], f"forward pass {self.passes}")

    def _begin(self, phase: str) -> None:
        self.phase, self.passes = phase, 0
        self.rank.progress.enter(phase)

    def notes_of_policy(self) -> list[str]:
        return [*(f"frozen: {part}, {count:,} parameters" for part, count in self.policy.frozen.items()), *self.policy.trained()]

    def aside(self, begin: bool, shared: bool) -> None:
        """Enter or leave `Policy.aside`."""
        if begin:
            self.apart.enter_context(self.policy.aside(shared=shared))
        else:
            self.apart.close()

    def frozen_logprobs(self, share: Share) -> list[Tensor]:
        """[n_i] of each row of the share under the present weights."""
        self._begin("old")
        rows, plan = self._rows(share)
        return _of_rows(frozen_in(self.policy.frozen_logprobs, rows, plan), share)

    def old_logprobs(self, share: Share, known: Sequence[Tensor | None]) -> list[Tensor]:
        self._begin("old")
        rows, plan = self._rows(share)
        return _of_rows(old_logprobs(self.policy, rows, [*known, torch.zeros(1)], plan, self._anywhere), share)

    def reference_logprobs(self, share: Share) -> list[Tensor]:
        self._begin("reference")
        assert self.reference is not None
        rows, plan = self._rows(share)
        return _of_rows(frozen_in(self.reference.logprobs, rows, plan), share)

    def update(self, share: Share, batch: TrainBatch, totals: Sequence[Totals]) -> Outcome:
        """The updates of a step. `batch` holds the rows of the share, without the rows themselves."""
        self._begin("update")
        rows, plan = self._rows(share)
        parts = [MiniBatch(micro, total) for micro, total in zip(plan, totals, strict=True)]
        outcome = run_updates(self.policy, with_dummy(batch, rows), self.algorithm, parts, self._anywhere)
        self.forget()
        return replace(outcome, sample_ids=tuple(name for name in outcome.sample_ids if name != DUMMY))

    def _rows(self, share: Share) -> tuple[list[Row], list[tuple[tuple[int, ...], ...]]]:
        """(rows of the share and the dummy behind them, plan in which a dummy pass is a pass over that row)."""
        prompts = self._prompts(share.prompts, "train")
        rows = [Row(prompts[place], answer) for place, answer in share.rows]
        stop = self.adapter.stop_token_ids[0]
        dummy = Row(Prompt(Sample(DUMMY, "", "", ""), (), "", (stop, stop)), (stop,))
        plan = [tuple(micro or (len(rows),) for micro in part) for part in share.plan]
        return [*rows, dummy], plan

    def _anywhere(self, flag: bool) -> bool:
        found = torch.tensor(int(flag))
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return bool(found)

    def sync(self, version: int) -> None:
        """The present weights to the engine of this rank, gathered one by one: every rank makes the same calls."""
        assert self.engine is not None
        self.rank.progress.enter("weights", detail=f"version {version}")
        update_engine(self.engine, self.policy.weights(), version)

    def listen(self, engines: int) -> str:
        """Open the channel to engines in workers of their own; its address, from the first rank."""
        if self.rank.rank:
            return ""
        host = urlsplit(self.rank.rendezvous).hostname or "127.0.0.1"
        self.channel = WeightsChannel.listen(engines, host=host, device=self.rank.device, timeout=self.rank.timeout)
        return self.channel.address

    def accept(self) -> None:
        """Wait for the engines that were told the address."""
        if self.channel is not None:
            self.channel.accept()

    def send(self, version: int) -> None:
        """The present weights to all engines. Every rank takes part in gathering them; the first one sends."""
        self.rank.progress.enter("weights", detail=f"sending version {version}")
        if self.channel is not None:
            self.channel.send(self.policy.weights(), version)
        else:
            use_up(self.policy.weights())

    def describe(self) -> dict[str, Any]:
        """What a checkpoint says of this rank: bytes of its tensors, state of its random generators, what is trained."""
        size = Snapshot(self.policy.tensors(), self.rank.rank, self.rank.size, copy=False).bytes
        return {"bytes": size, "random": random_state(), "policy": self.policy.describe()}

    def save(self, folder: str, background: bool, more: Named) -> None:
        """Write the tensors of this rank and `more` into the folder of a checkpoint, now or by a thread."""
        self._begin("checkpoint")
        snapshot = Snapshot({**self.policy.tensors(), **more}, self.rank.rank, self.rank.size, copy=background)
        (snapshot.start if background else snapshot.write)(Path(folder))

    def load(self, path: str, updates: int, described: Mapping[str, Any] | None, generators: Any) -> None:
        """Go on from the tensors of a checkpoint; `generators` is the state of this rank's random generators, if as many ranks wrote it."""
        self._begin("checkpoint")
        stored = open_tensors(Path(path))
        read_into(stored, self.policy.slots({kind: one.meta() for kind, one in stored.items()}, described))
        self.policy.loaded(updates)
        if generators is not None:
            set_random_state(generators)

    def close(self) -> None:
        self.apart.close()
        super().close()


class RolloutWorker(PromptWorker):
    """An engine on GPUs of its own (`rollout.placement: separate`)."""

    def __init__(self, rank: Rank, config: RunConfig, limits: Limits) -> None:
        rank.join()
        super().__init__(rank, config, limits, engine=True)

    def build(self, samples: Sequence[Sample], budgets: Sequence[Budget | None], phase: Phase) -> Built:
        self.forget()  # those before are answered; the policy's workers make their own
        return super().build(samples, budgets, phase)

    def connect(self, address: str) -> None:
        """Meet the policy and the other engines, for weights."""
        self.channel = WeightsChannel.connect(address, self.rank.rank, self.rank.size, device=self.rank.device, timeout=self.rank.timeout)

    def receive(self, version: int) -> None:
        """New weights from the policy."""
        assert self.engine is not None
        self.rank.progress.enter("weights", detail=f"receiving version {version}")
        update_engine(self.engine, self.channel.receive(version), version)


DUMMY = "(dummy)"
"""Sample id of the row of a dummy pass."""


def with_dummy(batch: TrainBatch, rows: Sequence[Row]) -> TrainBatch:
    """The batch with a last row that counts for nothing: outside every mask, so that its loss and gradient are 0."""
    known = replace(
        batch.known,
        old=(*batch.known.old, torch.zeros(1)),
        reference=None if batch.known.reference is None else (*batch.known.reference, torch.zeros(1)),
    )

    def more(values: Tensor, fill: float) -> Tensor:
        return torch.cat([values, torch.full_like(values[:1], fill) if len(values) else values.new_full((1, *values.shape[1:]), fill)])

    return replace(
        batch,
        rows=tuple(rows),
        sample_ids=(*batch.sample_ids, DUMMY),
        mask=more(batch.mask, 0),
        advantages=more(batch.advantages, 0),
        rollout_logprobs=more(batch.rollout_logprobs, float("nan")),
        rewards=more(batch.rewards, 0),
        offline=more(batch.offline, 0),
        carried=more(batch.carried, 0),
        behind=more(batch.behind, 0),
        known=known,
    )


def _of_rows(found: Sequence[Tensor | None], share: Share) -> list[Tensor]:
    """Without the dummy's, on the CPU; copies, since a row of a padded rectangle would be sent with all of it."""
    rows = found[: len(share.rows)]
    return [one.detach().cpu().clone() for one in rows if one is not None]
