"""Detection sets for tests of writing."""

from __future__ import annotations

import unicodedata

import pandas as pd
from hypothesis import strategies as st

from metaphase.detections.table import COLUMNS, DetectionSet, detection_set

NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=12).filter(
    lambda name: name == name.strip() and name.strip(".")
)
PLACES = st.floats(-100, 2e5)
PROBABILITIES = st.floats(0, 1) | st.sampled_from([0.0, 1.0])
LABELS = st.sampled_from(["mitosis", "lookalike", "ignore", "unclassified", "tumour & <stroma> “cell”"])


def one_file(name: str) -> str:
    """What names have in common that some systems take for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


@st.composite
def detection_sets(draw: st.DrawFn, max_slides: int = 4) -> DetectionSet:
    """Any points on any slides, some of them without points."""
    slides = draw(st.lists(NAMES, min_size=1, max_size=max_slides, unique_by=one_file))
    rows = draw(
        st.lists(st.tuples(st.sampled_from(slides), PLACES, PLACES, PROBABILITIES, LABELS), max_size=12)
    )
    return detection_set(pd.DataFrame(rows, columns=list(COLUMNS)), tuple(slides))


def points_by_slide(detections: DetectionSet) -> dict[str, list[tuple[float, float, float, str]]]:
    """Place, probability and label of the points of every slide covered, in order."""
    found: dict[str, list[tuple[float, float, float, str]]] = {slide: [] for slide in detections.slides}
    for slide, *point in detections.table[list(COLUMNS)].itertuples(index=False, name=None):
        found[slide].append(tuple(point))  # type: ignore[arg-type]
    return found


def provenance_set() -> DetectionSet:
    """Two slides of three, with numbers, whole numbers, truths and text about each point."""
    frame = pd.DataFrame(
        {
            "slide": ["a.svs", "a.svs", "b.svs"],
            "x": [1.5, 2.5, 1e5],
            "y": [3.25, 4.0, 5.0],
            "probability": [0.0, 1.0, 0.875],
            "label": ["mitosis", "lookalike", "mitosis"],
            "tile": [7, 8, 9],
            "distance_um": [0.5, float("nan"), 2.25],
            "model": ["cnn5", "cnn5", "CNN5 ½"],
            "mixed": [1, "two", None],
        }
    )
    return detection_set(frame, ("a.svs", "leer – 空.svs"))
