"""Damage the bytes of a field in many containers: is it refused, warned of, or counted wrongly in silence?

python -m benchmarks.damage [FIELD] [--each 50] [--seed 1] [--only SVS] [--side 448] [--corner X Y]

FIELD is an image at 0.25 um/px with mitoses; without one a simulated slide is made. Each damaged copy is
searched as `metaphase detect` does it, with the bundled model. *Harmless* are as many mitoses, listed and
counted, as in the sound container, without a new warning; *silently changed* are others.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image
from tests.hostile.inputs.damaged import CONTAINERS, MPP, damage

from metaphase.base.errors import MetaphaseError
from metaphase.images.tissue.finding import TissueSource
from metaphase.jobs.cohort import CohortSlide
from metaphase.jobs.detection import _SlideJob
from metaphase.jobs.detection_config import DetectionConfig
from metaphase.jobs.stages import run_stages
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.slides import SlideSource

OUTCOMES = ("refused", "warned", "harmless", "silently changed")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("field", nargs="?", type=Path)
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--side", type=int, default=448, help="of the part that is searched, in px")
    parser.add_argument("--corner", type=int, nargs=2, default=(0, 0), metavar=("X", "Y"))
    parser.add_argument("--only", action="append", choices=list(CONTAINERS))
    given = parser.parse_args()
    model = ReadyDetector(load_detector(()))
    with tempfile.TemporaryDirectory(prefix="damage-") as name:
        folder = Path(name)
        pixels = _pixels(given.field, given.corner, given.side)
        print("|", " | ".join(("container", "damages", *OUTCOMES)), "|")
        print("|---" + "|--:" * (len(OUTCOMES) + 1) + "|")
        for container in given.only or CONTAINERS:
            row = _tried(container, pixels, folder / "work", model, given.each, given.seed)
            print("|", " | ".join(map(str, (container, given.each, *(row[one] for one in OUTCOMES)))), "|")
            silent = {kind: number for kind, number in row.items() if kind not in OUTCOMES}
            print(f"    {silent}" if silent else "", flush=True, end="\n" if silent else "")


def _pixels(field: Path | None, corner: tuple[int, int], side: int) -> Any:
    if field is None:
        from metaphase.simulation.config import SimulationConfig, cohort_cases
        from metaphase.simulation.rendering import render_region

        (case,) = cohort_cases(SimulationConfig(cases=1, centres=1, width=2048, height=2048, seed=5))
        return render_region(case, "he", 500, 600, side, side)
    x, y = corner
    return np.asarray(Image.open(field).convert("RGB"))[y : y + side, x : x + side].copy()


def _tried(
    container: str, pixels: Any, work: Path, model: ReadyDetector, each: int, seed: int
) -> Counter[str]:
    counts: Counter[str] = Counter()
    sound: tuple[Any, ...] = ()
    for number in range(each + 1):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        slide = CONTAINERS[container](work / "slide", pixels)
        kind = damage(Random(f"{seed} {container} {number}"), slide) if number else ""
        found = _found(slide, work / "out", model)
        if not number:
            assert found is not None, f"{container} is refused as it is"
            sound = found
            continue
        outcome = _outcome(found, sound)
        counts[outcome] += 1
        if outcome == OUTCOMES[-1]:
            counts[f"{kind} {number}"] += 1
    return counts


def _outcome(found: tuple[Any, ...] | None, sound: tuple[Any, ...]) -> str:
    if found is None:
        return "refused"
    if found[0] - sound[0]:
        return "warned"
    return "harmless" if found[1:] == sound[1:] else "silently changed"


def _found(slide: Path, out: Path, model: ReadyDetector) -> tuple[Any, ...] | None:
    """Codes of the warnings, mitoses listed and counted; None where the slide is refused."""
    chosen = CohortSlide("slide", SlideSource(slide, MPP), TissueSource.stated("whole"))
    job = _SlideJob(chosen, out, model, DetectionConfig())
    try:
        run_stages(job.stages()[:1], out)
    except MetaphaseError:
        return None
    codes = {warning.code for warning in job._slide_doubts(job._facts())}
    probabilities = job._detections()["probability"]
    points = (job.points.mitoses.delta, job.points.count.delta)
    return codes, *(int((probabilities >= delta).sum()) for delta in points)


if __name__ == "__main__":
    main()
