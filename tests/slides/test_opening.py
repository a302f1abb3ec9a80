"""Files as they really arrive: damaged, unscaled, oddly named, or not slides at all."""

from __future__ import annotations

import contextlib
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PillowImage

from metaphase.base.arrays import Box
from metaphase.base.errors import MetaphaseError, MissingResolutionError, SlideError, UsageError
from metaphase.slides.backends import GIVE_MPP, filled_bounds, ome_mpp
from metaphase.slides.opening import open_slide
from metaphase.slides.tiles import plan_tiles
from metaphase.slides.writer import PyramidFormat, write_pyramid
from tests.slides.images import blob_image, halved, noise_image, with_halo, write_leica, write_tiff


@pytest.mark.parametrize("name", ["slide.svs", "slide.tif", "slide.png", "slide.mrxs"])
def test_empty_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    with pytest.raises(SlideError, match="empty"):
        open_slide(path)


@pytest.mark.parametrize("name", ["slide.svs", "slide.ndpi", "slide.jpg"])
def test_text_renamed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("this is not a slide\n" * 200)
    with pytest.raises(SlideError, match=name):
        open_slide(path)


def test_folder_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SlideError, match="is a folder"):
        open_slide(tmp_path)
    with pytest.raises(SlideError, match="no such file"):
        open_slide(tmp_path / "absent.svs")


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """A pyramid of ours, one of tifffile's (directories at the end), a strip TIFF and a PNG."""
    folder = tmp_path_factory.mktemp("whole")
    image = noise_image(200, 170)
    write_pyramid(folder / "ours.tif", [image], 200, 170, PyramidFormat(0.25, tile_px=208))
    write_tiff(folder / "theirs.tif", image, compression="jpeg")
    write_tiff(folder / "strips.tif", image, tile=None, rowsperstrip=8)
    PillowImage.fromarray(image).save(folder / "image.png")
    return [path.read_bytes() for path in sorted(folder.iterdir())]


@given(which=st.integers(0, 3), kept=st.floats(0.0005, 0.999))
def test_truncated_files_never_crash(
    whole_files: list[bytes], tmp_path_factory: pytest.TempPathFactory, which: int, kept: float
) -> None:
    data = whole_files[which]
    path = tmp_path_factory.getbasetemp() / "cut.tif"
    path.write_bytes(data[: max(1, int(kept * len(data)))])
    with pytest.raises(MetaphaseError, match=r"cut\.tif"), open_slide(path, mpp=0.25) as slide:
        slide.read_level(0, Box(0, 0, slide.width, slide.height))


@given(st.integers(0, 10**9))
def test_flipped_bytes_are_pixels_or_a_clear_error(
    whole_files: list[bytes], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    data = bytearray(whole_files[seed % 4])
    for position in rng.integers(0, len(data), 12):
        data[position] = rng.integers(256)
    path = tmp_path_factory.getbasetemp() / "flipped.tif"
    path.write_bytes(data)
    with contextlib.suppress(MetaphaseError), open_slide(path, mpp=0.25) as slide:
        assert slide.read_level(0, Box(0, 0, 64, 64)).shape == (64, 64, 3)


def test_damaged_tile_names_the_place(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "slide.tif", noise_image(200, 170), compression="zlib")
    with tifffile.TiffFile(path) as tiff:
        offset = tiff.pages.first.dataoffsets[5]
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\0" * 40)
    with open_slide(path) as slide:
        slide.read_level(0, Box(0, 0, 60, 60))
        with pytest.raises(SlideError, match=r"level 0 cannot be decoded at \(64, 64\)"):
            slide.read_level(0, Box(0, 0, 200, 170))


def test_unicode_and_spaces_in_the_path(tmp_path: Path) -> None:
    path = tmp_path / "Präparat 12 – größer µm" / "日本 スライド #1%.tif"
    path.parent.mkdir()
    write_tiff(path, blob_image())
    for backend in ("tiff", "openslide"):
        with open_slide(path, backend=backend) as slide:
            assert slide.name == path.name
            assert slide.read(0, 0, 5, 5).shape == (5, 5, 3)


def test_missing_mpp_names_the_flag_and_reading_needs_it(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "slide.tif", blob_image(), mpp=None)
    with open_slide(path) as slide:
        assert any("--mpp" in str(warning) for warning in slide.info.warnings)
        assert slide.thumbnail(40).shape[1] == 40
        with pytest.raises(MissingResolutionError, match="--mpp"):
            slide.read(0, 0, 10, 10)
    with open_slide(path, mpp=0.5) as slide:
        assert slide.info.resolution is not None
        assert (slide.mpp, slide.info.resolution.source, slide.info.warnings) == (0.5, "flag", ())


def test_print_resolution_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "slide.tif"
    tifffile.imwrite(
        path, blob_image(), tile=(64, 64), photometric="rgb", resolution=(72, 72), resolutionunit="INCH"
    )
    with open_slide(path) as slide:
        assert slide.info.resolution is None
        (warning,) = slide.info.warnings
        assert (warning.code, warning.next_step) == ("odd-mpp", GIVE_MPP)
        assert "352.8" in warning.text


@pytest.mark.parametrize(
    ("description", "unit", "resolution", "mpp"),
    [
        ("", "NONE", 4.0, None),
        ("ImageJ=1.54\nunit=micron\n", "NONE", 4.0, 0.25),
        ("ImageJ=1.54\nunit=\\u00B5m\n", "NONE", 4.0, 0.25),
        ("ImageJ=1.54\nunit=pixel\n", "NONE", 4.0, None),
        ("", "MILLIMETER", 4000.0, 0.25),
    ],
)
def test_no_unit_is_no_resolution_unless_imagej_names_one(
    tmp_path: Path, description: str, unit: str, resolution: float, mpp: float | None
) -> None:
    path = tmp_path / "slide.tif"
    scale = {"resolution": (resolution, resolution), "resolutionunit": unit}
    tifffile.imwrite(
        path,
        blob_image(),
        photometric="rgb",
        rowsperstrip=64,
        description=description,
        metadata=None,
        **scale,
    )
    with open_slide(path) as slide:
        stated = slide.info.resolution
        assert (stated and stated.mpp) == (mpp and pytest.approx(mpp))


def test_comments_of_ome_state_no_resolution() -> None:
    size = 'PhysicalSizeX="{0}" PhysicalSizeY="{0}"'
    commented = f"<!-- <Pixels {size.format(9)}/> -->"
    assert ome_mpp(f"<OME>{commented}</OME>") is None
    assert ome_mpp(f"<OME>{commented}<Image><Pixels {size.format(0.25)}/></Image></OME>") == (0.25, 0.25)
    assert ome_mpp(f"<OME><Pixels {size.format(0.25)}/><broken") == (0.25, 0.25)


def test_long_metadata_is_read_in_no_time() -> None:
    started = time.process_time()
    assert ome_mpp("<OME>" + "<Pixels " * 100_000) is None
    assert time.process_time() - started < 10  # it was quadratic: an hour


def test_flag_that_contradicts_the_file_is_said(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "slide.tif", blob_image(), mpp=0.25)
    with open_slide(path, mpp=0.5) as slide:
        assert slide.mpp == 0.5
        (warning,) = slide.info.warnings
        assert warning.code == "mpp-overridden"
        assert "overrides the 0.25" in warning.text


@pytest.mark.parametrize("mpp", [0, -0.25, 250, float("nan")])
def test_impossible_flag(tmp_path: Path, mpp: float) -> None:
    path = write_tiff(tmp_path / "slide.tif", blob_image())
    with pytest.raises(UsageError, match="um/px"):
        open_slide(path, mpp=mpp)


def test_ome_tiff_with_levels_in_subifds(tmp_path: Path) -> None:
    image = noise_image(256, 192)
    path = tmp_path / "slide.ome.tif"
    with tifffile.TiffWriter(path, ome=True) as tiff:
        options = {"tile": (64, 64), "photometric": "rgb"}
        physical = {"axes": "YXS", "PhysicalSizeX": 230.0, "PhysicalSizeXUnit": "nm"}
        physical |= {"PhysicalSizeY": 0.23, "PhysicalSizeYUnit": "µm"}
        stale = {"resolution": (72, 72), "resolutionunit": "INCH"}  # OME-XML knows better
        tiff.write(image, subifds=1, metadata=physical, **options, **stale)
        tiff.write(halved(image), subfiletype=1, **options)
    with open_slide(path) as slide:
        assert slide.mpp == pytest.approx(0.23)
        assert [level.width for level in slide.levels] == [256, 128]
        np.testing.assert_array_equal(slide.read_level(1, Box(0, 0, 128, 96)), halved(image))


def test_grey_and_transparent_tiffs_become_rgb(tmp_path: Path) -> None:
    grey = noise_image(96, 80)[..., 0]
    tifffile.imwrite(tmp_path / "grey.tif", grey, tile=(32, 32), photometric="minisblack")
    with open_slide(tmp_path / "grey.tif", mpp=0.25) as slide:
        np.testing.assert_array_equal(slide.read(0, 0, 96, 80), np.repeat(grey[..., None], 3, 2))
    rgba = np.dstack([noise_image(96, 80), np.zeros((80, 96), np.uint8)])
    rgba[:40, :, 3] = 255
    tifffile.imwrite(
        tmp_path / "alpha.tif", rgba, tile=(32, 32), photometric="rgb", extrasamples=["unassalpha"]
    )
    PillowImage.fromarray(rgba).save(tmp_path / "alpha.png")
    for name in ("alpha.tif", "alpha.png"):
        with open_slide(tmp_path / name, mpp=0.25) as slide:
            seen = slide.read(0, 0, 96, 80)
        np.testing.assert_array_equal(seen[:40], rgba[:40, :, :3])
        assert (seen[40:] == 255).all()


def test_sixteen_bit_is_refused_with_the_next_step(tmp_path: Path) -> None:
    path = tmp_path / "deep.tif"
    tifffile.imwrite(path, blob_image().astype(np.uint16) * 200, tile=(64, 64), photometric="rgb")
    with pytest.raises(SlideError, match=r"16-bit.*8-bit RGB"):
        open_slide(path)


@pytest.mark.parametrize("kind", ["palette", "separated", "miniswhite"])
def test_other_colour_models_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "odd.tif"
    pixels = noise_image(64, 64)
    options = {"palette": {"colormap": np.zeros((3, 256), np.uint16)}}.get(kind, {})
    data = np.dstack([pixels, pixels[..., :1]]) if kind == "separated" else pixels[..., 0]
    tifffile.imwrite(path, data, photometric=kind, tile=(32, 32), **options)
    with pytest.raises(SlideError, match="colour model"):
        open_slide(path, mpp=0.25)


def test_deep_and_enormous_images_are_refused(tmp_path: Path) -> None:
    PillowImage.fromarray(np.full((20, 20), 3000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(SlideError, match="8-bit"):
        open_slide(tmp_path / "deep.png", mpp=0.25)
    PillowImage.new("L", (20, 20)).save(tmp_path / "huge.png")
    data = bytearray((tmp_path / "huge.png").read_bytes())
    data[16:24] = struct.pack(">II", 20_000, 20_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    (tmp_path / "huge.png").write_bytes(data)
    with pytest.raises(SlideError, match="too many pixels"):
        open_slide(tmp_path / "huge.png", mpp=0.25)


def test_left_out_tiles_are_white(tmp_path: Path) -> None:
    tiles = [noise_image(64, 64), None, None, noise_image(64, 64, seed=1)]
    path = tmp_path / "sparse.tif"
    tifffile.imwrite(
        path,
        iter(tiles),
        shape=(128, 128, 3),
        dtype=np.uint8,
        tile=(64, 64),
        photometric="rgb",
        compression="zlib",
    )
    with open_slide(path, mpp=0.25) as slide:
        seen = slide.read(0, 0, 128, 128)
    np.testing.assert_array_equal(seen[:64, :64], tiles[0])
    assert (seen[:64, 64:] == 255).all()


def test_bounds_of_the_scanned_part() -> None:
    full = Box(0, 0, 1000, 800)
    stated = {"x": "100", "y": "50", "width": "300", "height": "200"}
    properties = {f"openslide.bounds-{key}": value for key, value in stated.items()}
    assert filled_bounds(properties, full) == Box(100, 50, 300, 200)
    assert filled_bounds({}, full) == full
    assert filled_bounds({**properties, "openslide.bounds-x": "5000"}, full) == full


def test_scan_on_a_larger_canvas_keeps_the_files_frame(tmp_path: Path) -> None:
    path = write_leica(tmp_path / "slide.scn", blob_image(256, 192), corner=(40, 30), canvas=400)
    with tifffile.TiffFile(path) as tiff:
        scanned = tiff.pages[1].asarray()
    with open_slide(path) as slide:
        assert (slide.info.vendor, slide.info.backend, slide.mpp) == (
            "leica",
            "openslide",
            pytest.approx(0.5),
        )
        assert (slide.width, slide.height, slide.bounds) == (400, 400, Box(40, 30, 256, 192))
        np.testing.assert_array_equal(slide.read(40, 30, 256, 192, slide.mpp), scanned)
        assert (slide.read(0, 0, 40, 400, slide.mpp) == 255).all()
        assert slide.thumbnail(64).shape == (48, 64, 3)
        plan = with_halo(plan_tiles(slide.bounds, slide.mpp, mpp=0.5, tile_px=100), 3)
        assert (plan.x, plan.y, plan.width, plan.height) == (40, 30, 256, 192)


def test_of_several_images_of_one_size_the_first_is_read_and_it_is_told(tmp_path: Path) -> None:
    image = blob_image()
    with tifffile.TiffWriter(tmp_path / "two.tif") as writer:
        for page in (image, 255 - image):
            writer.write(page, photometric="rgb", tile=(256, 256))
    with open_slide(tmp_path / "two.tif", mpp=0.25) as slide:
        assert [warning.code for warning in slide.info.warnings] == ["several-images"]
        np.testing.assert_array_equal(slide.read_level(0, Box(0, 0, 64, 64)), image[:64, :64])


def test_the_area_of_oblong_pixels_is_right(tmp_path: Path) -> None:
    side_um = np.array([0.2456, 0.4912])
    path = tmp_path / "oblong.tif"
    tifffile.imwrite(path, blob_image(), tile=(256, 256), photometric="rgb", resolution=1e4 / side_um,
                     resolutionunit="CENTIMETER")  # fmt: skip
    with open_slide(path) as slide:
        assert slide.mpp**2 == pytest.approx(side_um.prod(), rel=1e-6)
        assert "oblong-pixels" in [warning.code for warning in slide.info.warnings]
