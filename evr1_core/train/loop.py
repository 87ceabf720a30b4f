"""The training loop: reinforcement learning from verifiable rewards, one line per idea.

    samples -> prompts -> groups of scored answers -> groups with signal -> advantages on tokens -> update -> weights to the engine

`train_step` is the algorithm; everything else here keeps it going: where to start, when to stop, what to write down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

import torch

from evr1_core.cluster.watch import ShortOfMemory, Watch
from evr1_core.errors import Evr1Error, RequestError, Stopped
from evr1_core.record.record import StepRecord
from evr1_core.rollout.engine import Answers, PromptMismatch, all_answered
from evr1_core.scoring.score import cause, rollout_value
from evr1_core.train import selection
from evr1_core.train.ahead import Ahead
from evr1_core.train.batch import Known, TrainBatch, credit, drawn_before, rows_of
from evr1_core.train.run import Run
from evr1_core.train.stop import StopRequest
from evr1_core.train.update import mismatch
from evr1_core.types import Completion, Exclusion, Group, Prompt, Rollout, Sampling

Validate = Callable[[Run, int], dict[str, float]]
"""Scores the policy on held-out rows at a step; given by the command line, since training knows no evaluation."""

MAX_MISMATCH = {"float32": 1e-3, "bfloat16": 0.1}
"""Limit of the mean log-probability difference of engine and trainer, by the type of the weights."""

FEW_PROMPTS = 4
"""In a smaller batch, but for the first, prompts that the engine builds otherwise are left out whatever their share is."""

PATIENCE = 5
"""Steps in a row without anything to learn from, after which the run stops with an explanation."""


def fit(run: Run, validate: Validate | None = None, stop: StopRequest | None = None) -> None:
    """Train from the last checkpoint, or from the start, to the last step. Raises Stopped where `stop` was requested meanwhile, and
    ShortOfMemory, ShortOfDisk where the machine has too little left to go on."""
    watch, stop = Watch(run.config), stop or StopRequest()
    start = run.restore()
    if start >= run.total_steps:
        raise RequestError(f"run {run.config.name!r} has done its {run.total_steps} steps already: raise train.steps, or give another name")
    if run.used_up():
        raise RequestError(f"run {run.config.name!r} has drawn all its data in {start} steps: raise train.epochs, or give another name")
    watch.check_start(run.learner.checkpoint_bytes(), run.learner.readings())
    run.record.resume(start)
    if run.config.train.async_steps:
        run.ahead = Ahead(partial(collect_more, run), run.record, run.order.state_dict, run.config.train.async_steps)
    if start == 0 and validate is not None and run.config.evaluate.first:
        run.record.validation(0, validate(run, 0))
    with stop.deferred():
        taught = train_steps(run, start, validate, stop, watch)
    run.checkpoints.wait()
    if len(run.surplus):
        run.record.note(f"{len(run.surplus)} groups with signal are left over; they wait in the checkpoint for a longer run")
    if not taught and start == 0:
        raise selection.NoSignal(f"no step had a group to learn from, the weights are as they were: {run.last_explanation}")


def train_steps(run: Run, start: int, validate: Validate | None, stop: StopRequest, watch: Watch) -> int:
    """The steps after `start` with their validations and checkpoints; returns how many had something to learn from."""
    every, last = run.config.evaluate.every, run.total_steps
    idle, taught = 0, 0
    for step in range(start + 1, last + 1):
        with run.record.step(step) as record, stop.step():
            learned = train_step(run, record, step)
            record.log(watch.check_step(run.learner.readings()))
        last = step if run.used_up() else last
        idle, taught = (0, taught + 1) if learned else (idle + 1, taught)
        if idle >= PATIENCE:
            run.save(step)
            run.checkpoints.wait()
            raise selection.NoSignal(f"{PATIENCE} steps in a row without a group to learn from: {run.last_explanation}")
        metrics, wanted = None, validate is not None and every > 0 and (step % every == 0 or step == last)
        if validate is not None and wanted and not stop.requested and watch.trouble is None:
            try:
                metrics = validate(run, step)
                run.record.validation(step, metrics)
                run.checkpoints.check_metrics(metrics)
            except Stopped as stopped:  # the validation heard the signal
                stop.request(stopped.signal)
        ending = stop.requested and (step < last or (wanted and metrics is None))
        if ending or watch.trouble is not None:
            end_early(run, step, stop, watch)
        due = step == last or (run.config.train.save_every > 0 and step % run.config.train.save_every == 0)
        if due or run.checkpoints.improves(metrics):
            run.save(step, metrics)
        run.checkpoints.poll()
        if step == last < run.total_steps:
            run.record.note(f"the data is used up after step {step}: dynamic sampling drew more than one batch for some steps")
            break
    return taught


def end_early(run: Run, step: int, stop: StopRequest, watch: Watch) -> NoReturn:
    """Save the finished step and say why the run ends here. On a full disk nothing is saved: the last checkpoint is whole, and stays."""
    if watch.trouble is not None:
        run.record.warn(str(watch.trouble), step)
        if isinstance(watch.trouble, ShortOfMemory):
            run.save(step)
            run.checkpoints.wait()
        raise watch.trouble
    path = run.save(step)
    run.checkpoints.wait()
    stopped = stop.stopped(step, path, run.config.train.resume)
    run.record.note(str(stopped))
    raise stopped


def train_step(run: Run, record: StepRecord, step: int) -> bool:
    """One step; False when no group had anything to learn from and the weights stayed."""
    groups, surplus = collect_in_turn(run, record, step) if run.ahead is None else run.ahead.take(record, step, run.total_steps)
    if not groups:
        with record.time("weights"):
            run.refresh_engine()
        return False
    known = logprobs_before(run, record, groups)
    with record.time("advantage"):
        batch = credit(groups, run.algorithm, run.config.rewards, known, run.engine.weight_version)
    record.rollouts(groups, batch.answer_advantages())
    if not run.agreement_checked:
        check_agreement(run, batch)
    if surplus:
        with record.time("surplus"):
            run.surplus.put(surplus, run.learner.frozen_logprobs)
    with record.time("update"):
        metrics = run.learner.update(batch)
    record.log(metrics)
    if run.ahead is not None:
        record.log({"async/staleness": float(batch.behind.double().mean()), "async/staleness_max": int(batch.behind.max())})
    if "kl/reference" in metrics:
        run.kl.observe(metrics["kl/reference"], answers=len(batch.rows))
    with record.time("weights"):
        run.learner.sync(run.engine, version=run.engine.weight_version + 1)
    return bool(batch.mask.any())


def collect_in_turn(run: Run, record: StepRecord, step: int) -> tuple[list[Group], list[Group]]:
    """`collect`, with the GPU left to the engine meanwhile."""
    with run.answering(record):
        return collect(run, record, step)


def collect_more(run: Run, record: StepRecord, step: int) -> tuple[list[Group], list[Group]] | None:
    """`collect`, or None when the data are used up."""
    return None if run.order.finished() else collect(run, record, step)


def collect(run: Run, record: StepRecord, step: int) -> tuple[list[Group], list[Group]]:
    """(scored groups to learn from, groups beyond the batch). With dynamic sampling what the last step left over comes first, and prompts
    are drawn until the batch is full or the tries are used up."""
    options, rewards, wanted = run.algorithm.options, run.config.rewards, run.config.train.batch_size
    media, scoring, guided = run.learner.counters(), run.pool.counters(), run.guidance.counters()
    kept = carried_over(run, record)
    carried, seen, tries = len(kept), [], 0
    while len(kept) < wanted and tries < (options.max_tries if options.dynamic_sampling else 1):
        samples = next(run.order, None)
        if samples is None:
            break
        with record.time("prompts"):
            prompts, excluded = run.builder.build_batch(samples)
        record.exclude(excluded)
        groups = answer(run, record, prompts, sampling(run, step, tries))
        check_scores(run, groups)
        chosen = selection.keep(groups, options, rewards)
        seen += [group if group in chosen else without_features(group) for group in groups]
        kept += chosen
        tries += 1
    kept, surplus = kept[:wanted], kept[wanted:]
    record.log({f"media/{name}": count - media.get(name, 0) for name, count in run.learner.counters().items()})
    record.log({name: count - scoring[name] for name, count in run.pool.counters().items()})
    record.log(run.guidance.metrics(seen, since=guided))
    if len(run.guidance.refused) > guided["refused"]:
        record.warn(f"{len(run.guidance.refused) - guided['refused']} trajectories are refused: events.log names them")
    record.collected(seen, kept=len(kept) - carried, surplus=len(surplus), tries=tries)
    record.log({"selection/kept": len(kept), "selection/carried": carried, **selection.dead(seen, options, rewards)})
    if tries and (not kept or options.dynamic_sampling and len(kept) < wanted):
        run.last_explanation = selection.explain_no_signal(seen, options, rewards, tries)
        (record.note if kept else record.warn)(f"{len(kept)} of {wanted} groups have signal: {run.last_explanation}")
    return kept, surplus if options.surplus == "keep" else []


def carried_over(run: Run, record: StepRecord) -> list[Group]:
    """Groups that the last step left over, with prompts made anew."""
    with record.time("prompts"):
        groups, excluded = run.surplus.take(run.builder.build_batch)
    record.exclude(excluded)
    return groups


def answer(run: Run, record: StepRecord, prompts: Sequence[Prompt], drawn: Sampling) -> list[Group]:
    """Scored answers of the policy to every prompt; a trajectory among them where guidance wants one, a greedy answer beside them where
    the algorithm wants one."""
    guides = run.guidance.candidates(prompts, run.order.epoch)
    with record.time("rollout"):
        found = generate(run, prompts, drawn, [run.guidance.own_answers(drawn.n, place in guides) for place in range(len(prompts))])
        answered = same_prompts(run, record, prompts, found)
        guides = {new: guides[place] for new, place in enumerate(answered) if place in guides}
        prompts, answers = [prompts[place] for place in answered], list(answered.values())
        greedy = run.engine.generate(prompts, replace(drawn, temperature=0.0, n=1)) if run.algorithm.needs_baseline else []
    with record.time("scoring"):
        groups = score(run, prompts, answers)
        if greedy:
            baselines = [replace(group.rollouts[0], provenance="greedy") for group in score(run, prompts, all_answered(greedy))]
            groups = [replace(group, baseline=one) for group, one in zip(groups, baselines, strict=True)]
        chosen = run.guidance.wanted(groups, guides)
        if chosen:
            given = score(run, [prompts[place] for place in chosen], [[guide] for guide in chosen.values()])
            for place, one in zip(chosen, given, strict=True):
                groups[place] = run.guidance.mix(groups[place], one.rollouts[0])
    return groups


def generate(run: Run, prompts: Sequence[Prompt], drawn: Sampling, counts: Sequence[int]) -> list[Answers]:
    """`counts[i]` answers to prompt i. Answer j of a prompt is the same whatever n is."""
    found: dict[int, Answers] = {}
    for n in sorted(set(counts)):
        places = [place for place, count in enumerate(counts) if count == n]
        found |= zip(places, run.engine.generate([prompts[place] for place in places], replace(drawn, n=n)), strict=True)
    return [found[place] for place in range(len(prompts))]


def same_prompts(run: Run, record: StepRecord, prompts: Sequence[Prompt], found: Sequence[Answers]) -> dict[int, list[Completion]]:
    """Place -> answers. A prompt that the engine built otherwise takes no part, by name; when most are, the run stops."""
    mismatches = [one for one in found if isinstance(one, PromptMismatch)]
    if 2 * len(mismatches) > len(prompts) and (len(prompts) >= FEW_PROMPTS or not run.agreement_checked):
        raise Evr1Error(
            f"rollout engine and trainer build different prompts for {len(mismatches)} of {len(prompts)} rows, so that training would be "
            f"wrong without a sign; the first: {mismatches[0]}"
        )
    record.exclude([Exclusion(one.sample_id, "prompt_mismatch", one.detail) for one in mismatches])
    return {place: answers for place, answers in enumerate(found) if not isinstance(answers, PromptMismatch)}


def logprobs_before(run: Run, record: StepRecord, groups: Sequence[Group]) -> Known:
    """What has to be known of the answers before their credit: nothing but what earlier steps left, unless there is a KL penalty."""
    old, options = drawn_before(groups), run.algorithm.options
    if not run.learner.has_reference:
        return Known(old)
    rows = rows_of(groups)
    if options.kl == "reward":
        with record.time("old"):
            old = run.learner.old_logprobs(rows, old)
    with record.time("reference"):
        return Known(old, run.learner.reference_logprobs(rows), run.kl.value)


def without_features(group: Group) -> Group:
    """A group that is only recorded: the model inputs of one long video are hundreds of megabytes."""
    return replace(group, prompt=replace(group.prompt, features={}))


def sampling(run: Run, step: int, tries: int) -> Sampling:
    """Every step and try draws anew; within it a completion depends on its sample and index alone."""
    section = run.config.rollout
    seed = run.config.seed * 1_000_003 + step * 1_009 + tries
    return Sampling(n=section.n, temperature=section.temperature, max_tokens=section.max_tokens, seed=seed)


def score(run: Run, prompts: Sequence[Prompt], answers: Sequence[Sequence[Completion]]) -> list[Group]:
    """Groups with a score for every answer."""
    pairs = [(prompt, completion) for prompt, completions in zip(prompts, answers, strict=True) for completion in completions]
    scores = iter(run.pool.score_completions(pairs))
    return [
        Group(prompt, tuple(Rollout(completion, next(scores)) for completion in completions))
        for prompt, completions in zip(prompts, answers, strict=True)
    ]


def check_scores(run: Run, groups: Sequence[Group]) -> None:
    """A run whose scorer fails learns nothing true: above the limit it stops. Failures that an answer caused count as wrong answers."""
    rewards, rollouts = run.config.rewards, [(group.sample, rollout) for group in groups for rollout in group.rollouts]
    failed = [(sample, rollout.score) for sample, rollout in rollouts if rollout_value(sample, rollout, rewards) is None]
    if rollouts and len(failed) / len(rollouts) > rewards.max_failed:
        causes = Counter(f"{score.status}/{cause(score)}" for _, score in failed)
        sample, first = failed[0]
        raise Evr1Error(
            f"{len(failed)} of {len(rollouts)} answers could not be scored (limit rewards.max_failed={rewards.max_failed}): "
            f"{', '.join(f'{count} {name}' for name, count in causes.most_common())}; "
            f"the first: sample {sample.id}, {first.status}: {first.reason}"
            + ("; `evr1 data check` finds faulty rows" if any(score.status == "invalid_gold" for _, score in failed) else "")
        )


@torch.no_grad()
def check_agreement(run: Run, batch: TrainBatch, rows: int = 8) -> None:
    """On the first batch, the engine's log-probabilities must be the trainer's: otherwise each update is silently off-policy.

    Answers are taken from all over the batch, so that one kind of prompt can't speak for the others; those that the present weights
    drew, and for which the engine gave numbers (offline trajectories have none).
    """
    drawn = (~batch.offline & ~batch.carried & (batch.behind <= 0)).nonzero()[:, 0].tolist()
    chosen = drawn[:: max(1, len(drawn) // rows)][:rows]
    if not chosen:
        return
    run.agreement_checked = True
    trainer = torch.nn.utils.rnn.pad_sequence(run.learner.frozen_logprobs([batch.rows[i] for i in chosen]), batch_first=True).cpu()
    rollout = batch.rollout_logprobs[chosen, : trainer.shape[1]]
    known = ~rollout.isnan()
    if not known.any():
        return
    difference = float(mismatch(trainer, rollout)["mismatch"][known].mean())
    run.record.note(f"rollout and trainer log-probabilities differ by {difference:.2e} on average on the first batch")
    limit = run.config.train.max_mismatch or MAX_MISMATCH[run.config.model.dtype]
    if difference > limit:
        raise Evr1Error(
            f"rollout engine and trainer disagree: mean log-probability difference {difference:.3g} on the first batch, "
            f"limit train.max_mismatch={limit}. "
            "Check that both use one dtype and supported versions (docs/engines.md)"
        )
