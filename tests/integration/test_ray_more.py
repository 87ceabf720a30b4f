"""What workers can be asked for together with each other, against the same run in one process."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench import memory_flat
from evr1_core.errors import RequestError
from evr1_core.train import loop, remote
from evr1_core.train.batch import NonFinite
from evr1_core.train.checkpoint_files import open_tensors
from evr1_core.train.export import export
from evr1_models.tiny import make_tiny_qwen3_vl
from tests.integration.test_ray import RAY, TWO, apart, lines, run_from
from tests.support.questions import write_clip, write_questions
from tests.support.runs import start, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("varied_rewards")]

THREE = ("train.steps=3", "train.save_every=3", "train.lr=3e-4")


def both(settings: list[str], common: list[str], workers: list[str], tmp_path: Path, kind: str = "model", near: float = 1e-5) -> list[Path]:
    """The run in one process and in workers, compared."""
    alone = train([*settings, *THREE, *common, "name=alone"])
    ray = train([*settings, *THREE, *common, *RAY, *workers, f"media.cache_dir={tmp_path / 'cold'}", "name=ray"])
    first, second = (run / "checkpoints/step-000003" for run in (alone, ray))
    assert apart(first, second, (kind,)) < near
    seen = [[(row["step"], row["sample"], row["text"], row["weight_version"]) for row in lines(run, "rollouts")] for run in (alone, ray)]
    assert seen[0] == seen[1]
    assert [row["media/decoded"] for row in lines(alone)] == [row["media/decoded"] for row in lines(ray)]
    return [alone, ray]


def test_ranks_that_share_rows_and_reduce_gradients_once(settings: list[str], tmp_path: Path) -> None:
    penalty = ["algorithm.kl=loss", "algorithm.kl_coef=0.1"]
    both(settings, penalty, ["cluster.workers=2", "cluster.sequence_parallel=2", "cluster.shard.sync=last"], tmp_path)
    with pytest.raises(RequestError, match="attention"):
        start([*settings, *TWO, "cluster.sequence_parallel=2", "model.attention=eager", "name=refused"])


@pytest.mark.parametrize("wrong", ["rollout.options.sleep=deep", "train.optimizer=adamw_8bit", "cluster.sequence_parallel=2"])
def test_what_workers_would_refuse_is_refused_before_they_start(settings: list[str], wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote.WorkerGroup, "open", None)
    with pytest.raises(RequestError, match=wrong.partition("=")[0]):
        start([*settings, *TWO, wrong, "train.packing=false", "name=refused"])


@pytest.mark.extra
def test_adapters_with_everything_on_the_host(settings: list[str], tiny_directory: Path, tmp_path: Path) -> None:
    adapters = ["model.lora.rank=4", "model.weights_offload=true", "train.optimizer_offload=rollout"]
    _, ray = both(settings, adapters, ["cluster.workers=2", "cluster.shard.cpu_offload=true"], tmp_path, kind="adapters")
    checkpoint = ray / "checkpoints/step-000003"
    home = run_from(ray, "checkpoints/step-000003", [*settings, *THREE, *adapters, "train.steps=4", "name=home"])
    assert 0 < apart(checkpoint, home / "checkpoints/step-000004", ("adapters",)) < 1e-2
    exported = export(checkpoint, tiny_directory, tmp_path / "exported")
    assert (exported / "model.safetensors").is_file()


@pytest.mark.extra
def test_groups_carried_over_with_a_penalty_in_the_reward_and_prompts_that_are_made_again(settings: list[str], tmp_path: Path) -> None:
    dapo = ["algorithm.name=dapo", "algorithm.dynamic_sampling=true", "algorithm.surplus=keep", "rollout.n=2"]
    penalty = ["algorithm.kl=reward", "algorithm.kl_coef=0.1", "train.mini_batches=2"]
    alone, _ = both(settings, [*dapo, *penalty], ["cluster.workers=2", "cluster.shard.replicas=2", "cluster.prompts_gib=0.0005"], tmp_path)
    assert any(row["selection/carried"] for row in lines(alone)), "two answers are often worth the same"


def test_more_ranks_than_prompts_with_trajectories_and_greedy_baselines(settings: list[str], questions: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in questions.read_text().splitlines()]
    guided = questions.parent / "guided.jsonl"
    guided.write_text(
        "".join(json.dumps({**row, "offline_output": f"<think>Seen.</think><answer>{row['answer']}</answer>"}) + "\n" for row in rows)
    )
    mixed = [f"data.train=[{guided}]", "guidance.mode=always", "rollout.max_tokens=24", "algorithm.name=luffy", "algorithm.advantage=remax"]
    alone, _ = both(settings, [*mixed, "train.batch_size=2"], ["cluster.workers=4"], tmp_path)
    assert {row["provenance"] for row in lines(alone, "rollouts")} == {"policy", "offline", "greedy"}


def test_one_rank_has_text_alone_and_the_other_a_long_video(settings: list[str], tmp_path: Path) -> None:
    rows = [json.loads(line) for line in write_questions(tmp_path / "long").read_text().splitlines()]
    write_clip(tmp_path / "long/0.mp4", "red", frames=256, rate=8)
    data = tmp_path / "long/two.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in (rows[0], rows[2])))
    more = [
        f"data.train=[{data}]",
        "train.batch_size=2",
        "data.max_prompt_tokens=3000",
        "media.train.video.fps=8",
        "media.train.video.max_frames=128",
    ]
    _, ray = both(settings, more, ["cluster.workers=2"], tmp_path)
    pixels = 128 * 64 * 64 * 3
    for row in lines(ray):
        print("bytes per answer", row["cluster/bytes_per_answer"], "frames", pixels)
        assert row["cluster/bytes_per_answer"] < pixels / 50


def test_a_number_that_is_not_finite_on_one_rank(settings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TRAIN_WORKER", "tests.support.workers:OverflowingWorker")
    run = start([*settings, *TWO, *THREE, "name=overflow"])
    try:
        with pytest.raises(NonFinite, match="loss is not finite") as caught:
            loop.fit(run)
        trained = {sample.id for sample in run.order.samples}
        assert 0 < len(caught.value.sample_ids) < 4 and set(caught.value.sample_ids) <= trained
        with pytest.raises(NonFinite, match="gradient norm is not finite") as caught:
            loop.fit(run)
        assert len(caught.value.sample_ids) == 4 and set(caught.value.sample_ids) <= trained
        path = run.save(1)
    finally:
        run.close()
    fresh = open_tensors(path)["model"]
    assert all(fresh[name].isfinite().all() for name in fresh)


def test_bfloat16(settings: list[str], tmp_path: Path) -> None:
    alone = train([*settings, *THREE, "train.steps=1", "train.save_every=1", "model.dtype=bfloat16", "name=alone"])
    ray = train([*settings, *THREE, *TWO, "train.steps=1", "train.save_every=1", "model.dtype=bfloat16", "name=ray"])
    assert apart(alone / "checkpoints/step-000001", ray / "checkpoints/step-000001") < 1e-2


VLLM = {
    "over both": ["cluster.workers=2", "rollout.options.tensor_parallel_size=2"],
    "apart": ["cluster.workers=1", "rollout.placement=separate", "rollout.workers=1"],
}


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("where", ["over both", pytest.param("apart", marks=pytest.mark.extra)])
def test_vllm_in_each_worker_and_elsewhere(settings: list[str], tmp_path: Path, where: str) -> None:
    model = make_tiny_qwen3_vl(tmp_path / "model", layers=2, hidden=64, heads=2)  # its vision tower has two heads to share out
    vllm = [*settings, *RAY, *THREE, f"model.path={model}", "rollout.engine=vllm"]
    each = train([*vllm, "cluster.workers=2", "name=each"])
    other = train([*vllm, *VLLM[where], "name=other"])
    assert apart(each / "checkpoints/step-000003", other / "checkpoints/step-000003") < 1e-5
    for run in (each, other):
        assert all(row["rollout/mismatch"] < 1e-5 for row in lines(run))
        assert [row["text"] for row in lines(run, "rollouts")] == [row["text"] for row in lines(each, "rollouts")]
        assert {(row["step"], row["weight_version"]) for row in lines(run, "rollouts")} == {(1, 0), (2, 1), (3, 2)}


def test_memory_stays_flat(tmp_path: Path) -> None:
    rows = memory_flat.run_steps(tmp_path, steps=40, workers=2)
    found = memory_flat.summary(rows, first=10)
    print(json.dumps(found, indent=1))
    assert all(one["growth"] < 0.05 for name, one in found.items() if name.endswith("/rss"))
