"""A published data set with one file damaged."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import HUGE, ODD_VALUES, any_of, bytes_changed, json_bytes, tree_changed
from tests.hostile.inputs.sound import quoted
from tests.hostile.trials import Attempt

SHARE = 4


def make(random: Random, folder: Path) -> Attempt:
    from PIL import Image

    name = any_of(
        random, "tupac", "tupac-aux", "midog", "icpr2012", "mitos-atypia14", "midesec", "brecahad",
        "points", "simulated",
    )  # fmt: skip
    home = folder / "set"
    files, images = _sound(random, name)
    for position in images:
        (home / position).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 48), (200, 150, 180)).save(home / position)
    for position, data in files.items():
        (home / position).parent.mkdir(parents=True, exist_ok=True)
        (home / position).write_bytes(data)
    if random.random() < 0.3:
        victim = any_of(random, *sorted(path for path in home.rglob("*") if path.is_file()))
        victim.write_bytes(bytes_changed(random, victim.read_bytes()))
    return Attempt(
        ("data", "import", name, "set", "-o", "out", *any_of(random, (), ("--mpp", "0.25"), ("--json",)))
    )


def _sound(random: Random, name: str) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Files with one odd value, and images, by their places."""
    image = ("a.tif",)
    if name == "midog":
        tree: Any = {
            "images": [{"id": 1, "file_name": "001.tiff", "width": 64, "height": 48}],
            "categories": [{"id": 1, "name": "mitotic figure"}, {"id": 2, "name": "hard negative"}],
            "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 51, 52]}],
        }
        return {"MIDOG.json": json_bytes(random, tree_changed(random, tree)[0])}, ("001.tiff",)
    if name == "brecahad":
        tree = {"mitosis": [{"x": 0.1, "y": 0.2}], "apoptosis": [{"x": 0.3, "y": 0.4}]}
        data = json_bytes(random, tree_changed(random, tree)[0])
        return {"groundTruth/Case_1-01.json": data}, ("images/Case_1-01.tif",)
    if name == "simulated":
        made = {"manifest.csv": _csv(random, [["case", "he", "split"], ["c1", "a.tif", "test"]])}
        return made | {
            "c1/truth.csv": _csv(random, [["x_he", "y_he", "category"], ["1", "2", "mitosis"]])
        }, image
    tables: dict[str, dict[str, list[list[str]]]] = {
        "tupac": {"training_ground_truth.csv": [["1", "0.3"], ["2", "-0.2"], ["3", "0.5"]]},
        "tupac-aux": {"mitoses_ground_truth/01/01.csv": [["7", "30"], ["40", "2"]]},
        "icpr2012": {"A00_01.csv": [["1", "2", "3", "4"], ["5", "6", "7", "8"]]},
        "mitos-atypia14": {"mitosis/A03_00Aa_mitosis.csv": [["1", "2", "0.9"], ["5", "6", "0.7"]]},
        "midesec": {"mitoses.csv": [["image", "x", "y", "label"], ["a", "1", "2", "mitosis"]]},
        "points": {"points.csv": [["image", "x", "y", "label"], ["a.tif", "1", "2", "mitosis"]]},
    }
    positions = {
        "tupac-aux": ("mitoses_image_data_part_1/01/01.tif",),
        "icpr2012": ("A00_01.bmp",),
        "mitos-atypia14": ("frames/x40/A03_00Aa.tiff",),
    }
    return {position: _csv(random, rows) for position, rows in tables[name].items()}, positions.get(
        name, image
    )


def _csv(random: Random, rows: list[list[str]]) -> bytes:
    value = any_of(random, *ODD_VALUES)
    line = any_of(random, *rows)
    line[random.randrange(len(line))] = "9" * 400 if value is HUGE else str(value)
    return ("\n".join(",".join(map(quoted, row)) for row in rows) + "\n").encode("utf-8", "surrogatepass")
