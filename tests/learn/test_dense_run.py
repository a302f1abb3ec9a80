"""`metaphase run` by the method `dense`: from slides and labels to a packaged pair."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from metaphase.base.errors import UsageError
from metaphase.base.provenance import decides
from metaphase.base.stages import run_stages, stage_key, stage_states
from metaphase.counting.likely import LaboratoryPrior
from metaphase.counting.specimen import CountConfig, at_point
from metaphase.detections.matching import NOBODY
from metaphase.detections.table import IGNORE, MITOSIS
from metaphase.evaluation.pairs import (
    FIELDS,
    PairConfig,
    choose_pair,
    floor_for,
    match_image,
    validation_groups,
)
from metaphase.learn.config import RunConfig, run_config
from metaphase.learn.dense import DenseChain
from metaphase.learn.run import chain_of, delivered_model, read_results, run_chain, run_table
from metaphase.learn.summary import run_report
from metaphase.networks.cards import parse_card
from metaphase.networks.checkpoints import load_model
from metaphase.networks.detector import load_detector
from metaphase.networks.training.atypical import atypical_figures
from metaphase.networks.training.images import LabelledImage
from tests.networks.training.published import random_weights
from tests.sharing import made_once

SIDE = 256


def write_cohort(folder: Path) -> None:
    """Pink fields with dark spots that are mitoses, two patients a split, a crop and a negative."""
    rng, rows, points = np.random.default_rng(0), [], []
    for number, split in enumerate(("train", "train", "train", "validation", "validation", "test")):
        pixels = rng.integers(170, 235, (SIDE, SIDE, 3)).astype(np.uint8)
        kind = "negatives" if number == 4 else "crop" if number == 2 else "field"
        spots = rng.uniform(40, SIDE - 40, (0 if kind == "negatives" else 3, 2))
        for position, (x, y) in enumerate(spots):
            pixels[int(y) - 8 : int(y) + 8, int(x) - 8 : int(x) + 8] = (60, 40, 90)
            points.append({"case": f"c{number}", "x": x, "y": y, "label": MITOSIS, "atypical": position % 2})
        Image.fromarray(pixels).save(folder / f"c{number}.png")
        named = {"case": f"c{number}", "he": f"c{number}.png", "patient": f"p{number}"}
        described = {
            "laboratory": f"lab{number % 2}",
            "split": split,
            "mpp": 0.25,
            "kind": kind,
            "tissue": "whole",
        }
        rows.append(named | described)
    pd.DataFrame(rows).to_csv(folder / "manifest.csv", index=False)
    pd.DataFrame(points).to_csv(folder / "reference.csv", index=False)


def config(folder: Path, **dense: Any) -> RunConfig:
    shared = {"student_steps": 2, "gammas": [1 / 16, 1 / 16], "beside": "", "checkpoint_minutes": 0}
    return run_config(
        {
            "cohort": {"manifest": "manifest.csv"},
            "reference": {"table": "reference.csv"},
            "training": {"method": "dense", "augment": "R", "batch": 2},
            "dense": shared | dense,
            "test": {"suppress_um": 15.0, "smooth_um": 1.75, "bootstrap": 10},
            "card": {"name": "tiny", "terms": {"lab": "ours"}},
        },
        folder,
    )


def whole_run(folder: Path) -> None:
    """A run from labels alone, with a network of atypical figures."""
    write_cohort(folder)
    run_chain(chain_of(config(folder, atypical_steps=1), folder / "work", "cpu"))


@pytest.fixture(scope="module")
def finished() -> Path:
    """Folder of a cohort and its finished run; copy it before changing anything."""
    return made_once("dense run", whole_run)


def test_a_run_ends_with_a_pair_its_card_and_its_test(finished: Path) -> None:
    chain = chain_of(config(finished, atypical_steps=1), finished / "work", "cpu")
    assert {state.status for state in stage_states(run_table(chain), chain.workspace)} == {"kept"}
    model = delivered_model(chain)
    card = parse_card(model.with_suffix(".json"))
    assert (card.name, card.family, card.second is not None, card.atypical is not None) == (
        "tiny",
        "lite",
        True,
        True,
    )
    assert set(card.thresholds) == {"mitoses", "count"}
    beside = parse_card(model.with_name("tiny-second.json"))
    assert all(each.eight_bits is not None for each in (card, beside))
    assert [(data.name, data.terms, data.positives) for data in card.data] == [("lab", "ours", 9)]
    assert set(card.metrics["left out"]) == {"fields", "negatives", "lab1"}
    assert load_detector([model]).points.mitoses.delta == card.thresholds["mitoses"].delta
    assert list(read_results(chain.workspace)["networks"]) == ["tiny"]
    page = run_report(chain, stage_states(run_table(chain), chain.workspace))
    assert page["headline"][0][0] == "tiny"
    assert page["tables"][-1].headings[0] == "images left out"


def test_a_changed_setting_makes_again_what_depends_on_it(finished: Path, tmp_path: Path) -> None:
    before = config(finished, atypical_steps=1)
    other = replace(before, dense=replace(before.dense, count_threshold=0.3))
    states = stage_states(run_table(chain_of(other, finished / "work", "cpu")), finished / "work")
    assert [state.stage.name for state in states if state.status != "kept"] == ["pair", "test"]
    low = replace(before, dense=replace(before.dense, highest_floor=0.002))
    copy = shutil.copytree(finished / "work", tmp_path / "work")
    run_stages(run_table(chain_of(low, copy, "cpu"))[:-1], copy)
    assert parse_card(copy / "model" / "tiny.json").second.floor <= 0.002
    longer = replace(before, dense=replace(before.dense, student_steps=3))
    states = stage_states(run_table(chain_of(longer, finished / "work", "cpu")), finished / "work")
    assert next(state.stage.name for state in states if state.status != "kept") == "students"


def test_a_pair_goes_on_and_the_best_of_three_is_delivered(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "again")
    start = finished / "work" / "model" / "tiny.safetensors"
    settings = config(tmp_path / "again", start=str(start), student_steps=1)
    chain = chain_of(settings, tmp_path / "again" / "second", "cpu")
    assert isinstance(chain, DenseChain)
    run_stages(run_table(chain)[:-1], chain.workspace)
    card, before = (parse_card(path.with_suffix(".json")) for path in (chain.delivered, start))
    assert card.metrics["chosen"] in ("new", "mean", "start")
    assert set(card.metrics["validation F1"]) == {"new", "mean", "start"}
    assert card.calibration is not None
    assert before.calibration is not None
    assert card.calibration.scale == before.calibration.scale, "the calibration stays, but for a shift"
    assert card.thresholds["mitoses"].delta == pytest.approx(before.thresholds["mitoses"].delta, abs=0.01)
    assert card.atypical is not None
    assert (
        load_model(chain.delivered.with_name("tiny-atypical"))[1].weights_sha256
        == card.atypical.weights_sha256
    )
    new, mean, old = (chain.candidate(name)["lite"].state_dict()["1.weight"] for name in chain.candidates)
    np.testing.assert_allclose(mean, (new + old) / 2, atol=1e-6)


def test_without_lessons_only_the_use_of_a_pair_is_chosen(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "again")
    slides = pd.read_csv(finished / "manifest.csv")
    slides[slides["split"] != "train"].to_csv(tmp_path / "again" / "manifest.csv", index=False)
    start = finished / "work" / "model" / "tiny.safetensors"
    settings = config(tmp_path / "again", start=str(start), student_steps=0, count_threshold=0.3)
    chain = chain_of(settings, tmp_path / "again" / "points", "cpu")
    states = run_chain(chain)
    names = [state.stage.name for state in states]
    assert names == ["slides", "reference", "images", "search", "pair", "test"]
    model = delivered_model(chain)
    card, before = (parse_card(path.with_suffix(".json")) for path in (model, start))
    assert card.identity == before.identity
    assert (card.second, card.eight_bits, card.data) == (before.second, before.eight_bits, before.data)
    assert card.atypical == before.atypical
    assert card.calibration == before.calibration, "the same images choose the same"
    assert card.metrics["chosen"] == "start"
    assert (card.thresholds["count"].delta, before.thresholds["count"].delta) == (0.3, 0.4)
    assert set(card.metrics["left out"]) == {"fields", "negatives", "lab1"}


@pytest.mark.slow
def test_teachers_begin_with_published_weights(tmp_path: Path) -> None:
    write_cohort(tmp_path)
    torch.save(random_weights(), tmp_path / "lite0.pth")
    settings = config(tmp_path, teachers=["lite0.pth"], teacher_steps=2, teacher_views=2, mine_at=[0.5])
    chain = chain_of(settings, tmp_path / "work", "cpu")
    states = run_stages(run_table(chain)[:-1], chain.workspace)
    assert states[-1].facts["pair"] == "new"
    assert next(state for state in states if state.stage.name == "students").facts["teachers"] == 1


def test_a_slide_without_a_brown_nucleus_is_a_certain_negative(tmp_path: Path) -> None:
    write_cohort(tmp_path)
    table = pd.read_csv(tmp_path / "manifest.csv").assign(kind="")
    table.to_csv(tmp_path / "manifest.csv", index=False)
    settings = config(tmp_path)
    phh3 = replace(settings, reference=replace(settings.reference, source="phh3"))
    kinds = []
    for each in (settings, phh3):
        chain = chain_of(each, tmp_path / each.reference.source, "cpu")
        assert isinstance(chain, DenseChain)
        run_stages(run_table(chain)[:2], chain.workspace)
        kinds.append([one.kind for one in chain.images])
    assert kinds == [["field"] * 6, ["field"] * 4 + ["negatives", "field"]]


def test_only_a_pair_can_be_gone_on_from(tmp_path: Path) -> None:
    write_cohort(tmp_path)
    with pytest.raises(UsageError, match="is not a pair"):
        run_table(chain_of(config(tmp_path, start="simulated"), tmp_path / "work"))


def test_missing_weights_are_told_before_any_work(tmp_path: Path) -> None:
    write_cohort(tmp_path)
    with pytest.raises(UsageError, match="published weights") as raised:
        run_table(chain_of(config(tmp_path, teachers=["lite0.pth"]), tmp_path / "work"))
    assert str(tmp_path / "lite0.pth") in str(raised.value.path)


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    write_cohort(tmp_path)
    table = pd.read_csv(tmp_path / "manifest.csv").assign(kind="picture")
    table.to_csv(tmp_path / "manifest.csv", index=False)
    chain = chain_of(config(tmp_path), tmp_path / "work", "cpu")
    with pytest.raises(UsageError, match="kind 'picture'"):
        run_chain(chain)


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"training": {"method": "dense", "epochs": 3}}, "epochs"),
        ({"training": {"method": "both"}}, "method"),
        ({"dense": {"student_steps": 0}}, "steps"),
        ({"dense": {"student_steps": 0, "start": "breast", "atypical_steps": 9}}, "steps"),
        ({"dense": {"trust": 2.0}}, "trust"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, tables: dict[str, Any], problem: str) -> None:
    cohort = {"cohort": {"manifest": "m.csv"}, "reference": {"table": "r.csv"}}
    with pytest.raises(UsageError, match=problem):
        run_config(cohort | tables, tmp_path)


# ---- the choice ----


def field(
    name: str, *positions: tuple[float, float], split: str = "validation", kind: Any = "field"
) -> LabelledImage:
    points = {MITOSIS: np.array(positions, np.float64).reshape(-1, 2)}
    pixels = np.zeros((400, 400, 3), np.uint8)
    return LabelledImage(name, "here", name, split, kind, pixels, points, np.full(len(positions), np.nan))


def test_the_choice_calibrates_and_knows_how_it_errs_elsewhere() -> None:
    images = [field(f"f{number}", (100, 100), (300, 300)) for number in range(4)]
    images.append(field("none", kind="negatives"))
    found = {
        one.name: np.array([[100, 100, 0.9, 0.8, 0.9], [300, 300, 0.7, 0.6, 0.57], [200, 50, 0.4, 0.3, 0.2]])
        for one in images[:4]
    }
    found["none"] = np.array([[50.0, 50, 0.75, 0.7, 0.7]])
    choice = choose_pair(images, found, PairConfig(7.5, 15.0, 1.75, 0.4, 0))
    assert choice.points["count"].delta == 0.4
    assert choice.points["mitoses"].prior is None
    known = at_point(CountConfig(), choice.points["count"].model_dump())
    assert (known.threshold, known.prior) == (0.4, LaboratoryPrior())
    assert not known.thetas_given, "the paper's thetas belong to its percentile"
    assert choice.points["mitoses"].recall == 1.0
    assert 0.25 < choice.floor <= 0.6, "the sure half of the true ones passes the floor"
    assert choice.answered_from == 0.55, "what comes near the threshold gets a final answer"
    assert choice.metrics["left out"]["negatives"]["count"]["mitoses"] == 0


def test_the_floor_lets_nearly_all_detections_pass() -> None:
    images = [field("a", (100, 100))]
    rows = np.array([[100, 100, 0.9, sure] for sure in (0.5, 0.62, 0.9)])
    assert floor_for({"a": rows}, {FIELDS: images}, 0.5) == 0.5
    assert floor_for({"a": rows}, {FIELDS: images}, 0.95) == 0.95
    lost = np.array([[100, 100, 0.9, 0.0], [200, 200, 0.9, 0.7]])
    assert floor_for({"a": lost}, {FIELDS: images}, 0.5) == 0.7


def test_what_is_painted_over_or_outside_an_image_counts_for_nothing() -> None:
    plain = field("a", (100, 100), (200, 100), (-5, 50))
    one = replace(plain, points=plain.points | {IGNORE: np.array([[100.0, 200.0]])})
    rows = np.array([[205, 100, 0.9], [100, 210, 0.8], [40, 40, 0.7], [110, 100, 0.6]])
    here = match_image(one, rows, 7.5)
    assert here.probability.tolist() == [0.9, 0.7, 0.6]
    assert here.truths.tolist() == [[100, 100], [200, 100]]
    assert here.matched.tolist() == [1, NOBODY, 0]


def test_nothing_is_chosen_without_a_mitosis_to_validate_on() -> None:
    with pytest.raises(UsageError, match="split validation"):
        validation_groups([field("a", (5, 5), split="train"), field("b")])


def test_figures_of_atypical_ones_know_their_interval() -> None:
    right = np.array([True, False] * 20)
    described = atypical_figures(np.where(right, 2.0, -2.0), right, np.repeat(np.arange(10), 4).astype(str))
    assert described["auc"] == "1.000 [1.000, 1.000]"
    assert described["balanced_accuracy"] == 1.0
    assert json.loads(json.dumps(described)) == described


OTHERWISE = {
    "teachers": (), "start": "breast", "teacher_steps": 9, "student_steps": 9, "atypical_steps": 9,
    "gammas": (1 / 8, 1 / 16), "trust": 0.5, "collage": 0.5, "count_threshold": 0.3, "beside": "breast",
    "memory_gb": 4.0, "checkpoint_minutes": 9.0, "teacher_views": 2, "mine_at": (0.5,), "highest_floor": 0.1,
}  # fmt: skip


def test_every_setting_that_is_said_to_decide_something_does(tmp_path: Path) -> None:
    """The stages name their ingredients one by one; a setting that none names would keep old networks."""
    write_cohort(tmp_path)
    torch.save(random_weights(), tmp_path / "lite0.pth")
    usual = config(tmp_path, teachers=[str(tmp_path / "lite0.pth")])

    def key(**changed: Any) -> str:
        chosen = replace(usual, dense=replace(usual.dense, **changed))
        return stage_key(run_table(chain_of(chosen, tmp_path / "out")))

    assert {one.name for one in fields(usual.dense)} == set(OTHERWISE)
    silent = {one.name for one in fields(usual.dense) if one.metadata == decides()}
    assert {name for name, value in OTHERWISE.items() if key(**{name: value}) == key()} == silent
