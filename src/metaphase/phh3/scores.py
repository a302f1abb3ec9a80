"""What the networks say about the candidates of a case, and the list of mitoses that follows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from metaphase.detections import MITOSIS, detection_set
from metaphase.phh3.errors import Phh3Error
from metaphase.phh3.searching import TABLE as CANDIDATES
from metaphase.records import Record, facts_of, file_fingerprint
from metaphase.tables import read_table, write_table

TABLE, NOTE, MITOSES = "classified.parquet", "classified.json", "mitoses.parquet"
FRAME = "phh3"
"""Coordinates are those of the PHH3 slide, not of its H&E partner."""


@dataclass(frozen=True)
class Scores:
    """Candidates with a column of probabilities for each network: not an artefact (cnn1), mitosis (cnn2)."""

    table: pd.DataFrame
    weights: dict[str, str]
    """Checksum of each network's weights."""
    decisions: dict[str, float]
    """Least probability of a yes, by network."""
    candidates: str
    """Checksum of the candidates that were scored."""


def read_scores(folder: str | Path) -> Scores:
    """The finished scores of a case's candidates; scores of candidates that are no more are an error."""
    folder = Path(folder)
    if not ((folder / NOTE).is_file() and (folder / CANDIDATES).is_file()):
        raise Phh3Error("has no scores", path=folder, next_step="run metaphase phh3 classify first")
    candidates = file_fingerprint(folder / CANDIDATES)
    if not _record(candidates).matches(folder / NOTE):
        raise Phh3Error(
            "the candidates were searched anew since they were scored",
            path=folder,
            next_step="run metaphase phh3 classify again",
        )
    return Scores(read_table(folder / TABLE), candidates=candidates, **facts_of(folder / NOTE))


def write_scores(folder: str | Path, case: str, scores: Scores) -> pd.DataFrame | None:
    """Write scores and, once CNN2 has spoken, the mitoses; returns these."""
    folder, mitoses = Path(folder), None
    facts = {"weights": scores.weights, "decisions": scores.decisions}
    with _record(scores.candidates).noted(folder / TABLE, facts, note=folder / NOTE):
        write_table(folder / TABLE, scores.table)
        if "cnn2" in scores.decisions:
            mitoses = mitosis_table(case, scores.table, scores.decisions["cnn2"])
            write_table(folder / MITOSES, mitoses)
    return mitoses


def _record(candidates: str) -> Record:
    """Scores belong to candidates; by which networks, and from which decision line on, the facts tell."""
    return Record("PHH3 scores", {}, {"candidates": candidates})


def read_mitoses(folder: str | Path) -> pd.DataFrame:
    """The finished mitoses of a case's folder: a detection table in the PHH3 frame."""
    folder = Path(folder)
    if "cnn2" not in read_scores(folder).decisions:
        raise Phh3Error("has no CNN2 scores", path=folder, next_step="run metaphase phh3 classify --cnn2")
    return read_table(folder / MITOSES)


def mitosis_table(case: str, table: pd.DataFrame, decision: float) -> pd.DataFrame:
    """The candidates that CNN2 calls mitoses, as a detection table of slide `case` in the PHH3 frame."""
    called = table[table["cnn2"] >= decision]
    facts = [name for name in ("candidate", "area_um2", "parts", "cnn1") if name in called]
    points = called[["x", "y", *facts]].assign(
        slide=case, probability=called["cnn2"], label=MITOSIS, frame=FRAME
    )
    return detection_set(points, slides=(case,), source=case).table
