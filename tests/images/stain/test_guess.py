import sys
from subprocess import run

import cv2
import numpy as np
import pytest

from metaphase.images.inspection import guess_stain
from metaphase.images.stain.deconvolution import H_DAB_RESIDUAL

from .samples import BAD_IMAGES, tissue


def test_synthetic_stains_are_told_apart():
    assert guess_stain(tissue()).name == "H&E"
    assert guess_stain(tissue(matrix=H_DAB_RESIDUAL, strength=(0.6, 0.4))).name == "DAB"


@pytest.mark.parametrize("image", BAD_IMAGES.values(), ids=BAD_IMAGES)
def test_bad_images_are_unknown(image):
    guess = guess_stain(image)
    assert (guess.name, guess.confidence) == ("unknown", 0.0)


def test_noise_and_foreign_colours_are_unknown():
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    assert guess_stain(noise).name == "unknown"
    assert guess_stain(np.repeat(noise[..., :1], 3, axis=-1)).name == "unknown"
    leaves = (noise * (0.3, 0.2, 0.3) + (20, 150, 20)).astype(np.uint8)
    assert guess_stain(leaves).name == "unknown"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("icpr2012-aperio/A0?_0[1-3].jpg", "H&E"),
        ("icpr2012-hamamatsu-painted/H0?_01.jpg", "H&E"),
        ("midesec/P0_?0.jpg", "H&E"),
        ("midog-mitoses/??5.jpg", "H&E"),
        ("tupac-lookalikes/*.jpg", "H&E"),
        ("pair-rat-kidney/*HE.jpg", "H&E"),
        ("phh3-tiles/*/*.jpg", "DAB"),
        ("pair-rat-kidney/*PanCytokeratin.jpg", "DAB"),
    ],
)
@pytest.mark.parametrize("reduction", [1, 8])
def test_real_images(real_data, pattern, expected, reduction):
    paths = sorted(real_data.glob(pattern))
    assert paths
    for path in paths[:40]:
        rgb = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
        small = cv2.resize(rgb, None, fx=1 / reduction, fy=1 / reduction, interpolation=cv2.INTER_AREA)
        guess = guess_stain(small)
        assert (guess.name, guess.confidence > 0.6) == (expected, True), path.name


@pytest.mark.parametrize(
    ("module", "absent"),
    [("standardisation", "torch"), ("augmentation", "openslide")],
)
def test_each_part_imports_only_what_it_needs(module, absent):
    code = f"import sys, metaphase.images.stain.{module}; sys.exit({absent!r} in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0
