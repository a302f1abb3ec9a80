"""From templates to one HTML file that asks nothing of a network and runs no script."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from metaphase import __version__
from metaphase.web.slide_report.rendering import page_environment

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class TextTable:
    """Headings and cells for reading; the first column names the row."""

    headings: list[str]
    rows: list[list[str]]
    caption: str = ""


def render(template: str, **content: Any) -> str:
    """The page of `template`; styles are shared with the slide report."""
    environment = page_environment("metaphase.web.run_page", "metaphase.web.slide_report")
    return environment.get_template(template).render(policy=POLICY, version=__version__, **content)


def png_uri(png: bytes) -> str:
    """PNG bytes as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


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
