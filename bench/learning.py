"""Every algorithm learns: accuracy on held-out questions of the demo before and after a short training, with its curve.

    python bench/learning.py [--folder DIR] [--algorithms grpo,dapo] [--seeds 1,2] [--steps 20] [--split report] [--mix]

Base, questions, prompt and recipe are those of `evr1 demo`, with two updates per step instead of one, so that ratios and their clips
matter. What every run has in common is in COMMON, what an algorithm needs beside it in OPTIONS. Settings are chosen on the split
`choose`; `report` is what is reported.

--mix is another question: can a policy learn what it never does? The base is first taught to end its turn where the answer should begin
(`<think>red A</think>`), whatever word it thought of; of the questions those stay that it then answers rightly in 0 of 8 tries. From this
start GRPO runs without trajectories and with them, and LUFFY with them; a trajectory is the right answer in the form of the base's answers.

A stage that is done is not done again, so the same command goes on where it was stopped. Ends with 1 if a training failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import evr1_demo
from evr1_core.evaluate.statistics import compare, wilson
from evr1_core.policy.forward import answer_logprobs
from evr1_core.policy.load import load_adapter
from evr1_core.record.files import write_atomic
from evr1_demo.make_base import School, choice, load_items, write
from evr1_demo.make_base import lines as option_lines
from evr1_demo.questions import LETTERS, make_question_set

DEMO = Path(evr1_demo.__file__).parent
BASE = DEMO / "base"
COMMON = ("train.mini_batches=2", "train.epochs=3")
"""Epochs only bound the data: dynamic sampling may draw more than one batch per step."""
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "grpo": (),
    "dr_grpo": ("algorithm.norm_length=10",),
    "dapo": (),
    "gspo": (),
    "gspo_token": (),
    "cispo": (),
    "sapo": (),
    "reinforce": (),
    "reinforce_pp": (),
    "reinforce_pp_baseline": (),
    "remax": (),
    "rloo": (),
    "gdpo": (),
    "ema_grpo": (),
    "luffy": ("guidance.mode=always",),
}
MIXES: Mapping[str, tuple[str, ...]] = {
    "grpo": ("algorithm.name=grpo", "guidance.mode=off"),
    "grpo + trajectories": ("algorithm.name=grpo", "guidance.mode=always"),
    "luffy + trajectories": ("algorithm.name=luffy", "guidance.mode=always"),
    "luffy, gamma 3e-7, + trajectories": ("algorithm.name=luffy", "algorithm.shaping_gamma=3e-7", "guidance.mode=always"),
}
"""The weight of a trajectory's token in LUFFY has the slope gamma pi / (pi + gamma)^2 by log pi, at most where gamma is pi. The silent base
writes `<answer>` behind its thought with a probability of 3e-7."""
SURE = 1e-5
"""Probability of going on behind the thought, on average, below which the teaching of silence ends (some minutes)."""
BARS = "▁▂▃▄▅▆▇█"


class Failed(Exception):
    """A command of the program ended with an error."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where everything lies, and what all trainings share."""

    folder: Path
    split: str
    steps: int

    @property
    def questions(self) -> Path:
        return self.folder / "questions"

    def evr1(self, log: str, *arguments: str) -> None:
        """One command in a process of its own, on one thread: so small a model loses more by a second one than it gains."""
        path = self.folder / "logs" / f"{log}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as out:
            command = [sys.executable, "-m", "evr1_cli.main", *arguments]
            code = subprocess.run(command, env={"OMP_NUM_THREADS": "1", **os.environ}, stdout=out, stderr=out, check=False).returncode
        if code:
            last = path.read_text(encoding="utf-8").strip().splitlines()[-1:]
            raise Failed(f"evr1 {arguments[0]} ended with {code}: {''.join(last)} ({path})")

    def recipe(self, seed: int = 1) -> tuple[str, ...]:
        return str(DEMO / "demo.yaml"), f"media.cache_dir={self.folder / 'cache'}", f"data.media_root={self.questions}", f"seed={seed}"

    def evaluate(self, name: str, model: Path, data: Path) -> dict[str, float]:
        """Question -> greedy accuracy."""
        output = self.folder / "evaluations" / name
        self.evr1(f"eval-{name}", "eval", *self.recipe(), "--model", str(model), "--data", str(data), "--output", str(output))
        return accuracies(output)

    def train(self, name: str, model: Path, data: Path, held_out: Path, options: Sequence[str], seed: int, steps: int) -> Path:
        """The folder of the run, which scored `held_out` after its last step."""
        run = self.folder / "runs" / name
        done = [row["step"] for row in lines(run / "validation.jsonl")]
        if not done or done[-1] < steps:
            given = (f"train.steps={steps}", f"data.validate_on=[{held_out}]", f"evaluate.every={steps}", f"output={run.parent}")
            self.evr1(
                name, "train", *self.recipe(seed), *COMMON, *given, *options, "--model", str(model), "--data", str(data), "--name", name
            )
        return run


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def accuracies(folder: Path) -> dict[str, float]:
    """Question -> accuracy, from the results of an evaluation or a validation."""
    return {row["id"]: row["accuracy"] for row in lines(folder / "results.jsonl") if row["accuracy"] is not None}


def share(found: Mapping[str, float]) -> dict[str, float]:
    """Accuracy with Wilson's 95 % interval."""
    low, high = wilson(sum(found.values()), len(found))
    return {"value": sum(found.values()) / len(found), "low": low, "high": high, "n": len(found)}


def outcome(run: Path, before: Mapping[str, float]) -> dict[str, Any]:
    """End, gain over `before` question by question, and the course of the rollouts."""
    last = max((run / "validation").iterdir())
    after, metrics = accuracies(last), lines(run / "metrics.jsonl")
    gain = compare(before, after)
    return {
        "end": share(after),
        "gain": {"value": gain.difference, "low": gain.low, "high": gain.high, "better": gain.better, "worse": gain.worse, "p": gain.p},
        "reward": [row.get("reward/value") for row in metrics],
        "accuracy": [row.get("reward/accuracy") for row in metrics],
        "seconds": sum(row["time/step"] for row in metrics),
    }


def word_of(row: Mapping[str, Any]) -> str:
    return row["options"][LETTERS.index(row["answer"])]


def with_trajectory(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its right answer in the form of the base's answers."""
    return {**row, "offline_output": f"<think>{word_of(row)} {row['answer']}</think><answer>{row['answer']}</answer>"}


def learn(bench: Bench, algorithms: Sequence[str], seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """All algorithms from the base, one seed after the other."""
    held_out = bench.questions / f"{bench.split}.jsonl"
    data = write_lines(bench.folder / "train.jsonl", map(with_trajectory, lines(bench.questions / "train.jsonl")))
    before = bench.evaluate(f"base-{bench.split}", BASE, held_out)
    for seed in seeds:
        for name in algorithms:
            options = (f"algorithm.name={name}", *OPTIONS[name])
            run = f"{name}-{bench.split}-{bench.steps}-{seed}"
            entry = {"name": name, "seed": seed, "steps": bench.steps, "options": [*COMMON, *options], "start": share(before)}
            yield attempt(bench, entry, run, (BASE, data, held_out, options, seed), before)


def mix(bench: Bench, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """What the silent base never does, without and with trajectories."""
    silent = silenced(bench)
    train, held_out = (never_right(bench, silent, split) for split in ("train", bench.split))
    data = write_lines(bench.folder / "never-trajectories.jsonl", map(with_trajectory, lines(train)))
    before = bench.evaluate(f"silent-{bench.split}", silent, held_out)
    print(f"never right in 8 tries: {len(lines(train))} of the questions to train on, {len(before)} of those of {bench.split}")
    for seed in seeds:
        for name, options in MIXES.items():
            run = f"mix-{'-'.join(re.findall(r'[a-z0-9-]+', name))}-{bench.split}-{bench.steps}-{seed}"
            entry = {"name": name, "seed": seed, "steps": bench.steps, "options": [*COMMON, *options], "start": share(before)}
            yield attempt(bench, entry, run, (silent, data, held_out, options, seed), before)


def silenced(bench: Bench) -> Path:
    """The base, taught that its turn ends behind its thought; only that place is taught, and after words drawn by chance."""
    directory, unfinished = bench.folder / "silent", bench.folder / "silent.part"
    if directory.exists():
        return directory
    torch.set_num_threads(1)
    adapter = load_adapter(str(BASE))
    items = list(load_items(bench.questions, "train", adapter))
    school, draw = School(adapter, items, seed=0), random.Random(0)
    optimizer = torch.optim.AdamW(school.model.parameters(), lr=3e-4, weight_decay=0.0)
    going_on, steps = 1.0, 0
    while going_on > SURE:
        rows = []
        for item in draw.sample(items, 32):
            options = tuple(item.sample.options or ())
            answer = choice(draw.choice(options), options)
            rows.append(school.row(f"{item.question}\n{option_lines(options)}", item, answer[: answer.index("<answer>")]))
        last = answer_logprobs(school.model, adapter, rows, packing=False, temperature=1.0, device="cpu")[:, -1]
        optimizer.zero_grad()
        (-last.mean()).backward()
        optimizer.step()
        going_on, steps = float(-torch.expm1(last.detach().double()).mean()), steps + 1
    print(f"taught silence in {steps} steps; it goes on with a probability of {going_on:.1e}")
    write(unfinished, BASE, school.model)
    unfinished.rename(directory)
    return directory


def never_right(bench: Bench, model: Path, split: str) -> Path:
    """The questions of a split that `model` answered rightly in 0 of 8 tries."""
    kept = bench.folder / f"never-{split}.jsonl"
    settings = [part for pair in bench.recipe()[1:] for part in ("--set", pair)]
    rows = str(bench.questions / f"{split}.jsonl")
    recipe = ("--config", bench.recipe()[0], *settings)
    bench.evr1(f"filter-{split}", "data", "filter", rows, "--model", str(model), "--k", "8", "--keep", "p<=0", "-o", str(kept), *recipe)
    return kept


def attempt(bench: Bench, entry: dict[str, Any], run: str, training: tuple[Any, ...], before: Mapping[str, float]) -> dict[str, Any]:
    """One training, whose failure is an entry too."""
    model, data, held_out, options, seed = training
    try:
        entry |= outcome(bench.train(run, model, data, held_out, options, seed, bench.steps), before)
    except Failed as error:
        entry["failed"] = str(error)
    return entry


def table_row(entry: Mapping[str, Any]) -> str:
    start = f"{entry['start']['value']:.3f}"
    if "failed" in entry:
        return f"| `{entry['name']}` | {entry['seed']} | {start} | failed: {entry['failed']} | | | |"
    end, gain = entry["end"], entry["gain"]
    shown = (
        f"`{entry['name']}`",
        str(entry["seed"]),
        start,
        f"{end['value']:.3f} ({end['low']:.2f} to {end['high']:.2f})",
        f"{gain['value']:+.3f} ({gain['low']:+.2f} to {gain['high']:+.2f})",
        curve(entry["accuracy"]),
        f"{entry['seconds']:.0f}",
    )
    return f"| {' | '.join(shown)} |"


def curve(values: Sequence[float | None]) -> str:
    """Shares from 0 to 1 as a line of bars; a step without a number is a space."""
    return "".join(" " if value is None else BARS[min(len(BARS) - 1, int(value * len(BARS)))] for value in values)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("learning"), help="Everything that is made goes here.")
    parser.add_argument("--algorithms", default=",".join(OPTIONS), help="Names, by commas.")
    parser.add_argument("--seeds", default="1", help="Seeds of the training, by commas.")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--split", choices=("choose", "report"), default="report", help="Held-out questions that are scored.")
    parser.add_argument("--mix", action="store_true", help="Trajectories for what the policy never does, in place of all algorithms.")
    given = parser.parse_args()
    names, seeds = given.algorithms.split(","), [int(seed) for seed in given.seeds.split(",")]
    if unknown := [name for name in names if name not in OPTIONS]:
        parser.error(f"unknown algorithms: {', '.join(unknown)}; there are {', '.join(OPTIONS)}")
    bench = Bench(given.folder.resolve(), given.split, given.steps)
    bench.folder.mkdir(parents=True, exist_ok=True)
    make_question_set(bench.questions)
    found: list[dict[str, Any]] = []
    for entry in mix(bench, seeds) if given.mix else learn(bench, names, seeds):
        if not found:
            print("| algorithm | seed | start | end (95 % interval) | gain | accuracy of the rollouts, by step | seconds |")
            print("|---|---|---|---|---|---|---|")
        print(table_row(entry), flush=True)
        found.append(entry)
        write_atomic(bench.folder / ("mix.json" if given.mix else "learning.json"), json.dumps(found, indent=1) + "\n")
    return int(any("failed" in entry for entry in found))


if __name__ == "__main__":
    sys.exit(main())
