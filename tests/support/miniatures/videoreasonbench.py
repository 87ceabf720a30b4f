"""VideoReasonBench: a JSON object for each of the six demonstrations, with a question in words and one for operations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.miniatures import clip

END = "\n\nProvide a summary of the final answer after 'Final Answer:'"
TASKS: dict[str, dict[str, Any]] = {
    "hrd": {
        "num_state": 3,
        "question": "Which moves lead to the desired number arrangement: "
        "`(a,1): 1, (a,2): 2, (a,3): 3, (b,1): 4, (b,2): 0, (b,3): 5, (c,1): 6, (c,2): 7, (c,3): 8`?",
        "moves": ["up"],
        "states": [[[6, 0, 8], [4, 7, 5], [1, 2, 3]], [[6, 7, 8], [4, 5, 0], [1, 2, 3]]],
        "right": "right",
        "wrong": "left",
    },
    "grid": {
        "num_state": 3,
        "question": "Which moves lead to the desired arrangement of black and white pieces: "
        "`(a,0): white, (a,1): black, (a,2): white, (b,0): black, (b,1): black, (b,2): black, (c,0): white, (c,1): black, (c,2): white`?",
        "moves": ["x-1"],
        "coords": [[2, 1], [0, 1]],
        "states": [[[0, 0, 0], [0, 0, 0], [0, 0, 0]], [[0, 0, 0], [0, 0, 0], [0, 0, 0]]],
        "right": "right",
        "wrong": "up",
    },
    "cup": {
        "num_state": 3,
        "question": "Which swaps lead to the desired distribution of coins: `a1, c3`?",
        "moves": [[[0, 0], [0, 1]]],
        "states": [[[0, 1, 0], [0, 0, 0], [0, 0, 1]], [[0, 0, 0], [0, 1, 0], [0, 0, 1]]],
        "right": "(b2, a1)",
        "wrong": "(b2, c3)",
    },
    "file_sys": {
        "num_state": 1,
        "question": "to ensure that `path0` contains exactly the following files: `a.txt, c.py`, what should be run?",
        "commands": ["touch path0/{b.csv}"],
        "states": {"path0": {"init": ["a.txt"], "touch path0/{b.csv}": ["a.txt", "b.csv"]}},
        "right": "touch path0/{c.py} & rm -rf path0/{b.csv}",
        "wrong": "touch path0/{c.py}",
    },
    "card": {
        "num_state": 1,
        "question": "to ensure that `pile0` contains exactly the following cards from top to bottom: "
        "`Ace of Hearts, 10 of Clubs, 3 of Spades`, what should be done?",
        "actions": ["add 10 of Clubs to pile0"],
        "states": {"pile0": [["2 of Clubs", "3 of Spades"], ["2 of Clubs", "3 of Spades", "10 of Clubs"]]},
        "right": "remove 2 of Clubs from pile0, add Ace of Hearts to pile0",
        "wrong": "remove 3 of Spades from pile0",
    },
    "chip": {
        "num_state": 1,
        "question": "to ensure that `cup0` contains exactly the following chips: `5, 20, 100` (order does not matter), what is to be done?",
        "actions": ["add 50 to cup0"],
        "states": {"cup0": [[5, 100], [5, 100, 50]]},
        "right": "remove 50 from cup0, add 20 to cup0",
        "wrong": "add 20 to cup0",
    },
}
"""Of each: the question for operations from the state at the end of the video, an answer that is right and one that isn't."""


def make(root: Path) -> int:
    (root / "questions").mkdir(parents=True)
    for demo, task in TASKS.items():
        size, video = task["num_state"], f"videos/{demo}/state{task['num_state']}_op5_start.mp4"
        clip(root / video)
        common = {"video": video, "visible_time": "start", "num_state": size, "num_operation": 5}
        common |= {key: value for key, value in task.items() if key not in ("question", "right", "wrong")}
        rows = {
            f"state{size}_op5_order_operation_start": {
                **common,
                "dim": "order_operation",
                "question": f"What happened first?{END}",
                "answer": "None" if demo == "chip" else f"1st: {task['right']}\n2nd: nothing",
            },
            f"state{size}_op5_prediction_operation_start": {
                **common,
                "dim": "prediction_operation",
                "question": task["question"] + END,
                "answer": None,
            },
        }
        (root / "questions" / f"{demo}.json").write_text(json.dumps(rows), encoding="utf-8")
    return 2 * len(TASKS)
