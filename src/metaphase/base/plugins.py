"""What other packages add: backends of slides, formats of detections, networks.

A package names them as entry points of its own, and they are there wherever ours are:

    [project.entry-points."metaphase.slides"]      # a `metaphase.slides.SlideBackend`
    [project.entry-points."metaphase.formats"]     # a `metaphase.detections.Format`
    [project.entry-points."metaphase.networks"]    # a function that builds a network of a `NetworkSpec`
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal

Group = Literal["metaphase.slides", "metaphase.formats", "metaphase.networks"]
_log = logging.getLogger(__name__)


@cache
def plugin_names(group: Group) -> tuple[str, ...]:
    """Their names; nothing is loaded."""
    return tuple(sorted({one.name for one in entry_points(group=group)}))


@cache
def plugins(group: Group) -> dict[str, Any]:
    """All of a group by name; one that cannot be loaded is left out, and the log says why."""
    found: dict[str, Any] = {}
    for one in sorted(entry_points(group=group), key=lambda one: one.name):
        try:
            found.setdefault(one.name, one.load())
        except Exception as error:  # noqa: BLE001 -- code of others may fail in any way, and ours goes on
            _log.warning("%s of %s cannot be used: %s", one.name, one.value, error)
    return found
