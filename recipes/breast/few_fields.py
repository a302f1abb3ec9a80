"""How a threshold that few fields chose does in another laboratory: the best one of them, and the steady one.

python recipes/breast/few_fields.py --data FOLDER [--model breast] [--device cuda] [--draws 60]

Fields left out of a model's training are drawn at random; the threshold with their highest F1, and the one
that `metaphase run` and `metaphase lab` take, are tried on all fields of another laboratory. A line a number
of fields: mean F1 there, and the one that nine of ten draws exceed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from arithmetic import found_by
from dense_accuracy import NONE, marked
from pictures import TRAIN, read_pictures

from metaphase.evaluation.marks import Marked
from metaphase.evaluation.metrics import Curve, best_threshold, curve, detection_metrics, steady_threshold
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine import EngineConfig

LABORATORIES = {"MiDeSeC": "midesec", "ICPR 2012": "icpr2012-aperio", "ATYPIA": "mitos-atypia14-hamamatsu"}
TRIALS = (
    ("ICPR 2012", "MiDeSeC", (1, 3, 7)),
    ("ICPR 2012", "ATYPIA", (1, 3, 7)),
    ("ATYPIA", "MiDeSeC", (10, 30, 80)),
    ("MiDeSeC", "ATYPIA", (3, 8, 16)),
)
"""Where the threshold is chosen, where it is tried, and the numbers of fields that choose it."""
RULES: tuple[Callable[[Curve], tuple[float, float]], ...] = (best_threshold, steady_threshold)


def tried(home: Marked, away: Marked, fields: int, draws: int) -> list[list[float]]:
    """F1 of each rule in the other laboratory, a draw each; fields without a mitosis found choose nothing."""
    random = np.random.default_rng(1)
    reached: list[list[float]] = [[], []]
    for _ in range(draws):
        chosen = np.isin(np.arange(len(home.cases)), random.permutation(len(home.cases))[:fields])
        part = home.of_slides(chosen)
        if part.found.any():
            for values, rule in zip(reached, RULES, strict=True):
                values.append(detection_metrics(away, rule(curve(part))[0], NONE).f1.value)
    return reached


def main() -> None:
    """Search, draw, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="breast")
    parser.add_argument("--device")
    parser.add_argument("--draws", type=int, default=60)
    options = parser.parse_args()
    ready = ReadyDetector(load_detector([options.model]), EngineConfig(device=options.device))
    left_out = [one for one in read_pictures(options.data) if one.role != TRAIN and not one.is_crop]
    marks = {}
    for name, folder in LABORATORIES.items():
        fields = [one for one in left_out if one.folder == folder]
        marks[name] = marked(fields, found_by(ready, fields))
    print_table(marks, options.draws)


def print_table(marks: dict[str, Marked], draws: int) -> None:
    """A line a trial."""
    print("| chosen on | fields | tried on | highest F1 there | best threshold | steady threshold |")
    print("|---" * 6 + "|")
    for home, away, sizes in TRIALS:
        highest = best_threshold(curve(marks[away]))[1]
        for fields in sizes:
            cells = [
                f"{np.mean(values):.3f} ({np.quantile(values, 0.1):.3f})"
                for values in tried(marks[home], marks[away], fields, draws)
            ]
            print(f"| {home} | {fields} | {away} | {highest:.3f} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
