"""One row of a job's table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Facts = dict[str, Any]
"""Plain values worth knowing about what a stage made."""
Report = Callable[[str, float, float], None]
"""Called with what is being made, how much is finished and how much there is."""


def silent(what: str, done: float, total: float) -> None:
    """A report that nobody reads."""


@dataclass(frozen=True)
class Stage:
    """A piece of work whose result is kept: done when its record says the same as now."""

    name: str
    """Name in the table; also of its record."""
    about: str
    """What it makes, for people."""
    reads: tuple[str, ...]
    """Stages whose results it uses."""
    writes: tuple[str, ...]
    """Files or folders of the workspace; all must be there for the stage to be done."""
    work: Callable[[Report], Facts]
    """Makes them, or goes on where an earlier call was stopped."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Plain values that decide the result."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of files from outside the workspace."""
    renew: bool = False
    """Remove what an earlier run with other settings or inputs wrote before working."""
