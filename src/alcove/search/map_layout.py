"""A picture of memories by meaning: where each lies in a plane, so that what is alike lies close.

Two directions of 384 show little. So each text is tied to the few that are nearest to it by all of them; from
the two directions in which texts differ most, ties pull them together while any two push each other away.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix
from alcove.search.text_vectors import window_vectors

NEIGHBOURS = 12
DIRECTIONS = 32
"""In which likeness is measured: those in which texts differ most."""
ROUNDS = 120
STRANGERS = 12
"""Texts by which each is pushed away in a round, at random but always the same."""
AT_ONCE = 1000


def positions(bodies: Sequence[bytes]) -> list[tuple[float, float]]:
    """Where each text lies, from its kept vectors; both ways between 0 and 1."""
    middles = [_middle(body) for body in bodies]
    sizes = {len(each) for each in middles}
    if len(middles) < 3 or len(sizes) != 1:
        return [((n + 1) / (len(middles) + 1), 0.5) for n in range(len(middles))]
    directions = _main_directions(np.stack(middles))
    placed = _settled(_spread(directions[:, :2]), _nearest(directions))
    return [(float(x), float(y)) for x, y in _spread(placed)]


def _middle(body: bytes) -> Matrix:
    rows = [np.frombuffer(row, dtype=np.float32) for row in window_vectors(body)]
    middle: Matrix = np.mean(rows, axis=0) if rows else np.zeros(1, dtype=np.float32)
    return middle


def _main_directions(vectors: Matrix) -> Matrix:
    """Each vector by the directions in which all of them differ most."""
    centred = vectors - vectors.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    along: Matrix = centred @ axes[:, ::-1][:, :DIRECTIONS]
    return along


def _nearest(points: Matrix) -> NDArray[np.intp]:
    """The nearest others of each: a few, so that of few texts not all are tied to all."""
    count, squares = min(NEIGHBOURS, max(2, len(points) // 5)), (points**2).sum(axis=1)
    found = []
    for start in range(0, len(points), AT_ONCE):
        some = points[start : start + AT_ONCE]
        apart = squares - 2 * (some @ points.T)
        apart[np.arange(len(some)), np.arange(start, start + len(some))] = np.inf
        found.append(np.argpartition(apart, count - 1, axis=1)[:, :count])
    return np.concatenate(found)


def _settled(places: Matrix, near: NDArray[np.intp]) -> Matrix:
    chance = np.random.default_rng(0)
    size = np.float32(1 / np.sqrt(len(places)))
    for turn in range(ROUNDS):
        step = np.float32(0.5 * (1 - turn / ROUNDS))
        pulled = places[near].mean(axis=1) - places
        apart = places[:, None] - places[chance.integers(0, len(places), (len(places), STRANGERS))]
        push = apart / ((apart**2).sum(axis=2, keepdims=True) + size**2)
        places = places + step * (pulled + size * size * push.sum(axis=1))
    return places


def _spread(places: Matrix) -> Matrix:
    """The same with both ways from 0 to 1, a few that lie far out at the edge."""
    low, high = np.quantile(places, [0.01, 0.99], axis=0)
    scaled: Matrix = np.clip((places - low) / np.maximum(high - low, 1e-9), -0.05, 1.05)
    return ((scaled + 0.05) / 1.1).astype(np.float32)
