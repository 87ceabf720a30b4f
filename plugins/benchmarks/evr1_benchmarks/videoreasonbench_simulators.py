"""The six demonstrations of VideoReasonBench as pure functions: what a state becomes by operations, and whether they reach a target.

Facts from github.com/llyx97/video_reason_bench, `utils/eval_utils.py`, checked on the recorded transitions of its questions.
A `Task` is plain data, so that it is kept with results and scored again:

    demo    start                      target               place
    hrd     board, 0 is the hole       board
    grid    board of 0 and 1 (black)   board                             coord: x, y of the red circle
    cup     board of 0 and 1 (coin)    board
    file    path -> names              names                path
    card    pile -> cards, bottom first cards, top first    pile
    chip    cup -> values              values               cup

Boards are lists of rows. Nothing of an answer is evaluated; every pattern is linear in the length of the text.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Board = list[list[int]]
Task = Mapping[str, Any]
DEMOS = ("hrd", "grid", "cup", "file_sys", "card", "chip")
CHIPS = (5, 10, 20, 50, 100)

_MOVE = re.compile(r"\b(left|right|up|down)(?:wards?)?\b", re.IGNORECASE)
_CELL = r"[(`'\"]{0,3}([a-e][1-5])[`'\"]{0,2}"
_SWAP = re.compile(rf"{_CELL}\s{{0,4}}(?:,|and\b|with\b|to\b|<?-{{1,2}}>|[↔⇄→])\s{{0,4}}{_CELL}", re.IGNORECASE)
_COMMAND = re.compile(r"\b(?:touch|rm|cp|mv)\b[^&;`\n]*")
_BRACES = re.compile(r"\{([^{}]+)\}")
_CARD = r"(?:ace|[2-9]|10|jack|queen|king) of (?:hearts|clubs|diamonds|spades)"
_CARD_ACTION = re.compile(rf"\b(add|remove)\s{{1,4}}(?:the\s{{1,4}})?({_CARD})\s{{1,4}}(?:to|from)\s{{1,4}}`?(pile\d)", re.IGNORECASE)
_CHIP_ACTION = re.compile(
    r"\b(add|remove)\s{1,4}(?:an?\s{1,4})?(?:chip\s{1,4})?(\d{1,6})\s{1,4}(?:chip\s{1,4})?(?:(?:to|from)\s{1,4})?`?(cup\d)", re.IGNORECASE
)
_TARGET = {
    "hrd": r"the desired number arrangement:\s*`([^`]+)`",
    "grid": r"the desired arrangement of black and white pieces:\s*`([^`]+)`",
    "cup": r"the desired distribution of coins:\s*`([^`]+)`",
    "file_sys": r"to ensure that\s*`([^`]+)` contains exactly the following files:\s*`([^`]+)`",
    "card": r"to ensure that\s*`([^`]+)` contains exactly the following cards from top to bottom:\s*`([^`]+)`",
    "chip": r"to ensure that\s*`([^`]+)` contains exactly the following chips:\s*`([^`]+)`",
}


def asks_for_operations(question: str) -> bool:
    """Whether a question gives a target that operations shall reach."""
    return any(re.search(pattern, question) for pattern in _TARGET.values())


def task(demo: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """The task of a `prediction_operation` row. Raises ValueError where question and states have another form.

    What is visible at the start of the video is asked about its end, and the other way round.
    """
    found = re.search(_TARGET[demo], row["question"])
    if found is None:
        raise ValueError("the question gives no target state")
    at = 0 if row["visible_time"] == "end" else -1
    states = row["states"]
    if demo in ("hrd", "grid", "cup"):
        start: Any = states[at]
        made = {"demo": demo, "start": start, "target": _board(demo, found.group(1), len(start))}
        return {**made, "coord": list(row["coords"][at])} if demo == "grid" else made
    # Files have a mapping from the last command to the state, in order.
    ends = {place: list(entries.values() if isinstance(entries, Mapping) else entries)[at] for place, entries in states.items()}
    place, listed = found.groups()
    if place not in ends:
        raise ValueError(f"the question is about {place!r}, states are given for {', '.join(ends)}")
    names = listed.split(", ")
    return {"demo": demo, "start": ends, "target": [int(name) for name in names] if demo == "chip" else names, "place": place}


def _board(demo: str, listed: str, size: int) -> Board:
    """The board of `(a,1): 5, (a,2): 0`, `(a,0): black`, or `a1, b2` (coins). For hrd letter a is the last row of the list."""
    board = [[0] * size for _ in range(size)]
    for entry in listed.split(", "):
        cell, _, content = entry.partition(": ")
        letter, digit = re.fullmatch(r"\(?([a-e]),?(\d)\)?", cell).groups()  # type: ignore[union-attr]
        row, column = "abcde".index(letter), int(digit)
        if demo == "hrd":
            board[size - 1 - row][column - 1] = int(content)
        elif demo == "grid":
            board[row][column] = int(content == "black")
        else:
            board[row][column - 1] = 1
    return board


def slide(board: Board, move: str) -> bool:
    """One move of a tile into the hole, in place; False where there is no tile. List row 0 is drawn at the bottom."""
    row, column = next((r, c) for r, line in enumerate(board) for c, value in enumerate(line) if value == 0)
    down, right = {"up": (-1, 0), "down": (1, 0), "left": (0, 1), "right": (0, -1)}[move]
    other, beside = row + down, column + right
    if not (0 <= other < len(board) and 0 <= beside < len(board)):
        return False
    board[row][column], board[other][beside] = board[other][beside], board[row][column]
    return True


def walk(board: Board, coord: list[int], move: str) -> bool:
    """One move of the red circle (x, y), in place: its new cell and the cells beside it are turned; False at the edge."""
    right, down = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}[move]
    x, y = coord[0] + right, coord[1] + down
    size = len(board)
    if not (0 <= x < size and 0 <= y < size):
        return False
    for column, row in ((x, y), (x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1)):
        if 0 <= column < size and 0 <= row < size:
            board[row][column] = 1 - board[row][column]
    coord[:] = [x, y]
    return True


def swap(board: Board, one: Sequence[int], other: Sequence[int]) -> bool:
    """Two cups (row, column) change places, in place; False where one is not on the board."""
    if not all(0 <= index < len(board) for index in (*one, *other)):
        return False
    (a, b), (c, d) = one, other
    board[a][b], board[c][d] = board[c][d], board[a][b]
    return True


def deal(pile: list[str], action: str, card: str) -> bool:
    """A card is added on top, the end of the list, or removed from the bottom; False where another card is there."""
    if action == "add":
        pile.append(card)
        return True
    if not pile or pile[0] != card:
        return False
    pile.pop(0)
    return True


def stake(cup: list[int], action: str, chip: int) -> bool:
    """A chip is added or removed; False for a value that isn't one, and for one that isn't there."""
    if chip not in CHIPS or (action == "remove" and chip not in cup):
        return False
    cup.append(chip) if action == "add" else cup.remove(chip)
    return True


def reached(given: Task, text: str, as_published: bool = False) -> bool | None:
    """Whether the operations of an answer lead from the start to the target; None where the text has no operations.

    `as_published`: card targets, which questions give from top to bottom, are compared with piles from bottom to top, as the authors'
    script does; answers that are right are wrong then.
    """
    result = _SIMULATORS[given["demo"]](given, text)
    if result is None or given["demo"] != "card":
        return None if result is None else result is not False and _same(given, result)
    return result is not False and result == (given["target"] if as_published else given["target"][::-1])


def _same(given: Task, result: Any) -> bool:
    if given["demo"] == "chip":
        return Counter(result) == Counter(given["target"])
    return set(result) == set(given["target"]) if given["demo"] == "file_sys" else result == given["target"]


def _hrd(given: Task, text: str) -> Any:
    """Moves that aren't possible are skipped."""
    board, moves = copy.deepcopy(given["start"]), _MOVE.findall(text)
    for move in moves:
        slide(board, move.lower())
    return board if moves else None


def _grid(given: Task, text: str) -> Any:
    """Moves beyond the edge are skipped."""
    board, coord, moves = copy.deepcopy(given["start"]), list(given["coord"]), _MOVE.findall(text)
    for move in moves:
        walk(board, coord, move.lower())
    return board if moves else None


def _cup(given: Task, text: str) -> Any:
    """Swaps with a cell beyond the board are skipped."""
    board, swaps = copy.deepcopy(given["start"]), _SWAP.findall(text)
    for cells in swaps:
        one, other = (("abcde".index(cell[0].lower()), int(cell[1]) - 1) for cell in cells)
        swap(board, one, other)
    return board if swaps else None


def _files(given: Task, text: str) -> Any:
    """At most two commands, `touch` and `rm -rf` with names in braces, none of which is in both."""
    commands = [command.strip() for command in _COMMAND.findall(text) if "path" in command or "{" in command]  # others name a command only
    if not commands:
        return None
    held = {path: set(names) for path, names in given["start"].items()}
    named: dict[str, set[str]] = {}
    for command in commands:
        kind = next((kind for kind in ("touch", "rm -rf") if command.startswith(kind)), None)
        braces, path = _BRACES.search(command), re.search(r"path\d+", command)
        if kind is None or braces is None or path is None or path.group() not in held:
            return False
        named[kind] = set(braces.group(1).split(","))
        held[path.group()] = held[path.group()] | named[kind] if kind == "touch" else held[path.group()] - named[kind]
    if len(commands) > 2 or named.get("touch", set()) & named.get("rm -rf", set()):
        return False
    return held[given["place"]]


def _cards(given: Task, text: str) -> Any:
    """A card that can't be removed makes the answer wrong."""
    piles, actions = copy.deepcopy(given["start"]), _CARD_ACTION.findall(text)
    for action, card, pile in actions:
        value, _, suit = card.partition(" ")
        name = f"{value.capitalize()} of {suit.split()[-1].capitalize()}"
        if pile.lower() not in piles or not deal(piles[pile.lower()], action.lower(), name):
            return False
    return piles[given["place"]] if actions else None


def _chips(given: Task, text: str) -> Any:
    """A chip that can't be removed makes the answer wrong."""
    cups, actions = copy.deepcopy(given["start"]), _CHIP_ACTION.findall(text)
    for action, chip, cup in actions:
        if cup.lower() not in cups or not stake(cups[cup.lower()], action.lower(), int(chip)):
            return False
    return cups[given["place"]] if actions else None


_SIMULATORS: Mapping[str, Callable[[Task, str], Any]] = {
    "hrd": _hrd,
    "grid": _grid,
    "cup": _cup,
    "file_sys": _files,
    "card": _cards,
    "chip": _chips,
}
"""Each gives the state that an answer leads to, False where it breaks a rule, None where it has no operations."""
