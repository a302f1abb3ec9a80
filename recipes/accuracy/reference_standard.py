"""The reference standard of a simulated cohort against exact truth: precision, recall, errors by cause.

    python recipes/accuracy/reference_standard.py --folder OUT [--cases 6] [--side 3072] [--json FILE]
    python recipes/accuracy/reference_standard.py --folder OUT --cnn1 CNN1 --cnn2 CNN2 --device cuda
    python recipes/accuracy/reference_standard.py --folder OUT --picture docs/images/reference.jpg
    python recipes/accuracy/reference_standard.py --folder OUT --visibility [--data REAL]

Without models, the PHH3 points are the true PHH3-positive mitoses of which a network like the paper's CNN2
(F1 0.9) misses some, and brown nuclei and artefacts that it takes for mitoses. With models, the whole chain
runs: candidates, CNN1, CNN2. Truth is every mitosis of the H&E slide. Run it again to go on after a stop.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image
from scipy.spatial import cKDTree

from metaphase.base.files import atomic_path
from metaphase.base.tables import write_table
from metaphase.detections.matching import match
from metaphase.labels.building import (
    PLACED,
    BuildConfig,
    PointSource,
    build_cohort,
    given_points,
    network_points,
)
from metaphase.labels.reference import ReferenceConfig, decide, measure_contrast
from metaphase.labels.reviewing import load_review
from metaphase.simulation.cohort import simulate_cohort
from metaphase.simulation.config import SimulationConfig
from metaphase.slides.opening import open_slide
from metaphase.web.labelling import ReviewCrops

MPP = 0.25
RADIUS_PX = 7.5 / MPP
JITTER_PX = 2.0
"""Standard deviation of a simulated point about its object."""
REAL = {"icpr2012-aperio": 0.2456, "midesec": 0.25}
"""Folders of complete fields with `mitoses.csv`, and their um/px."""
COLUMNS = 6
"""Points in a row of the picture."""
VARIANTS = {
    "every PHH3 point, as in the paper": ReferenceConfig(
        min_confidence=0.0, require_visible=False, accept_doubtful=True, min_distance_um=0.0
    ),
    "registration checked": ReferenceConfig(require_visible=False),
    "registration checked, visible in H&E (default)": ReferenceConfig(),
}
UNSCANNED, UNSTAINED = "off the PHH3 scan", "PHH3 does not stain it"
REFUSALS = {
    "registration": "registration: refused",
    "doubtful": "registration: refused",
    "confidence": "registration: refused",
    "invisible": "flagged as invisible in H&E",
    "double": "taken for part of another figure",
}


def simulated_points(truth: pd.DataFrame, missed: float, false_share: float, seed: int) -> pd.DataFrame:
    """What a network with known error rates calls mitoses of a PHH3 slide."""
    rng = np.random.default_rng(seed)
    brown = truth[truth["phh3_positive"] & truth["in_phh3"]]
    right = brown[brown["category"] == "mitosis"]
    right = right[rng.random(len(right)) >= missed]
    wrong = brown[brown["category"].isin(("brown_nucleus", "artefact"))]
    count = min(len(wrong), round(len(right) * false_share / (1 - false_share)))
    likely = np.where(wrong["category"] == "brown_nucleus", 3.0, 1.0)
    if len(wrong):
        wrong = wrong.iloc[rng.choice(len(wrong), count, replace=False, p=likely / likely.sum())]
    points = pd.concat([right, wrong])[["x_phh3", "y_phh3"]].to_numpy()
    points = points + rng.normal(0, JITTER_PX, points.shape)
    probability = np.concatenate([rng.beta(12, 1, len(right)), rng.beta(6, 2, len(wrong))])
    return pd.DataFrame({"x": points[:, 0], "y": points[:, 1], "probability": probability})


def causes(table: pd.DataFrame, truth: pd.DataFrame) -> tuple[Counter[str], Counter[str], int]:
    """Why mitoses of H&E are missing, why accepted points are none, and how many are right."""
    mitoses = truth[truth["category"] == "mitosis"].reset_index(drop=True)
    accepted = table[table["accepted"]].reset_index(drop=True)
    matched = match(
        _positions(accepted, ""), accepted["probability"].to_numpy(), _positions(mitoses, "_he"), RADIUS_PX
    )
    found = set(matched[matched >= 0].tolist())
    missing = Counter(why_missing(row, table) for index, row in mitoses.iterrows() if index not in found)
    positive = mitoses[mitoses["phh3_positive"] & mitoses["in_phh3"]]
    false = Counter(why_false(row, truth, positive) for _, row in accepted[matched < 0].iterrows())
    return missing, false, len(found)


def why_missing(mitosis: pd.Series[Any], table: pd.DataFrame) -> str:
    """What lost a mitosis on its way to the reference standard."""
    if not mitosis["in_phh3"]:
        return UNSCANNED
    if not mitosis["phh3_positive"]:
        return UNSTAINED
    row = _nearest(table, mitosis[["x_phh3", "y_phh3"]].to_numpy(float))
    if row is None:
        return "no candidate, or missed by CNN2"
    return "registration: wrong position" if row["accepted"] else REFUSALS[row["cause"]]


def why_false(point: pd.Series[Any], truth: pd.DataFrame, positive: pd.DataFrame) -> str:
    """What an accepted point is that is no mitosis."""
    here = point[["x_phh3", "y_phh3"]].to_numpy(float)
    mitosis = _nearest(positive, here)
    if mitosis is not None:
        miss_px = np.hypot(mitosis["x_he"] - point["x"], mitosis["y_he"] - point["y"])
        return "second point of one mitosis" if miss_px <= RADIUS_PX else "registration: wrong position"
    row = _nearest(truth[truth["in_phh3"]], here)
    return "CNN2: something brown" if row is None else f"CNN2: {row['category'].replace('_', ' ')}"


def _nearest(table: pd.DataFrame, position: npt.NDArray[np.float64]) -> pd.Series[Any] | None:
    """The row within the matching radius of a PHH3 position, if there is one."""
    if not len(table):
        return None
    distance, index = cKDTree(_positions(table, "_phh3")).query(position)
    return table.iloc[int(index)] if distance <= RADIUS_PX else None


def _positions(table: pd.DataFrame, frame: str) -> npt.NDArray[np.float64]:
    return table[[f"x{frame}", f"y{frame}"]].to_numpy(float)


def print_variants(cases: list[str], workspace: Path, truths: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Precision and recall with fewer and more checks, and the errors of each by cause."""
    report = {}
    mitoses = sum(int((truth["category"] == "mitosis").sum()) for truth in truths.values())
    for name, config in VARIANTS.items():
        missing, false, right, accepted = Counter[str](), Counter[str](), 0, 0
        for case in cases:
            table = decide(pd.read_parquet(workspace / case / PLACED), MPP, config)
            lost, wrong, found = causes(table, truths[case])
            missing, false, right = missing + lost, false + wrong, right + found
            accepted += int(table["accepted"].sum())
        precision, recall = right / max(1, accepted), right / max(1, mitoses)
        f1 = 2 * right / max(1, accepted + mitoses)
        scanned = right / max(1, mitoses - missing[UNSCANNED])
        stained = right / max(1, mitoses - missing[UNSCANNED] - missing[UNSTAINED])
        print(f"\n{name}: {accepted} accepted, precision {precision:.3f}, recall {recall:.3f}, F1 {f1:.3f};")
        print(f"recall of mitoses on both scans {scanned:.3f}, of those that PHH3 stains {stained:.3f}")
        for what, counter in (("missing", missing), ("false", false)):
            for cause, count in counter.most_common():
                print(f"| {what} | {cause} | {count} |")
        report[name] = {
            "precision": precision, "recall": recall, "f1": f1, "accepted": accepted, "mitoses": mitoses,
            "recall_on_both_scans": scanned, "recall_of_stained": stained,
            "missing": dict(missing), "false": dict(false),
        }  # fmt: skip
    return report


def placing_error_um(table: pd.DataFrame, truth: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Distance of accepted points from the mitoses they belong to."""
    positions = _positions(truth[truth["category"] == "mitosis"], "_he")
    distance = cKDTree(positions).query(_positions(table[table["accepted"]], ""))[0] * MPP
    return np.asarray(distance[distance <= RADIUS_PX * MPP])


def print_visibility(cohort: Path, data: Path | None) -> None:
    """Share of positions that pass as visible in H&E, by what is there: simulated, and real where given."""
    found: dict[str, list[npt.NDArray[np.float64]]] = {}
    for number, folder in enumerate(sorted(cohort.glob("case*"))):
        truth, rng = pd.read_parquet(folder / "truth.parquet"), np.random.default_rng(number)
        truth["what"] = truth["kind"].where(truth["category"] == "mitosis", truth["category"])
        positions = {str(name): _positions(part, "_he") for name, part in truth.groupby("what")}
        positions["random position"] = _beside(truth, rng)
        with open_slide(folder / "he.tif") as slide:
            for name, points in positions.items():
                jittered = points[:60] + rng.normal(0, JITTER_PX, points[:60].shape)
                found.setdefault(name, []).append(measure_contrast(slide, jittered))
    for name, mpp in REAL.items() if data else ():
        _add_real(found, Path(data or "") / name, mpp)
    least = ReferenceConfig().min_contrast
    for name, parts in sorted(found.items()):
        values = np.concatenate(parts)
        print(f"| {name} ({len(values)}) | {np.mean(values >= least):.2f} |")


def _beside(truth: pd.DataFrame, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Positions of the tumour where no object is: 30 um and more from a mitosis."""
    mitoses = _positions(truth[truth["category"] == "mitosis"], "_he")
    angle = rng.uniform(0, 2 * np.pi, len(mitoses))
    away = rng.uniform(30, 60, len(mitoses)) / MPP
    return mitoses + np.stack([np.cos(angle) * away, np.sin(angle) * away], axis=1)


def _add_real(found: dict[str, list[npt.NDArray[np.float64]]], folder: Path, mpp: float) -> None:
    """Labelled mitoses and random positions of complete fields."""
    labels = pd.read_csv(folder / "mitoses.csv")
    rng = np.random.default_rng(0)
    for image, part in labels[labels["label"] == "mitosis"].groupby("image"):
        with open_slide(next(folder.rglob(str(image))), mpp=mpp) as slide:
            positions = rng.uniform(130, min(slide.width, slide.height) - 130, (6, 2))
            for name, points in (
                ("labelled mitosis", part[["x", "y"]].to_numpy(float)),
                ("random position", positions),
            ):
                found.setdefault(f"real {name}", []).append(measure_contrast(slide, points))


def save_picture(workspace: Path, path: Path) -> None:
    """Some accepted and some refused points, H&E above PHH3, as the review page shows them."""
    review = load_review(workspace)
    crops = ReviewCrops(review)
    figure = Figure(figsize=(11, 8.1), dpi=75, layout="constrained")
    axes = figure.subplots(4, COLUMNS)
    for top, accepted in ((0, True), (2, False)):
        some = review.table[review.table["automatic"] == accepted]
        some = some.iloc[np.linspace(0, len(some) - 1, COLUMNS).round().astype(int)]
        for column, (_, row) in enumerate(some.iterrows()):
            for step, side in enumerate(ReviewCrops.views):
                jpeg = crops.jpeg(int(row["number"]), side)
                axes[top + step, column].imshow(Image.open(io.BytesIO(jpeg or b"")))
                axes[top + step, column].set_axis_off()
            words = "accepted" if accepted else f"refused: {row['cause']}"
            axes[top, column].set_title(f"{words}\ncontrast {row['contrast']:.2f}", fontsize=9)
    crops.close()
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="jpeg", pil_kwargs={"quality": 82})


def source_of(options: argparse.Namespace) -> PointSource:
    """Simulated points from files, or networks."""
    if options.cnn2 is None:
        return given_points
    from metaphase.labels.phh3.networks import load_classifier

    models = {"cnn1": options.cnn1, "cnn2": options.cnn2}
    return network_points([load_classifier(name, p, options.device) for name, p in models.items() if p])


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Make the cohort and its points, build the reference standard, and judge it."""
    cohort, workspace = options.folder / "cohort", options.folder / "workspace"
    config = SimulationConfig(
        cases=options.cases, width=options.side, height=options.side, centres=options.centres,
        mitoses_per_mm2=tuple(options.mitoses), seed=options.seed, workers=options.workers,
    )  # fmt: skip
    cases = simulate_cohort(cohort, config)["case"].tolist()
    truths = {case: pd.read_parquet(cohort / case / "truth.parquet") for case in cases}
    for number, case in enumerate(cases):
        points = simulated_points(truths[case], options.missed, options.false_share, options.seed + number)
        write_table(options.folder / "points" / f"{case}.csv", points)
    began = time.perf_counter()
    built = build_cohort(
        cohort / "manifest.csv",
        workspace,
        source_of(options),
        BuildConfig(),
        points=options.folder / "points",
    )
    seconds = time.perf_counter() - began
    for one in built.cases:
        print(f"{one.case}: {one.status} {one.reason} {one.accepted} of {one.points} points accepted")
    done = [one.case for one in built.cases if (workspace / one.case / PLACED).is_file()]
    report = print_variants(done, workspace, truths)
    errors = np.concatenate(
        [placing_error_um(built.table[built.table["case"] == case], truths[case]) for case in done]
    )
    print(f"\nplaces: median {np.median(errors):.2f} um, 95 % {np.percentile(errors, 95):.2f} um")
    print(f"{seconds:.0f} s for {len(cases)} pairs")
    return {"variants": report, "median_um": float(np.median(errors)), "seconds": seconds}


def main() -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=6)
    parser.add_argument("--side", type=int, default=3072)
    parser.add_argument("--centres", type=int, default=6)
    parser.add_argument("--mitoses", type=float, nargs=2, default=(60.0, 250.0), help="per mm2 of tumour")
    parser.add_argument("--missed", type=float, default=0.1, help="share of mitoses that CNN2 misses")
    parser.add_argument("--false-share", type=float, default=0.1, help="share of CNN2's calls that are wrong")
    parser.add_argument("--cnn1", type=Path, help="model; with --cnn2, the real chain finds the points")
    parser.add_argument("--cnn2", type=Path)
    parser.add_argument("--workers", type=int, default=2, help="processes that render")
    parser.add_argument("--device")
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path, help="draw points of an earlier run and do nothing else")
    parser.add_argument("--visibility", action="store_true", help="judge the rule of an earlier run's cohort")
    parser.add_argument("--data", type=Path, help="folder of real fields, for --visibility")
    options = parser.parse_args()
    if options.visibility:
        print_visibility(options.folder / "cohort", options.data)
        return
    if options.picture:
        save_picture(options.folder / "workspace", options.picture)
        return
    report = run(options)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
