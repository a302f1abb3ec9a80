"""Density and heterogeneity, against plain sums and simulated chance."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import shapely

from metaphase.counting.clinical import count_slide, slide_density
from metaphase.counting.hotspot import lattice_around, lattice_counts
from metaphase.counting.specimen import CountConfig, specimen, tissue_in_circle
from metaphase.counting.spread import (
    CellGrid,
    cells_of,
    clustering,
    density_map,
    dispersion,
    edge_bands,
    gini,
    near_by_chance,
    separate_hotspots,
)
from metaphase.images.tissue.finding import TissueMask
from tests.counting.scenes import MPP, Floats, all_tissue, table

QUICK = CountConfig()
SIGMA_UM = QUICK.radius_um / 2


def half_tissue() -> TissueMask:
    mask = np.zeros((500, 1000), np.bool_)
    mask[:, :400] = True
    return TissueMask(mask, 8.0, 100.0, -60.0, 32.0)


def on_tissue(tissue: TissueMask, number: int, seed: int = 0) -> Floats:
    """Points in um, anywhere on the tissue with the same chance."""
    generator = np.random.default_rng(seed)
    positions = np.argwhere(tissue.mask)
    chosen = positions[generator.integers(0, len(positions), number)] + generator.uniform(size=(number, 2))
    return (chosen[:, ::-1] * tissue.scale + (tissue.x, tissue.y)) * MPP


def cells_with(points_um: Floats, tissue: TissueMask | None) -> CellGrid:
    return cells_of(specimen(table(points_um), MPP, tissue, None, QUICK))


def test_cells_keep_all_mitoses_and_all_tissue() -> None:
    tissue = half_tissue()
    points = on_tissue(tissue, 500)
    cells = cells_with(points, tissue)
    assert cells.mitoses.sum() == 500
    assert cells.tissue_mm2.sum() == pytest.approx(tissue.area_mm2)
    assert not cells.mitoses[cells.tissue_mm2 == 0].any()
    free = cells_with(points, None)
    assert free.mitoses.sum() == 500


def test_density_is_a_gaussian_mean_over_tissue() -> None:
    tissue = half_tissue()
    points = on_tissue(tissue, 300)
    cells = cells_with(points, tissue)
    found = density_map(cells, SIGMA_UM).values
    rows, columns = np.indices(found.shape)
    for row, column in ((3, 2), (20, 15), (30, 30)):
        distance2 = ((rows - row) ** 2 + (columns - column) ** 2) * cells.step_um**2
        kernel = np.exp(-distance2 / (2 * SIGMA_UM**2))
        expected = (kernel * cells.mitoses).sum() / (kernel * cells.tissue_mm2).sum()
        assert found[row, column] == pytest.approx(expected, rel=2e-3)
    assert not found[cells.tissue_mm2 == 0].any()


def test_even_activity_is_even_up_to_the_edge() -> None:
    tissue = half_tissue()
    points = on_tissue(tissue, 200_000)
    cells = cells_with(points, tissue)
    density = density_map(cells, SIGMA_UM).values[cells.tissue_mm2 > 0]
    assert density == pytest.approx(200_000 / tissue.area_mm2, rel=0.1)


def test_density_map_lies_where_the_mitoses_are() -> None:
    for tissue in (None, all_tissue(8000, 6000)):
        density = slide_density(table([(5000.0, 2000.0)]), mpp=MPP, tissue=tissue, config=QUICK)
        row, column = np.unravel_index(density.values.argmax(), density.values.shape)
        x = density.x + (column + 0.5) * density.step_px
        y = density.y + (row + 0.5) * density.step_px
        assert (x * MPP, y * MPP) == pytest.approx((5000, 2000), abs=60)
        assert density.values.dtype == np.float32
        assert density.values.sum() * (density.step_px * MPP / 1000) ** 2 == pytest.approx(1, abs=0.1)


def test_tissue_in_a_circle() -> None:
    tissue = half_tissue()
    rows, columns = np.indices(tissue.mask.shape)
    for x, y, radius in ((100.0, -60.0, 2000.0), (12_000.0, 5000.0, 3192.0), (90_000.0, 0.0, 100.0)):
        distance = np.hypot(100 + (columns + 0.5) * 32 - x, -60 + (rows + 0.5) * 32 - y)
        expected = (tissue.mask & (distance <= radius)).sum() * 64e-6
        assert tissue_in_circle(tissue, x, y, radius) == pytest.approx(expected)


def test_bands_of_distance_are_those_of_the_outline() -> None:
    """Against shapely's distance of each figure to the outline, and Garwood's intervals."""
    mask = half_tissue().mask.copy()
    mask[200:300, 100:220] = False  # a hole has edges, too
    tissue = TissueMask(mask, 8.0, 100.0, -60.0, 32.0)
    outline = shapely.union_all([piece.boundary for piece in tissue.polygons()])
    points = on_tissue(tissue, 4000) / MPP
    away_um = shapely.distance(shapely.points(points), outline) * MPP
    bands = edge_bands(np.vstack([points, points + 1e6]), tissue)
    assert (bands["from_um"].iloc[0], bands["to_um"].iloc[-1]) == (0, 1000)
    assert bands["tissue_mm2"].sum() == pytest.approx(tissue.area_mm2)
    assert bands["figures"].sum() == len(points), "figures off the tissue are in no band"
    for band in bands.itertuples():
        inside = [((away_um >= band.from_um - d) & (away_um < band.to_um + d)).sum() for d in (-8, 8)]
        assert inside[0] <= band.figures <= inside[1]
        low = scipy.stats.chi2.ppf(0.025, 2 * band.figures) / 2 if band.figures else 0
        high = scipy.stats.chi2.ppf(0.975, 2 * band.figures + 2) / 2
        assert (band.low, band.high) == pytest.approx((low / band.tissue_mm2, high / band.tissue_mm2))
    assert edge_bands(np.zeros((0, 2)), tissue)[["figures", "per_mm2", "low"]].to_numpy().max() < 1e-6


def test_gini_of_known_shares() -> None:
    same = np.ones(4)
    assert gini(same, same) == pytest.approx(0)
    assert gini(np.array([0, 0, 0, 8.0]), same) == pytest.approx(0.75)
    mitoses, tissue = np.array([1.0, 4.0, 0.0, 7.0]), np.array([0.2, 0.1, 0.25, 0.2])
    density, share = mitoses / tissue, tissue / tissue.sum()
    pairs = np.abs(density[:, None] - density) * share[:, None] * share
    assert gini(mitoses, tissue) == pytest.approx(pairs.sum() / (2 * (density * share).sum()))
    assert np.isnan(gini(np.zeros(4), same))


def test_dispersion_is_variance_over_mean_on_equal_fields() -> None:
    mitoses = np.array([3.0, 0, 5, 2, 9])
    assert dispersion(mitoses, np.full(5, 0.25)) == pytest.approx(mitoses.var(ddof=1) / mitoses.mean())
    assert np.isnan(dispersion(np.zeros(5), np.ones(5)))


def test_chance_of_being_near_by_throwing_pairs() -> None:
    tissue = half_tissue()
    first, second = on_tissue(tissue, 40_000, 1), on_tissue(tissue, 40_000, 2)
    near = (np.hypot(*(first - second).T) <= QUICK.radius_um).mean()
    cells = cells_with(np.zeros((0, 2)), tissue)
    assert near_by_chance(cells, QUICK.radius_um) == pytest.approx(near, rel=0.03)


def test_measures_of_chance_and_of_clusters() -> None:
    tissue = all_tissue(12_000, 8000)
    even = on_tissue(tissue, 1500)
    chance = count_slide(table(even), mpp=MPP, tissue=tissue, config=QUICK).heterogeneity
    assert chance["clustering"] == pytest.approx(1, abs=0.05)
    assert chance["dispersion"] == pytest.approx(1, abs=0.2)
    assert chance["mean_per_mm2"] == pytest.approx(1500 / 96)
    clustered = np.random.default_rng(0).normal((3000, 3000), 400, (1500, 2))
    focus = count_slide(table(clustered), mpp=MPP, tissue=tissue, config=QUICK).heterogeneity
    assert focus["clustering"] > 20
    assert focus["dispersion"] > 50
    assert focus["gini"] > 0.9 > chance["gini"]
    assert focus["hotspot_to_mean"] > 20 > chance["hotspot_to_mean"]
    assert focus["hotspots"] == 1 < chance["hotspots"]
    assert focus["share_above_theta2"] < focus["share_above_theta1"] < 0.2
    assert chance["share_above_theta1"] > 0.95


def test_clustering_of_very_many_points_uses_some_of_them() -> None:
    tissue = all_tissue(12_000, 8000)
    points = on_tissue(tissue, 45_000)
    cells = cells_with(points, tissue)
    assert clustering(points, cells, QUICK.radius_um) == pytest.approx(1, abs=0.05)
    assert np.isnan(clustering(points[:1], cells, QUICK.radius_um))


def test_separate_hotspots_do_not_overlap() -> None:
    generator = np.random.default_rng(0)
    groups = [
        generator.uniform(0, 100, (size, 2)) + position
        for size, position in ((20, (0, 0)), (12, (5000, 0)), (11, (5000, 1000)), (9, (0, 5000)))
    ]
    points = np.concatenate(groups)
    lattice = lattice_around(points, QUICK.radius_um, 50.0)
    counts = lattice_counts(points, lattice, QUICK.radius_um)
    assert separate_hotspots(counts, lattice, QUICK.radius_um) == 2  # two groups share a circle, one is small


def test_without_tissue_what_needs_it_is_not_a_number() -> None:
    points = np.random.default_rng(0).normal(3000, 300, (50, 2))
    unknown = count_slide(table(points), mpp=MPP, config=QUICK).heterogeneity
    assert np.isnan([unknown[name] for name in ("gini", "dispersion", "clustering", "mean_per_mm2")]).all()
    stated = count_slide(table(points), mpp=MPP, area_mm2=25.0, config=QUICK).heterogeneity
    assert stated["mean_per_mm2"] == 2
    assert stated["hotspot_to_mean"] == pytest.approx(50 / 2 / 2, rel=0.1)
