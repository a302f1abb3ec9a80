"""A laboratory is calibrated: drawn, answered, fitted, and its slides counted by the profile."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from metaphase.analysis.cohort import CohortSlide
from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.record import load_result
from metaphase.analysis.review import log_of
from metaphase.analysis.run import SlideOutcome, detect_slide
from metaphase.analysis.scoring import count_cohort, count_points, read_cases, site_for
from metaphase.analysis.slide import apply_answers
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.tables import read_table
from metaphase.cli.main import app
from metaphase.counting.sites import SampleConfig, SiteProfile, load_profile, save_profile
from metaphase.images.tissue.finding import TissueSource
from metaphase.labels.observers.positions import position_name
from metaphase.labels.observers.project import load_project
from metaphase.labels.observers.store import AnswerStore
from metaphase.learn.calibration import DETECTIONS, SAMPLE, draw_sample, fit_profile
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.settings import EngineConfig
from metaphase.slides.opening import SlideSource
from tests.analysis.conftest import tiny_model, with_prior

SAMPLED = SampleConfig(answers=40)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector of which it is known how it errs."""
    return with_prior(tiny_model(tmp_path_factory.mktemp("models") / "tiny.safetensors"))


def detect(slide: Path, folder: Path, model: Path, name: str = "he", **settings: object) -> SlideOutcome:
    ready = ReadyDetector(load_detector([model]), EngineConfig(device="cpu"))
    config = DetectionConfig(tile_px=256, **settings)  # type: ignore[arg-type]
    return detect_slide(
        CohortSlide(name, SlideSource(slide), TissueSource(whole=True)), folder / name, ready, config
    )


def answers_of(folder: Path) -> pd.DataFrame:
    """Two thirds of the detections are mitoses."""
    items = read_table(folder / DETECTIONS / "items.csv")["item"]
    said = ["not" if number % 3 == 0 else "mitosis" for number in range(len(items))]
    return pd.DataFrame({"item": items, "answer": said, "observer": "Anna"})


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, he_slide: Path, model: Path) -> Path:
    folder = tmp_path_factory.mktemp("searched")
    for name in ("a", "b"):
        detect(he_slide, folder, model, name)
    return folder


@pytest.fixture
def results(tmp_path: Path, searched: Path) -> Path:
    return shutil.copytree(searched, tmp_path / "results")


@pytest.fixture(scope="module")
def fitted(searched: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample that was answered, and its profile."""
    folder = tmp_path_factory.mktemp("fitted")
    draw_sample([searched], folder / "lab", SAMPLED)
    answers_of(folder / "lab").to_csv(folder / "answers.csv", index=False)
    profile = fit_profile(folder / "lab", "ours", answers=folder / "answers.csv")
    save_profile(folder / "site.json", profile)
    return folder


@pytest.fixture
def profile(tmp_path: Path, fitted: Path) -> Path:
    shutil.copytree(fitted, tmp_path, dirs_exist_ok=True)
    return tmp_path / "site.json"


def test_a_sample_covers_all_probabilities_and_tells_how_it_was_drawn(tmp_path: Path, results: Path) -> None:
    slides, detections = draw_sample([results], tmp_path / "lab", SAMPLED)
    sample = read_table(tmp_path / "lab" / SAMPLE)
    every = pd.concat([read_table(results / name / "candidates.parquet") for name in ("a", "b")])
    assert len(sample) == len(every)
    assert (slides, detections) == (2, int((sample["item"] != "").sum()))
    assert sample["inclusion"].sum() == pytest.approx(detections)
    asked = sample[sample["item"] != ""]
    assert set(asked["stratum"]) == set(sample["stratum"])
    design = sample.attrs["design"]
    assert [row["detections"] for row in design["strata"]] == sample.groupby("stratum").size().tolist()
    items = read_table(tmp_path / "lab" / DETECTIONS / "items.csv")
    assert "probability" not in items.columns
    assert not load_project(tmp_path / "lab" / DETECTIONS).missing_slides()
    assert draw_sample([results / "a", results / "b"], tmp_path / "again", SAMPLED) == (slides, detections)
    with pytest.raises(MetaphaseError, match="already holds a calibration"):
        draw_sample([results], tmp_path / "lab")


def test_answers_of_the_page_and_of_a_table_make_the_same_profile(
    tmp_path: Path, results: Path, profile: Path
) -> None:
    listed = load_profile(profile)
    described = answers_of(tmp_path / "lab")
    with AnswerStore(load_project(tmp_path / "lab" / DETECTIONS)) as store:
        for row in described.to_dict("records"):
            store.record("Anna", row["item"], row["answer"])
    stored = fit_profile(tmp_path / "lab", "ours", made=listed.made)
    assert stored == listed
    assert stored.observers == ("Anna",)
    assert stored.answers == len(described)
    at = stored.precision["count"]
    assert 0 <= at.low <= at.value <= at.high <= 1


def test_a_profile_redoes_the_count_and_not_the_search(
    tmp_path: Path, results: Path, he_slide: Path, model: Path, profile: Path
) -> None:
    site, before = load_profile(profile), load_result(results / "a").record
    outcome = detect(he_slide, results, model, "a", site=site)
    assert [state.status for state in outcome.states] == [*["kept"] * 3, *["done"] * 3]
    record = outcome.record
    assert record.likely is not None
    assert before.likely is not None
    elsewhere = site.answers - len(site.answered["a"])
    assert (record.count, record.likely.site_answers) == (before.count, elsewhere)
    assert record.likely.answers > 0, "what was asked about on the slide itself"
    assert before.likely.site_answers == before.likely.answers == 0
    assert record.likely.interval != before.likely.interval
    assert outcome.summary["operating_points"]["site"].startswith("ours, ")
    assert f"{elsewhere} answers of the laboratory" in (results / "a" / "report.html").read_text()
    assert detect(he_slide, results, model, "a", site=site).resumed
    unlike = site.model_copy(update={"sure": (30, 3)})
    other = detect(he_slide, results, model, "a", site=unlike)
    assert other.states[0].status == "kept"
    assert other.record.likely is None
    assert "the model does not fit" in other.record.no_interval
    table = results / "a" / "candidates.parquet"
    points = count_points([table])
    counted = count_cohort(read_cases([table]), points, site=site_for(profile, [table])).results["a"][0]
    assert counted.likely == record.likely


def test_a_review_changes_nothing_about_the_calibration(tmp_path: Path, results: Path) -> None:
    """The model's own probabilities are asked about, whatever people said of its detections."""
    draw_sample([results], tmp_path / "before", SAMPLED)
    table = load_result(results / "a").candidates
    with log_of(load_result(results / "a")) as log:
        for row, said in enumerate(("mitosis", "not", "unsure", "moved 3.0 4.0")):
            log.record("Anna", position_name(table["x"][row], table["y"][row]), said)
        log.record("Anna", position_name(77.0, 99.0), "mitosis")
    apply_answers(results / "a")
    assert read_table(results / "a" / "candidates.parquet")["probability"].max() == 1
    draw_sample([results], tmp_path / "after", SAMPLED)
    before, after = (read_table(tmp_path / name / SAMPLE) for name in ("before", "after"))
    pd.testing.assert_frame_equal(before, after)
    assert before.attrs == after.attrs
    answers_of(tmp_path / "before").to_csv(tmp_path / "answers.csv", index=False)
    made = [
        fit_profile(tmp_path / name, "ours", answers=tmp_path / "answers.csv") for name in ("before", "after")
    ]
    assert made[0] == made[1]


def test_a_profile_of_another_model_or_search_is_refused(
    tmp_path: Path, results: Path, he_slide: Path, model: Path, profile: Path
) -> None:
    site = load_profile(profile)
    other = tiny_model(tmp_path / "other.safetensors", seed=3)
    with pytest.raises(UsageError, match="the profile is for the model tiny"):
        detect(he_slide, tmp_path / "out", other, site=site)
    with pytest.raises(UsageError, match="peaks"):
        detect(he_slide, tmp_path / "out", model, site=site, floor=0.2)
    detect(he_slide, tmp_path / "out", with_prior(other))
    with pytest.raises(UsageError, match="searched with different networks"):
        draw_sample([results / "a", tmp_path / "out"], tmp_path / "mixed")
    with pytest.raises(UsageError, match="the profile is for"):
        site_for(profile, [tmp_path / "out" / "he" / "candidates.parquet"])


def test_wrong_answers_and_files_are_named(tmp_path: Path, results: Path, profile: Path) -> None:
    for change, described in (({"item": "nobody"}, "not drawn: nobody"), ({"answer": "perhaps"}, "perhaps")):
        answers_of(tmp_path / "lab").assign(**change).to_csv(tmp_path / "odd.csv", index=False)
        with pytest.raises(MetaphaseError, match=described):
            fit_profile(tmp_path / "lab", answers=tmp_path / "odd.csv")
    answers_of(tmp_path / "lab").head(5).to_csv(tmp_path / "few.csv", index=False)
    with pytest.raises(UsageError, match="detections with an answer: 5"):
        fit_profile(tmp_path / "lab", answers=tmp_path / "few.csv")
    with pytest.raises(UsageError, match="holds no results"):
        draw_sample([tmp_path / "lab"], tmp_path / "none")
    broken = json.loads(profile.read_text()) | {"answers": "many"}
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    with pytest.raises(MetaphaseError, match="not a laboratory's profile"):
        load_profile(tmp_path / "broken.json")
    assert isinstance(load_profile(profile), SiteProfile)


def test_the_majority_of_observers_counts_and_what_is_open_says_nothing(
    tmp_path: Path, results: Path
) -> None:
    draw_sample([results], tmp_path / "lab", SAMPLED)
    described = answers_of(tmp_path / "lab")
    other = described.assign(
        observer="Bert", answer=described["answer"].map({"not": "mitosis", "mitosis": "artefact"})
    )
    third = described.assign(observer="Cleo")
    pd.concat([described, other.assign(observer="Anna")]).to_csv(tmp_path / "both.csv", index=False)
    with pytest.raises(MetaphaseError, match=r"two answers to the same detection: .*Keep the one"):
        fit_profile(tmp_path / "lab", answers=tmp_path / "both.csv")  # they were averaged
    pd.concat([described, other, third]).to_csv(tmp_path / "three.csv", index=False)
    described.to_csv(tmp_path / "one.csv", index=False)
    described.assign(answer=described["answer"].where(described.index < 20, "unsure")).to_csv(
        tmp_path / "open.csv", index=False
    )
    three, one, left = (
        fit_profile(tmp_path / "lab", answers=tmp_path / f"{name}.csv") for name in ("three", "one", "open")
    )
    assert three.observers == ("Anna", "Bert", "Cleo")
    assert three.shapes == one.shapes
    assert (one.answers, left.answers) == (len(described), 20)


def test_a_model_of_which_nothing_is_known_cannot_be_calibrated(tmp_path: Path, he_slide: Path) -> None:
    detect(he_slide, tmp_path / "out", tiny_model(tmp_path / "bare.safetensors"))
    with pytest.raises(UsageError, match="nothing is known of how the model tiny errs"):
        draw_sample([tmp_path / "out"], tmp_path / "lab")


def test_the_commands_lead_from_results_to_a_profile(tmp_path: Path, results: Path) -> None:
    lab, site = tmp_path / "lab", tmp_path / "site.json"
    asked = ("--answers", "40")
    done = CliRunner().invoke(app, ["calibrate", "draw", str(results), "-o", str(lab), *asked])
    assert done.exit_code == 0, done.output
    assert f"slides: 2, detections: {len(answers_of(lab))}. " in done.stdout
    answers_of(lab).to_csv(tmp_path / "answers.csv", index=False)
    fit = ["calibrate", "fit", str(lab), "-o", str(site), "--answers", str(tmp_path / "answers.csv")]
    done = CliRunner().invoke(app, fit)
    assert done.exit_code == 0, done.output
    assert "precision at the threshold for count" in done.stdout
    described = json.loads(CliRunner().invoke(app, [*fit, "--json"]).stdout)
    assert described["answers"] == load_profile(site).answers
    assert "shapes" not in described


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("shapes", "a"), [0.0, 1.0]),
        (("shapes", "a", 0), "0.5"),
        (("error",), {"missed": 1.0, "false_alarms": 0.0}),
        (("sure",), [3]),
        (("deltas",), {"mitoses": 0.5}),
        (("area_mm2",), True),
        (("answers",), 10**400),
    ],
)
def test_a_profile_of_which_no_count_can_be_made_is_refused(
    tmp_path: Path, profile: Path, where: tuple[str, ...], value: Any
) -> None:
    content = json.loads(profile.read_bytes())
    parent = content
    for step in where[:-1]:
        parent = parent[step]
    parent[where[-1]] = value
    (tmp_path / "odd.json").write_text(json.dumps(content))
    with pytest.raises(MetaphaseError, match="not a laboratory's profile"):
        load_profile(tmp_path / "odd.json")
