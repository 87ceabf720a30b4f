"""Small scenes with one fact to ask about: frames of 64 x 64 pixels, and the fact.

Everything of a scene follows from its generator, so a split is a seed. Colours, sizes, places, background and noise vary;
the fact is drawn evenly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

SIDE = 64
"""Pixels of both sides of a frame."""
FRAMES, FPS = 8, 4
"""A clip lasts 2 seconds."""
COLOURS = {"red": (215, 45, 45), "green": (45, 195, 60), "blue": (60, 80, 230), "yellow": (225, 215, 60)}
DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
COUNTS = ("one", "two", "three", "four")


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """What a question is about."""

    kind: str
    question: str
    choices: tuple[str, ...]
    answer: str
    frames: np.ndarray
    """uint8 [T, 64, 64, 3]; one frame for a picture."""

    @property
    def medium(self) -> str:
        return "image" if len(self.frames) == 1 else "video"


def colour(rng: np.random.Generator) -> Scene:
    """A picture of one shape."""
    name = _pick(rng, tuple(COLOURS))
    shape = _Shape.draw(rng)
    frames = _background(rng, 1)
    shape.paint(frames[0], shape.place(rng), _tint(rng, name))
    return Scene("colour", "What colour is the shape?", tuple(COLOURS), name, _finish(rng, frames))


def direction(rng: np.random.Generator) -> Scene:
    """A shape crosses the frame in a straight line: no single frame tells which way."""
    name = _pick(rng, tuple(DIRECTIONS))
    shape, tint = _Shape.draw(rng), _tint(rng, _pick(rng, tuple(COLOURS)))
    way = np.array(DIRECTIONS[name])
    step = rng.uniform(4.0, 5.4)
    path = step * (FRAMES - 1)
    centre = np.where(way != 0, SIDE / 2 + rng.uniform(-3, 3, 2), shape.place(rng))
    frames = _background(rng, FRAMES)
    for index in range(FRAMES):
        shape.paint(frames[index], centre + way * (index * step - path / 2), tint)
    return Scene("direction", "Which way does the shape move?", tuple(DIRECTIONS), name, _finish(rng, frames))


def order(rng: np.random.Generator) -> Scene:
    """Two shapes one after the other, and the question is for the colour of the first or of the last."""
    first, last = (tuple(COLOURS)[i] for i in rng.permutation(len(COLOURS))[:2])
    asked = _pick(rng, ("first", "last"))
    turn = int(rng.integers(3, 6))
    frames = _background(rng, FRAMES)
    for name, part in ((first, frames[:turn]), (last, frames[turn:])):
        shape, tint = _Shape.draw(rng), _tint(rng, name)
        place = shape.place(rng)
        for frame in part:
            shape.paint(frame, place, tint)
    answer = first if asked == "first" else last
    return Scene("order", f"Which colour comes {asked}?", tuple(COLOURS), answer, _finish(rng, frames))


def count(rng: np.random.Generator) -> Scene:
    """The whole picture lights up for one frame, one to four times."""
    name = _pick(rng, COUNTS)
    number = COUNTS.index(name) + 1
    # `number` frames with at least one dark frame between two of them.
    gaps = np.sort(rng.permutation(FRAMES - number + 1)[:number])
    lit = [int(gap) + index for index, gap in enumerate(gaps)]
    frames = _background(rng, FRAMES)
    frames[lit] = _tint(rng, _pick(rng, tuple(COLOURS)))
    return Scene("count", "How many flashes are there?", COUNTS, name, _finish(rng, frames))


KINDS: dict[str, Callable[[np.random.Generator], Scene]] = {"colour": colour, "direction": direction, "order": order, "count": count}
TIMED = ("direction", "order", "count")
"""Kinds that no single frame answers."""


@dataclass(frozen=True, slots=True)
class _Shape:
    round: bool
    size: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> _Shape:
        return cls(bool(rng.integers(2)), float(rng.uniform(18, 26)))

    def place(self, rng: np.random.Generator) -> np.ndarray:
        """A centre (row, column) that keeps the whole shape in the frame."""
        return rng.uniform(self.size / 2 + 1, SIDE - self.size / 2 - 1, 2)

    def paint(self, frame: np.ndarray, centre: np.ndarray, tint: np.ndarray) -> None:
        rows, columns = np.mgrid[0:SIDE, 0:SIDE] + 0.5
        down, across = np.abs(rows - centre[0]), np.abs(columns - centre[1])
        distance = np.hypot(down, across) if self.round else np.maximum(down, across)
        frame[distance <= self.size / 2] = tint


def _pick(rng: np.random.Generator, names: tuple[str, ...]) -> str:
    return names[int(rng.integers(len(names)))]


def _tint(rng: np.random.Generator, name: str) -> np.ndarray:
    return np.array(COLOURS[name]) + rng.uniform(-25, 25, 3)


def _background(rng: np.random.Generator, frames: int) -> np.ndarray:
    """Dark, tinted, one for the whole clip: float [T, 64, 64, 3]."""
    return np.broadcast_to(rng.uniform(10, 70, 3), (frames, SIDE, SIDE, 3)).copy()


def _finish(rng: np.random.Generator, frames: np.ndarray) -> np.ndarray:
    """Noise that stays the same over the clip, and the change to bytes."""
    noise = rng.normal(0, 6, (1, SIDE, SIDE, 3))
    return np.clip(np.rint(frames + noise), 0, 255).astype(np.uint8)
