"""Building cohorts: doubtful pairs, stale files, names that cannot be folders, slides without mitoses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from metaphase.base.errors import UsageError
from metaphase.base.provenance import write_note
from metaphase.base.settings import settings_of
from metaphase.labels.building import (
    PLACED,
    PLACED_NOTE,
    BuildConfig,
    Built,
    build_cohort,
    finish_cohort,
    given_points,
    read_pairs,
)
from metaphase.labels.reference import ReferenceConfig, ReferenceStandardError
from tests.labels.reference.pairs import REGISTRATION
from tests.labels.reference.workspaces import built_workspace, write_manifest

CONFIG = BuildConfig(registration=REGISTRATION)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_workspace(tmp_path_factory.mktemp("cohort"))


def rebuilt(workspace: Path, config: BuildConfig = CONFIG) -> Built:
    return build_cohort(workspace.parent / "manifest.csv", workspace, given_points, config)


def test_a_doubtful_pair_is_taken_only_on_demand(workspace: Path) -> None:
    placed, record = workspace / "01" / PLACED, workspace / "01" / PLACED_NOTE
    before = placed.read_bytes(), record.read_bytes()
    pd.read_parquet(placed).assign(registration="doubtful").to_parquet(placed, index=False)
    described = json.loads(record.read_text())
    described["facts"]["verdict"] |= {"status": "doubtful", "reasons": ["the tissue corresponds in part"]}
    write_note(record, described["made_from"], described["facts"])
    built = rebuilt(workspace)
    assert [(one.status, one.reason) for one in built.failures] == [
        ("doubtful", "the tissue corresponds in part")
    ]
    assert (built.table["cause"] == "doubtful").all()
    assert pd.read_csv(workspace / "manifest.csv").empty
    trusting = rebuilt(workspace, replace(CONFIG, reference=ReferenceConfig(accept_doubtful=True)))
    assert not trusting.failures
    assert trusting.table["accepted"].all()
    assert "despite doubts" in trusting.cases[0].reason
    placed.write_bytes(before[0])
    record.write_bytes(before[1])


@pytest.mark.slow
def test_new_points_are_registered_and_none_is_an_answer(workspace: Path) -> None:
    points = workspace.parent / "01.csv"
    before = points.read_text()
    points.write_text("x,y\n")
    built = rebuilt(workspace)
    assert [(one.status, one.points, bool(one.again)) for one in built.cases] == [("done", 0, True)]
    assert built.table.empty
    assert len(pd.read_csv(workspace / "manifest.csv")) == 1
    assert pd.read_csv(workspace / "reference.csv").empty
    points.write_text(before)
    assert rebuilt(workspace).cases[0].accepted == 8


def test_pairs_are_remembered(workspace: Path) -> None:
    pair = read_pairs(workspace)["01"]
    assert pair.he.path.is_file()
    assert pair.phh3.path.is_file()
    assert (pair.he.mpp, pair.phh3.mpp) == (0.5, 0.5)


def test_cases_that_cannot_name_a_folder_stop_the_build(tmp_path: Path) -> None:
    for name in ("a/b", "..", "review"):
        manifest = write_manifest(tmp_path, [{"case": name, "he": "a.png", "phh3": "b.png"}])
        with pytest.raises(UsageError, match="name"):
            build_cohort(manifest, tmp_path / "w", given_points)
    assert not (tmp_path / "w").exists()


def test_a_folder_without_reference_standard_says_so(tmp_path: Path) -> None:
    with pytest.raises(ReferenceStandardError, match="reference build"):
        finish_cohort(tmp_path)


def test_settings_come_from_tables(tmp_path: Path) -> None:
    config = settings_of(BuildConfig, {"reference": {"min_confidence": 0.8}, "candidates": {"fields": 8}})
    assert (config.reference.min_confidence, config.candidates.fields) == (0.8, 8)
    for wrong in ({"registratoin": {}}, {"visibility": {"reach": 3}}, {"reference": {"min_contrast": -1}}):
        with pytest.raises(UsageError):
            settings_of(BuildConfig, wrong)


@pytest.mark.slow
def test_a_larger_cohort_adds_to_a_smaller_one(workspace: Path, tmp_path: Path) -> None:
    row = pd.read_csv(workspace.parent / "manifest.csv", dtype=str).to_dict("records")[0]
    row |= {name: str(workspace.parent / row[name]) for name in ("he", "phh3", "points")}
    lost = {"case": "lost", "he": "no.png", "phh3": "no.png", "points": "no.csv"}
    manifest = write_manifest(tmp_path, [{**row, "case": "a"}, lost, {**row, "case": "b"}])
    shared, whole = tmp_path / "shared", tmp_path / "whole"
    (tmp_path / "one").mkdir()
    one = write_manifest(tmp_path / "one", [{**row, "case": "b"}])
    build_cohort(one, shared, given_points, CONFIG)
    last = build_cohort(manifest, shared, given_points, CONFIG)
    expected = build_cohort(manifest, whole, given_points, CONFIG)
    assert [one.status for one in last.cases] == ["done", "failed", "done"]
    assert [replace(one, again="") for one in last.cases] == [
        replace(one, again="") for one in expected.cases
    ]
    for name in ("reference.csv", "manifest.csv", "reference.parquet", "errors.log"):
        assert (shared / name).read_bytes().replace(b"shared", b"whole") == (whole / name).read_bytes(), name
