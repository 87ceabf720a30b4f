"""`evr1 train` end to end on a tiny model and real encoded files."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from evr1_core.errors import Evr1Error, RequestError
from evr1_core.policy.policy import Policy
from evr1_core.record.record import StepRecord
from evr1_core.train import loop
from evr1_core.train.batch import NonFinite
from evr1_core.train.checkpoint import CheckpointError
from evr1_core.train.run import Run
from evr1_core.train.selection import NoSignal
from tests.support.runs import run_of, start, train

pytestmark = pytest.mark.slow


@pytest.fixture
def uneven_rewards(varied_rewards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `varied_rewards`, but nothing to learn from the questions about videos: all answers to them are equally wrong."""

    def score(run: Run, prompts: Any, answers: Any) -> Any:
        from dataclasses import replace

        def flat(rollout: Any) -> Any:
            return replace(rollout, score=replace(rollout.score, value=0.0, accuracy=0.0))

        return [
            replace(group, rollouts=tuple(map(flat, group.rollouts))) if group.sample.videos else group
            for group in varied(run, prompts, answers)
        ]

    varied = loop.score
    monkeypatch.setattr(loop, "score", score)


@pytest.fixture(scope="module")
def guided(questions: Path) -> Path:
    """The questions with trajectories: every second row has one or two, one of them too long to be an answer."""
    rows = [json.loads(line) for line in questions.read_text().splitlines()]
    for row in rows[::2]:
        row["offline_output"] = [f"<answer>{row['answer']}</answer>", "answer " * 50]
    for row in rows[::4]:
        row["offline_output"], row["has_offline_trajectory"] = f"<answer>{row['answer']}</answer>", True
    path = questions.with_name("guided.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def equal_weights(one: Path, other: Path, step: int) -> bool:
    a, b = (load_file(run / f"checkpoints/step-{step:06d}/model.safetensors") for run in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_clock(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What must be equal in two runs: all but times, memory and what the cache did."""
    return [{k: v for k, v in row.items() if not k.startswith(("time", "memory/", "resources/", "media/", "host/"))} for row in rows]


def test_two_steps_and_two_more_after_a_stop_equal_four(settings: list[str], varied_rewards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = train(settings, "name=straight")

    class Stopped(Exception):
        pass

    def stop_at_three(run: Run, record: Any, step: int) -> bool:
        if step == 3:
            raise Stopped
        return whole_step(run, record, step)

    whole_step = loop.train_step
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(loop, "train_step", stop_at_three)
        train(settings, "name=resumed")
    torch.manual_seed(99)  # whatever happens in between must not matter
    resumed = train(settings, "name=resumed")

    last = "checkpoints/step-000004"
    for name in ("model.safetensors", "optimizer.safetensors"):
        a, b = (load_file(run / last / name) for run in (straight, resumed))
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a), name
    a, b = (json.loads((run / last / "state.json").read_text()) for run in (straight, resumed))
    assert a == b
    assert without_clock(lines(straight / "metrics.jsonl")) == without_clock(lines(resumed / "metrics.jsonl"))
    assert without_clock(lines(straight / "rollouts.jsonl")) == without_clock(lines(resumed / "rollouts.jsonl"))
    assert [row["step"] for row in lines(resumed / "metrics.jsonl")] == [1, 2, 3, 4]
    first = load_file(straight / "checkpoints/step-000002/model.safetensors")
    final = load_file(straight / last / "model.safetensors")
    assert any(not torch.equal(first[key], final[key]) for key in first), "the weights never moved: the test shows nothing"


def test_mix_policy_adds_what_it_says_and_off_is_absent_to_the_bit(
    settings: list[str], guided: Path, varied_rewards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("without KL no reference is loaded")

    monkeypatch.setattr("evr1_core.train.run.Reference", never)
    more = ("train.steps=2", "train.schedule=constant")
    plain = train(settings, "name=plain", *more)
    off = train(settings, "name=off", f"data.train=[{guided}]", *more)
    assert equal_weights(plain, off, 2)
    always = train(settings, "name=always", f"data.train=[{guided}]", "guidance.mode=always", *more)
    assert not equal_weights(plain, always, 2)

    metrics, rows = lines(always / "metrics.jsonl"), lines(always / "rollouts.jsonl")
    for metric in metrics:
        given = [row for row in rows if row["step"] == metric["step"] and row["provenance"] == "offline"]
        assert metric["guidance/groups"] == metric["guidance/candidates"] == len(given) > 0
        assert metric["guidance/share"] == len(given) / 16 and 0 < metric["guidance/accuracy"] < 1
        assert metric["rollout/answers"] == 16 - len(given), "what the policy drew"
        assert metric["rollout/mismatch"] < 1e-5, "offline tokens have no rollout log-probability to compare"
        for row in given:
            assert (
                row["answer"] == 3 and row["text"] == f"<answer>{row['gold']}</answer>" and row["finish_reason"] == "stop" and row["kept"]
            )
    drawn = [(row["sample"], row["answer"], row["text"]) for row in rows if row["step"] == 1 and row["provenance"] == "policy"]
    assert set(drawn) < {(row["sample"], row["answer"], row["text"]) for row in lines(off / "rollouts.jsonl") if row["step"] == 1}
    refused = [line for line in (always / "events.log").read_text().splitlines() if "is refused: too_long: 5" in line]
    assert sum(metric["guidance/refused"] for metric in metrics) == len(refused) > 0


def test_everything_that_waits_or_adapts_goes_on_exactly(
    settings: list[str], guided: Path, uneven_rewards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups left over, an adaptive KL coefficient, turns of trajectories, greedy baselines: four steps, and one and three."""
    more = (
        f"data.train=[{guided}]",
        "guidance.mode=below",
        "guidance.threshold=0.9",
        "algorithm.name=dapo",
        "algorithm.greedy_baseline=true",
        "algorithm.kl=reward",
        "algorithm.kl_target=0.01",
        "algorithm.kl_horizon=100",
        "model.reference_device=cpu",
        "rollout.max_tokens=8",
        "train.save_every=1",
    )
    straight = train(settings, "name=straight", *more)

    class Stopped(Exception):
        pass

    def stop_at_two(run: Run, record: Any, step: int) -> bool:
        if step == 2:
            raise Stopped
        return whole_step(run, record, step)

    whole_step = loop.train_step
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(loop, "train_step", stop_at_two)
        train(settings, "name=resumed", *more)
    torch.manual_seed(99)
    resumed = train(settings, "name=resumed", *more)

    assert equal_weights(straight, resumed, 4)
    a, b = (json.loads((run / "checkpoints/step-000004/state.json").read_text()) for run in (straight, resumed))
    assert a == b and a["kl"]["value"] != 1e-3
    metrics = lines(straight / "metrics.jsonl")
    kept_out = {"guidance/refused"}  # named anew after a stop
    assert [{k: v for k, v in row.items() if k not in kept_out} for row in without_clock(metrics)] == [
        {k: v for k, v in row.items() if k not in kept_out} for row in without_clock(lines(resumed / "metrics.jsonl"))
    ]
    assert without_clock(lines(straight / "rollouts.jsonl")) == without_clock(lines(resumed / "rollouts.jsonl"))

    assert metrics[0]["kl/reference"] == 0 and all(row["kl/reference"] != 0 for row in metrics[1:])
    assert [row["selection/carried"] for row in metrics[1:]] == [row["selection/surplus"] for row in metrics[:-1]]
    assert metrics[0]["selection/surplus"] > 0, "nothing waits at the stop: the test shows nothing"
    assert all(row["selection/dead"] == row["selection/dead_wrong"] > 0 for row in metrics)
    rows = lines(straight / "rollouts.jsonl")
    trained = [row for row in rows if row["step"] == 2 and row["kept"]]
    assert {row["weight_version"] for row in trained if row["provenance"] == "policy"} == {0, 1}
    greedy = [row for row in rows if row["provenance"] == "greedy"]
    assert greedy and not any(row["kept"] for row in greedy) and all("baseline/value" in row for row in metrics)


def test_cold_cache_decodes_each_medium_once_and_warm_cache_none(settings: list[str]) -> None:
    more = ("train.steps=3", "data.shuffle=false")  # 12 rows, 8 of them with a medium, in 3 batches
    cold = lines(train(settings, "name=cold", *more) / "metrics.jsonl")
    assert sum(row["media/decoded"] for row in cold) == 8 and all(row["media/decoded"] <= 4 for row in cold)
    warm = lines(train(settings, "name=warm", *more) / "metrics.jsonl")
    assert [row["media/decoded"] for row in warm] == [0, 0, 0] and sum(row["media/hits"] for row in warm) == 8


def test_rollout_and_trainer_agree_each_step(settings: list[str], varied_rewards: None) -> None:
    rows = lines(train(settings) / "metrics.jsonl")
    assert all(row["rollout/mismatch"] < 1e-5 for row in rows)
    assert all(row["policy/grad_norm"] > 0 for row in rows)


def test_the_first_batch_is_compared_across_prompts_and_without_the_algorithm(
    settings: list[str], varied_rewards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it comes; and credit, which may have a memory, is given once per step."""
    credited: list[int] = []
    compared: list[list[str]] = []

    def counted(groups: Any, *more: Any) -> Any:
        credited.append(len(groups))
        return credit(groups, *more)

    def nothing_at_first(run: Run, record: Any, step: int) -> Any:
        return collect(run, record, step) if step > 1 else ([], [])

    def seen(policy: Policy, rows: Any) -> Any:
        compared.append([row.prompt.sample.id for row in rows])
        return frozen(policy, rows)

    credit, collect, frozen = loop.credit, loop.collect, Policy.frozen_logprobs
    monkeypatch.setattr(Policy, "frozen_logprobs", seen)
    monkeypatch.setattr(loop, "credit", counted)
    monkeypatch.setattr(loop, "collect", nothing_at_first)
    log = (train(settings, "train.steps=3") / "events.log").read_text()
    assert log.count("rollout and trainer log-probabilities differ by") == 1
    assert credited == [4, 4], "steps 2 and 3"
    assert len(compared) == 1 and len(set(compared[0])) == 4


def test_bfloat16_with_several_mini_batches(settings: list[str], varied_rewards: None) -> None:
    """The other precision, padded rows, checkpointing, and old log-probabilities from a pass of their own."""
    more = ("model.dtype=bfloat16", "train.packing=false", "train.mini_batches=2", "model.gradient_checkpointing=true", "train.lr=1e-5")
    rows = lines(train(settings, *more, "train.steps=2") / "metrics.jsonl")
    assert all(row["policy/grad_norm"] > 0 and row["rollout/mismatch"] < 0.05 for row in rows)


def test_the_first_mini_batch_is_on_policy_to_the_bit(settings: list[str], varied_rewards: None) -> None:
    """Old log-probabilities come from the very forward passes of the update: without a step in between the ratio is exactly 1."""
    more = ("train.mini_batches=3", "train.lr=0", "train.steps=2", "train.micro_batch_tokens=500", "model.dtype=bfloat16")
    rows = lines(train(settings, *more) / "metrics.jsonl")
    assert [row["policy/approx_kl"] for row in rows] == [0, 0]


def test_a_finished_run_says_so(settings: list[str]) -> None:
    train(settings, "train.steps=2")
    with pytest.raises(RequestError, match="has done its 2 steps already.*raise train.steps"):
        train(settings, "train.steps=2")
    assert train(settings, "train.steps=3").joinpath("checkpoints/step-000003").is_dir()


def test_a_named_checkpoint_that_is_missing_is_an_error(settings: list[str], tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no checkpoint at .*nowhere"):
        train(settings, f"train.resume={tmp_path / 'nowhere'}")


def test_no_signal_stops_with_an_explanation(settings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "PATIENCE", 2)
    with pytest.raises(Evr1Error, match="2 steps in a row without a group to learn from: .* never right"):
        train(settings, "algorithm.name=dapo", "algorithm.max_tries=2", "train.steps=9")


def test_dropped_groups_let_go_of_their_model_inputs(settings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay for the record until the step ends, and there may be ten batches of them."""
    held: list[Any] = []

    def collected(record: StepRecord, groups: Any, **counts: Any) -> None:
        held.extend(groups)
        honest(record, groups, **counts)

    honest = StepRecord.collected
    monkeypatch.setattr(StepRecord, "collected", collected)
    with suppress(NoSignal):  # a random model is hardly ever right
        train(settings, "algorithm.name=dapo", "algorithm.max_tries=2", "train.steps=1")
    run = run_of(settings)
    assert len(held) == 8 and not any(group.prompt.features for group in held)
    rows = lines(run / "rollouts.jsonl")
    assert len(rows) == 32 and any(row["media"] for row in rows), "what was dropped is recorded with its media"


def test_data_that_is_used_up_ends_the_run_for_good(settings: list[str]) -> None:
    """12 rows are 3 batches; dynamic sampling draws two of them for the first step, which leaves one for the second."""
    more = ("algorithm.name=dapo", "algorithm.max_tries=2", "train.steps=null", "train.epochs=1")
    with suppress(NoSignal):
        train(settings, *more)
    run = run_of(settings)
    assert [row["selection/tries"] for row in lines(run / "metrics.jsonl")] == [2, 1]
    assert "the data is used up after step 2" in (run / "events.log").read_text()
    with pytest.raises(RequestError, match="has drawn all its data in 2 steps: raise train.epochs"):
        train(settings, *more)


def test_a_gradient_that_is_no_number_ends_the_run_after_its_last_good_step(
    settings: list[str], varied_rewards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(self: Policy, rows: Any, **asked: Any) -> tuple[torch.Tensor, ...]:
        found = forward(self, rows, **asked)
        return tuple(one * float("nan") for one in found) if self.steps == 2 and found[0].requires_grad else found

    forward = Policy.outputs
    with monkeypatch.context() as patch, pytest.raises(NonFinite, match="log-probabilities are not finite for samples q"):
        patch.setattr(Policy, "outputs", poisoned)
        train(settings)
    run = run_of(settings)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000002"]
    assert "error step 3: stopped in update: NonFinite" in (run / "events.log").read_text()
    assert {row["step"] for row in lines(run / "rollouts.jsonl")} == {1, 2, 3}, "its answers may explain it"
    assert [row["step"] for row in lines(train(settings) / "metrics.jsonl")] == [1, 2, 3, 4]


def test_disk_full_while_saving_keeps_the_last_checkpoint(
    settings: list[str], varied_rewards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evr1_core.train import checkpoint_snapshot

    written = checkpoint_snapshot.write_parts

    def full_at_four(directory: Path, *parts: Any) -> Any:
        if "000004" in directory.name:
            (directory / "model.safetensors").write_bytes(b"half")
            raise OSError(28, "No space left on device")
        return written(directory, *parts)

    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="No space left.*The last checkpoint is untouched"):
        patch.setattr(checkpoint_snapshot, "write_parts", full_at_four)
        train(settings)
    run = start(settings)
    try:
        assert run.restore() == 2
        assert [path.name for path in sorted((run.config.directory / "checkpoints").iterdir())] == ["step-000002"]
    finally:
        run.close()


@pytest.mark.parametrize("plan", [True, False])
def test_unreadable_media_are_excluded_by_name_or_an_error(settings: list[str], questions: Path, tmp_path: Path, plan: bool) -> None:
    """Before the first step, or when their turn comes."""
    broken = tmp_path / "broken"
    shutil.copytree(questions.parent, broken)
    (broken / "0.mp4").write_bytes(b"<html>404</html>")
    more = (f"data.train=[{broken / 'train.jsonl'}]", f"data.plan={str(plan).lower()}", "data.shuffle=false")
    with pytest.raises(RequestError, match="q0.*damaged.*0.mp4"):
        train(settings, *more, "name=strict")
    run = train(settings, *more, "name=lenient", "data.bad_rows=exclude", "train.steps=1")
    assert lines(run / "metrics.jsonl")[0].get("excluded/damaged_media", 0) == (0 if plan else 1)
    log = (run / "events.log").read_text()
    assert f"excluded {'' if plan else 'step 1: '}q0: damaged_media" in log and ("planned 12 rows" in log) == plan


def test_damage_that_only_decoding_shows_is_excluded_when_its_turn_comes(settings: list[str], questions: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(questions.parent, broken)
    shutil.copy(Path(__file__).parents[1] / "clips" / "trunc_mid.mp4", broken / "0.mp4")
    more = (f"data.train=[{broken / 'train.jsonl'}]", "data.bad_rows=exclude", "data.shuffle=false", "train.steps=1")
    run = train(settings, *more)
    assert lines(run / "metrics.jsonl")[0]["excluded/damaged_media"] == 1
    assert "excluded step 1: q0: damaged_media" in (run / "events.log").read_text()


def test_a_prompt_over_the_limit_is_excluded_with_the_numbers(settings: list[str]) -> None:
    """With every prompt over the limit the run has learned nothing, and doesn't pretend otherwise."""
    with pytest.raises(NoSignal, match="no step had a group to learn from.*no prompt was left"):
        train(settings, "data.max_prompt_tokens=150", "train.steps=3", "data.shuffle=false", "data.plan=false")
    log = (run_of(settings) / "events.log").read_text()
    assert log.count("too_long") == 12 and "allowed are 150" in log


def test_long_rows_are_left_out_or_shrunk_before_the_first_step(settings: list[str]) -> None:
    with pytest.raises(
        RequestError, match="(?s)12 of 12 rows take no part.*train.jsonl:1 q0: too_long: 227 prompt tokens, allowed are 150"
    ):
        start(settings, "data.max_prompt_tokens=150")
    with pytest.raises(RequestError, match="(?s)4 of 12 rows are too long.*q9: too_long: 227 .*data.overlong=shrink"):
        start(settings, "data.max_prompt_tokens=216", "data.overlong=error")
    run = start(settings, "data.max_prompt_tokens=216", "name=left_out")
    try:
        assert [sample.id for sample in run.order.samples] == ["q1", "q2", "q4", "q5", "q7", "q8", "q10", "q11"]
        events = (run.config.directory / "events.log").read_text()
        assert "warning 4 rows take no part (4 too_long)" in events and "q3: too_long: 227 prompt tokens, allowed are 216" in events
    finally:
        run.close()
    run = start(settings, "data.max_prompt_tokens=216", "data.overlong=shrink", "name=shrunk", "media.train.video.min_pixels=1024")
    try:
        assert len(run.order.samples) == 12
        events = (run.config.directory / "events.log").read_text()
        assert events.count("media made smaller, 227 -> ") == 4 and "4 with smaller media" in events
        prompts, excluded = run.builder.build_batch(run.order.samples)
        assert not excluded and max(len(prompt.token_ids) for prompt in prompts) <= 216
        assert (run.config.directory / "events.log").read_text() == events, "each row is noted once"
    finally:
        run.close()


def test_a_run_whose_prompts_are_all_excluded_says_why_it_stops(settings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "PATIENCE", 2)
    with pytest.raises(Evr1Error, match="2 steps in a row without a group to learn from: .* no prompt was left. See the exclusions"):
        train(settings, "data.max_prompt_tokens=1", "data.plan=false")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.name=gropo", "no algorithm 'gropo'.*did you mean 'grpo'"),
        ("algorithm.clip_hihg=0.3", "algorithm.clip_hihg.*did you mean 'algorithm.clip_high'"),
        ("model.path=qwen3-vl-8bb", "qwen3-vl-8bb.*did you mean 'qwen3-vl-8b'"),
        ("rollout.engine=vlm", "no engine 'vlm'.*did you mean 'vllm'"),
        ("data.train=[missing.jsonl]", "missing.jsonl"),
        ("guidance.mode=always", "none of 12 rows has a trajectory"),
    ],
)
def test_a_wrong_request_is_named(settings: list[str], override: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        start(settings, override)


def test_a_run_without_a_complete_checkpoint_says_that_it_starts_anew(settings: list[str]) -> None:
    run = train(settings, "train.steps=1")
    (run / "checkpoints/step-000001/manifest.json").unlink()
    train(settings, "train.steps=1")
    assert "is complete (events.log says why): the run starts anew" in (run / "events.log").read_text()


def test_the_best_checkpoint_is_saved_where_it_is_found(settings: list[str], questions: Path, varied_rewards: None) -> None:
    values = iter([0.2, 0.5, 0.4, 0.3])
    held_out = f"data.validate_on=[{questions}]"
    run = start(settings, "train.save_every=0", "train.keep=1", "train.best=validate/accuracy", "evaluate.every=1", held_out)
    try:
        loop.fit(run, lambda run, step: {"validate/accuracy": next(values)})
    finally:
        run.close()
    folder = run.config.directory / "checkpoints"
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-000002", "step-000004"]
    assert json.loads((folder / "best.json").read_text())["step"] == 2
