"""`metaphase run`: the whole chain with its test, and what came of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.analysis.search import SlideSearched, SplitSearch
from metaphase.base.files import write_text
from metaphase.base.foreign import read_json
from metaphase.base.stages import Facts, Report, Stage, States, Watch, run_stages, silent, stage
from metaphase.base.tables import TableError
from metaphase.counting.clinical import proliferation_score
from metaphase.counting.specimen import CountConfig, specimen
from metaphase.detections.points import OperatingPoint, plain_point, points_of
from metaphase.evaluation.metrics import curve, thin
from metaphase.evaluation.operating_points import Found, bench_of, measure, measure_at, save_point
from metaphase.evaluation.tuning import COUNT_PARTS, count_point_of
from metaphase.learn.chain import DETECTIONS, Chain, RunSource, data_stages, ensemble_stages, source_of
from metaphase.learn.config import (
    CNN3,
    ENSEMBLE,
    EvaluationSection,
    RunConfig,
    members,
    student_name,
    students,
)
from metaphase.learn.delivery import dense_stages
from metaphase.learn.dense import DenseChain, pair_files
from metaphase.networks.architectures import parameter_count
from metaphase.networks.cards import Identity, card_of, named_model, parse_card
from metaphase.networks.checkpoints import load_model

RESULTS = "results.json"
COUNTED_AT = 100
"""Thresholds, about, that are tried for the point `count`."""


def run_chain(
    chain: Chain, *, report: Report = silent, watch: Watch | None = None, at_once: int = 1
) -> States:
    """Do what is left of the chain from manifest to CNN5 and its test; `results.json` holds the test."""
    return run_stages(run_table(chain), chain.workspace, report=report, watch=watch, at_once=at_once)


def chain_of(config: RunConfig, workspace: Path, device: str | None = None) -> Chain:
    """The chain of a run's method."""
    kind = DenseChain if config.training.method == "dense" else Chain
    return kind(config, workspace, device)


def delivered_model(chain: Chain) -> Path:
    """The model that comes out of a run: the pair, or a CNN5."""
    if isinstance(chain, DenseChain):
        return chain.delivered
    gamma = chain.config.students.delivered(patch_f1(chain))
    return chain.model(student_name(gamma))


def patch_f1(chain: Chain) -> dict[float, float]:
    """F1 of each finished CNN5, by width, on the validation patches, as its card says it."""
    cards = {task.gamma: chain.model(task.name).with_suffix(".json") for task in students(chain.config)}
    points = {
        gamma: parse_card(path).thresholds.get("patches") for gamma, path in cards.items() if path.is_file()
    }
    return {gamma: point.value or 0.0 for gamma, point in points.items() if point is not None}


def run_table(chain: Chain) -> list[Stage]:
    """All stages of a run, in order."""
    config = chain.config
    if isinstance(chain, DenseChain):
        beside = card_of(chain.dense.beside).identities if chain.dense.beside else ()
        source = source_of(config, ("test",))
        return [*dense_stages(chain), test_pair(chain, source=source, test=config.test, beside=beside)]
    networks = tuple(dict.fromkeys(name for names in answers(config).values() for name in names))
    test = test_networks(chain, test=config.test, source=source_of(config, ("validation", "test")))
    return [*data_stages(chain), *ensemble_stages(chain), replace(test, reads=networks)]


@stage(
    "test",
    "detection on test slides with the delivered pair, F1 by laboratory",
    reads=("pair",),
    writes=(RESULTS,),
    uses=(SlideSearched,),
    sealed=True,
)
def test_pair(
    chain: DenseChain,
    report: Report,
    *,
    source: RunSource,
    test: EvaluationSection,
    beside: tuple[Identity, ...],
) -> Facts:
    """Search the test slides as `metaphase detect` does, at the thresholds of the models' cards."""
    bench = bench_of(chain.cohort, chain.reference, "test", test.matching)
    models = {chain.config.card.name: chain.delivered}
    if chain.dense.beside:
        models[f"{Path(chain.dense.beside).stem} (beside)"] = named_model(chain.dense.beside)
    networks = {}
    for name, model in models.items():
        points = card_of(model).thresholds
        point, shared = points["mitoses"], points_of(points)
        peaks = replace(test.peaks, suppress_um=shared.suppress_um, smooth_um=shared.smooth_um)
        search = SplitSearch(chain.workspace / DETECTIONS, peaks, chain.device)
        marked = bench.mark(search.search(name, [model], chain.slides("test"), report))
        reached = point.value if point.value is not None else math.nan
        values = measure_at(point.delta, reached, marked, bench.centres())
        sizes = [parameter_count(load_model(path)[0]) for path in pair_files(model)]
        networks[name] = values | {"parameters": sum(sizes)}
    _write_results(chain, networks)
    return {"models": len(networks), "test slides": len(bench.cohort.cases)}


def read_results(workspace: str | Path) -> dict[str, Any]:
    """Measured values of each network; empty where the test has not run."""
    path = Path(workspace) / RESULTS
    if not path.is_file():
        return {}
    return read_json(path, "holds no results", next_step="run it again, which tests the networks again")


def _write_results(chain: Chain, networks: dict[str, Any]) -> None:
    """Note the measured values, and the laboratories of the training slides: all others are held out."""
    content = {"networks": networks, "training_centres": sorted(chain.homes)}
    write_text(chain.workspace / RESULTS, json.dumps(content) + "\n")


def answers(config: RunConfig) -> dict[str, tuple[str, ...]]:
    """What is tested, and the networks whose mean it is: CNN3, the ensemble and every CNN5."""
    names = tuple(task.name for task in members(config))
    single = {task.name: (task.name,) for task in students(config)}
    return {CNN3: (CNN3,), ENSEMBLE: names, **single}


@stage(
    "test",
    "detection on validation and test slides, F1 by laboratory",
    writes=(RESULTS,),
    uses=(SlideSearched,),
    sealed=True,
)
def test_networks(chain: Chain, report: Report, *, test: EvaluationSection, source: RunSource) -> Facts:
    """Search the slides with every network, and choose its threshold on the validation slides."""
    networks = {
        name: tested_network(chain, name, names, report) for name, names in answers(chain.config).items()
    }
    _write_results(chain, networks)
    return {"networks": len(networks), "test slides": len(chain.benches["test"].cohort.cases)}


def tested_network(chain: Chain, name: str, names: tuple[str, ...], report: Report) -> dict[str, Any]:
    """Search the slides, compare with the reference standard, and note the threshold in the card.

    Several `names` are networks whose mean is tested.
    """
    models, benches = [chain.model(each) for each in names], chain.benches
    found = {split: chain.split_search.search(name, models, chain.slides(split), report) for split in benches}
    marked = {split: bench.mark(found[split]) for split, bench in benches.items()}
    test, validation = chain.config.test, marked["validation"]
    values = measure(validation, marked["test"], benches["test"].centres(), test.threshold)
    if len(models) == 1 and values["validation_f1"] is not None:
        point = OperatingPoint(
            name="mitoses",
            delta=values["threshold"],
            **_search_of(test),
            metric="F1",
            value=values["validation_f1"],
            cases=validation.cases,
            patients=validation.patients,
            laboratories=tuple(sorted(set(benches["validation"].centres()))),
            source="validation slides of metaphase run",
        )
        points = [point]
        if name in (task.name for task in students(chain.config)):
            count = tuned_for_counts(chain, found["validation"], point)
            if isinstance(count, OperatingPoint):
                points.append(count)
            values["count"] = count if isinstance(count, str) else plain_point(count)
        save_point(models[0].with_suffix(".json"), *points, dropped=("count",))
    return values | {"parameters": sum(parameter_count(load_model(model)[0]) for model in models)}


def _search_of(settings: EvaluationSection | OperatingPoint) -> dict[str, Any]:
    """How detections are taken from probability maps."""
    return {name: getattr(settings, name) for name in ("suppress_um", "smooth_um", "method", "floor")}


def tuned_for_counts(chain: Chain, found: Found, mitoses: OperatingPoint) -> OperatingPoint | str:
    """The point `count` where the manifest says grades or proliferation scores of validation slides, by the
    paper's procedure; else, in words, why there is none."""
    bench, search = chain.benches["validation"], _search_of(mitoses)
    known = bench.cohort.manifest
    parts = [part for part in COUNT_PARTS if part in known.columns and known[part].notna().any()]
    if not parts:
        return "the manifest has neither proliferation nor grade for validation slides"
    deltas = {mitoses.delta, *thin(curve(bench.mark(found)), COUNTED_AT).threshold.tolist()}
    rows = []
    for case, slide in zip(bench.cohort.cases, chain.slides("validation"), strict=True):
        tissue = chain.split_search.tissue(slide)
        about = found[slide.name], tissue.mpp / tissue.scale, tissue, None
        for threshold in deltas:
            counted = proliferation_score(specimen(*about, CountConfig(threshold=threshold)))
            rows.append((case, threshold, counted))
    table = pd.DataFrame(rows, columns=["case", "threshold", "count"])
    start = None if "proliferation" in parts else OperatingPoint(name="count", delta=mitoses.delta, **search)
    try:
        return count_point_of(bench.cohort, table, chain.manifest, parts, start, **search)
    except TableError as error:
        return error.problem
