"""The rules of a model family find the faults they are for: each of these adapters is right but for one thing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evr1_core import plugins
from evr1_core.media.plan import Plan
from evr1_core.policy.load import load_adapter
from evr1_core.testing import ContractBroken
from evr1_core.testing.models import RULES, Subject, rules
from evr1_models.qwen2_vl import Qwen2VL

NAME = "tiny-qwen2-vl"


class DropsTheLastFrame(Qwen2VL):
    def _video_tokens(self, plan: Plan) -> int:
        return plan.frames // self.factors.frames * self._cells(plan)


class CountsTextFromZeroAgain(Qwen2VL):
    def position_ids(self, token_ids: Sequence[int], features: Mapping[str, Tensor]) -> Tensor:
        return torch.arange(len(token_ids)).expand(3, -1).clone() % 40


class LooksAtTheSumAlone(Qwen2VL):
    def position_ids(self, token_ids: Sequence[int], features: Mapping[str, Tensor]) -> Tensor:
        return torch.arange(len(token_ids)).expand(3, -1)


class SeesEachMediumForItself(Qwen2VL):
    def _see(self, model: Any, patches: Tensor, grids: Tensor) -> list[Tensor]:
        sizes = grids.prod(dim=-1).tolist()
        levels = [super(SeesEachMediumForItself, self)._see(model, *one) for one in zip(patches.split(sizes), grids.split(1), strict=True)]
        return [torch.cat([level[0] for level in levels])]


class SeesEachRowForItself(Qwen2VL):
    def model_inputs(self, model: Any, input_ids: Tensor, rows: Sequence[Mapping[str, Tensor]], **more: Any) -> dict[str, Any]:
        return super().model_inputs(model, input_ids, [dict(row) for row in rows], **more)


class WeighsTheDummy(Qwen2VL):
    def _with_dummy(self, model: Any, input_ids: Tensor) -> Tensor:
        side = self.merge_size
        channels = 3 * self.factors.frames * (self.factors.pixels // side) ** 2
        (features,) = self._see(model, torch.zeros(side * side, channels), torch.tensor([[1, side, side]]))
        return model.get_input_embeddings()(input_ids) + 1e-2 * features.sum()


class ForgetsAPart(Qwen2VL):
    def parts(self, model: Any) -> dict[str, list[nn.Module]]:
        return {"language": super().parts(model)["language"]}


class SendsAWeightTwice(Qwen2VL):
    def engine_weights(self, model: Any) -> Iterator[tuple[str, Tensor]]:
        weights = dict(super().engine_weights(model))
        yield from weights.items()
        yield next(iter(weights.items()))


class KeepsAWeight(Qwen2VL):
    def engine_weights(self, model: Any) -> Iterator[tuple[str, Tensor]]:
        yield from list(super().engine_weights(model))[1:]


class ReadsControlTokens(Qwen2VL):
    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(token_ids))


class LoadsAnyway(Qwen2VL):
    def empty_model(self, *arguments: Any, **more: Any) -> Any:
        return self.load_model(*arguments, **more)


def broken(adapter: type[Qwen2VL], rule: str) -> str:
    (spec,) = [offer.spec for offer in plugins.find_all(NAME)]
    subject = Subject(spec, NAME)  # type: ignore[arg-type]
    subject.adapter = adapter(load_adapter(NAME).directory)
    with pytest.raises(ContractBroken) as caught:
        RULES[rule](subject)
    return str(caught.value)


@pytest.mark.parametrize(
    ("adapter", "rule", "message"),
    [
        (DropsTheLastFrame, "planned-tokens", "odd frames: 65 tokens planned, 71 in the prompt"),
        (CountsTextFromZeroAgain, "positions", "positions of the answer don't count on|positions of plain text must count"),
        (LooksAtTheSumAlone, "strict", "one token less: Evr1Error that names the sample 'image' expected, not ValueError"),
        (SeesEachMediumForItself, "always-vision", "two images: always_vision ran the vision tower 2 times"),
        (SeesEachRowForItself, "shared-media", "for 3 answers"),
        (WeighsTheDummy, "always-vision", "always_vision: gradients differ"),
        (ForgetsAPart, "always-vision", "no part `vision`"),
        (SendsAWeightTwice, "weights", "twice"),
        (KeepsAWeight, "weights", "numbers, the model has"),
        (ReadsControlTokens, "text", "must be one token that decode leaves out"),
        (LoadsAnyway, "empty", "must be on the meta device"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_a_fault_is_found(adapter: type[Qwen2VL], rule: str, message: str) -> None:
    found = broken(adapter, rule)
    assert re.search(message, found), found


def test_rules_of_a_directory_of_ones_own() -> None:
    (spec,) = [offer.spec for offer in plugins.find_all(NAME)]
    names = [name for name, _ in rules(spec, load_adapter(NAME).directory)]  # type: ignore[arg-type]
    assert names == list(RULES)
    dict(rules(spec, load_adapter(NAME).directory))["text"]()  # type: ignore[arg-type]
