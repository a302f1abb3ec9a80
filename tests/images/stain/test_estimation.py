import numpy as np
import pytest

from metaphase.images.stain.deconvolution import (
    HE_RESIDUAL,
    StainMatrix,
    rgb_unit,
    stains_of_density,
)

from .samples import BAD_IMAGES, tissue


def density(image):
    return -np.log(rgb_unit(image) + 1 / 255).reshape(-1, 3)


def degrees_between(a, b):
    return np.degrees(np.arccos(np.clip(a @ b, -1, 1)))


@pytest.mark.parametrize("blue", [0.15, 0.29, 0.45])
def test_finds_the_stains_that_made_the_picture(blue):
    true = StainMatrix.of((0.65, 0.70, blue), (0.10, 0.95, 0.25), names=HE_RESIDUAL.names)
    found = stains_of_density(density(tissue(matrix=true, strength=(1.6, 0.7))))
    assert degrees_between(found.array[0], true.array[0]) < 5
    assert degrees_between(found.array[1], true.array[1]) < 5


@pytest.mark.parametrize("image", BAD_IMAGES.values(), ids=BAD_IMAGES)
def test_nothing_is_found_where_there_is_nothing_to_estimate(image):
    assert stains_of_density(density(image)) is None
