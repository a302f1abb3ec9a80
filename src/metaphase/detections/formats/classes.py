"""How labels look in other programs: the names data sets use, a colour each, the probability as a note."""

from __future__ import annotations

import colorsys
import re
import zlib
from collections.abc import Iterable

from metaphase.detections.table import IGNORE, LOOKALIKE, MITOSIS

Colour = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

NAMES = {MITOSIS: "mitotic figure", LOOKALIKE: "non-mitotic figure", IGNORE: "Ignore*"}
"""MIDOG's names for the classes, and QuPath's for what does not count; `common_label` knows them all."""
COLOURS: dict[str, Colour] = {MITOSIS: (220, 30, 40), LOOKALIKE: (30, 110, 220), IGNORE: (150, 150, 150)}
NOTE_DIGITS = 6

_NOTE = re.compile(r"\bp=([0-9.]+(?:e[-+]?[0-9]+)?)$")


def ordered(labels: Iterable[str]) -> list[str]:
    """Mitosis and look-alike first, as MIDOG numbers them and whether present or not, then the others."""
    return list(dict.fromkeys((MITOSIS, LOOKALIKE, *sorted(labels))))


def name_of(label: str) -> str:
    """The class name to write for a label."""
    return NAMES.get(label, label)


def colour_of(label: str) -> Colour:
    """The colour of a label; one that is not ours gets a hue that depends on its name alone."""
    if label in COLOURS:
        return COLOURS[label]
    hue = zlib.crc32(label.encode()) / 2**32
    red, green, blue = (round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.75, 0.8))
    return red, green, blue


def hex_colour(label: str) -> str:
    """The colour of a label as #rrggbb."""
    return "#{:02x}{:02x}{:02x}".format(*colour_of(label))


def probability_note(probability: float) -> str:
    """A probability for formats that only have room for a remark.

    >>> probability_note(0.973125)
    'p=0.973125'
    """
    return f"p={probability:.{NOTE_DIGITS}g}"


def noted_probability(note: str | None) -> float | None:
    """The probability at the end of a remark, None where there is none."""
    found = _NOTE.search(note or "")
    return float(found[1]) if found else None
