"""The servers that take answers, as a user starts them, with much to answer about."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import pandas as pd
import shapely

from metaphase.base.tables import write_table
from metaphase.counting.regions import Place, region_of
from metaphase.labels.observers.positions import PLACE, PositionLog, position_name
from metaphase.labels.observers.project import load_project
from metaphase.labels.observers.store import AnswerLog, AnswerStore
from tests.web.results import spread_positions, write_result, write_sparse_slide

ITEMS = 400


def command(*arguments: str | Path) -> list[str]:
    """The program as a user starts it."""
    return [sys.executable, "-m", "metaphase", *map(str, arguments)]


@dataclass(frozen=True)
class Page:
    """A server, what observers may send it, and where it is then."""

    name: str
    arguments: list[str]
    items: Callable[[str], list[Any]]
    """What can be answered about, once it is served at an address."""
    says: Callable[[Any, Random], str]
    """What an observer may say of an item."""
    called: Callable[[Any], str]
    """How an item is called in the log."""
    log: Callable[[], contextlib.AbstractContextManager[AnswerLog]]


def served(arguments: list[str]) -> tuple[subprocess.Popen[str], str]:
    """A server and its address, once it listens."""
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def post(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The reply of a server."""
    address, _, token = url.partition("?token=")
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{address}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        said: dict[str, Any] = json.loads(reply.read())
    return said


def labelling(folder: Path, slide: Path) -> Page:
    """A project of many items on one slide."""
    rows = [(f"i{number}", str(slide.resolve()), 10 + number, 20, "c") for number in range(ITEMS)]
    write_table(folder / "items.csv", pd.DataFrame(rows, columns=["item", "slide", "x", "y", "case"]))
    project = load_project(folder)
    return Page(
        "label serve",
        command("label", "serve", folder, "--port", "0"),
        lambda _url: [item.number for item in project.items],
        lambda _number, random: random.choice(project.answer_names),
        lambda number: project.by_number[number].name,
        lambda: AnswerStore(project),
    )


def said_of(item: dict[str, Any], random: Random, side: int) -> str:
    """A verdict on a figure, an outline of a region, or a place of the count."""
    if "x" in item:
        return random.choice(("mitosis", "not", "unsure"))
    x, y = (round(random.uniform(100, side - 100), 1) for _ in range(2))
    if item["region"] == PLACE:
        return Place(x=x, y=y, field_diameter_mm=random.choice((None, 0.5))).model_dump_json()
    kind = random.choice(("include", "exclude"))
    shape = shapely.Point(x, y).buffer(random.uniform(20, 90), quad_segs=random.randint(2, 60))
    return region_of(kind, "drawn", shape, id=item["region"]).model_dump_json()  # type: ignore[arg-type]


def viewing(folder: Path) -> Page:
    """A slide with many figures to review."""
    width, height = 4096, 4096
    positions = spread_positions(ITEMS, width, height)
    slide = write_sparse_slide(folder / "slide.tif", width, height, positions)
    write_result(folder / "results" / "slide", slide, width, height, positions)

    def items(url: str) -> list[dict[str, Any]]:
        key = post(url, "api/slides", {})["slides"][0]["key"]
        figures = [{"slide": key, "x": round(x, 1), "y": round(y, 1)} for x, y in positions.tolist()]
        regions = [{"slide": key, "region": str(uuid5(NAMESPACE_OID, str(one)))} for one in range(ITEMS // 4)]
        return [*figures, *regions, {"slide": key, "region": PLACE}]

    return Page(
        "view",
        command("view", folder / "results", "--port", "0"),
        items,
        lambda item, random: said_of(item, random, width),
        lambda item: (
            position_name(item["x"], item["y"])
            if "x" in item
            else item["region"]
            if item["region"] == PLACE
            else f"region {item['region']}"
        ),
        lambda: PositionLog(folder / "results" / "slide", width, height),
    )
