"""The detection table: columns, labels and names, the same everywhere.

Truth, predictions and observers' points all have this form, so that any can be compared with any.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import numpy as np

from metaphase.base.errors import ResultWarning, ResultWarnings
from metaphase.base.foreign import is_text, printable
from metaphase.base.later import pandas as pd
from metaphase.base.tables import TableError, as_text, named, numbers_of, require_columns, require_numbers

# ---- the detection table ----

PAPER_FLOOR = 0.8
"""The paper keeps nothing below this probability; here it serves where nothing was tuned."""
PAPER_SUPPRESS_UM = 25.0
"""The paper's d: 100 px of 0.25 um."""
PAPER_THETA1, PAPER_THETA2 = 6.0, 20.0
"""The paper's: counts up to the first are grade 1, counts above the second grade 3."""
PeakMethod = Literal["maxima", "components"]
"""How detections are taken from a probability map."""
OPERATING_POINTS = "operating_points"
"""Attribute of a table of detections: the model and the operating points at which it was made."""
LISTED, COUNTED = "listed", "counted"
"""Columns of a table of detections: whether one is a mitosis at that point, and enters the count."""
CHANCE = "chance"
"""Column of a table of detections: the chance of a mitosis in the laboratory whose profile was given."""
ATYPICAL = "atypical"
"""Column of a table of detections: the chance that a mitosis is atypical, as a network says; for research.
In a reference table 1 where it is, 0 where it is not, empty where nobody said."""
MACHINE = "machine_probability"
"""Column of a reviewed table: what the network said; empty where it saw nothing."""
REVIEWED, REVIEWERS = "review", "reviewers"
"""Columns of a reviewed table: what people say of it together (empty: nobody looked), and who they are."""
SUMMARY, DETECTIONS = "summary.json", "detections.parquet"
"""File beside the detections of a slide that says all about them."""
CANDIDATES = "candidates.parquet"
"""File with the weaker ones, too, of which a threshold is chosen."""
COLUMNS = ("slide", "x", "y", "probability", "label")
MITOSIS, LOOKALIKE, IGNORE = "mitosis", "lookalike", "ignore"
BELOW = "mitosis: below count threshold"
"""Class of a mitosis that does not enter the count, in files that have no column `counted`."""
CERTAIN = 1.0
"""Probability of a point whose source states none."""

_DENIAL = re.compile(r"\bnon(?!e\b)|\bnot\b|look.?a?like|negative|imposter|similar|ähnlich")
_MITOSIS = re.compile(r"mitos|mitot")
_PLAIN = dict.fromkeys(("1", "1.0", "true", "yes"), MITOSIS) | dict.fromkeys(
    ("0", "0.0", "false", "no"), LOOKALIKE
)
"""Whether it is one, as tables say it in a word."""
_BELOW = re.compile(r"\bbelow\b.*\bthreshold\b")
_TRUTHS = {"true": True, "1": True, "1.0": True, "": True, "false": False, "0": False, "0.0": False}


@dataclass(frozen=True)
class DetectionSet:
    """Points, and every slide that was looked at: a slide without points is an answer too."""

    table: pd.DataFrame
    """Columns `slide, x, y, probability, label` first, whatever else the source gave after them."""
    slides: tuple[str, ...]
    """All slides covered, those without a single point included."""
    source: str = field(default="detections", compare=False)
    """Where the points came from, for messages."""
    warnings: ResultWarnings = field(default=(), compare=False)
    """What a file held that became no point."""

    def with_table(self, table: pd.DataFrame) -> DetectionSet:
        """Other points of the same slides and source."""
        return replace(self, table=table.reset_index(drop=True))

    def of_label(self, label: str) -> DetectionSet:
        """The points of one label; the slides covered stay the same."""
        return self.with_table(self.table[self.table["label"] == label])

    def at_least(self, threshold: float) -> DetectionSet:
        """The points from a probability on; the slides covered stay the same."""
        return self.with_table(self.table[self.table["probability"] >= threshold])


def detection_set(
    frame: pd.DataFrame,
    slides: tuple[str, ...] = (),
    source: str | Path = "detections",
    *,
    markers: bool = False,
) -> DetectionSet:
    """Check a table of points and bring it into the common form.

    A missing probability is 1, a missing label is mitosis. Where a column or a class says which mitoses enter
    the count, the column `counted` does. With `markers`, a row that names a slide and leaves x and y empty
    says that the slide was looked at and nothing was found; else it is an error.
    """
    require_columns(frame, ("slide", "x", "y"), source)
    require_numbers(frame, ("x", "y", "probability"), source)
    stated = frame["probability"] if "probability" in frame.columns else pd.Series(CERTAIN, frame.index)
    names = as_text(frame["label"]) if "label" in frame.columns else pd.Series("", frame.index, object)
    table = frame.assign(
        slide=as_text(frame["slide"]),
        x=numbers_of(frame["x"]),
        y=numbers_of(frame["y"]),
        probability=numbers_of(stated).fillna(CERTAIN),
        label=names.map({name: common_label(name) if name else MITOSIS for name in names.unique()}),
    )
    if (counted := _counted(frame, names)) is not None:
        table[COUNTED] = counted & (table["label"] == MITOSIS)
    covered = tuple(dict.fromkeys((*slides, *table["slide"])))
    point = ~(table["x"].isna() & table["y"].isna() & markers)
    table = table[[*COLUMNS, *(name for name in table.columns if name not in COLUMNS)]][point]
    _check(table, source)
    warnings: ResultWarnings = ()
    missing = int(stated[point].isna().sum())
    if missing not in (0, len(table)):
        text = f"{missing} of {len(table)} points have no probability and count as certain"
        warnings = (ResultWarning("no-probability", f"{Path(source).name}: {text}"),)
    return DetectionSet(table.reset_index(drop=True), covered, str(source), warnings)


def common_label(name: str) -> str:
    """The project's word for a class as published data sets and tools spell it.

    >>> common_label("Mitotic figure"), common_label("non-mitotic figure"), common_label("hard negative")
    ('mitosis', 'lookalike', 'lookalike')
    >>> common_label("1"), common_label("0"), common_label("Tumour")
    ('mitosis', 'lookalike', 'tumour')
    """
    plain = name.strip().lower().replace("_", " ")
    if plain in _PLAIN:
        return _PLAIN[plain]
    if plain.startswith("ignore"):
        return IGNORE
    if _DENIAL.search(plain):
        return LOOKALIKE
    return MITOSIS if _MITOSIS.search(plain) else plain


def _counted(frame: pd.DataFrame, names: pd.Series[str]) -> pd.Series[bool] | None:
    """What enters the count, by a column of truths or by a class below the threshold; None without either."""
    below = names.isin([name for name in names.unique() if _BELOW.search(name.lower())])
    words = as_text(frame[COUNTED]).str.lower() if COUNTED in frame.columns else None
    if words is not None and words.isin(_TRUTHS).all():
        return words.map(_TRUTHS).astype(bool) & ~below
    return ~below if below.any() else None


FURTHEST_PX = 1e8
"""No slide is so large."""


def _check(table: pd.DataFrame, source: str | Path) -> None:
    if (table["slide"] == "").any():
        raise TableError("some points name no slide", path=source, next_step="fill the column slide")
    there = (np.abs(table[["x", "y"]].to_numpy(float)) <= FURTHEST_PX).all(axis=1)
    if not there.all():
        raise TableError(
            f"{int((~there).sum())} points have no finite position, first in {named(table['slide'][~there])}",
            path=source,
            next_step="give x and y in level-0 pixels, or leave both empty for a slide without findings",
        )
    for name in table.columns:
        words = "".join(map(str, table[name])) if pd.api.types.is_object_dtype(table[name]) else ""
        if not is_text(f"{name}{words}"):
            raise TableError(
                f"the column {printable(str(name))[:40]!r} holds values that are not text",
                path=source,
                next_step="write the file as valid UTF-8",
            )
    wrong = ~table["probability"].between(0, 1)
    if wrong.any():
        raise TableError(
            f"probability {table['probability'][wrong].iloc[0]:g} is not between 0 and 1",
            path=source,
            next_step="scale scores to 0..1 before comparing",
        )


# ---- names of slides as file names, and back ----

_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|%]|^\.|[. ]$')
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "detections.metaphase")


def file_stem(slide: str) -> str:
    """A file name, without suffix, that any system accepts and that `slide_of_stem` turns back.

    >>> file_stem("centre 1/case 7.svs")
    'centre 1%2Fcase 7.svs'
    """
    return _UNSAFE.sub(lambda character: f"%{ord(character[0]):02X}", slide)


def slide_of_stem(stem: str) -> str:
    """The slide that a file is named after; a name that `file_stem` would not have given stays as it is.

    >>> slide_of_stem("centre 1%2Fcase 7.svs"), slide_of_stem("50%20 of all")
    ('centre 1/case 7.svs', '50%20 of all')
    """
    slide = unquote(stem)
    return slide if file_stem(slide) == stem else stem


def identities(table: pd.DataFrame) -> list[str]:
    """A UUID for each row, by its slide, position and label; rows that agree in these differ by their order.

    It is the same whenever the row is written again, and whether it enters the count or not.
    """
    seen: Counter[str] = Counter()
    uuids = []
    for slide, x, y, label in zip(table["slide"], table["x"], table["y"], table["label"], strict=True):
        key = f"{slide}\n{MITOSIS if label == BELOW else label}\n{x:.3f} {y:.3f}"
        uuids.append(str(uuid.uuid5(_NAMESPACE, f"{key} {seen[key]}")))
        seen[key] += 1
    return uuids
