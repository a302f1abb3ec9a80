"""QuPath's GeoJSON with one member of another type, or packed oddly."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import any_of, bytes_changed, json_bytes, tree_changed, unsound
from tests.hostile.inputs.sound import on_table
from tests.hostile.trials import Attempt, must_refuse, right

SHARE = 7


def make(random: Random, folder: Path) -> Attempt:
    tree = {
        "type": "FeatureCollection",
        "features": [
            {
                "type": "Feature",
                "id": "1",
                "geometry": shape,
                "properties": {
                    "objectType": "detection",
                    "classification": {"name": "mitosis", "color": [1, 2, 3]},
                    "measurements": {"probability": 0.9, "area": 5},
                    "metadata": {"a": "b"},
                },
            }
            for shape in (
                {"type": "Point", "coordinates": [10, 20]},
                {"type": "Polygon", "coordinates": [[[0, 0], [10, 0], [10, 10], [0, 0]]]},
                {"type": "MultiPoint", "coordinates": [[1, 2], [3, 4]]},
            )
        ],
    }
    changed, path, value = tree_changed(random, tree)
    data = json_bytes(random, changed)
    wrong = unsound(path, value, ("coordinates", "probability")) and isinstance(path[-1], int | str)
    wrong = wrong and data == json.dumps(changed).encode("utf-8", "surrogatepass")
    name = any_of(random, "a.geojson", "a.geojson", "a.geojson", "a.geojson.gz", "a.zip", "a.json")
    if name.endswith(".gz"):
        data = gzip.compress(data) if random.random() < 0.7 else bytes_changed(random, gzip.compress(data))
    (folder / name).write_bytes(data)
    return on_table(random, name, must_refuse if wrong and name == "a.geojson" else right)
