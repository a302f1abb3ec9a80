import numpy as np
import pytest

from metaphase.images.stain.deconvolution import channel_mean, to_uint8


def test_every_level_is_its_own_nearest():
    levels = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(to_uint8(levels / np.float32(255)), levels)


@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.float64])
def test_the_mean_of_channels_is_that_of_numpy(kind):
    image = np.random.default_rng(0).integers(0, 256, (7, 5, 3)).astype(kind)
    np.testing.assert_array_equal(channel_mean(image), image.mean(axis=-1))
