"""What travels: each choice of training is judged by laboratories that its networks never saw.

    python recipes/breast/laboratories.py --cohort OUT --weights lite0.pth lite1.pth --folder FOLDER
        [--choices base collage ...] [--steps 800] [--processes 4] [--device cuda]
    python recipes/breast/laboratories.py --cohort OUT --folder FOLDER --table
    python recipes/breast/laboratories.py --cohort OUT --folder FOLDER --counts [--pair FOUND]

OUT has the tables of breast_cohort.py. Three times a third of the laboratories is left out and a teacher
learns from the others. The threshold that gives at most 2, 4 or 8 false positives per mm2 in validation
patients of the others is tried on those left out. Fields count by recall, F1 and false positives, crops by
recall, TUPAC's look-alikes by how many are taken for mitoses. MiDeSeC, which no choice trains on, is reported
beside it and chooses nothing. `--table` reads what was found earlier. `--counts` compares the counts of
patients left out with their labels: detections above the threshold of 4 false positives per mm2, and the sum
of probabilities calibrated on validation fields of the others.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from metaphase.base.arrays import Floats
from metaphase.base.tables import read_table
from metaphase.detections.matching import suppress
from metaphase.detections.table import MITOSIS
from metaphase.evaluation.marks import Marked
from metaphase.evaluation.metrics import slide_counts
from metaphase.evaluation.operating_points import threshold_for_false
from metaphase.evaluation.pairs import FIELDS, Found, calibrated, fitted_to_fields, marked
from metaphase.images.stain.augmentation import AugmentationConfig
from metaphase.learn.sources import image_sources, read_cohort
from metaphase.networks.checkpoints import choose_device
from metaphase.networks.training.dense import (
    FLOOR,
    DenseTraining,
    Lesson,
    Teacher,
    all_maps,
    maxima,
    published_weights,
)
from metaphase.networks.training.images import MPP, LabelledImage, read_images
from metaphase.networks.training.windows import ViewConfig, Views, WindowSampler

RADIUS_UM, SUPPRESS_UM, SMOOTH_UM = 7.5, 15.0, 1.0
FALSE_PER_MM2 = (2.0, 4.0, 8.0)
COUNTED_FALSE_PER_MM2 = 4.0
WAYS = THRESHOLD, SUM = "threshold", "sum"
LABORATORIES = {
    "fields, Aperio": ("icpr2012-aperio", "mitos-atypia14-A03"),
    "fields, Hamamatsu": ("mitos-atypia14-hamamatsu",),
    "TUPAC 1": ("tupac-1",),
    "TUPAC 2": ("tupac-2",),
    "TUPAC 3": ("tupac-3",),
    "MIDOG++, Aperio CS2": ("midog canine cutaneous mast cell tumor", "midog human breast cancer, Aperio"),
    "MIDOG++, Hamamatsu S360": ("midog human breast cancer, Hamamatsu S360",),
    "MIDOG++, Hamamatsu XR": ("midog human melanoma", "midog human neuroendocrine"),
    "MIDOG++, 3D Histech": ("midog canine l", "midog canine soft"),
}
"""By the beginning of the names in the manifest."""
FOLDS = (
    ("fields, Aperio", "MIDOG++, 3D Histech"),
    ("fields, Hamamatsu", "MIDOG++, Aperio CS2"),
    ("TUPAC 1", "TUPAC 2", "TUPAC 3", "MIDOG++, Hamamatsu S360", "MIDOG++, Hamamatsu XR"),
)
BESIDE = {"fields, Hamamatsu": ("icpr2012-hamamatsu",), "TUPAC 1": ("tupac-lookalikes",)}
"""What is left out of training with a laboratory and not tested."""
REPORTED = {"MiDeSeC": ("midesec",), "benign": ("breakhis",), "TUPAC look-alikes": ("tupac-lookalikes",)}
SHOWN = AugmentationConfig(
    stain_factor=(0.85, 1.15), stain_bias=(-0.1, 0.1), scale=(0.75, 1.4), colour=(0.85, 1.2),
    contrast=(0.85, 1.2), brightness=(0.9, 1.1), blur_sigma_px=(0.0, 1.2), noise_sigma=(0.0, 0.04),
)  # fmt: skip
VIEW = ViewConfig(64, "RCSEHBG", SHOWN, 0.8)
"""As in configs/breast.toml."""


@dataclass(frozen=True)
class Choice:
    """One way to train."""

    view: ViewConfig = VIEW
    collage: float = 0.0
    network: int = 0
    """Which of the given weights it begins with."""
    images: Callable[[LabelledImage], LabelledImage | None] = lambda one: one


def shown(**changes: Any) -> ViewConfig:
    """Windows with another augmentation."""
    return replace(VIEW, augmentation=replace(SHOWN, **changes))


CHOICES = {
    "base": Choice(),
    "other seed": Choice(),
    "Lite1": Choice(network=1),
    "stain mixing 0.4": Choice(view=replace(VIEW, stain_mix=0.4)),
    "wider colours": Choice(
        view=shown(stain_factor=(0.7, 1.3), stain_bias=(-0.2, 0.2), colour=(0.7, 1.4), contrast=(0.7, 1.4))
    ),
    "more blur and noise": Choice(view=shown(blur_sigma_px=(0.0, 2.0), noise_sigma=(0.0, 0.08))),
    "crops within fields": Choice(collage=0.5),
    "crops half as often": Choice(
        images=lambda one: replace(one, weight=one.weight / 2) if one.is_crop else one
    ),
    "without look-alike crops": Choice(
        images=lambda one: None if one.laboratory == "tupac-lookalikes" else one
    ),
    "without negative fields": Choice(images=lambda one: None if one.kind == "negatives" else one),
}  # fmt: skip
MEANS = {"mean of Lite0 and Lite1": ("base", "Lite1"), "mean of two seeds": ("base", "other seed")}


def belongs(one: LabelledImage, *names: str) -> bool:
    """Whether an image is of one of these laboratories."""
    groups = LABORATORIES | REPORTED
    return any(one.laboratory.startswith(groups[name]) for name in names)


def learnt_from(images: Sequence[LabelledImage], out: Sequence[str], choice: Choice) -> list[LabelledImage]:
    """Images of the split train that are of no laboratory or patient left out."""
    beside = tuple(name for lab in out for name in BESIDE.get(lab, ()))
    patients = {one.patient for one in images if belongs(one, *out)}
    kept = [one for one in images if one.split == "train" and one.patient not in patients]
    changed = (choice.images(one) for one in kept if not one.laboratory.startswith(beside or ("none",)))
    return [one for one in changed if one is not None]


def tested_on(images: Sequence[LabelledImage], out: Sequence[str]) -> list[LabelledImage]:
    """All of the laboratories left out, validation fields of the others, and what is reported."""
    return [
        one
        for one in images
        if belongs(one, *out) or belongs(one, *REPORTED) or (one.split == "validation" and not one.is_crop)
    ]


def taught(
    images: Sequence[LabelledImage], choice: Choice, seed: int, options: Any, folder: Path
) -> nn.Module:
    """A teacher after its lesson."""
    device = choose_device(options.device)
    torch.manual_seed(seed)
    teacher = Teacher(published_weights(options.weights[choice.network]))
    teacher = teacher.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    windows = WindowSampler(images, device, seed, choice.collage)
    training = DenseTraining(
        {"teacher": teacher}, Views(windows, choice.view), Lesson(options.steps), (), folder, {}, 1e6
    )
    folder.mkdir(parents=True, exist_ok=True)
    network = training.finish(lambda *_: None)["teacher"]
    training.forget()
    return network


def maps_of(network: nn.Module, images: Sequence[LabelledImage], options: Any) -> dict[str, Any]:
    """Logits of every cell."""
    device = choose_device(options.device)
    return {
        images[number].name: maps[0][0].half().cpu().numpy()
        for number, maps in all_maps([network], images, device)
    }


def found_in(logits: Any) -> Floats:
    """What a map shows, as `pair_found` gives it."""
    rows = maxima(torch.from_numpy(logits)[None].float(), SMOOTH_UM, FLOOR)
    kept = suppress(rows[:, 0].copy(), rows[:, 1].copy(), rows[:, 2].copy(), SUPPRESS_UM / MPP)
    return rows[kept][:, :4]


def work(task: tuple[str, int], images: Sequence[LabelledImage], options: Any) -> str:
    """Teach, search and judge one choice without one third of the laboratories."""
    name, fold = task
    target = options.folder / f"{name}-{fold}"
    if Path(f"{target}.csv").exists():
        return f"{name}, {fold}: kept"
    started, out = time.monotonic(), FOLDS[fold]
    if name in MEANS:
        maps = mean_of([dict(np.load(options.folder / f"{each}-{fold}.npz")) for each in MEANS[name]])
    else:
        learnt = learnt_from(images, out, CHOICES[name])
        seed = 100 + fold + (50 if name == "other seed" else 0)
        network = taught(learnt, CHOICES[name], seed, options, options.folder / f"state-{name}-{fold}")
        maps = maps_of(network.eval(), tested_on(images, out), options)
        np.savez(Path(f"{target}.npz"), allow_pickle=False, **maps)
    found = {key: found_in(logits) for key, logits in maps.items()}
    fields = {one.name: found[one.name] for one in tested_on(images, out) if not one.is_crop}
    np.savez_compressed(options.folder / f"found-{name}-{fold}.npz", allow_pickle=False, **fields)
    table = pd.DataFrame(judged(images, found, fold)).assign(choice=name)
    table.to_csv(Path(f"{target}.csv"), index=False)
    return f"{name}, {fold}: {time.monotonic() - started:.0f} s"


def mean_of(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of several networks' logits."""
    return {key: np.mean([part[key].astype(np.float32) for part in parts], axis=0) for key in parts[0]}


# ---- judging ----


def figures(images: Sequence[LabelledImage], found: Found, threshold: float) -> dict[str, float]:
    """Recall, F1 and false positives per mm2."""
    part = marked(images, found, RADIUS_UM)
    true, false = (values[:, 0].sum() for values in slide_counts(part, np.array([threshold])))
    there = part.truths.sum()
    return {
        "recall": float(true / there) if there else np.nan,
        "f1": float(2 * true / max(1, true + false + there)) if there else np.nan,
        "false_per_mm2": float(false / part.area_mm2.sum()),
        "per_image": float((true + false) / len(images)),
    }


def choosing(images: Sequence[LabelledImage], found: Found, fold: int) -> Marked:
    """Detections in validation fields of the laboratories that are not left out: these choose thresholds."""
    known = [one for one in images if one.split == "validation" and not one.is_crop]
    return marked([one for one in known if not belongs(one, *FOLDS[fold])], found, RADIUS_UM)


def judged(images: Sequence[LabelledImage], found: Found, fold: int) -> list[dict[str, Any]]:
    """A row for each laboratory left out and each rate of false positives."""
    out = FOLDS[fold]
    tested = tested_on(images, out)
    known = {one.name for one in learnt_from(images, out, Choice())}
    part = choosing(images, found, fold)
    rows = []
    for most in FALSE_PER_MM2:
        threshold, _ = threshold_for_false([part], most)
        for name in (*out, *REPORTED):
            chosen = [one for one in tested if belongs(one, name) and one.name not in known]
            if chosen:
                row = {"laboratory": name, "fold": fold, "most": most}
                rows.append(row | figures(chosen, found, threshold))
    return rows


def described(table: pd.DataFrame) -> None:
    """Mean over laboratories and how it differs from the first choice, with the spread of the differences."""
    own = table[~table["laboratory"].isin(REPORTED)]
    recall = own.groupby(["choice", "laboratory"])["recall"].mean().unstack()
    f1 = (
        own[own["laboratory"].str.startswith("fields")]
        .groupby(["choice", "laboratory"])["f1"]
        .mean()
        .unstack()
    )
    beside = table[table["laboratory"].isin(REPORTED)].groupby(["choice", "laboratory"])[
        ["recall", "f1", "false_per_mm2", "per_image"]
    ].mean().unstack()  # fmt: skip
    change = recall - recall.loc["base"]
    spread = change.std(axis=1) / np.sqrt(change.notna().sum(axis=1))
    summary = pd.DataFrame({
        "recall": recall.mean(axis=1), "change": change.mean(axis=1), "spread": spread,
        "better in": (change > 0).sum(axis=1), "F1 of fields": f1.mean(axis=1),
        "MiDeSeC F1": beside["f1"]["MiDeSeC"], "benign per mm2": beside["false_per_mm2"]["benign"],
        "look-alikes taken": beside["per_image"].get("TUPAC look-alikes", np.nan),
    })  # fmt: skip
    order = [name for name in (*CHOICES, *MEANS) if name in summary.index]
    with pd.option_context("display.width", 250, "display.max_columns", 30):
        print(summary.loc[order].round(3).to_string())
        print(recall.loc[order].round(3).to_string())


# ---- counts ----


def counted(part: Marked, way: str, choosing: Marked) -> tuple[Floats, Floats]:
    """Expected mitoses of each patient with their variance; what is amiss in `choosing` is corrected."""
    threshold, _ = threshold_for_false([choosing], COUNTED_FALSE_PER_MM2)

    def counts(probability: Floats) -> Floats:
        return probability if way == SUM else (probability >= threshold).astype(np.float64)

    share = counts(choosing.probability).sum() / choosing.truths.sum()
    each = counts(part.probability) / share
    varies = each * (1 - part.probability) / share if way == SUM else each / share

    def summed(values: Floats) -> Floats:
        return np.bincount(part.slide, values, minlength=len(part.truths)).astype(np.float64)

    return summed(each), summed(varies + each)


def count_rows(images: Sequence[LabelledImage], options: Any) -> pd.DataFrame:
    """Of each network, laboratory left out and way to count: how far from the labels it is."""
    every = [one for one in images if not one.laboratory.endswith("eval-mitoses")]
    lessons = [
        (options.folder / f"found-{name}-{fold}.npz", out)
        for name in (*CHOICES, *MEANS)
        for fold, out in enumerate(FOLDS)
    ]
    rows = []
    for path, out in [(options.pair, ())] if options.pair else lessons:
        others = [one for one in every if one.split == "validation" and not belongs(one, *out)]
        found = dict(np.load(path))
        found = calibrated(found, fitted_to_fields({FIELDS: others}, found, RADIUS_UM))
        choosing = marked(others, found, RADIUS_UM)
        for laboratory in (*out, "MiDeSeC"):
            left_out = [one for one in every if belongs(one, laboratory)]
            if left_out:
                part = marked(left_out, found, RADIUS_UM)
                rows += [{"laboratory": laboratory} | compared(part, way, choosing) for way in WAYS]
    return pd.DataFrame(rows)


def compared(part: Marked, way: str, choosing: Marked) -> dict[str, Any]:
    """Bias of the whole; of patients the correlation, and how many 95 % intervals hold the labelled count."""
    total, variance = counted(part, way, choosing)
    by_patient = pd.DataFrame({"said": total, "variance": variance, "there": part.truths})
    by_patient = by_patient.groupby(list(part.patients)).sum()
    off = (by_patient["said"] - by_patient["there"]).abs()
    return {
        "way": way, "said": total.sum(), "labelled": part.truths.sum(),
        "ratio": total.sum() / part.truths.sum(),
        "correlation": by_patient["said"].corr(by_patient["there"], method="spearman"),
        "mean error": off.mean(), "covered": (off <= 1.96 * np.sqrt(by_patient["variance"]) + 0.5).mean(),
        "patients": len(by_patient),
    }  # fmt: skip


def main() -> None:
    """Parse, teach, tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cohort", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--weights", nargs="+", default=[])
    parser.add_argument("--choices", nargs="*", default=list(CHOICES), choices=list(CHOICES))
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--device")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--counts", action="store_true")
    parser.add_argument("--pair", type=Path, help="counts of what a run has found: its found/start.npz")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if not options.table:
        cohort = read_cohort(options.cohort / "breast.csv")
        cohort = cohort[cohort["kind"] == "field"] if options.counts else cohort
        reference = read_table(options.cohort / "reference.csv")
        images = read_images(image_sources(cohort, reference), 16.0)
        if options.counts:
            groups = count_rows(images, options).groupby(["laboratory", "way"], sort=False)
            spread = groups["ratio"].agg(lowest="min", highest="max")
            print(groups.mean().join(spread).round(2).to_string())
            return
        print(f"{len(images)} images, {sum(len(one.of(MITOSIS)) for one in images)} mitoses", flush=True)
        global _SHARED
        _SHARED = (images, options)
        means = [name for name, parts in MEANS.items() if set(parts) <= set(options.choices)]
        with multiprocessing.get_context("fork").Pool(options.processes) as pool:
            for names in (options.choices, means):
                tasks = [(name, fold) for name in names for fold in range(len(FOLDS))]
                for line in pool.imap_unordered(_work, tasks, chunksize=1):
                    print(line, flush=True)
    tables = [pd.read_csv(path) for path in sorted(options.folder.glob("*-[0-9].csv"))]
    described(pd.concat(tables, ignore_index=True))


_SHARED: tuple[list[LabelledImage], Any]
"""What all processes work on, shared by forking."""


def _work(task: tuple[str, int]) -> str:
    torch.set_num_threads(2)
    return work(task, *_SHARED)


if __name__ == "__main__":
    main()
