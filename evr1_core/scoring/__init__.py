"""One scoring library for training rewards and evaluation: the same function, the same numbers.

A reward needs `Answer`, `Reward`, `Unparsed`, `InvalidGold` and `ScoringFailed` from here, and the readers of
`evr1_core.scoring.text`. `Scorer` (score.py) applies rewards in this process, `ScoringPool` (pool.py) in worker
processes with deadlines.
"""

from evr1_core.scoring.reward import Answer, InvalidGold, JudgeNeeded, Reward, ScoringFailed, Unparsed

__all__ = ["Answer", "InvalidGold", "JudgeNeeded", "Reward", "ScoringFailed", "Unparsed"]
