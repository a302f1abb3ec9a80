"""Two networks together: a student of dense_model.py sees everything, another one what it points to.

python recipes/breast/dense_pair.py search --data FOLDER --folder OUT
python recipes/breast/dense_pair.py package --data FOLDER --folder OUT -o MODEL

Both are students of dense_model.py (`--student`, `--second`), or the second is a packaged one. `search` gives
OUT/pair-*.npz: what the mean of both logits finds in the images left out when both see everything, one file a
smoothing, and how sure the student alone is at each place. `package` chooses on validation laboratories and
writes MODEL with its card and its second look: probabilities that mean what they say, the floor from which
places are looked at again, and the operating points. MiDeSeC has no part in any of it. What atypical.py left
in OUT becomes the network that tells atypical figures. What is searched stays.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from atypical import read_figures
from dense_accuracy import DRAWS, MOST_FALSE, Found, Parts, marked
from dense_model import SUPPRESS_UM, _note, load, save_found, student_map
from pictures import MITOSIS, MPP, TRAIN, Picture, read_pictures
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logit
from scipy.stats import mannwhitneyu
from shapes import STUDENTS
from thresholds import threshold_for_false, threshold_of_several
from torch import Tensor, nn
from torch.nn import functional
from windows import CELL_PX, sample

from metaphase.detections.matching import suppress
from metaphase.detections.points import PAPER_POINTS, OperatingPoint, PointName
from metaphase.evaluation.marks import Marked
from metaphase.evaluation.metrics import detection_metrics, slide_counts
from metaphase.images.stain.deconvolution import stained_density
from metaphase.networks.cards import (
    PATCH_PX,
    AtypicalModel,
    CardAdditions,
    ModelCard,
    SecondModel,
    StatedCalibration,
    TrainingData,
    completed_card,
    current_versions,
    named_model,
    parse_card,
)
from metaphase.networks.checkpoints import load_model, save_model
from metaphase.networks.engine.peaks import collect, is_peak, smoothed
from metaphase.networks.engine.places import smoothing_reach
from metaphase.networks.engine.second import FAR
from metaphase.networks.engine.settings import Calibration

SMOOTH_UM = (0.0, 1.0, 1.75, 2.5)
FLOOR, LEAST_FLOOR = 0.02, 0.001
"""Lowest probabilities that are written down: of both together, and of the student's own maxima."""
KEPT = 0.995
"""Share of the detections of each validation group that the floor must let pass."""
FLOORS = np.arange(0.05, 0.96, 0.05)
POINTS: tuple[PointName, ...] = ("mitoses", "count")
CONTEST, CHALLENGE = "contest data, research use", "challenge data, research use"
SOURCES = {
    "icpr2012-aperio": ("ICPR 2012 MITOS, Aperio, patients 00 to 03", CONTEST),
    "icpr2012-hamamatsu-painted": ("ICPR 2012 MITOS, Hamamatsu, negatives only", CONTEST),
    "icpr2012-aperio-eval-painted": ("ICPR 2012 MITOS, evaluation fields, negatives only", CONTEST),
    "icpr2012-aperio-eval-mitoses": ("ICPR 2012 MITOS, windows around evaluation mitoses", CONTEST),
    "mitos-atypia14-A03": ("MITOS-ATYPIA-14, slide A03", CONTEST),
    "mitos-atypia14-hamamatsu": ("MITOS-ATYPIA-14, Hamamatsu, six slides", CONTEST),
    "breakhis-benign": ("BreakHis, benign breast, negatives only", "research use"),
    "midog-mitoses": ("MIDOG++, crops of mitotic figures and the tissue around them", "CC BY 4.0"),
    "tupac-mitoses": ("TUPAC16, crops of mitotic figures", CHALLENGE),
    "tupac-lookalikes": ("TUPAC16 look-alikes, negatives only", CHALLENGE),
}
FAILURES = (
    "Pale or blurred figures, early prophases and figures cut by the edge of an image are often missed.",
    "Pyknotic nuclei, dark plasma cells and lymphocytes, spindle nuclei of the stroma and grains of pigment "
    "are the usual errors.",
    "Its probabilities mean what they say in active tumour; in tissue with few mitoses they are too high.",
    "20x scanners: only 40x images were seen.",
)
USE = "Research only; not for diagnosis. Counts of other laboratories' slides are to be checked by eye."


# ---- searching ----


def maxima(logits: Tensor, smooth_um: float, floor: float) -> npt.NDArray[np.float64]:
    """(n, 5): x, y, probability, row and column of the maxima of a map (1, rows, columns)."""
    sigma = smooth_um / (MPP * CELL_PX)
    reach = smoothing_reach(sigma) + 1
    values = smoothed(functional.pad(logits[None], (reach,) * 4, mode="replicate")[0], sigma)
    found = collect(values, is_peak(values, floor))
    x, y = ((place - 1 + 0.5) * CELL_PX for place in (found.column, found.row))
    return np.column_stack([x, y, found.probability, found.output - 1])


def pair_found(
    first: Tensor, second: Tensor, smooth_um: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """What both find, as (n, 4): x, y, probability and the student's own; and the student's maxima.

    The student's own is the highest of its maxima from which a second look would come to the place; 0 where
    there is none.
    """
    found = maxima((first + second) / 2, smooth_um, FLOOR)
    own = maxima(first, smooth_um, LEAST_FLOOR)
    apart = np.abs(found[:, None, 3:] - own[None, :, 3:]).max(axis=2)
    sure = np.where(apart <= FAR, own[None, :, 2], 0.0).max(axis=1, initial=0.0)
    kept = suppress(found[:, 0].copy(), found[:, 1].copy(), found[:, 2].copy(), SUPPRESS_UM / MPP)
    return np.column_stack([found[:, :3], sure])[kept], own[:, 2]


def search(options: argparse.Namespace) -> None:
    """All images left out, at each smoothing."""
    note = partial(_note, time.perf_counter())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    student = load(STUDENTS[options.student](), options.folder / f"{options.student}.safetensors", device)
    second = looker(options, device)
    files = {smooth: options.folder / f"pair-{smooth:g}.npz" for smooth in SMOOTH_UM}
    owns = {smooth: options.folder / f"own-{smooth:g}.npz" for smooth in SMOOTH_UM}
    found, own = (
        {key: _read(path) if path.exists() else {} for key, path in paths.items()} for paths in (files, owns)
    )
    pictures = [one for one in read_pictures(options.data, options.most) if one.role != TRAIN]
    missing = [one for one in pictures if _name(one) not in found[SMOOTH_UM[-1]]]
    for number, one in enumerate(missing):
        first, again = (student_map(network, device, one) for network in (student, second))
        for smooth in SMOOTH_UM:
            found[smooth][_name(one)], own[smooth][_name(one)] = pair_found(first, again, smooth)
        if number % 200 == 0:
            note(f"{number} of {len(missing)} images")
    for smooth in SMOOTH_UM:
        save_found(owns[smooth], own[smooth])
        save_found(files[smooth], found[smooth])
    note("searched")


def looker(options: argparse.Namespace, device: torch.device) -> nn.Module:
    """The network that looks again: a student, or a packaged model."""
    stored = options.folder / f"{options.second}.safetensors"
    if options.second in STUDENTS:
        return load(STUDENTS[options.second](), stored, device)
    network: Any = load_model(named_model(options.second), device)[0]
    packaged: nn.Module = network.to(memory_format=torch.channels_last)
    return packaged


def _name(one: Picture) -> str:
    return f"{one.folder}|{one.name}"


def _read(path: Path) -> Found:
    with np.load(path, allow_pickle=False) as stored:
        return dict(stored)


# ---- choosing ----


def fitted(parts: Sequence[Marked]) -> Calibration:
    """Scale and shift by which probabilities fit what was right, each part counting alike."""
    x = logit(np.clip(np.concatenate([part.probability for part in parts]), 1e-6, 1 - 1e-6))
    right = np.concatenate([part.found for part in parts])
    each = np.concatenate([np.full(len(part.probability), 1 / len(part.probability)) for part in parts])
    return fitted_to(x, right, each)


def fitted_to(
    x: npt.NDArray[np.float64], right: npt.NDArray[np.bool_], each: npt.NDArray[np.float64]
) -> Calibration:
    """Scale and shift of logits by the least cross-entropy, with weights."""

    def loss(values: npt.NDArray[np.float64]) -> float:
        z = np.exp(values[0]) * x + values[1]
        return float(np.sum(each * np.where(right, -log_expit(z), -log_expit(-z))))

    scale, shift = minimize(loss, (0.0, 0.0), method="Nelder-Mead").x
    return Calibration(float(np.exp(scale)), float(shift))


def calibrated(found: Found, calibration: Calibration) -> Found:
    """The same places with calibrated probabilities."""
    return {
        name: np.column_stack(
            [rows[:, :2], expit(calibration(logit(np.clip(rows[:, 2], 1e-7, 1 - 1e-7)))), rows[:, 3:]]
        )
        for name, rows in found.items()
    }


def reliability(part: Marked, bins: int = 5) -> list[dict[str, float]]:
    """Mean probability, and how often it was right, in bins of equal numbers from a probability of 0.1 on."""
    kept = part.probability >= 0.1
    order = np.argsort(part.probability[kept])
    groups = [group for group in np.array_split(order, bins) if len(group)]
    said, right = part.probability[kept], part.found[kept]
    return [
        {"said": round(float(said[group].mean()), 3), "right": round(float(right[group].mean()), 3),
         "detections": len(group)}
        for group in groups
    ]  # fmt: skip


def expected_error(part: Marked) -> float:
    """Mean distance of what was said from what was right, over such bins."""
    rows = reliability(part, 10)
    total = sum(row["detections"] for row in rows)
    return sum(abs(row["said"] - row["right"]) * row["detections"] for row in rows) / max(1, total)


def floor_for(found: Found, groups: dict[str, list[Picture]], threshold: float) -> float:
    """The highest floor that lets `KEPT` of each validation group's detections pass.

    Those near which the student has no maximum at all are lost whatever the floor.
    """
    fine = LEAST_FLOOR
    for floor in FLOORS:
        for pictures in groups.values():
            rows = np.concatenate([found[_name(one)] for one in pictures])
            sure = rows[rows[:, 2] >= threshold, 3]
            if len(sure) and (sure >= floor).sum() < min(KEPT * len(sure), (sure > 0).sum()):
                return fine
        fine = float(floor)
    return fine


def patient_recall(parts: Sequence[Marked], threshold: float) -> float:
    """Mean over patients with mitoses of the share that is found."""
    found = np.concatenate([slide_counts(part, np.array([threshold]))[0][:, 0] for part in parts])
    there = np.concatenate([part.truths for part in parts])
    patients = np.array([name for part in parts for name in part.patients], object)
    sums = pd.DataFrame({"found": found, "there": there}).groupby(patients).sum()
    return float((sums["found"] / sums["there"])[sums["there"] > 0].mean())


def told(part: Marked, threshold: float) -> dict[str, Any]:
    """Figures of one group at one point."""
    figures = detection_metrics(part, threshold, DRAWS)
    return {
        "images": figures.slides, "patients": figures.patients, "mitoses": int(part.truths.sum()),
        "mm2": round(float(part.area_mm2.sum()), 2), "f1": str(figures.f1), "recall": str(figures.recall),
        "precision": str(figures.precision), "false_per_mm2": round(figures.false_per_mm2, 2),
    }  # fmt: skip


# ---- packaging ----


def package(options: argparse.Namespace) -> None:
    """Choose, and write the pair as one model; print what it does in images left out."""
    pictures = read_pictures(options.data)
    parts = Parts.of(pictures)
    raw = _read(options.folder / f"pair-{options.smooth_um:g}.npz")
    by_folder = [
        marked([one for one in parts.labelled if one.folder == folder], raw)
        for folder in dict.fromkeys(one.folder for one in parts.labelled)
    ]
    calibration = fitted(by_folder)
    found = calibrated(raw, calibration)
    groups = {"fields": parts.labelled, "painted": parts.painted, **parts.crops}
    marks = {name: marked(group, found) for name, group in groups.items()}
    fields, painted = marks["fields"], marks["painted"]
    several, f1 = threshold_of_several(fields, [marks[name] for name in parts.crops], [painted])
    strict, false = threshold_for_false([fields, painted], MOST_FALSE, least=several)
    floor = floor_for(found, groups, several)
    marks |= {"benign": marked(parts.benign, found), "MiDeSeC": marked(parts.look, found)}
    thresholds = {"mitoses": several, "count": strict}
    everybody = [one for group in (*groups.values(), parts.benign) for one in group]
    shared = {
        "suppress_um": SUPPRESS_UM, "smooth_um": options.smooth_um,
        "cases": tuple(f"{one.folder}-{one.name}" for one in everybody if not one.is_crop),
        "patients": tuple(dict.fromkeys(one.patient for one in everybody)),
        "laboratories": tuple(dict.fromkeys(one.domain for one in everybody)),
    }  # fmt: skip
    points = {
        "mitoses": OperatingPoint(
            name="mitoses", delta=several, metric="F1", value=f1,
            source="ICPR 2012 patient 04, MITOS-ATYPIA-14 slides, TUPAC16 and MIDOG++ crops left out",
            false_per_mm2=told(fields, several)["false_per_mm2"], recall=patient_recall([fields], several),
            **shared,
        ),
        "count": OperatingPoint(
            name="count", delta=strict, theta1=PAPER_POINTS.count.theta1, theta2=PAPER_POINTS.count.theta2,
            source=f"chosen for at most {MOST_FALSE:g} false detections per mm2 in tumours not trained on, "
            "for no graded slide was at hand; theta1 and theta2 are the paper's",
            false_per_mm2=false, recall=patient_recall([fields], strict), **shared,
        ),
    }  # fmt: skip
    measured = {
        name: {point: told(part, thresholds[point]) for point in POINTS} for name, part in marks.items()
    }
    before = {"fields": marked(parts.labelled, raw), "MiDeSeC": marked(parts.look, raw)}
    reliable = {
        name: {"error_before": round(expected_error(part), 3),
               "error_after": round(expected_error(marks[name]), 3), "curve": reliability(marks[name])}
        for name, part in before.items()
    }  # fmt: skip
    searched = searched_again(options, found, groups | {"benign": parts.benign, "MiDeSeC": parts.look},
                              several, floor)  # fmt: skip
    write(options, pictures, calibration, floor, points,
          {"left out": measured, "reliability": reliable, "second look": searched})  # fmt: skip
    print(json.dumps({"calibration": [calibration.scale, calibration.shift], "floor": floor,
                      "thresholds": thresholds, "left out": measured, "reliability": reliable,
                      "second look": searched}, indent=1))  # fmt: skip


def searched_again(
    options: argparse.Namespace,
    found: Found,
    groups: dict[str, list[Picture]],
    threshold: float,
    floor: float,
) -> dict[str, Any]:
    """Of each group: places looked at again per mm2, and the share of both's detections that is kept."""
    own = _read(options.folder / f"own-{options.smooth_um:g}.npz")
    told: dict[str, Any] = {}
    for name, pictures in groups.items():
        rows = np.concatenate([found[_name(one)] for one in pictures])
        sure = rows[rows[:, 2] >= threshold, 3]
        area = sum(one.pixels.shape[0] * one.pixels.shape[1] for one in pictures) * (MPP / 1000) ** 2
        places = sum(int((own[_name(one)] >= floor).sum()) for one in pictures)
        told[name] = {"places_per_mm2": round(places / area), "detections": len(sure),
                      "kept": round(float((sure >= floor).mean()), 4) if len(sure) else None}  # fmt: skip
    return told


def write(
    options: argparse.Namespace,
    pictures: Sequence[Picture],
    calibration: Calibration,
    floor: float,
    points: dict[str, OperatingPoint],
    metrics: dict[str, Any],
) -> None:
    """Weights and cards of both networks."""
    device = torch.device("cpu")
    student = load(STUDENTS[options.student](), options.folder / f"{options.student}.safetensors", device)
    target: Path = options.output.with_suffix(".safetensors")
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f"{target.stem}-second.safetensors")
    learnt = [one for one in pictures if one.role == TRAIN]
    data = tuple(
        TrainingData(
            name=name,
            terms=terms,
            positives=sum(len(one.of(MITOSIS)) for one in learnt if one.folder == folder),
        )
        for folder, (name, terms) in SOURCES.items()
    )
    common: dict[str, Any] = {
        "normalisation": "batch", "mpp": MPP, "patch_px": PATCH_PX, "classes": ("other", "mitosis"),
        "optical_density": learnt_colour(learnt), "data": data, "intended_use": USE,
        "known_failures": FAILURES, "versions": current_versions(),
    }  # fmt: skip
    own = ModelCard(name=beside.stem, family="residual", gamma=0.75, **common)
    if options.second not in STUDENTS:
        before = parse_card(named_model(options.second).with_suffix(".json"))
        own = completed_card(before, beside.stem, CardAdditions(data=before.data, intended_use=USE))
    looks = save_model(beside, looker(options, device), own, half=True)
    whole = ModelCard(
        name=target.stem, family="lite", gamma=1.0, thresholds=points,  # type: ignore[arg-type]
        second=SecondModel(model=beside.stem, weights_sha256=looks.weights_sha256, floor=floor),
        calibration=StatedCalibration(scale=calibration.scale, shift=calibration.shift),
        atypical=packaged_atypical(options, target), metrics=metrics, **common,
    )  # fmt: skip
    save_model(target, student, whole, half=True)


def learnt_colour(learnt: Sequence[Picture]) -> tuple[float, float, float]:
    """Mean density of what is stained in the images learnt from, domains counting alike."""
    domains = sorted({one.domain for one in learnt})
    density = [
        stained_density(sample([one.pixels for one in learnt if one.domain == name])) for name in domains
    ]
    red, green, blue = np.mean(density, axis=0)
    return float(red), float(green), float(blue)


def packaged_atypical(options: argparse.Namespace, target: Path) -> AtypicalModel | None:
    """The network that tells atypical figures, calibrated on slides left out, with its own card.

    Where none was learnt, that of the model that is there already stays.
    """
    stored = options.folder / "atypical.npz"
    if not stored.exists():
        return parse_card(target.with_suffix(".json")).atypical if target.exists() else None
    figures = read_figures(options.data)
    with np.load(stored, allow_pickle=False) as said:
        if list(said["path"]) != list(figures["path"]):
            raise SystemExit(f"{stored}: not of these data; run atypical.py again")
        logits = {name: said[name] for name in ("slides", "scanners", "tumours")}
    right = figures["atypical"].to_numpy(bool)
    calibration = fitted_to(logits["slides"], right, np.ones(len(right)))
    metrics = {name: _atypical_figures(calibration(each), right, figures) for name, each in logits.items()}
    beside = target.with_name(f"{target.stem}-atypical.safetensors")
    network = load(STUDENTS["lite"](), options.folder / "atypical.safetensors", torch.device("cpu"))
    data = tuple(
        TrainingData(name=SOURCES[folder][0], terms=SOURCES[folder][1],
                     positives=int(right[figures["path"].str.startswith(folder)].sum()))
        for folder in ("midog-mitoses", "tupac-mitoses")
    )  # fmt: skip
    card = ModelCard(
        name=beside.stem, family="lite", gamma=1.0, normalisation="batch", mpp=MPP, patch_px=PATCH_PX,
        classes=("typical", "atypical"), data=data, metrics={"left out": metrics}, intended_use=USE,
        calibration=StatedCalibration(scale=calibration.scale, shift=calibration.shift),
        versions=current_versions(),
    )  # fmt: skip
    print(json.dumps({"atypical": metrics}, indent=1))
    return AtypicalModel(
        model=beside.stem, weights_sha256=save_model(beside, network, card, half=True).weights_sha256
    )


def _atypical_figures(
    logits: npt.NDArray[np.float64], right: npt.NDArray[np.bool_], figures: pd.DataFrame
) -> dict[str, Any]:
    """ROC AUC with its interval over slides, balanced accuracy, and how far chances are off."""
    chance, slides = expit(logits), figures["slide"].to_numpy(str)
    rows = [np.flatnonzero(slides == name) for name in np.unique(slides)]
    rng = np.random.default_rng(0)
    drawn = [_auc(logits[at], right[at]) for at in (
        np.concatenate([rows[number] for number in rng.integers(len(rows), size=len(rows))])
        for _ in range(300))]  # fmt: skip
    low, high = np.quantile(drawn, [0.025, 0.975])
    yes = chance >= right.mean()
    groups = np.array_split(np.argsort(chance), 10)
    error = np.mean([abs(chance[group].mean() - right[group].mean()) for group in groups])
    breast = figures["tumor"].str.contains("breast").to_numpy()
    return {"figures": len(right), "atypical": int(right.sum()),
            "auc": f"{_auc(logits, right):.3f} [{low:.3f}, {high:.3f}]",
            "auc_of_human_breast": round(_auc(logits[breast], right[breast]), 3),
            "balanced_accuracy": round(float((yes[right].mean() + (~yes[~right]).mean()) / 2), 3),
            "calibration_error": round(float(error), 3)}  # fmt: skip


def _auc(values: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> float:
    return float(mannwhitneyu(values[right], values[~right]).statistic / (right.sum() * (~right).sum()))


def main() -> None:
    """Search, or package."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("search", "package"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--student", default="lite")
    parser.add_argument("--second", default="residual", help="a student, or a packaged model")
    parser.add_argument("--most", type=int, help="images a folder, to try it out")
    parser.add_argument("--smooth-um", type=float, default=1.75, choices=SMOOTH_UM)
    parser.add_argument("-o", "--output", type=Path, default=Path("breast"))
    options = parser.parse_args()
    (search if options.what == "search" else package)(options)


if __name__ == "__main__":
    main()
