"""The page about a merge: who answered how much and how alike, and a gallery of what to discuss."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.base.errors import MetaphaseError
from metaphase.base.files import write_text
from metaphase.labels.observers.consensus import Merged
from metaphase.labels.observers.project import Project
from metaphase.reports.pages import DASH, TextTable, data_uri, encode_jpeg, item_view, jsonable, render
from metaphase.slides.opening import SlidePool
from metaphase.version import __version__

REPORT, RECORD = "agreement.html", "agreement.json"
GALLERY = 120
"""Pictures beyond this make the page slow; the CSV lists all."""
PICTURE_PX, PICTURE_QUALITY = 256, 85


def write_agreement_page(folder: Path, project: Project, merged: Merged) -> None:
    """Write the page with its pictures inside, and the same numbers as JSON."""
    write_text(folder / RECORD, json.dumps(record(merged), indent=2, ensure_ascii=False) + "\n")
    page = render(
        "agreement.html",
        title=project.settings.title,
        merged=merged,
        counts=merged.labels["label"].value_counts().to_dict(),
        answers=project.settings.answers,
        observers=merged.observers.to_dict("records"),
        tables=_tables(merged),
        cards=gallery(project, merged),
        kappa=kappa_text,
    )
    write_text(folder / REPORT, page)


def record(merged: Merged) -> dict[str, Any]:
    """Numbers for programs; undefined ones are null."""
    labels = merged.labels["label"]
    numbers = {
        "metaphase": __version__,
        "agree": merged.agree,
        "items": len(labels),
        "labelled": merged.labelled,
        "labels": labels[labels != ""].value_counts().to_dict(),
        "disagreements": len(merged.disagreements),
        "fleiss_kappa": merged.fleiss.value,
        "fleiss_interval": merged.fleiss[1:],
        "items_answered_by_all": merged.complete,
        "observers": merged.observers,
        "pairs": merged.pairs,
        "pooled": merged.pooled
        and {
            "fleiss_kappa": merged.pooled.fleiss.value,
            "fleiss_interval": merged.pooled.fleiss[1:],
            "pairs": merged.pooled.pairs,
        },
    }
    plain: dict[str, Any] = jsonable(numbers)
    return plain


def gallery(project: Project, merged: Merged) -> list[dict[str, Any]]:
    """The most divided items: pictures as data URIs (none where the slide cannot be read), who answered what
    in which colour, and the label each counts as."""
    slides, sides_um = SlidePool(), (project.settings.close_um, project.settings.context_um)
    buttons = {answer.name: answer for answer in project.settings.answers}
    label = dict(zip(merged.labels["item"], merged.labels["label"], strict=True))
    cards = []
    for name in merged.disagreements["item"].head(GALLERY):
        said = merged.sheet.loc[name]
        answers = [
            (observer, buttons[answer].label or answer, buttons[answer].colour)
            for observer, answer in said.items()
            if answer
        ]
        item, pictures = project.by_name[name], list[str]()
        with suppress(MetaphaseError), slides.open(item.slide, item.mpp) as slide:
            crops = [item_view(slide, item, side_um, PICTURE_PX) for side_um in sides_um]
            pictures = [data_uri("image/jpeg", encode_jpeg(crop, PICTURE_QUALITY)) for crop in crops]
        cards.append({"item": item, "pictures": pictures, "answers": answers, "label": label[name]})
    slides.close()
    return cards


def _tables(merged: Merged) -> list[TextTable]:
    """Who answered how much, and a square of Cohen's kappas, also of the pooled question."""
    headings = ("observer", "answers", "median s", "minutes", "per hour", "changed")
    rows = [
        (
            str(row["observer"]),
            str(row["answers"]),
            _text(row["seconds"], 1),
            _text(row["minutes"], 1),
            _text(row["per_hour"], 0),
            str(row["changes"]),
        )
        for row in merged.observers.to_dict("records")
    ]
    title = "Cohen's kappa, pair by pair, with its 95 % interval"
    tables = [TextTable("Observers", headings, rows), _square(title, merged.pairs, merged.sheet)]
    if merged.pooled:
        tables.append(_square("The same, pooled", merged.pooled.pairs, merged.sheet))
    return tables


def _square(title: str, pairs: pd.DataFrame, sheet: pd.DataFrame) -> TextTable:
    """Kappas of all pairs, a dot on the diagonal."""
    names = list(sheet.columns)
    known = pairs[["observer", "other", "kappa", "low", "high"]].itertuples(index=False)
    kappas = {frozenset((one, other)): kappa_text(*values) for one, other, *values in known}
    rows = [(one, *("·" if one == two else kappas[frozenset((one, two))] for two in names)) for one in names]
    return TextTable(title, ("", *names), rows)


def kappa_text(kappa: float, low: float, high: float) -> str:
    """A kappa with its interval.

    >>> kappa_text(0.8, 0.71, 0.88), kappa_text(math.nan, math.nan, math.nan)
    ('0.80 [0.71, 0.88]', '–')
    """
    return _text(kappa) if math.isnan(kappa) else f"{_text(kappa)} [{_text(low)}, {_text(high)}]"


def _text(value: float, decimals: int = 2) -> str:
    return DASH if math.isnan(value) else f"{value:.{decimals}f}"
