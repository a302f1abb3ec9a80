"""Whole registrations of drawn pairs: right ones are precise, wrong ones are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image as Picture

from metaphase.base.errors import UsageError
from metaphase.labels.registration import evidence as evidence_module
from metaphase.labels.registration import outputs
from metaphase.labels.registration.evidence import Verdict, gather_evidence, judge
from metaphase.labels.registration.outputs import Annotations, draw_registration, register_slides
from metaphase.labels.registration.pair import Registration, register_pair, register_points
from metaphase.labels.registration.similarity import RegistrationConfig, Similarity
from metaphase.labels.registration.tiles import Shifts, tissue_positions
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.contract import Slide
from metaphase.slides.opening import SlideSource
from tests.labels.registration.slides import MPP, Image, he_slide, moved, nuclei, phh3_slide, true_places

SIZE = 800, 700
TRUE = Similarity(1.0, 0.012, -35.0, 22.0)
BEND_UM = 1.5
SMALL = {"coarse_px": 128, "tile_px": 128, "search_px": 32, "tolerance_px": 6.0, "checks": 12}
QUICK = RegistrationConfig(**SMALL, controls=60, control_spacing_um=50.0)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tissue() -> Image:
    return nuclei(1, *SIZE)


@pytest.fixture(scope="module")
def registration(tissue: Image) -> Registration:
    return register_pair(he_slide(tissue), phh3_slide(moved(tissue, TRUE, BEND_UM)), QUICK)


@pytest.fixture(scope="module")
def positions_um() -> np.ndarray:
    return np.random.default_rng(0).uniform(80, 300, (40, 2))


def test_right_pair_is_reliable_and_precise(registration: Registration, positions_um: np.ndarray) -> None:
    assert registration.verdict.status == "reliable", registration.verdict
    table = register_points(registration, positions_um / MPP)
    there = table[["x_he", "y_he"]].to_numpy() * MPP
    miss = np.linalg.norm(there - true_places(positions_um, TRUE, BEND_UM), axis=1)
    assert table["accepted"].all()
    assert np.median(miss) < 0.4
    assert miss.max() < 1.5
    assert table["confidence"].min() > 0.9
    field = registration.transform.phh3_to_he(positions_um / MPP) * MPP
    assert np.median(np.linalg.norm(field - true_places(positions_um, TRUE, BEND_UM), axis=1)) < 0.8


def test_numbers_say_what_was_found(registration: Registration) -> None:
    numbers = registration.verdict.numbers
    middle = np.array([SIZE]) * MPP / 2
    shift = (TRUE.apply(middle) - middle)[0]
    assert (numbers["shift_x_um"], numbers["shift_y_um"]) == pytest.approx(tuple(shift), abs=4)
    assert numbers["rotation_deg"] == pytest.approx(np.degrees(0.012), abs=0.6)
    assert numbers["scale"] == pytest.approx(1, abs=0.01)
    assert numbers["tiles_agreeing"] == numbers["tiles"]
    assert numbers["median_peak"] > 3 * numbers["median_peak_at_wrong_places"]


@pytest.mark.slow
def test_same_seed_same_result(registration: Registration, tissue: Image) -> None:
    again = register_pair(he_slide(tissue), phh3_slide(moved(tissue, TRUE, BEND_UM)), QUICK)
    assert again.transform.to_json() == registration.transform.to_json()
    assert again.verdict == registration.verdict


def test_points_outside_are_rejected_with_the_reason(registration: Registration) -> None:
    table = register_points(registration, [[-50.0, 100.0], [10.0, 5.0], [1e6, 1e6]])
    assert not table["accepted"].any()
    assert (table["confidence"] == 0).all()
    assert table[["x_he", "y_he"]].isna().all(axis=None)
    assert table["reason"].tolist() == [
        "outside the PHH3 slide",
        "outside the H&E slide",
        "outside the PHH3 slide",
    ]
    assert len(register_points(registration, np.zeros((0, 2)))) == 0


def test_spoilt_tissue_takes_the_shift_of_its_neighbours(
    registration: Registration, tissue: Image, positions_um: np.ndarray
) -> None:
    """Where other tissue lies under some points, these are still right, and trusted less."""
    spoilt = tissue.copy()
    spoilt[200:500, 250:550] = nuclei(9, 300, 300)
    pair = registration.pair
    damaged = replace(registration, pair=replace(pair, he=replace(pair.he, slide=he_slide(spoilt))))
    table = register_points(damaged, positions_um / MPP)
    true = true_places(positions_um, TRUE, BEND_UM)
    inside = ((true / MPP > (270, 220)) & (true / MPP < (530, 480))).all(axis=1)
    assert inside.sum() > 3
    lent = (table["method"] == "consensus").to_numpy()
    assert (lent & inside).sum() > 3
    miss = np.linalg.norm(table[["x_he", "y_he"]].to_numpy() * MPP - true, axis=1)
    assert miss[table["accepted"]].max() < 3
    assert table["confidence"][lent].max() < table["confidence"][~lent].median()


def test_the_papers_way_finds_a_shift_and_moves_every_point_by_itself(
    tissue: Image, positions_um: np.ndarray
) -> None:
    """Of a section that neither turned nor bent; all points are taken at their own word."""
    shifted = Similarity(1.0, 0.0, -35.0, 22.0)
    config = replace(QUICK, transform="shifts")
    found = register_pair(he_slide(tissue), phh3_slide(moved(tissue, shifted, BEND_UM)), config)
    assert found.verdict.status == "reliable", found.verdict
    assert found.transform.field is None
    assert found.transform.similarity == replace(
        shifted,
        shift_x_um=pytest.approx(-35, abs=3),  # type: ignore[arg-type]
        shift_y_um=pytest.approx(22, abs=3),  # type: ignore[arg-type]
    )
    table = register_points(found, np.vstack([positions_um / MPP, [[1e6, 0]]]))
    assert table["method"].tolist() == ["measured"] * len(positions_um) + ["rejected"]
    there = table[["x_he", "y_he"]].to_numpy()[:-1] * MPP
    miss = np.linalg.norm(there - true_places(positions_um, shifted, BEND_UM), axis=1)
    assert np.median(miss) < 0.5
    assert np.percentile(miss, 90) < 1.5
    blank = ArraySlide(np.full((*SIZE, 3), 243, np.uint8), MPP)
    assert register_pair(he_slide(tissue), blank, config).verdict.status == "failed"


def test_the_papers_way_fails_where_the_tissue_is_another(tissue: Image) -> None:
    found = register_pair(*different(tissue), replace(QUICK, transform="shifts"))
    assert found.verdict.status == "failed"
    assert not register_points(found, [[200.0, 200.0]])["accepted"].any()


def different(tissue: Image) -> tuple[Slide, Slide]:
    return he_slide(tissue), phh3_slide(nuclei(2, *SIZE))


def flipped(tissue: Image) -> tuple[Slide, Slide]:
    return he_slide(tissue), phh3_slide(np.ascontiguousarray(moved(tissue, TRUE)[:, ::-1]))


def swapped(tissue: Image) -> tuple[Slide, Slide]:
    return phh3_slide(tissue), he_slide(moved(tissue, TRUE))


def wrongly_scaled(tissue: Image) -> tuple[Slide, Slide]:
    return he_slide(tissue), phh3_slide(moved(tissue, TRUE), mpp=0.4)


def blank(tissue: Image) -> tuple[Slide, Slide]:
    return he_slide(tissue), ArraySlide(np.full((*SIZE, 3), 243, np.uint8), MPP)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (different, "does not correspond"),
        pytest.param(flipped, "mirror image", marks=pytest.mark.slow),
        (swapped, "wrong order"),
        pytest.param(wrongly_scaled, "PHH3 has 0.5 and not 0.4", marks=pytest.mark.slow),
        (blank, "no tissue on the PHH3 slide"),
    ],
)
def test_wrong_pairs_fail_and_say_why(
    tissue: Image, make: Callable[[Image], tuple[Slide, Slide]], reason: str
) -> None:
    registration = register_pair(*make(tissue), QUICK)
    assert registration.verdict.status == "failed"
    assert reason in registration.verdict.reasons[0]
    table = register_points(registration, [[200.0, 200.0]])
    assert (table["accepted"][0], table["confidence"][0]) == (False, 0)
    assert table["reason"][0] == "the registration failed"


def test_slide_put_in_upside_down_is_turned_back(tissue: Image) -> None:
    upside_down = phh3_slide(np.ascontiguousarray(tissue[::-1, ::-1]))
    registration = register_pair(he_slide(tissue), upside_down, QUICK)
    assert registration.verdict.status == "reliable"
    assert "180 degrees" in registration.verdict.notes[0]
    there = registration.transform.phh3_to_he([[300.0, 200.0]])[0]
    assert there == pytest.approx([SIZE[0] - 300, SIZE[1] - 200], abs=1)


def test_section_turned_and_strongly_warped_is_followed_everywhere(tissue: Image) -> None:
    """Up to 14 um of warp over 500 um, upside down: more than single tiles bear that are not bent along."""
    turned = Similarity(1.0, np.pi - 0.05, SIZE[0] * MPP, SIZE[1] * MPP)
    registration = register_pair(he_slide(tissue), phh3_slide(moved(tissue, turned, 10.0)), QUICK)
    positions = np.random.default_rng(1).uniform(40, 310, (400, 2))
    there, true = registration.transform.apply(positions), true_places(positions, turned, 10.0)
    inside = ((true > 0) & (true < np.array(SIZE) * MPP)).all(axis=1)
    assert registration.verdict.status == "reliable", registration.verdict
    assert np.percentile(np.linalg.norm(there - true, axis=1)[inside], 95) < 2


def test_verdict_rests_on_what_the_field_leaves_to_fresh_tiles(registration: Registration) -> None:
    """A transform that is 95 % within 5 um only by its field is reliable with it and doubtful without."""
    pair, config = registration.pair, registration.config
    spoilt = replace(registration.transform, field=None)
    spoilt = replace(spoilt, similarity=replace(spoilt.similarity, shift_x_um=TRUE.shift_x_um + 5))
    evidence = gather_evidence(pair, spoilt, registration.shape.rough, config)
    assert evidence.convincing
    assert evidence.error_um == pytest.approx(6, abs=2)
    verdict = judge(pair, spoilt.similarity, evidence, 1.0, config)
    assert verdict.status == "doubtful"
    assert "points may be more than 5 um off" in verdict.reasons[0]
    assert registration.verdict.numbers["error_95_um"] < 1


def test_tissue_that_hardly_corresponds_failed(registration: Registration) -> None:
    """7 of 24 by chance is rare, and no ground for a transform: it was called doubtful."""
    hardly = replace(registration.evidence, tiles=24, agreeing=7, chance=0.05, independent=24.0)
    assert 1e-6 < hardly.p_value < 1e-3
    assert judge(registration.pair, Similarity(), hardly, 1.0, registration.config).status == "failed"
    fewer = replace(hardly, agreeing=24, independent=4.0)
    assert fewer.p_value == pytest.approx(0.05**4)
    (reason,) = judge(registration.pair, Similarity(), fewer, 1.0, registration.config).reasons
    assert "24 of 24 fresh tiles match" in reason
    assert "too little tissue" in reason  # it said that the tissue does not correspond


def saved(registration: Registration, folder: Path) -> tuple[SlideSource, SlideSource]:
    """The two slides as files."""
    pair = registration.pair
    for name, slide in (("he", pair.he.slide), ("phh3", pair.phh3.slide)):
        Picture.fromarray(slide.read(0, 0, *SIZE, MPP)).save(folder / f"{name}.png")
    return SlideSource(folder / "he.png", MPP), SlideSource(folder / "phh3.png", MPP)


@pytest.mark.parametrize(("accept", "carried"), [(False, 0), (True, 2)])
def test_a_doubtful_pair_carries_nothing_without_a_persons_word(
    registration: Registration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accept: bool, carried: int
) -> None:
    doubtful = replace(registration, verdict=Verdict("doubtful", ("because",)))
    monkeypatch.setattr(outputs, "register_pair", lambda *_: doubtful)
    (tmp_path / "points.csv").write_text("x,y\n300,250\n400,300\n-9,3\n")
    (tmp_path / "shapes.geojson").write_text('{"type": "Point", "coordinates": [300, 250]}')
    summary, _ = register_slides(
        *saved(doubtful, tmp_path),
        tmp_path / "out",
        points=tmp_path / "points.csv",
        annotations=Annotations(tmp_path / "shapes.geojson"),
        accept_doubtful=accept,
    )
    table = pd.read_parquet(tmp_path / "out" / "points.parquet")
    assert summary["points_accepted"] == table["accepted"].sum() == table["x"].notna().sum() == carried
    assert len(json.loads((tmp_path / "out" / "points.geojson").read_text())["features"]) == carried
    assert (tmp_path / "out" / "annotations.geojson").exists() == accept
    assert table["reason"][0] == ("" if accept else outputs.NOT_ACCEPTED)


def test_points_that_are_sure_are_carried_over_where_only_exactness_is_doubtful(
    registration: Registration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """36 of 36 points of a real pair were right, and nothing was carried over."""
    inexact = replace(registration.evidence, error_um=9.6)
    verdict = judge(registration.pair, TRUE, inexact, 1.0, registration.config)
    assert (verdict.status, verdict.points_decide) == ("doubtful", True)
    assert list(verdict.sure([0.89, 0.9])) == [False, True]
    hardly = judge(registration.pair, TRUE, replace(inexact, separation=0.7), 1.0, registration.config)
    assert not hardly.points_decide  # whether it is the same tissue is no question of exactness
    monkeypatch.setattr(outputs, "register_pair", lambda *_: replace(registration, verdict=verdict))
    (tmp_path / "points.csv").write_text("x,y\n300,250\n400,300\n-9,3\n")
    summary, _ = register_slides(
        *saved(registration, tmp_path), tmp_path / "out", points=tmp_path / "points.csv"
    )
    assert (summary["verdict"], summary["points_accepted"]) == ("doubtful", 2)
    assert summary["mean_confidence"] >= 0.9


def test_a_few_stray_tiles_do_not_outvote_the_rest(
    registration: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 55 tiles, 2 that match far away made the whole pair doubtful."""
    shape, found = registration.shape.rough, evidence_module.measure
    config = replace(registration.config, checks=55)

    def spoilt(strays: int, *given: Any) -> Shifts:
        shifts = found(*given)
        shifts.shifts[:strays] = (9.0, 9.0)
        return shifts

    status = {}
    for strays in (2, 8):
        monkeypatch.setattr(evidence_module, "measure", partial(spoilt, strays))
        evidence = gather_evidence(registration.pair, registration.transform, shape, config)
        assert evidence.clear > 40
        status[strays] = judge(registration.pair, TRUE, evidence, 1.0, config).status
    assert status == {2: "reliable", 8: "doubtful"}


def test_points_are_not_overwritten_by_what_is_written(tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("x,y\n300,250\n")
    slides = SlideSource(tmp_path / "he.png", MPP), SlideSource(tmp_path / "phh3.png", MPP)
    with pytest.raises(UsageError, match="would be overwritten"):
        register_slides(*slides, tmp_path, points=tmp_path / "points.csv")
    assert (tmp_path / "points.csv").read_text() == "x,y\n300,250\n"


@pytest.mark.slow
def test_same_stain_is_doubtful_unless_allowed(tissue: Image) -> None:
    slides = he_slide(tissue), he_slide(moved(tissue, TRUE))
    doubtful = register_pair(*slides, QUICK).verdict
    assert (doubtful.status, "look alike" in doubtful.reasons[0]) == ("doubtful", True)
    allowed = replace(QUICK, any_stains=True)
    assert register_pair(*slides, allowed).verdict.status == "reliable"


def test_places_are_apart_and_on_tissue(registration: Registration) -> None:
    rng = np.random.default_rng(0)
    positions = tissue_positions(registration.pair, registration.transform, 64.0, 12, rng, 30.0)
    apart = np.linalg.norm(positions[:, None] - positions[None], axis=2) + 1e9 * np.eye(len(positions))
    assert len(positions) == 12
    assert apart.min() >= 30
    assert (positions >= 0).all()
    assert (positions <= np.array(SIZE) * MPP).all()


def test_picture_is_a_png(registration: Registration, positions_um: np.ndarray) -> None:
    table = register_points(registration, np.vstack([positions_um[:3] / MPP, [[-9, -9]]]))
    assert draw_registration(registration, table).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "wrong", [{"mpp": 0}, {"tiles": 1}, {"tile_px": 8}, {"seed": -1}, {"tolerance_px": float("nan")}]
)
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        RegistrationConfig(**wrong)  # type: ignore[arg-type]
