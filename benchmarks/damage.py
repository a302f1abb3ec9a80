"""Damage the bytes of a field in many containers: is it refused, warned of, or counted wrongly in silence?

python -m benchmarks.damage [FIELD] [--each 50] [--seed 1] [--only SVS] [--side 448] [--corner X Y]
python -m benchmarks.damage FIELD [FIELD ...] --degrade
python -m benchmarks.damage FIELD [FIELD ...] --move [--mpp 0.25] [--model FILE] [--device cuda]

FIELD is an image at 0.25 um/px with mitoses; without one a simulated slide is made. Each damaged copy is
searched as `metaphase detect` does it, with the bundled model. *Harmless* are as many mitoses, listed and
counted, as in the sound container, without a new warning; *silently changed* are others. `--degrade` blurs
whole fields and compresses them instead: what is counted in all of them, and in how many a warning appears.
`--move` moves whole fields by 1 to 7 px, and turns and mirrors them: how far the probability of a detection
near or above the threshold moves, with the final answer by views (where the model has one) and without.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter
from tests.hostile.inputs.damaged import CONTAINERS, MPP, damage

from metaphase.analysis.cohort import CohortSlide
from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.record import read_search
from metaphase.analysis.run import SlideSearch
from metaphase.base.errors import MetaphaseError
from metaphase.base.stages import run_stages
from metaphase.detections.matching import NOBODY, match
from metaphase.images.tissue.finding import TissueSource
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.settings import EngineConfig, PeakConfig
from metaphase.networks.engine.streaming import find_detections
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.opening import SlideSource

OUTCOMES = ("refused", "warned", "harmless", "silently changed")
BLUR_UM = (0.0, 0.15, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0, 1.25, 1.5)
STILL = (0, 0, 0, False)
MOVED = (STILL, *((step, 3 * step % 8, 0, False) for step in range(1, 8)))
"""Pixels to the right and down, turns by a right angle, and whether mirrored."""
TURNED = tuple((0, 0, turns, mirrored) for mirrored in (False, True) for turns in range(4))
EDGE_PX, MATCH_UM, NEAR_THRESHOLD = 64, 7.5, 0.1
QUALITY = (95, 75, 50, 30, 20, 10, 8, 5)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("field", nargs="*", type=Path)
    parser.add_argument("--degrade", action="store_true")
    parser.add_argument("--move", action="store_true")
    parser.add_argument("--mpp", type=float, default=MPP)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--device")
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--side", type=int, default=448, help="of the part that is searched, in px")
    parser.add_argument("--corner", type=int, nargs=2, default=(0, 0), metavar=("X", "Y"))
    parser.add_argument("--only", action="append", choices=list(CONTAINERS))
    given = parser.parse_args()
    model = ReadyDetector(load_detector(given.model), EngineConfig(device=given.device))
    if given.move:
        _moved(given.field, given.mpp, model)
        return
    with tempfile.TemporaryDirectory(prefix="damage-") as name:
        folder = Path(name)
        if given.degrade:
            _degraded(given.field, folder, model)
            return
        pixels = _pixels(next(iter(given.field), None), given.corner, given.side)
        print("|", " | ".join(("container", "damages", *OUTCOMES)), "|")
        print("|---" + "|--:" * (len(OUTCOMES) + 1) + "|")
        for container in given.only or CONTAINERS:
            row = _tried(container, pixels, folder / "work", model, given.each, given.seed)
            print("|", " | ".join(map(str, (container, given.each, *(row[one] for one in OUTCOMES)))), "|")
            silent = {kind: number for kind, number in row.items() if kind not in OUTCOMES}
            print(f"    {silent}" if silent else "", flush=True, end="\n" if silent else "")


def _moved(fields: list[Path], mpp: float, model: ReadyDetector) -> None:
    """Print how far probabilities move with the image, and what the final answer costs."""
    second = model.detector.second
    assert second is not None, "a model of one network answers once"
    print("| answer | image | detections | median | 95 % | most | listed | counted | s per mm2 |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for final in dict.fromkeys((None, second.answered_from)):
        detector = replace(model.detector, second=replace(second, answered_from=final))
        ready = ReadyDetector(detector, model.config)
        points = detector.points.mitoses.delta, detector.points.count.delta
        for kind, ways in (("moved", MOVED), ("turned", TURNED)):
            changes, numbers = [np.empty(0)], np.zeros((len(ways), 2), int)
            mm2, began = 0.0, time.perf_counter()
            for field in fields:
                image = np.asarray(Image.open(field).convert("RGB"))
                found = [_placed(image, way, mpp, ready) for way in ways]
                mm2 += len(ways) * image.shape[0] * image.shape[1] * (mpp / 1000) ** 2
                changes += [_changes(found[0], one, mpp, points[0]) for one in found[1:]]
                numbers += [[(one[:, 2] >= point).sum() for point in points] for one in found]
            seconds = (time.perf_counter() - began) / mm2
            spread = np.concatenate(changes)
            values = " | ".join(f"{value:.3f}" for value in (*np.quantile(spread, (0.5, 0.95)), spread.max()))
            ranges = " | ".join(
                f"{low} to {high}" for low, high in zip(numbers.min(0), numbers.max(0), strict=True)
            )
            name = "smoothed mean" if final is None else "views"
            print(f"| {name} | {kind} | {len(spread)} | {values} | {ranges} | {seconds:.2f} |", flush=True)


def _placed(image: Any, way: tuple[int, int, int, bool], mpp: float, model: ReadyDetector) -> Any:
    """Detections (n, 3) of a moved, turned or mirrored image, where they lie in the image itself."""
    right, down, turns, mirrored = way
    shown = image[down:, right:]
    shown = np.rot90(shown[:, ::-1] if mirrored else shown, turns)
    points = model.detector.points
    peaks = PeakConfig(suppress_um=points.suppress_um, smooth_um=points.smooth_um)
    found = find_detections(model.engine, ArraySlide(np.ascontiguousarray(shown), mpp), peaks, mpp=model.mpp)
    x, y, (height, width) = found.x, found.y, shown.shape[:2]
    for _ in range(turns):
        x, y, height, width = height - y, x, width, height
    x = width - x if mirrored else x
    placed = np.column_stack([x + right, y + down, found.probability])
    inside = (placed[:, :2] > EDGE_PX) & (placed[:, :2] < np.array(image.shape[1::-1]) - EDGE_PX)
    return placed[inside.all(1)]


def _changes(still: Any, moved: Any, mpp: float, threshold: float) -> Any:
    """By how much probabilities near or above a threshold differ; one that is lost lies at the floor."""
    partner = match(moved[:, :2] * mpp, moved[:, 2].copy(), still[:, :2] * mpp, MATCH_UM)
    paired = partner != NOBODY
    floor = PeakConfig().floor
    before, after = np.full((2, len(still) + (~paired).sum()), floor)
    before[: len(still)] = still[:, 2]
    after[partner[paired]] = moved[paired, 2]
    after[len(still) :] = moved[~paired, 2]
    return np.abs(after - before)[np.maximum(before, after) >= threshold - NEAR_THRESHOLD]


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


def _degraded(fields: list[Path], folder: Path, model: ReadyDetector) -> None:
    """Print what is listed and counted in all fields together, and how many draw a warning they lacked."""
    print("| image | mitoses listed | counted | fields refused | fields warned | warnings |")
    print("|---|--:|--:|--:|--:|---|")
    images = [np.asarray(Image.open(field).convert("RGB")) for field in fields]
    sound = [_kept(image, "PNG", folder, model) for image in images]
    for um in BLUR_UM:
        blurred = [gaussian_filter(image, (um / MPP, um / MPP, 0)) if um else image for image in images]
        _row(f"blurred by {um:g} um", [_kept(image, "PNG", folder, model) for image in blurred], sound)
    for quality in QUALITY:
        found = [_kept(image, "JPEG", folder, model, quality=quality) for image in images]
        _row(f"JPEG of quality {quality}", found, sound)


def _kept(
    image: Any, kind: str, folder: Path, model: ReadyDetector, **options: int
) -> tuple[Any, ...] | None:
    shutil.rmtree(folder / "work", ignore_errors=True)
    (folder / "work").mkdir()
    slide = folder / "work" / f"slide.{kind.lower()}"
    Image.fromarray(image).save(slide, kind, **options)
    return _found(slide, folder / "work" / "out", model)


def _row(name: str, found: list[tuple[Any, ...] | None], sound: list[tuple[Any, ...] | None]) -> None:
    new = [one[0] - whole[0] for one, whole in zip(found, sound, strict=True) if one and whole]
    listed, counted = (sum(one[position] for one in found if one) for position in (1, 2))
    codes = ", ".join(sorted({code for each in new for code in each}))
    print(
        f"| {name} | {listed} | {counted} | {found.count(None)} | {sum(map(bool, new))} | {codes} |",
        flush=True,
    )


def _outcome(found: tuple[Any, ...] | None, sound: tuple[Any, ...]) -> str:
    if found is None:
        return "refused"
    if found[0] - sound[0]:
        return "warned"
    return "harmless" if found[1:] == sound[1:] else "silently changed"


def _found(slide: Path, out: Path, model: ReadyDetector) -> tuple[Any, ...] | None:
    """Codes of the warnings, mitoses listed and counted; None where the slide is refused."""
    chosen = CohortSlide("slide", SlideSource(slide, MPP), TissueSource.stated("whole"))
    search = SlideSearch(chosen, out, model, DetectionConfig())
    try:
        run_stages([search.stage], out)
    except MetaphaseError:
        return None
    searched = search.follows()
    codes, points = {warning.code for warning in searched.slide_warnings}, searched.settings.points
    probabilities = read_search(out)["probability"]
    return codes, *(int((probabilities >= points[name]["delta"]).sum()) for name in ("mitoses", "count"))


if __name__ == "__main__":
    main()
