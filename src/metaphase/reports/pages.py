"""From templates to pages that are files: one style, and nothing asked of a network."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
from PIL import Image

from metaphase.base.arrays import RGB, Box, Floats
from metaphase.base.later import pandas as pd
from metaphase.base.tables import named
from metaphase.counting.clinical import count_text
from metaphase.labels.observers.project import Item, LabellingError
from metaphase.slides.contract import Slide
from metaphase.slides.tiles import cut_square, square_corners
from metaphase.version import __version__

POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; {script}"
    "base-uri 'none'; form-action 'none'"
)
"""What a page may load: pictures and styles inside the file, and no script but its own."""
DASH = "–"
UNITS = {"mm2": "mm²", "um": "µm", "px": "px", "mm": "mm"}
"""How the unit at the end of a measure's name is written."""


@dataclass(frozen=True)
class TextTable:
    """A table for reading; the first column names the row."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    @property
    def markdown(self) -> str:
        """Headings and rows for a page of documentation or an issue."""
        lines = (self.headings, ["---"] * len(self.headings), *self.rows)
        cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
        return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def render(template: str, script: str = "", *, beside: str = "", **content: Any) -> str:
    """The page of `template`, with a script inside where one is named.

    Values are escaped, missing ones are errors, and the policy allows just that script, and one `beside`
    the page where there is one.
    """
    policy = script_policy(script, "'self' file: " if beside else "")
    return (
        _environment()
        .get_template(template)
        .render(script=_script(script), beside=beside, policy=policy, version=__version__, **content)
    )


def script_policy(script: str, others: str = "") -> str:
    """What a page with this script, and `others`, may load and run."""
    if not script:
        return POLICY.format(script="")
    digest = base64.b64encode(hashlib.sha256(_script(script).encode()).digest()).decode()
    return POLICY.format(script=f"script-src {others}'sha256-{digest}'; ")


def _script(name: str) -> str:
    return _environment().get_template(name).render().strip() if name else ""


@cache
def _environment() -> jinja2.Environment:
    """Once a process: a compiled template serves all pages."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("metaphase.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=number,
        percent=percent,
        count=count_text,
        probability=probability_text,
        duration=duration,
        facts=facts_text,
        area=area,
        units=in_words,
        sentence=sentence,
    )
    return environment


def number(value: Any, digits: int = 3) -> str:
    """A number for reading, a dash where it is not finite.

    >>> number(12.0), number(0.12345), number(float("nan")), number(81234.5)
    ('12', '0.123', '–', '81,234')
    """
    if value is None or not math.isfinite(value):
        return DASH
    value = float(value)
    if value.is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def area(value: Any) -> str:
    """An area in mm² for reading, with two decimals wherever it stands.

    >>> area(2.0), area(0.0216), area(float("nan")), area(1234.5)
    ('2.00', '0.02', '–', '1,234.50')
    """
    return f"{value:,.2f}" if value is not None and math.isfinite(value) else DASH


def with_units(text: str) -> str:
    """A message as a page writes it: `mm2` is for plain text.

    >>> with_units("2 mm2 of tissue")
    '2 mm² of tissue'
    """
    return re.sub(r"\bmm2\b", "mm²", text)


def in_words(text: str) -> str:
    """A message for who reads a page and has no terminal: units, and no shell.

    >>> in_words("give --mpp, or see `metaphase tissue`")
    'give the option mpp, or see the command tissue'
    """
    words = re.sub(r"`?\bmetaphase ([a-z0-9]+)\b`?", r"the command \1", with_units(text))
    return re.sub(r"(?<![\w-])--(?=[a-z])", "the option ", words).replace("`", "")


def sentence(text: str) -> str:
    """A message as a sentence of a page.

    >>> sentence("no tissue in 2 mm2"), sentence("why?"), sentence("")
    ('No tissue in 2 mm².', 'Why?', '')
    """
    return (
        f"{text[0].upper()}{in_words(text)[1:]}" + ("" if text.endswith((".", "?")) else ".") if text else ""
    )


def probability_text(value: float) -> str:
    """Three decimals, cut and not rounded, so that no probability seems to reach a threshold it missed.

    >>> probability_text(0.79996), probability_text(0.8), probability_text(1.0)
    ('0.799', '0.800', '1.000')
    """
    return f"{math.floor(value * 1000 + 1e-9) / 1000:.3f}"


def percent(share: float) -> str:
    """A share as a whole percentage."""
    return f"{share:.0%}".replace("%", " %") if math.isfinite(share) else DASH


def measure(name: str) -> str:
    """The name of a measure for reading, its unit in brackets.

    >>> measure("nearest_neighbour_um"), measure("mean_per_mm2"), measure("dispersion")
    ('Nearest neighbour (µm)', 'Mean per mm²', 'Dispersion')
    """
    stem, _, unit = name.rpartition("_")
    words = name
    if stem and unit in UNITS:
        words = f"{stem} {UNITS[unit]}" if stem.endswith("per") else f"{stem} ({UNITS[unit]})"
    words = words.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def duration(seconds: float | None) -> str:
    """A time for reading.

    >>> duration(3.24), duration(754), duration(None)
    ('3.2 s', '12 min 34 s', '')
    """
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def jsonable(value: Any) -> Any:
    """Plain JSON values; undefined numbers become null."""
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable(asdict(value))
    if isinstance(value, pd.DataFrame):
        return jsonable(value.to_dict("records"))
    if isinstance(value, Mapping):
        return {str(name): jsonable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def facts_text(facts: Mapping[str, Any]) -> str:
    """What a stage made, in a line."""

    def plain(value: Any) -> str:
        if isinstance(value, list | tuple):
            return named(map(str, value))
        return f"{value:,}" if isinstance(value, int) else str(value)

    return ", ".join(f"{name} {plain(value)}" for name, value in facts.items())


LONG_SIDE = 1000.0
"""Units along the longer side of a drawing, whatever the slide's size."""
JPEG_QUALITY = 90
BEYOND = (42, 45, 49)
"""Colour of what a slide does not show; that of the labelling page."""
QUALITIES = (84, 74, 62, 48, 34)
"""JPEG qualities to try, best first, until pictures fit their budget."""


@dataclass(frozen=True)
class Circle:
    """A circle in units of a drawing."""

    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Frame:
    """A drawing over `box` (level-0 pixels) whose longer side is `LONG_SIDE` units."""

    box: Box

    @property
    def units_per_px(self) -> float:
        """Units of the drawing per level-0 pixel."""
        return LONG_SIDE / max(self.box.width, self.box.height)

    @property
    def width(self) -> float:
        """Width in units."""
        return self.box.width * self.units_per_px

    @property
    def height(self) -> float:
        """Height in units."""
        return self.box.height * self.units_per_px

    def position(self, x: npt.ArrayLike, y: npt.ArrayLike) -> Floats:
        """Level-0 positions in units of the drawing, (..., 2)."""
        corner = (self.box.x, self.box.y)
        return (np.stack([np.asarray(x, float), np.asarray(y, float)], axis=-1) - corner) * self.units_per_px

    def within(self, circle: Circle) -> bool:
        """Whether the whole drawing lies inside the circle, so that its line is nowhere to be seen."""
        width = max(circle.x, self.width - circle.x)
        height = max(circle.y, self.height - circle.y)
        return math.hypot(width, height) <= circle.radius


@dataclass(frozen=True)
class ScaleBar:
    """A line of a round physical length."""

    units: float
    label: str


def scale_bar(frame: Frame, mpp: float) -> ScaleBar:
    """The longest bar of 1, 2 or 5 times a power of ten that fits a quarter of the width."""
    longest_um = frame.box.width * mpp / 4
    decade = 10.0 ** math.floor(math.log10(longest_um))
    length_um = max(step * decade for step in (1, 2, 5) if step * decade <= longest_um * (1 + 1e-9))
    label = f"{length_um / 1000:g} mm" if length_um >= 100 else f"{length_um:g} µm"
    return ScaleBar(length_um / mpp * frame.units_per_px, label)


def dots_path(positions: Floats) -> str:
    """SVG path data with a zero-length stroke at each position (n, 2), positions that coincide once."""
    cells = np.unique(np.rint(positions).astype(int), axis=0)
    return "".join(f"M{x} {y}h0" for x, y in cells)


def jpeg_uris(pictures: Sequence[RGB], budget_bytes: int) -> list[str]:
    """The pictures as JPEG data URIs, at the best quality whose sum stays within the budget."""
    encoded: list[bytes] = []
    for quality in QUALITIES:
        encoded = [encode_jpeg(picture, quality, subsampling=2) for picture in pictures]
        if sum(map(len, encoded)) <= budget_bytes:
            break
    return [data_uri("image/jpeg", data) for data in encoded]


def encode_png(pixels: RGB, **options: Any) -> bytes:
    """RGB or RGBA pixels as a PNG."""
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG", **options)
    return data.getvalue()


def data_uri(kind: str, data: bytes) -> str:
    """Bytes of a kind (`image/png`) as part of a page; nothing where there are none."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}" if data else ""


def encode_jpeg(pixels: RGB, quality: int = JPEG_QUALITY, *, subsampling: int = 0) -> bytes:
    """A JPEG without metadata; colours at full resolution (`subsampling` 0) or half of it (2)."""
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG", quality=quality, subsampling=subsampling, optimize=True)
    return data.getvalue()


def item_view(slide: Slide, item: Item, side_um: float, side_px: int) -> RGB:
    """A square of `side_um` with the item in its middle; dark beyond the slide's edge, unlike glass."""
    if not (0 <= item.x < slide.width and 0 <= item.y < slide.height):
        raise LabellingError(
            f"({item.x:g}, {item.y:g}) lies outside the slide of {slide.width} x {slide.height} pixels",
            path=item.slide,
            next_step="check that x and y are level-0 pixels of this slide",
        )
    mpp = side_um / side_px
    pixels = cut_square(slide, item.x, item.y, side_px, mpp).copy()
    corner = square_corners(slide, np.array([[item.x, item.y]]), side_px, mpp)[0]
    offsets = (np.arange(side_px)[:, None] + 0.5 + corner) * (mpp / slide.mpp)
    columns, rows = (offsets + np.array([slide.bounds.x, slide.bounds.y])).T
    pixels[(rows < 0) | (rows >= slide.height)] = BEYOND
    pixels[:, (columns < 0) | (columns >= slide.width)] = BEYOND
    return pixels
