"""The steps from labels to a laboratory's detector: what each makes, and who has to do something."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from metaphase.analysis.cohort import asker, cohort_slide, cohort_slides
from metaphase.analysis.run import detect_cohort
from metaphase.base.errors import UsageError
from metaphase.base.files import write_text
from metaphase.base.stages import Facts, Report, stage
from metaphase.base.tables import read_manifest, read_table, write_manifest, write_table
from metaphase.counting.sites import FEWEST_ANSWERS, SampleConfig, save_profile
from metaphase.detections.table import MITOSIS
from metaphase.evaluation.metrics import BootstrapConfig
from metaphase.evaluation.mitoses import evaluate_mitoses
from metaphase.evaluation.operating_points import counts_of
from metaphase.lab.folder import Lab
from metaphase.lab.label_steps import skipped_rounds
from metaphase.lab.parts import NOTHING, Reporting, Step, all_answers, asked_calibration, inside, outcome
from metaphase.lab.rates import measure_rates
from metaphase.learn.calibration import SAMPLE, draw_sample, fit_profile
from metaphase.learn.chain import REFERENCE
from metaphase.learn.config import DenseSection, EvaluationSection
from metaphase.learn.dense import OLD, Protocol
from metaphase.learn.run import read_results, run_chain
from metaphase.learn.sources import corrected_points
from metaphase.learn.summary import run_report
from metaphase.networks.additions import CardAdditions
from metaphase.networks.cards import (
    BUNDLED,
    LEARNT_FROM,
    NOT_LABELLED,
    NetworkIdentity,
    TrainingData,
    bundled_model,
    card_of,
    warnings_about,
)
from metaphase.networks.checkpoints import package_model
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.settings import EngineConfig
from metaphase.reports.evaluation import write_mitosis_report
from metaphase.reports.run import write_run_page

DELIVERED, DEFAULT = "delivered", "the default"
"""Facts of the last step: what the delivered detector and the default one do on the test slides."""

# ---- the steps: a detector, its model, how good it is, what its probabilities mean ----


def detector_steps(lab: Lab) -> list[Step]:
    """The steps in order; those that `lab.toml` leaves out are not among them."""
    config, reviewed = lab.run_config, "review" if lab.settings.rounds.review else "reference"
    detector = train_detector(
        lab,
        protocol=Protocol.of(config.training),
        dense=config.dense,
        test=config.test,
        start=lab.chain.start,
        corrections=corrected_points(config.reference.corrections),
    )
    model = replace(package(lab, name=lab.settings.name), writes=(inside(lab, lab.model),))
    return [
        Step(replace(detector, reads=(reviewed,)), shows=("detector/index.html",)),
        Step(model, shows=(inside(lab, lab.model.with_suffix(".json")),)),
        Step(try_model(lab)),
        *_calibration_steps(lab),
    ]


# ---- the detector ----


@stage("detector", "the H&E detector, trained and tested", writes=("detector/results.json",))
def train_detector(
    lab: Lab,
    report: Report,
    *,
    protocol: Protocol,
    dense: DenseSection,
    test: EvaluationSection,
    start: tuple[NetworkIdentity, ...],
    corrections: pd.DataFrame,
) -> Facts:
    """The pair of `metaphase run`, and its test."""
    states = run_chain(lab.chain, report=report)
    write_run_page(lab.detector / "index.html", **run_report(lab.chain, states))
    facts: Facts = next(state.facts for state in states if state.stage.name == "pair")
    return facts


@stage("model", "the packaged model with its card", reads=("detector",))
def package(lab: Lab, report: Report, *, name: str) -> Facts:
    """Package the model that is to be used."""
    chain, source = lab.chain, lab.chain.delivered
    slides, points = chain.cohort[chain.cohort["split"] == "train"], chain.reference
    mitoses = int((points["case"].isin(slides["case"]) & (points["label"] == MITOSIS)).sum())
    learnt = {"mitoses": mitoses, "patients": int(slides["patient"].nunique()), "slides": len(slides)}
    start, chosen = chain.dense.start, card_of(source).known_metrics.chosen
    data = chain.start_cards[0].data if start else ()
    failures = chain.start_cards[0].known_failures if start else ()
    metrics: dict[str, Any] = {}
    if chosen == OLD:
        why = f"training did not improve {start}: these are its weights, with thresholds of the laboratory"
        failures = (*failures, why)
    else:
        own = f"slides of {lab.settings.name}, labelled by PHH3"
        data = (*data, TrainingData(name=own, terms="the laboratory's own", positives=mitoses))
        metrics[LEARNT_FROM] = learnt
    skipped = skipped_rounds(lab)
    metrics |= {NOT_LABELLED: skipped} if skipped else {}
    additions = CardAdditions(data=data, metrics=metrics, known_failures=failures)
    card = package_model(source, lab.model, name=name, additions=additions)
    warnings = tuple(str(warning) for warning in warnings_about(card))
    if warnings:
        additions = additions.model_copy(update={"known_failures": (*failures, *warnings)})
        package_model(source, lab.model, name=name, additions=additions)
    facts: Facts = {"pair": chosen} | ({} if chosen == OLD else learnt)
    return facts | ({"beware": list(warnings)} if warnings else {})


@stage(
    "results",
    "reports of the test slides, and how good they are",
    reads=("model",),
    writes=("results/index.html", "evaluation/index.html"),
)
def try_model(lab: Lab, report: Report) -> Facts:
    """Search the test slides with the packaged model, and compare with labels and with the default model."""
    manifest = lab.cases / "manifest.csv"
    ready = ReadyDetector(load_detector([lab.model]), EngineConfig(device=lab.device))
    slides = cohort_slides(manifest, "test")
    batch = detect_cohort(
        slides,
        lab.results,
        ready,
        watch=Reporting("detecting", report),
        asked={asker(manifest, "test"): [slide.name for slide in slides]},
    )
    facts = outcome(batch, {"slides": len(batch.results)})
    truth = read_table(lab.detector / REFERENCE).rename(columns={"case": "slide"})
    rows = read_manifest(manifest)
    rows = rows[[cohort_slide(row).name in batch.results for row in rows.to_dict("records")]]
    write_table(lab.evaluation / "truth.csv", truth[truth["slide"].isin(rows["case"])])
    write_manifest(lab.evaluation / "manifest.csv", rows)
    result = evaluate_mitoses(
        lab.evaluation / "truth.csv",
        lab.results / "candidates.parquet",
        bootstrap=BootstrapConfig(),
        card=lab.model.with_suffix(".json"),
        manifest=lab.evaluation / "manifest.csv",
    )
    write_mitosis_report(result, lab.evaluation)
    return facts | compare_detectors(lab, report)


def compare_detectors(lab: Lab, report: Report) -> Facts:
    """F1, recall and precision on the test slides with intervals, and seconds a mm2, of both detectors."""
    results = read_results(lab.detector)["networks"]
    slide = cohort_slides(lab.cases / "manifest.csv", "test")[0].slide
    facts: Facts = {}
    for name, model, values in zip(
        (DELIVERED, DEFAULT), (lab.model, bundled_model(BUNDLED)), results.values(), strict=False
    ):
        report(f"measuring the speed of {model.stem}", len(facts), 2)
        rates = measure_rates(ReadyDetector(load_detector([model]), EngineConfig(device=lab.device)), slide)
        f1 = counts_of([values]).f1_at_validation(BootstrapConfig())
        facts[name] = f"{model.stem}: F1 {f1} on the test slides, {1 / rates.whole_mm2_per_s:.1f} s/mm2"
    return facts


# ---- calibration ----


def _calibration_steps(lab: Lab) -> list[Step]:
    if not lab.settings.calibration.answers:
        return []
    nothing, asked = (lab.calibration / NOTHING).is_file(), asked_calibration(lab)
    fit = calibrate(lab, answers=all_answers(asked))
    made = replace(fit, writes=(inside(lab, lab.calibration if nothing else lab.site),))
    return [Step(made, asked, partial(_draw_calibration, lab))]


def _draw_calibration(lab: Lab, report: Report) -> bool:
    """Draw the sample; or say why there is none.

    Whether it did either.
    """
    if (lab.calibration / SAMPLE).is_file() or (lab.calibration / NOTHING).is_file():
        return False
    report("drawing what to answer", 0, 1)
    settings, where = lab.settings.calibration, ([lab.results], lab.calibration)
    try:
        _, detections = draw_sample(*where, SampleConfig(settings.answers))
        why = "" if detections >= FEWEST_ANSWERS else f"{detections} detections are too few"
    except UsageError as error:
        why = error.problem
    if why:
        shutil.rmtree(lab.calibration, ignore_errors=True)
        write_text(lab.calibration / NOTHING, f"not calibrated: {why}\n")
    return True


@stage("calibration", "what the model's probabilities mean here", reads=("results",))
def calibrate(lab: Lab, report: Report, *, answers: pd.DataFrame) -> Facts:
    """Make the laboratory's profile of the answers."""
    if (lab.calibration / NOTHING).is_file():
        return {"why": (lab.calibration / NOTHING).read_text(encoding="utf-8").strip()}
    profile = fit_profile(lab.calibration, lab.settings.name)
    save_profile(lab.site, profile)
    return {"profile": profile.described()}
