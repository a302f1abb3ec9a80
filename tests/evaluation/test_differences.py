"""Several sources of detections on the same slides, and the page that shows where they differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from metaphase.base.errors import UsageError
from metaphase.base.tables import TableError, write_table
from metaphase.detections.files import convert_detections
from metaphase.evaluation.differences import FALSE, compare_sources
from metaphase.evaluation.marks import MatchingConfig
from metaphase.evaluation.metrics import BootstrapConfig
from metaphase.evaluation.mitoses import evaluate_mitoses
from metaphase.reports.evaluation import write_sources_report
from tests.cli.running import run
from tests.evaluation.cohorts import MPP, write_cohort
from tests.slides.images import blob_image

FEW = BootstrapConfig(samples=200)


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    """Truth, detections, and a second program's: half of the first ones, moved by 2 um, and others."""
    folder = write_cohort(tmp_path / "data")
    first = pd.read_csv(folder / "predictions.csv")
    second = first.sample(frac=0.5, random_state=1)
    second[["x", "y"]] += 2 / MPP
    write_table(folder / "second.csv", second)
    return folder


def test_each_position_once_with_whoever_finds_it(cohort: Path) -> None:
    sources = (cohort / "predictions.csv", cohort / "second.csv")
    result = compare_sources(cohort, sources, thresholds=[0.4, 0.6], bootstrap=FEW)
    found, label = result.found_by(), result.positions["label"]
    for source, path, threshold in zip(result.sources, sources, (0.4, 0.6), strict=True):
        alone = evaluate_mitoses(
            cohort, path, matching=MatchingConfig(threshold=threshold), bootstrap=FEW
        ).overall
        assert source.metrics == alone
        has = found.map(lambda names, name=source.name: name in names)
        assert (has & (label == "mitosis")).sum() == alone.true
        assert (has & (label == FALSE)).sum() == alone.false
    assert (label == "mitosis").sum() == result.sources[0].metrics.truths
    both = found.map(len) == 2
    shared = (both & (label == FALSE)).sum()  # the same wrong nucleus, 2 um apart, is one position
    assert 5 < shared == result.sources[1].metrics.false
    positions = result.positions
    assert (positions["predictions: probability"].dropna() >= 0.4).all()
    assert (positions["second: probability"].dropna() >= 0.6).all()
    equal = positions.loc[both, ["predictions: probability", "second: probability"]].to_numpy()
    assert np.mean(equal[:, 0] == equal[:, 1]) > 0.95


def test_what_sources_have_in_common_cancels_out(cohort: Path) -> None:
    write_table(cohort / "copy.csv", pd.read_csv(cohort / "predictions.csv"))
    sources = [cohort / name for name in ("predictions.csv", "copy.csv", "second.csv")]
    result = compare_sources(cohort, sources, thresholds=[0.5], bootstrap=FEW)
    same = result.differences["predictions", "copy"]
    assert {(one.value, one.low, one.high) for one in same.values()} == {(0, 0, 0)}
    apart, (first, _, third) = result.differences["predictions", "second"]["f1"], result.sources
    assert apart.value == first.metrics.f1.value - third.metrics.f1.value
    width = first.metrics.f1.high - first.metrics.f1.low + third.metrics.f1.high - third.metrics.f1.low
    assert apart.low < apart.value < apart.high
    assert apart.high - apart.low < width


def test_the_page_shows_where_they_differ(cohort: Path, tmp_path: Path) -> None:
    (cohort / "slides").mkdir()
    manifest = pd.read_csv(cohort / "manifest.csv")
    for case in manifest["case"][:2]:
        Image.fromarray(blob_image(400, 300)).save(cohort / "slides" / f"{case}.png")
    manifest["he"] = [f"slides/{case}.png" for case in manifest["case"]]
    write_table(cohort / "manifest.csv", manifest.assign(width=400, height=300))
    inside = {name: pd.read_csv(cohort / f"{name}.csv") for name in ("truth", "predictions", "second")}
    for name, table in inside.items():
        write_table(cohort / f"{name}.csv", table.assign(x=table["x"] / 50, y=table["y"] / 67))
    convert_detections([cohort / "second.csv"], cohort / "other", "tiatoolbox")
    done = run(
        "evaluate", "compare", cohort / "predictions.csv", cohort / "other", "--labels", cohort, "-o",
        tmp_path / "out", "--threshold", "0.5", "--set", "samples=50",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "predictions less other" in done.stdout
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    for heading in (
        "Mitoses missed by all",
        "Mitoses found by predictions alone",
        "False positives found by both",
    ):
        assert heading in page
    assert page.count("data:image/jpeg") > 20
    told = json.loads((tmp_path / "out" / "metrics.json").read_text())["results"]
    assert set(told["sources"]) == {"predictions", "other"}
    assert told["differences"]["predictions less other"]["f1"]["low"] is not None


def test_what_makes_no_sense_is_refused(cohort: Path) -> None:
    one, two = cohort / "predictions.csv", cohort / "second.csv"
    with pytest.raises(UsageError, match="nothing to be compared with"):
        compare_sources(cohort, [one])
    with pytest.raises(UsageError, match="3 thresholds for 2 sources"):
        compare_sources(cohort, [one, two], thresholds=[0.1, 0.2, 0.3])
    with pytest.raises(UsageError, match="the threshold is 50"):
        compare_sources(cohort, [one, two], thresholds=[50])
    with pytest.raises(UsageError, match="is named twice"):
        compare_sources(cohort, [one, one])
    write_table(cohort / "short.csv", pd.read_csv(two).query("slide != 's03'"))
    with pytest.raises(TableError, match=r"no predictions for 1 of 12 slides: s03.*missing_as_empty=true"):
        compare_sources(cohort, [one, cohort / "short.csv"])
    taken = compare_sources(
        cohort, [one, cohort / "short.csv"], matching=MatchingConfig(missing_as_empty=True), bootstrap=FEW
    )
    assert "short: 1 slides without predictions count as empty: s03" in [one.text for one in taken.warnings]
    write_sources_report(taken, cohort / "out")  # slides that are not there have no pictures
    assert "data:image/jpeg" not in (cohort / "out" / "index.html").read_text(encoding="utf-8")
