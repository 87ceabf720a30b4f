"""Built-in algorithms."""

from __future__ import annotations

from evr1_core.hookspecs import hookimpl
from evr1_core.specs import AlgorithmSpec

SUMMARIES = {
    "grpo": ("group-relative advantages, clipped ratio", "arXiv:2402.03300"),
    "dr_grpo": ("GRPO without division by std and length", "arXiv:2503.20783"),
    "dapo": ("GRPO with clip-higher, token-level loss and dynamic sampling", "arXiv:2503.14476"),
    "gspo": ("one length-normalised ratio per answer", "arXiv:2507.18071"),
    "gspo_token": ("GSPO's ratio with an advantage per token", "arXiv:2507.18071"),
    "cispo": ("clipped weight without gradient times log-probability", "arXiv:2506.13585"),
    "sapo": ("smooth sigmoid gate in place of the clip", "arXiv:2511.20347"),
    "reinforce": ("mean reward of the step as baseline, no ratio", "doi:10.1007/BF00992696"),
    "reinforce_pp": ("returns normalised over all tokens of the step", "arXiv:2501.03262"),
    "reinforce_pp_baseline": ("group mean as baseline, then normalised over the step", "arXiv:2501.03262"),
    "remax": ("reward of the greedy answer as baseline", "arXiv:2310.10505"),
    "rloo": ("mean reward of the other answers as baseline", "arXiv:2402.14740"),
    "gdpo": ("every part of the reward normalised by itself", "arXiv:2601.05242"),
    "luffy": ("teachers' answers in the group, with policy shaping", "arXiv:2504.14945"),
    "ema_grpo": ("GRPO divided by the moving std of the task", "arXiv:2512.03043"),
    "ppo": ("clipped ratio; its advantage (GAE) needs a critic", "arXiv:1707.06347"),
}


@hookimpl
def evr1_algorithms() -> list[AlgorithmSpec]:
    return [
        AlgorithmSpec(
            name=name,
            advantage=f"evr1_algorithms.{name}:advantage",
            loss=f"evr1_algorithms.{name}:loss",
            config=f"evr1_algorithms.{name}:Options",
            summary=summary,
            paper=paper,
        )
        for name, (summary, paper) in SUMMARIES.items()
    ]
