"""Virtual laboratories: how each stains, and how its scanner sees.

The stain vectors and whites follow Macenko-style fits (`recipes/calibration/laboratory_stains.py`, commit
fe38706; MiDeSeC, which mixes several stains, is moved towards its mean colour); gains, blur and sharpening
are set so that the spread of concentrations and the contrast spectrum agree with real fields
(`recipes/accuracy/simulation_statistics.py`, same commit). The first laboratory is the one to train on; the
others differ from it clearly.
"""

from __future__ import annotations

from dataclasses import dataclass

Triple = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Scanner:
    """Optics and electronics: what happens to light after the tissue."""

    white: Triple
    """Grey level of empty glass per channel (red, green, blue)."""
    gamma: float
    """Exponent on transmitted light; below 1 lifts the shadows."""
    blur_px: float
    """Standard deviation of the optical blur."""
    sharpening: float
    """Strength of unsharp masking over about 1 um."""
    noise: float
    """Standard deviation of sensor noise in grey levels."""
    jpeg_quality: int


@dataclass(frozen=True, slots=True)
class Laboratory:
    """One place that stains and scans: unit optical-density vectors (red, green, blue) and gains."""

    name: str
    scanner: Scanner
    haematoxylin: Triple
    eosin: Triple
    haematoxylin_gain: float
    eosin_gain: float
    counterstain: Triple = (0.75, 0.59, 0.30)
    counterstain_gain: float = 0.30
    dab: Triple = (0.33, 0.55, 0.77)
    dab_gain: float = 1.0
    ground: Triple = (0.66, 0.56, 0.50)
    """Colour of unstained cytoplasm and collagen in the PHH3 slide."""
    ground_gain: float = 0.30


LABORATORIES: tuple[Laboratory, ...] = (
    Laboratory(  # fitted to ICPR 2012, Aperio
        name="aldgate",
        scanner=Scanner((253, 242, 250), 1.0, 0.6, 0.65, 1.3, 88),
        haematoxylin=(0.40, 0.77, 0.49),
        eosin=(0.03, 0.85, 0.52),
        haematoxylin_gain=1.2,
        eosin_gain=1.2,
    ),
    Laboratory(  # fitted to MiDeSeC
        name="birch",
        scanner=Scanner((255, 252, 255), 1.0, 0.95, 0.35, 0.8, 80),
        haematoxylin=(0.56, 0.77, 0.31),
        eosin=(0.16, 0.93, 0.32),
        haematoxylin_gain=1.0,
        eosin_gain=1.35,
        counterstain=(0.74, 0.60, 0.30),
        counterstain_gain=0.42,
    ),
    Laboratory(  # fitted to MIDOG++ human breast, Hamamatsu S360
        name="cedar",
        scanner=Scanner((253, 234, 247), 0.95, 1.0, 0.35, 1.2, 85),
        haematoxylin=(0.47, 0.80, 0.36),
        eosin=(0.20, 0.90, 0.39),
        haematoxylin_gain=0.95,
        eosin_gain=0.95,
        dab=(0.40, 0.56, 0.72),
    ),
    Laboratory(  # fitted to MIDOG++ human breast, Aperio CS2
        name="dover",
        scanner=Scanner((253, 244, 250), 1.0, 0.7, 0.6, 1.3, 82),
        haematoxylin=(0.50, 0.74, 0.45),
        eosin=(0.13, 0.82, 0.55),
        haematoxylin_gain=1.1,
        eosin_gain=0.8,
    ),
    Laboratory(  # fitted to ICPR 2012, Hamamatsu
        name="elm",
        scanner=Scanner((254, 228, 248), 1.0, 0.7, 0.8, 1.4, 78),
        haematoxylin=(0.48, 0.76, 0.43),
        eosin=(0.15, 0.94, 0.32),
        haematoxylin_gain=0.85,
        eosin_gain=1.35,
        counterstain_gain=0.24,
    ),
    Laboratory(  # fitted to TUPAC hard negatives
        name="fjord",
        scanner=Scanner((250, 240, 247), 1.0, 0.8, 0.5, 1.2, 75),
        haematoxylin=(0.62, 0.69, 0.38),
        eosin=(0.31, 0.79, 0.52),
        haematoxylin_gain=1.05,
        eosin_gain=1.3,
    ),
    Laboratory(  # designed: faded, warm, soft optics
        name="grove",
        scanner=Scanner((248, 240, 228), 0.9, 1.25, 0.2, 1.8, 70),
        haematoxylin=(0.56, 0.71, 0.43),
        eosin=(0.12, 0.80, 0.58),
        haematoxylin_gain=0.55,
        eosin_gain=0.8,
        dab_gain=0.8,
        counterstain_gain=0.2,
    ),
    Laboratory(  # fitted to MIDOG++ melanoma, Hamamatsu XR: purple and thick
        name="heath",
        scanner=Scanner((243, 222, 242), 1.0, 0.9, 0.4, 1.2, 80),
        haematoxylin=(0.63, 0.73, 0.26),
        eosin=(0.24, 0.93, 0.27),
        haematoxylin_gain=1.25,
        eosin_gain=0.95,
        counterstain_gain=0.4,
    ),
)
