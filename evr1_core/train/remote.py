"""The `ray` backend, seen from the driver: builder, engine and learner of the loop, each by calls to the workers.

Only samples, token ids, log-probabilities and numbers travel; frames and model inputs never leave the worker that made them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evr1_core import plugins
from evr1_core.cluster.failure import WorkerFailure
from evr1_core.cluster.group import WorkerGroup
from evr1_core.cluster.policy import refuse
from evr1_core.cluster.sequence import check_degree
from evr1_core.config.models import RunConfig
from evr1_core.data.prompts import PromptBuilder
from evr1_core.errors import RequestError
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.forward import Row, micro_batches
from evr1_core.record.resources import Reading
from evr1_core.rollout.engine import Answers, Engine, EngineContext, PromptMismatch
from evr1_core.train.algorithm import Totals
from evr1_core.train.batch import TrainBatch
from evr1_core.train.checkpoint import Checkpoints
from evr1_core.train.learner import Named
from evr1_core.train.messages import Asked, Limits, Phase, Share, digest
from evr1_core.train.shares import shares
from evr1_core.train.update import Outcome, mini_batches
from evr1_core.types import Budget, Exclusion, Prompt, Sample, Sampling

TRAIN_WORKER = "evr1_core.train.worker:TrainWorker"
ROLLOUT_WORKER = "evr1_core.train.worker:RolloutWorker"


class Workers:
    """The worker groups of a run, and who has which prompt."""

    def __init__(self, config: RunConfig, context: EngineContext, total_steps: int) -> None:
        """Starts them. Raises RequestError for numbers that don't fit, WorkerFailure."""
        self.config, self.adapter = config, context.adapter
        self.separate = config.rollout.placement == "separate"
        size = policy_workers(config, context.device)
        check_early(config, size)
        limits = Limits(context.max_tokens, context.max_images, context.max_videos)
        common = {"device": context.device, "section": config.cluster, "logs": config.directory / "logs"}
        self.groups: list[WorkerGroup] = []
        try:
            arguments = {"config": config, "limits": limits, "engine": not self.separate, "total_steps": total_steps}
            self.policy = WorkerGroup.open(TRAIN_WORKER, arguments, size=size, name="policy", **common)
            self.groups.append(self.policy)
            self.rollout = self.policy
            if self.separate:
                arguments = {"config": config, "limits": limits}
                self.rollout = WorkerGroup.open(ROLLOUT_WORKER, arguments, size=config.rollout.workers or 1, name="rollout", **common)
                self.groups.append(self.rollout)
                self._connect()
            self.width = int(self.rollout.call("ranks_per_engine", phase="start")[0])
            if self.rollout.size % self.width:
                raise RequestError(
                    f"engines over {self.width} ranks each do not divide {self.rollout.size} workers: change cluster.workers or "
                    "rollout.workers"
                )
        except BaseException:
            self.close()
            raise
        self.views: list[RemoteEngine] = []
        self.homes: dict[str, int] = {}
        """Sample id -> rank of the rollout group that made its prompt and holds it."""
        self.media: dict[int, dict[str, int]] = {}
        """Rank -> counters of its media."""

    def _connect(self) -> None:
        """Open the channel through which the first policy rank sends weights to the engines."""
        [address, *_] = self.policy.call("listen", self.rollout.size, phase="start")
        waiting = self.policy.begin("accept", phase="start")
        self.rollout.call("connect", address, phase="start")
        waiting.result()

    @property
    def engines(self) -> int:
        return self.rollout.size // self.width

    def home_of(self, engine: int) -> int:
        """The rank that makes the prompts of an engine."""
        return engine * self.width

    def traffic(self) -> dict[str, float]:
        """Bytes that went to and came from the workers since the start."""
        found = [group.traffic() for group in self.groups]
        return {name: float(sum(one[name] for one in found)) for name in ("sent", "received")}

    def close(self) -> None:
        for group in reversed(self.groups):
            group.close()


class RemoteBuilder:
    """Prompts of a step, made by the workers."""

    def __init__(self, workers: Workers, local: PromptBuilder) -> None:
        """`local`: the driver's own builder, which knows the budgets that the data plan settled."""
        self.workers, self.local = workers, local

    def build_batch(self, samples: Sequence[Sample]) -> tuple[list[Prompt], list[Exclusion]]:
        """As `PromptBuilder.build_batch`; the prompts have no features, and their clips no frames."""
        dealt = deal(samples, self.workers.engines)
        size = self.workers.rollout.size
        each: list[tuple[Any, ...]] = [((), (), "train")] * size
        for engine, places in enumerate(dealt):
            mine = [samples[place] for place in places]
            each[self.workers.home_of(engine)] = (mine, [self._settled(sample) for sample in mine], "train")
        built = self.workers.rollout.call("build", each=each, phase="prompts")
        if self.workers.separate:
            self.workers.homes.clear()  # engines of their own hold the prompts of one call
        prompts: dict[str, Prompt] = {}
        excluded: list[Exclusion] = []
        for rank, one in enumerate(built):
            prompts |= {prompt.sample.id: prompt for prompt in one.prompts}
            self.workers.homes |= {prompt.sample.id: rank for prompt in one.prompts}
            self.workers.media[rank] = one.counters
            excluded += one.exclusions
            for note in one.notes:
                self.local.note(note)
        # A sample that stands in the batch twice has one prompt, shown twice.
        return [prompts[sample.id] for sample in samples if sample.id in prompts], excluded

    def _settled(self, sample: Sample) -> Budget | None:
        """The budget of a sample where it is another one than that of all."""
        found = self.local.settled(sample)
        return found if isinstance(found, Budget) and found != self.local.budget else None


class RemoteEngine:
    """All engines of the workers as one."""

    shared = False

    def __init__(self, workers: Workers, phase: Phase = "train") -> None:
        self.workers, self.phase = workers, phase
        self.weight_version = 0
        workers.views.append(self)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Answers]:
        """Each prompt is answered where it was made."""
        parts: list[list[int]] = [[] for _ in range(self.workers.engines)]
        for place, prompt in enumerate(prompts):
            home = self.workers.homes.get(prompt.sample.id) if self.phase == "train" else None
            parts[place % len(parts) if home is None else home // self.workers.width].append(place)
        each = []
        for rank in range(self.workers.rollout.size):
            mine = parts[rank // self.workers.width]
            each.append(([Asked(prompts[i].sample, digest(prompts[i].token_ids)) for i in mine], sampling, self.phase))
        found = self.workers.rollout.call("generate", each=each, phase="rollout")
        answers: dict[int, Answers] = {}
        for engine, places in enumerate(parts):
            for place, (kind, value) in zip(places, found[self.workers.home_of(engine)], strict=True):
                answers[place] = PromptMismatch(*value) if kind == "mismatch" else value
        return [answers[place] for place in range(len(prompts))]

    def sleep(self) -> None:
        if not self.workers.separate:
            self.workers.rollout.call("sleep", phase="weights")

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        raise RequestError("engines in workers get their weights from the policy's workers (Learner.sync)")

    def wake(self) -> None:
        if not self.workers.separate:
            self.workers.rollout.call("wake", phase="weights")

    def close(self) -> None:
        self.workers.close()

    def of(self, phase: Phase) -> RemoteEngine:
        """The same engines for prompts of another phase, which have another media budget."""
        return RemoteEngine(self.workers, phase)


class RemoteLearner:
    """Policy, optimizer and reference, sharded over the workers. Every method is one call to all ranks."""

    def __init__(self, workers: Workers, config: RunConfig, has_reference: bool) -> None:
        self.workers, self.group, self.config = workers, workers.policy, config
        self.adapter: ModelAdapter = workers.adapter
        self.has_reference = has_reference
        self.steps = 0
        self.degree = config.cluster.sequence_parallel
        self.told = sum(workers.traffic().values())
        """Bytes of traffic that were told."""
        self.media = frozenset(self.adapter.forbidden_token_ids)

    def frozen_logprobs(self, rows: Sequence[Row]) -> list[Tensor]:
        return self._each("frozen_logprobs", rows, parts=1)

    def old_logprobs(self, rows: Sequence[Row], known: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        return tuple(self._each("old_logprobs", rows, self.config.train.mini_batches, known))

    def reference_logprobs(self, rows: Sequence[Row]) -> tuple[Tensor, ...]:
        return tuple(self._each("reference_logprobs", rows, self.config.train.mini_batches))

    def _each(self, method: str, rows: Sequence[Row], parts: int, known: Sequence[Tensor | None] | None = None) -> list[Tensor]:
        """Log-probabilities of all rows, in order, from the ranks that ran them."""
        found: dict[int, Tensor] = {}
        given = self._shares(rows, parts)
        each = [(share,) if known is None else (share, [known[place] for place in share.places]) for share in given]
        for share, values in zip(given, self.group.call(method, each=self._for_ranks(each), phase=method)[:: self.degree], strict=True):
            found |= dict(zip(share.places, values, strict=True))
        return [found[place] for place in range(len(rows))]

    def _shares(self, rows: Sequence[Row], parts: int) -> list[Share]:
        section = self.config.train

        def micro(some: Sequence[Row]) -> Iterator[list[int]]:
            return micro_batches(some, section.micro_batch_tokens * self.degree, section.packing)

        homes = {} if self.workers.separate else {name: rank // self.degree for name, rank in self.workers.homes.items()}
        return shares(rows, parts, self.group.size // self.degree, micro, homes, self.media, lambda row: digest(row.prompt.token_ids))

    def _for_ranks(self, each: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """The ranks of a sequence group get the same."""
        return [one for one in each for _ in range(self.degree)]

    def update(self, batch: TrainBatch) -> dict[str, float]:
        parts = [Totals.of(batch.mask[indices]) for indices in mini_batches(len(batch.rows), self.config.train.mini_batches)]
        given = self._shares(batch.rows, self.config.train.mini_batches)
        each = [(share, select(batch, share.places), parts) for share in given]
        outcomes: list[Outcome] = self.group.call("update", each=self._for_ranks(each), phase="update")[:: self.degree]
        if not self.workers.separate:
            self.workers.homes.clear()  # the ranks have let the prompts of this step go
        total = outcomes[0]
        for other in outcomes[1:]:
            total.merge(other)
        metrics = total.metrics(batch, len(parts))
        self.steps += sum(len(values) for name, values in total.stepped.items() if name == "policy/lr")
        return {**metrics, **self._load(batch, given)}

    def _load(self, batch: TrainBatch, given: Sequence[Share]) -> dict[str, float]:
        """How even the work was, and bytes to and from the workers per answer since the last update."""
        tokens = [sum(len(batch.rows[place]) for place in share.places) for share in given]
        total = sum(self.workers.traffic().values())
        sent, self.told = total - self.told, total
        return {
            "cluster/tokens_max_over_mean": max(tokens) * len(tokens) / max(1, sum(tokens)),
            "cluster/bytes_per_answer": sent / len(batch.rows),
        }

    def sync(self, engine: Engine, version: int) -> None:
        if self.workers.separate and version == engine.weight_version:
            return  # engines of their own never sleep: they have these
        if self.workers.separate:
            taking = self.workers.rollout.begin("receive", version, phase="weights")
            sending = self.group.begin("send", version, phase="weights")
            try:
                sending.result()
            except WorkerFailure as failure:
                if failure.fault.consequence:
                    taking.result()  # an engine failed first, and its reason is the one to tell
                raise
            taking.result()
        else:
            self.group.call("sync", version, phase="weights")
        for view in self.workers.views:
            view.weight_version = version

    @contextmanager
    def aside(self, *, shared: bool) -> Iterator[None]:
        needed = self.config.model.weights_offload or self.config.train.optimizer_offload == "rollout"
        if not needed or self.workers.separate:
            yield
            return
        self.group.call("aside", True, shared, phase="rollout")
        try:
            yield
        finally:
            if not self.group.closed:  # else a worker has failed, which is the error to tell
                self.group.call("aside", False, shared, phase="rollout")

    def notes(self) -> list[str]:
        return self.group.call("notes_of_policy", phase="start")[0]

    def readings(self) -> list[Reading]:
        # Engines that draw answers ahead are busy, and would be waited for.
        groups = [self.group] if self.config.train.async_steps else self.workers.groups
        return [one for group in groups for one in group.call("reading", group.name, phase="resources")]

    def checkpoint_bytes(self) -> int:
        return sum(one["bytes"] for one in self.group.call("describe", phase="resources"))

    def save(
        self, checkpoints: Checkpoints, step: int, more: Named, state: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> Path:
        """Every rank writes its shards, the first one `more` too; the state of every rank's random generators goes along."""
        found = self.group.call("describe", phase="checkpoint")
        own = {"updates": self.steps, "policy": found[0]["policy"], "ranks": [one["random"] for one in found]}
        needed = sum(one["bytes"] for one in found) + sum(tensor.nbytes for named in more.values() for tensor in named.values())
        folder = checkpoints.begin(step, {**state, **own}, needed, metrics)
        try:
            each = [(more if rank == 0 else {},) for rank in range(self.group.size)]
            self.group.call("save", str(folder.absolute()), checkpoints.background, each=each, phase="checkpoint")
        except BaseException:
            checkpoints.abandon()
            raise
        return checkpoints.finish(ranks=self.group.size, alive=lambda: not self.group.closed)

    def load(self, checkpoints: Checkpoints, path: Path) -> tuple[Named, dict[str, Any]]:
        """Every rank reads its shards, however many ranks wrote them."""
        tensors, state = checkpoints.load(path)
        states = state.get("ranks", [])
        same = len(states) == self.group.size
        each = [(states[rank] if same else None,) for rank in range(self.group.size)]
        arguments = (str(path.absolute()), state["updates"], state.get("policy"))
        self.group.call("load", *arguments, each=each, phase="checkpoint")
        self.steps = state["updates"]
        return tensors, state

    def counters(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for counts in self.workers.media.values():
            for name, count in counts.items():
                found[name] = found.get(name, 0) + count
        return found


def policy_workers(config: RunConfig, device: str) -> int:
    """Processes of the policy. Raises RequestError where the configuration doesn't give what the machine can't tell."""
    count = config.cluster.workers
    if count is None:
        if device == "cpu":
            raise RequestError("cluster.workers: on CPUs the number of workers has to be given, for example cluster.workers=2")
        from evr1_core.cluster.start import start_ray

        start_ray(config.cluster)
        import ray

        count = int(ray.cluster_resources().get("GPU", 0)) - (config.rollout.workers or 1) * (config.rollout.placement == "separate")
    divisors = {"cluster.sequence_parallel": config.cluster.sequence_parallel, "cluster.shard.replicas": config.cluster.shard.replicas}
    for name, part in divisors.items():
        if count < 1 or count % part:
            raise RequestError(f"{name} = {part} does not divide the {count} workers of the policy: change it or cluster.workers")
    return count


def check_early(config: RunConfig, size: int) -> None:
    """What `size` workers would refuse, before they are started. Raises RequestError."""
    refuse(config.train)
    check_degree(size, config.cluster.sequence_parallel, config.train.packing)
    if config.rollout.engine != "auto":  # the machines of the workers choose it
        plugins.options(plugins.engine(config.rollout.engine), config.rollout.options, where="rollout.options")


def deal(samples: Sequence[Sample], parts: int) -> list[list[int]]:
    """Places of samples for each engine: those that show the same media together, and kinds of data spread evenly."""
    kinds: dict[str, dict[Any, list[int]]] = {}
    for place, sample in enumerate(samples):
        key = sample.media or (sample.id,)
        kinds.setdefault(sample.data_type, {}).setdefault(key, []).append(place)
    found: list[list[int]] = [[] for _ in range(parts)]
    for kind in sorted(kinds, reverse=True):  # video, text, mixed, image: long ones first
        for places in kinds[kind].values():
            min(found, key=len).extend(places)
    return [sorted(part) for part in found]


def select(batch: TrainBatch, places: Sequence[int]) -> TrainBatch:
    """Some answers of a batch, without their rows."""
    chosen = torch.tensor(places, dtype=torch.int64)
    known = replace(
        batch.known,
        old=tuple(batch.known.old[place] for place in places),
        reference=None if batch.known.reference is None else tuple(batch.known.reference[place] for place in places),
    )
    return replace(
        batch,
        rows=(),
        sample_ids=tuple(batch.sample_ids[place] for place in places),
        mask=batch.mask[chosen],
        advantages=batch.advantages[chosen],
        rollout_logprobs=batch.rollout_logprobs[chosen],
        rewards=batch.rewards[chosen],
        offline=batch.offline[chosen],
        carried=batch.carried[chosen],
        behind=batch.behind[chosen],
        known=known,
    )
