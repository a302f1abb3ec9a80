"""The pictures of a slide's report: the whole slide, the hotspot, and the detections cut from it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

import cv2
import numpy as np
import shapely

from metaphase.base.arrays import RGB, Box, Floats, Floats32, Integers
from metaphase.counting.clinical import slide_density
from metaphase.counting.spread import DensityMap, block_sums
from metaphase.images.tissue.finding import TissueMask
from metaphase.reports.pages import Circle, Frame, data_uri, dots_path, encode_png, jpeg_uris, scale_bar
from metaphase.reports.record import SlideRecord
from metaphase.reports.slide.inputs import Points, ReportInput, drawn_hotspot
from metaphase.slides.contract import Slide
from metaphase.slides.tiles import cut_square

# ---- the whole slide ----

THUMBNAIL_PX = 1400
THUMBNAIL_BYTES = 600_000
OUTLINE_MASK_PX = 700
"""Longer side of the mask that the outline follows; finer detail would not show."""
OUTLINE_UNITS = 0.8
"""How far the outline may be from the mask, and the size below which a piece is left out."""
OUTLINE_MASK_SHARE = 0.8
"""The same in pixels of the mask, whose stairs are not tissue."""
DENSITY_PX = 512
MAX_DOTS = 20_000
CROWDED_DOTS = 1500
"""From here on dots are drawn small, or they would cover the slide."""
LEGEND_STOPS = 9


def overview_of(slide: Slide, result: ReportInput, points: Points) -> dict[str, Any]:
    """The thumbnail, and the layers over it."""
    record, frame = result.record, Frame(slide.bounds)
    longest = max(slide.bounds.width, slide.bounds.height)
    dots = points.counted[:MAX_DOTS]
    circles = counted_circles(record, frame)
    about: dict[str, Any] = {"mpp": record.mpp, "config": record.config, "scope": record.scope}
    density = slide_density(result.detections, tissue=result.tissue, **about)
    return {
        "frame": frame,
        "image": jpeg_uris([slide.thumbnail(min(THUMBNAIL_PX, longest))], THUMBNAIL_BYTES)[0],
        "outline": outline_path(result.tissue, frame),
        "heat": heat_of(density, frame),
        "circles": circles,
        "beyond": len(circles) == 1 and frame.within(circles[0]),
        "regions": region_paths(record, frame),
        "dots": dots_path(frame.position(dots["x"], dots["y"])),
        "dots_left_out": len(points.counted) - len(dots),
        "crowded": len(dots) >= CROWDED_DOTS,
        "bar": scale_bar(frame, slide.mpp),
        "rings": rings_in(frame, points) if closeup_box(slide, record) == slide.bounds else [],
    }


def counted_circles(record: SlideRecord, frame: Frame) -> list[Circle]:
    """The hotspot, or the fields that are counted in its place, in units of a drawing."""
    hotspot = drawn_hotspot(record)
    placed = [] if hotspot is None else [(frame.position(x, y), radius) for x, y, radius in hotspot.circles]
    return [Circle(float(x), float(y), radius * frame.units_per_px) for (x, y), radius in placed]


def region_paths(record: SlideRecord, frame: Frame) -> list[tuple[str, str, str]]:
    """Kind, name and SVG path data of each region."""
    paths: list[tuple[str, str, str]] = []
    for region in record.scope.regions:
        rings = [np.asarray(ring) for polygon in region.polygons for ring in polygon]
        path = _path_of(frame.position(ring[:, 0], ring[:, 1]) for ring in rings)
        paths.append((region.kind, region.name, path))
    return paths


def _path_of(rings: Iterable[Floats]) -> str:
    return "".join("M" + "L".join(f"{x:g} {y:g}" for x, y in ring.round(1)) + "Z" for ring in rings)


def outline_path(tissue: TissueMask, frame: Frame) -> str:
    """SVG path data of the tissue's outline, holes included, coarse enough to stay small."""
    coarse = coarse_tissue(tissue)
    tolerance = max(OUTLINE_UNITS, OUTLINE_MASK_SHARE * coarse.scale * frame.units_per_px)
    units = shapely.MultiPolygon(list(coarse.polygons()))
    units = shapely.transform(units, lambda corners: frame.position(corners[:, 0], corners[:, 1]))
    simple = shapely.get_parts(shapely.simplify(units, tolerance))
    pieces = [part for part in simple if part.area > (4 * OUTLINE_UNITS) ** 2]
    return _path_of(
        np.asarray(ring.coords)[:-1] for part in pieces for ring in (part.exterior, *part.interiors)
    )


def heat_of(density: DensityMap, frame: Frame) -> dict[str, Any] | None:
    """The density as a picture, its place in units and its legend; None where it holds no mitosis."""
    values = np.nan_to_num(density.values.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    highest = float(values.max(initial=0.0))
    if highest <= 0:
        return None
    rows, columns = values.shape
    if (shrink := max(rows, columns) / DENSITY_PX) > 1:
        size = (max(1, round(columns / shrink)), max(1, round(rows / shrink)))
        values = np.asarray(cv2.resize(values, size, interpolation=cv2.INTER_AREA), np.float32)
    x, y = frame.position(density.x, density.y)
    step = density.step_px * frame.units_per_px
    colours = heat_colours(np.linspace(0, 1, LEGEND_STOPS, dtype=np.float32)[None])[0]
    stops = ", ".join(f"rgb({r} {g} {b} / {a / 255:.2f})" for r, g, b, a in colours)
    return {
        "image": data_uri("image/png", encode_png(heat_colours(values / highest), optimize=True)),
        "x": float(x),
        "y": float(y),
        "width": columns * step,
        "height": rows * step,
        "ticks": ("0", *(f"{tick:.0f}" if tick >= 10 else f"{tick:.2g}" for tick in (highest / 2, highest))),
        "legend": f"linear-gradient(90deg, {stops})",
    }


def heat_colours(share: Floats32) -> RGB:
    """RGBA of densities given as a share of the highest: clear at 0, then green-blue to strong yellow."""
    share = np.clip(share, 0, 1)
    colours = cv2.applyColorMap(np.rint(55 + share * 200).astype(np.uint8), cv2.COLORMAP_VIRIDIS)
    alpha = np.rint(165 * np.sqrt(share)).astype(np.uint8)
    return np.dstack([colours[..., ::-1], alpha])


def coarse_tissue(tissue: TissueMask) -> TissueMask:
    """The mask as coarse as outlines show it."""
    factor = max(1, -(-max(tissue.mask.shape) // OUTLINE_MASK_PX))
    if factor == 1:
        return tissue
    is_tissue = block_sums(tissue.mask.astype(float), factor) >= 0.5 * factor**2
    return TissueMask(is_tissue, tissue.mpp * factor, tissue.x, tissue.y, tissue.scale * factor)


# ---- the hotspot large enough to recognise architecture ----

CLOSEUP_MPP = 2.0
CLOSEUP_BYTES = 500_000
MARGIN = 1.08
"""Half the side of the close-up, in radii of the hotspot."""
RING_UNITS = 13.0
MAX_RINGS = 600


def closeup_box(slide: Slide, record: SlideRecord) -> Box | None:
    """The surroundings of the hotspot on the slide; None where there are none."""
    hotspot = drawn_hotspot(record)
    if hotspot is None:
        return None
    half = hotspot.radius_px * MARGIN
    x, y = math.floor(hotspot.x - half), math.floor(hotspot.y - half)
    box = Box(x, y, math.ceil(2 * half), math.ceil(2 * half)).intersection(slide.bounds)
    return box if box.area else None


def rings_in(frame: Frame, points: Points) -> list[tuple[int, float, float]]:
    """Rank and position of each counted detection in a drawing, the most probable of many."""
    counted = points.counted
    positions = frame.position(counted["x"], counted["y"]).round(1)
    inside = ((positions >= 0) & (positions <= (frame.width, frame.height))).all(axis=1)
    rows = np.flatnonzero(inside)[:MAX_RINGS]
    return [(int(counted.index[row]) + 1, *positions[row].tolist()) for row in rows]


def closeup_of(slide: Slide, record: SlideRecord, points: Points) -> dict[str, Any] | None:
    """The surroundings of the hotspot at about 2 um/px; None where they are all of the slide, or not on it.

    `rings` are rank and position of each detection that has one; `crowded` says that only the most probable
    ones do.
    """
    box = closeup_box(slide, record)
    if box is None or box == slide.bounds:
        return None
    frame, mpp = Frame(box), max(CLOSEUP_MPP, slide.mpp)
    width, height = (max(1, round(side * slide.mpp / mpp)) for side in (box.width, box.height))
    rings = rings_in(frame, points)
    return {
        "frame": frame,
        "image": jpeg_uris([slide.read(box.x, box.y, width, height, mpp)], CLOSEUP_BYTES)[0],
        "mpp": mpp,
        "circles": counted_circles(record, frame),
        "regions": region_paths(record, frame),
        "rings": rings,
        "crowded": len(rings) == MAX_RINGS,
        "bar": scale_bar(frame, slide.mpp),
    }


# ---- detections cut from the slide ----

CROP_PX = 256
"""Side of a crop at 0.25 um/px: 64 um."""
HOTSPOT_MOST, ELSEWHERE_LEAST, COUNTED_MOST, LOOK_MOST, BORDERLINE_MOST = 54, 9, 54, 27, 9
"""Crops of the hotspot at most; of other positions at least, however full the hotspot is; of both together,
where the hotspot leaves room; of what is to be looked at; on each side of the threshold."""
GALLERY_BYTES = 1_600_000
CONTEXT_UM, CONTEXT_PX = 256.0, 384
"""Side of the surroundings of a detection; the middle half of it, 128 um, is shown larger."""
CONTEXT_BYTES = 900_000


class Crop(NamedTuple):
    """The pictures of one detection, and where it lies in the drawings."""

    number: int
    """Its rank by probability, from 1."""
    row: Any
    """Of the table of points."""
    image: str
    context: str
    """Its surroundings."""
    overview: list[float]
    closeup: list[float] | None


Group = tuple[str, list[Crop], int]
"""Title and crops of a part of the gallery, and out of how many; 0 where that is not said."""


def choose(points: Points, *, small: bool = False) -> list[tuple[str, Integers, int]]:
    """Title, rows and out of how many of each part that is shown; parts do not overlap, none is empty.

    On a `small` slide all is counted, and there is no hotspot to speak of.
    """
    where = "" if small else ", in the hotspot"
    counted, inside, open_ = (
        points.table[name].to_numpy(bool) for name in ("counted", "in_hotspot", "to_look_at")
    )
    elsewhere, under = np.flatnonzero(counted & ~inside), np.flatnonzero(~counted & ~open_)
    first = np.flatnonzero(inside)[:HOTSPOT_MOST]
    others = elsewhere[: max(ELSEWHERE_LEAST, COUNTED_MOST - len(first))]
    rest = np.setdiff1d(np.flatnonzero(counted), np.concatenate([first, others]))
    parts = (
        (f"Counted{where}", first, int(inside.sum())),
        ("Counted, elsewhere on the slide", others, len(elsewhere)),
        ("Counted, but only just", rest[-BORDERLINE_MOST:], 0),
        (f"To be looked at{where}", np.flatnonzero(open_)[:LOOK_MOST], int(open_.sum())),
        ("Not counted: nearest below the threshold", under[:BORDERLINE_MOST], len(under)),
    )
    return [part for part in parts if len(part[1])]


def gallery_of(
    slide: Slide, points: Points, record: SlideRecord, overview: Frame, closeup: Frame | None
) -> list[Group]:
    """Cut the chosen detections from the slide, in the order of `choose`."""
    parts = choose(points, small=record.is_small)
    rows: list[Any] = [row for _, indices, _ in parts for row in points.table.iloc[indices].itertuples()]
    mpp = CONTEXT_UM / CONTEXT_PX
    images = jpeg_uris([cut_square(slide, row.x, row.y, CROP_PX) for row in rows], GALLERY_BYTES)
    contexts = jpeg_uris([cut_square(slide, row.x, row.y, CONTEXT_PX, mpp) for row in rows], CONTEXT_BYTES)

    def crop(row: Any, image: str, context: str) -> Crop:
        place = overview.position(row.x, row.y).round(1).tolist()
        left, top = near = [0.0, 0.0] if closeup is None else closeup.position(row.x, row.y).round(1).tolist()
        is_near = closeup is not None and 0 <= left <= closeup.width and 0 <= top <= closeup.height
        return Crop(row.Index + 1, row, image, context, place, near if is_near else None)

    crops = iter([crop(*each) for each in zip(rows, images, contexts, strict=True)])
    return [(title, list(islice(crops, len(indices))), total) for title, indices, total in parts]


# ---- how sure the network was ----

BINS = 50
WIDTH, HEIGHT = 600.0, 150.0
THINNEST = 0.5
"""Width of a bar that the threshold leaves no room for."""
TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def histogram_of(probability: Floats, threshold: float) -> dict[str, Any]:
    """Bars from left (probability 0) to right (1), and the threshold's position.

    Bins are 0.02 wide; one that the threshold cuts is drawn in two parts.
    """
    edges = np.unique(np.append(np.linspace(0, 1, BINS + 1).round(6), threshold))
    counts, _ = np.histogram(probability, edges)
    most = int(counts.max(initial=0))
    bars = []
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        if count:
            height = HEIGHT * int(count) / most
            left, width = low * WIDTH, (high - low) * WIDTH
            gap = min(1.0, width / 4)
            bars.append(
                {
                    "x": round(left + gap / 2, 2),
                    "y": round(HEIGHT - height, 2),
                    "width": round(max(width - gap, THINNEST), 2),
                    "height": round(height, 2),
                    "text": f"{count} from {low:.3g} to {high:.3g}",
                    "counted": low >= threshold,
                }
            )
    ticks = [(tick * WIDTH, f"{tick:g}") for tick in TICKS]
    size = {"width": WIDTH, "height": HEIGHT}
    return size | {"bars": bars, "threshold_x": threshold * WIDTH, "ticks": ticks, "most": most}
