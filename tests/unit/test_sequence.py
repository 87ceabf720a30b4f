"""What sequence parallelism refuses, and the pieces of it that need no second process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evr1_core.cluster.sequence import check_degree
from evr1_core.errors import RequestError
from evr1_core.policy.forward import AnswerOutputs, Row
from evr1_core.policy.load import load_adapter
from evr1_core.policy.sequence import PART, SequenceGroup, SequencePart
from evr1_core.testing.media import make_prompt
from evr1_models.sequence import FrameShares, share_state, shared, without_lengths


class Ranks(SequenceGroup):
    """A group in one process: each rank gets back what it sends."""

    def __init__(self, size: int, rank: int = 0) -> None:
        super().__init__(None, rank, size)  # type: ignore[arg-type]

    def exchange(self, pieces: Tensor) -> Tensor:
        assert len(pieces) == self.size
        return pieces


def test_degrees_that_do_not_fit_are_refused() -> None:
    check_degree(4, 2, packing=True)
    check_degree(3, 1, packing=False)
    with pytest.raises(RequestError, match="groups of 3 don't fit 4 workers"):
        check_degree(4, 3, packing=True)
    with pytest.raises(RequestError, match=r"needs train\.packing=true"):
        check_degree(4, 2, packing=False)


def test_heads_that_do_not_divide_are_refused_with_the_numbers() -> None:
    adapter = load_adapter("tiny-qwen3-vl")
    model = adapter.empty_model(torch.float32)
    with pytest.raises(RequestError, match="the model's 4 attention heads don't divide by 3; take one of 1, 2, 4"):
        AnswerOutputs(model, adapter, sequence=Ranks(3))
    linear = load_adapter("tiny-qwen3-5")
    model = linear.empty_model(torch.float32)
    model.config.text_config.num_attention_heads = 4
    with pytest.raises(RequestError, match="the model's 2 value heads of gated delta layers don't divide by 4"):
        AnswerOutputs(model, linear, sequence=Ranks(4))


def test_attention_without_exchanges_is_refused() -> None:
    adapter = load_adapter("tiny-qwen3-vl")
    with pytest.raises(RequestError, match=r"attention 'eager' isn't shared by ranks; take model\.attention=sdpa"):
        AnswerOutputs(adapter.empty_model(torch.float32, attention="eager"), adapter, sequence=Ranks(2))
    model = adapter.empty_model(torch.float32)
    model.config.text_config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(RequestError, match="sliding windows"):
        AnswerOutputs(model, adapter, sequence=Ranks(2))


def test_an_adapter_without_the_method_is_refused_by_name() -> None:
    class Theirs:
        pass

    with pytest.raises(RequestError, match="the adapter Theirs has no method `sequence_parallel`"):
        AnswerOutputs(nn.Linear(1, 1), Theirs(), sequence=Ranks(2))  # type: ignore[arg-type]


def test_padded_rows_are_refused() -> None:
    adapter = load_adapter("tiny-qwen3-vl")
    body = AnswerOutputs(adapter.empty_model(torch.float32), adapter, sequence=Ranks(2))
    row = Row(make_prompt(adapter, "text", []), (40, 41))
    with pytest.raises(RequestError, match=r"needs train\.packing=true"):
        body([row], packing=False, temperature=1.0, device="cpu")


def test_a_layer_of_another_form_is_refused() -> None:
    with pytest.raises(RequestError, match=r"SimpleNamespace of this version of transformers has no A_log"):
        share_state(SimpleNamespace(), 2)


def test_flash_attention_gets_whole_rows_with_their_boundaries() -> None:
    """Two ranks, six tokens in rows of 4 and 2; 4 heads of queries, 1 of keys and values, of which each rank gets a copy."""
    seen: dict[str, Any] = {}

    def flash(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any) -> tuple[Tensor, None]:
        seen.update(kwargs, mask=mask, shapes=[tuple(one.shape) for one in (query, key, value)], groups=module.num_key_value_groups)
        return query.transpose(1, 2), None

    attend = shared(without_lengths(flash))
    module = nn.Module()
    module.num_key_value_groups = 4  # type: ignore[assignment]
    query, key = torch.randn(1, 4, 3, 8), torch.randn(1, 1, 3, 8)
    part = SequencePart(Ranks(2), [4, 2], "cpu")
    output, _ = attend(module, query, key, key, None, position_ids=torch.arange(3)[None], scaling=0.5, **{PART: part})
    assert seen["mask"] is None and "position_ids" not in seen and PART not in seen and seen["scaling"] == 0.5
    assert seen["shapes"] == [(1, 2, 6, 8), (1, 1, 6, 8), (1, 1, 6, 8)] and seen["groups"] == 2
    assert seen["cu_seq_lens_q"].tolist() == [0, 4, 6] and seen["max_length_k"] == 4
    torch.testing.assert_close(output, query.transpose(1, 2))
    assert attend(module, query, key, key, None)[0].shape == (1, 3, 4, 8) and seen["shapes"][0] == (1, 4, 3, 8)


def test_frames_are_dealt_out_evenly_and_in_order() -> None:
    grids = torch.tensor([[5, 2, 4], [1, 4, 4], [3, 2, 2]])
    shares = FrameShares(grids, 2)
    assert shares.counts == [32, 36] or shares.counts == [40, 28]
    assert shares.patches(0)[1] == shares.patches(1)[0] and shares.patches(1)[1] == int(grids.prod(dim=1).sum())
    again = torch.cat([shares.grids(rank) for rank in range(2)])
    assert [int(shares.grids(rank).prod(dim=1).sum()) for rank in range(2)] == shares.counts
    for size, frames in (((2, 4), 5), ((4, 4), 1), ((2, 2), 3)):
        assert sum(one[0] for one in again.tolist() if tuple(one[1:]) == size) == frames
    few = FrameShares(torch.tensor([[1, 2, 2]]), 4)
    assert sorted(few.counts) == [0, 0, 0, 4]
