"""The chain on small slides: stores, resuming, what is made again and what is not."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from metaphase.base.arrays import RGB
from metaphase.base.errors import MetaphaseError, OutputError, TrainingError
from metaphase.images.tissue import finding
from metaphase.images.tissue.finding import TissueMask, TissueSource, save_tissue
from metaphase.learn.mining import mining as mining_module
from metaphase.learn.mining.candidates import CandidateConfig, CandidateError
from metaphase.learn.mining.mining import Mining, MiningConfig, TrainingSlide
from metaphase.learn.mining.sets import LabelConfig, SetConfig, hard_column
from metaphase.networks.training.data import open_set
from metaphase.networks.training.patches import open_store
from metaphase.slides.contract import Slide
from metaphase.slides.opening import SlideSource
from tests.learn.mining.pictures import dotted, write_slide

DOTS = [(100, 120), (300, 250), (420, 90), (200, 400)]
MITOSES = pd.DataFrame(DOTS[:2], columns=["x", "y"]).astype(float)
CONFIG = MiningConfig(
    candidates=CandidateConfig(),
    sets=SetConfig(easy_negatives=30, hard_negatives=60, hard_sets=3, validation_positives=1.0, side_px=64),
)


class DarknessJudge:
    """Calls dark centres mitoses, and counts its calls."""

    identity = "darkness"

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, slide: Slide, points: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        self.calls += 1
        centres = [slide.read(int(x), int(y), 1, 1).mean() for x, y in points]
        return (1 - np.array(centres) / 255).astype(np.float32)

    def judge(self, patches: RGB) -> npt.NDArray[np.float32]:
        self.calls += 1
        side = patches.shape[1] // 2
        return (1 - patches[:, side, side].mean(axis=1) / 255).astype(np.float32)


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("slides")
    for number in range(3):
        write_slide(folder / f"s{number}.tif", dotted(512, 512, DOTS, seed=number))
    return sorted(folder.glob("*.tif"))


@pytest.fixture(autouse=True)
def all_tissue(monkeypatch: pytest.MonkeyPatch) -> None:
    """These slides have no glass to tell tissue from."""
    mask = TissueMask(np.ones((1, 1), np.bool_), 0.25, 0, 0, 512.0)
    monkeypatch.setattr(finding, "find_tissue", lambda *_: mask)


def make_mining(folder: Path, slides: list[Path], config: MiningConfig = CONFIG) -> Mining:
    sources = [TrainingSlide(path.stem, SlideSource(path), MITOSES) for path in slides]
    return Mining(folder, sources[:2], sources[2:], config)


def test_easy_stores(tmp_path: Path, slides: list[Path]) -> None:
    stores = open_set(make_mining(tmp_path, slides).easy_stores())
    assert (stores.labels == 1).sum() == 4
    assert (stores.labels == 0).sum() == 30
    found = stores.index[stores.index["label"] == 1]
    assert sorted(zip(found["x"] - 0.5, found["y"] - 0.5, strict=True)) == sorted(DOTS[:2] * 2)
    centres = stores.take(np.flatnonzero(stores.labels == 1))[:, 32, 32].mean(axis=1)
    assert (centres < 60).all()


def test_mitoses_of_a_repeated_slide_count_more_often(tmp_path: Path, slides: list[Path]) -> None:
    sources = [
        TrainingSlide(path.stem, SlideSource(path), MITOSES, repeat=times)
        for path, times in zip(slides, (3, 1, 1), strict=True)
    ]
    stores = open_set(Mining(tmp_path, sources[:2], sources[2:], CONFIG).easy_stores())
    drawn = stores.drawn_rows("")
    slide, label = stores.index["slide"].to_numpy()[drawn], stores.labels[drawn]
    counts = {name: int(((slide == name) & (label == 1)).sum()) for name in ("s0", "s1")}
    assert counts == {"s0": 6, "s1": 2}
    assert (label == 0).sum() == 30


def test_stores_of_slides_left_out_are_removed(tmp_path: Path, slides: list[Path]) -> None:
    make_mining(tmp_path, slides).easy_stores()
    kept = tmp_path / "patches" / "easy" / "notes"
    kept.mkdir()
    sources = [TrainingSlide(path.stem, SlideSource(path), MITOSES) for path in slides]
    Mining(tmp_path, sources[1:2], sources[2:], CONFIG).easy_stores()
    for kind in ("positives", "easy"):
        there = {path.name for path in (tmp_path / "patches" / kind).iterdir()}
        assert there - {"notes"} == {"s1"}
    assert kept.is_dir(), "what is no store is left alone"


def test_hard_stores_prefer_the_other_dots(tmp_path: Path, slides: list[Path]) -> None:
    mining, judge = make_mining(tmp_path, slides), DarknessJudge()
    index = open_set(mining.hard_stores(judge)).index
    drawn = [hard_column(number) for number in range(3)]
    negatives = index[index["label"] == 0]
    assert negatives[drawn].sum().tolist() == [60, 60, 60]
    assert index.loc[index["label"] == 1, drawn].isna().all(axis=None)
    dark = negatives["probability"] > 0.8
    assert set(zip(negatives["x"][dark] - 0.5, negatives["y"][dark] - 0.5, strict=True)) == set(DOTS[2:])
    assert negatives.loc[dark, drawn].to_numpy().mean() > negatives.loc[~dark, drawn].to_numpy().mean()


def test_soft_targets(tmp_path: Path, slides: list[Path]) -> None:
    mining, judge = make_mining(tmp_path, slides), DarknessJudge()
    stores = mining.easy_stores()
    mining.add_soft_targets(stores, judge)
    targets = open_set(stores).targets("ensemble")
    pixels = open_set(stores).take(np.arange(len(targets)))
    np.testing.assert_allclose(targets, judge.judge(pixels))
    calls = judge.calls
    mining.add_soft_targets(stores, judge)
    assert judge.calls == calls
    judge.identity = "another"
    mining.add_soft_targets(stores, judge)
    assert judge.calls > calls


def test_soft_targets_refuse_what_is_no_probability(tmp_path: Path, slides: list[Path]) -> None:
    mining = make_mining(tmp_path, slides)
    judge = DarknessJudge()
    judge.judge = lambda patches: np.full(len(patches), np.nan, np.float32)  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match="not probabilities"):
        mining.add_soft_targets(mining.positive_stores(), judge)


def test_done_work_is_kept_and_changed_settings_are_not(
    tmp_path: Path, slides: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_mining(tmp_path, slides).easy_stores()
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    found = []
    original = mining_module.find_candidates

    def noted(slide: Slide, *arguments: object, **options: object) -> object:
        found.append(slide.name)
        return original(slide, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(mining_module, "find_candidates", noted)
    assert make_mining(tmp_path, slides).easy_stores() == first
    assert not found
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    lower = dataclasses.replace(CONFIG, candidates=CandidateConfig(threshold=0.55))
    make_mining(tmp_path, slides, lower).easy_stores()
    assert found == ["s0.tif", "s1.tif"]


def test_another_resolution_or_mask_is_mined_anew(tmp_path: Path, slides: list[Path]) -> None:
    mask = TissueMask(np.ones((2, 2), np.bool_), 64.0, 0, 0, 256.0)
    path = save_tissue(mask, tmp_path, "s0").png

    def table(mpp: float | None = None) -> pd.DataFrame:
        source = TrainingSlide("s0", SlideSource(slides[0], mpp), MITOSES, TissueSource(mask=path))
        other = TrainingSlide("s2", SlideSource(slides[2]), MITOSES)
        return Mining(tmp_path / "mining", [source], [other], CONFIG).candidates(source)

    first = table()
    written = (tmp_path / "mining/candidates/s0.parquet").stat().st_mtime_ns
    assert table(mpp=0.25).equals(first)
    assert (tmp_path / "mining/candidates/s0.parquet").stat().st_mtime_ns == written, "as the file says"
    finer = table(mpp=0.2)
    assert not finer.equals(first)
    mask.mask[0, 0] = False
    save_tissue(mask, tmp_path, "s0")
    left_out = table()
    assert 0 < len(left_out) < len(first)
    assert not ((left_out["x"] < 256) & (left_out["y"] < 256)).any()


def test_interrupted_mining_goes_on_and_ends_the_same(tmp_path: Path, slides: list[Path]) -> None:
    class Dying(DarknessJudge):
        def __call__(self, slide: Slide, points: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
            if slide.name == "s1.tif":
                raise KeyboardInterrupt
            return super().__call__(slide, points)

    with pytest.raises(KeyboardInterrupt):
        make_mining(tmp_path / "a", slides).hard_stores(Dying())
    second, whole = DarknessJudge(), DarknessJudge()
    resumed = open_set(make_mining(tmp_path / "a", slides).hard_stores(second))
    straight = open_set(make_mining(tmp_path / "b", slides).hard_stores(whole))
    assert (second.calls, whole.calls) == (1, 2)
    assert resumed.index.equals(straight.index)
    rows = np.arange(len(resumed.index))
    np.testing.assert_array_equal(resumed.take(rows), straight.take(rows))


def test_half_a_store_is_made_again(tmp_path: Path, slides: list[Path]) -> None:
    folder = Path(make_mining(tmp_path, slides).easy_stores()[-1])
    before = open_store(folder).index
    (folder / "store.json").unlink()
    make_mining(tmp_path, slides).easy_stores()
    assert open_store(folder).index.equals(before)


def test_foreign_folders_are_left_alone(tmp_path: Path, slides: list[Path]) -> None:
    folder = Path(make_mining(tmp_path, slides).easy_stores()[-1])
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "thesis.docx").write_text("mine")
    with pytest.raises(OutputError, match="not a patch store of this stage"):
        make_mining(tmp_path, slides).easy_stores()
    assert (folder / "thesis.docx").exists()


@pytest.mark.slow
def test_stain_standardisation_changes_pixels_not_places(tmp_path: Path, slides: list[Path]) -> None:
    plain = make_mining(tmp_path / "a", slides)
    standard = make_mining(tmp_path / "b", slides, dataclasses.replace(CONFIG, standardise="hsd"))
    source = plain.train[0]
    with source.slide.open() as slide, standard._opened(source) as mapped:
        assert (mapped.width, mapped.height, mapped.mpp) == (slide.width, slide.height, slide.mpp)
        assert not np.array_equal(slide.read(0, 0, 50, 50), mapped.read(0, 0, 50, 50))
    pictures = [open_store(mining.positive_stores()[0]).take(np.arange(2)) for mining in (plain, standard)]
    assert not np.array_equal(*pictures)


def test_no_positives_names_the_cause(tmp_path: Path, slides: list[Path]) -> None:
    sources = [TrainingSlide(path.stem, SlideSource(path), MITOSES.iloc[:0]) for path in slides]
    with pytest.raises(CandidateError, match="no positive"):
        Mining(tmp_path, sources[:2], sources[2:], CONFIG).easy_stores()


def test_reference_of_another_frame(tmp_path: Path, slides: list[Path]) -> None:
    sources = [TrainingSlide(path.stem, SlideSource(path), MITOSES + 300) for path in slides]
    with pytest.raises(CandidateError, match=r"s0\.tif: 1 of 2 reference points lie outside"):
        Mining(tmp_path, sources[:2], sources[2:], CONFIG).easy_stores()


def test_missing_slide_is_named(tmp_path: Path, slides: list[Path]) -> None:
    with pytest.raises(MetaphaseError, match=r"gone\.tif: no such file"):
        make_mining(tmp_path, [tmp_path / "gone.tif", *slides[1:]]).easy_stores()


def test_stated_rule_reaches_the_stores(tmp_path: Path, slides: list[Path]) -> None:
    stated = dataclasses.replace(CONFIG, labels=LabelConfig(rule="stated"))
    few = open_set(make_mining(tmp_path / "a", slides).positive_stores())
    many = open_set(make_mining(tmp_path / "b", slides, stated).positive_stores())
    assert len(many.index) > 2 * len(few.index)
    assert (many.index["distance_um"] <= 25).all()
