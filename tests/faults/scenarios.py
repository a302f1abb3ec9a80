"""Commands that change a folder, each from where an earlier one left it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from metaphase.base.tables import read_table
from metaphase.simulation.cohort import simulate_cohort
from metaphase.simulation.config import SimulationConfig
from tests.hostile.inputs.sound import ASSETS, DRAW, SEARCH

IMPORT = ("review", "import", "out", "--from", "edited.geojson", "--observer", "Anna")
OUTLINE = ("review", "import", "out", "--from", "outlined.geojson", "--observer", "Anna")
APPLY = ("review", "apply", "out")
WITHDRAW = ("review", "withdraw", "out", "--observer", "Anna")


@dataclass(frozen=True)
class Scenario:
    """A command, the commands before it, and what it finds."""

    command: tuple[str, ...]
    begin: Callable[[Path], None]
    """Puts what it finds into an empty folder, from the assets of the hostile inputs."""
    before: tuple[tuple[str, ...], ...] = ()


def _nothing(_folder: Path) -> None:
    pass


def _copy(folder: Path, asset: str, name: str) -> None:
    shutil.copytree(folder / ASSETS / asset, folder / name)


def _edited(folder: Path) -> None:
    """Results, and their shapes with one detection deleted and a figure that was not there."""
    _copy(folder, "out", "out")
    shapes = json.loads((folder / "out" / "slide" / "detections.geojson").read_text(encoding="utf-8"))
    shapes["features"][0]["geometry"] = {"type": "Point", "coordinates": [3.0, 4.0]}
    (folder / "edited.geojson").write_text(json.dumps(shapes), encoding="utf-8")


def _answered(folder: Path) -> None:
    """A drawn calibration, and answers to all of it."""
    _copy(folder, "calibration", "calibration")
    items = read_table(folder / "calibration" / "detections" / "items.csv")["item"]
    rows = [f"Anna,{item},{('mitosis', 'not')[number % 2]}" for number, item in enumerate(items)]
    (folder / "answers.csv").write_text("\n".join(["observer,item,answer", *rows, ""]), encoding="utf-8")


def _pairs(folder: Path) -> None:
    """Simulated pairs of three patients."""
    size_px, often = 768, (900.0, 1000.0)
    config = SimulationConfig(
        cases=3, centres=1, width=size_px, height=size_px, seed=13, mitoses_per_mm2=often, workers=1
    )
    simulate_cohort(folder / "cohort", config)
    (folder / "slides").mkdir()
    for slide in (folder / "cohort").glob("*/*.tif"):
        slide.rename(folder / "slides" / f"{slide.parent.name}_{slide.name}")
    shutil.rmtree(folder / "cohort")


def _outlined(folder: Path) -> None:
    """Results, and a file that outlines where figures count."""
    _copy(folder, "out", "out")
    ring = [[10, 10], [150, 10], [150, 180], [10, 180], [10, 10]]
    shape = {"type": "Polygon", "coordinates": [ring]}
    region = {"type": "Feature", "geometry": shape, "properties": {"classification": {"name": "tumour"}}}
    shapes = {"type": "FeatureCollection", "features": [region]}
    (folder / "outlined.geojson").write_text(json.dumps(shapes), encoding="utf-8")


SCENARIOS = {
    "detect": Scenario((*SEARCH, "--probability-map", "--format", "csv"), _nothing),
    "detect, another threshold": Scenario((*SEARCH, "--threshold", "0.3"), _edited, (IMPORT, APPLY)),
    "review import": Scenario(IMPORT, _edited),
    "review apply": Scenario(APPLY, _edited, (IMPORT,)),
    "review withdraw": Scenario(WITHDRAW, _edited, (IMPORT, APPLY)),
    "regions of a file": Scenario((*SEARCH, "--region", "outlined.geojson"), _outlined),
    "regions, then applied": Scenario(APPLY, _outlined, (OUTLINE,)),
    "lab init": Scenario(("lab", "--lab", "lab", "init", "slides"), _pairs),
    "calibrate draw": Scenario(DRAW, lambda folder: _copy(folder, "out", "out")),
    "label import": Scenario(("label", "import", "calibration/detections", "answers.csv"), _answered),
    "calibrate fit": Scenario(
        ("calibrate", "fit", "calibration", "--answers", "answers.csv", "-o", "site.json"), _answered
    ),
}
