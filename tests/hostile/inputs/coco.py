"""COCO with one member of another type."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import json_bytes, tree_changed, unsound
from tests.hostile.inputs.sound import on_table
from tests.hostile.trials import Attempt, must_refuse, right

SHARE = 5


def make(random: Random, folder: Path) -> Attempt:
    tree = {
        "images": [
            {"id": 1, "file_name": "s1.tif", "width": 1000, "height": 1000},
            {"id": 2, "file_name": "s2.tif"},
        ],
        "categories": [{"id": 1, "name": "mitotic figure"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 20, 50, 50], "score": 0.9},
            {"id": 2, "image_id": 2, "category_id": 1, "bbox": [1, 2, 5, 5]},
        ],
    }
    changed, path, value = tree_changed(random, tree)
    data = json_bytes(random, changed)
    wrong = unsound(path, value, ("bbox", "score")) and data == json.dumps(changed).encode(
        "utf-8", "surrogatepass"
    )
    (folder / "a.json").write_bytes(data)
    return on_table(random, "a.json", must_refuse if wrong else right)
