"""Workers with a fault in their loss, by the number of the update."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from evr1_core.train.algorithm import TokenBatch, TokenLoss, Totals
from evr1_core.train.batch import TrainBatch
from evr1_core.train.messages import Share
from evr1_core.train.update import Outcome
from evr1_core.train.worker import TrainWorker


class OverflowingWorker(TrainWorker):
    """On rank 1 the loss of the first update is infinite, and that of the second one is finite and has a gradient that isn't."""

    updates = 0

    def update(self, share: Share, batch: TrainBatch, totals: Sequence[Totals]) -> Outcome:
        self.updates += 1
        honest = self.algorithm
        if self.rank.rank == 1:
            self.algorithm = replace(honest, loss=functools.partial(overflow, honest.loss, infinite=self.updates == 1))
        try:
            return super().update(share, batch, totals)
        finally:
            self.algorithm = honest


def overflow(honest: Any, batch: TokenBatch, options: Any, infinite: bool) -> TokenLoss:
    found = honest(batch, options)
    if infinite:
        return replace(found, values=found.values + torch.where(batch.mask, torch.inf, 0.0))
    # The root is 0, and infinitely steep.
    return replace(found, values=found.values + (batch.logprobs - batch.logprobs.detach()).sqrt())
