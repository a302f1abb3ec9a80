"""What decides a result is noticed when it changes, and nothing else is done again; routes agree."""

from __future__ import annotations

import gc
import json
import shutil
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tifffile

from metaphase.analysis.cohort import CohortSlide, cohort_slides, named_slides
from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.record import load_result
from metaphase.analysis.run import SlideOutcome, detect_cohort, detect_slide, slide_states
from metaphase.analysis.scoring import count_cohort, count_point, read_cases
from metaphase.analysis.search import SplitSearch, TileSearch
from metaphase.base.errors import MetaphaseError, ModelError, OutputError, SlideError, UsageError
from metaphase.base.stages import silent, stage_states
from metaphase.counting.specimen import CountConfig
from metaphase.detections.files import read_detections
from metaphase.detections.points import OperatingPoint
from metaphase.evaluation.operating_points import save_point
from metaphase.images.tissue.finding import TissueMask, TissueSource, find_tissue, save_tissue
from metaphase.learn.chain import Chain
from metaphase.learn.config import members, run_config, students
from metaphase.learn.experiments import Experiments
from metaphase.learn.run import run_chain, run_table
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.engine import Engine
from metaphase.networks.engine.settings import EngineConfig, PeakConfig
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.contract import Slide
from metaphase.slides.opening import SlideSource, open_slide
from tests.analysis.conftest import tiny_model
from tests.learn.run_samples import TINY, finished_workspace, tiny_config

CPU = EngineConfig(device="cpu")
CONFIG = DetectionConfig(threshold=0.9, tile_px=128)


def ready(model: Path) -> ReadyDetector:
    return ReadyDetector(load_detector([model]), CPU)


def detect(
    he_slide: Path, folder: Path, model: Path, config: DetectionConfig = CONFIG, tissue: str = ""
) -> SlideOutcome:
    slide = CohortSlide("he", SlideSource(he_slide), TissueSource.stated(tissue))
    return detect_slide(slide, folder, ready(model), config)


def done(outcome: SlideOutcome) -> list[str]:
    return [state.stage.name for state in outcome.states if state.status == "done"]


def tune(model: Path, **numbers: float) -> None:
    point = OperatingPoint(name="mitoses", metric="F1", value=0.7, cases=("a",), **numbers)  # type: ignore[arg-type]
    save_point(model.with_suffix(".json"), point)


@pytest.fixture(scope="module")
def finished(he_slide: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A slide that was searched, to be copied."""
    return detect(he_slide, tmp_path_factory.mktemp("finished"), model).folder


@pytest.fixture
def own_model(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "models" / "own.safetensors")


# ---- 1: a threshold tuned into the card


def test_a_threshold_tuned_into_the_card_changes_the_count_without_a_new_search(
    tmp_path: Path, he_slide: Path, own_model: Path
) -> None:
    folder, config = tmp_path / "out", DetectionConfig(tile_px=128)
    first = detect(he_slide, folder, own_model, config)
    search = (folder / "search.parquet").stat().st_mtime_ns
    table = pd.read_parquet(folder / "candidates.parquet")
    delta = float(table["probability"].iloc[len(table) // 3])
    tune(own_model, delta=delta)
    tuned = detect(he_slide, folder, own_model, config)
    assert done(tuned) == ["count", "export", "report"]
    assert tuned.summary["threshold"] == delta != first.summary["threshold"]
    assert tuned.summary["counted"] == int((table["probability"] >= delta).sum())
    assert (folder / "search.parquet").stat().st_mtime_ns == search
    assert detect(he_slide, folder, own_model, config).resumed


def test_how_detections_are_searched_is_part_of_the_card_too(
    tmp_path: Path, he_slide: Path, own_model: Path
) -> None:
    detect(he_slide, tmp_path / "out", own_model)
    tune(own_model, delta=0.5, suppress_um=10.0)
    assert done(detect(he_slide, tmp_path / "out", own_model))[0] == "search"


# ---- 2: a mask edited under its path


def test_a_tissue_mask_edited_under_the_same_path_is_noticed(
    tmp_path: Path, he_slide: Path, model: Path
) -> None:
    with open_slide(he_slide) as slide:
        mask = find_tissue(slide)
    path = save_tissue(mask, tmp_path / "masks", "he").png
    first = detect(he_slide, tmp_path / "out", model, tissue=str(path))
    pixels = mask.mask.copy()
    pixels[:, : pixels.shape[1] // 2] = False
    save_tissue(TissueMask(pixels, mask.mpp, mask.x, mask.y, mask.scale), tmp_path / "masks", "he")
    second = detect(he_slide, tmp_path / "out", model, tissue=str(path))
    assert done(second)[0] == "search"
    assert second.summary["tissue_mm2"] < 0.8 * first.summary["tissue_mm2"]
    with open_slide(he_slide) as slide:
        save_tissue(find_tissue(slide), tmp_path / "elsewhere", "same")
    save_tissue(TissueMask(pixels, mask.mpp, mask.x, mask.y, mask.scale), tmp_path / "elsewhere", "moved")
    moved = detect(he_slide, tmp_path / "out", model, tissue=str(tmp_path / "elsewhere/moved.tissue.png"))
    assert moved.resumed, "the same mask under another name is the same mask"


# ---- 3: what was kept, damaged afterwards


def test_a_damaged_count_or_search_is_made_again(tmp_path: Path, he_slide: Path, model: Path) -> None:
    folder = tmp_path / "out"
    before = detect(he_slide, folder, model).summary
    count = json.loads((folder / "count.json").read_text())
    count["count"] += 1
    (folder / "count.json").write_text(json.dumps(count))
    again = detect(he_slide, folder, model)
    assert (done(again), again.summary) == (["count"], before)
    (folder / "search.parquet").write_bytes((folder / "search.parquet").read_bytes()[:-100])
    again = detect(he_slide, folder, model)
    assert done(again) == ["search"]
    assert again.summary["count"] == before["count"]
    assert detect(he_slide, folder, model).resumed


# ---- 3: what the manifest says


def test_a_result_of_an_earlier_version_is_made_anew_without_a_search(
    tmp_path: Path, he_slide: Path, model: Path, finished: Path
) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    path, search = tmp_path / "summary.json", (tmp_path / "search.parquet").read_bytes()
    before = json.loads(path.read_text())
    path.write_text(json.dumps(before | {"schema": 3}))
    with pytest.raises(MetaphaseError, match=r"schema 3, not 4.*detect again.*nothing is searched again"):
        load_result(tmp_path)
    detect(he_slide, tmp_path, model)
    assert json.loads(path.read_text()) == before
    assert (tmp_path / "search.parquet").read_bytes() == search


def test_the_manifest_states_resolution_and_tissue(tmp_path: Path, he_slide: Path, model: Path) -> None:
    with open_slide(he_slide) as slide:
        mask = find_tissue(slide)
    save_tissue(mask, tmp_path, "mask")
    (tmp_path / "manifest.csv").write_text(
        f"case,he,mpp,tissue\na,{he_slide},0.5,\nb,{he_slide},,mask.tissue.png\nc,{he_slide},,whole\n"
    )
    slides = {slide.name: slide for slide in cohort_slides(tmp_path / "manifest.csv")}
    assert slides["a"].slide.effective_mpp == 0.5
    assert slides["b"].slide.effective_mpp == 0.25
    assert slides["b"].tissue.mask == tmp_path / "mask.tissue.png"
    assert slides["c"].tissue.whole
    batch = detect_cohort([slides["a"]], tmp_path / "out", ready(model), CONFIG)
    assert batch.results["a"].summary["mpp"] == 0.5
    (tmp_path / "bad.csv").write_text(f"case,he\n../escape,{he_slide}\n")
    with pytest.raises(UsageError, match="cannot name a folder"):
        cohort_slides(tmp_path / "bad.csv")


# ---- 4: the test of a run


def test_a_corrected_resolution_is_searched_again_and_another_bootstrap_is_not(tmp_path: Path) -> None:
    chain = Chain(tiny_config(), Path(shutil.copytree(finished_workspace(), tmp_path / "workspace")), "cpu")
    before = {path: path.stat().st_mtime_ns for path in (chain.workspace / "detections").rglob("*.parquet")}
    other = Chain(tiny_config(test={"bootstrap": 77}), chain.workspace, "cpu")
    assert {state.status for state in run_chain(other)} == {"kept"}
    search = SplitSearch(chain.workspace / "detections", chain.config.test.peaks, "cpu")
    models = [chain.model("cnn3")]
    search.search("cnn3", models, chain.slides("test"), silent)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    coarser = [replace(slide, slide=replace(slide.slide, mpp=0.3)) for slide in chain.slides("test")]
    search.search("cnn3", models, coarser, silent)
    changed = [path for path, stamp in before.items() if path.stat().st_mtime_ns != stamp]
    assert {path.stem for path in changed} == {slide.name for slide in coarser}


def test_what_is_tested_on_does_not_concern_what_is_learnt(tmp_path: Path) -> None:
    slides = finished_workspace() / "slides"
    rows = pd.read_csv(slides / "manifest.csv").assign(note="x")
    rows["he"] = [str(slides / name) for name in rows["he"]]
    points = pd.read_parquet(finished_workspace() / "reference.parquet")
    points.to_csv(tmp_path / "reference.csv", index=False)
    tables = {name: values for name, values in TINY.items() if name != "simulate"}
    tables["cohort"] = {"manifest": str(tmp_path / "manifest.csv")}
    tables["reference"] = {"table": str(tmp_path / "reference.csv")}

    def keys(manifest: pd.DataFrame) -> dict[str, str]:
        manifest.to_csv(tmp_path / "manifest.csv", index=False)
        chain = Chain(run_config(tables, tmp_path), tmp_path / "workspace", "cpu")
        return {stage.name: stage.ingredients.key for stage in run_table(chain)}

    def changed(manifest: pd.DataFrame) -> set[str]:
        before, after = keys(rows), keys(manifest)
        return {name for name in after if after[name] != before[name]}

    assert changed(rows.drop(columns="note")) == set()
    on_test = rows.assign(mpp=[0.3 if split == "test" else np.nan for split in rows["split"]])
    assert changed(on_test) == {"slides", "reference", "test"}
    on_train = rows.assign(mpp=[0.3 if split == "train" else np.nan for split in rows["split"]])
    assert changed(on_train) == {"slides", "reference", "candidates"}


# ---- 6: a test slide without tissue


def test_a_slide_without_tissue_is_refused_in_a_run_too(tmp_path: Path) -> None:
    from PIL import Image

    Image.fromarray(np.full((400, 400, 3), 244, np.uint8)).save(tmp_path / "white.png")
    blank = CohortSlide("white", SlideSource(tmp_path / "white.png", 0.25))
    chain = Chain(tiny_config(), finished_workspace(), "cpu")
    search = SplitSearch(tmp_path / "detections", PeakConfig(), "cpu")
    with pytest.raises(SlideError, match=r"white\.png: no tissue was found.*whole"):
        search.search("cnn3", [chain.model("cnn3")], [blank], silent)


def test_a_search_that_is_stopped_goes_on_within_a_slide(tmp_path: Path, he_slide: Path) -> None:
    chain = Chain(tiny_config(), finished_workspace(), "cpu")
    slides, models = (
        [CohortSlide("he", SlideSource(he_slide), TissueSource(whole=True))],
        [chain.model("cnn3")],
    )
    shares: list[float] = []

    def stop(_what: str, done: float, _total: float) -> None:
        shares.append(done)
        if done:
            raise KeyboardInterrupt

    search = SplitSearch(tmp_path / "found", PeakConfig(floor=0.01), "cpu")
    with pytest.raises(KeyboardInterrupt):
        search.search("cnn3", models, slides, stop)
    assert (tmp_path / "found" / "cnn3" / "tiles.journal").is_file()
    assert 0 < shares[-1] <= 1
    ((_, found),) = search.search("cnn3", models, slides, silent).items()
    whole = SplitSearch(tmp_path / "whole", PeakConfig(floor=0.01), "cpu")
    ((_, expected),) = whole.search("cnn3", models, slides, silent).items()
    pd.testing.assert_frame_equal(found, expected)
    assert len(found)


# ---- 7: limits, seeds, memory, areas


def test_the_limit_of_peaks_is_enforced_in_detect(tmp_path: Path, he_slide: Path, model: Path) -> None:
    detector = load_detector([model]).built()
    peaks = PeakConfig(floor=0.01, max_peaks=5)
    with open_slide(he_slide) as slide:
        tissue = TissueSource(whole=True).of(slide)
        search = TileSearch(slide, tissue, Engine(detector.networks, CPU), detector.mpp, peaks, "key", 256)
        with pytest.raises(ModelError, match="more than 5 positions"):
            search.found(tmp_path, "he", None, lambda *_: None).__enter__()


def test_runs_of_different_seeds_share_no_seed() -> None:
    def seeds(seed: int) -> set[int]:
        config = tiny_config(ensemble={"networks": 10, "gamma": 0.04}).with_seed(seed)
        tasks = [*members(config), *students(config)]
        return {config.training.seed + task.seed for task in tasks} | {config.training.seed}

    drawn = [seeds(seed) for seed in range(5)]
    assert len(set.union(*drawn)) == sum(map(len, drawn))
    assert tiny_config().with_seed(0) == tiny_config()


def test_experiments_hold_no_slide_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[weakref.ref[Slide]] = []
    really_open = SlideSource.open

    def remembered(source: SlideSource) -> Slide:
        slide = really_open(source)
        opened.append(weakref.ref(slide))
        return slide

    workspace = Path(shutil.copytree(finished_workspace(), tmp_path / "workspace"))
    monkeypatch.setattr(SlideSource, "open", remembered)
    shutil.rmtree(workspace / "detections")
    job = Experiments(Chain(tiny_config(), workspace, "cpu"))
    slides = [*job.chain.slides("validation"), *job.chain.slides("test")]
    job.chain.split_search.search("cnn3", [job.chain.model("cnn3")], slides, silent)
    gc.collect()
    assert len(job.chain.split_search.tissues) == len(slides)
    assert len(opened) == 2 * len(slides), "once for its tissue, once to be searched"
    assert not any(ref() for ref in opened)


@pytest.mark.parametrize(("width", "height"), [(70, 53), (352, 352), (1001, 2085), (5003, 1777)])
def test_the_area_of_a_whole_image_is_its_area(width: int, height: int) -> None:
    slide = ArraySlide(np.zeros((height, width, 3), np.uint8), 0.25)
    area = TissueSource(whole=True).of(slide).area_mm2
    assert area == pytest.approx(width * height * 0.25**2 / 1e6, rel=0.002)


# ---- 8: thetas, formats and reports cost no search


@pytest.mark.parametrize(
    ("changed", "stages"),
    [
        ({"theta1": 3.0}, ["count", "export", "report"]),
        ({"counting": CountConfig(seed=10)}, ["count", "export", "report"]),
        ({"threshold": 0.8}, ["count", "export", "report"]),
        ({"formats": ("qupath", "csv", "asap")}, ["export"]),
        ({"tile_px": 256}, []),
        ({"any_stain": True}, []),
        ({"allow_damage": True}, []),
        ({"floor": 0.2}, ["search", "look", "review", "count", "export", "report"]),
        ({"probability_map": True}, ["search", "look", "review", "count", "export", "report"]),
    ],
)
def test_each_stage_is_done_again_for_its_own_reasons_only(
    tmp_path: Path, he_slide: Path, model: Path, finished: Path, changed: dict[str, Any], stages: list[str]
) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    first = load_result(tmp_path)
    before = pd.read_parquet(tmp_path / "search.parquet")
    config = replace(CONFIG, **changed)
    slide = CohortSlide("he", SlideSource(he_slide))
    planned = slide_states(slide, tmp_path, ready(model), config)
    outcome = detect(he_slide, tmp_path, model, config)
    if stages[:1] != ["search"]:
        assert done(outcome) == stages == [s.stage.name for s in planned if s.status != "kept"]
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "search.parquet"), before)
        assert outcome.summary["seconds"] == first.summary["seconds"], "those of the search"
    else:
        assert done(outcome)[0] == "search"
    assert all(state.reason for state in planned if state.status != "kept")


@pytest.mark.slow
def test_no_file_of_an_earlier_run_speaks_of_another_operating_point(
    tmp_path: Path, he_slide: Path, model: Path
) -> None:
    maps = replace(CONFIG, probability_map=True)
    first = detect(he_slide, tmp_path, model, maps)
    lower = detect(he_slide, tmp_path, model, replace(CONFIG, threshold=0.5, formats=("csv",)))
    assert lower.summary["counted"] > first.summary["counted"]
    for name in ("detections.geojson", "detections.csv", "detections.parquet"):
        assert len(read_detections(tmp_path / name).table) == lower.summary["counted"]
    assert (tmp_path / "probability.tif").exists(), "the same search"
    other = detect(he_slide, tmp_path, model, replace(CONFIG, floor=0.2))
    assert done(other)[0] == "search"
    assert not (tmp_path / "probability.tif").exists()


def test_a_result_says_why_it_was_done_again(tmp_path: Path, he_slide: Path, model: Path) -> None:
    detect(he_slide, tmp_path, model)
    outcome = detect(he_slide, tmp_path, model, replace(CONFIG, theta1=3.0))
    said = [state.explanation for state in outcome.states]
    assert said[0] == "search: kept"
    assert said[1:3] == ["look: kept", "review: kept"]
    assert said[3] == "count: done (config.theta1 was 6 and is 3)"
    assert said[4].startswith("export: done (points.count.theta1 was 6 and is 3")
    assert said[5].startswith("report: done (points.count.theta1 was 6 and is 3")
    assert said[5].endswith("count is made again)")


def test_a_slide_whose_middle_changed_is_searched_again(tmp_path: Path, he_slide: Path, model: Path) -> None:
    own = tmp_path / "own.tif"
    shutil.copyfile(he_slide, own)
    detect(own, tmp_path / "out", model)
    data = bytearray(own.read_bytes())
    with open_slide(own) as slide:
        assert slide.info.backend == "tiff"
    data[len(data) // 2 : len(data) // 2 + 4] = b"\1\2\3\4"
    time.sleep(0.01)
    own.write_bytes(data)
    slide = CohortSlide("he", SlideSource(own))
    states = slide_states(slide, tmp_path / "out", ready(model), CONFIG)
    assert states[0].status == "waiting"
    assert "slide.content has changed" in states[0].reason


def test_a_copy_of_the_slide_under_another_name_is_the_same_slide(
    tmp_path: Path, he_slide: Path, model: Path
) -> None:
    detect(he_slide, tmp_path / "out", model)
    shutil.copyfile(he_slide, tmp_path / "moved.tif")
    assert detect(tmp_path / "moved.tif", tmp_path / "out", model).resumed


def test_the_stages_of_a_run_say_why_they_wait() -> None:
    chain = Chain(tiny_config(sets={"hard_negatives": 61}), finished_workspace(), "cpu")
    states = {state.stage.name: state for state in stage_states(run_table(chain), chain.workspace)}
    assert states["difficult sets"].reason == "sets.hard_negatives was 60 and is 61"
    assert states["cnn4-1"].reason == "difficult sets is made again"
    assert states["easy set"].status == "kept"


class Killed(BaseException):
    pass


def stopped_after(count: int) -> Callable[[float, float], None]:
    seen: list[float] = []

    def stop(done: float, total: float) -> None:
        seen.append(done)
        if len(seen) == count:
            raise Killed

    return stop


@pytest.mark.slow
def test_a_map_asked_for_when_going_on_has_no_holes(tmp_path: Path, he_slide: Path, model: Path) -> None:
    slide = CohortSlide("he", SlideSource(he_slide), TissueSource(whole=True))
    maps = replace(CONFIG, probability_map=True)
    detect_slide(slide, tmp_path / "whole", ready(model), maps)
    wanted = tifffile.imread(tmp_path / "whole" / "probability.tif")
    for first in (CONFIG, maps):
        folder = tmp_path / f"stopped-{first.probability_map}"
        with pytest.raises(Killed):
            detect_slide(slide, folder, ready(model), first, progress=stopped_after(5))
        detect_slide(slide, folder, ready(model), maps)
        np.testing.assert_array_equal(tifffile.imread(folder / "probability.tif"), wanted)
        assert not list(folder.glob(".probability*"))


def test_a_search_is_not_lost_to_a_full_disk_at_its_end(
    tmp_path: Path, he_slide: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OutputError("cannot write (No space left on device)")

    with monkeypatch.context() as patch:
        patch.setattr("metaphase.analysis.run.save_tissue", full)
        with pytest.raises(OutputError, match="No space"):
            detect(he_slide, tmp_path, model)
    assert (tmp_path / "tiles.journal").stat().st_size > 500
    searched: list[float] = []
    slide = CohortSlide("he", SlideSource(he_slide))
    detect_slide(slide, tmp_path, ready(model), CONFIG, progress=lambda done, _: searched.append(done))
    assert not searched, "every tile was in the journal"


def test_what_the_card_says_of_colours_reaches_the_report_without_a_new_search(
    tmp_path: Path, he_slide: Path, own_model: Path
) -> None:
    detect(he_slide, tmp_path / "out", own_model)
    card = json.loads(own_model.with_suffix(".json").read_text())
    own_model.with_suffix(".json").write_text(json.dumps(card | {"optical_density": [0.01, 0.01, 0.01]}))
    outcome = detect(he_slide, tmp_path / "out", own_model)
    assert done(outcome) == ["report"]
    assert "far-stain" in [warning.code for warning in outcome.warnings]
    assert "unlike that of the training slides" in (tmp_path / "out" / "report.html").read_text()


# ---- 9: every route counts at the same operating point


def test_score_counts_what_detect_counted(tmp_path: Path, he_slide: Path, own_model: Path) -> None:
    tune(own_model, delta=0.62)
    save_point(own_model.with_suffix(".json"), OperatingPoint(name="count", delta=0.62, prior={}))
    slides = list(named_slides([he_slide]).values())
    batch = detect_cohort(slides, tmp_path, ready(own_model), DetectionConfig(tile_px=128))
    summary = batch.results["he"].summary
    for table in (tmp_path / "candidates.parquet", tmp_path / "he" / "candidates.parquet"):
        point = count_point([table])
        assert point.delta == 0.62
        assert "tiny" in point.source
        cases = read_cases([table], slide=he_slide)
        (counts,) = count_cohort(cases, [point]).results.values()
        assert counts[0].count == summary["count"]
        assert counts[0].grade == summary["grade"]
        assert counts[0].likely is not None
        assert counts[0].likely.model_dump(mode="json") == summary["likely"]
        assert counts[0].to_look_at == summary["to_look_at"]
        table = table.with_name("detections.parquet")
        (counts,) = count_cohort(read_cases([table], slide=he_slide), [point]).results.values()
        assert (counts[0].count, counts[0].likely) == (summary["count"], None)
        assert counts[0].no_interval == "detections below 0.62 were not kept"
    counted = json.loads((tmp_path / "he" / "count.json").read_text())
    assert counted["count"] == summary["count"]
    assert count_point([tmp_path / "he" / "detections.geojson"]) == point
    moved = Path(shutil.copy(tmp_path / "he" / "detections.geojson", tmp_path / "he.geojson"))
    assert "the paper's" in count_point([moved]).source


def test_score_sees_the_tissue_and_the_scale_that_detect_saw(
    tmp_path: Path, he_slide: Path, model: Path
) -> None:
    (tmp_path / "manifest.csv").write_text(f"case,he,mpp,tissue\na,{he_slide},0.25,whole\n")
    slides = cohort_slides(tmp_path / "manifest.csv", mpp=0.5)
    outcome = detect_cohort(slides, tmp_path / "out", ready(model), CONFIG).results["a"]
    table = tmp_path / "out" / "candidates.parquet"
    for options in ({"manifest": tmp_path / "manifest.csv", "mpp": 0.5}, {"slide": he_slide}):
        (case,) = read_cases([table], **options)
        assert case.mpp == outcome.summary["mpp"] == 0.25
        ((count,),) = count_cohort([case], [count_point([table])]).results.values()
        assert count.area_mm2 == outcome.summary["tissue_mm2"]
        assert count.count == outcome.summary["count"]


def test_one_mask_for_many_slides_is_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "a.tif", tmp_path / "b.tif"]
    with pytest.raises(UsageError, match="one tissue mask is given for 2 slides"):
        named_slides(paths, tissue="mask.png")
    assert all(slide.tissue.whole for slide in named_slides(paths, tissue="whole").values())


def test_slides_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a/1/he.tif", "b/1/he.tif", "b/2/he.tif", "c.tif")]
    assert list(named_slides(paths)) == ["a-1-he", "b-1-he", "2-he", "c"]
    assert [one.slide.path for one in named_slides(paths).values()] == paths
    with pytest.raises(UsageError, match="would overwrite"):
        named_slides([paths[0], paths[0]])


def test_tables_of_different_operating_points_are_not_counted_together(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": [1.0], "y": [1.0], "probability": [0.9]})
    table.to_parquet(tmp_path / "none.parquet")
    for name, delta in (("a", 0.5), ("b", 0.7)):
        table.attrs = {"operating_points": {"model": name, "count": {"delta": delta}}}
        table.to_parquet(tmp_path / f"{name}.parquet")
    one, other, none = (tmp_path / f"{name}.parquet" for name in ("a", "b", "none"))
    for files in ([one, other], [one, none], [tmp_path]):
        with pytest.raises(UsageError, match=r"different operating points \(.*0\.5 of the model a"):
            count_point(files)
    (tmp_path / "folder").mkdir()
    shutil.copy(one, tmp_path / "folder")
    assert count_point([tmp_path / "folder"]).delta == 0.5
    table.to_csv(tmp_path / "folder" / "other.csv", index=False)
    with pytest.raises(UsageError, match="different operating points"):
        count_point([tmp_path / "folder"])
    assert count_point([none]).delta == 0.8
