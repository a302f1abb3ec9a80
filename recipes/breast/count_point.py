"""The bundled model's operating point for counts: where no slide has a grade, chosen for false detections.

python recipes/breast/count_point.py --data FOLDER --folder WORK src/metaphase/models/breast.safetensors

The fields are those of patients that no network was trained on: MITOS-ATYPIA-14 on a Hamamatsu scanner (all
but patient 03, whose tissue was) and ICPR 2012, patient 04. Delta is the lowest threshold, not below that for
single mitoses, at which patients have at most `--most` false detections per mm2 in the mean. MiDeSeC is told
beside it and has no part in it. The point goes into the model's card; finished images stay in WORK.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from metaphase.evaluation import BootstrapConfig
from metaphase.evaluation.benches import bench_of
from metaphase.evaluation.datasets import read_dataset
from metaphase.evaluation.marks import Marked, MatchingConfig
from metaphase.evaluation.metrics import detection_metrics, slide_counts
from metaphase.evaluation.operating_points import load_points, save_point, threshold_for_false
from metaphase.jobs.cohort import cohort_slide
from metaphase.jobs.searching import SplitSearch
from metaphase.networks.engine import PeakConfig
from metaphase.networks.points import PAPER_POINTS, OperatingPoint

SOURCES = {
    "mitos-atypia14-hamamatsu": "mitos-atypia14",
    "icpr2012-aperio": "icpr2012",
    "icpr2012-hamamatsu-painted": "icpr2012",
    "icpr2012-aperio-eval-painted": "icpr2012",
    "midesec": "midesec",
}
LEFT_OUT_PATIENT, TRAINED_PATIENT = "icpr2012/04", "mitos-atypia14/03"
TEST = "midesec"
MPP = 0.25
"""Of MiDeSeC, which states none."""


def fields(data: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Manifest, its split naming the source, and points of all fields of patients not trained on."""
    manifests, points = [], []
    for folder, name in SOURCES.items():
        found = read_dataset(name, data / folder)
        cases = {case: f"{folder}-{case.split('/')[-1]}" for case in found.manifest["case"]}
        table = found.truth.table
        manifest = found.manifest.assign(case=found.manifest["case"].map(cases), split=folder, centre=folder)
        manifests.append(manifest.assign(mpp=manifest["mpp"].fillna(MPP)))
        points.append(table.assign(case=table["slide"].map(cases))[["case", "x", "y", "label"]])
    manifest = pd.concat(manifests, ignore_index=True)
    icpr = manifest["patient"].str.startswith("icpr2012/") & (manifest["patient"] != LEFT_OUT_PATIENT)
    kept = manifest[~icpr & (manifest["patient"] != TRAINED_PATIENT)].reset_index(drop=True)
    return kept, pd.concat(points, ignore_index=True)


def told(name: str, marked: Marked, threshold: float) -> None:
    """One line: recall, false detections per mm2."""
    found = detection_metrics(marked, threshold, BootstrapConfig())
    print(
        f"{name:32} {found.slides:4} fields, {found.patients:2} patients, {marked.area_mm2.sum():5.1f} mm2: "
        f"recall {found.recall}, {found.false_per_mm2:.1f} false per mm2, F1 {found.f1}"
    )


def patient_recall(parts: list[Marked], threshold: float) -> float:
    """Mean over patients with mitoses of the share that is found."""
    found = np.concatenate([slide_counts(part, np.array([threshold]))[0][:, 0] for part in parts])
    there = np.concatenate([part.truths for part in parts])
    patients = np.array([name for part in parts for name in part.patients], object)
    sums = pd.DataFrame({"found": found, "there": there}).groupby(patients).sum()
    return float((sums["found"] / sums["there"])[sums["there"] > 0].mean())


def main() -> None:
    """Search, choose, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--most", type=float, default=4.0)
    options = parser.parse_args()
    card = options.model.with_suffix(".json")
    points = load_points(card)
    manifest, reference = fields(options.data)
    peaks = PeakConfig(suppress_um=points.suppress_um, smooth_um=points.smooth_um)
    search = SplitSearch(options.folder, peaks)
    marked = {}
    for name, rows in manifest.groupby("split", sort=False):
        slides = [cohort_slide(row) for row in rows.to_dict("records")]
        found = search.search("found", [options.model], slides, lambda *_: None)
        marked[str(name)] = bench_of(manifest, reference, str(name), MatchingConfig()).marked(found)
        print(f"{name} searched", flush=True)
    chosen_on = [part for name, part in marked.items() if name != TEST]
    delta, false = threshold_for_false(chosen_on, options.most, least=points.mitoses.delta)
    for threshold in (points.mitoses.delta, delta):
        print(f"at {threshold:.4f}")
        for name, part in marked.items():
            told(name, part, threshold)
    own = manifest[manifest["split"] != TEST]
    recall = patient_recall(chosen_on, delta)
    point = OperatingPoint(
        name="count",
        delta=delta,
        suppress_um=points.suppress_um,
        smooth_um=points.smooth_um,
        theta1=PAPER_POINTS.count.theta1,
        theta2=PAPER_POINTS.count.theta2,
        cases=tuple(own["case"]),
        patients=tuple(dict.fromkeys(own["patient"])),
        laboratories=tuple(dict.fromkeys(own["centre"])),
        source=f"chosen for at most {options.most:g} false detections per mm2 in tumours not trained "
        "on, for no graded slide was at hand; theta1 and theta2 are the paper's",
        false_per_mm2=false,
        recall=recall,
    )
    save_point(card, point)
    print(f"count: delta {delta:.4f}, in the mean of patients {false:.2f} false per mm2, recall {recall:.3f}")


if __name__ == "__main__":
    main()
