"""The three tasks from the folders of TUPAC to table IV: the very commands of the documentation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from metaphase.analysis.cohort import cohort_slides
from metaphase.analysis.tasks import evaluate_tasks
from metaphase.base.errors import UsageError
from metaphase.base.tables import flat_case, read_manifest, write_table
from metaphase.detections.files import read_detections
from metaphase.detections.points import paper_points
from metaphase.detections.table import CANDIDATES, DETECTIONS
from metaphase.evaluation.datasets import import_dataset
from metaphase.evaluation.grades import read_cohort
from metaphase.evaluation.operating_points import load_points
from tests.docs.blocks import ROOT, blocks
from tests.evaluation.tupac import TEST_REGIONS, TESTED, write_tupac

MPP, SIDE = 0.25, 4000
TRAIN, TEST, FIELDS = 15, 6, 6


@pytest.mark.slow
def test_the_commands_of_the_documentation_go_from_the_folders_to_table_4(tmp_path: Path) -> None:
    (block,) = [one for one in blocks(ROOT / "docs/evaluation.md") if "tupac-paper" in one.text]
    commands = block.script.strip().splitlines()
    assert len(commands) <= 5
    write_tupac(tmp_path / "TUPAC")
    (tmp_path / "metaphase").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m metaphase "$@"\n')
    (tmp_path / "metaphase").chmod(0o755)
    variables = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    script = ["bash", "-euo", "pipefail", "-c", block.script]
    done = subprocess.run(script, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    table = pd.read_csv(tmp_path / "table4/table4.csv")
    assert table["metric"].tolist() == ["kappa", "Spearman", "F1"]
    assert table["paper"].tolist() == ["0.471 [0.340, 0.603]", "0.519 [0.477, 0.559]", "0.480"]
    assert table["tuned"].astype(float).gt(0.2).all()
    assert set(table["test"]) == {"–"}
    points = load_points(tmp_path / "table4/card.json")  # which `detect --paper` therefore takes
    assert paper_points(points) == points
    submitted = pd.read_csv(tmp_path / "table4/submission.csv", header=None)
    assert list(submitted.index[submitted[0] > 0] + 1) == list(TESTED)
    assert len(list((tmp_path / "table4/task3").rglob("*.csv"))) == TEST_REGIONS


def write_results(folder: Path, case: str, points: np.ndarray, probability: np.ndarray) -> None:
    """What `metaphase detect` leaves, in so far as it is read; only what is sure is listed."""
    name = flat_case(case)
    table = pd.DataFrame(points, columns=["x", "y"]).assign(slide=name, probability=probability)
    (folder / name).mkdir(parents=True)
    (folder / name / "summary.json").write_text(json.dumps({"name": name, "mpp": MPP}))
    write_table(folder / name / CANDIDATES, table)
    write_table(folder / name / DETECTIONS, table[table["probability"] >= 0.95])


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A data set, and results in which figures have at least 0.9 and all else at most 0.5."""
    monkeypatch.setattr("metaphase.analysis.tasks.GRID", np.array([0.4, 0.6, 0.8, 0.9, 0.97]))
    rng = np.random.default_rng(3)
    rows, truth = [], []
    for number in range(TRAIN + TEST):
        split = "train" if number < TRAIN else "test"
        case, figures = f"TUPAC-T{'R' if split == 'train' else 'E'}-{number % TRAIN + 1:03}", number + 1
        known = {"grade": 1 + (figures > 5) + (figures > 10), "proliferation": figures / 30}
        rows.append({"case": case, "split": split} | (known if split == "train" else {}))
    for number in range(FIELDS + 1):
        split = "aux-train" if number < FIELDS else "aux-test"
        rows.append({"case": f"tupac-{split}/{number + 24}/01", "split": split})
    for number, row in enumerate(rows):
        row |= {"he": f"{number + 24}/01.tif", "mpp": MPP, "width": SIDE, "height": SIDE}
        count = number % (TRAIN + TEST) + 1
        points = rng.uniform(100, SIDE - 100, (2 * count, 2))
        probability = np.r_[rng.uniform(0.9, 1, count), rng.uniform(0.3, 0.5, count)]
        write_results(tmp_path / "found", row["case"], points, probability)
        if row["split"] == "aux-train":
            truth.append(pd.DataFrame(points[:count], columns=["x", "y"]).assign(slide=row["case"]))
    write_table(tmp_path / "data/manifest.csv", pd.DataFrame(rows))
    write_table(tmp_path / "data/truth.csv", pd.concat(truth).assign(label="mitosis"))
    return tmp_path / "data", tmp_path / "found"


def test_what_is_tuned_separates_where_it_can(searched: tuple[Path, Path], tmp_path: Path) -> None:
    table, warnings = evaluate_tasks(*searched, tmp_path / "out")
    assert warnings == []
    rows = {row[2]: dict(zip(table.headings, row, strict=True)) for row in table.rows}
    assert [float(str(rows[name]["tuned"])) for name in ("kappa", "Spearman", "F1")] == [1, 1, 1]
    for metric, lowest in (("kappa", 0.9), ("Spearman", 0.99), ("F1", 0.9)):
        assert lowest <= float(str(rows[metric]["held out"]).split()[0]) <= 1
        assert rows[metric]["test"] == "–"
    points = load_points(tmp_path / "out/card.json")
    assert 0.5 < points.count.delta < 0.95
    assert 0.5 < points.mitoses.delta < 0.95, "a threshold below that of the listed ones"
    submitted = pd.read_csv(tmp_path / "out/submission.csv", header=None)
    assert submitted[1].tolist() == list(range(TRAIN + 1, TRAIN + TEST + 1))
    assert set(submitted[0]) == {3}
    answers = pd.read_csv(next((tmp_path / "out/task3").rglob("*.csv")), header=None)
    found = pd.read_parquet(searched[1] / f"tupac-aux-test-{24 + FIELDS}-01" / CANDIDATES)
    expected = found[found["probability"] >= points.mitoses.delta]
    np.testing.assert_allclose(answers.to_numpy(), expected[["y", "x", "probability"]].to_numpy())


def test_a_test_part_whose_truth_is_known_is_measured(searched: tuple[Path, Path], tmp_path: Path) -> None:
    """And slides without results are left out and named."""
    manifest = read_manifest(searched[0] / "manifest.csv")
    tested = manifest["split"] == "test"
    for case in ("TUPAC-TR-002", "TUPAC-TE-004"):
        (searched[1] / case / "summary.json").unlink()
    manifest.loc[tested, "grade"] = [3, 2] * (TEST // 2)
    manifest.loc[tested, "proliferation"] = np.arange(TEST)
    write_table(searched[0] / "manifest.csv", manifest)
    table, warnings = evaluate_tasks(*searched, tmp_path / "out")
    kappa, spearman, f1 = (str(row[-1]) for row in table.rows)
    assert (kappa.split()[0], spearman.split()[0], f1) == ("0.000", "1.000", "–")
    assert "2 slides without results are left out: TUPAC-TR-002, TUPAC-TE-004" in str(warnings[0])
    submitted = pd.read_csv(tmp_path / "out/submission.csv", header=None)
    assert submitted.loc[3].tolist() == [-1, -1]


def test_the_papers_set_keeps_training_and_test_regions_apart(tmp_path: Path) -> None:
    """Regions of both have the same numbers; the test part has no truth, and its slides no grades."""
    for name in ("mitoses_image_data_part_2/24/01.tif", "mitoses-test-image-data/24/01.tif"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / "mitoses_ground_truth/24").mkdir(parents=True)
    (tmp_path / "mitoses_ground_truth/24/01.csv").write_text("7,30\n")
    (tmp_path / "training_ground_truth.csv").write_text("3,0.25\n1,-0.5\n")
    for name in ("TUPAC-TR-001.svs", "TUPAC-TR-002.svs", "TUPAC-TE-001.svs"):
        (tmp_path / name).touch()
    imported = import_dataset("tupac-paper", tmp_path, tmp_path / "out")
    manifest = read_manifest(imported.manifest_path).set_index("case")
    assert manifest["split"].to_dict() == {
        "TUPAC-TE-001": "test", "TUPAC-TR-001": "train", "TUPAC-TR-002": "train",
        "tupac-aux/24/01": "aux-train", "tupac-aux-test/24/01": "aux-test",
    }  # fmt: skip
    assert Path(manifest.loc["tupac-aux/24/01", "he"]).parts[-3] == "mitoses_image_data_part_2"
    assert Path(manifest.loc["tupac-aux-test/24/01", "he"]).parts[-3] == "mitoses-test-image-data"
    assert manifest["grade"].dropna().to_dict() == {"TUPAC-TR-001": 3, "TUPAC-TR-002": 1}
    assert pd.read_csv(imported.truth_path)["slide"].tolist() == ["tupac-aux/24/01"]
    alone = import_dataset("tupac-aux-test", tmp_path, tmp_path / "test")
    assert alone.dataset.truth.slides == ()
    (tmp_path / "testing_ground_truth.csv").write_text("2,0.5\n")
    assert import_dataset("tupac", tmp_path, tmp_path / "o").dataset.manifest["grade"].tolist() == [2, 3, 1]


def test_results_in_which_nothing_was_found_are_of_their_slide(tmp_path: Path) -> None:
    """And what is below the listing threshold is read where a threshold is chosen, and else not."""
    write_results(tmp_path, "none", np.zeros((0, 2)), np.zeros(0))
    write_results(tmp_path, "some", np.array([[1.0, 2], [3, 4]]), np.array([0.99, 0.5]))
    for every, points in ((False, 1), (True, 2)):
        found = read_detections(tmp_path, every=every)
        assert (found.slides, len(found.table)) == (("none", "some"), points)


def test_cases_of_data_sets_are_searched_into_folders_of_their_own(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.csv"
    write_table(manifest, pd.DataFrame({"case": ["tupac-aux/24/01", "b"], "he": "s.tif", "mpp": 0.25}))
    assert [slide.name for slide in cohort_slides(manifest)] == ["tupac-aux-24-01", "b"]
    assert read_cohort(manifest).case_names(["tupac-aux-24-01"], "") == {"tupac-aux-24-01": "tupac-aux/24/01"}
    write_table(manifest, pd.DataFrame({"case": ["a/b", "a-b"], "he": "s.tif", "mpp": 0.25}))
    with pytest.raises(UsageError, match="two cases would write to a-b"):
        cohort_slides(manifest)
