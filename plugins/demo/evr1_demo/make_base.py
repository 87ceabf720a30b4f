"""Makes the demo's base model: `python -m evr1_demo.make_base --seed 0 --out DIR`. Some minutes on one core.

A tiny random model is taught by examples. An answer is a word, the letter beside it among the options, and the letter:
`<think>red A</think><answer>A</answer>`.

    form    questions with options and without a clip, for a word drawn by chance     until the letters are known
    see     open questions about clips (no options; the answer is the word), and questions with options and a clip, still
            for a word drawn by chance                                                until open questions are answered
    join    both, now for the right word                  stopped as soon as greedy accuracy on `choose` is TARGET

So the base has the form, finds the letter of a word, and understands clips when asked openly; that a question with
options wants what was seen it has only begun to learn. Training by reward does the rest. The clips are a split of their
own: none is in the question set.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evr1_core import plugins
from evr1_core.data.rows import read_samples
from evr1_core.errors import Evr1Error
from evr1_core.media.store import MediaStore
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.forward import Row, answer_logprobs
from evr1_core.policy.load import load_adapter
from evr1_core.rollout.engine import Engine, EngineContext, all_answered, open_engine
from evr1_core.types import Budget, Clip, ImageBudget, Prompt, Sample, Sampling, VideoBudget
from evr1_demo.questions import LETTERS, make_question_set
from evr1_demo.scenes import COLOURS, COUNTS, DIRECTIONS, FPS, FRAMES, KINDS, SIDE

_ASKED = "user assistant What Which How colour is the shape way does move comes first last many flashes are there"
WORDS = (
    *_ASKED.split(),
    *LETTERS, *COLOURS, *DIRECTIONS, *COUNTS,
    # Timestamps of a clip of 2 seconds; each is one token, so that prompts stay short.
    "<0.1 seconds>", "<0.6 seconds>", "<1.1 seconds>", "<1.6 seconds>",
)  # fmt: skip
SIZES = {"base": 1_600, "choose": 256}
BUDGET = Budget(VideoBudget(fps=FPS, min_frames=2, max_frames=FRAMES, min_pixels=1_024, max_pixels=SIDE**2), ImageBudget(1_024, SIDE**2))
WORD, LETTER = 1, 2
"""Places of the word and of the letter beside it in an answer."""
KNOWN, SEEN, TARGET = 0.97, 0.93, 0.45
"""Mean probability of the letter, of the word of open questions, and the accuracy at which the stages end."""
PATIENCE = 1_500
"""Steps of one stage after which this seed is given up."""
NO_SAMPLE = Sample("text", "", "", "")


@dataclass(frozen=True, slots=True)
class Item:
    """One clip with its question."""

    sample: Sample
    clip: Clip

    @property
    def question(self) -> str:
        return self.sample.problem.split(">", 1)[1]

    @property
    def word(self) -> str:
        """The answer as a word."""
        return tuple(self.sample.options or ())[LETTERS.index(self.sample.answer)]


class School:
    """Draws examples and teaches them."""

    def __init__(self, adapter: ModelAdapter, items: Sequence[Item], seed: int) -> None:
        self.adapter, self.random = adapter, random.Random(seed)
        self.model = adapter.load_model(torch.float32)
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0)
        self.kinds = {kind: [item for item in items if item.sample.extra["kind"] == kind] for kind in KINDS}
        self.media: dict[str, tuple[tuple[int, ...], Mapping[str, Tensor]]] = {}
        self.known = self.seen = 0.0
        """Running means of the probability of letters, and of the words of open questions."""

    def form(self) -> None:
        """One step of the first stage."""
        rows = []
        for _ in range(64):
            item, options = self._draw()
            rows.append(self.row(f"{item.question}\n{lines(options)}", None, choice(self.random.choice(options), options)))
        probabilities = self._teach([(rows, 0.0)])[0]
        self.known += 0.1 * (probabilities[LETTER] - self.known)

    def look(self, right: bool) -> None:
        """One step of the other stages: questions with options, for the right word or any; and open questions."""
        asked = [self._asked(kind, right) for kind in KINDS for _ in range(4)]
        plain = [self._open() for _ in range(8 if right else 24)]
        found, seen = self._teach([(asked, 1.0 if right else 0.3), (plain, 1.0)])
        self.known += 0.1 * (found[LETTER] - self.known)
        self.seen += 0.05 * (seen[WORD] - self.seen)

    def _asked(self, kind: str, right: bool) -> Row:
        item, options = self._draw(kind)
        return self.row(f"{item.question}\n{lines(options)}", item, choice(item.word if right else self.random.choice(options), options))

    def _open(self) -> Row:
        item, _ = self._draw()
        return self.row(item.question, item, f"<answer>{item.word}</answer>")

    def _teach(self, batches: Sequence[tuple[Sequence[Row], float]]) -> list[list[float]]:
        """One step on batches of (rows, weight of the word in the loss); returns each batch's mean probability at each place."""
        self.optimizer.zero_grad()
        found: list[list[float]] = []
        for rows, weight in batches:
            logprobs = answer_logprobs(self.model, self.adapter, rows, packing=False, temperature=1.0, device="cpu")
            weights = torch.ones(logprobs.shape[1])
            weights[WORD] = weight
            (-(logprobs * weights).mean()).backward()
            found.append(logprobs.detach().exp().mean(dim=0).tolist())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return found

    def _draw(self, kind: str | None = None) -> tuple[Item, list[str]]:
        item = self.random.choice(self.kinds[kind or self.random.choice(list(self.kinds))])
        options = list(item.sample.options or ())
        self.random.shuffle(options)
        return item, options

    def row(self, text: str, item: Item | None, answer: str) -> Row:
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if item:
            content.insert(0, {"type": item.clip.kind})
        prompt_text, _ = self.adapter.render([{"role": "user", "content": content}])
        ids, features = self._encode(prompt_text, item)
        prompt = Prompt(item.sample if item else NO_SAMPLE, (), prompt_text, ids, (), features)
        return Row(prompt, tuple(self.adapter.tokenize(answer + "<|im_end|>")))

    def _encode(self, text: str, item: Item | None) -> tuple[tuple[int, ...], Mapping[str, Tensor]]:
        """Token ids and features; each clip goes through the processor once, and its run of media tokens is kept."""
        if item is None:
            return self.adapter.encode(text, [])
        start, end = "<|vision_start|>", "<|vision_end|>"
        before, after = (self.adapter.tokenize(part) for part in (text[: text.index(start)], text[text.rindex(end) + len(end) :]))
        if item.sample.id not in self.media:
            ids, features = self.adapter.encode(text, [item.clip])
            self.media[item.sample.id] = ids[len(before) : len(ids) - len(after)], features
        ids, features = self.media[item.sample.id]
        return (*before, *ids, *after), features


def lines(options: Sequence[str]) -> str:
    return "\n".join(f"{option} {letter}" for letter, option in zip(LETTERS, options, strict=True))


def choice(word: str, options: Sequence[str]) -> str:
    letter = LETTERS[options.index(word)]
    return f"<think>{word} {letter}</think><answer>{letter}</answer>"


def load_items(folder: Path, split: str, adapter: ModelAdapter) -> Iterator[Item]:
    """Clips of a split through the media code of every run."""
    with closing(MediaStore(folder / "cache", mode="decode-only", isolate=False)) as store:
        for sample in read_samples(folder / f"{split}.jsonl").samples:
            yield Item(sample, store.load(sample.media[0], BUDGET, adapter.factors))


def accuracy(engine: Engine, school: School, items: Sequence[Item], temperature: float = 0.0) -> float:
    """Share of `items` whose answer ends with the right letter; temperature 0 is greedy."""
    prompts = [school.row(f"{item.question}\n{lines(tuple(item.sample.options or ()))}", item, "").prompt for item in items]
    answers = all_answered(engine.generate(prompts, Sampling(n=1, temperature=temperature, max_tokens=10, seed=0)))
    right = [one.text.endswith(f"<answer>{item.sample.answer}</answer>") for item, (one,) in zip(items, answers, strict=True)]
    return sum(right) / len(right)


def make_base(directory: Path, seed: int = 0) -> float:
    """Writes the base; returns its greedy accuracy on `choose`. Raises Evr1Error when a stage doesn't end: take another seed."""
    started = time.perf_counter()
    make_tiny = plugins.resolve("evr1_models.tiny:make_tiny_qwen3_vl")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_question_set(folder / "questions", sizes=SIZES)
        adapter = load_adapter(str(make_tiny(folder / "model", WORDS, seed=seed, hidden=128, layers=3)))
        school = School(adapter, list(load_items(folder / "questions", "base", adapter)), seed)
        choose = list(load_items(folder / "questions", "choose", adapter))
        engine = open_engine("hf", {}, EngineContext(adapter, "float32", "cpu", 128, 10, seed, model=school.model))
        for stage in ("form", "see", "join"):
            for step in range(1, PATIENCE + 1):
                school.form() if stage == "form" else school.look(right=stage == "join")
                reached = accuracy(engine, school, choose) if stage == "join" else 0.0
                if step % 50 == 0 or stage == "join":
                    print(f"{stage} {step}  letter {school.known:.2f}  seen {school.seen:.2f}  accuracy {reached:.2f}", flush=True)
                if school.known > KNOWN and (stage == "form" or school.seen > SEEN) and (stage != "join" or reached >= TARGET):
                    break
            else:
                raise Evr1Error(f"seed {seed}: stage {stage!r} did not end in {PATIENCE} steps; take another --seed")
        drawn = accuracy(engine, school, choose, temperature=1.0)
        print(f"greedy {reached:.3f}, drawn {drawn:.3f}, {time.perf_counter() - started:.0f} s", flush=True)
        write(directory, folder / "model", school.model)
    return reached


def write(directory: Path, tiny: Path, model: Any) -> None:
    """The taught weights beside tokenizer, template and processor files."""
    shutil.copytree(tiny, directory, dirs_exist_ok=True)
    model.save_pretrained(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the demo's base model.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)  # sums in one order: the same seed gives the same weights on one kind of machine
    make_base(options.out, options.seed)


if __name__ == "__main__":
    main()
