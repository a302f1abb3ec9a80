import numpy as np
import pytest

from metaphase.base.errors import UsageError
from metaphase.images.stain.deconvolution import channel_mean, rgb_uint8, rgb_unit

from .samples import BAD_IMAGES


@pytest.mark.parametrize("image", BAD_IMAGES.values(), ids=BAD_IMAGES)
def test_every_ordinary_image_becomes_rgb(image):
    rgb = rgb_uint8(image)
    assert rgb.dtype == np.uint8
    assert rgb.shape == (*image.shape[:2], 3)


def test_depths_agree():
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    grey = np.repeat(levels[..., None], 3, axis=-1)
    for image in (levels, grey.astype(np.uint16) * 257, grey / 255, grey.astype(np.uint32) * 0x01010101):
        np.testing.assert_array_equal(rgb_uint8(image), grey)


def test_alpha_lies_over_white():
    rgba = np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 0, 51]]], np.uint8)
    np.testing.assert_array_equal(rgb_uint8(rgba), [[[10, 20, 30], [255, 255, 255], [204, 204, 204]]])


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((0, 4, 3), np.uint8),
        np.zeros(3, np.uint8),
        np.zeros((4, 4, 5), np.uint8),
        np.full((4, 4, 3), np.nan),
        np.full((4, 4, 3), 1.5),
        np.zeros((4, 4, 3), np.int64),
    ],
    ids=["empty", "one axis", "five channels", "nan", "beyond one", "signed"],
)
def test_other_arrays_are_refused(image):
    with pytest.raises(UsageError):
        rgb_unit(image)


@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.float64])
def test_the_mean_of_channels_is_that_of_numpy(kind):
    image = np.random.default_rng(0).integers(0, 256, (7, 5, 3)).astype(kind)
    np.testing.assert_array_equal(channel_mean(image), image.mean(axis=-1))
