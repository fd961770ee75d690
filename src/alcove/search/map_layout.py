"""Lays out memories on a plane so that those with similar meaning are close together.

Two of 384 dimensions show little. So this is a force-directed layout: it begins with the two directions in
which texts differ most; then each text is pulled to its nearest neighbours by many directions, and pushed
away from random others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix
from alcove.search.text_vectors import window_vectors

NEIGHBOURS = 12
DIRECTIONS = 32
"""Directions in which texts differ most, by which neighbours are found."""
ROUNDS = 120
PUSHES = 12
"""Random texts that push each text away in a round; the same ones in each call."""
BLOCK_ROWS = 1000


def positions(bodies: Sequence[bytes]) -> list[tuple[float, float]]:
    """The coordinates of each text, from 0 to 1, by its stored vectors."""
    means = [_mean_vector(body) for body in bodies]
    sizes = {len(each) for each in means}
    if len(means) < 3 or len(sizes) != 1:
        return [((n + 1) / (len(means) + 1), 0.5) for n in range(len(means))]
    directions = _project(np.stack(means))
    points = _settle(_spread(directions[:, :2]), _nearest(directions))
    return [(float(x), float(y)) for x, y in _spread(points)]


def _mean_vector(body: bytes) -> Matrix:
    rows = [np.frombuffer(row, dtype=np.float32) for row in window_vectors(body)]
    mean: Matrix = np.mean(rows, axis=0) if rows else np.zeros(1, dtype=np.float32)
    return mean


def _project(vectors: Matrix) -> Matrix:
    """Projects vectors to the directions in which they differ most (PCA)."""
    centred = vectors - vectors.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    projected: Matrix = centred @ axes[:, ::-1][:, :DIRECTIONS]
    return projected


def _nearest(points: Matrix) -> NDArray[np.intp]:
    """The nearest neighbours of each point: fewer if there are few points, so that not all are neighbours."""
    count, squares = min(NEIGHBOURS, max(2, len(points) // 5)), (points**2).sum(axis=1)
    neighbours = []
    for start in range(0, len(points), BLOCK_ROWS):
        block = points[start : start + BLOCK_ROWS]
        distances = squares - 2 * (block @ points.T)
        distances[np.arange(len(block)), np.arange(start, start + len(block))] = np.inf
        neighbours.append(np.argpartition(distances, count - 1, axis=1)[:, :count])
    return np.concatenate(neighbours)


def _settle(places: Matrix, neighbours: NDArray[np.intp]) -> Matrix:
    """Pulls points to their neighbours and pushes them away from others, in ever smaller steps."""
    random = np.random.default_rng(0)
    size = np.float32(1 / np.sqrt(len(places)))
    for turn in range(ROUNDS):
        step = np.float32(0.5 * (1 - turn / ROUNDS))
        pull = places[neighbours].mean(axis=1) - places
        offsets = places[:, None] - places[random.integers(0, len(places), (len(places), PUSHES))]
        push = offsets / ((offsets**2).sum(axis=2, keepdims=True) + size**2)
        places = places + step * (pull + size * size * push.sum(axis=1))
    return places


def _spread(places: Matrix) -> Matrix:
    """Scales coordinates to 0 to 1; the few outliers are moved to the edge."""
    low, high = np.quantile(places, [0.01, 0.99], axis=0)
    scaled: Matrix = np.clip((places - low) / np.maximum(high - low, 1e-9), -0.05, 1.05)
    return ((scaled + 0.05) / 1.1).astype(np.float32)
