"""Results edited in another program: odd classes and shapes, of which none may be lost without a word."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import any_of
from tests.hostile.inputs.sound import ASSETS, SIDE
from tests.hostile.trials import Attempt

SHARE = 4
FIGURES = ("mitotic figure", "mitosis", "Mitosis", "mitotic figure*")
OTHERS = (
    "Necrosis",
    "ignore",
    "Ignore*",
    "mf",
    "MF",
    "apoptosis",
    "Tumor",
    "Stroma: x",
    "",
    "1",
    "lymphocyte",
)
NEAR_PX, SAME_PX = 1.0, 16.0
Point = tuple[float, float]


def make(random: Random, folder: Path) -> Attempt:
    shutil.copytree(ASSETS / any_of(random, "out", "out", "reviewed"), folder / "out")
    edited = json.loads((folder / "out" / "slide" / "detections.geojson").read_text())
    shapes, known = (
        edited["features"],
        [_middle(one["geometry"]["coordinates"][0]) for one in edited["features"]],
    )
    if random.random() < 0.4:
        del shapes[random.randrange(len(shapes))]
    if random.random() < 0.4:
        any_of(random, *shapes)["properties"]["classification"] = {"name": any_of(random, *OTHERS)}
    new: list[tuple[str, Point]] = []
    for _ in range(any_of(random, 1, 1, 2)):
        name = any_of(random, *FIGURES, *OTHERS)
        shape, points = any_of(random, _point, _several, _packed, _close, _line, _hole)(random)
        properties = {"objectType": "annotation", "classification": {"name": name}}
        shapes.append({"type": "Feature", "geometry": shape, "properties": properties})
        new += [(name, point) for point in points]
    (folder / "edited.geojson").write_text(json.dumps(edited))
    command = ("review", "import", "out", "--from", "edited.geojson", "--observer", "Berta")

    def nothing_lost(printed: str) -> str:
        with closing(sqlite3.connect("out/slide/review.sqlite")) as log:
            items = [row[0] for row in log.execute("SELECT item FROM log WHERE answer IS NOT NULL")]
        answered = [tuple(map(float, item.split())) for item in items if item[:1].isdigit()]
        for name, point in new:
            told = (
                (name.rstrip("*").lower() or "class") in printed.lower()
                or "second mark" in printed
                or "region" in printed
            )
            if not (told or _is_near(point, answered, NEAR_PX) or _is_near(point, known, SAME_PX)):
                return f"{name} at {point} is lost"
        return ""

    return Attempt(any_of(random, command, (*command, "--complete")), nothing_lost)


def _middle(ring: list[list[float]]) -> Point:
    return sum(x for x, _ in ring[1:]) / (len(ring) - 1), sum(y for _, y in ring[1:]) / (len(ring) - 1)


def _is_near(point: Point, others: list[Any], most: float) -> bool:
    return any((point[0] - x) ** 2 + (point[1] - y) ** 2 <= most**2 for x, y in others)


def _place(random: Random) -> Point:
    return round(random.uniform(5, SIDE - 20), 1), round(random.uniform(5, SIDE - 20), 1)


def _square(point: Point, half: float = 4) -> list[Any]:
    x, y = point
    signs = ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1))
    return [[[x + half * right, y + half * down] for right, down in signs]]


def _point(random: Random) -> tuple[Any, list[Point]]:
    point = _place(random)
    return {"type": "Point", "coordinates": point}, [point]


def _several(random: Random) -> tuple[Any, list[Point]]:
    """Figures merged into one object, as QuPath does it."""
    points = [(30.0, 30.0), (90.0, 40.0), (150.0, 160.0)][: any_of(random, 2, 3)]
    if random.random() < 0.5:
        return {"type": "MultiPoint", "coordinates": points}, points
    return {"type": "MultiPolygon", "coordinates": [_square(point) for point in points]}, points


def _packed(random: Random) -> tuple[Any, list[Point]]:
    point, other = (25.5, 60.0), (120.0, 75.5)
    within = [{"type": "Point", "coordinates": point}, {"type": "Polygon", "coordinates": _square(other)}]
    if random.random() < 0.3:
        within = [{"type": "GeometryCollection", "geometries": within}]
    return {"type": "GeometryCollection", "geometries": within}, [point, other]


def _close(random: Random) -> tuple[Any, list[Point]]:
    """Two marks of one figure."""
    x, y = _place(random)
    points = [(x, y), (x + 6, y)]
    return {"type": "MultiPoint", "coordinates": points}, points


def _line(random: Random) -> tuple[Any, list[Point]]:
    kind = any_of(random, "LineString", "Nothing", "Circle")
    return {"type": kind, "coordinates": [[1, 1], [50, 60]]}, []


def _hole(random: Random) -> tuple[Any, list[Point]]:
    """A ring, or one that crosses itself."""
    point = (80.0, 120.0)
    rings = _square(point) + _square(point, 2)
    return {"type": "Polygon", "coordinates": rings if random.random() < 0.6 else [rings[0][::2]]}, []
