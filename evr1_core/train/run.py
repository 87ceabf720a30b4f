"""From a configuration to everything a run needs; each part is built by one small function."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from evr1_core import plugins
from evr1_core.config.models import RunConfig
from evr1_core.data.order import DataOrder
from evr1_core.data.plan import DataPlan
from evr1_core.data.prompts import PromptBuilder
from evr1_core.data.rows import Rows, read_samples
from evr1_core.errors import RequestError
from evr1_core.media.store import MediaStore
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.load import load_adapter
from evr1_core.policy.policy import Policy
from evr1_core.policy.reference import BaseReference, Reference
from evr1_core.record.record import Record, StepRecord
from evr1_core.rollout.engine import Engine, EngineContext, open_engine
from evr1_core.rollout.setup import choose_device, engine_context, model_name, open_builder, open_store
from evr1_core.scoring.pool import ScoringPool
from evr1_core.scoring.score import check_judge, check_rewards
from evr1_core.train.ahead import Ahead, check_async
from evr1_core.train.algorithm import Algorithm, build_algorithm
from evr1_core.train.checkpoint import Checkpoints, random_state, set_random_state
from evr1_core.train.guidance import Guidance
from evr1_core.train.kl import MAX_STEP, Coefficient
from evr1_core.train.learner import Learner, LocalLearner
from evr1_core.train.planning import plan_ahead, summary
from evr1_core.train.surplus import Surplus
from evr1_core.types import Exclusion, Prompt, Sample


class Builder(Protocol):
    """What makes prompts: `PromptBuilder`, or workers that have one each."""

    def build_batch(self, samples: Sequence[Sample]) -> tuple[list[Prompt], list[Exclusion]]: ...


@dataclass
class Run:
    """The parts of one run; `train_step` composes them."""

    config: RunConfig
    order: DataOrder
    adapter: ModelAdapter
    store: MediaStore
    builder: Builder
    """Makes the prompts of a step."""
    learner: Learner
    engine: Engine
    validation_engine: Engine
    """The same engine, for prompts with the media budget of evaluation."""
    pool: ScoringPool
    algorithm: Algorithm
    guidance: Guidance
    kl: Coefficient
    record: Record
    checkpoints: Checkpoints
    total_steps: int
    ahead: Ahead | None = None
    """Collects the groups of later steps meanwhile; None is synchronous."""
    surplus: Surplus = field(default_factory=Surplus)
    last_explanation: str = field(default="")
    """Why the last step had nothing to learn from."""
    agreement_checked: bool = False
    """Engine and trainer were compared since this start."""

    def save(self, step: int, metrics: Mapping[str, float] | None = None) -> Path:
        """A checkpoint from which `restore` goes on bit for bit; `metrics` are those of a validation of these very weights."""
        state = {
            "step": step,
            "weight_version": self.engine.weight_version,
            # Answers that were drawn ahead are drawn anew when the run goes on.
            "order": self.order.state_dict() if self.ahead is None or self.ahead.position is None else self.ahead.position,
            "algorithm": self.algorithm.state_dict(),
            "kl": self.kl.state_dict(),
            "surplus": self.surplus.state_dict(),
            "trackers": self.record.trackers.state_dict(),
            "random": random_state(),
        }
        return self.learner.save(self.checkpoints, step, self.surplus.tensors(), state, metrics)

    def restore(self) -> int:
        """Go on from `train.resume`; returns the last finished step, 0 for a fresh start."""
        wanted = self.config.train.resume
        if wanted == "never":
            return 0
        path = self.checkpoints.latest() if wanted == "auto" else Path(wanted)
        if path is None:
            if any(self.checkpoints.directory.glob("step-??????")):
                self.record.warn(f"no checkpoint in {self.checkpoints.directory} is complete (events.log says why): the run starts anew")
            return 0
        tensors, state = self.learner.load(self.checkpoints, path)
        self.order.load_state_dict(state["order"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.kl.load_state_dict(state.get("kl", {}))
        if self.algorithm.options.surplus == "keep":
            self.surplus.load_state_dict(state.get("surplus", []), tensors.get("surplus", {}), self.order.samples)
        self.learner.sync(self.engine, version=state["weight_version"])
        self.record.trackers.load_state_dict(state.get("trackers", {}))
        set_random_state(state["random"])
        self.record.note(f"resumed from {path} after step {state['step']}")
        return state["step"]

    @contextmanager
    def answering(self, record: StepRecord | None = None) -> Iterator[None]:
        """Within it the engine is awake and the policy stands aside, as far as the options say: they take turns on a GPU.

        Behind it the engine sleeps and may have thrown its weights away: it is to get new ones, or the same again (`refresh_engine`).
        """
        with self.learner.aside(shared=getattr(self.engine, "shared", False)):
            with nullcontext() if record is None else record.time("weights"):
                self.engine.wake()
            yield
            with nullcontext() if record is None else record.time("weights"):
                self.engine.sleep()

    def refresh_engine(self) -> None:
        """The weights that the engine had, once more."""
        self.learner.sync(self.engine, version=self.engine.weight_version)

    def used_up(self) -> bool:
        """Whether there are no data for a further step."""
        return self.order.finished() and (self.ahead is None or self.ahead.idle() or self.ahead.used_up())

    def close(self) -> None:
        if self.ahead is not None:
            self.ahead.close()
        self.checkpoints.close()
        self.pool.close()
        self.engine.close()
        self.store.close()
        self.record.close()


def open_run(config: RunConfig, origins: Mapping[str, str] | None = None, command: Sequence[str] = ()) -> Run:
    """Everything that `fit` needs. Fails on the first wrong request, before a weight is loaded."""
    algorithm = run_algorithm(config, origins)
    rows, held_out = open_rows(config), open_held_out(config)
    check_options(config, algorithm, rows)
    ray = config.cluster.backend == "ray"
    device = cluster_device(config) if ray else choose_device(config.model.device)
    seed_everything(config.seed)
    adapter = load_adapter(model_name(config), config.model.chat)
    store = open_store(config)
    builder = open_builder(config, adapter, store)
    # Before the order is made, which is an order of the rows that take part.
    rows, planned = plan_ahead(config.data, rows, builder, store) if config.data.plan else (rows, None)
    order = open_order(config, rows)
    total = total_steps(config, order)
    with ExitStack() as opened:  # what is open already is closed where something after it fails
        record = Record.open(config, origins or {}, command=command, total=total)
        opened.callback(record.close)
        builder.note = record.note
        note_rows(record, rows, planned, builder)
        guidance = open_guidance(config, adapter, algorithm, rows, record)
        longest = max(config.rollout.max_tokens, config.evaluate.max_tokens if held_out else 0)
        context = engine_context(config, adapter, [*rows.samples, *held_out], device, max_tokens=longest)
        parts = (open_workers if ray else open_local)(config, algorithm, context, total, store, builder)
        opened.callback(parts.engine.close)
        for line in parts.learner.notes():
            record.note(line)
        run = Run(
            config=config,
            order=order,
            adapter=adapter,
            store=store,
            builder=parts.builder,
            learner=parts.learner,
            engine=parts.engine,
            validation_engine=parts.validation_engine,
            pool=ScoringPool(config.rewards),
            algorithm=algorithm,
            guidance=guidance,
            kl=Coefficient(algorithm.options),
            record=record,
            checkpoints=open_checkpoints(config, record),
            total_steps=total,
        )
        opened.pop_all()
    return run


@dataclass
class Parts:
    """What a backend brings."""

    builder: Builder
    learner: Learner
    engine: Engine
    validation_engine: Engine


def open_local(
    config: RunConfig, algorithm: Algorithm, context: EngineContext, total: int, store: MediaStore, builder: PromptBuilder
) -> Parts:
    """Policy, reference and engine in this process; the engine may run the policy's own module."""
    policy = Policy(
        context.adapter, config.model, config.train, temperature=config.rollout.temperature, device=context.device, total_steps=total
    )
    reference = open_reference(config, context.adapter, algorithm, context.device, policy)
    engine = open_engine(config.rollout.engine, config.rollout.options, replace(context, model=policy.model))
    return Parts(builder, LocalLearner(policy, reference, algorithm, store.counters), engine, engine)


def open_workers(
    config: RunConfig, algorithm: Algorithm, context: EngineContext, total: int, store: MediaStore, builder: PromptBuilder
) -> Parts:
    """All of it in workers that Ray places."""
    from evr1_core.train.remote import RemoteBuilder, RemoteEngine, RemoteLearner, Workers

    workers = Workers(config, context, total)
    engine = RemoteEngine(workers)
    learner = RemoteLearner(workers, config, algorithm.options.uses_reference)
    learner.sync(engine, version=0)  # engines sleep while the policy is loaded
    return Parts(RemoteBuilder(workers, builder), learner, engine, engine.of("evaluate"))


def cluster_device(config: RunConfig) -> str:
    """Where the workers compute; this process needs no GPU."""
    if config.model.device != "auto":
        return config.model.device
    from evr1_core.cluster.start import start_ray

    start_ray(config.cluster)
    import ray

    return "cuda" if ray.cluster_resources().get("GPU", 0) else "cpu"


def open_checkpoints(config: RunConfig, record: Record) -> Checkpoints:
    section = config.train
    return Checkpoints(
        config.directory / "checkpoints",
        keep=section.keep,
        note=record.note,
        background=section.save == "background",
        best=section.best,
        best_is=section.best_is,
    )


def note_rows(record: Record, rows: Rows, planned: DataPlan | None, builder: PromptBuilder) -> None:
    """What is known of the rows before the first step."""
    record.exclude(rows.exclusions)
    if rows.exclusions:
        counts = Counter(exclusion.reason for exclusion in rows.exclusions)
        record.warn(
            f"{len(rows.exclusions)} rows take no part ({', '.join(f'{n} {why}' for why, n in counts.items())}): events.log names them"
        )
    for note in rows.notes:
        record.note(note)
    if planned is not None:
        for line in planned.shrunk(builder.budget):
            record.note(line)
        record.note(summary(planned))
        record.console.print(summary(planned))


def open_rows(config: RunConfig) -> Rows:
    """Checked rows of the training data."""
    if not config.data.train:
        raise RequestError("no training data: give data.train or --data FILE")
    check_rewards(config.rewards)
    rows = read_samples(
        config.data.train,
        media_root=config.data.media_root,
        bad_rows=config.data.bad_rows,
        limit=config.data.limit,
        known_problem_type=lambda name: plugins.serves(name, config.rewards.use),
    )
    check_judge(config.rewards, rows.samples)
    if not rows.samples:
        raise RequestError(f"no usable row in {', '.join(map(str, config.data.train))}: {len(rows.exclusions)} excluded")
    return rows


def open_held_out(config: RunConfig) -> list[Sample]:
    """Checked rows of the validation data; their media are looked at when they are shown."""
    rows = read_samples(
        config.data.validate_on,
        media_root=config.data.media_root,
        known_problem_type=lambda name: plugins.serves(name, config.rewards.use),
        check_media=False,
        advice="Mend them, or take them out of the file: a validation leaves no row out.",
    )
    check_judge(config.rewards, rows.samples)
    return rows.samples


def check_options(config: RunConfig, algorithm: Algorithm, rows: Rows) -> None:
    """Raises RequestError when trajectories are asked for and no row has one, and for an adaptive KL coefficient that could reach 0."""
    if config.guidance.mode != "off" and not any(sample.offline for sample in rows.samples):
        raise RequestError(f"guidance.mode={config.guidance.mode}, but none of {len(rows.samples)} rows has a trajectory (offline_output)")
    if config.train.best is not None and not (config.data.validate_on and config.evaluate.every):
        raise RequestError(f"train.best={config.train.best} needs a validation: give data.validate_on and evaluate.every")
    separate = config.cluster.backend == "ray" and config.rollout.placement == "separate"
    check_async(config.train.async_steps, separate, algorithm.options.dynamic_sampling, algorithm.options.surplus)
    options, answers = algorithm.options, config.train.batch_size * config.rollout.n
    if options.uses_reference and options.kl_target is not None and MAX_STEP * answers >= options.kl_horizon:
        raise RequestError(
            f"algorithm.kl_horizon={options.kl_horizon} is too short for {answers} answers a step: the coefficient could reach 0 at once; "
            f"it must be above {MAX_STEP * answers:g}, and 10000 is usual"
        )


def run_algorithm(config: RunConfig, origins: Mapping[str, str] | None = None) -> Algorithm:
    """The algorithm of a run; asynchronous ones correct for older weights."""
    algorithm = build_algorithm(config.algorithm, origins)
    return algorithm.asynchronous() if config.train.async_steps else algorithm


def open_guidance(config: RunConfig, adapter: ModelAdapter, algorithm: Algorithm, rows: Rows, record: Record) -> Guidance:
    """Mix-policy, and how many rows can take part in it."""
    guidance = Guidance(config.guidance, adapter, max_tokens=config.rollout.max_tokens, seed=config.seed, note=record.note)
    if guidance.active:
        record.note(f"{sum(bool(sample.offline) for sample in rows.samples)} of {len(rows.samples)} rows have offline trajectories")
    elif getattr(algorithm.loss_options, "expects_trajectories", False):
        record.warn(f"algorithm {algorithm.name} is made for offline trajectories, and guidance.mode is off: no group gets one")
    return guidance


def open_reference(
    config: RunConfig, adapter: ModelAdapter, algorithm: Algorithm, device: str, policy: Policy
) -> Reference | BaseReference | None:
    """The starting model, where a KL penalty needs it: the policy without its adapters; loaded once more where there are none, or where
    another type or place is asked for."""
    if not algorithm.options.uses_reference:
        return None
    wanted = config.model.reference_device
    where = device if wanted == "auto" else choose_device(wanted)
    if policy.lora is not None and where == device and config.model.reference_dtype in (None, config.model.dtype):
        return BaseReference(policy)
    return Reference(adapter, config.model, config.train, temperature=config.rollout.temperature, device=where)


def open_order(config: RunConfig, rows: Rows) -> DataOrder:
    """Their order; without end when the run's length is given in steps."""
    epochs = None if config.train.steps is not None else config.train.epochs
    return DataOrder(rows.samples, config.train.batch_size, seed=config.seed, shuffle=config.data.shuffle, epochs=epochs)


def total_steps(config: RunConfig, order: DataOrder) -> int:
    """Steps of the run: `train.steps`, or as many batches as the epochs give."""
    total = config.train.steps or order.steps_total()
    assert total is not None
    return total


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
