"""Labelling projects: a folder with the items to label, the question, and the merged labels."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd

from metaphase.artifacts import write_text
from metaphase.errors import OutputError
from metaphase.phh3.errors import Phh3Error
from metaphase.tables import read_table, require_columns, write_table

ITEMS, SETTINGS, LABELS = "items.csv", "project.json", "labels.csv"
MITOSIS, NOT, ARTEFACT, UNSURE = "mitosis", "not", "artefact", "unsure"
"""Answers of the labelling page."""


def item_name(case: str, candidate: int) -> str:
    """The identity of an item, the same in every project it is drawn into."""
    return f"{case}-{candidate}"


def write_project(folder: str | Path, items: pd.DataFrame, title: str, question: str) -> None:
    """Write a new project; `items` has `item, slide, x, y, case` and whatever else observers may know.

    Slide paths are stored relative to the project, so that cohort and project can move together. The page
    brings the answers to choose from.
    """
    folder = Path(folder)
    if (folder / ITEMS).exists():
        raise OutputError(
            "a labelling project is there", path=folder, next_step="choose another folder, or remove it"
        )
    relative = [os.path.relpath(slide, folder) for slide in items["slide"]]
    write_text(folder / SETTINGS, json.dumps({"title": title, "question": question}, indent=2) + "\n")
    write_table(folder / ITEMS, items.assign(slide=relative))


def read_items(folder: str | Path) -> pd.DataFrame:
    """The items of a project, with slide paths that can be opened from here."""
    folder = Path(folder)
    items = read_table(folder / ITEMS)
    require_columns(items, ("item", "slide", "x", "y", "case"), folder / ITEMS)
    return items.assign(slide=[str(folder / slide) for slide in items["slide"]])


def read_labels(folder: str | Path) -> pd.DataFrame:
    """The items on which the observers agreed, with their `label`: mitosis, not or artefact."""
    folder = Path(folder)
    if not (folder / LABELS).is_file():
        raise Phh3Error(
            "has no merged labels", path=folder, next_step="label the items, then run metaphase label merge"
        )
    labels = read_table(folder / LABELS)
    require_columns(labels, ("item", "label", "agreed"), folder / LABELS)
    agreed = labels["agreed"].astype(str).str.lower() == "true"
    usable = labels.loc[agreed & labels["label"].isin((MITOSIS, NOT, ARTEFACT)), ["item", "label"]]
    joined = read_items(folder).merge(usable, on="item", validate="one_to_one")
    if not len(joined):
        raise Phh3Error(
            "no item has an agreed label",
            path=folder / LABELS,
            next_step="label more, or discuss disagreements",
        )
    return joined
