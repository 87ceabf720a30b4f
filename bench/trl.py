"""A whole training step against TRL's GRPOTrainer: same model, images, group, batch, answer length, learning rate, threads.

    python bench/trl.py [--steps 8] [--threads 1] [--prompts 4] [--n 8] [--tokens 64] [--side 320] [--environment DIR] [--json out.json]

TRL is installed here, the newest release that pip finds, in an environment of its own that borrows torch and transformers from this one, so
that both run the same. The model is a random Qwen3-VL (hidden 256, 4 layers; vision 256, 4 layers) in float32 on the CPU, the images are
drawn here. Neither uses vLLM: TRL generates with transformers, evr1 with its `hf` engine.

Both are set up for speed: no gradient checkpointing, no KL, one update per batch, no bfloat16. TRL trains the whole batch in one forward
pass (`per_device_train_batch_size` = all answers, no accumulation), or in `--trl-batch` answers each. Answers are all of the
same length: both are kept from ending early (TRL by `min_new_tokens`, evr1 by forbidding the stop tokens).

Two processes live side by side and step in turn, one waiting while the other works, so that both see the same machine. The first
`--warm` steps of each don't count. Seconds are those of whole steps: prompts, rollout, scores, update. Processor time is given too: on a
machine with other work it is the steadier measure.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any

QUESTION = "What colour is the square, and which shape is left of the circle?"
COLOURS = ("red", "green", "blue", "yellow", "white", "purple", "orange", "grey")


# Both sides ----------------------------------------------------------------------------------------------------------


def make_world(folder: Path, asked: argparse.Namespace) -> None:
    """The model, the pictures and the rows."""
    from PIL import Image, ImageDraw

    from evr1_models.tiny import make_tiny_qwen3_vl

    make_tiny_qwen3_vl(folder / "model", hidden=256, layers=4, heads=4, mlp=768, vision_hidden=256, vision_layers=4, vision_positions=1024)
    rows = []
    for index in range(asked.prompts * (asked.steps + asked.warm + 1)):
        picture = Image.new("RGB", (asked.side, asked.side), COLOURS[index // 7 % 8])
        pen, step = ImageDraw.Draw(picture), asked.side // 8
        x, y = index % 5 * step, index // 5 % 5 * step
        pen.rectangle((x, y, x + 2 * step, y + 2 * step), fill=COLOURS[index % 8])
        pen.ellipse((y, x, y + 2 * step, x + 3 * step), fill=COLOURS[index // 3 % 8])
        picture.save(folder / f"{index}.png")
        answer = COLOURS[index % 8]
        rows.append({"id": f"q{index}", "problem": QUESTION, "images": [f"{index}.png"], "answer": answer, "problem_type": "ocr"})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "question.j2").write_text("{{ problem }}\n")


def clocks() -> tuple[float, float]:
    """Seconds of the wall clock, and of processor time of this process."""
    return time.perf_counter(), time.process_time()


def wait_for_turn() -> tuple[float, float]:
    """Until the parent says so; the moment of the start."""
    print("ready", flush=True)
    if not sys.stdin.readline():
        raise SystemExit(0)
    return clocks()


def tell(**found: Any) -> None:
    print("step " + json.dumps(found), flush=True)


def step_evr1(folder: Path, asked: argparse.Namespace) -> None:
    from evr1_core.config.load import load
    from evr1_core.train import loop, run

    def never_stopping(*asked_for: Any) -> Any:
        adapter: Any = load_adapter(*asked_for)
        adapter.forbidden_token_ids = (*adapter.forbidden_token_ids, *adapter.stop_token_ids)
        return adapter

    def train_step(started: Any, record: Any, step: int) -> bool:
        start = wait_for_turn()
        done = whole_step(started, record, step)
        seconds, cpu = (after - before for before, after in zip(start, clocks(), strict=True))
        rows = record._trained
        answers = [rollout.completion for group in rows for rollout in group.rollouts]
        prompt = sum(len(group.prompt.token_ids) * len(group.rollouts) for group in rows)
        given = sum(len(one.token_ids) for one in answers)
        tell(seconds=seconds, cpu=cpu, rows=len(answers), prompt=prompt, answer=given, phases=dict(record._times))
        return done

    load_adapter, whole_step = run.load_adapter, loop.train_step
    run.load_adapter, loop.train_step = never_stopping, train_step
    settings = {
        "output": folder / "runs", "model.path": folder / "model", "model.dtype": "float32", "model.device": "cpu",
        "model.gradient_checkpointing": "false", "data.train": f"[{folder / 'rows.jsonl'}]", "data.template": folder / "question.j2",
        "data.max_prompt_tokens": 4096, "data.plan": "false", "media.cache_dir": folder / "cache", "rollout.engine": "hf",
        "rollout.n": asked.n, "rollout.max_tokens": asked.tokens, "algorithm.name": "grpo", "train.batch_size": asked.prompts,
        "train.steps": asked.steps + asked.warm, "train.lr": "1e-6", "train.save_every": 0, "train.packing": asked.packing,
        "train.micro_batch_tokens": asked.micro_batch_tokens,
    }  # fmt: skip
    loaded = load([], [f"{name}={value}" for name, value in settings.items()])
    started = run.open_run(loaded.config, loaded.origins)
    try:
        loop.fit(started)
    except loop.selection.NoSignal:
        pass  # a random model is never right; the work is the same
    finally:
        started.close()


def step_trl(folder: Path, asked: argparse.Namespace) -> None:
    import torch
    from datasets import Dataset, Image  # pyright: ignore[reportMissingImports]
    from transformers import AutoProcessor, Qwen3VLForConditionalGeneration, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore

    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    data = [
        {"prompt": [{"role": "user", "content": QUESTION}], "gold": row["answer"], "image": str(folder / row["images"][0])} for row in rows
    ]
    dataset = Dataset.from_list(data).cast_column("image", Image())
    now: dict[str, Any] = {}
    answers = asked.prompts * asked.n
    each = asked.trl_batch or answers

    class Timed(GRPOTrainer):
        def _generate_single_turn(self, *args: Any, **more: Any) -> Any:
            start = time.perf_counter()
            found = super()._generate_single_turn(*args, **more)
            now["rollout"] = time.perf_counter() - start
            return found

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            start = time.perf_counter()
            found = super()._generate_and_score_completions(inputs)
            now["prompts and scores"] = time.perf_counter() - start - now["rollout"]
            now["tokens"] = int(found["prompt_mask"].sum()), int(found["completion_mask"].sum()), len(found["prompt_mask"])
            return found

    class Turns(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            now["start"] = wait_for_turn()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds, cpu = (after - before for before, after in zip(now["start"], clocks(), strict=True))
            prompt, answer, count = now["tokens"]
            phases = {name: now[name] for name in ("rollout", "prompts and scores")}
            tell(
                seconds=seconds,
                cpu=cpu,
                rows=count,
                prompt=prompt,
                answer=answer,
                phases={**phases, "update": seconds - sum(phases.values())},
            )

    settings = GRPOConfig(
        output_dir=str(folder / "trl"), use_cpu=True, bf16=False, gradient_checkpointing=False, learning_rate=1e-6,
        lr_scheduler_type="constant", per_device_train_batch_size=each, gradient_accumulation_steps=answers // each,
        num_generations=asked.n, max_completion_length=asked.tokens, generation_kwargs={"min_new_tokens": asked.tokens},
        temperature=1.0, beta=0.0, loss_type="dapo", max_steps=asked.steps + asked.warm, save_strategy="no", report_to="none",
        logging_steps=1_000, disable_tqdm=True, shuffle_dataset=False,
    )  # fmt: skip

    def right(completions: Any, gold: Any, **_: Any) -> list[float]:
        return [float(one[0]["content"].strip() == wanted) for one, wanted in zip(completions, gold, strict=True)]

    model = Qwen3VLForConditionalGeneration.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="sdpa")
    processor = AutoProcessor.from_pretrained(folder / "model")
    Timed(model, right, settings, train_dataset=dataset, processing_class=processor, callbacks=[Turns()]).train()


# The parent ----------------------------------------------------------------------------------------------------------


def make_environment(folder: Path) -> Path:
    """An environment with the newest TRL that borrows everything else; its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=False, symlinks=True)
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    (site / "borrowed.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    kept = folder / "kept.txt"
    kept.write_text("".join(f"{name}=={version(name)}\n" for name in ("torch", "transformers", "accelerate")))
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "-q", "-U", "-c", kept, "trl"], check=True)
    return python


class Worker:
    """One side, in a process of its own that steps when it is told to."""

    def __init__(self, python: str | Path, side: str, folder: Path, arguments: list[str], threads: int) -> None:
        self.side, self.steps = side, []
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        self.log = (folder / f"{side}.log").open("w+")
        # -P: this file's folder must not come first on the path, since the file has the name of the package.
        command = [str(python), "-P", __file__, *arguments, "--side-of", side, "--folder", str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment)

    def line(self, start: str) -> str:
        """The next line of its output that starts so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return line
        self.log.seek(0)
        raise SystemExit(f"{self.side} ended:\n{self.log.read()[-3000:]}")

    def step(self, last: bool) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.steps.append(json.loads(self.line("step ")[5:]))
        if not last:
            self.line("ready")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


def summary(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the steps."""
    seconds = statistics.median(one["seconds"] for one in steps)
    phases = {name: statistics.median(one["phases"].get(name, 0.0) for one in steps) for name in steps[0]["phases"]}
    rows, prompt, answer = (statistics.median(one[name] for one in steps) for name in ("rows", "prompt", "answer"))
    return {
        "step_seconds": seconds, "step_cpu_seconds": statistics.median(one["cpu"] for one in steps), "rows": rows,
        "prompt_tokens": prompt, "answer_tokens": answer, "tokens_per_second": (prompt + answer) / seconds,
        "answer_tokens_per_second": answer / seconds, "phases": phases,
    }  # fmt: skip


def compare(asked: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = make_environment(asked.environment or folder / "environment")
        ask = [python, "-c", "from importlib.metadata import version; print(version('trl'))"]
        trl = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
        make_world(folder, asked)
        arguments = [argument for argument in sys.argv[1:] if argument != "--json" and argument != str(asked.json)]
        load = os.getloadavg()[0]
        workers: list[Worker] = []
        try:
            for side, interpreter in (("evr1", sys.executable), ("trl", python)):
                workers.append(Worker(interpreter, side, folder, arguments, asked.threads))
            for worker in workers:
                worker.line("ready")
            total = asked.steps + asked.warm
            for step in range(total):
                for worker in workers if step % 2 else workers[::-1]:
                    worker.step(last=step + 1 == total)
                print(
                    f"step {step + 1}: "
                    + "  ".join(
                        f"{one.side} {one.steps[-1]['seconds']:.2f} s, {one.steps[-1]['cpu']:.2f} s of processor" for one in workers
                    ),
                    flush=True,
                )
        finally:
            for worker in workers:
                worker.close()
    found = {worker.side: worker.steps[asked.warm :] for worker in workers}
    pairs = list(zip(found["evr1"], found["trl"], strict=True))
    ratios = [theirs["seconds"] / ours["seconds"] for ours, theirs in pairs]
    sides = {side: summary(steps) for side, steps in found.items()}
    return {
        "trl": trl, "torch": version("torch"), "transformers": version("transformers"), "cores": len(os.sched_getaffinity(0)),
        "load_before": load, "load_after": os.getloadavg()[0],
        "settings": {name: value for name, value in vars(asked).items() if isinstance(value, (int, str))},
        "sides": sides, "ratio": statistics.median(ratios), "ratios": ratios,
        "cpu_ratio": statistics.median(theirs["cpu"] / ours["cpu"] for ours, theirs in pairs),
        "tokens_per_second_ratio": sides["evr1"]["tokens_per_second"] / sides["trl"]["tokens_per_second"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="steps of each side that count")
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=4, help="prompts per step")
    parser.add_argument("--n", type=int, default=8, help="answers per prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of every answer")
    parser.add_argument("--side", type=int, default=320, help="pixels of the sides of an image, a multiple of 32")
    parser.add_argument("--trl-batch", type=int, default=0, help="answers of one forward pass of TRL; 0 is all of them")
    parser.add_argument("--packing", default="true", choices=("true", "false"))
    parser.add_argument("--micro-batch-tokens", type=int, default=1_600, help="tokens of one forward pass of evr1")
    parser.add_argument("--environment", type=Path, help="where TRL is installed, and found again")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side-of", choices=("evr1", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side_of:
        import torch

        torch.set_num_threads(asked.threads)
        (step_evr1 if asked.side_of == "evr1" else step_trl)(asked.folder, asked)
        return
    report = compare(asked)
    print(f"TRL {report['trl']}; {report['cores']} cores, load {report['load_before']:.1f} before and {report['load_after']:.1f} after")
    for side, found in report["sides"].items():
        rates = f"{found['tokens_per_second']:9.0f} tokens/s{found['answer_tokens_per_second']:8.0f} answer tokens/s"
        print(f"  {side:5}{found['step_seconds']:8.2f} s/step{rates}   {found['prompt_tokens']:.0f} + {found['answer_tokens']:.0f} tokens")
        print("       " + "  ".join(f"{name} {seconds:.2f} s" for name, seconds in found["phases"].items()))
    print(f"  evr1 trains {report['tokens_per_second_ratio']:.2f}x the tokens per second; steps {report['ratio']:.2f}x as fast (median)")
    print(f"  processor time of a step: {report['cpu_ratio']:.2f}x less (median; evr1's decoding and scoring children not counted)")
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
