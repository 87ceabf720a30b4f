"""`evr1 demo`: questions, evaluation, training, evaluation, report. Every stage is the command that anybody would type.

question set -> evr1 eval (before) -> evr1 train -> evr1 export -> evr1 eval (after) -> report.html
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from evr1_core.errors import Evr1Error


def command(
    output: Annotated[Path, typer.Option("--output", help="Folder of everything that the demo makes.")] = Path("demo"),
    seed: Annotated[int, typer.Option("--seed", help="Seed of the training; the questions stay the same.")] = 1,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps of training instead of the recipe's.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Train in so many processes, placed by Ray.")] = None,
) -> None:
    """Train a tiny vision-language model on small videos, and report its accuracy before and after.

    Takes some minutes on two CPU cores and no network. The same command again goes on where it was.
    """
    from evr1_demo.questions import make_question_set

    with as_file(files("evr1_demo")) as package:
        base, recipe = package / "base", output / "recipe.yaml"
        output.mkdir(parents=True, exist_ok=True)
        recipe.write_bytes((package / "demo.yaml").read_bytes())
        questions = output / "questions"
        started = time.perf_counter()
        make_question_set(questions)
        typer.echo(f"questions: {questions} ({time.perf_counter() - started:.0f} s)")
        run = output / "runs" / f"seed-{seed}"
        trained = output / "trained" / f"seed-{seed}"
        common = [str(recipe), f"media.cache_dir={output / 'cache'}", f"seed={seed}"]
        score = ["eval", *common, "--data", str(questions / "report.jsonl")]
        before, after = output / "before", output / "after" / f"seed-{seed}"
        evr1(*score, "--model", str(base), "--output", str(before), "seed=1")
        if not trained.exists():
            started = time.perf_counter()
            more = [f"train.steps={steps}"] if steps else []
            more += ["--backend", "ray", "--workers", str(workers)] if workers else []
            evr1("train", *common, *more, "--model", str(base), "--data", str(questions / "train.jsonl"),
                 "--name", run.name, f"output={run.parent}")  # fmt: skip
            typer.echo(f"training: {time.perf_counter() - started:.0f} s")
            evr1("export", str(run), str(trained), "--model", str(base))
        evr1(*score, "--model", str(trained), "--output", str(after), "seed=1")
        report(output / "report.html", questions, before, after, run, seed)


def report(path: Path, questions: Path, before: Path, after: Path, run: Path, seed: int) -> None:
    """Write the page and print what it says."""
    from evr1_demo.report import write_report

    seconds = sum(json.loads(line)["time/step"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    first, last = (json.loads((folder / "summary.json").read_text(encoding="utf-8"))["headline"] for folder in (before, after))
    facts = {
        "Base model": "evr1_demo/base, a Qwen3-VL of about 1 M parameters",
        "Algorithm": "DAPO, through evr1 train",
        "Seed": str(seed),
        "Training": f"{seconds:.0f} s of steps",
        "Decoding": "greedy",
    }
    write_report(path, questions=questions, before=before, after=after, run=run, facts=facts)
    typer.echo(f"accuracy on {last['n']} held-out questions: {first['value']:.2f} before, {last['value']:.2f} after; {path}")


def evr1(*arguments: str) -> None:
    """Run a command of the program in a process of its own; raises Evr1Error when it fails."""
    typer.echo("$ " + shlex.join(["evr1", *arguments]))
    failed = run_program(arguments)
    if failed:
        raise Evr1Error(f"`evr1 {arguments[0]}` ended with exit code {failed}; its own message stands above")


def run_program(arguments: Sequence[str]) -> int:
    sys.stdout.flush()
    # One thread: so small a model gains little from a second one, and loses much where another process has its core.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    return subprocess.run([sys.executable, "-m", "evr1_cli.main", *arguments], env=environment, check=False).returncode
