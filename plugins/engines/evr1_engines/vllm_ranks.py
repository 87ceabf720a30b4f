"""vLLM in a rank of a torch.distributed world that belongs to the trainer (vLLM's `external_launcher`).

Each rank holds one worker of vLLM with a scheduler of its own. Ranks e w to e w + w - 1 form engine e, w being its stages times its
tensor parallel size (`initialize_model_parallel` reads the world as [engine, pipeline stage, tensor rank]). Given the same
requests in the same order their schedulers decide the same, so that the workers meet in every collective and each rank has all
answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from evr1_core.errors import Evr1Error


@contextmanager
def prepare_rank(device: str) -> Iterator[None]:
    """Around the making of `vllm.LLM`, which asks the environment for its rank. All ranks enter it together."""
    import torch
    import torch.distributed as dist

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["RANK"] = str(dist.get_rank())
    os.environ["LOCAL_RANK"] = str(torch.cuda.current_device()) if device == "cuda" else "0"
    if device == "cuda":
        yield
        return
    # On CPUs the workers of one engine meet in shared memory under a name that vLLM takes from the address of the rendezvous. With an
    # external launcher that is `env://` everywhere: two runs that start on one machine at a time would meet in one memory.
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    name = torch.randint(2**62, (1,), generator=torch.Generator().manual_seed(int.from_bytes(os.urandom(7))))
    dist.broadcast(name, src=0)
    address = f"tcp://evr1:{name.item()}"
    own = ExecutorWithExternalLauncher._distributed_args
    ExecutorWithExternalLauncher._distributed_args = lambda self: (address, *own(self)[1:])
    try:
        yield
    finally:
        ExecutorWithExternalLauncher._distributed_args = own


def check_neighbours(width: int, rank: int, groups: Iterable[Sequence[int]]) -> None:
    """Raises Evr1Error where the engine of `rank` is another one than its `width` neighbours, to whom its prompts are given.

    `groups`: ranks of the process groups that vLLM made.
    """
    first = rank - rank % width
    for ranks in groups:
        if not set(ranks) <= set(range(first, first + width)):
            raise Evr1Error(
                f"vLLM joined ranks {', '.join(map(str, ranks))} to one engine, evr1 ranks {first} to {first + width - 1}: "
                "this vLLM numbers them in another way than the supported versions (docs/engines.md)"
            )


def own_groups() -> list[list[int]]:
    """Ranks with which this one shares the layers of its engine, and its stages."""
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    return [list(get_tp_group().ranks), list(get_pp_group().ranks)]


@contextmanager
def own_groups_end() -> Iterator[None]:
    """Within it, an engine that shuts down ends the process groups that vLLM made, and not the world, as it does else."""
    from vllm.distributed import parallel_state
    from vllm.v1.engine import core as module

    def end_own_groups() -> None:
        parallel_state.destroy_model_parallel()
        world: Any = parallel_state._WORLD
        if world is not None:
            world.destroy()
            parallel_state._WORLD = None

    core: Any = module
    whole = core.cleanup_dist_env_and_memory
    core.cleanup_dist_env_and_memory = end_own_groups
    try:
        yield
    finally:
        core.cleanup_dist_env_and_memory = whole
