"""ReMax (arXiv 2310.10505, section 4): the reward of the greedy answer to the same prompt is the baseline.

    G_it = r_it + gamma G_i,t+                           r_it: R_i on the last token, less the KL penalty of each token
    A_it = G_it - R(greedy answer)

One greedy answer more per prompt is drawn (`greedy_baseline`); no group is needed, `rollout.n` may be 1. The loss is PPO's,
which on the first update of a step has the gradient of the paper's; that one is `algorithm.loss: reinforce`. An answer whose
baseline failed to be scored gets 0.
"""

from __future__ import annotations

from pydantic import Field

from evr1_algorithms import ppo
from evr1_algorithms.pieces import ClipOptions, discounted
from evr1_core.errors import RequestError
from evr1_core.train.algorithm import Credit, RewardBatch


class Options(ClipOptions):
    """Options of ReMax."""

    greedy_baseline: bool = True
    """Draw one greedy answer more per prompt, score it and give its value to the advantage; it is not trained on."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount per token."""


def advantage(batch: RewardBatch, options: Options) -> Credit:
    if batch.baselines is None:
        raise RequestError("remax needs the value of a greedy answer per prompt: leave algorithm.greedy_baseline on")
    returns = discounted(batch.token_rewards(), batch.mask, options.gamma)
    known = ~(batch.rewards.isnan() | batch.baselines.isnan())
    made = (returns - batch.baselines.double()[:, None]).masked_fill_(~(batch.mask & known[:, None]), 0.0)
    return Credit(made, {"returns": returns})


loss = ppo.loss
