"""Patches of MIDOG++ crops by which a mitosis can be told from other places, and by nothing else.

A crop shows one mitosis, in its middle. Negatives are other places of the same crop: most on dark nuclei, and
its labelled look-alikes. A patch around such a place would be known by two things. It reaches beyond the
crop, where it goes on as its mirror image: each place therefore also gives a positive patch, around the
mitosis, that is mirrored at lines of the same distances. And the mitosis lies within it: tissue from a corner
of another crop of the slide is laid over that, in the positive patch at the same distance and direction.
The control is `domain_ablation.py --blank-px 32`: with blank middles hardly anything should be left to tell
the classes by.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
from PIL import Image

from metaphase.base.arrays import RGB, Floats, Integers, Mask
from metaphase.base.parallel import available_cores, in_order
from metaphase.labels.mining.candidates import intensity_sums
from metaphase.networks.training.data import split_cases
from metaphase.networks.training.patches import PatchWriter

TRAIN, VALIDATION, HOME, AWAY = "train", "validation", "home", "away"
"""Parts of a direction: three kinds of slides of the training scanner, and all slides of the others."""
HELD_OUT_SHARE = 0.15
"""Share of the training scanner's slides, by tumour, that validate; as many test at home."""

# ---- crops, from the data folder or packed into one file ----

CROP_PX, MIDDLE = 128, 64
BLACK, BLACK_SHARE = 12, 0.002
"""Pixels darker than this in every channel lie beyond the scan; crops with a larger share are left out."""


def read_crops(source: Path, most: int | None = None) -> pd.DataFrame:
    """Crops with exactly one labelled mitosis; `most` of each scanner, slide by slide."""
    frame = _unpacked(source) if source.is_dir() else pd.read_parquet(source)
    if most is None:
        return frame
    order = np.random.default_rng(0).permutation(frame["slide"].unique())
    shuffled = frame.set_index("slide").loc[order].reset_index()
    return shuffled.groupby("scanner").head(most).reset_index(drop=True)


def _unpacked(data: Path) -> pd.DataFrame:
    """The folder's crops, less those that show a second mitosis or the edge of a scan."""
    frame = pd.read_csv(data / "midog-mitoses" / "patches.csv")
    others = pd.read_csv(data / "midog-neighbours.csv")
    alone = ~frame["image"].isin(others.loc[others["label"] == "mitosis", "image"])
    frame = frame.loc[alone, ["image", "slide", "tumor", "scanner"]]
    frame["jpeg"] = [(data / "midog-mitoses" / image).read_bytes() for image in frame["image"]]
    places = {
        image: group[["x", "y"]].to_numpy().ravel().tolist() for image, group in others.groupby("image")
    }
    frame["lookalikes"] = [places.get(image, []) for image in frame["image"]]
    whole = [(_pixels(jpeg).max(axis=2) < BLACK).mean() < BLACK_SHARE for jpeg in frame["jpeg"]]
    return frame[whole].sort_values(["scanner", "tumor", "slide", "image"]).reset_index(drop=True)


def _pixels(jpeg: bytes) -> RGB:
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))


def with_parts(crops: pd.DataFrame, scanner: str) -> pd.DataFrame:
    """The crops, each with its part in the direction that trains on `scanner`."""
    part = dict.fromkeys(crops["slide"], AWAY)
    for _, group in crops[crops["scanner"] == scanner].groupby("tumor"):
        slides = sorted(group["slide"].unique())
        held_out = max(1, round(HELD_OUT_SHARE * len(slides)))
        counts = {VALIDATION: held_out, HOME: held_out, TRAIN: len(slides) - 2 * held_out}
        for name, chosen in split_cases(slides, counts=counts, seed=0).items():
            part |= dict.fromkeys(chosen, name)
    return crops.assign(part=crops["slide"].map(part))


# ---- places of a crop, and the two patches that each gives ----

PLACES, DARK_PLACES = 4, 3
"""Negatives of a crop, and how many of them are look-alikes and dark nuclei; the others lie anywhere."""
AWAY_PX, EDGE_PX = 40, 16
"""How far negatives are from the mitosis and from the edge of the crop, at least."""
BLUR_PX, NEARBY_PX = 3.0, 17
"""Dark nuclei are the darkest pixels of squares of this side, after such a blur."""
GRAFT_PX, FEATHER_PX = 24, 6
"""Radius of the tissue that is laid over a mitosis, and the width of its soft edge."""
CORNERS = (GRAFT_PX + 2, CROP_PX - GRAFT_PX - 2)
"""Where in a crop such tissue is taken, in x and y: clear of its mitosis and of its edge."""
BLANK = (200, 150, 190)
"""What blank middles show."""


def _distance(x: float, y: float) -> Floats:
    """Of every pixel of a crop from a point, (side, side)."""
    along = np.arange(CROP_PX) + 0.5
    distance: Floats = np.hypot(along - x, (along - y)[:, None])
    return distance


def _allowed() -> Mask:
    """Where negatives may lie."""
    inside = np.zeros((CROP_PX, CROP_PX), np.bool_)
    inside[EDGE_PX:-EDGE_PX, EDGE_PX:-EDGE_PX] = True
    return inside & (_distance(MIDDLE, MIDDLE) >= AWAY_PX)


ALLOWED = _allowed()


def places_of(crop: RGB, lookalikes: Sequence[float], rng: np.random.Generator) -> Integers:
    """Places (n, 2) of a crop's negatives: look-alikes, dark nuclei, and others."""
    labelled = np.asarray(lookalikes, float).reshape(-1, 2).astype(np.int64)
    labelled = labelled[((labelled >= 0) & (labelled < CROP_PX)).all(axis=1)]
    labelled = labelled[ALLOWED[labelled[:, 1], labelled[:, 0]]]
    chosen = np.concatenate([labelled, _dark(crop)])[:DARK_PLACES]
    anywhere = rng.permutation(np.argwhere(ALLOWED)[:, ::-1])
    return np.concatenate([chosen, anywhere[: PLACES - len(chosen)]])


def _dark(crop: RGB) -> Integers:
    """Places of dark spots, the darkest first: pixels than which none is darker nearby."""
    sums = cv2.GaussianBlur(intensity_sums(crop).astype(np.float32), (0, 0), BLUR_PX)
    lowest = cv2.erode(sums, np.ones((NEARBY_PX, NEARBY_PX), np.uint8))
    rows, columns = np.nonzero((sums == lowest) & ALLOWED)
    order = np.argsort(sums[rows, columns], kind="stable")
    return np.stack([columns, rows], axis=1)[order]


def view(crop: RGB, centre: Integers, place: Integers, graft: RGB, blank_px: float) -> RGB:
    """The patch around `centre` of a crop, as if the crop had the edges that it has around `place`.

    A graft lies where the middle of the crop is, seen from `place`.
    """
    x, y = (centre + MIDDLE - place).tolist()
    source = _grafted(crop, x, y, graft)
    if blank_px:
        source[_distance(*centre.tolist()) < blank_px] = BLANK
    columns, rows = (centre[axis] + _mirrored(int(place[axis])) for axis in (0, 1))
    return source[np.ix_(rows, columns)]


def _mirrored(place: int) -> Integers:
    """Which pixels, counted from `place`, a patch shows whose crop is mirrored at its edges."""
    at = place + np.arange(-MIDDLE, MIDDLE)
    folded = np.where(at < 0, -1 - at, np.where(at >= CROP_PX, 2 * CROP_PX - 1 - at, at))
    return np.asarray(folded - place)


def _grafted(crop: RGB, x: int, y: int, graft: RGB) -> RGB:
    """A copy of the crop with a round graft around (x, y), softly blended; it may pass the edge."""
    weight = np.clip((GRAFT_PX - _distance(x, y)) / FEATHER_PX, 0, 1)[..., None]
    rows, columns = (np.clip(np.arange(CROP_PX) - at + GRAFT_PX, 0, 2 * GRAFT_PX - 1) for at in (y, x))
    laid = graft[np.ix_(rows, columns)]
    return np.asarray(np.rint(crop + weight * (laid.astype(np.float32) - crop)), np.uint8)


def _graft(crops: Sequence[RGB], number: int, rng: np.random.Generator) -> RGB:
    """Tissue (2 radii, 2 radii, 3) of a corner of another crop of the slide; of this one if it is alone."""
    other = (number + int(rng.integers(1, max(2, len(crops))))) % len(crops)
    x, y = rng.choice(CORNERS, 2).tolist()
    return crops[other][y - GRAFT_PX : y + GRAFT_PX, x - GRAFT_PX : x + GRAFT_PX]


def slide_patches(slide: pd.DataFrame, blank_px: float) -> list[tuple[RGB, dict[str, Any]]]:
    """Patches of a slide's crops, with their index rows: for each place a negative, then a positive."""
    crops = [_pixels(jpeg) for jpeg in slide["jpeg"]]
    middle, made = np.array([MIDDLE, MIDDLE]), []
    for number, row in enumerate(slide.to_dict("records")):
        rng = np.random.default_rng(int(Path(row["image"]).stem))
        about = {name: row[name] for name in ("image", "slide", "tumor", "scanner", "part")}
        for place in places_of(crops[number], row["lookalikes"], rng):
            graft = _graft(crops, number, rng)
            for label, centre in ((0, place), (1, middle)):
                pixels = view(crops[number], centre, place, graft, blank_px)
                x, y = place.tolist()
                made.append((pixels, about | {"label": label, "x": x, "y": y, "source": "midog++"}))
    return made


def make_store(folder: Path, crops: pd.DataFrame, blank_px: float) -> None:
    """Write the patches of some crops, unless they are there."""
    if (folder / "store.json").exists():
        return
    slides = [group for _, group in crops.groupby("slide")]
    cores = available_cores()
    with PatchWriter(folder) as writer, ProcessPoolExecutor(cores) as pool:
        for patches in in_order(pool, partial(slide_patches, blank_px=blank_px), slides, 4 * cores):
            for pixels, row in patches:
                writer.add(pixels, **row)
