"""How a detector does on real images: another laboratory, crops by scanner and tumour, false detections.

python recipes/breast/breast_accuracy.py --cohort OUT --folder WORK MODEL [MODEL ...] [--json FILE]

OUT is what breast_cohort.py wrote. Several models are an ensemble: the mean of their probabilities.
Three thresholds: the best one of the validation fields (ICPR 2012, patient 04), the best one for several
laboratories (these fields and the MIDOG++ crops left out), and MiDeSeC's own. Finished images stay in WORK.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image
from scipy.stats import mannwhitneyu
from thresholds import threshold_of_several

from metaphase.base.tables import read_manifest, read_table
from metaphase.evaluation import BootstrapConfig
from metaphase.evaluation.benches import bench_of
from metaphase.evaluation.marks import Marked
from metaphase.evaluation.metrics import (
    DetectionMetrics,
    best_threshold,
    curve,
    detection_metrics,
)
from metaphase.images.tissue.finding import find_tissue
from metaphase.jobs.cohort import cohort_slide
from metaphase.jobs.searching import SplitSearch
from metaphase.jobs.training.config import EvaluationSection
from metaphase.labels.mining import CandidateConfig, LabelConfig, find_candidates
from metaphase.labels.mining.judging import NetworkJudge
from metaphase.labels.mining.labelling import NEGATIVE, POSITIVE, label_candidates

VALIDATION, OTHER, CROPS, UNLABELLED = "validation", "midesec", "crops", "unlabelled"
"""Parts: ICPR's validation patient, MiDeSeC, MIDOG++ crops left out, and painted fields of that patient."""
Images = tuple[pd.DataFrame, pd.DataFrame]
"""Rows of a manifest, and of its reference table."""
BORDER_UM = 7.5
BOOTSTRAP, NO_BOOTSTRAP = BootstrapConfig(samples=1000), BootstrapConfig(samples=0)
ICPR, SEVERAL, BEST = "icpr validation", "several laboratories", "best on midesec"
"""Thresholds: the best one of the validation fields; that of `threshold_of_several`; and MiDeSeC's own."""


@dataclass(frozen=True)
class RealTest:
    """The images of a cohort, searched by one model or ensemble."""

    slides: pd.DataFrame
    reference: pd.DataFrame
    search: SplitSearch
    config: EvaluationSection
    models: list[Path]

    def marked(self, part: str, border_um: float = 0.0) -> Marked:
        """Detections of one part of the cohort, each true or false."""
        slides = [cohort_slide(row) for row in self.rows(part)]
        found = self.search.search("found", self.models, slides, _show)
        bench = bench_of(self.slides, self.reference, part, self.config.matching)
        return bench.marked(found, border_um)

    def rows(self, part: str) -> list[dict[Any, Any]]:
        """Rows of the manifest of one part of the cohort."""
        return self.slides[self.slides["split"] == part].to_dict("records")

    def crop_auc(self) -> float:
        """How well patches of mitoses are told from patches of the tissue around them in the same crop."""
        scorer = NetworkJudge(self.models, self.search.device)
        answers = [self._answers(scorer, row) for row in self.rows(CROPS)]
        mitoses, others = (np.concatenate(parts) for parts in zip(*answers, strict=True))
        return float(mannwhitneyu(mitoses, others).statistic / (len(mitoses) * len(others)))

    def _answers(self, scorer: NetworkJudge, row: dict[Any, Any]) -> tuple[Any, Any]:
        with cohort_slide(row).slide.open() as slide:
            found = find_candidates(slide, find_tissue(slide), CandidateConfig(diameter_um=12.5))
            points = self.reference[self.reference["case"] == row["case"]][["x", "y", "label"]]
            table = label_candidates(found.table, points, slide, LabelConfig(positive_um=10.0))
            said = scorer(slide, table[["x", "y"]].to_numpy(np.float64))
        label = table["label"].to_numpy()
        return said[label == POSITIVE], said[label == NEGATIVE]


def parts_of(cohort: Path) -> pd.DataFrame:
    """The images that no network was trained on, their split naming the part they belong to."""
    slides = read_manifest(cohort / "all.csv")
    part = slides["split"].where(slides["split"] != "", UNLABELLED)
    part = part.mask(slides["centre"] == OTHER, OTHER)
    part = part.mask((slides["split"] == "test") & slides["centre"].str.startswith("midog"), CROPS)
    return slides.assign(split=part)[part != "train"].reset_index(drop=True)


def scanned_at(mpp: float, slides: pd.DataFrame, points: pd.DataFrame, folder: Path) -> Images:
    """The images as a scanner of another resolution would have seen them, written to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, places = [], []
    for row in slides.to_dict("records"):
        path, scale = folder / f"{row['case']}.png", row["mpp"] / mpp
        if not path.exists():
            with Image.open(row["he"]) as image:
                size = tuple(round(side * scale) for side in image.size)
                image.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(path, compress_level=1)
        rows.append(row | {"he": str(path), "mpp": mpp})
        here = points[points["case"] == row["case"]]
        places.append(here.assign(x=here["x"] * scale, y=here["y"] * scale))
    return pd.DataFrame(rows), pd.concat(places, ignore_index=True)


def measure(test: RealTest) -> dict[str, Any]:
    """All figures of one detector, at each of its thresholds."""
    marked = {part: test.marked(part) for part in (VALIDATION, OTHER, CROPS, UNLABELLED)}
    inner = test.marked(OTHER, BORDER_UM)
    validation, _ = best_threshold(curve(marked[VALIDATION]))
    thresholds = {
        ICPR: validation,
        SEVERAL: threshold_of_several(marked[VALIDATION], [marked[CROPS]], [marked[UNLABELLED]])[0],
        BEST: best_threshold(curve(marked[OTHER]))[0],
    }
    settings = {name: getattr(test.config, name) for name in ("suppress_um", "smooth_um")}
    return settings | {
        "at": {name: _at(threshold, marked, inner) for name, threshold in thresholds.items()},
        "midesec_without_border_best_f1": best_threshold(curve(inner))[1],
        "crop_auc": test.crop_auc(),
    }


def _at(threshold: float, marked: dict[str, Marked], inner: Marked) -> dict[str, Any]:
    """What holds at one threshold."""
    false = {part: _false_per_mm2(marked[part], threshold) for part in (VALIDATION, OTHER, UNLABELLED)}
    return {
        "threshold": threshold,
        "validation_f1": detection_metrics(marked[VALIDATION], threshold, NO_BOOTSTRAP).f1.value,
        "midesec": _rates(detection_metrics(marked[OTHER], threshold, BOOTSTRAP)),
        "midesec_without_border": _rates(detection_metrics(inner, threshold, BOOTSTRAP)),
        "crop_recall": _recall_by_case(marked[CROPS], threshold),
        "false_per_mm2": false,
    }


def _rates(metrics: DetectionMetrics) -> dict[str, str]:
    return {name: str(getattr(metrics, name)) for name in ("f1", "precision", "recall")}


def _false_per_mm2(marked: Marked, threshold: float) -> float:
    return detection_metrics(marked, threshold, NO_BOOTSTRAP).false_per_mm2


def _recall_by_case(marked: Marked, threshold: float) -> dict[str, str]:
    """Found mitoses of the crops of each tumour and scanner."""
    hits = np.bincount(
        marked.slide[marked.found & (marked.probability >= threshold)], minlength=len(marked.cases)
    )
    names = [case.removeprefix("midog-").removesuffix("-test") for case in marked.cases]
    rows = zip(names, hits, marked.truths, strict=True)
    table = {name: f"{hit / all_:.3f} ({hit} of {all_})" for name, hit, all_ in rows}
    return table | {"all": f"{hits.sum() / marked.truths.sum():.3f} ({hits.sum()} of {marked.truths.sum()})"}


def _show(what: str, done: float, total: float) -> None:
    print(f"\r{what}: {done:.0f} of {total:.0f}  ", end="", flush=True)


def main() -> None:
    """Search, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--cohort", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--suppress-um", type=float, default=15.0)
    parser.add_argument("--smooth-um", type=float, default=2.5)
    parser.add_argument("--scanned-at", type=float, metavar="MPP", help="resample all images first")
    parser.add_argument("--device")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = EvaluationSection(suppress_um=options.suppress_um, smooth_um=options.smooth_um)
    search = SplitSearch(options.folder, config.peaks, options.device)
    slides, reference = parts_of(options.cohort), read_table(options.cohort / "reference.csv")
    if options.scanned_at:
        slides, reference = scanned_at(options.scanned_at, slides, reference, options.folder / "images")
    values = measure(RealTest(slides, reference, search, config, options.models))
    print("\r" + json.dumps(values, indent=1))
    if options.json:
        options.json.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
