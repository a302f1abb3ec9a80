import json

import cv2
import numpy as np
import pytest

from metaphase.base.errors import UsageError
from metaphase.images.stain.colours import HsdColours, StainFileError, TooLittleTissueError
from metaphase.images.stain.deconvolution import HE_RESIDUAL, StainMatrix
from metaphase.images.stain.standardisation import (
    LookupTable,
    StainTransform,
    colours_of,
    fit_slide,
    sample_slide,
    standardise_slide,
)
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.opening import open_slide

from .samples import BAD_IMAGES, tissue

PINK = tissue(1, matrix=StainMatrix.of(HE_RESIDUAL.names, (0.5, 0.75, 0.45), (0.1, 0.85, 0.5)))
PURPLE = tissue(2, matrix=StainMatrix.of(HE_RESIDUAL.names, (0.7, 0.7, 0.15), (0.25, 0.95, 0.2)))


@pytest.fixture(scope="module")
def purple():
    return HsdColours.of(PURPLE)


@pytest.fixture(scope="module")
def transform(purple):
    return StainTransform(HsdColours.of(PINK), purple)


def mean_distance(a, b):
    return np.abs(a.reshape(-1, 3).mean(axis=0) - b.reshape(-1, 3).mean(axis=0)).max()


def test_slides_come_to_look_like_the_template(transform):
    standardised = transform.apply(PINK)
    assert standardised.shape == PINK.shape
    assert mean_distance(standardised, PURPLE) < 0.35 * mean_distance(PINK, PURPLE)
    glass = standardised[:, :20].reshape(-1, 3).mean(axis=0)
    assert glass.min() > 235


def test_a_slide_like_the_template_stays_as_it_is(purple):
    same = StainTransform(HsdColours.of(PURPLE), purple).apply(PURPLE)
    assert np.abs(same.astype(int) - PURPLE).mean() < 1.5


def test_nuclei_stay_darker_than_their_surroundings(transform):
    before, after = PINK[..., 0].astype(float), transform.apply(PINK)[..., 0].astype(float)
    nuclei = before < np.percentile(before, 5)
    assert after[nuclei].mean() < after[~nuclei].mean() - 40


def test_table_agrees_with_the_map_itself(transform):
    exact = transform.source.towards(transform.template, PINK.reshape(-1, 3).astype(np.float32))
    error = np.abs(transform.apply(PINK).reshape(-1, 3) - exact)
    assert np.percentile(error, 99) < 1
    assert error.max() < 5


def test_saved_transforms_do_the_same(transform, tmp_path):
    path = tmp_path / "transform.json"
    transform.save(path)
    assert StainTransform.load(path) == transform


def test_saved_templates_are_the_same(purple, tmp_path):
    purple.save(tmp_path / "template.json")
    assert HsdColours.load(tmp_path / "template.json") == purple


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "other"}', '{"format": "metaphase-stain-transform-1", "method": "hsd"}'],
)
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "transform.json"
    path.write_text(text)
    with pytest.raises(StainFileError, match=r"transform\.json"):
        StainTransform.load(path)


def test_damaged_numbers_are_refused(transform, tmp_path):
    path = tmp_path / "transform.json"
    transform.save(path)
    data = json.loads(path.read_text())
    for wrong in ([1, 2], [1, 2, float("nan")], "abc", None):
        path.write_text(json.dumps(data | {"source": data["source"] | {"glass": wrong}}))
        with pytest.raises(StainFileError):
            StainTransform.load(path)


def test_impossible_numbers_are_refused(transform, tmp_path):
    path = tmp_path / "transform.json"
    transform.save(path)
    data = json.loads(path.read_text())
    inner = data["source"]["haematoxylin"]
    inner["quantiles"] = [0.0 for _ in inner["quantiles"]]
    path.write_text(json.dumps(data))
    with pytest.raises(StainFileError):
        StainTransform.load(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(StainFileError, match="nowhere"):
        HsdColours.load(tmp_path / "nowhere.json")


def test_a_transform_of_another_method_is_refused(transform, tmp_path):
    path = tmp_path / "transform.json"
    transform.save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"method": "macenko"}))
    with pytest.raises(StainFileError, match="its method is 'macenko'"):
        StainTransform.load(path)


@pytest.mark.parametrize("image", BAD_IMAGES.values(), ids=BAD_IMAGES)
def test_bad_images_can_be_mapped(transform, image):
    mapped = transform.apply(image)
    assert mapped.shape == (*image.shape[:2], 3)


@pytest.mark.parametrize("image", BAD_IMAGES.values(), ids=BAD_IMAGES)
def test_nothing_is_fitted_on_bad_images(image):
    with pytest.raises(TooLittleTissueError):
        fit_slide(ArraySlide(image))


def test_table_is_exact_for_a_linear_map_and_any_threads():
    invert = LookupTable(lambda colours: 255 - colours)
    pixels = np.random.default_rng(0).integers(0, 256, (700, 701, 3), dtype=np.uint8)
    np.testing.assert_array_equal(invert.apply(pixels), 255 - pixels)
    np.testing.assert_array_equal(invert.apply(pixels[::2, ::3], threads=2), 255 - pixels[::2, ::3])
    assert invert.apply(pixels[:0]).shape == (0, 701, 3)


def test_sample_looks_at_tissue_and_glass_alike_from_any_seed():
    slide = ArraySlide(np.tile(PINK, (3, 3, 1)), 0.25)
    a, again, b = (sample_slide(slide, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(a, again)
    assert not np.array_equal(a, b)
    assert (a.min(axis=1) > 240).any()
    assert (a[:, 1] < 150).any()


def test_slide_with_too_little_tissue_is_named(tmp_path):
    blank = np.full((300, 300, 3), 240, np.uint8)
    blank[:10, :10] = (200, 100, 160)
    slide = ArraySlide(blank, path=tmp_path / "blank.png")
    with pytest.raises(TooLittleTissueError, match=r"blank\.png: only .* are needed"):
        fit_slide(slide)


@pytest.mark.parametrize("mpp", [0.25, 0.5])
def test_a_slide_is_standardised_tile_by_tile(tmp_path, mpp):
    image = np.tile(PINK, (4, 3, 1))[:600, :550]
    slide = ArraySlide(image, mpp)
    transform = fit_slide(slide, template=colours_of(ArraySlide(np.tile(PURPLE, (2, 2, 1)), mpp)))
    standardise_slide(slide, transform, tmp_path / "out.tif")
    with open_slide(tmp_path / "out.tif") as out:
        assert (out.width, out.height, out.mpp) == (550, 600, pytest.approx(mpp))
        written = out.read_level(0, out.bounds)
    assert np.abs(written.astype(int) - transform.apply(image)).mean() < 4


def test_pictures_and_transforms_by_suffix(tmp_path, transform):
    slide = ArraySlide(PINK)
    standardise_slide(slide, transform, tmp_path / "out.png")
    with open_slide(tmp_path / "out.png") as out:
        np.testing.assert_array_equal(out.read_level(0, out.bounds), transform.apply(PINK))
    standardise_slide(slide, transform, tmp_path / "out.json")
    assert StainTransform.load(tmp_path / "out.json") == transform
    with pytest.raises(UsageError, match=r"out\.bmp"):
        standardise_slide(slide, transform, tmp_path / "out.bmp")


def test_real_laboratories_come_closer(real_data):
    def field(name):
        return cv2.cvtColor(cv2.imread(str(real_data / name)), cv2.COLOR_BGR2RGB)[:800, :800]

    a, b = field("icpr2012-aperio/A00_01.jpg"), field("midesec/P0_00.jpg")
    template = HsdColours.default()
    after = [StainTransform(HsdColours.of(image), template).apply(image) for image in (a, b)]
    assert mean_distance(*after) < 0.4 * mean_distance(a, b)
