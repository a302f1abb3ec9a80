"""What the networks of dense_model.py find in patients left out: one line a network.

python recipes/breast/dense_accuracy.py --data FOLDER --folder OUT

The threshold for mitoses is that of several laboratories (ICPR's patient 04, MITOS-ATYPIA-14 slides, TUPAC
and MIDOG++ crops left out), that for counts the lowest with at most 4 false detections per mm2 in the mean of
their patients. MiDeSeC has no part in either.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pictures import IGNORE, MITOSIS, MPP, TRAIN, Picture, read_pictures
from thresholds import threshold_for_false, threshold_of_several

from metaphase.detections import match
from metaphase.detections.matching import NOBODY
from metaphase.evaluation import BootstrapConfig
from metaphase.evaluation.marks import Marked
from metaphase.evaluation.metrics import best_threshold, curve, detection_metrics

RADIUS_UM, IGNORE_UM, MOST_FALSE = 7.5, 14.0, 4.0
LABELLED = ("icpr2012-aperio", "mitos-atypia14-hamamatsu")
PAINTED = ("icpr2012-hamamatsu-painted", "icpr2012-aperio-eval-painted")
NONE, DRAWS = BootstrapConfig(samples=0), BootstrapConfig(samples=1000)
Found = dict[str, npt.NDArray[np.float64]]


def marked(pictures: Sequence[Picture], found: Found) -> Marked:
    """Detections in these images, each true or false; what lies near a place to ignore is left out."""
    rows, truths = [], []
    for index, one in enumerate(pictures):
        here = found[f"{one.folder}|{one.name}"]
        real, painted = one.of(MITOSIS), one.of(IGNORE)
        if len(painted) and len(here):
            apart = np.hypot(*(here[:, None, :2] - painted[None]).transpose(2, 0, 1)).min(axis=1)
            here = here[apart * MPP > IGNORE_UM]
        matched = match(here[:, :2] * MPP, here[:, 2].copy(), real * MPP, RADIUS_UM)
        rows.append(np.column_stack([here[:, 2], matched != NOBODY, np.full(len(here), index)]))
        truths.append(len(real))
    every = np.concatenate(rows)
    every = every[np.argsort(-every[:, 0], kind="stable")]
    return Marked(
        probability=every[:, 0],
        found=every[:, 1].astype(bool),
        distance_um=np.full(len(every), np.nan),
        slide=every[:, 2].astype(np.int64),
        truths=np.array(truths, np.int64),
        area_mm2=np.array(
            [one.pixels.shape[0] * one.pixels.shape[1] * (MPP / 1000) ** 2 for one in pictures]
        ),
        cases=tuple(one.name for one in pictures),
        patients=tuple(one.patient for one in pictures),
    )


@dataclass(frozen=True)
class Parts:
    """The images left out, by what they can tell."""

    labelled: list[Picture]
    painted: list[Picture]
    benign: list[Picture]
    look: list[Picture]
    crops: dict[str, list[Picture]]

    @classmethod
    def of(cls, pictures: Sequence[Picture]) -> Parts:
        """Those of a list that are not learnt from."""
        out = [one for one in pictures if one.role != TRAIN]
        domains = sorted({one.domain for one in out if one.is_crop})
        return cls(
            labelled=[one for one in out if one.folder in LABELLED],
            painted=[one for one in out if one.folder in PAINTED],
            benign=[one for one in out if one.folder == "breakhis-benign"],
            look=[one for one in out if one.folder == "midesec"],
            crops={domain: [one for one in out if one.domain == domain] for domain in domains},
        )


def line(name: str, parts: Parts, found: Found) -> list[str]:
    """All figures of one network."""
    labelled, painted, benign, look = (
        marked(part, found) for part in (parts.labelled, parts.painted, parts.benign, parts.look)
    )
    crops = [marked(part, found) for part in parts.crops.values()]
    threshold, _ = threshold_of_several(labelled, crops, [painted])
    strict, _ = threshold_for_false([labelled, painted], MOST_FALSE, least=threshold)
    cells = [name, f"{threshold:.3f}"]
    for part in (look, labelled):
        cells += [str(detection_metrics(part, threshold, DRAWS).f1), f"{best_threshold(curve(part))[1]:.3f}"]
    tupac, midog = (
        [part for key, part in zip(parts.crops, crops, strict=True) if key.startswith(kind)]
        for kind in ("tupac", "midog")
    )
    for group in (tupac, midog):
        recall = [detection_metrics(part, threshold, NONE).recall.value for part in group]
        cells.append(f"{np.mean(recall):.3f}")
    cells += [
        f"{detection_metrics(part, threshold, NONE).false_per_mm2:.1f}" for part in (labelled, look, benign)
    ]
    cells += [f"{strict:.3f}", f"{detection_metrics(labelled, strict, NONE).recall.value:.3f}"]
    cells += [f"{detection_metrics(part, strict, NONE).false_per_mm2:.1f}" for part in (look, benign)]
    return cells


HEADINGS = (
    "network", "threshold", "MiDeSeC F1", "highest", "ICPR and ATYPIA F1", "highest", "TUPAC recall",
    "MIDOG++ recall", "false per mm2", "MiDeSeC", "benign", "count threshold", "recall",
    "MiDeSeC false", "benign false",
)  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, nargs="+", required=True)
    options = parser.parse_args()
    parts = Parts.of(read_pictures(options.data))
    told: dict[str, float] = {}
    for costs in (folder / "kmac_per_px.json" for folder in options.folder):
        told |= json.loads(costs.read_text()) if costs.exists() else {}
    print("| " + " | ".join(HEADINGS) + " |\n" + "|---" * len(HEADINGS) + "|")
    for path in (path for folder in options.folder for path in sorted(folder.glob("found-*.npz"))):
        name = path.stem.removeprefix("found-")
        name = f"{path.parent.name}/{name}" if len(options.folder) > 1 else name
        cost = f" ({told[name]} kMAC/px)" if name in told else ""
        with np.load(path, allow_pickle=False) as stored:
            print("| " + " | ".join(line(name + cost, parts, dict(stored))) + " |", flush=True)


if __name__ == "__main__":
    main()
