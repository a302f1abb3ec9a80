"""Slides that OpenSlide reads and slides in memory, and the micrometres per pixel that a file states."""

from __future__ import annotations

import io
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import openslide

from metaphase.base.arrays import BELIEVABLE_MPP, RGB, Box
from metaphase.base.errors import ResultWarning, ResultWarnings, UsageError
from metaphase.slides.contract import Resolution, Slide, SlideInfo, as_rgb, damage, make_levels

SQUARE_TOLERANCE = 0.02
CHECK_MPP = (
    "check the micrometres per pixel with the scanner's maker: the area of the hotspot depends on them"
)
GIVE_MPP = "give --mpp, or the column mpp of a manifest"

_MICROMETRES = {"µm": 1.0, "um": 1.0, "μm": 1.0, "nm": 1e-3, "mm": 1e3, "cm": 1e4, "m": 1e6} | {
    "micrometer": 1.0,
    "micron": 1.0,
    "nanometer": 1e-3,
    "millimeter": 1e3,
    "meter": 1e6,
}


def choose_resolution(
    stated: tuple[float, float] | None, flag: float | None, path: Path | None
) -> tuple[Resolution | None, ResultWarnings]:
    """Resolution from the file's (x, y) mpp and the user's flag, and warnings. The flag wins."""
    x, y = stated or (0.0, 0.0)
    own = math.sqrt(x * y) if _believable(x) and _believable(y) else None
    if flag is not None:
        check_flag(flag, path)
        text = f"the given {flag:g} um/px overrides the {own:.4g} of the file" if own else ""
        overridden = ResultWarning("mpp-overridden", text, CHECK_MPP)
        differs = own is not None and abs(flag / own - 1) > SQUARE_TOLERANCE
        return Resolution(float(flag), "flag"), (overridden,) if differs else ()
    if stated is None:
        return None, (ResultWarning("no-mpp", "the file states no micrometres per pixel", GIVE_MPP),)
    if own is None:
        text = f"the file states {x:.4g} x {y:.4g} um/px, which no bright-field scan has"
        return None, (ResultWarning("odd-mpp", text, GIVE_MPP),)
    text = f"pixels are not square ({x:.4g} x {y:.4g} um)"
    oblong = ResultWarning("oblong-pixels", text, "areas are right; a length uses the geometric mean")
    return Resolution(own, "metadata"), (oblong,) if abs(x / y - 1) > SQUARE_TOLERANCE else ()


def slide_info(
    path: Path | None,
    backend: str,
    sizes: Iterable[tuple[int, int]],
    stated: tuple[float, float] | None,
    mpp: float | None,
    **more: Any,
) -> SlideInfo:
    """What is known of a slide, by the sizes of its levels and the (x, y) mpp that it states."""
    resolution, warnings = choose_resolution(stated, mpp, path)
    levels = make_levels(sizes)
    full = Box(0, 0, levels[0].width, levels[0].height)
    usual: dict[str, Any] = {"vendor": backend, "bounds": full, "warnings": warnings}
    return SlideInfo(levels=levels, resolution=resolution, backend=backend, path=path, **(usual | more))


def check_flag(mpp: float, path: Path | None) -> None:
    """Refuse a resolution that no bright-field scan has."""
    low, high = BELIEVABLE_MPP
    if not _believable(mpp):
        raise UsageError(
            f"{mpp:g} um/px is not the resolution of a bright-field scan",
            path=path,
            next_step=f"give micrometres per pixel between {low:g} and {high:g}; a 40x scan has about 0.25",
        )


def micrometres(unit: str) -> float | None:
    """Micrometres in a unit of length, by its sign or its name; None where it is none."""
    name = unit.strip().lower().replace("metre", "meter").removesuffix("s")
    return _MICROMETRES.get(unit.strip(), _MICROMETRES.get(name))


def openslide_mpp(properties: Mapping[str, str]) -> tuple[float, float] | None:
    """(x, y) mpp from OpenSlide's standard properties."""
    try:
        return float(properties["openslide.mpp-x"]), float(properties["openslide.mpp-y"])
    except (KeyError, ValueError):
        return None


def aperio_properties(description: str) -> dict[str, str]:
    """What an Aperio file says of itself, under OpenSlide's names.

    >>> aperio_properties("Aperio Image Library v1|AppMag = 20|MPP = 0.499")["openslide.mpp-x"]
    '0.499'
    """
    fields = (part.partition("=") for part in description.split("|")[1:])
    own = {name.strip(): value.strip() for name, _, value in fields}
    known = {"openslide.mpp-x": "MPP", "openslide.mpp-y": "MPP", "openslide.objective-power": "AppMag"}
    return {name: own[field] for name, field in known.items() if field in own}


def ome_mpp(xml: str) -> tuple[float, float] | None:
    """(x, y) mpp from the first Pixels element of OME-XML.

    >>> ome_mpp('<OME><!-- <Pixels PhysicalSizeX="9" PhysicalSizeY="9"/> --></OME>')
    """
    attributes: Mapping[str, str] = {}
    with suppress(ET.ParseError):  # what comes before the fault holds
        for _, element in ET.iterparse(io.StringIO(xml), ["start"]):
            if element.tag.rpartition("}")[2] == "Pixels":
                attributes = element.attrib
                break
    try:
        x, y = (
            float(attributes[f"PhysicalSize{axis}"])
            * _MICROMETRES[attributes.get(f"PhysicalSize{axis}Unit", "µm")]
            for axis in "XY"
        )
    except (KeyError, ValueError):
        return None
    return x, y


def _believable(mpp: float) -> bool:
    low, high = BELIEVABLE_MPP
    return math.isfinite(mpp) and low <= mpp <= high


# ---- slides of every vendor that OpenSlide 4 knows ----

Properties = dict[str, str]


class OpenSlideSlide(Slide):
    """A slide read through OpenSlide, whose handles are thread-safe."""

    def __init__(self, path: Path, mpp: float | None = None) -> None:
        self._path = path
        with damage(path, "OpenSlide cannot open it"):
            self._handle = openslide.OpenSlide(path)
        properties = dict(self._handle.properties)
        sizes = self._handle.level_dimensions
        more = {
            "vendor": properties.get("openslide.vendor", "unknown"),
            "bounds": filled_bounds(properties, Box(0, 0, *sizes[0])),
            "objective_power": objective_power(properties),
        }
        super().__init__(slide_info(path, "openslide", sizes, openslide_mpp(properties), mpp, **more))

    def _decode(self, level: int, box: Box) -> RGB:
        # OpenSlide wants the corner in whole level-0 pixels and divides by its own downsample, so where that
        # is no whole number a coarser level comes out up to half a level-0 pixel (about 0.1 um) off.
        downsample = self._handle.level_downsamples[level]
        corner = (round(box.x * downsample), round(box.y * downsample))
        size, handle = (box.width, box.height), self._handle
        try:
            image = handle.read_region(corner, level, size)
        except openslide.OpenSlideError:  # after which a handle reads nothing more
            with self.decoding(level, box):
                if self._handle is handle:
                    self._handle = openslide.OpenSlide(self._path)
                with openslide.OpenSlide(self._path) as own:  # others may spoil one that is shared
                    image = own.read_region(corner, level, size)
        return as_rgb(np.asarray(image))

    def close(self) -> None:
        """Release the file."""
        self._handle.close()


def filled_bounds(properties: Properties, full: Box) -> Box:
    """The part of level 0 that the scanner filled, where the format says so (MRXS, SCN, ...)."""
    try:
        x, y, width, height = (
            int(properties[f"openslide.bounds-{k}"]) for k in ("x", "y", "width", "height")
        )
    except (KeyError, ValueError):
        return full
    bounds = Box(x, y, width, height).intersection(full)
    return bounds if bounds.area else full


def objective_power(properties: Properties) -> float | None:
    """Magnification of the objective, where stated."""
    try:
        return float(properties["openslide.objective-power"])
    except (KeyError, ValueError):
        return None
