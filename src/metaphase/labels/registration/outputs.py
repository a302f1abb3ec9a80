"""A registration on disk: the transform, a picture for people, points and annotations carried over."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metaphase.base.arrays import RGB, Points
from metaphase.base.errors import UsageError
from metaphase.base.files import explained, write_bytes, write_text
from metaphase.base.foreign import read_json
from metaphase.base.later import pandas as pd
from metaphase.base.provenance import FileContent
from metaphase.base.stages import Facts, Report, States, run_stages, settled, stage
from metaphase.base.tables import read_table, write_table
from metaphase.detections.files import read_detections
from metaphase.detections.formats.contract import load_json
from metaphase.detections.table import COLUMNS, DetectionSet
from metaphase.labels.registration.evidence import Verdict
from metaphase.labels.registration.pair import Registration, register_pair, register_points
from metaphase.labels.registration.similarity import RegistrationConfig
from metaphase.labels.registration.tiles import read_bent
from metaphase.labels.registration.transform import (
    Frame,
    Transform,
    load_transform,
    map_geojson,
    save_transform,
)
from metaphase.slides.contract import Slide
from metaphase.slides.opening import SlideSource
from metaphase.version import __version__

# ---- a picture of a registration for people: do the slides fit, and where did tissue move? ----

OVERVIEW_PX = 700
SQUARES = 10
"""Squares along the longer side of the checkerboard."""
ZOOM_PX, ZOOM_SQUARES = 240, 4
ZOOMS = 3
ARROWS_SHARE = 0.06
"""Length of the median arrow, as a share of the slide's longer side."""
PICTURE_NODES = 65
"""The map is exact at so many positions along each side of a picture, and straight between them."""


def draw_registration(registration: Registration, points: pd.DataFrame | None = None) -> bytes:
    """PNG: checkerboard of both slides, shift arrows with rejected points, and details at full resolution."""
    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(figsize=(11, 7.6), dpi=110, layout="constrained")
        grid = figure.add_gridspec(2, 6, height_ratios=(1.15, 1))
        board, arrows = (figure.add_subplot(grid[0, side : side + 3]) for side in (0, 3))
        zooms = [figure.add_subplot(grid[1, side : side + 2]) for side in (0, 2, 4)]
        for axes in (board, arrows, *zooms):
            axes.set_axis_off()
        sides_um = registration.pair.he.size_um
        he = _checkered(registration, board, np.zeros(2), sides_um, max(sides_um) / OVERVIEW_PX, SQUARES)
        board.set_title("H&E and PHH3 in turn\nafter registration")
        _draw_arrows(arrows, registration, points, he)
        mpp = registration.shape.mpp
        side = ZOOM_PX * mpp
        for axes, position in zip(zooms, _zoom_positions(registration, points), strict=False):
            _checkered(registration, axes, position - side / 2, (side, side), mpp, ZOOM_SQUARES)
            x, y = position / registration.transform.he_mpp
            axes.set_title(f"{side:.0f} um at {x:.0f}, {y:.0f}")
        figure.suptitle(_title(registration.verdict), fontsize=10)
        data = io.BytesIO()
        figure.savefig(data, format="png", metadata={"Software": None})
    return data.getvalue()


def _title(verdict: Verdict) -> str:
    numbers = verdict.numbers
    title = verdict.status + (f" ({'; '.join(verdict.reasons)})" if verdict.reasons else "")
    if "scale" not in numbers:
        return title
    return (
        f"{title}\nshift {numbers['shift_x_um']:.1f}, {numbers['shift_y_um']:.1f} um, "
        f"rotation {numbers['rotation_deg']:.2f} degrees, scale {numbers['scale']:.4f}; "
        f"{numbers['tiles_agreeing']:.0f} of {numbers['tiles']:.0f} fresh tiles agree"
    )


def _checkered(
    registration: Registration,
    axes: Axes,
    corner_um: Points,
    sides_um: tuple[float, float],
    mpp: float,
    squares: int,
) -> RGB:
    """Show squares of both slides in turn, from a corner of the H&E slide on; returns the H&E pixels."""
    pair = registration.pair
    width, height = (max(2, round(side / mpp)) for side in sides_um)
    he = pair.he.read(corner_um, width, height, mpp)
    phh3 = read_bent(
        pair.phh3.read, registration.transform.invert, corner_um, (width, height), mpp, PICTURE_NODES
    )
    rows, columns = np.indices((height, width)) // max(1, max(width, height) // squares)
    axes.imshow(np.where(((rows + columns) % 2 == 0)[..., None], he, phh3), interpolation="antialiased")
    return he


def _draw_arrows(axes: Axes, registration: Registration, points: pd.DataFrame | None, he: RGB) -> None:
    """What the local field adds to the global similarity; rejected points as crosses."""
    transform, positions = registration.transform, registration.controls.positions
    width, height = registration.pair.he.size_um
    pale = np.asarray(255 - (255 - he.astype(np.float32)) * 0.35, np.uint8)
    axes.imshow(pale, extent=(0, width, height, 0), interpolation="antialiased")
    start = transform.similarity.apply(positions)
    local = transform.apply(positions) - start
    typical = float(np.median(np.linalg.norm(local, axis=1))) if len(local) else 0.0
    title = f"local shifts beyond the global one\nmedian {typical:.1f} um"
    if typical > 0:
        stretch = ARROWS_SHARE * max(width, height) / typical
        ends = local * stretch
        axes.quiver(*start.T, *ends.T, angles="xy", scale_units="xy", scale=1, width=0.004, color="#1f3f8f")
        title += f", drawn {stretch:.0f} x"
    if points is not None:
        lost = points.loc[~points["accepted"], ["x_phh3", "y_phh3"]].to_numpy()
        axes.plot(*transform.apply(lost * transform.phh3_mpp).T, "x", color="#c01010", markersize=5)
    axes.set(title=title, xlim=(0, width), ylim=(height, 0))


def _zoom_positions(registration: Registration, points: pd.DataFrame | None) -> Points:
    """H&E positions (um) to look at closely: points if there are any, else control tiles, well spread."""
    positions = registration.transform.apply(registration.controls.positions)
    if points is not None and points["accepted"].any():
        kept = points.loc[points["accepted"], ["x_he", "y_he"]].to_numpy()
        positions = kept * registration.transform.he_mpp
    order = np.argsort(positions[:, 0], kind="stable")
    few = order[(np.linspace(0.2, 0.8, min(ZOOMS, len(order))) * (len(order) - 1)).astype(int)]
    return np.asarray(positions[few], np.float64)


# ---- annotations and points of other tools ----

ID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "registration.metaphase")
COLOUR = [200, 0, 0]
NOT_ACCEPTED = "the registration of the pair is doubtful, and this point is not sure by itself"


def points_geojson(points: pd.DataFrame) -> dict[str, Any]:
    """Accepted points (`x, y, label, confidence, probability`) as QuPath annotations on the H&E slide."""
    kept = points[points["accepted"]]
    features = [
        {
            "type": "Feature",
            "id": str(uuid.uuid5(ID_NAMESPACE, f"{row['slide']} {row['x_phh3']} {row['y_phh3']}")),
            "geometry": {"type": "Point", "coordinates": [round(row["x"], 2), round(row["y"], 2)]},
            "properties": {
                "objectType": "annotation",
                "classification": {"name": row["label"], "color": COLOUR},
                "measurements": {
                    "probability": row["probability"],
                    "registration confidence": round(row["confidence"], 4),
                },
            },
        }
        for row in kept.to_dict("records")
    ]
    return {"type": "FeatureCollection", "features": features}


# ---- registering files and writing what came out ----

TRANSFORM, PICTURE, SUMMARY = "transform.json", "registration.png", "summary.json"
OF_POINTS, OF_ANNOTATIONS = ("points.parquet", "points.csv", "points.geojson"), "annotations.geojson"
"""Files of what was given; annotations are left out where the registration cannot be relied on."""
OUTPUTS = (*OF_POINTS, OF_ANNOTATIONS)


@dataclass(frozen=True)
class Annotations:
    """A GeoJSON file, and the slide on which it was drawn."""

    path: Path
    drawn_on: Frame = "phh3"


def mapped_points(
    registration: Registration, given: DetectionSet, slide: str, *, trusted: bool = True
) -> pd.DataFrame:
    """A detection table of the PHH3 slide as one of the H&E slide; rejected points have empty `x, y`.

    Columns of `register_points` and of the source follow the usual ones. Of a pair that is not `trusted` only
    points are accepted that are sure by themselves; `x_he` and `y_he` tell where the others would lie.
    """
    placed = register_points(registration, given.table[["x", "y"]].to_numpy())
    if not trusted:
        unsure = placed["accepted"] & ~registration.verdict.sure(placed["confidence"])
        because = placed["reason"].mask(unsure, NOT_ACCEPTED)
        placed = placed.assign(accepted=placed["accepted"] & ~unsure, reason=because)
    extra = [name for name in given.table.columns if name not in (*COLUMNS, *placed.columns)]
    there = placed[["x_he", "y_he"]].where(placed["accepted"]).rename(columns={"x_he": "x", "y_he": "y"})
    usual = given.table[["probability", "label"]].assign(slide=slide, x=there["x"], y=there["y"])
    return pd.concat([usual[list(COLUMNS)], placed, given.table[extra]], axis=1)


def summary_of(registration: Registration, table: pd.DataFrame | None) -> dict[str, Any]:
    """Verdict, reasons and numbers, for people and programs."""
    verdict = registration.verdict
    he, phh3 = registration.pair.he.slide, registration.pair.phh3.slide
    summary: dict[str, Any] = {
        "he": he.name,
        "phh3": phh3.name,
        "he_path": str(he.info.path or ""),
        "phh3_path": str(phh3.info.path or ""),
        "verdict": verdict.status,
        "reasons": list(verdict.reasons),
        "notes": list(verdict.notes),
        **verdict.numbers,
        "version": __version__,
        "config": asdict(registration.config),
    }
    if table is not None:
        accepted = table[table["accepted"]]
        summary |= {
            "points": len(table),
            "points_accepted": len(accepted),
            "points_by_method": table["method"].value_counts().to_dict(),
            "mean_confidence": float(accepted["confidence"].mean()) if len(accepted) else 0.0,
        }
    return summary


def _read_points(path: Path, phh3: Slide) -> DetectionSet:
    """The points of the PHH3 slide; a table of several slides must name it."""
    stem = Path(phh3.name).stem
    found = read_detections(path, mpp=phh3.mpp, slide=stem)
    if len(found.slides) <= 1:
        return found
    named = found.table["slide"].isin([stem, phh3.name])
    if not named.any():
        raise UsageError(
            f"holds points of {len(found.slides)} slides, and none is called {stem}",
            path=path,
            next_step="give a file with the points of the PHH3 slide alone",
        )
    return replace(found.with_table(found.table[named]), slides=(stem,))


# ---- `metaphase register`: one pair of slides, kept or done again ----


@dataclass(frozen=True, eq=False)
class Registered:
    """The folder of a pair, as `metaphase register` left it."""

    folder: Path
    summary: Mapping[str, Any] = field(repr=False)

    @property
    def verdict(self) -> str:
        """`reliable`, `doubtful` or `failed`; the summary's `reasons` tell why."""
        return str(self.summary["verdict"])

    @cached_property
    def transform(self) -> Transform:
        """Positions of one slide on the other, in level-0 pixels: `phh3_to_he` and `he_to_phh3`."""
        return load_transform(self.folder / TRANSFORM)

    @cached_property
    def points(self) -> pd.DataFrame:
        """The points that were given, in H&E coordinates, with their confidence; rejected ones are empty.

        An empty table where none were given.
        """
        if "points" not in self.summary:
            return pd.DataFrame(columns=list(COLUMNS))
        return read_table(self.folder / OF_POINTS[0])


def register_slides(
    he: SlideSource,
    phh3: SlideSource,
    folder: Path,
    *,
    points: Path | None = None,
    annotations: Annotations | None = None,
    config: RegistrationConfig | None = None,
    accept_doubtful: bool = False,
) -> tuple[dict[str, Any], States]:
    """Register a pair into `folder` unless that is done; returns the summary, and whether there was work.

    Writes `transform.json`, `registration.png`, `summary.json`, for points `points.parquet`, `points.csv` and
    `points.geojson` (H&E coordinates), for annotations `annotations.geojson`. After a failed registration,
    or a doubtful one that nobody accepted, no annotations are written; points of a doubtful pair are accepted
    where they are sure by themselves.
    """
    for path in (points, annotations.path if annotations else None):
        if path is not None and path.resolve() in [(folder / name).resolve() for name in OUTPUTS]:
            advice = "choose another folder, or another name for the file"
            raise UsageError("would be overwritten by a result of that name", path=path, next_step=advice)
    row = _register(
        folder,
        he=he,
        phh3=phh3,
        points=FileContent(points) if points else None,
        annotations=FileContent(annotations.path) if annotations else None,
        drawn_on=annotations.drawn_on if annotations else "",
        config=config or RegistrationConfig(),
        accept_doubtful=accept_doubtful,
    )
    writes = (*row.writes, *(OF_POINTS if points is not None else ()))
    states = settled(run_stages([replace(row, writes=writes)], folder))
    return read_json(folder / SUMMARY, "no registration", next_step="remove it, and run it again"), states


@stage("registration", "PHH3 onto H&E", writes=(SUMMARY, TRANSFORM, PICTURE), schema=4, sealed=True)
def _register(
    folder: Path,
    _report: Report,
    *,
    he: SlideSource,
    phh3: SlideSource,
    points: FileContent | None,
    annotations: FileContent | None,
    drawn_on: Frame | Literal[""],
    config: RegistrationConfig,
    accept_doubtful: bool,
) -> Facts:
    """Register a pair, and carry over what was given."""
    for name in OUTPUTS:
        with explained(folder / name):
            (folder / name).unlink(missing_ok=True)
    with he.open() as he_slide, phh3.open() as phh3_slide:
        given = None if points is None else _read_points(points.path, phh3_slide)
        shapes = None if annotations is None else load_json(annotations.path)
        registration = register_pair(he_slide, phh3_slide, config)
        verdict = registration.verdict
        trusted = verdict.status == "reliable" or (verdict.status == "doubtful" and accept_doubtful)
        save_transform(folder / TRANSFORM, registration.transform, verdict=asdict(verdict))
        table = None
        if given is not None:
            table = mapped_points(registration, given, Path(he_slide.name).stem, trusted=trusted)
            *tables, points_shapes = OF_POINTS
            for name in tables:
                write_table(folder / name, table)
            write_text(folder / points_shapes, json.dumps(points_geojson(table)))
        if annotations is not None and trusted:
            to: Frame = "he" if drawn_on == "phh3" else "phh3"
            moved = map_geojson(shapes, registration.transform, to=to, source=annotations.path)
            write_text(folder / OF_ANNOTATIONS, json.dumps(moved))
        write_bytes(folder / PICTURE, draw_registration(registration, table))
        summary = summary_of(registration, table) | {"accept_doubtful": accept_doubtful}
        write_text(folder / SUMMARY, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return {"verdict": summary["verdict"]}
