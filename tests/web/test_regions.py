"""Regions through HTTP: they change the count at once, come into force, and what is wrong is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import shapely

from metaphase.analysis.record import load_result
from metaphase.base.tables import read_table
from metaphase.counting.regions import Place, Region, region_of
from metaphase.web.viewed import TileMaker, ViewedSlide, viewed_slides
from tests.web.asgi import Client
from tests.web.results import THRESHOLD, spread_positions, write_result, write_sparse_slide
from tests.web.test_viewing import client_of, seen, send

WIDTH, HEIGHT = 3000, 2200
PLACES = spread_positions(60, WIDTH, HEIGHT)
LEFT = region_of("include", "tumour", shapely.box(0, 0, 1700, HEIGHT))
HOLE = region_of(
    "exclude", "follicle", shapely.box(600, 600.5, 1500, 1500).difference(shapely.box(900, 900, 1100, 1100))
)


@pytest.fixture
def slide(tmp_path: Path) -> Iterator[ViewedSlide]:
    file = write_sparse_slide(tmp_path / "one.tif", WIDTH, HEIGHT, PLACES)
    write_result(tmp_path / "results" / "one", file, WIDTH, HEIGHT, PLACES)
    (one,) = viewed_slides([tmp_path / "results"])
    yield one
    one.close()


@pytest.fixture
def client(slide: ViewedSlide) -> Iterator[Client]:
    tiles = TileMaker()
    with client_of([slide], tiles) as opened:
        yield opened
    tiles.close()


def drawn(slide: ViewedSlide, region: str, said: Any) -> dict[str, Any]:
    answer = said.model_dump_json() if isinstance(said, Region | Place) else said
    item = {"slide": slide.key, "region": region}
    return {"uuid": str(uuid4()), "item": item, "answer": answer, "seconds": 0.0}


def figures(folder: Path, *regions: Region) -> int:
    """By shapely alone."""
    table = read_table(folder / "search.parquet")
    points = table.loc[table["probability"] >= THRESHOLD, ["x", "y"]].to_numpy()
    inside = np.ones(len(points), bool)
    for one in regions:
        held = shapely.contains_xy(one.shape, points)
        inside &= held if one.kind == "include" else ~held
    return int(inside.sum())


def test_a_region_changes_the_count_at_once_and_apply_brings_it_into_force(
    client: Client, slide: ViewedSlide
) -> None:
    folder = slide.found.folder
    whole = seen(client, slide)["count"]
    assert whole["counted"] == figures(folder)
    before: list[Region] = []
    for region in (LEFT, HOLE):
        before.append(region)
        assert send(client, drawn(slide, region.id, region))["refused"] == []
        found = seen(client, slide, observer="Anna")
        assert found["count"]["counted"] == figures(folder, *before)
        assert found["count"]["area_mm2"] < whole["area_mm2"]
        assert [one["id"] for one in found["count"]["scope"]["regions"]] == [one.id for one in before]
        assert found["row"]["waits"]
    place = Place(x=1000, y=1000, field_diameter_mm=0.4)
    send(client, drawn(slide, "place", place))
    assert len(seen(client, slide)["count"]["hotspot"]["fields"]) == 10
    send(client, drawn(slide, "place", None))
    counted = seen(client, slide)["count"]
    assert client.post("/api/apply", json={}).json()["failed"] == []
    record = load_result(folder).record
    assert (record.counted, record.count) == (figures(folder, LEFT, HOLE), counted["count"])
    again = seen(client, slide)
    assert {**again["count"], "warnings": counted["warnings"]} == counted, "but for those of the slide"
    assert not again["row"]["waits"]
    send(client, drawn(slide, HOLE.id, None), observer="Ben")
    assert seen(client, slide)["count"]["counted"] == figures(folder, LEFT)


def test_what_crosses_itself_is_mended_and_what_makes_no_sense_is_refused(
    client: Client, slide: ViewedSlide
) -> None:
    knot = [[100, 100], [900, 900], [900, 100], [100, 900]]
    plain = {"id": LEFT.id, "kind": "include", "name": "tumour", "polygons": [[knot]]}
    beyond = plain | {"polygons": [[[[-50, 10], [200, 10], [200, 200]]]]}
    assert send(client, drawn(slide, LEFT.id, json.dumps(plain)))["refused"] == []
    (region,) = seen(client, slide)["count"]["scope"]["regions"]
    assert len(region["polygons"]) == 2
    assert "crossed itself" in region["note"]
    send(client, drawn(slide, LEFT.id, json.dumps(beyond)))
    (region,) = seen(client, slide)["count"]["scope"]["regions"]
    assert "was cut" in region["note"]
    wrong = (
        plain | {"polygons": [[[[1, 1], [2, 2], [3, 3]]]]},
        plain | {"polygons": [[[[9000, 9000], [9100, 9000], [9000, 9100]]]]},
        plain | {"kind": "perhaps"},
        plain | {"name": ""},
        {"name": "nothing"},
        [],
    )
    for one in wrong:
        sent = drawn(slide, LEFT.id, json.dumps(one))
        assert send(client, sent)["refused"] == [sent["uuid"]]
    for answer in ("here", '{"x": -1, "y": 5}', '{"x": 1, "y": 5, "field_diameter_mm": 3.0}'):
        sent = drawn(slide, "place", answer)
        assert send(client, sent)["refused"] == [sent["uuid"]]
    assert seen(client, slide)["count"]["scope"]["regions"] == [region]
    reply = client.post(
        "/api/answers", json={"observer": "Anna", "answers": [drawn(slide, "regions of a file", "x")]}
    )
    assert reply.status_code == 422
