"""The mask's position on the slide, its outlines, and the files others read."""

from __future__ import annotations

import io
import json
import uuid
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np
from PIL import Image
from scipy import ndimage

from metaphase.base.arrays import Box
from metaphase.base.errors import MetaphaseError, MissingResolutionError, OutputError, UsageError
from metaphase.images.tissue.finding import (
    TissueConfig,
    TissueMask,
    draw_overlay,
    find_tissue,
    load_tissue,
    save_overlay,
    save_tissue,
)
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.tiles import plan_tiles

Mask = npt.NDArray[np.bool_]
masks = st_np.arrays(np.bool_, st_np.array_shapes(min_dims=2, max_dims=2, max_side=9))


def ring(size: int = 12) -> TissueMask:
    """A square with a square hole, at 8 um/px on a slide of 0.25 um/px."""
    mask = np.zeros((size, size), np.bool_)
    mask[2:10, 2:10] = True
    mask[4:8, 4:8] = False
    return TissueMask(mask, 8.0, 100.0, 200.0, 32.0)


@given(masks, st.floats(-50, 50), st.floats(-50, 50), st.floats(0.5, 40))
def test_polygons_follow_the_pixel_edges(mask: Mask, x: float, y: float, scale: float) -> None:
    tissue = TissueMask(mask, 2.0, x, y, scale)
    polygons = tissue.polygons()
    assert all(polygon.is_valid for polygon in polygons)
    assert sum(p.area for p in polygons) * (2.0 / scale) ** 2 / 1e6 == pytest.approx(tissue.area_mm2)
    rows, columns = np.indices(mask.shape)
    centres = shapely.points(x + (columns + 0.5) * scale, y + (rows + 0.5) * scale)
    np.testing.assert_array_equal(shapely.contains(shapely.MultiPolygon(polygons), centres), mask)


@given(masks)
def test_one_polygon_for_each_connected_piece(mask: Mask) -> None:
    _, pieces = ndimage.label(mask)
    assert len(TissueMask(mask, 8.0, 0, 0, 1).polygons()) == pieces


def test_holes_are_kept() -> None:
    (polygon,) = ring().polygons()
    assert polygon.bounds == (164, 264, 420, 520)
    assert [hole.bounds for hole in map(shapely.Polygon, polygon.interiors)] == [(228, 328, 356, 456)]
    assert ring().area_mm2 == pytest.approx(48 * 64e-6)


@given(masks)
def test_simplified_outlines_move_by_at_most_the_tolerance(mask: Mask) -> None:
    wide = np.kron(mask, np.ones((5, 5), np.bool_))
    tissue = TissueMask(wide, 8.0, 10, 20, 4.0)
    exact, simple = (shapely.MultiPolygon(tissue.polygons(tolerance)) for tolerance in (0.0, 1.0))
    assert shapely.get_num_coordinates(simple) <= shapely.get_num_coordinates(exact)
    if not tissue.is_empty:
        assert shapely.hausdorff_distance(exact, simple) <= 4.0 + 1e-9


def test_geojson_is_what_qupath_reads() -> None:
    collection = json.loads(ring().to_geojson())
    assert collection["type"] == "FeatureCollection"
    (feature,) = collection["features"]
    assert feature["type"] == "Feature"
    assert uuid.UUID(feature["id"]).version == 5
    assert feature["properties"]["objectType"] == "annotation"
    assert feature["properties"]["classification"]["name"] == "Tissue"
    assert shapely.equals(shapely.geometry.shape(feature["geometry"]), ring().polygons()[0])


def test_geojson_ids_are_stable_and_distinct() -> None:
    mask = np.zeros((9, 9), np.bool_)
    mask[1:4, 1:4] = mask[6:8, 6:8] = True
    tissue = TissueMask(mask, 8, 0, 0, 32)
    ids = [[feature["id"] for feature in json.loads(tissue.to_geojson())["features"]] for _ in range(2)]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2


def test_png_shows_the_mask_and_comes_back_whole(tmp_path: Path) -> None:
    tissue = ring()
    with Image.open(io.BytesIO(tissue.to_png())) as image:
        np.testing.assert_array_equal(np.asarray(image), np.where(tissue.mask, 255, 0))
    back = load_tissue(save_tissue(tissue, tmp_path, "slide").png)
    np.testing.assert_array_equal(back.mask, tissue.mask)
    assert (back.mpp, back.x, back.y, back.scale) == (tissue.mpp, tissue.x, tissue.y, tissue.scale)


def test_a_file_that_is_no_mask_is_explained(tmp_path: Path) -> None:
    plain, text = tmp_path / "plain.png", tmp_path / "text.png"
    Image.new("L", (4, 4)).save(plain)
    text.write_text("no picture")
    for path in (plain, text, tmp_path / "absent.png"):
        with pytest.raises(MetaphaseError, match=path.name):
            load_tissue(path)


def test_empty_tissue_is_a_result() -> None:
    empty = TissueMask(np.zeros((5, 6), np.bool_), 8.0, 0, 0, 32.0)
    assert empty.is_empty
    assert empty.area_mm2 == 0
    assert empty.polygons() == ()
    assert json.loads(empty.to_geojson()) == {"type": "FeatureCollection", "features": []}
    (warning,) = empty.warnings
    assert "no tissue" in warning.text
    assert warning.next_step
    assert not ring().is_empty
    assert ring().warnings == ()


@pytest.mark.parametrize(
    ("mask", "numbers"),
    [
        (np.zeros((3, 3), np.bool_), (0, 0, 0, 32)),
        (np.zeros((3, 3), np.bool_), (1e300, 0, 0, 32)),
        (np.zeros((3, 3), np.bool_), (8, 0, 0, -1)),
        (np.zeros((3, 3), np.bool_), (8, float("nan"), 0, 32)),
    ],
)
def test_wrong_masks_are_explained(mask: Mask, numbers: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="Give"):
        TissueMask(mask, *numbers)


class ShiftedSlide(ArraySlide):
    """A slide whose scanner filled only a part of the frame."""

    def __init__(self, pixels: npt.NDArray[np.uint8], mpp: float, bounds: Box) -> None:
        super().__init__(pixels, mpp)
        self.bounds = bounds


def stained_slide(bounds: Box | None = None) -> ArraySlide:
    """A speckled pink square, level-0 (1200, 800) to (2000, 1600), on glass, at 1 um/px."""
    pixels = np.full((2400, 2800, 3), 240, np.uint8)
    speckles = np.random.default_rng(0).integers(-25, 25, (800, 800, 1))
    pixels[800:1600, 1200:2000] = np.array([215, 140, 180]) + speckles
    return ShiftedSlide(pixels, 1.0, bounds or Box(0, 0, 2800, 2400))


@pytest.mark.parametrize("bounds", [Box(0, 0, 2800, 2400), Box(430, 210, 2011, 1999)])
def test_find_tissue_places_the_mask_on_the_slide(bounds: Box) -> None:
    tissue = find_tissue(stained_slide(bounds))
    assert (tissue.mpp, tissue.scale) == (8.0, 8.0)
    (polygon,) = tissue.polygons()
    assert shapely.hausdorff_distance(polygon, shapely.box(1200, 800, 2000, 1600)) < 16
    assert tissue.area_mm2 == pytest.approx(0.64, rel=0.05)
    tiles = plan_tiles(bounds, 1.0, mpp=1.0, tile_px=100, mask=tissue.grid).tiles
    assert 64 <= len(tiles) <= 100


def test_blocks_leave_no_seams() -> None:
    slide = stained_slide()
    whole = find_tissue(slide, TissueConfig(mpp=4.0))
    assert whole.mask.shape == (600, 700), "more than one block"
    assert len(whole.polygons()) == 1
    assert whole.polygons()[0].interiors[:] == []


def test_a_slide_coarser_than_the_working_resolution_is_taken_as_it_is() -> None:
    pixels = stained_slide().read(0, 0, 233, 200, mpp=12.0)
    tissue = find_tissue(ArraySlide(pixels, 12.0))
    assert (tissue.mpp, tissue.scale) == (12.0, 1.0)
    assert tissue.area_mm2 == pytest.approx(0.64, rel=0.08)


def test_a_slide_without_resolution_says_so() -> None:
    with pytest.raises(MissingResolutionError, match="--mpp"):
        find_tissue(ArraySlide(np.full((50, 50, 3), 240, np.uint8)))


def test_files_are_named_after_the_slide(tmp_path: Path) -> None:
    files = save_tissue(ring(), tmp_path / "new folder", "Fall 7 ä")
    assert [path.name for path in files] == ["Fall 7 ä.tissue.png", "Fall 7 ä.tissue.geojson"]
    assert json.loads(files.geojson.read_text())["features"]
    assert sorted(tmp_path.rglob("*.*")) == sorted(files)


def test_a_folder_that_cannot_be_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cannot write"):
        save_tissue(ring(), tmp_path / "file", "slide")


def test_overlay_outlines_the_tissue(tmp_path: Path) -> None:
    slide = stained_slide(Box(400, 200, 2400, 2200))
    tissue = find_tissue(slide)
    picture = draw_overlay(slide, tissue, max_side=600)
    plain = slide.thumbnail(600)
    assert picture.shape == plain.shape == (550, 600, 3)
    inside, glass = np.s_[200:300, 250:350], np.s_[450:500, 500:560]
    np.testing.assert_array_equal(picture[inside], plain[inside])
    assert picture[glass].max() < plain[glass].min()
    green = (picture[..., 1] > 180) & (picture[..., 0] < 60)
    rows, columns = np.nonzero(green)
    assert (columns.min(), columns.max()) == (pytest.approx(200, abs=4), pytest.approx(400, abs=4))
    assert (rows.min(), rows.max()) == (pytest.approx(150, abs=4), pytest.approx(350, abs=4))
    with Image.open(save_overlay(slide, tissue, tmp_path, "slide")) as image:
        assert image.format == "JPEG"


def test_overlay_of_a_blank_slide_is_drawn() -> None:
    slide = ArraySlide(np.full((200, 300, 3), 240, np.uint8), 4.0)
    assert draw_overlay(slide, find_tissue(slide), max_side=100).shape == (67, 100, 3)


def test_contains_agrees_with_the_polygons() -> None:
    rng = np.random.default_rng(3)
    tissue = TissueMask(rng.random((6, 9)) > 0.5, 8.0, 100.0, -20.0, 32.0)
    points = rng.uniform((60, -60), (450, 220), (400, 2))
    outline = shapely.union_all(tissue.polygons())
    expected = shapely.contains_xy(outline, points[:, 0], points[:, 1])
    np.testing.assert_array_equal(tissue.contains(points), expected)
    assert 0 < expected.sum() < len(points)
