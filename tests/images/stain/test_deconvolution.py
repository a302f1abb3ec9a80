import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from skimage.color import separate_stains

from metaphase.images.stain.deconvolution import (
    EPSILON,
    H_DAB_RESIDUAL,
    HE_RESIDUAL,
    HED,
    combine,
    separate,
    stain_pictures,
    to_uint8,
)

from .samples import BAD_IMAGES

images = hnp.arrays(np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 6), st.just(3)))
matrices = st.sampled_from([HE_RESIDUAL, H_DAB_RESIDUAL, HED])
SKIMAGE_UNIT = -np.log(1e-6)


@given(images, matrices)
def test_agrees_with_scikit_image(image, matrix):
    theirs = separate_stains(image, matrix.inverse)  # clipped at 0, in units of log(1e-6)
    np.testing.assert_allclose(np.maximum(separate(image, matrix), 0) / SKIMAGE_UNIT, theirs, atol=1e-4)


@given(images, matrices)
def test_there_and_back_is_within_half_a_level(image, matrix):
    back = combine(separate(image, matrix), matrix) * 255
    assert np.abs(back - image).max() < 0.5


def test_vectors_are_the_papers_divided_by_their_length():
    # measured by Ruifrok and Johnston, two decimals: the printed unit vectors agree to that precision
    for row, measured in zip(
        HED.array, [(0.18, 0.20, 0.08), (0.01, 0.13, 0.01), (0.10, 0.21, 0.29)], strict=True
    ):
        np.testing.assert_allclose(row, np.array(measured) / np.linalg.norm(measured), atol=0.04)
    np.testing.assert_allclose(np.linalg.norm(HED.array, axis=1), 1)
    np.testing.assert_allclose(HE_RESIDUAL.array[2] @ HE_RESIDUAL.array[:2].T, 0, atol=1e-12)


@given(st.floats(0, 3), st.floats(0, 3), st.floats(0, 3))
def test_known_amounts_are_found(haematoxylin, eosin, dab):
    amounts = np.array([[[haematoxylin, eosin, dab]]], np.float32)
    density = -np.log(combine(amounts, HED) + EPSILON)
    np.testing.assert_allclose(np.linalg.solve(HED.array.T, density[0, 0]), amounts[0, 0], atol=0.02)


@pytest.mark.parametrize("image", BAD_IMAGES.values(), ids=BAD_IMAGES)
def test_bad_images_stay_finite(image):
    assert np.isfinite(separate(image)).all()
    pictures = stain_pictures(image)
    assert list(pictures) == ["haematoxylin", "eosin", "residual"]
    assert all(picture.dtype == np.uint8 for picture in pictures.values())


def test_a_stain_alone_shows_only_itself():
    pure = combine(np.array([[[1.0, 0, 0]]]), HE_RESIDUAL)
    pictures = stain_pictures(to_uint8(pure))
    np.testing.assert_allclose(pictures["haematoxylin"] / 255, pure, atol=1 / 255)
    assert pictures["eosin"].min() >= 254
