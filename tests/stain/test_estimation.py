import numpy as np
import pytest

from metaphase.errors import UsageError
from metaphase.stain.deconvolution import H_DAB_RESIDUAL, HE_RESIDUAL, StainMatrix
from metaphase.stain.estimation import MacenkoConfig, estimate_stains

from .samples import BAD_IMAGES, tissue


def degrees_between(a, b):
    return np.degrees(np.arccos(np.clip(a @ b, -1, 1)))


@pytest.mark.parametrize("blue", [0.15, 0.29, 0.45])
def test_finds_the_stains_that_made_the_picture(blue):
    true = StainMatrix.of((0.65, 0.70, blue), (0.10, 0.95, 0.25), names=HE_RESIDUAL.names)
    found = estimate_stains(tissue(matrix=true, strength=(1.6, 0.7)))
    assert found.estimated
    assert degrees_between(found.matrix.array[0], true.array[0]) < 5
    assert degrees_between(found.matrix.array[1], true.array[1]) < 5


@pytest.mark.parametrize("image", BAD_IMAGES.values(), ids=BAD_IMAGES)
def test_falls_back_where_there_is_nothing_to_estimate(image):
    found = estimate_stains(image, fallback=H_DAB_RESIDUAL)
    assert not found.estimated
    assert found.matrix == H_DAB_RESIDUAL


def test_senseless_settings_are_refused():
    with pytest.raises(UsageError):
        MacenkoConfig(extreme_percent=50)
