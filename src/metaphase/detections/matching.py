"""One-to-one matching of detections with truth within a radius.

Both methods mark each detection as matched or not such that, for *every* threshold, the number of matched
detections at or above it is the number of matches among those detections alone. One pass serves all:

* greedy: detections in order of falling probability take the nearest free truth, for good;
* optimal: the sets of detections that can be matched form a matroid, hence the one of most weight, whatever
  the weights that fall in the same order, is the largest possible at each threshold. Of its matchings, that
  of least total distance is taken.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy

from metaphase.base.arrays import AnyFloats, Floats, Integers, Points

Method = Literal["greedy", "optimal"]
NOBODY = -1


Pairs = npt.NDArray[Any]
"""All (detection, truth) pairs within the radius, as rows of detection `i`, truth `j` and distance `v`."""
NO_PAIRS = np.zeros(0, [("i", np.int64), ("j", np.int64), ("v", np.float64)])


def match(
    detections: Points,
    probability: Floats,
    truths: Points,
    radius: float,
    method: Method = "greedy",
) -> Integers:
    """The truth matched to each detection, or -1, at most `radius` away (in the unit of the points)."""
    pairs = pairs_within(detections, truths, radius)
    if method == "greedy":
        return _greedy(pairs, probability, len(truths))
    order = np.argsort(-probability, kind="stable")
    weight = np.empty(len(order))
    weight[order] = np.arange(len(order), 0, -1)
    counted = _assigned(pairs, -weight[pairs["i"]], len(probability)) != NOBODY
    pairs = pairs[counted[pairs["i"]]]
    return _assigned(pairs, pairs["v"], len(probability))


def pairs_within(detections: Points, truths: Points, radius: float) -> Pairs:
    """Every detection and truth at most `radius` apart."""
    if not len(detections) or not len(truths):
        return NO_PAIRS
    near, tree = scipy.spatial.cKDTree(truths), scipy.spatial.cKDTree(detections)
    return np.asarray(tree.sparse_distance_matrix(near, radius, output_type="ndarray"))


def _greedy(pairs: Pairs, probability: Floats, truth_count: int) -> Integers:
    """Equal probabilities are settled by distance, so that the order of rows does not matter."""
    matched = np.full(len(probability), NOBODY, np.int64)
    free = [True] * truth_count
    order = np.lexsort((pairs["j"], pairs["i"], pairs["v"], -probability[pairs["i"]]))
    for detection, truth in zip(pairs["i"][order].tolist(), pairs["j"][order].tolist(), strict=True):
        if free[truth] and matched[detection] == NOBODY:
            matched[detection] = truth
            free[truth] = False
    return matched


def _assigned(pairs: Pairs, cost: Floats, detection_count: int) -> Integers:
    """The truth of each detection, or -1: as many pairs as possible, of these the ones of least total cost.

    Each component of the graph is done by itself.
    """
    matched = np.full(detection_count, NOBODY, np.int64)
    if not len(pairs):
        return matched
    size = detection_count + int(pairs["j"].max()) + 1
    graph = scipy.sparse.coo_array(
        (np.ones(len(pairs)), (pairs["i"], detection_count + pairs["j"])), (size, size)
    )
    component = scipy.sparse.csgraph.connected_components(graph, directed=False)[1][pairs["i"]]
    order = np.argsort(component, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(component[order])) + 1):
        rows, row = np.unique(pairs["i"][part], return_inverse=True)
        columns, column = np.unique(pairs["j"][part], return_inverse=True)
        forbidden = 1.0 + 2 * (np.abs(cost[part]).max() + 1) * len(rows)
        table = np.full((len(rows), len(columns)), forbidden)
        table[row, column] = cost[part]
        chosen = scipy.optimize.linear_sum_assignment(table)
        real = table[chosen] < forbidden
        matched[rows[chosen[0][real]]] = columns[chosen[1][real]]
    return matched


# ---- one detection for one thing: touching points joined, double detections suppressed ----
#
# Both are exact whatever the order or tiling of the points.

TOUCHING = 1.5
"""Steps of a lattice: its eight neighbours are nearer to a point than this."""


def components(x: Floats, y: Floats, probability: AnyFloats, step: float) -> tuple[Floats, Floats, AnyFloats]:
    """Points of a square lattice, those that touch at a side or corner as one.

    A component lies in the middle of its points and has the highest of their probabilities.
    """
    if len(x) == 0:
        return x, y, probability
    pairs = scipy.spatial.cKDTree(np.column_stack([x, y])).query_pairs(TOUCHING * step, output_type="ndarray")
    graph = scipy.sparse.coo_array((np.ones(len(pairs), bool), (pairs[:, 0], pairs[:, 1])), (len(x), len(x)))
    count, group = scipy.sparse.csgraph.connected_components(graph, directed=False)
    size = np.bincount(group)
    middle = [np.bincount(group, positions) / size for positions in (x, y)]
    highest = np.zeros(count, probability.dtype)
    np.maximum.at(highest, group, probability)
    return middle[0], middle[1], highest


def suppress(x: Floats, y: Floats, score: Floats, distance: float) -> Integers:
    """Indices of the points that stay, most certain first.

    The result of taking points by falling score (ties: smaller y, then smaller x) and dropping every later
    one nearer than `distance`.
    """
    order = np.lexsort((x, y, -score))
    if distance <= 0 or len(order) == 0:
        return order
    points = np.column_stack([x, y])[order]
    tree, kept = scipy.spatial.cKDTree(points), np.ones(len(order), bool)
    nearest = tree.query(points, k=2)[0][:, 1]
    for number in np.flatnonzero(nearest <= 1.001 * distance):
        if kept[number]:
            near = np.array(tree.query_ball_point(points[number], 1.001 * distance))
            squares = ((points[near] - points[number]) ** 2).sum(axis=1)
            kept[near[(squares < distance**2) & (near != number)]] = False
    return order[kept]
