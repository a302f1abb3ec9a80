import numpy as np
import pytest
from PIL import Image

from metaphase.base.errors import UsageError
from metaphase.images.stain.augmentation import AugmentationConfig
from metaphase.images.stain.deconvolution import HED, stain_pictures
from metaphase.images.stain.gallery import GalleryConfig, gallery, write_gallery
from metaphase.images.stain.standardisation import view, write_picture, write_stain_pictures
from metaphase.slides.backends import ArraySlide

from .samples import BAD_IMAGES, tissue


def test_one_picture_a_stain(tmp_path):
    image = tissue(side=64)
    paths = write_stain_pictures(ArraySlide(image, path=tmp_path / "case 1.svs"), tmp_path / "out", HED)
    assert [path.name for path in paths] == [f"case 1-{name}.png" for name in HED.names]
    for path, picture in zip(paths, stain_pictures(image, HED).values(), strict=True):
        with Image.open(path) as written:
            np.testing.assert_array_equal(np.asarray(written), picture)


def test_view_is_the_whole_within_bounds():
    slide = ArraySlide(tissue(side=96))
    assert view(slide).shape == (96, 96, 3)
    assert max(view(slide, max_side=50).shape) == 50


def test_picture_formats(tmp_path):
    image = tissue(side=32)
    write_picture(tmp_path / "a.JPG", image)
    with Image.open(tmp_path / "a.JPG") as written:
        assert written.format == "JPEG"
    with pytest.raises(UsageError, match=r"a\.gif"):
        write_picture(tmp_path / "a.gif", image)


def test_gallery_shows_the_patch_and_is_reproducible():
    patch = tissue(side=128)
    sheet = gallery(patch, GalleryConfig(seed=3, rows=2))
    assert sheet.shape == (22 + 2 * 104, 9 * 104, 3)
    np.testing.assert_array_equal(sheet[22:122, :100], patch[14:114, 14:114])
    np.testing.assert_array_equal(sheet, gallery(patch, GalleryConfig(seed=3, rows=2)))
    assert not np.array_equal(sheet, gallery(patch, GalleryConfig(seed=4, rows=2)))


@pytest.mark.parametrize("image", BAD_IMAGES.values(), ids=BAD_IMAGES)
def test_gallery_of_bad_images(image):
    assert (
        gallery(image, GalleryConfig(rows=1, augmentation=AugmentationConfig(size_px=24))).dtype == np.uint8
    )


@pytest.mark.parametrize("mpp", [None, 0.25, 0.5])
def test_gallery_of_a_place_on_a_slide(tmp_path, mpp):
    write_gallery(
        ArraySlide(tissue(), mpp), tmp_path / "gallery.png", at=(100, 90), config=GalleryConfig(letters="RB")
    )
    with Image.open(tmp_path / "gallery.png") as written:
        assert written.size == (4 * 104, 22 + 5 * 104)
