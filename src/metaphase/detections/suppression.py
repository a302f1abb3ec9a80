"""One detection for one thing: touching points joined, double detections suppressed.

Both are exact whatever the order or tiling of the points.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from metaphase.base.arrays import AnyFloats, Floats, Integers

_REACH = 2
"""Cells of side distance / sqrt(2) that a circle of radius `distance` can reach in each direction."""


TOUCHING = 1.5
"""Steps of a lattice: its eight neighbours are nearer to a point than this."""


def components(x: Floats, y: Floats, probability: AnyFloats, step: float) -> tuple[Floats, Floats, AnyFloats]:
    """Points of a square lattice, those that touch at a side or corner as one.

    A component lies in the middle of its points and has the highest of their probabilities.
    """
    if len(x) == 0:
        return x, y, probability
    pairs = cKDTree(np.column_stack([x, y])).query_pairs(TOUCHING * step, output_type="ndarray")
    graph = coo_array((np.ones(len(pairs), bool), (pairs[:, 0], pairs[:, 1])), (len(x), len(x)))
    count, group = connected_components(graph, directed=False)
    size = np.bincount(group)
    middle = [np.bincount(group, places) / size for places in (x, y)]
    highest = np.zeros(count, probability.dtype)
    np.maximum.at(highest, group, probability)
    return middle[0], middle[1], highest


def suppress(x: Floats, y: Floats, score: Floats, distance: float) -> Integers:
    """Indices of the points that stay, most certain first.

    The result of taking points by falling score (ties: smaller y, then smaller x) and dropping every later
    one nearer than `distance`. Found in rounds over a grid: the best point of a cell stays as soon as it
    beats the best of all cells in reach, and clears its surroundings. Memory is proportional to the points.
    """
    order = np.lexsort((x, y, -score))
    if distance <= 0 or len(order) == 0:
        return order
    px, py = x[order], y[order]
    side = distance / math.sqrt(2)
    columns = np.floor((px - px.min()) / side).astype(np.int64) + _REACH
    rows = np.floor((py - py.min()) / side).astype(np.int64) + _REACH
    width = int(columns.max()) + _REACH + 1
    cells = rows * width + columns
    shifts = [dy * width + dx for dy in range(-_REACH, _REACH + 1) for dx in range(-_REACH, _REACH + 1)]
    alive = np.argsort(cells, kind="stable")  # cell by cell, the best first
    kept = np.zeros(len(order), bool)
    while len(alive):
        winners = _winners(cells, alive, shifts)
        kept[winners] = True
        alive = _survivors(px, py, cells, alive, winners, shifts, distance)
    return order[np.flatnonzero(kept)]


def _winners(cells: Integers, alive: Integers, shifts: list[int]) -> Integers:
    """Of the points alive (cell by cell), those that come before every point of the cells in reach."""
    occupied, first = np.unique(cells[alive], return_index=True)
    best = alive[first]
    wins = np.ones(len(best), bool)
    for shift in shifts:
        place = np.minimum(np.searchsorted(occupied, occupied + shift), len(occupied) - 1)
        wins &= (occupied[place] != occupied + shift) | (best[place] >= best)
    return best[wins]


def _survivors(
    x: Floats,
    y: Floats,
    cells: Integers,
    alive: Integers,
    winners: Integers,
    shifts: list[int],
    distance: float,
) -> Integers:
    """Points that no winner takes away. A cell holds at most one winner: its diagonal is the distance."""
    occupied, home = cells[winners], cells[alive]
    clear = np.ones(len(alive), bool)
    for shift in shifts:
        wanted = home + shift
        place = np.minimum(np.searchsorted(occupied, wanted), len(occupied) - 1)
        found = np.flatnonzero((occupied[place] == wanted) & clear)
        point, near = alive[found], winners[place[found]]
        square = (x[point] - x[near]) ** 2 + (y[point] - y[near]) ** 2
        clear[found] = (square >= distance**2) & (point != near)
    return alive[clear]
