"""From templates to pages that are files: one style, and nothing asked of a network."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jinja2

from metaphase.counting import count_text
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


@dataclass(frozen=True)
class StageRow:
    """A stage of a job as a page shows it."""

    name: str
    about: str
    status: str
    seconds: float | None
    facts: Mapping[str, Any] = field(default_factory=dict)


def render(template: str, script: str = "", *, beside: str = "", **content: Any) -> str:
    """The page of `template`, with a script inside where one is named.

    Values are escaped, missing ones are errors, and the policy allows just that script, and one `beside`
    the page where there is one.
    """
    environment = _environment()
    source, allowed = "", ""
    if script:
        source = environment.get_template(script).render().strip()
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        others = "'self' file: " if beside else ""
        allowed = f"script-src {others}'sha256-{digest}'; "
    policy = POLICY.format(script=allowed)
    return environment.get_template(template).render(
        script=source, beside=beside, policy=policy, version=__version__, **content
    )


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
    environment.filters.update(number=number, percent=percent, count=count_text, probability=probability_text)
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
