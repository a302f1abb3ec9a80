import numpy as np
import pytest
from PIL import Image

from metaphase.base.errors import UsageError
from metaphase.images.stain.augmentation import AugmentationConfig
from metaphase.images.stain.deconvolution import HED, stain_pictures
from metaphase.images.stain.gallery import gallery
from metaphase.images.stain.standardisation import PICTURE_PX, write_picture, write_stain_pictures
from metaphase.slides.arrays import ArraySlide

from .samples import BAD_IMAGES, tissue


def test_one_picture_a_stain(tmp_path):
    image = tissue(side=64)
    paths = write_stain_pictures(ArraySlide(image, path=tmp_path / "case 1.svs"), tmp_path / "out", HED)
    assert [path.name for path in paths] == [f"case 1-{name}.png" for name in HED.names]
    for path, picture in zip(paths, stain_pictures(image, HED).values(), strict=True):
        with Image.open(path) as written:
            np.testing.assert_array_equal(np.asarray(written), picture)


def test_pictures_of_stains_are_of_bounded_size(tmp_path):
    wide = np.tile(tissue(side=96), (1, 30, 1))
    for path in write_stain_pictures(ArraySlide(wide, path=tmp_path / "a.svs"), tmp_path):
        with Image.open(path) as written:
            assert written.size == (PICTURE_PX, 68)


def test_picture_formats(tmp_path):
    image = tissue(side=32)
    write_picture(tmp_path / "a.JPG", image)
    with Image.open(tmp_path / "a.JPG") as written:
        assert written.format == "JPEG"
    with pytest.raises(UsageError, match=r"a\.gif"):
        write_picture(tmp_path / "a.gif", image)


def test_gallery_shows_the_patch_and_is_reproducible():
    patch = tissue(side=128)
    sheet = gallery(patch, "RSECHBG", AugmentationConfig(), rows=2, seed=3)
    assert sheet.shape == (22 + 2 * 104, 9 * 104, 3)
    np.testing.assert_array_equal(sheet[22:122, :100], patch[14:114, 14:114])
    np.testing.assert_array_equal(sheet, gallery(patch, "RSECHBG", AugmentationConfig(), rows=2, seed=3))
    assert not np.array_equal(sheet, gallery(patch, "RSECHBG", AugmentationConfig(), rows=2, seed=4))


@pytest.mark.parametrize("image", BAD_IMAGES.values(), ids=BAD_IMAGES)
def test_gallery_of_bad_images(image):
    assert gallery(image, "RSECHBG", AugmentationConfig(size_px=24), rows=1).dtype == np.uint8
