"""A picture of a registration for people: do the slides fit, where did tissue move, what is left."""

from __future__ import annotations

import io
from pathlib import Path

import cv2
import matplotlib
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from metaphase.base.arrays import RGB, Points
from metaphase.base.files import write_bytes
from metaphase.labels.registration.pair import Registration

OVERVIEW_PX = 700
SQUARES = 10
"""Squares along the longer side of the checkerboard."""
ZOOM_PX, ZOOM_SQUARES = 240, 4
ZOOMS = 3
ARROWS_SHARE = 0.06
"""Length of the median arrow, as a share of the slide's longer side."""


def draw_registration(registration: Registration, points: pd.DataFrame | None = None) -> bytes:
    """PNG: checkerboard of both slides, shift arrows, residual map, and details at full resolution."""
    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(figsize=(11, 7.6), dpi=110, layout="constrained")
        FigureCanvasAgg(figure)
        board, arrows, left, *zooms = _panels(figure)
        picture, extent = _overview(registration)
        _show(board, _checkered(*picture, SQUARES), extent, "H&E and PHH3 in turn\nafter registration")
        _draw_arrows(arrows, registration, picture[0], extent)
        _draw_residuals(figure, left, registration, points, picture[0], extent)
        for axes, place in zip(zooms, _zoom_places(registration, points), strict=False):
            _draw_zoom(axes, registration, place)
        figure.suptitle(_title(registration), fontsize=10)
        data = io.BytesIO()
        figure.savefig(data, format="png", metadata={"Software": None})
    return data.getvalue()


def save_registration_picture(
    path: str | Path, registration: Registration, points: pd.DataFrame | None = None
) -> None:
    """Write the picture whole or not at all."""
    write_bytes(path, draw_registration(registration, points))


def _panels(figure: Figure) -> list[Axes]:
    grid = figure.add_gridspec(2, 6, height_ratios=(1.15, 1))
    places = [grid[0, 0:2], grid[0, 2:4], grid[0, 4:6], grid[1, 0:2], grid[1, 2:4], grid[1, 4:6]]
    panels = [figure.add_subplot(place) for place in places]
    for axes in panels:
        axes.set_axis_off()
    return panels


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


def _overview(registration: Registration) -> tuple[tuple[RGB, RGB], tuple[float, float, float, float]]:
    """Both slides in the H&E frame, and what they cover in um as (left, right, bottom, top)."""
    width, height = registration.pair.he.size_um
    mpp = max(width, height) / OVERVIEW_PX
    shape = max(1, round(width / mpp)), max(1, round(height / mpp))
    return _both(registration, np.zeros(2), shape, mpp), (0.0, width, height, 0.0)


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
) -> tuple[npt.NDArray[np.float64], Points]:
    """PHH3 places, in pixels of `mpp`, of H&E pixels; and their corner in um."""
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


def _show(axes: Axes, picture: RGB, extent: tuple[float, float, float, float], title: str) -> None:
    axes.imshow(picture, extent=extent, interpolation="antialiased")
    axes.set_xlim(extent[0], extent[1])
    axes.set_ylim(extent[2], extent[3])
    axes.set_title(title)


def _pale(picture: RGB) -> RGB:
    return np.asarray(255 - (255 - picture.astype(np.float32)) * 0.35, np.uint8)


def _draw_arrows(
    axes: Axes, registration: Registration, he: RGB, extent: tuple[float, float, float, float]
) -> None:
    """What the local field adds to the global similarity."""
    places = registration.controls.places
    transform = registration.transform
    start = transform.similarity.apply(places)
    local = transform.apply(places) - start
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
    extent: tuple[float, float, float, float],
) -> None:
    """What single tiles still miss after the transform; rejected points as crosses."""
    controls = registration.controls
    there, left = registration.transform.apply(controls.places), np.linalg.norm(controls.shifts, axis=1)
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


def _zoom_places(registration: Registration, points: pd.DataFrame | None) -> Points:
    """H&E places (um) to look at closely: points if there are any, else control tiles, well spread."""
    places = registration.transform.apply(registration.controls.places)
    if points is not None and points["accepted"].any():
        kept = points.loc[points["accepted"], ["x_he", "y_he"]].to_numpy()
        places = kept * registration.transform.he_mpp
    order = np.argsort(places[:, 0], kind="stable")
    few = order[(np.linspace(0.2, 0.8, min(ZOOMS, len(order))) * (len(order) - 1)).astype(int)]
    return np.asarray(places[few], np.float64)


def _draw_zoom(axes: Axes, registration: Registration, place: Points) -> None:
    mpp = registration.shape.mpp
    corner = place - ZOOM_PX * mpp / 2
    pair = _both(registration, corner, (ZOOM_PX, ZOOM_PX), mpp)
    side = ZOOM_PX * mpp
    x, y = place / registration.transform.he_mpp
    _show(axes, _checkered(*pair, ZOOM_SQUARES), (0, side, side, 0), f"{side:.0f} um at {x:.0f}, {y:.0f}")
