"""Draw the contact sheets of docs/simulation.md: real beside simulated, at the same scale.

    python recipes/figures/simulation_sheets.py --data ../shared/data [--only tissue]

Every picture is at 0.25 um/px (PHH3 tiles: the real ones are about 0.5 um/px, the simulated ones
are reduced to that).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image, ImageDraw

from metaphase.simulation import (
    LABORATORIES,
    Case,
    CaseRenderer,
    SimulationConfig,
    case_truth,
    cohort_cases,
    object_patches,
)
from metaphase.simulation.placement import ARTEFACTS, LOOKALIKES, MITOSES, Kind

RGB = npt.NDArray[np.uint8]
IMAGES = Path(__file__).parents[2] / "docs" / "images"
CAPTION_PX = 18


def picture(path: Path) -> RGB:
    """A picture file as pixels."""
    return np.asarray(Image.open(path).convert("RGB"))


def captioned(strip: RGB, text: str) -> RGB:
    """A strip of pictures under a line of text."""
    band = Image.new("RGB", (strip.shape[1], CAPTION_PX), "white")
    ImageDraw.Draw(band).text((3, 3), text, fill="black")
    return np.vstack([np.asarray(band), strip])


def row(pictures: Sequence[RGB], columns: int, gap: int = 3) -> RGB:
    """Pictures side by side, white where some are missing."""
    side = pictures[0].shape[0]
    blank = np.full((side, side, 3), 255, np.uint8)
    padded = [*pictures[:columns], *([blank] * (columns - len(pictures)))]
    spacer = np.full((side, gap, 3), 255, np.uint8)
    return np.hstack([part for item in padded for part in (item, spacer)])


def save(name: str, strips: Sequence[RGB], quality: int = 86) -> None:
    """Write the strips, one under the other, as a JPEG of less than 400 KB."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    path = IMAGES / f"simulation_{name}.jpg"
    sheet = Image.fromarray(np.vstack(strips))
    while True:
        sheet.save(path, quality=quality, subsampling=0 if quality > 80 else 2)
        if path.stat().st_size < 390_000 or quality < 50:
            break
        quality -= 6
    print(path.name, sheet.size, f"{path.stat().st_size / 1000:.0f} KB, quality {quality}")


def grown(patch: RGB, side: int) -> RGB:
    """A patch enlarged to `side` pixels."""
    return np.asarray(cv2.resize(patch, (side, side), interpolation=cv2.INTER_CUBIC), np.uint8)


def sample_cases(n: int, laboratory: int = 0, seed: int = 21, **settings: Any) -> list[Case]:
    """Cases of one laboratory."""
    config = SimulationConfig(cases=n, centres=1, seed=seed, **settings)
    return [dataclasses.replace(c, laboratory=LABORATORIES[laboratory]) for c in cohort_cases(config)]


def tumour_view(case: Case, frame: str, side: int, pick: int = 0) -> RGB:
    """A view of tumour: around one of the look-alikes, which lie in tumour."""
    truth = case_truth(case)
    margin = side
    inner = truth[
        truth["x_he"].between(margin, case.width - margin)
        & truth["y_he"].between(margin, case.height - margin)
    ]
    place = inner[inner["category"] == "lookalike"].sample(1, random_state=pick).iloc[0]
    x, y = int(place[f"x_{frame}"]) - side // 3, int(place[f"y_{frame}"]) - side // 2
    return CaseRenderer(case).region("he" if frame == "he" else "phh3", x, y, side, side)


def tissue(data: Path) -> None:
    """Training laboratory beside ICPR 2012 Aperio."""
    names = ("A01_03", "A02_05", "A03_03", "A04_04")
    real = [picture(data / "icpr2012-aperio" / f"{name}.jpg")[600:960, 600:960] for name in names]
    made = [tumour_view(case, "he", 360, i) for i, case in enumerate(sample_cases(4))]
    save(
        "tissue",
        [captioned(row(real, 4), "real: ICPR 2012, Aperio"), captioned(row(made, 4), "simulated: aldgate")],
    )


def laboratories(data: Path) -> None:
    """The same tumour in every laboratory, and real pictures of as many sources."""
    case = sample_cases(2)[1]
    made = [
        tumour_view(dataclasses.replace(case, laboratory=laboratory), "he", 240, 3)
        for laboratory in LABORATORIES
    ]
    names = ", ".join(laboratory.name for laboratory in LABORATORIES)
    real = [picture(path)[100:340, 100:340] for path in sorted(data.glob("midesec/**/*.jpg"))[::10]]
    real += [
        picture(path)[300:540, 300:540]
        for path in sorted(data.glob("icpr2012-hamamatsu-painted/*.jpg"))[3::9]
    ]
    save(
        "laboratories",
        [
            captioned(row(real[:4], 4), "real: MiDeSeC (4 fields)"),
            captioned(row(real[4:8], 4), "real: ICPR 2012, Hamamatsu (4 fields)"),
            captioned(row(made[:4], 4), f"simulated, one tumour in all laboratories: {names}"),
            row(made[4:], 4),
        ],
    )


def mitoses(data: Path) -> None:
    """Mitotic figures by phase, H&E and PHH3, beside MIDOG++ human breast."""
    patches = pd.read_csv(data / "midog-mitoses" / "patches.csv")
    breast = patches[patches["tumor"] == "human breast cancer"].sample(24, random_state=4)["image"]
    shown = [grown(picture(data / "midog-mitoses" / name)[32:96, 32:96], 96) for name in breast]
    strips = [captioned(row(shown[:12], 12), "real: MIDOG++, human breast, all phases"), row(shown[12:], 12)]
    cases = sample_cases(6, mitoses_per_mm2=(200, 200), width=2600, height=2600)
    cases = [dataclasses.replace(c, laboratory=LABORATORIES[i % 4]) for i, c in enumerate(cases)]
    for kind in MITOSES:
        he, phh3 = gathered(cases, kind, 12, 64)
        name = kind.name.lower().replace("_", ", ")
        strips += [captioned(row([grown(p, 96) for p in he], 12), f"simulated: {name}")]
        strips += [row([grown(p, 96) for p in phh3], 12)]
    save("mitoses", strips)


def gathered(cases: Sequence[Case], kind: Kind, n: int, side: int) -> tuple[list[RGB], list[RGB]]:
    """Patches of one kind from several cases in turn, both stains."""
    he: list[RGB] = []
    phh3: list[RGB] = []
    for case in cases:
        truth = case_truth(case)
        edge = 60
        inner = truth["x_phh3"].between(edge, case.width - edge) & truth["y_phh3"].between(
            edge, case.height - edge
        )
        found = truth[inner & (truth["kind"] == kind.name.lower())]
        rows = found.sample(min(len(found), 1 + -(-n // len(cases))), random_state=1)
        he += list(object_patches(case, rows, "he", side))
        phh3 += list(object_patches(case, rows, "phh3", side))
    return he[:n], phh3[:n]


def lookalikes(data: Path) -> None:
    """Look-alikes by kind beside TUPAC's hard negatives."""
    paths = sorted((data / "tupac-lookalikes").glob("*.*g"))
    shown = [grown(picture(path)[8:72, 8:72], 96) for path in paths[::8][:24]]
    strips = [captioned(row(shown[:12], 12), "real: TUPAC16 hard negatives"), row(shown[12:], 12)]
    cases = sample_cases(6, seed=33, lookalikes_per_mm2=600, width=2600, height=2600)
    cases = [dataclasses.replace(c, laboratory=LABORATORIES[(0, 5)[i % 2]]) for i, c in enumerate(cases)]
    for kind in LOOKALIKES:
        he, _ = gathered(cases, kind, 12, 64)
        if he:
            text = f"simulated: {kind.name.lower().replace('_', ' ')}"
            strips.append(captioned(row([grown(p, 96) for p in he], 12), text))
    save("lookalikes", strips)


def phh3(data: Path) -> None:
    """PHH3 tumour beside real tiles, and the brown artefacts by kind."""
    real = [picture(path)[:200, :200] for path in sorted((data / "phh3-tiles" / "tumour").glob("*"))[2:8]]
    made = []
    for i, case in enumerate(sample_cases(6, seed=8)):
        view = tumour_view(dataclasses.replace(case, laboratory=LABORATORIES[i % 3]), "phh3", 400, i)
        made.append(np.asarray(cv2.resize(view, (200, 200), interpolation=cv2.INTER_AREA), np.uint8))
    strips = [
        captioned(row(real, 6), "real: PHH3, lung neuroendocrine tumour, about 0.5 um/px"),
        captioned(row(made, 6), "simulated: PHH3, at 0.5 um/px"),
    ]
    cases = sample_cases(4, seed=5, mitoses_per_mm2=(150, 150), width=2400, height=2400)
    for kind in (Kind.BROWN_NUCLEUS, *ARTEFACTS):
        _, brown = gathered(cases, kind, 12, 80)
        text = f"simulated: {kind.name.lower().replace('_', ' ')}, 0.25 um/px"
        strips.append(captioned(row([grown(p, 98) for p in brown], 12), text))
    width = max(strip.shape[1] for strip in strips)
    save("phh3", [np.pad(s, ((0, 0), (0, width - s.shape[1]), (0, 0)), constant_values=255) for s in strips])


def slides(_data: Path) -> None:
    """Whole slides, small, both stains."""
    strips = []
    for case in sample_cases(2, seed=1, width=4096, height=3072):
        renderer = CaseRenderer(case)
        views = []
        for frame in ("he", "phh3"):
            whole = renderer.region("he" if frame == "he" else "phh3", 0, 0, case.width, case.height)
            views.append(np.asarray(cv2.resize(whole, (640, 480), interpolation=cv2.INTER_AREA), np.uint8))
        strips.append(np.hstack(views))
    save("slides", strips)


SHEETS: dict[str, Callable[[Path], None]] = {
    "tissue": tissue,
    "laboratories": laboratories,
    "mitoses": mitoses,
    "lookalikes": lookalikes,
    "phh3": phh3,
    "slides": slides,
}


def main() -> None:
    """Draw the sheets."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data")
    parser.add_argument("--only", choices=sorted(SHEETS))
    options = parser.parse_args()
    for name, draw in SHEETS.items():
        if options.only in (None, name):
            draw(options.data)


if __name__ == "__main__":
    main()
