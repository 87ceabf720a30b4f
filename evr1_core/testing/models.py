"""The rules of a model family, on a model directory: from a file's headers to the gradient, for every mix of media.

Tiny random models serve best: each rule takes a second or two. A family that names some (`ModelSpec.made`) is tested on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from evr1_core.config.models import ModelSection, TrainSection
from evr1_core.errors import Evr1Error
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.forward import AnswerOutputs, Row
from evr1_core.policy.load import load_adapter
from evr1_core.policy.policy import Policy
from evr1_core.rollout.engine import EngineContext, open_engine
from evr1_core.specs import ModelSpec
from evr1_core.testing.contracts import ContractBroken
from evr1_core.testing.media import all_prompts, make_media, make_prompt, planned
from evr1_core.types import Clip, Completion, Prompt, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NEAR = 1e-5
"""Largest difference of a log-probability, and largest relative difference of a gradient, in float32."""
TEMPERATURE = 0.7
TEXTS = ("Which way?", "<answer>B</answer> 12 + 3 = 15;\n\tnaïve 方向", "")


def rules(spec: ModelSpec, directory: Path | str | None = None) -> Iterator[tuple[str, Callable[[], None]]]:
    """The rules as (name, check): on `directory`, else on every model that the spec makes."""
    names = {"": str(directory)} if directory is not None else {f"{name}-": name for name in spec.made}
    for prefix, name in names.items():
        subject = Subject(spec, name)
        for rule, check in RULES.items():
            yield prefix + rule, lambda check=check, subject=subject: check(subject)


class Subject:
    """One model of a family, loaded once for all rules, and messages that name it."""

    def __init__(self, spec: ModelSpec, name: str) -> None:
        self.name, self.title = name, f"model {spec.name!r} ({name})"

    @cached_property
    def adapter(self) -> ModelAdapter:
        return load_adapter(self.name)

    @cached_property
    def model(self) -> PreTrainedModel:
        return self.adapter.load_model(torch.float32).train()

    @cached_property
    def prompts(self) -> dict[str, Prompt]:
        return {prompt.sample.id: prompt for prompt in all_prompts(self.adapter)}

    @cached_property
    def rows(self) -> list[Row]:
        """An answer of 3 to 5 plain tokens to every prompt."""
        plain = [token for token in self.adapter.tokenize("Up, left and 3 right.") if token not in self.adapter.forbidden_token_ids]
        return [Row(prompt, tuple((plain * 3)[i : i + 3 + i % 3])) for i, prompt in enumerate(self.prompts.values())]

    def require(self, holds: Any, text: str) -> None:
        if not holds:
            raise ContractBroken(f"{self.title}: {text}")

    def logprobs(self, rows: Sequence[Row], *, packing: bool = True, always_vision: bool = False) -> Tensor:
        body = AnswerOutputs(self.model, self.adapter, always_vision=always_vision)
        return body(rows, packing=packing, temperature=TEMPERATURE, device="cpu")[0]

    def gradients(self, batches: Sequence[Sequence[Row]], **how: bool) -> dict[str, Tensor | None]:
        """Of the sum over all answer tokens, one backward pass a batch."""
        self.model.zero_grad(set_to_none=True)
        for rows in batches:
            self.logprobs(rows, **how).sum().backward()
        found = {name: None if one.grad is None else one.grad.clone() for name, one in self.model.named_parameters()}
        self.model.zero_grad(set_to_none=True)
        return found

    def require_equal(self, found: Mapping[str, Tensor | None], wanted: Mapping[str, Tensor | None], what: str) -> None:
        """Gradients: their difference against their length."""
        zero = torch.zeros(())
        pairs = [(zero if wanted[name] is None else wanted[name], zero if one is None else one) for name, one in found.items()]
        size = sum(float(one.double().square().sum()) for one, _ in pairs)  # type: ignore[union-attr]
        off = sum(float((one.double() - other.double()).square().sum()) for one, other in pairs)  # type: ignore[union-attr]
        self.require(size > 0, f"{what}: no gradient at all")
        ratio = (off / size) ** 0.5
        self.require(ratio < NEAR, f"{what}: gradients differ by {ratio:.1e} of their length")

    @contextmanager
    def tower_calls(self) -> Iterator[list[int]]:
        """Rows of input that each call of the vision tower got."""
        parts = self.adapter.parts(self.model)
        self.require("vision" in parts, f"parts() names {', '.join(sorted(parts))}, but no part `vision`")
        first = next(module for module in parts["vision"] if any(True for _ in module.parameters()))
        calls: list[int] = []
        handle = first.register_forward_pre_hook(lambda _, inputs: calls.append(inputs[0].shape[0]))
        try:
            yield calls
        finally:
            handle.remove()

    def media_place(self, prompt: Prompt) -> int:
        """Place of a token that stands for a part of a medium: a forbidden one that is repeated."""
        ids = prompt.token_ids
        found = [i for i in range(1, len(ids)) if ids[i] == ids[i - 1] and ids[i] in self.adapter.forbidden_token_ids]
        self.require(found, f"{prompt.sample.id}: no run of media tokens among forbidden_token_ids in the prompt")
        return found[0]


def logprob_differences(
    adapter: ModelAdapter, model: nn.Module, prompts: Sequence[Prompt], answers: Sequence[Sequence[Completion]], temperature: float
) -> dict[str, float]:
    """Largest absolute difference per prompt between what an engine reported and what the trainer computes."""
    body = AnswerOutputs(model, adapter)  # type: ignore[arg-type]
    found: dict[str, float] = {}
    for prompt, group in zip(prompts, answers, strict=True):
        rows = [Row(prompt, completion.token_ids) for completion in group]
        with torch.no_grad():
            trainer = body(rows, packing=True, temperature=temperature, device="cpu")[0]
        pairs = zip(trainer, group, strict=True)
        found[prompt.sample.id] = max(float((line[: len(c.token_ids)] - torch.tensor(c.logprobs)).abs().max()) for line, c in pairs)
    return found


def _planned(subject: Subject) -> None:
    """Tokens planned from sizes alone are those of the prompt, and the vision tower gives as many features."""
    for name, prompt in subject.prompts.items():
        plans = [planned(clip) for clip in prompt.clips]
        plan = subject.adapter.plan_tokens(prompt.text, plans)
        subject.require(plan == len(prompt.token_ids), f"{name}: {plan} tokens planned, {len(prompt.token_ids)} in the prompt")
    with torch.no_grad():
        for row in subject.rows:
            subject.require(subject.logprobs([row]).isfinite().all(), f"{row.prompt.sample.id}: log-probabilities are not finite")


def _anywhere(subject: Subject) -> None:
    """A medium adds the same number of tokens wherever it stands, also beside another one."""
    adapter = subject.adapter

    def tokens(content: Sequence[str | Clip]) -> int:
        items = [{"type": "text", "text": item} if isinstance(item, str) else {"type": item.kind} for item in content]
        clips = [item for item in content if isinstance(item, Clip)]
        text, _ = adapter.render([{"role": "user", "content": items}])
        count = adapter.plan_tokens(text, [planned(clip) for clip in clips])
        subject.require(count == len(adapter.encode(text, clips)[0]), f"{text!r}: {count} tokens planned, but encode gives another number")
        return count

    media = make_media(adapter.factors)
    for name in ("image", "video", "odd frames"):
        (clip,), texts = media[name], ["Look at this.", "Which way does it move?"]
        for others in ([*texts], [media["video"][0], *texts], [texts[0], media["image"][0], texts[1]]):
            alone = tokens(others)
            added = [tokens([*others[:i], clip, *others[i:]]) - alone for i in range(len(others) + 1)]
            subject.require(len(set(added)) == 1, f"{name}: adds {added} tokens, depending on where it stands")


def _positions(subject: Subject) -> None:
    """int64 [3, L]; plain counting for text; the answer counts on from the largest position of the prompt."""
    for row in subject.rows:
        name, length = row.prompt.sample.id, len(row.prompt.token_ids)
        found = subject.adapter.position_ids(row.token_ids, row.prompt.features)
        subject.require(found.dtype == torch.int64 and tuple(found.shape) == (3, len(row)), f"{name}: positions {tuple(found.shape)}")
        subject.require(int(found.min()) == 0, f"{name}: positions start at {int(found.min())}")
        after = int(found[:, :length].max()) + 1 + torch.arange(len(row.answer)).expand(3, -1)
        subject.require(torch.equal(found[:, length:], after), f"{name}: positions of the answer don't count on from those of the prompt")
        if not row.prompt.clips:
            subject.require(torch.equal(found, torch.arange(len(row)).expand(3, -1)), f"{name}: positions of plain text must count")


def _batches(subject: Subject) -> None:
    """Rows packed together, padded together and alone: equal log-probabilities and equal gradients."""
    rows = subject.rows
    with torch.no_grad():
        alone = [subject.logprobs([row])[0] for row in rows]
        for packing in (True, False):
            for row, line, one in zip(rows, subject.logprobs(rows, packing=packing), alone, strict=True):
                off = float((line[: len(one)] - one).abs().max())
                how = "packed" if packing else "padded"
                subject.require(off < NEAR, f"{row.prompt.sample.id}: {how} with others its log-probabilities change by {off:.1e}")
    single = subject.gradients([[row] for row in rows])
    for packing in (True, False):
        subject.require_equal(subject.gradients([rows], packing=packing), single, f"packing {packing} against rows alone")


def _rollout(subject: Subject) -> None:
    """The engine that serves everywhere reports the trainer's log-probabilities, and never a media token."""
    adapter, prompts = subject.adapter, list(subject.prompts.values())
    context = EngineContext(
        adapter=adapter, dtype="float32", device="cpu", max_prompt_tokens=1_000, max_tokens=6, seed=0, max_images=2, max_videos=2,
        model=subject.model,
    )  # fmt: skip
    engine = open_engine("auto", {}, context)
    for sampling in (Sampling(n=2, temperature=TEMPERATURE, max_tokens=6, seed=1), Sampling(temperature=0, max_tokens=6)):
        given = engine.generate(prompts, sampling)
        answers = [group for group in given if isinstance(group, list)]
        subject.require(len(answers) == len(prompts), f"the engine refused prompts of the trainer: {given}")
        worst = logprob_differences(adapter, subject.model, prompts, answers, sampling.temperature or 1.0)
        subject.require(max(worst.values()) < NEAR, f"log-probabilities of rollout and trainer differ: {worst}")
        drawn = {token for group in answers for completion in group for token in completion.token_ids}
        subject.require(not drawn & set(adapter.forbidden_token_ids), "a media token was sampled")
    engine.close()


def _strict(subject: Subject) -> None:
    """A row whose media tokens and features differ is refused by its sample, also where the errors of two rows cancel out."""
    text, image, video = (subject.prompts[name] for name in ("text", "image", "video"))

    def edited(prompt: Prompt, change: int) -> Row:
        ids, place = prompt.token_ids, subject.media_place(prompt)
        found = ids[:place] + ids[place + 1 :] if change < 0 else ids[:place] + (ids[place],) + ids[place:]
        return Row(replace(prompt, token_ids=found), (ids[-1],))

    cases = {
        "one token less": [edited(image, -1)],
        "one token more": [edited(video, 1)],
        "one less and one more": [edited(image, -1), edited(replace(image, sample=replace(image.sample, id="other")), 1)],
        "no features": [Row(replace(video, features={}), (1,))],
        "features without tokens": [Row(replace(text, features=image.features), (1,))],
        "a media token in the answer": [Row(image, (image.token_ids[subject.media_place(image)],))],
    }
    for name, rows in cases.items():
        for packing in (True, False):
            try:
                subject.logprobs(rows, packing=packing)
            except Exception as error:
                wanted = rows[0].prompt.sample.id
                named = isinstance(error, Evr1Error) and wanted in str(error)
                subject.require(named, f"{name}: Evr1Error that names the sample {wanted!r} expected, not {type(error).__name__}: {error}")
            else:
                raise ContractBroken(f"{subject.title}: {name}: no error")


def _always_vision(subject: Subject) -> None:
    """The tower runs once for every mix; where it runs on a dummy, values stay and its gradients are 0."""
    rows = subject.rows
    text = [row for row in rows if not row.prompt.clips]
    for batch in ([row] for row in rows), [rows], [text]:
        for one in batch:
            with torch.no_grad(), subject.tower_calls() as calls:
                forced = subject.logprobs(one, always_vision=True)
            names = ", ".join(row.prompt.sample.id for row in one)
            subject.require(len(calls) == 1, f"{names}: always_vision ran the vision tower {len(calls)} times, not once")
            off = float((forced - subject.logprobs(one).detach()).abs().max())
            subject.require(off < NEAR, f"{names}: always_vision changes log-probabilities by {off:.1e}")
    for batch in (rows, text):
        subject.require_equal(subject.gradients([batch], always_vision=True), subject.gradients([batch]), "always_vision")
    with subject.tower_calls() as calls:
        forced = subject.gradients([text], always_vision=True)
    tower = {id(p) for module in subject.adapter.parts(subject.model)["vision"] for p in module.parameters()}
    own = {name: forced[name] for name, parameter in subject.model.named_parameters() if id(parameter) in tower}
    wrong = [name for name, grad in own.items() if grad is None or grad.count_nonzero()]
    subject.require(not wrong, f"gradients of {', '.join(wrong[:3])} must be zeros, not absent or other, for text with a dummy picture")


def _shared(subject: Subject) -> None:
    """Answers to one prompt share its mapping of features: the tower sees its media once, and the gradient is the same."""
    for name in ("two images", "image and video"):
        prompt = subject.prompts[name]
        answers = [row.answer for row in subject.rows[:3]]
        shared = [Row(prompt, answer) for answer in answers]
        apart = [Row(replace(prompt, features=dict(prompt.features)), answer) for answer in answers]
        with torch.no_grad(), subject.tower_calls() as one:
            subject.logprobs(shared[:1])
        with torch.no_grad(), subject.tower_calls() as all_rows:
            subject.logprobs(shared)
        subject.require(one == all_rows and len(one) == 1, f"{name}: the tower got {all_rows} rows for 3 answers, {one} for one")
        for packing in (True, False):
            together = subject.gradients([shared], packing=packing)
            subject.require_equal(together, subject.gradients([[row] for row in apart]), f"{name}: one vision pass for 3 answers")


def _freeze(subject: Subject) -> None:
    """Each part frozen: its count is right, it stays bit for bit while the rest moves."""
    parts = subject.adapter.parts(subject.model)
    for part, modules in parts.items():
        count = sum(p.numel() for p in {id(p): p for module in modules for p in module.parameters()}.values())
        section = ModelSection(dtype="float32", gradient_checkpointing=False, freeze=(part,))
        policy = Policy(subject.adapter, section, TrainSection(lr=1e-2), temperature=1.0, device="cpu", total_steps=2)
        subject.require(policy.frozen == {part: count}, f"freeze {part}: {policy.frozen} counted, {count} parameters in its modules")
        frozen = {id(p) for module in subject.adapter.parts(policy.model)[part] for p in module.parameters()}
        before = [(name, p, p.detach().clone()) for name, p in policy.model.named_parameters()]
        policy.logprobs(subject.rows).sum().backward()
        policy.step()
        moved = [name for name, p, old in before if id(p) in frozen and not torch.equal(p, old)]
        subject.require(not moved, f"freeze {part}: {', '.join(moved[:3])} changed")
        still = [name for name, p, old in before if id(p) not in frozen and torch.equal(p, old) and p.numel() > 1]
        subject.require(len(still) < len(before) / 4, f"freeze {part}: {', '.join(still[:3])} and others didn't change")


def _text(subject: Subject) -> None:
    """Plain text survives; control texts are one token each and left out of what is read; media tokens are forbidden."""
    adapter = subject.adapter
    for text in TEXTS:
        subject.require(adapter.decode(adapter.tokenize(text)) == text, f"{text!r} became {adapter.decode(adapter.tokenize(text))!r}")
    for special in sorted(adapter.special_texts):
        ids = adapter.tokenize(special)
        subject.require(len(ids) == 1 and adapter.decode(ids) == "", f"{special!r} must be one token that decode leaves out, not {ids}")
    subject.require(adapter.stop_token_ids, "no stop token")
    subject.require(not set(adapter.stop_token_ids) & set(adapter.forbidden_token_ids), "a stop token is forbidden")
    for name in ("image", "video"):
        subject.media_place(subject.prompts[name])
    prompt = make_prompt(adapter, "turn", [])
    subject.require(prompt.text.endswith(prompt.prefill), f"the prompt must end with the prefilled text {prompt.prefill!r}")


def _weights(subject: Subject) -> None:
    """`engine_weights` gives every element once under names of their own; `blocks` are apart."""
    given = list(subject.adapter.engine_weights(subject.model))
    names = [name for name, _ in given]
    twice = sorted({name for name in names if names.count(name) > 1})
    subject.require(not twice, f"engine_weights gives {', '.join(twice)} twice")

    def elements(tensors: Sequence[Tensor]) -> int:
        return sum({tensor.data_ptr(): tensor.numel() for tensor in tensors}.values())

    found, wanted = elements([tensor for _, tensor in given]), elements(list(subject.model.state_dict().values()))
    subject.require(found == wanted, f"engine_weights gives {found} numbers, the model has {wanted}")
    blocks = subject.adapter.blocks(subject.model)
    own = [id(parameter) for block in blocks for parameter in block.parameters()]
    subject.require(blocks and len(own) == len(set(own)), "blocks() must be layers that share no parameter")


def _empty(subject: Subject) -> None:
    """`empty_model` makes the modules of `load_model` without memory: ranks that get a shard start with it."""
    empty = subject.adapter.empty_model(torch.float32)

    def tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
        return [*model.named_parameters(), *model.named_buffers()]

    held = [name for name, tensor in tensors(empty) if not tensor.is_meta]
    subject.require(not held, f"empty_model: {', '.join(held[:3])} must be on the meta device")
    found, wanted = ({name: (tuple(one.shape), one.dtype) for name, one in tensors(model)} for model in (empty, subject.model))
    other = [name for name in sorted(found.keys() | wanted.keys()) if found.get(name) != wanted.get(name)]
    subject.require(not other, f"empty_model: {', '.join(other[:3])} aren't as load_model makes them")


RULES: dict[str, Callable[[Subject], None]] = {
    "planned-tokens": _planned,
    "medium-anywhere": _anywhere,
    "positions": _positions,
    "packed-padded-alone": _batches,
    "rollout": _rollout,
    "strict": _strict,
    "always-vision": _always_vision,
    "shared-media": _shared,
    "freeze": _freeze,
    "text": _text,
    "weights": _weights,
    "empty": _empty,
}
