"""Engines in the ranks of a worker group, without an engine: arguments, neighbours, weights that are gathered by all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from evr1_core.errors import Evr1Error, RequestError
from evr1_core.rollout.engine import EngineContext, ranks_per_engine, update_engine
from evr1_engines import vllm_arguments
from evr1_engines.hf import HFEngine
from evr1_engines.hf import Options as HFOptions
from evr1_engines.vllm import VLLMEngine
from evr1_engines.vllm_arguments import Options, llm_arguments
from evr1_engines.vllm_ranks import check_neighbours
from evr1_engines.vllm_weights import LoadReport


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "config.json").write_text("{}")
    known = ["distributed_executor_backend", "data_parallel_size", "pipeline_parallel_size", "disable_custom_all_reduce"]
    monkeypatch.setattr(vllm_arguments, "known_arguments", lambda: known)
    return SimpleNamespace(directory=tmp_path, stop_token_ids=(0,), forbidden_token_ids=())


def context(adapter: Any, ranks: int, device: str = "cpu") -> EngineContext:
    return EngineContext(adapter, "float32", device, 100, 10, 0, ranks=ranks)


def options(**given: Any) -> Options:
    return Options.model_validate(given)


def test_vllm_takes_the_ranks_as_its_workers(adapter: Any) -> None:
    alone = llm_arguments(context(adapter, 0), options())
    assert "distributed_executor_backend" not in alone
    inside = llm_arguments(context(adapter, 4), options(tensor_parallel_size=2))
    assert inside == alone | {"distributed_executor_backend": "external_launcher", "tensor_parallel_size": 2}
    spread = llm_arguments(context(adapter, 4, "cuda"), options(tensor_parallel_size=2))
    assert spread["disable_custom_all_reduce"] is True
    assert "disable_custom_all_reduce" not in llm_arguments(context(adapter, 4, "cuda"), options())


@pytest.mark.parametrize("name", ["distributed_executor_backend", "data_parallel_size"])
def test_arguments_that_the_ranks_decide_are_refused_there_alone(adapter: Any, name: str) -> None:
    given = options(engine_args={name: 1})
    with pytest.raises(RequestError, match=f"engine_args.{name} is refused in a worker group"):
        llm_arguments(context(adapter, 2), given)
    assert llm_arguments(context(adapter, 0), given)[name] == 1


def test_engines_that_do_not_fill_the_group_are_refused(adapter: Any) -> None:
    with pytest.raises(RequestError, match="engines of 4 neighbouring workers don't fill a group of 6"):
        VLLMEngine(context(adapter, 6), options(tensor_parallel_size=2, engine_args={"pipeline_parallel_size": 2}), llm=object())


def test_other_neighbours_than_those_with_the_same_prompts_are_an_error() -> None:
    check_neighbours(2, 3, [[2, 3], [3]])
    check_neighbours(4, 5, [[4, 5], [5, 7]])
    with pytest.raises(Evr1Error, match="joined ranks 1, 3 to one engine, evr1 ranks 2 to 3"):
        check_neighbours(2, 3, [[1, 3]])


class NotingLLM:
    """`vllm.LLM` as far as an update uses it."""

    def __init__(self) -> None:
        self.given: Any = None
        engine = SimpleNamespace(reset_encoder_cache=list, reset_mm_cache=list, reset_prefix_cache=lambda: True)
        self.llm_engine = engine

    def collective_rpc(self, method: Any, args: tuple[Any, ...]) -> list[LoadReport]:
        self.given = args[0]
        return [LoadReport((), ())]


@pytest.mark.parametrize(
    ("ranks", "width", "streamed", "per_engine"), [(0, 1, True, 1), (0, 2, False, 1), (4, 2, True, 2), (4, 1, True, 1)]
)
def test_the_worker_of_a_rank_takes_weights_one_at_a_time(adapter: Any, ranks: int, width: int, streamed: bool, per_engine: int) -> None:
    """Only workers in other processes, of an engine that is not in a rank, are sent a list."""
    llm = NotingLLM()
    engine = VLLMEngine(context(adapter, ranks), options(tensor_parallel_size=width), llm)
    engine.load_weights(iter([("a", torch.zeros(1))]), 1)
    assert isinstance(llm.given, list) is not streamed and engine.weight_version == 1
    assert ranks_per_engine(engine) == per_engine


def test_weights_are_gathered_to_the_end_where_an_engine_takes_no_more() -> None:
    """The other ranks gather all: they must not wait for this one."""
    gathered: list[str] = []

    def gathering() -> Iterator[tuple[str, Tensor]]:
        for name in "abcde":
            gathered.append(name)
            yield name, torch.zeros(1)

    class Picky:
        weight_version = 0

        def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
            for name, _ in weights:
                if name == "b":
                    raise Evr1Error("b is unknown")

    engine: Any = Picky()
    with pytest.raises(Evr1Error, match="b is unknown"):
        update_engine(engine, gathering(), 1)
    assert gathered == list("abcde")


def test_the_hf_engine_does_not_run_a_module_that_is_spread_over_ranks(adapter: Any) -> None:
    shared = EngineContext(adapter, "float32", "cpu", 100, 10, 0, model=object(), ranks=2)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="can't run a module that is spread over ranks"):
        HFEngine(shared, HFOptions.model_validate({}))
