"""Slides drawn from numbers, so that the true tissue is known to the pixel.

A slide is a list of layers laid on a `Canvas`. Each layer adds the light it absorbs (natural logarithm;
red, green, blue, as seen in real fields); then the camera takes the picture with its noise, and JPEG follows.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

RGB = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Colour = tuple[float, float, float]

MPP = 2.0
"""Resolution of the drawings, in um/px."""

HAEMATOXYLIN: Colour = (0.65, 0.70, 0.30)
COUNTERSTAIN: Colour = (0.70, 0.61, 0.40)
EOSIN: Colour = (0.10, 0.80, 0.45)
DAB: Colour = (0.75, 1.00, 1.20)
GREY: Colour = (1.0, 1.0, 1.0)
INKS: Mapping[str, Colour] = {
    "black": (1.9, 1.9, 1.8),
    "blue": (1.9, 1.2, 0.4),
    "green": (1.8, 0.7, 1.0),
    "red": (0.15, 2.0, 1.7),
}


@dataclass
class Canvas:
    """A slide in the making: the light absorbed so far, where tissue can be seen, and the camera."""

    rng: np.random.Generator
    size: tuple[int, int]
    """(height, width) in pixels."""
    glass: Colour = (243, 243, 243)
    noise: float = 2.0
    jpeg_quality: int = 85
    absorbance: Floats = field(init=False)
    truth: Mask = field(init=False)
    filling: list[tuple[Mask, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.absorbance = np.zeros((*self.size, 3), np.float32)
        self.truth = np.zeros(self.size, np.bool_)

    def add(self, amount: Floats, colour: Colour) -> None:
        """Lay down `amount` (height, width) of something that absorbs `colour`."""
        self.absorbance += amount[..., None] * np.array(colour, np.float32)

    def cloud(self, grain_um: float) -> Floats:
        """Smooth noise of mean 0 and standard deviation 1, its lumps about `grain_um` wide."""
        step = max(1.0, grain_um / MPP / 4)
        height, width = self.size
        coarse = self.rng.standard_normal((int(height / step) + 8, int(width / step) + 8)).astype(np.float32)
        smooth = cv2.GaussianBlur(coarse, (0, 0), grain_um / MPP / step / 2)
        cloud = cv2.resize(smooth, (width, height), interpolation=cv2.INTER_CUBIC)
        return np.asarray((cloud - cloud.mean()) / cloud.std(), np.float32)

    def dots(self, per_mm2: float, diameter_um: float) -> Floats:
        """Blurred round dots of height about 1 at random positions."""
        height, width = self.size
        count = self.rng.poisson(per_mm2 * height * width * MPP**2 / 1e6)
        sigma = diameter_um / MPP / 2.5
        image = np.zeros(self.size, np.float32)
        np.add.at(image, (self.rng.integers(0, height, count), self.rng.integers(0, width, count)), 1)
        return np.asarray(cv2.GaussianBlur(image, (0, 0), sigma) * (2 * np.pi * sigma**2), np.float32)


@dataclass(frozen=True)
class DrawnSlide:
    """Pixels (height, width, 3) at `MPP`, and the true tissue (height, width)."""

    rgb: RGB
    truth: Mask


Layer = Callable[[Canvas], None]


def draw(
    layers: Sequence[Layer], seed: int = 0, *, width_um: float = 5600, height_um: float = 4000
) -> DrawnSlide:
    """Lay the layers on glass and take the picture."""
    canvas = Canvas(np.random.default_rng(seed), (round(height_um / MPP), round(width_um / MPP)))
    for layer in layers:
        layer(canvas)
    light = np.array(canvas.glass, np.float32) * np.exp(-canvas.absorbance)
    light += canvas.noise * canvas.rng.standard_normal(light.shape, np.float32)
    rgb = np.clip(np.rint(light), 0, 255).astype(np.uint8)
    for area, level in canvas.filling:
        rgb[area] = level
        canvas.truth &= ~area
    jpeg = io.BytesIO()
    Image.fromarray(rgb).save(jpeg, "JPEG", quality=canvas.jpeg_quality)
    return DrawnSlide(np.asarray(Image.open(jpeg)), canvas.truth)


# Tissue


def one_piece(canvas: Canvas) -> Mask:
    """A section with a ragged edge."""
    height, width = canvas.size
    y, x = np.ogrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    ragged = 0.07 * canvas.cloud(1200) + 0.02 * canvas.cloud(150)
    return np.asarray((x / 0.75) ** 2 + (y / 0.72) ** 2 + ragged < 0.9, np.bool_)


def needle_cores(canvas: Canvas) -> Mask:
    """Three needle biopsies, 0.7 mm wide."""
    height, width = canvas.size
    y, x = np.mgrid[:height, :width].astype(np.float32)
    ragged = 25 * canvas.cloud(400) + 8 * canvas.cloud(60)
    inside = (x > 0.08 * width) & (x < 0.9 * width)
    centres = [(k + 0.5) / 3 * height + 40 * np.sin(x / 350 + k) for k in range(3)]
    return np.asarray(inside & (sum(abs(y - c) + ragged < 350 / MPP for c in centres) > 0), np.bool_)


def everywhere(canvas: Canvas) -> Mask:
    """Tissue from edge to edge, without any glass."""
    return np.ones(canvas.size, np.bool_)


def section(
    stain: str, *, shape: Callable[[Canvas], Mask] = one_piece, strength: float = 1.0, fat: float = 0.0
) -> Layer:
    """Tissue with nuclei and fibres in "H&E" or "PHH3" colours; a share `fat` of it is fat."""

    def lay(canvas: Canvas) -> None:
        tissue = shape(canvas)
        density = tissue.astype(np.float32)
        if fat:
            fatty = (where := canvas.cloud(1000)) < np.quantile(where, fat)
            cells, walls = _fat_cells(canvas, tissue & fatty)
            tissue = cv2.morphologyEx(
                ((tissue & ~fatty) | cells).astype(np.uint8), cv2.MORPH_CLOSE, np.ones((25, 25), np.uint8)
            ).astype(bool)
            density = np.maximum(tissue & ~cells, 0.8 * walls).astype(np.float32)
        canvas.truth |= tissue
        density = strength * cv2.GaussianBlur(density, (0, 0), 1.0)
        nuclei = density * canvas.dots(2500, 9)
        fibres = density * np.clip(1 + 0.35 * canvas.cloud(15) + 0.2 * canvas.cloud(150), 0.2, None)
        if stain == "H&E":
            canvas.add(0.7 * fibres, EOSIN)
            canvas.add(0.8 * nuclei, HAEMATOXYLIN)
        else:
            canvas.add(0.22 * fibres, COUNTERSTAIN)
            canvas.add(0.25 * nuclei, COUNTERSTAIN)
            canvas.add(density * canvas.dots(30, 9), DAB)

    return lay


def _fat_cells(canvas: Canvas, area: Mask) -> tuple[Mask, Mask]:
    """Whole fat cells about 80 um wide that cover `area`, and their thin walls, torn here and there."""
    step = 80 / MPP
    middles = np.mgrid[step / 2 : canvas.size[0] : step, step / 2 : canvas.size[1] : step].reshape(2, -1)
    middles += canvas.rng.uniform(-0.4, 0.4, middles.shape) * step
    y, x = middles.astype(int)
    elsewhere = np.ones(canvas.size, np.uint8)
    elsewhere[y, x] = 0
    _, nearest = cv2.distanceTransformWithLabels(elsewhere, cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL)
    fatty = np.zeros(len(y) + 1, np.bool_)
    fatty[nearest[y, x]] = area[y, x]
    cells = fatty[nearest]
    own = np.where(cells, nearest, 0).astype(np.float32)
    walls = cv2.morphologyEx(own, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)) > 0
    return cells, walls & (canvas.cloud(60) > -1.3)


# What else is found on slides


def pen(colour: str, strength: float = 1.0) -> Layer:
    """A stroke 0.5 mm wide that half surrounds the tissue and runs over its edge."""

    def lay(canvas: Canvas) -> None:
        height, width = canvas.size
        t = np.linspace(0.1, 1.5, 60) * np.pi
        wobble = 1 + 0.05 * np.sin(5 * t + canvas.rng.uniform(0, 6))
        points = np.stack(
            [width * (0.5 + 0.42 * wobble * np.cos(t)), height * (0.5 + 0.4 * wobble * np.sin(t))], -1
        )
        stroke = np.zeros(canvas.size, np.uint8)
        cv2.polylines(stroke, [points.astype(np.int32)], False, 1, thickness=round(500 / MPP))
        amount = cv2.GaussianBlur(stroke.astype(np.float32), (0, 0), 4)
        canvas.add(strength * amount * (1 + 0.08 * canvas.cloud(200)), INKS[colour])
        canvas.truth &= stroke == 0

    return lay


def black_border(canvas: Canvas) -> None:
    """A black frame, as beside a scan's edge, over part of the tissue."""
    frame = np.ones(canvas.size, np.bool_)
    frame[80:-120, 300:-60] = False
    canvas.filling.append((frame, 3))


def unscanned(canvas: Canvas) -> None:
    """Rectangles that were not scanned, filled with pure white and pure black."""
    height, width = canvas.size
    for level, rows, columns in ((255, (0, 0.3), (0.0, 1.0)), (0, (0.8, 1.0), (0.0, 0.5))):
        area = np.zeros(canvas.size, np.bool_)
        area[
            int(rows[0] * height) : int(rows[1] * height), int(columns[0] * width) : int(columns[1] * width)
        ] = True
        canvas.filling.append((area, level))


def coverslip(canvas: Canvas) -> None:
    """The edges of the coverslip: dark grey lines 24 um wide, and darker glass beyond one of them."""
    height, width = canvas.size
    lines = np.zeros(canvas.size, np.float32)
    cv2.line(lines, (0, int(0.06 * height)), (width, int(0.09 * height)), 1, thickness=round(24 / MPP))
    cv2.line(lines, (int(0.8 * width), 0), (int(0.83 * width), height), 1, thickness=round(24 / MPP))
    canvas.add(0.5 * cv2.GaussianBlur(lines, (0, 0), 1.5), GREY)
    beyond = np.zeros(canvas.size, np.float32)
    beyond[:, int(0.9 * width) :] = 0.04
    canvas.add(beyond, GREY)


def dust(canvas: Canvas) -> None:
    """Specks of 5 to 60 um, a few larger crumbs out of focus, and two fibres."""
    height, width = canvas.size
    image = np.zeros(canvas.size, np.float32)
    for radius_um in canvas.rng.uniform(2, 30, 300):
        centre = (int(canvas.rng.integers(width)), int(canvas.rng.integers(height)))
        cv2.circle(image, centre, round(radius_um / MPP), 1.0, -1)
    for start in canvas.rng.uniform(0.1, 0.9, (2, 2)):
        t = np.linspace(0, 1, 80)
        curve = np.stack([width * start[0] + 500 * t, height * start[1] + 80 * np.sin(9 * t)], axis=-1)
        cv2.polylines(image, [curve.astype(np.int32)], False, 1.0, thickness=round(14 / MPP))
    canvas.add(0.8 * cv2.GaussianBlur(image, (0, 0), 1.5), GREY)


def shaded(canvas: Canvas) -> None:
    """A lamp that is 20 % dimmer on one side, and a darker corner."""
    height, width = canvas.size
    y, x = np.ogrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    canvas.add(np.asarray(0.15 * x + 0.08 * (x * y) ** 2, np.float32), GREY)


def tinted(canvas: Canvas) -> None:
    """Yellowish glass, well below white."""
    canvas.glass = (232, 228, 212)


def saturated(canvas: Canvas) -> None:
    """A camera so bright that glass is pure white."""
    canvas.glass = (258, 258, 258)


def noisy(canvas: Canvas) -> None:
    """A noisy camera and strong compression."""
    canvas.noise, canvas.jpeg_quality = 8.0, 50


_HE, _PHH3 = section("H&E"), section("PHH3")
SLIDES: Mapping[str, tuple[Layer, ...]] = {
    "H&E": (_HE,),
    "PHH3": (_PHH3,),
    "pale H&E, a tenth of the stain": (section("H&E", strength=0.1),),
    "half fat, H&E": (section("H&E", fat=0.5),),
    "half fat, PHH3": (section("PHH3", fat=0.5),),
    "needle cores": (section("H&E", shape=needle_cores),),
    **{f"{colour} pen, H&E": (_HE, pen(colour)) for colour in INKS},
    **{f"{colour} pen, PHH3": (_PHH3, pen(colour)) for colour in INKS},
    **{f"weak {colour} pen, PHH3": (_PHH3, pen(colour, strength=0.4)) for colour in INKS},
    "black border": (_HE, black_border),
    "unscanned white and black": (_PHH3, unscanned),
    "coverslip edge, dust": (_PHH3, coverslip, dust),
    "tinted glass": (_PHH3, tinted),
    "shaded glass": (_PHH3, shaded),
    "saturated glass": (section("H&E", strength=0.1), saturated),
    "noisy": (_PHH3, noisy),
    "no glass, H&E": (section("H&E", shape=everywhere),),
    "no glass, PHH3": (section("PHH3", shape=everywhere),),
    "blank": (noisy,),
    "blank, dirty": (coverslip, dust, shaded, noisy),
}
"""Every kind of slide, by name."""


def muddled(seed: int) -> tuple[Layer, ...]:
    """A stain, a shape, glass, a camera and some of the troubles at once, chosen at random."""
    rng = np.random.default_rng(seed)
    stain = str(rng.choice(["H&E", "PHH3"]))
    shape = (one_piece, needle_cores)[rng.integers(2)]
    fat, strength = float(rng.choice([0, 0, 0.3])), float(rng.uniform(0.6, 1.3))
    level, tint, noise, quality = (
        rng.uniform(205, 254),
        rng.uniform(0.96, 1.0, 3),
        rng.uniform(0, 3),
        rng.uniform(70, 95),
    )

    def camera(canvas: Canvas) -> None:
        canvas.glass = (level * tint[0], level * tint[1], level * tint[2])
        canvas.noise, canvas.jpeg_quality = noise, int(quality)

    ink = pen(str(rng.choice(list(INKS))), strength=float(rng.uniform(0.4, 1.2)))
    troubles = (ink, black_border, unscanned, coverslip, dust, shaded)
    chosen = [trouble for trouble in troubles if rng.random() < 0.4]
    return (section(stain, shape=shape, strength=strength, fat=fat), *chosen, camera)
