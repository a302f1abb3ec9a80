"""The table and the pictures of docs/tissue.md: the tissue mask beside its usual rival, Otsu on saturation.

    python -m recipes.figures.tissue_pictures            # table on drawn slides, and pictures
    python -m recipes.figures.tissue_pictures --table    # the table only; needs no real data
    python -m recipes.figures.tissue_pictures --simulated  # four slides of the simulator, some minutes

Run it in the repository's root, for the drawn slides are those of the tests. Real images are read from the
folder named in METAPHASE_DATA, or from ../shared/data.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from tests.images.tissue.drawing import MPP, SLIDES, DrawnSlide, draw, muddled

from metaphase.base.arrays import RGB
from metaphase.base.files import atomic_path
from metaphase.images.tissue import TissueConfig, draw_overlay, find_tissue, segment_tissue
from metaphase.images.tissue.background import without_small_holes, without_small_objects
from metaphase.simulation import SimulationConfig, cohort_cases, render_region, tissue_truth
from metaphase.simulation.config import MPP as SIMULATION_MPP
from metaphase.slides import ArraySlide, Slide, open_slide

Mask = npt.NDArray[np.bool_]
Method = Callable[[RGB, float], Mask]

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(100, 102)
"""Seeds of the table; the settings were chosen on seeds below 100."""
MUDDLED_SEEDS = range(1000, 1030)
SIMULATION_SEED = 11
KIDNEY_MPP = 10.0
"""Not stated; at this scale glomeruli and tubules have the size they have in rats."""
GROUPS = {
    "plain": ("H&E", "PHH3"),
    "a tenth of the stain": ("pale H&E, a tenth of the stain",),
    "half fat": ("half fat, H&E", "half fat, PHH3"),
    "needle cores": ("needle cores",),
    "pen, four colours": tuple(name for name in SLIDES if " pen, " in name and "weak" not in name),
    "weak pen, four colours": tuple(name for name in SLIDES if name.startswith("weak")),
    "black border, unscanned areas": ("black border", "unscanned white and black"),
    "coverslip edge, dust": ("coverslip edge, dust",),
    "tinted, shaded, saturated or noisy": ("tinted glass", "shaded glass", "saturated glass", "noisy"),
    "no glass in view": ("no glass, H&E", "no glass, PHH3"),
    "blank glass, also dirty": ("blank", "blank, dirty"),
}
SHOWN = (
    "half fat, PHH3",
    "blue pen, H&E",
    "weak red pen, PHH3",
    "coverslip edge, dust",
    "shaded glass",
    "blank, dirty",
)


def otsu_on_saturation(rgb: RGB, mpp: float) -> Mask:
    """The usual rival: saturation, median filter, Otsu's threshold, closing; small pieces go as in ours."""
    config = TissueConfig()
    height, width = rgb.shape[:2]
    shrink = max(config.mpp / mpp, 1)
    small = cv2.resize(rgb, (round(width / shrink), round(height / shrink)), interpolation=cv2.INTER_AREA)
    saturation = cv2.medianBlur(cv2.split(cv2.cvtColor(small, cv2.COLOR_RGB2HSV))[1], 7)
    _, stained = cv2.threshold(saturation, 0, 1, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    mask = cv2.morphologyEx(stained, cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8)) > 0
    pixel_um2 = max(config.mpp, mpp) ** 2
    mask = without_small_objects(mask, config.min_object_um2 / pixel_um2)
    mask = without_small_holes(mask, config.min_hole_um2 / pixel_um2)
    return cv2.resize(mask.astype(np.uint8), (width, height), interpolation=cv2.INTER_NEAREST) > 0


def at_resolution(mpp: float) -> Method:
    """Our mask with another working resolution."""
    return lambda rgb, rgb_mpp: segment_tissue(rgb, rgb_mpp, TissueConfig(mpp=mpp))


def overlap(mask: Mask, truth: Mask) -> float:
    """Intersection over union; 1 where both are empty."""
    union = np.count_nonzero(mask | truth)
    return np.count_nonzero(mask & truth) / union if union else 1.0


def groups() -> Iterator[tuple[str, list[DrawnSlide]]]:
    """The drawn slides, group by group."""
    for group, names in GROUPS.items():
        yield group, [draw(SLIDES[name], seed) for name in names for seed in SEEDS]
    yield "several troubles at once", [draw(muddled(seed), seed) for seed in MUDDLED_SEEDS]


def print_table() -> None:
    """Mean and worst overlap with the truth for each group of drawn slides."""
    methods: dict[str, Method] = {"Otsu on saturation": otsu_on_saturation}
    methods |= {f"metaphase, {mpp:g} um/px": at_resolution(mpp) for mpp in (4.0, 6.0, 8.0)}
    print("| drawn slides |", " | ".join(methods), "|")
    print("|---|" + "---|" * len(methods))
    for group, slides in groups():
        cells = []
        for method in methods.values():
            scores = [overlap(method(slide.rgb, MPP), slide.truth) for slide in slides]
            cells.append(f"{np.mean(scores):.3f} ({min(scores):.3f})")
        print(f"| {group} ({len(slides)}) |", " | ".join(cells), "|", flush=True)


def print_simulated() -> None:
    """Overlap with the truth of simulated H&E slides, one from each of four laboratories."""
    config = SimulationConfig(cases=4, centres=4, width=6400, height=5120, seed=SIMULATION_SEED)
    for case in cohort_cases(config):
        slide = ArraySlide(render_region(case, "he", 0, 0, case.width, case.height), SIMULATION_MPP)
        tissue = find_tissue(slide)
        score = overlap(tissue.mask, tissue_truth(case, tissue.mpp))
        print(f"{case.name}, laboratory {case.laboratory.name}: {score:.3f}", flush=True)


def real_slides(data: Path) -> Iterator[tuple[str, Slide]]:
    """A real slide, two whole sections, and three slides put together from real fields."""
    yield "Aperio slide, H&E", open_slide(data / "wsi" / "CMU-1-Small-Region.svs")
    for stain in ("HE", "PanCytokeratin"):
        path = data / "pair-rat-kidney" / f"Rat-Kidney_{stain}.jpg"
        yield f"rat kidney, {'H&E' if stain == 'HE' else 'cytokeratin'}", open_slide(path, mpp=KIDNEY_MPP)
    yield "fields of ICPR 2012, H&E", _assembled(data / "icpr2012-aperio", 0.2456, every=4)
    yield "fields of MiDeSeC, H&E", _assembled(data / "midesec", 0.25, every=4)
    yield "PHH3 tiles, tumour and artefacts", _assembled(data / "phh3-tiles", 0.5, columns=10)


def _assembled(folder: Path, mpp: float, every: int = 1, columns: int = 4, gap_um: float = 250) -> Slide:
    """Fields laid out on white at 1 um/px: pieces of two rows each, with gaps between and around."""
    fields = [_shrunk(path, mpp) for path in sorted(folder.rglob("*.jpg"))[::every]]
    side, gap = fields[0].shape[0], round(gap_um)
    rows = len(fields) // columns
    pieces = -(-rows // 2)
    canvas = np.full((rows * side + (pieces + 1) * gap, columns * side + 2 * gap, 3), 255, np.uint8)
    for index, pixels in enumerate(fields[: rows * columns]):
        row, column = divmod(index, columns)
        top, left = row * side + (row // 2 + 1) * gap, column * side + gap
        canvas[top : top + side, left : left + side] = pixels[:side, :side]
    return ArraySlide(canvas, 1.0)


def _shrunk(path: Path, mpp: float) -> RGB:
    with Image.open(path) as image:
        side = round(image.width * mpp)
        return np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BOX))


def compared(slide: Slide, max_side: int) -> RGB:
    """The slide with our outline in green and the rival's in magenta."""
    picture = draw_overlay(slide, find_tissue(slide), max_side)
    mpp = max(TissueConfig().mpp, slide.mpp)
    scale = mpp / slide.mpp
    box = slide.bounds
    rgb = slide.read(box.x, box.y, max(1, int(box.width / scale)), max(1, int(box.height / scale)), mpp)
    rival = cv2.resize(otsu_on_saturation(rgb, mpp).astype(np.uint8), picture.shape[1::-1], interpolation=0)
    contours, _ = cv2.findContours(rival, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    return np.asarray(cv2.drawContours(picture, contours, -1, (200, 0, 200), 1, cv2.LINE_AA), np.uint8)


def save_sheet(path: Path, slides: Iterator[tuple[str, Slide]], width: int, height: int) -> None:
    """The slides with their names, three in a row, as one JPEG."""
    columns = 3
    pictures = [(name, compared(slide, max(width, height))) for name, slide in slides]
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * (width + 8), rows * (height + 30)), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(16)
    for index, (name, picture) in enumerate(pictures):
        left, top = (index % columns) * (width + 8), (index // columns) * (height + 30)
        image = Image.fromarray(picture)
        image.thumbnail((width, height), Image.Resampling.LANCZOS)
        sheet.paste(image, (left + (width - image.width) // 2, top + 24))
        pen.text((left + 4, top + 2), name, "black", font)
    with atomic_path(path) as temporary:
        sheet.save(temporary, "JPEG", quality=80)
    print(path.name, f"{path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Print the table; then, unless told otherwise, make the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="only the table")
    parser.add_argument("--pictures", action="store_true", help="only the pictures")
    parser.add_argument("--simulated", action="store_true", help="only the slides of the simulator")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    everything = not (options.table or options.pictures or options.simulated)
    if options.simulated:
        print_simulated()
    if options.table or everything:
        print_table()
    if options.pictures or everything:
        data = Path(os.environ.get("METAPHASE_DATA", ROOT.parent / "shared" / "data"))
        drawn = ((name, ArraySlide(draw(SLIDES[name]).rgb, MPP)) for name in SHOWN)
        save_sheet(options.out / "tissue-drawn.jpg", drawn, width=440, height=314)
        save_sheet(options.out / "tissue-real.jpg", real_slides(data), width=440, height=330)


if __name__ == "__main__":
    main()
