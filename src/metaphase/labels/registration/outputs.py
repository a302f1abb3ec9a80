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

import cv2
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metaphase.base.arrays import RGB, Floats, Points
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
from metaphase.labels.registration.pair import Registration, register_pair, register_points
from metaphase.labels.registration.similarity import RegistrationConfig
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

# ---- a picture of a registration for people: do the slides fit, where did tissue move, what is left ----

OVERVIEW_PX = 700
SQUARES = 10
"""Squares along the longer side of the checkerboard."""
ZOOM_PX, ZOOM_SQUARES = 240, 4
ZOOMS = 3
ARROWS_SHARE = 0.06
"""Length of the median arrow, as a share of the slide's longer side."""
Extent = tuple[float, float, float, float]
"""What a picture covers, in um: left, right, bottom, top."""


def draw_registration(registration: Registration, points: pd.DataFrame | None = None) -> bytes:
    """PNG: checkerboard of both slides, shift arrows, residual map, and details at full resolution."""
    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(figsize=(11, 7.6), dpi=110, layout="constrained")
        grid = figure.add_gridspec(2, 6, height_ratios=(1.15, 1))
        panels = [figure.add_subplot(grid[row, side : side + 2]) for row in (0, 1) for side in (0, 2, 4)]
        for axes in panels:
            axes.set_axis_off()
        board, arrows, left, *zooms = panels
        width, height = registration.pair.he.size_um
        mpp = max(width, height) / OVERVIEW_PX
        size = max(1, round(width / mpp)), max(1, round(height / mpp))
        he, phh3 = _both(registration, np.zeros(2), size, mpp)
        extent = (0.0, width, height, 0.0)
        _show(board, _checkered(he, phh3, SQUARES), extent, "H&E and PHH3 in turn\nafter registration")
        _draw_arrows(arrows, registration, he, extent)
        _draw_residuals(figure, left, registration, points, he, extent)
        for axes, position in zip(zooms, _zoom_positions(registration, points), strict=False):
            _draw_zoom(axes, registration, position)
        figure.suptitle(_title(registration), fontsize=10)
        data = io.BytesIO()
        figure.savefig(data, format="png", metadata={"Software": None})
    return data.getvalue()


def _title(registration: Registration) -> str:
    verdict, numbers = registration.verdict, registration.verdict.numbers
    reasons = f" ({'; '.join(verdict.reasons)})" if verdict.reasons else ""
    if "scale" not in numbers:
        return f"{verdict.status}{reasons}"
    return (
        f"{verdict.status}{reasons}\nshift {numbers['shift_x_um']:.1f}, {numbers['shift_y_um']:.1f} um, "
        f"rotation {numbers['rotation_deg']:.2f} degrees, scale {numbers['scale']:.4f}; "
        f"{numbers['tiles_agreeing']:.0f} of {numbers['tiles']:.0f} fresh tiles agree"
    )


def _both(registration: Registration, corner: Points, size: tuple[int, int], mpp: float) -> tuple[RGB, RGB]:
    """H&E pixels from `corner` (um) on, and the PHH3 pixels that belong there."""
    pair, transform = registration.pair, registration.transform
    width, height = size
    x, y = corner / pair.he.slide.mpp
    he = pair.he.slide.read(float(x), float(y), width, height, mpp)
    maps, low = _pull_map(registration, corner, size, mpp)
    high = maps.reshape(-1, 2).max(axis=0)
    span = [int(v) for v in np.ceil(high - low / mpp) + 2]
    x, y = low / transform.phh3_mpp
    source = pair.phh3.slide.read(float(x), float(y), max(1, span[0]), max(1, span[1]), mpp)
    local = (maps - low / mpp - 0.5).astype(np.float32)
    white = (255, 255, 255)
    columns, rows = local[..., 0], local[..., 1]
    outside = cv2.BORDER_CONSTANT
    phh3 = cv2.remap(source, columns, rows, cv2.INTER_LINEAR, borderMode=outside, borderValue=white)
    return he, np.asarray(phh3, np.uint8)


def _pull_map(
    registration: Registration, corner: Points, size: tuple[int, int], mpp: float
) -> tuple[Floats, Points]:
    """PHH3 positions, in pixels of `mpp`, of H&E pixels; and their corner in um."""
    step = max(1, max(size) // 64)
    columns, rows = np.arange(0, size[0] + step, step), np.arange(0, size[1] + step, step)
    x, y = np.meshgrid(columns, rows)
    nodes = corner + (np.stack([x.ravel(), y.ravel()], axis=1) + 0.5) * mpp
    there = registration.transform.invert(nodes).reshape(len(rows), len(columns), 2) / mpp
    inverse = np.array([[1 / step, 0, 0], [0, 1 / step, 0]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    parts = [cv2.warpAffine(there[..., k], inverse, size, flags=flags) for k in (0, 1)]
    maps = np.asarray(np.stack(parts, axis=-1), np.float64)
    return maps, np.asarray(maps.reshape(-1, 2).min(axis=0) * mpp - 2 * mpp)


def _checkered(he: RGB, phh3: RGB, squares: int) -> RGB:
    side = max(1, max(he.shape) // squares)
    rows, columns = np.indices(he.shape[:2]) // side
    return np.where(((rows + columns) % 2 == 0)[..., None], he, phh3)


def _show(axes: Axes, picture: RGB, extent: Extent, title: str) -> None:
    axes.imshow(picture, extent=extent, interpolation="antialiased")
    axes.set_xlim(extent[0], extent[1])
    axes.set_ylim(extent[2], extent[3])
    axes.set_title(title)


def _pale(picture: RGB) -> RGB:
    return np.asarray(255 - (255 - picture.astype(np.float32)) * 0.35, np.uint8)


def _draw_arrows(axes: Axes, registration: Registration, he: RGB, extent: Extent) -> None:
    """What the local field adds to the global similarity."""
    positions = registration.controls.positions
    transform = registration.transform
    start = transform.similarity.apply(positions)
    local = transform.apply(positions) - start
    length = np.linalg.norm(local, axis=1)
    typical = float(np.median(length)) if len(length) else 0.0
    title = f"local shifts beyond the global one\nmedian {typical:.1f} um"
    _show(axes, _pale(he), extent, title)
    if typical > 0:
        stretch = ARROWS_SHARE * max(extent[1], extent[2]) / typical
        ends = local * stretch
        axes.quiver(*start.T, *ends.T, angles="xy", scale_units="xy", scale=1, width=0.004, color="#1f3f8f")
        axes.set_title(f"{title}, drawn {stretch:.0f} x")


def _draw_residuals(
    figure: Figure,
    axes: Axes,
    registration: Registration,
    points: pd.DataFrame | None,
    he: RGB,
    extent: Extent,
) -> None:
    """What single tiles still miss after the transform; rejected points as crosses."""
    controls = registration.controls
    there, left = registration.transform.apply(controls.positions), np.linalg.norm(controls.shifts, axis=1)
    if points is not None and len(points):
        kept = points[points["accepted"]]
        shifts = kept[["shift_x_um", "shift_y_um"]].to_numpy()
        there = np.concatenate([there, kept[["x_he", "y_he"]].to_numpy() * registration.transform.he_mpp])
        left = np.concatenate([left, np.linalg.norm(shifts, axis=1)])
    middle = float(np.median(left)) if len(left) else 0.0
    _show(axes, _pale(he), extent, f"what single tiles still differ by\nmedian {middle:.2f} um")
    top = max(2.0, float(np.percentile(left, 95))) if len(left) else 2.0
    dots = axes.scatter(there[:, 0], there[:, 1], c=left, s=14, cmap="viridis", vmin=0, vmax=top)
    if points is not None and not points["accepted"].all():
        lost = points.loc[~points["accepted"], ["x_phh3", "y_phh3"]].to_numpy()
        at = registration.transform.phh3_to_he(lost) * registration.transform.he_mpp
        axes.plot(*at.T, "x", color="#c01010", markersize=5)
    figure.colorbar(dots, ax=axes, shrink=0.7, label="um")


def _zoom_positions(registration: Registration, points: pd.DataFrame | None) -> Points:
    """H&E positions (um) to look at closely: points if there are any, else control tiles, well spread."""
    positions = registration.transform.apply(registration.controls.positions)
    if points is not None and points["accepted"].any():
        kept = points.loc[points["accepted"], ["x_he", "y_he"]].to_numpy()
        positions = kept * registration.transform.he_mpp
    order = np.argsort(positions[:, 0], kind="stable")
    few = order[(np.linspace(0.2, 0.8, min(ZOOMS, len(order))) * (len(order) - 1)).astype(int)]
    return np.asarray(positions[few], np.float64)


def _draw_zoom(axes: Axes, registration: Registration, position: Points) -> None:
    mpp = registration.shape.mpp
    corner = position - ZOOM_PX * mpp / 2
    pair = _both(registration, corner, (ZOOM_PX, ZOOM_PX), mpp)
    side = ZOOM_PX * mpp
    x, y = position / registration.transform.he_mpp
    _show(axes, _checkered(*pair, ZOOM_SQUARES), (0, side, side, 0), f"{side:.0f} um at {x:.0f}, {y:.0f}")


# ---- annotations and points of other tools ----

ID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "registration.metaphase")
COLOUR = (200, 0, 0)
NOT_ACCEPTED = "the registration of the pair is doubtful, and this point is not sure by itself"


def points_geojson(points: pd.DataFrame) -> dict[str, Any]:
    """Accepted points (`x, y, label, confidence, probability`) as QuPath annotations on the H&E slide."""
    kept = points[points["accepted"]]
    return {"type": "FeatureCollection", "features": [_feature(row) for row in kept.to_dict("records")]}


def _feature(row: dict[Any, Any]) -> dict[str, Any]:
    position = [round(float(row["x"]), 2), round(float(row["y"]), 2)]
    return {
        "type": "Feature",
        "id": str(uuid.uuid5(ID_NAMESPACE, f"{row['slide']} {row['x_phh3']} {row['y_phh3']}")),
        "geometry": {"type": "Point", "coordinates": position},
        "properties": {
            "objectType": "annotation",
            "classification": {"name": str(row["label"]), "color": list(COLOUR)},
            "measurements": {
                "probability": float(row["probability"]),
                "registration confidence": round(float(row["confidence"]), 4),
            },
        },
    }


# ---- registering files and writing what came out ----

TRANSFORM, PICTURE, SUMMARY = "transform.json", "registration.png", "summary.json"
OF_POINTS, OF_ANNOTATIONS = ("points.parquet", "points.csv", "points.geojson"), "annotations.geojson"
"""Files of what was given; annotations are left out where the registration cannot be relied on."""


@dataclass(frozen=True)
class Annotations:
    """A GeoJSON file, and the slide on which it was drawn."""

    path: Path
    drawn_on: Frame = "phh3"


def register_to_folder(
    he: Slide,
    phh3: Slide,
    folder: Path,
    *,
    points: Path | None = None,
    annotations: Annotations | None = None,
    config: RegistrationConfig | None = None,
    accept_doubtful: bool = False,
) -> dict[str, Any]:
    """Register a pair and write the results into `folder`; returns the summary, as in `summary.json`.

    Writes `transform.json`, `registration.png`, `summary.json`, for points `points.parquet`, `points.csv` and
    `points.geojson` (H&E coordinates), for annotations `annotations.geojson`. After a failed registration,
    or a doubtful one that nobody accepted, no annotations are written; points of a doubtful pair are accepted
    where they are sure by themselves.
    """
    given = None if points is None else _read_points(points, phh3)
    shapes = None if annotations is None else load_json(annotations.path)
    registration = register_pair(he, phh3, config)
    verdict = registration.verdict
    trusted = verdict.status == "reliable" or (verdict.status == "doubtful" and accept_doubtful)
    table = None if given is None else mapped_points(registration, given, Path(he.name).stem, trusted=trusted)
    save_transform(folder / TRANSFORM, registration.transform, verdict=asdict(verdict))
    if table is not None:
        *tables, points_shapes = OF_POINTS
        for name in tables:
            write_table(folder / name, table)
        write_text(folder / points_shapes, json.dumps(points_geojson(table)))
    if annotations is not None and trusted:
        to: Frame = "he" if annotations.drawn_on == "phh3" else "phh3"
        moved = map_geojson(shapes, registration.transform, to=to, source=annotations.path)
        write_text(folder / OF_ANNOTATIONS, json.dumps(moved))
    write_bytes(folder / PICTURE, draw_registration(registration, table))
    summary = summarised(registration, table) | {"accept_doubtful": accept_doubtful}
    write_text(folder / SUMMARY, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return summary


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


def summarised(registration: Registration, table: pd.DataFrame | None) -> dict[str, Any]:
    """Verdict, reasons and numbers, for people and programs."""
    verdict = registration.verdict
    pair = registration.pair
    summary: dict[str, Any] = {
        "he": pair.he.slide.name,
        "phh3": pair.phh3.slide.name,
        "he_path": str(pair.he.slide.info.path or ""),
        "phh3_path": str(pair.phh3.slide.info.path or ""),
        "verdict": verdict.status,
        "reasons": list(verdict.reasons),
        "notes": list(verdict.notes),
        **verdict.numbers,
        "version": __version__,
        "config": asdict(registration.config),
    }
    if table is not None:
        accepted = table["accepted"].to_numpy(bool)
        summary["points"] = len(table)
        summary["points_accepted"] = int(accepted.sum())
        summary["points_by_method"] = {str(k): int(v) for k, v in table["method"].value_counts().items()}
        summary["mean_confidence"] = float(np.mean(table["confidence"][accepted])) if accepted.any() else 0.0
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

    The files are those of `register_to_folder`.
    """
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
    for name in (*OF_POINTS, OF_ANNOTATIONS):
        with explained(folder / name):
            (folder / name).unlink(missing_ok=True)
    with he.open() as first, phh3.open() as second:
        summary = register_to_folder(
            first,
            second,
            folder,
            points=points.path if points else None,
            annotations=Annotations(annotations.path, drawn_on or "phh3") if annotations else None,
            config=config,
            accept_doubtful=accept_doubtful,
        )
    return {"verdict": summary["verdict"]}
