"""Which ranks share their rows: neighbours, as many as `cluster.sequence_parallel` says."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from evr1_core.cluster.rank import Rank
from evr1_core.errors import RequestError
from evr1_core.policy.sequence import SequenceGroup


def check_degree(workers: int, degree: int, packing: bool) -> None:
    """Raises RequestError for a degree of sequence parallelism that the workers or the training rule out."""
    if workers % degree:
        raise RequestError(f"cluster.sequence_parallel: groups of {degree} don't fit {workers} workers; take a divisor of {workers}")
    if degree > 1 and not packing:
        raise RequestError(f"cluster.sequence_parallel={degree} shares out packed rows: it needs train.packing=true")


def sequence_group(rank: Rank, degree: int, packing: bool) -> SequenceGroup | None:
    """The group of this rank, after `rank.join()`; None where every rank has rows of its own. All ranks make this call.

    Raises RequestError as `check_degree` does.
    """
    check_degree(rank.size, degree, packing)
    if degree == 1:
        return None
    # Each rank has a hand in making every group, those of others too.
    limit = timedelta(seconds=rank.timeout)
    groups = [dist.new_group(list(range(first, first + degree)), timeout=limit) for first in range(0, rank.size, degree)]
    own = groups[rank.rank // degree]
    assert isinstance(own, dist.ProcessGroup)
    return SequenceGroup(own, rank.rank % degree, degree)
