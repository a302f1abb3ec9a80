"""What `configs/paper.toml` sets: each does what the paper says, on slides of a finished run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.spatial import cKDTree
from scipy.stats import spearmanr

from metaphase.analysis.cohort import CohortSlide
from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.run import detect_slide
from metaphase.base.stages import kept_facts, silent, stage_states
from metaphase.base.tables import TableError, read_manifest, read_table
from metaphase.counting.clinical import count_slide
from metaphase.counting.specimen import CountConfig
from metaphase.detections.points import OperatingPoint
from metaphase.detections.table import IGNORE, MITOSIS
from metaphase.evaluation.metrics import best_threshold, curve
from metaphase.evaluation.operating_points import bench_of, measure, save_point
from metaphase.evaluation.tuning import thetas_for_kappa
from metaphase.images.stain.standardisation import StandardisedSource
from metaphase.images.tissue.finding import TissueMask, TissueSource
from metaphase.learn import run as learn_run
from metaphase.learn.chain import Chain, data_stages, source_of, source_stages
from metaphase.learn.config import CohortSection, EvaluationSection, ReferenceSection
from metaphase.learn.mining.candidates import CandidateConfig, CandidateError, find_candidates
from metaphase.learn.run import run_table, tuned_for_counts
from metaphase.learn.sources import manifest_rows, read_cohort, read_points, read_reference
from metaphase.learn.summary import run_report
from metaphase.networks.cards import parse_card
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.settings import EngineConfig
from metaphase.slides.arrays import ArraySlide
from tests.analysis.conftest import tiny_model
from tests.learn.run_samples import finished_workspace, tiny_config
from tests.learn.test_run import with_manifest
from tests.learn.test_run_parts import random_marks

PAPERS: dict[str, Any] = {"method": "components", "floor": 0.8, "suppress_um": 25.0, "threshold": "highest"}


def chain_in(workspace: Path, **tables: dict[str, Any]) -> Chain:
    return Chain(tiny_config(**tables), workspace, "cpu")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished_workspace(), tmp_path / "workspace"))


# ---- the search ----


def test_detect_and_run_find_the_same_with_the_papers_search(workspace: Path, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "tiny.safetensors", seed=2)
    chain = chain_in(workspace, test=PAPERS)
    (slide,) = chain.slides("validation")
    found = chain.split_search.search("tiny", [model], [slide], silent)[slide.name]
    ready = ReadyDetector(load_detector([model]), EngineConfig(device="cpu"))
    detect_slide(slide, tmp_path / "detected", ready, DetectionConfig(paper=True))
    detected = read_table(tmp_path / "detected" / "candidates.parquet")
    assert len(detected) > 10
    pd.testing.assert_frame_equal(
        detected[["x", "y", "probability"]], found, check_dtype=False, check_exact=False, atol=1e-3
    )
    usual = chain_in(workspace, test=PAPERS | {"method": "maxima"}).split_search
    assert len(usual.search("usual", [model], [slide], silent)[slide.name]) != len(detected)


# ---- thresholds ----


def test_the_highest_threshold_is_that_of_the_highest_f1() -> None:
    validation, test = random_marks(1), random_marks(2)
    values = measure(validation, test, ["a"] * 12, "highest")
    assert (values["threshold"], values["validation_f1"]) == best_threshold(curve(validation))
    assert measure(validation, test, ["a"] * 12)["threshold"] != values["threshold"]


def counted_chain(folder: Path, **known: list[float]) -> tuple[Any, dict[str, pd.DataFrame]]:
    """Four validation slides with more and more detections, those of a higher probability among them."""
    rng, names = np.random.default_rng(0), [f"case{number}" for number in range(4)]
    manifest = pd.DataFrame({"case": names, "he": "", "phh3": "", "laboratory": "a", "split": "validation"})
    manifest = manifest.assign(patient=names, mpp=0.25, width=9000.0, height=9000.0, **known)
    found = {
        name: pd.DataFrame(rng.uniform(0, 9000, (8 * number + 3, 2)), columns=["x", "y"]).assign(
            probability=rng.uniform(0.8, 1, 8 * number + 3).astype(np.float32)
        )
        for number, name in enumerate(names)
    }
    points = pd.concat([table.iloc[:2].assign(case=name, label=MITOSIS) for name, table in found.items()])
    bench = bench_of(manifest, points, "validation", EvaluationSection().matching)
    tissue = TissueMask(np.ones((900, 900), np.bool_), 2.5, 0, 0, 10)
    slides = [CohortSlide(name, None, TissueSource(whole=True)) for name in names]  # type: ignore[arg-type]
    chain = SimpleNamespace(
        benches={"validation": bench}, slides=lambda _: slides, manifest=folder / "manifest.csv",
        split_search=SimpleNamespace(tissue=lambda _: tissue),
    )  # fmt: skip
    manifest.to_csv(folder / "manifest.csv", index=False)
    return chain, found


MITOSES = OperatingPoint(
    name="mitoses", delta=0.9, suppress_um=25.0, smooth_um=0.0, method="components", floor=0.8
)


def test_the_count_is_tuned_where_validation_slides_have_grades(tmp_path: Path) -> None:
    grades = {"proliferation": [1.0, 2.0, 3.0, 4.0], "grade": [1, 1, 2, 3]}
    chain, found = counted_chain(tmp_path, **grades)
    point = tuned_for_counts(chain, found, MITOSES)
    assert isinstance(point, OperatingPoint)
    assert (point.search, point.cases, point.metric) == (MITOSES.search, tuple(found), "Spearman")
    tissue = chain.split_search.tissue(None)

    def scores(delta: float) -> Any:
        config = CountConfig(threshold=delta)
        counts = [count_slide(one, mpp=0.25, tissue=tissue, config=config) for one in found.values()]
        return np.array([count.proliferation for count in counts])

    assert point.value == pytest.approx(spearmanr(scores(point.delta), grades["proliferation"]).statistic)
    theta1, theta2, kappa = thetas_for_kappa(scores(point.delta), np.array(grades["grade"]))
    assert (point.theta1, point.theta2, point.kappa) == (theta1, theta2, kappa)
    chain, found = counted_chain(tmp_path, grade=[1, 1, 2, 3])
    alone = tuned_for_counts(chain, found, MITOSES)
    assert isinstance(alone, OperatingPoint)
    assert (alone.delta, alone.metric, alone.search) == (0.9, "", MITOSES.search)
    assert alone.kappa == thetas_for_kappa(scores(0.9), np.array(grades["grade"]))[2]


def test_without_grades_the_count_has_no_point_of_its_own(tmp_path: Path) -> None:
    assert "neither proliferation nor grade" in str(tuned_for_counts(*counted_chain(tmp_path), MITOSES))
    same = tuned_for_counts(*counted_chain(tmp_path, proliferation=[2.0, 2.0, 2.0, 2.0]), MITOSES)
    assert "no threshold gives counts that differ" in str(same)


def test_points_of_a_run_state_their_search_and_replace_those_before(workspace: Path) -> None:
    chain = chain_in(workspace)
    card = chain.model("cnn5-0p04").with_suffix(".json")
    assert parse_card(card).thresholds["mitoses"].search == ("maxima", 0.05, 12.5, 0.0)
    save_point(card, OperatingPoint(name="count", delta=0.9, suppress_um=12.5))
    again = chain_in(workspace, test={"suppress_um": 20.0, "threshold": "highest"})
    values = learn_run.tested_network(again, "cnn5-0p04", ("cnn5-0p04",), silent)
    found = again.split_search.search("cnn5-0p04", [card], again.slides("validation"), silent)
    assert values["threshold"] == best_threshold(curve(again.benches["validation"].mark(found)))[0]
    assert parse_card(card).thresholds["mitoses"].suppress_um == 20.0
    assert "count" not in parse_card(card).thresholds


@pytest.mark.parametrize(("narrow", "chosen"), [(0.629, "cnn5-0p6"), (0.62, "cnn5-0p8")])
def test_the_students_cards_decide_which_is_delivered(workspace: Path, narrow: float, chosen: str) -> None:
    card = json.loads((workspace / "networks/cnn5-0p04/cnn5-0p04.json").read_text())
    students = {"gammas": [1.0, 0.8, 0.6], "deliver": "narrowest"}
    chain = chain_in(workspace, students=students)
    for name, value in (("cnn5-1", 0.634), ("cnn5-0p8", 0.646), ("cnn5-0p6", narrow)):
        card["thresholds"]["patches"]["value"] = value
        path = chain.model(name).with_suffix(".json")
        path.parent.mkdir()
        path.write_text(json.dumps(card))
    assert learn_run.delivered_model(chain) == chain.model(chosen)
    assert learn_run.delivered_model(chain_in(workspace, students={"gammas": [0.6, 1.0]})).stem == "cnn5-1"


# ---- candidates ----


def test_candidates_of_a_threshold_are_those_of_a_higher_one_up_to_it() -> None:
    rng = np.random.default_rng(3)
    slide = ArraySlide(rng.integers(0, 255, (230, 310, 3)).astype(np.uint8), 0.25)
    tissue = TissueMask(np.ones((230, 310), np.bool_), 0.25, 0, 0, 1)
    config = CandidateConfig(diameter_um=4.0, threshold=0.7)
    every = find_candidates(slide, tissue, config)
    for threshold in (0.2, 0.35, 0.5):
        some = find_candidates(slide, tissue, replace(config, threshold=threshold))
        assert 0 < len(some) < len(every)
        pd.testing.assert_frame_equal(
            every[every["intensity"] < threshold].reset_index(drop=True), some, check_exact=True
        )


def test_t_is_the_lowest_that_recalls_enough(workspace: Path) -> None:
    config = {"diameter_um": 8.0, "threshold": 0.9, "max_dark_share": 1.0}
    mining = chain_in(workspace, candidates=config | {"recall": 0.9}).mining
    (source,) = mining.validation
    reference = source.reference.loc[source.reference["label"] == MITOSIS, ["x", "y"]]

    def recall(table: pd.DataFrame) -> float:
        away, _ = cKDTree(table[["x", "y"]]).query(reference)
        return float((away * 0.25 <= 8.0).mean())

    with source.slide.open() as slide:
        searched = {
            step: find_candidates(
                slide, mining.tissue(source),
                replace(CandidateConfig(**config), threshold=mining.threshold - step / 765),
            )
            for step in (0, 1)
        }  # fmt: skip
    pd.testing.assert_frame_equal(mining.candidates(source), searched[0])
    assert recall(searched[0]) >= 0.9 > recall(searched[1])
    assert mining.threshold < 0.9
    far = chain_in(workspace, candidates={"diameter_um": 1.0, "threshold": 0.3, "recall": 0.99})
    with pytest.raises(CandidateError, match="Raise threshold"):
        _ = far.mining.threshold


def test_a_run_says_what_its_candidates_recall(workspace: Path) -> None:
    chain = chain_in(workspace)
    facts = kept_facts(workspace, "candidates")
    tables = [*chain.mining.labelled_training.values(), *chain.mining.labelled_validation.values()]
    assert facts["candidates per slide"] == round(
        np.mean([(one["source"] == "candidate").sum() for one in tables])
    )
    assert facts["negatives per positive"] == round(facts["negatives"] / facts["positives"])
    assert (facts["t"], 0.5 < facts["validation recall"] <= 1) == (0.6, True)
    page = run_report(chain, stage_states(run_table(chain), workspace))
    candidates, students, counts = page["choices"]
    assert candidates.rows[0] == [f"{facts[name]:,}" for name in candidates.headings]
    assert candidates.rows[1] == ["0.99", "1,000", "1,000,000", "0.6"]
    assert [row[0] for row in students.rows] == ["0.04"]
    assert students.rows[0][2] == "delivered"
    assert [row[0] for row in counts.rows] == ["cnn5-0p04"]


def test_recall_is_an_ingredient_only_where_it_is_given(workspace: Path) -> None:
    status = {
        recall: stage_states(data_stages(chain_in(workspace, candidates={"recall": recall})), workspace)[
            2
        ].status
        for recall in (0.0, 0.9)
    }
    assert status == {0.0: "kept", 0.9: "waiting"}
    assert (
        chain_in(workspace, candidates={"recall": 0.9}).mining.found(chain_in(workspace).mining.train[0])
        is not None
    )


# ---- the split ----


def test_a_split_is_drawn_by_patient_where_the_manifest_has_none(tmp_path: Path) -> None:
    (tmp_path / "he.tif").touch()
    rows = [{"case": f"c{n}", "patient": f"p{n // 2}", "he": "he.tif", "laboratory": "a"} for n in range(36)]
    pd.DataFrame(rows).to_csv(tmp_path / "manifest.csv", index=False)
    manifest = tmp_path / "manifest.csv"
    with pytest.raises(TableError, match=r"no slide has the split train.*random_split"):
        read_cohort(manifest)
    papers = CohortSection("manifest.csv", random_split=(11, 3, 4))
    drawn = read_cohort(manifest, section=papers)
    assert drawn.groupby("split")["patient"].nunique().to_dict() == {"train": 11, "validation": 3, "test": 4}
    assert drawn.groupby("patient")["split"].nunique().max() == 1
    pd.testing.assert_frame_equal(drawn, read_cohort(manifest, section=papers))
    assert (read_cohort(manifest, section=replace(papers, seed=1))["split"] != drawn["split"]).any()
    shares = read_cohort(manifest, section=replace(papers, random_split=(11 / 18, 3 / 18, 4 / 18)))
    assert (shares["split"] == drawn["split"]).all()
    assert [row.split for row in manifest_rows(manifest, section=papers)] == list(drawn["split"])
    pd.DataFrame(rows).drop(columns="patient").assign(split=["train", "validation", "test"] * 12).to_csv(
        manifest
    )
    stated = read_manifest(manifest)["split"]
    assert list(read_cohort(manifest, section=papers)["split"]) == list(stated), "what is stated stays"
    pd.DataFrame(rows[:4]).to_csv(manifest)
    with pytest.raises(TableError, match="2 patients cannot be dealt"):
        read_cohort(manifest, section=papers)


def test_a_drawn_split_is_written_down(workspace: Path, tmp_path: Path) -> None:
    truth = pd.read_parquet(workspace / "reference.parquet")
    for change in ({"split": ""}, {}):
        chain = with_manifest(tmp_path, truth, **change)
        section = replace(chain.config.cohort, random_split=(1.0, 1.0, 1.0), seed=4)
        chain = replace(chain, config=replace(chain.config, cohort=section))
        chain.workspace.mkdir(exist_ok=True)
        slides, _ = source_stages(chain)
        slides.work(silent)
        written = pd.read_csv(chain.workspace / "cohort.csv")
        assert sorted(written["split"]) == ["test", "train", "validation"]
        assert {row.split for row in source_of(chain.config).rows} == set(written["split"])


# ---- standardisation ----


def test_slides_of_training_laboratories_are_searched_in_one_stain(workspace: Path) -> None:
    chain = chain_in(workspace, cohort={"standardise": "hsd"})
    cohort = pd.read_csv(workspace / "cohort.csv")
    extra = cohort[cohort["split"] == "train"].assign(case="own", split="test")
    vars(chain)["cohort"] = pd.concat([cohort, extra], ignore_index=True)
    (validation,), tests = chain.slides("validation"), {one.name: one for one in chain.slides("test")}
    assert isinstance(validation.slide, StandardisedSource)
    other = next(name for name in tests if name != "own")
    assert [isinstance(tests[name].slide, StandardisedSource) for name in ("own", other)] == [True, False]
    (source,) = chain.mining.validation
    with source.slide.open() as raw, validation.slide.open() as seen:
        square = raw.read(100, 100, 64, 64)
        assert (seen.read(100, 100, 64, 64) == validation.slide.transform.apply(square)).all()
        assert (seen.read(100, 100, 64, 64) != square).any()
        tissue = validation.tissue.of(raw)
    assert (chain.split_search.tissue(validation).mask == tissue.mask).all()
    model = tiny_model(workspace / "tiny.safetensors", seed=2)
    found, again = (
        one.split_search.search("tiny", [model], one.slides("validation"), silent)[validation.name]
        for one in (chain, chain_in(workspace))
    )
    assert not found.equals(again), "what was found in other colours is not taken for it"


# ---- labels ----


def test_all_registered_figures_train_where_asked(tmp_path: Path) -> None:
    table = pd.DataFrame({"case": "a", "x": [1.0, 2.0, 3.0, np.nan], "y": 1.0})
    table = table.assign(accepted=[True, False, False, False], cause=["", "doubtful", "", "registration"])
    table.assign(observer=["", "", "ann", ""]).to_csv(tmp_path / "reference.csv", index=False)
    usual, papers = (
        read_points(tmp_path / "reference.csv", ["a"], all_registered=every)["label"].tolist()
        for every in (False, True)
    )
    assert usual == [MITOSIS, IGNORE, IGNORE]
    assert papers == [MITOSIS, MITOSIS, IGNORE], "an observer refused the third"
    section = ReferenceSection("phh3", str(tmp_path / "reference.csv"), all_registered=True)
    cohort = pd.DataFrame({"case": ["a"], "split": ["train"]})
    assert read_reference(section, cohort, needed=("train",))["label"].tolist() == papers
