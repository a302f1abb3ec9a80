"""Whether calibrated counts hold on real fields that a bundled network was not trained on, where labels tell.

python recipes/accuracy/calibration_fields.py --data FOLDER --folder WORK [--repetitions 200]

MiDeSeC (35 fields of one laboratory) and MITOS-ATYPIA-14 on a Hamamatsu scanner (10 patients). The fields are
searched once; finished ones stay in WORK. In each repetition a part of them is the laboratory's: 100 answers
about it, by a reviewer who errs at known rates against the labels. The mitoses of the other fields are then
counted: of MiDeSeC all other fields, of MITOS-ATYPIA-14 up to 2 mm2 of a patient nobody asked about.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from calibration_coverage import REVIEWER, Row, Slide, calibrated, outcome, report, site_row

from metaphase.analysis.cohort import cohort_slide
from metaphase.analysis.search import SplitSearch
from metaphase.counting.sites import SampleConfig
from metaphase.detections.matching import NOBODY, match
from metaphase.detections.points import points_of
from metaphase.detections.table import MITOSIS
from metaphase.evaluation.datasets import read_dataset
from metaphase.evaluation.marks import MatchingConfig
from metaphase.networks.cards import bundled_model, parse_card
from metaphase.networks.engine.settings import PeakConfig

MODEL = "breast-second"
"""The bundled network that learnt from neither source."""
SOURCES = MIDESEC, ATYPIA = "midesec", "mitos-atypia14-hamamatsu"
DATASETS = {MIDESEC: "midesec", ATYPIA: "mitos-atypia14"}
TRAINED_PATIENT = "mitos-atypia14/03"
MIDESEC_MPP = 0.25
"""Which states none."""
SQUARE_UM, COLUMNS = 256.0, 8
"""Fields stand side by side in squares of this side: a square of the sample is a field."""
MOST_MM2 = 1.99
Build = Callable[[np.random.Generator], tuple[list[Slide], list[Slide]]]


def fields(data: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Manifest, its split naming the source, and points of all fields of patients not trained on."""
    manifests, points = [], []
    for folder, name in DATASETS.items():
        found = read_dataset(name, data / folder)
        cases = {case: f"{folder}-{case.split('/')[-1]}" for case in found.manifest["case"]}
        table = found.truth.table
        manifest = found.manifest.assign(
            case=found.manifest["case"].map(cases), split=folder, laboratory=folder
        )
        manifests.append(manifest.assign(mpp=manifest["mpp"].fillna(MIDESEC_MPP)))
        points.append(table.assign(case=table["slide"].map(cases))[["case", "x", "y", "label"]])
    manifest = pd.concat(manifests, ignore_index=True)
    kept = manifest[manifest["patient"] != TRAINED_PATIENT].reset_index(drop=True)
    return kept, pd.concat(points, ignore_index=True)


def read_fields(data: Path, folder: Path) -> dict[str, dict[str, Slide]]:
    """By source and by patient and field: what the model finds, and what is labelled."""
    card = parse_card(bundled_model(MODEL).with_suffix(".json"))
    points = points_of(card.thresholds)
    search = SplitSearch(folder, PeakConfig(suppress_um=points.suppress_um, smooth_um=points.smooth_um))
    manifest, reference = fields(data)
    found: dict[str, dict[str, Slide]] = {}
    for source in SOURCES:
        rows = manifest[manifest["split"] == source].to_dict("records")
        slides = [cohort_slide(row) for row in rows]
        tables = search.search("found", [bundled_model(MODEL)], slides, lambda *_: None)
        found[source] = {f"{row['patient']}|{row['case']}": _field(row, tables, reference) for row in rows}
    return found


def _field(row: dict[object, object], tables: dict[str, pd.DataFrame], reference: pd.DataFrame) -> Slide:
    name, mpp = cohort_slide(row).name, float(str(row["mpp"]))
    table = tables[name]
    labels = reference[(reference["case"] == row["case"]) & (reference["label"] == MITOSIS)]
    positions, truth = (each[["x", "y"]].to_numpy(float) * mpp for each in (table, labels))
    probability = table["probability"].to_numpy(float)
    true = match(positions, probability, truth, MatchingConfig().radius_um, "greedy") != NOBODY
    side = 1024 * mpp if row["split"] == SOURCES[0] else 832 * mpp
    return Slide(positions, probability, np.asarray(true), truth, side**2 / 1e6)


def pooled(parts: list[Slide]) -> Slide:
    """Fields side by side as one small slide."""
    moves = [np.array([k % COLUMNS, k // COLUMNS]) * SQUARE_UM for k in range(len(parts))]
    inner = SQUARE_UM - 1e-6
    points = [np.clip(one.points_um, 0, inner) + move for one, move in zip(parts, moves, strict=True)]
    mitoses = [np.clip(one.mitoses_um, 0, inner) + move for one, move in zip(parts, moves, strict=True)]
    probability, true = (
        np.concatenate([getattr(one, name) for one in parts]) for name in ("probability", "true")
    )
    area = sum(one.area_mm2 for one in parts)
    return Slide(np.concatenate(points), probability, true, np.concatenate(mitoses), area)


def chunks(parts: list[Slide]) -> list[Slide]:
    """Fields as small slides of up to 2 mm2 each."""
    groups: list[list[Slide]] = [[]]
    for one in parts:
        if sum(each.area_mm2 for each in groups[-1]) + one.area_mm2 > MOST_MM2:
            groups.append([])
        groups[-1].append(one)
    return [pooled(group) for group in groups if group]


def of_fields(found: dict[str, Slide], size: int = 5) -> Build:
    """A laboratory of fields: half of them, in slides of `size` fields, and the rest as one slide."""
    every = list(found.values())

    def build(generator: np.random.Generator) -> tuple[list[Slide], list[Slide]]:
        order = [every[k] for k in generator.permutation(len(every))]
        own, rest = order[: len(order) // 2], order[len(order) // 2 :]
        return [pooled(own[k : k + size]) for k in range(0, len(own), size)], [pooled(rest)]

    return build


def of_patients(found: dict[str, Slide]) -> Build:
    """A laboratory of patients: all but one are asked about, up to 2 mm2 of that one are counted."""
    patients: dict[str, list[Slide]] = {}
    for name, one in found.items():
        patients.setdefault(name.split("|")[0], []).append(one)

    def build(generator: np.random.Generator) -> tuple[list[Slide], list[Slide]]:
        left = str(generator.choice(list(patients)))
        own = [slide for name, parts in patients.items() if name != left for slide in chunks(parts)]
        rest = [patients[left][k] for k in generator.permutation(len(patients[left]))]
        return own, chunks(rest)[:1]

    return build


def main() -> None:
    """Print the figures of docs/calibration.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--answers", type=int, default=100)
    options = parser.parse_args()
    found = read_fields(options.data, options.folder)
    sample = SampleConfig(answers=options.answers, squares=options.answers // 5, square_um=SQUARE_UM)
    builds = (of_fields(found[SOURCES[0]]), of_patients(found[SOURCES[1]]))
    for source, build in zip(SOURCES, builds, strict=True):
        counts: list[Row] = []
        sites: list[Row] = []
        for number in range(options.repetitions):
            generator = np.random.default_rng((11, number))
            own, new = build(generator)
            fitted, known = calibrated(own, sample, REVIEWER, generator)
            counts += [outcome(one, known[-1]) for one in new]
            sites.append(site_row(own, fitted))
        report(pd.DataFrame(counts), pd.DataFrame(sites), f"{source}, {options.answers} answers")


if __name__ == "__main__":
    main()
