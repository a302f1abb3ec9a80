"""The steps from pairs of slides to a laboratory's detector: what each makes, and who has to do something.

Each step is a stage (`base.stages`) over the functions that the single commands call. A step that asks people
has pages, and is worked on when enough of them is answered.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.analysis.cohort import cohort_slides
from metaphase.analysis.run import detect_cohort
from metaphase.base.errors import UsageError
from metaphase.base.files import write_bytes, write_text
from metaphase.base.provenance import Ingredients
from metaphase.base.stages import Facts, Report, Stage
from metaphase.base.tables import named, read_manifest, read_table, write_table
from metaphase.counting.sites import FEWEST_ANSWERS, SampleConfig, save_profile
from metaphase.detections.table import MITOSIS
from metaphase.evaluation.metrics import BootstrapConfig
from metaphase.evaluation.mitoses import evaluate_mitoses
from metaphase.evaluation.operating_points import counts_of
from metaphase.lab.folder import Lab, RoundSettings
from metaphase.lab.parts import (
    FAILED,
    PairSlides,
    Reporting,
    Step,
    all_answers,
    asked_calibration,
    asked_review,
    asked_round,
    inside,
    outcome,
    pairs_of,
)
from metaphase.lab.rates import measure_rates
from metaphase.labels.building import build_cohort, collect_decisions, finish_cohort, network_points
from metaphase.labels.observers.project import ITEMS, LABELS, read_items
from metaphase.labels.phh3.candidates import Phh3Error
from metaphase.labels.phh3.cases import (
    HELD_OUT,
    DrawConfig,
    Purpose,
    draw_project,
    read_candidates,
    read_classified,
)
from metaphase.labels.phh3.cohort import CALLED, classify_cohort, search_cohort
from metaphase.labels.phh3.networks import (
    LearningConfig,
    cnn1_rows,
    cnn2_rows,
    load_classifier,
    train_classifier,
)
from metaphase.learn.calibration import (
    SAMPLE,
    NoSquareError,
    draw_sample,
    fit_profile,
    merge_project,
)
from metaphase.learn.chain import REFERENCE
from metaphase.learn.config import DenseSection, EvaluationSection
from metaphase.learn.dense import OLD, Protocol
from metaphase.learn.run import read_results, run_chain
from metaphase.learn.sources import corrected_points
from metaphase.learn.summary import run_report
from metaphase.networks.cards import (
    BUNDLED,
    LEARNT_FROM,
    NOT_LABELLED,
    PHH3_NETWORKS,
    CardAdditions,
    NetworkIdentity,
    TrainingData,
    bundled_model,
    named_model,
    parse_card,
    warnings_about,
)
from metaphase.networks.checkpoints import package_model
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.settings import EngineConfig
from metaphase.networks.training.loop import Update
from metaphase.reports.evaluation import write_mitosis_report
from metaphase.reports.run import write_run_page

# ---- what decides the steps on PHH3 slides ----


@dataclass(frozen=True)
class CandidatesSearched(Ingredients, stage="candidates"):
    """Brown objects of all PHH3 slides."""

    pairs: tuple[PairSlides, ...]


@dataclass(frozen=True, eq=False)
class RoundAnswered(Ingredients, stage="round"):
    """Labels of a round."""

    answers: pd.DataFrame
    agree: int


@dataclass(frozen=True)
class NetworkTaught(Ingredients, stage="PHH3 network"):
    """CNN1 or CNN2, and what it says about all candidates."""

    learning: LearningConfig | None
    """None where the network is the bundled one as it comes."""
    start: NetworkIdentity | None


# ---- the steps on PHH3 slides: candidates, what people label of them, CNN1 and CNN2 ----
#
# The bundled CNN1 and CNN2 have a say in which candidates are asked, not in what people see; the laboratory's
# own networks start from them. Where `lab.toml` skips the rounds, the bundled ones take their place.


def phh3_steps(lab: Lab) -> list[Step]:
    """From the PHH3 slides to their mitoses."""
    pairs = pairs_of(lab)
    search = Stage("candidates", "brown objects of the PHH3 slides", (), ("cases",), partial(_search, lab),
                   CandidatesSearched(pairs))  # fmt: skip
    rounds = {number: _round(lab, number) for number in (1, 2) if _asks(lab, number)}
    first, second = (tuple(f"round {number}" for number in rounds if number <= last) for last in (1, 2))
    return [
        Step(search),
        *(rounds[number] for number in rounds if number == 1),
        _network(lab, "cnn1", "CNN1, which drops artefacts", first or ("candidates",), bool(first)),
        *(rounds[number] for number in rounds if number == 2),
        _network(lab, "cnn2", "CNN2, which recognises mitoses", (*second, "cnn1"), bool(second)),
    ]


def skipped_rounds(lab: Lab) -> list[str]:
    """What of the PHH3 slides the bundled networks decide alone."""
    labelled = _labelled(lab)
    alone = {"artefacts": lab.round(1) not in labelled, "mitoses": not labelled}
    return [what for what, nobody in alone.items() if nobody]


def _asks(lab: Lab, number: int) -> bool:
    return bool((lab.settings.rounds.round1, lab.settings.rounds.round2)[number - 1])


def _labelled(lab: Lab) -> list[Path]:
    """The rounds that have labels, the last one first."""
    return [
        lab.round(number)
        for number in (2, 1)
        if _asks(lab, number) and (lab.round(number) / LABELS).is_file()
    ]


# ---- candidates and rounds ----


def _search(lab: Lab, report: Report) -> Facts:
    batch = search_cohort(lab.manifest, lab.cases, watch=Reporting("candidates of", report))
    return outcome(batch, {"candidates": sum(one.candidates for one in batch.results.values())})


ABOUT = {1: "labels of brown objects, for CNN1", 2: "labels of what CNN1 keeps, for CNN2"}
READS = {1: ("candidates",), 2: ("cnn1",)}


def _round(lab: Lab, number: int) -> Step:
    asked = asked_round(lab, number)
    made_from = RoundAnswered(all_answers(asked), lab.settings.rounds.agree)
    writes = (inside(lab, lab.round(number)),)
    stage = Stage(
        f"round {number}", ABOUT[number], READS[number], writes, partial(_merge, lab, number), made_from
    )
    shows = tuple(f"{writes[0]}/{name}" for name in ("agreement.html", LABELS))
    return Step(stage, asked, partial(_draw, lab, number), shows=shows)


def _draw(lab: Lab, number: int, report: Report) -> bool:
    """Draw the items of a round, or add to them where `lab.toml` asks for more; whether it did."""
    rounds, folder = lab.settings.rounds, lab.round(number)
    report(f"drawing round {number}", 0, 1)
    there = len(read_items(folder)) if (folder / ITEMS).is_file() else 0
    wanted = _wanted(lab, rounds) if number == 1 else rounds.round2
    if there >= wanted or (folder / NOTHING).exists():
        return False
    purpose: Purpose = "cnn1" if number == 1 else "cnn2"
    earlier = [lab.round(1)] if number == 2 else []
    target = folder if not there else folder / "more"
    if there:
        shutil.rmtree(target, ignore_errors=True)  # of a run that was killed
    if number == 1 and lab.settings.bundled_phh3:
        _suggest(lab, report)
    share = rounds.unsure_share if number == 2 or lab.settings.bundled_phh3 else 0.0
    config = DrawConfig(wanted - there, active_share=share, seed=rounds.seed)
    try:
        draw_project(
            read_manifest(lab.manifest), lab.cases, target, purpose, config,
            exclude=[*earlier, *([folder] if there else [])],
        )  # fmt: skip
    except Phh3Error as error:
        if number == 2 and not there:
            write_text(folder / NOTHING, str(error) + "\n")
        return False
    if there:
        _take_more(folder, target)
    return True


def _suggest(lab: Lab, report: Report) -> None:
    """Let the bundled networks see all candidates, unless some have: round 1 asks what they doubt."""
    try:
        for pair in pairs_of(lab):
            read_classified(lab.cases / pair.case)
    except Phh3Error:
        classifiers = [load_classifier(name, model, lab.device) for name, model in PHH3_NETWORKS.items()]
        classify_cohort(lab.manifest, lab.cases, classifiers, watch=Reporting("suggestions for", report))


NOTHING = "nothing-to-ask.txt"
"""In the folder of a round that has no items: why."""


def _take_more(folder: Path, more: Path) -> None:
    """Add the items of a project to another one."""
    items = pd.concat([read_table(folder / ITEMS), read_items(more)], ignore_index=True)
    items["slide"] = [str((folder / slide).resolve()) for slide in items["slide"]]
    write_table(folder / ITEMS, items)
    shutil.rmtree(more)


def _wanted(lab: Lab, rounds: RoundSettings) -> int:
    """Items of round 1: at most half of the candidates, for round 2 needs others."""
    pool = 0
    for pair in pairs_of(lab):
        if pair.split != HELD_OUT:
            try:
                pool += len(read_candidates(lab.cases / pair.case))
            except Phh3Error:
                continue
    return max(1, min(rounds.round1, pool // 2))


def _merge(lab: Lab, number: int, report: Report) -> Facts:
    folder = lab.round(number)
    if (folder / NOTHING).exists():
        return {"items": 0, "why": (folder / NOTHING).read_text(encoding="utf-8").strip()}
    report(f"merging round {number}", 0, 1)
    asked = asked_round(lab, number)
    observers = all_answers(asked)["observer"].nunique()
    merged = merge_project(folder, max(1, min(lab.settings.rounds.agree, observers)))
    facts: Facts = {"items": len(merged.labels), "labels": merged.labelled, "observers": observers}
    counts = merged.labels["label"].value_counts()
    facts |= {str(name): int(count) for name, count in counts.items() if name}
    curve = asked[0].curve if asked else None
    if curve is not None:
        facts["curve"] = str(curve)
    if observers > 1:
        low, high = merged.fleiss_interval
        facts["Fleiss' kappa"] = f"{merged.fleiss:.2f} [{low:.2f}, {high:.2f}]"
    return facts


# ---- networks ----


def _network(lab: Lab, name: str, about: str, reads: tuple[str, ...], labelled: bool) -> Step:
    """The step of CNN1 or CNN2: trained where it is `labelled`, else the bundled one."""
    learning, use = lab.settings.phh3, lab.settings.bundled_phh3 or not labelled
    start = parse_card(named_model(PHH3_NETWORKS[name]).with_suffix(".json")).identity if use else None
    made_from = NetworkTaught(learning if labelled else None, start)
    work = partial(_teach, lab, name) if labelled else partial(_take, lab, name)
    stage = Stage(name, about, reads, (name,), work, made_from, renew=True)
    return Step(stage, shows=tuple(f"{name}/{one}" for one in ("curves.png", f"{name}.json")))


def _teach(lab: Lab, name: str, report: Report) -> Facts:
    """Train CNN1 or CNN2 from the rounds, and ask it about every candidate."""
    config, folder = lab.settings.phh3, lab.network(name)

    def show(update: Update) -> None:
        report(f"{name}  {update}", update.epoch + update.step / update.steps, config.epochs)

    report(f"{name}: cutting patches", 0, 1)
    rounds, start = _labelled(lab), PHH3_NETWORKS[name] if lab.settings.bundled_phh3 else ""
    if not rounds:
        return _take(lab, name, report)
    rows = cnn1_rows(lab.round(1)) if name == "cnn1" else cnn2_rows(rounds[0], also=rounds[1:])
    result = train_classifier(name, rows, folder, config, start=start, device=lab.device, watch=show)
    return _classify(lab, name, result.model, {"F1 on validation patients": round(result.best, 3)}, report)


def _take(lab: Lab, name: str, report: Report) -> Facts:
    """The bundled CNN1 or CNN2 in the place of an own one."""
    bundled, model = named_model(PHH3_NETWORKS[name]), lab.network(name) / f"{name}.safetensors"
    for suffix in (".safetensors", ".json"):
        write_bytes(model.with_suffix(suffix), bundled.with_suffix(suffix).read_bytes())
    return _classify(lab, name, model, {"bundled": PHH3_NETWORKS[name]}, report)


def _classify(lab: Lab, name: str, model: Path, facts: Facts, report: Report) -> Facts:
    classifier = load_classifier(name, model, lab.device)
    watch = Reporting(f"{name} classifies", report)
    batch = classify_cohort(lab.manifest, lab.cases, [classifier], watch=watch)
    what = CALLED[name]
    found = sum(one.counts.get(what, 0) for one in batch.results.values())
    return outcome(batch, facts | {what: found})


DELIVERED, DEFAULT = "delivered", "the default"
"""Facts of the last step: what the delivered detector and the default one do on the test slides."""

# ---- what decides each step, beside the steps before it ----


@dataclass(frozen=True)
class ReferencePlaced(Ingredients, stage="reference"):
    """The mitoses in H&E coordinates."""

    pairs: tuple[PairSlides, ...]


@dataclass(frozen=True, eq=False)
class ReferenceReviewed(Ingredients, stage="review"):
    """The same as people decided."""

    answers: pd.DataFrame


@dataclass(frozen=True, eq=False)
class DetectorTaught(Ingredients, stage="detector"):
    """The pair of `metaphase run`, and its test."""

    protocol: Protocol
    dense: DenseSection
    test: EvaluationSection
    start: tuple[NetworkIdentity, ...]
    corrections: pd.DataFrame


@dataclass(frozen=True)
class ModelPackaged(Ingredients, stage="model"):
    """The model to use."""

    name: str


@dataclass(frozen=True)
class ModelTried(Ingredients, stage="results"):
    """Reports of the test slides, and how good they are."""


@dataclass(frozen=True, eq=False)
class ModelCalibrated(Ingredients, stage="calibration"):
    """The laboratory's profile."""

    answers: pd.DataFrame


# ---- the list of steps ----


def steps_of(lab: Lab) -> list[Step]:
    """All steps, in order; those that `lab.toml` leaves out are not among them."""
    pairs, settings = pairs_of(lab), lab.settings
    config, reviewed = lab.run_config, "review" if settings.rounds.review else "reference"
    start = tuple(parse_card(path.with_suffix(".json")).identity for path in lab.chain.pair)
    corrections = corrected_points(config.reference.corrections)
    detector = DetectorTaught(Protocol.of(config.training), config.dense, config.test, start, corrections)
    return [
        *phh3_steps(lab),
        Step(Stage("reference", "mitoses carried to H&E", ("cnn2",), ("cases/reference.parquet",),
                   partial(_build, lab), ReferencePlaced(pairs)), shows=("cases/reference.csv",)),
        *_review(lab),
        Step(Stage("detector", "the H&E detector, trained and tested", (reviewed,),
                   ("detector/results.json",), partial(_train_detector, lab), detector),
             shows=("detector/index.html",)),
        Step(Stage("model", "the packaged model with its card", ("detector",), (inside(lab, lab.model),),
                   partial(_package, lab), ModelPackaged(settings.name)),
             shows=(inside(lab, lab.model.with_suffix(".json")),)),
        Step(Stage("results", "reports of the test slides, and how good they are", ("model",),
                   ("results/index.html", "evaluation/index.html"), partial(_try, lab), ModelTried())),
        *_calibration(lab),
    ]  # fmt: skip


# ---- the reference standard ----


def _build(lab: Lab, report: Report) -> Facts:
    built = build_cohort(
        lab.manifest, lab.cases, network_points(()), watch=Reporting("reference standard of", report)
    )
    bad = {one.case: one.reason for one in built.failures}
    facts: Facts = {"points": len(built.table), "accepted": int(built.table["accepted"].sum())}
    return facts | ({FAILED: bad} if bad else {})


def _review(lab: Lab) -> list[Step]:
    if not lab.settings.rounds.review:
        return []
    asked = asked_review(lab)
    stage = Stage(
        "review", "least certain mitoses, checked by people", ("reference",), ("cases/reference.parquet",),
        partial(_apply, lab), ReferenceReviewed(all_answers(asked)),
    )  # fmt: skip
    return [Step(stage, asked, shows=("cases/decisions.csv",))]


def _apply(lab: Lab, report: Report) -> Facts:
    report("applying decisions", 0, 1)
    if not asked_review(lab):
        return {"reviewed": 0}
    collect_decisions(lab.cases)
    built = finish_cohort(lab.cases)
    accepted = int(built.review.table["accepted"].sum())
    return {"reviewed": built.review.reviewed, "changed": built.review.changed, "accepted": accepted}


# ---- the detector ----


def _train_detector(lab: Lab, report: Report) -> Facts:
    states = run_chain(lab.chain, report=report)
    write_run_page(lab.detector / "index.html", run_report(lab.chain, states))
    facts: Facts = next(state.facts for state in states if state.stage.name == "pair")
    return facts


def _package(lab: Lab, report: Report) -> Facts:
    report("packaging", 0, 1)
    chain, source = lab.chain, lab.chain.delivered
    slides, points = chain.cohort[chain.cohort["split"] == "train"], chain.reference
    mitoses = int((points["case"].isin(slides["case"]) & (points["label"] == MITOSIS)).sum())
    learnt = {"mitoses": mitoses, "patients": int(slides["patient"].nunique()), "slides": len(slides)}
    start, chosen = chain.dense.start, parse_card(source.with_suffix(".json")).known_metrics.chosen
    before = parse_card(named_model(start).with_suffix(".json")) if start else None
    data = before.data if before is not None else ()
    failures = before.known_failures if before is not None else ()
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
    card = package_model(source, lab.model, name=lab.settings.name, additions=additions)
    warnings = tuple(str(warning) for warning in warnings_about(card))
    if warnings:
        additions = additions.model_copy(update={"known_failures": (*failures, *warnings)})
        package_model(source, lab.model, name=lab.settings.name, additions=additions)
    facts: Facts = {"pair": chosen} | ({} if chosen == OLD else learnt)
    return facts | ({"beware": list(warnings)} if warnings else {})


def _try(lab: Lab, report: Report) -> Facts:
    """Search the test slides with the packaged model, and compare with labels and with the default model."""
    manifest = lab.cases / "manifest.csv"
    ready = ReadyDetector(load_detector([lab.model]), EngineConfig(device=lab.device))
    batch = detect_cohort(
        cohort_slides(manifest, "test"), lab.results, ready, watch=Reporting("detecting", report)
    )
    facts = outcome(batch, {"slides": len(batch.results)})
    truth = read_table(lab.detector / REFERENCE).rename(columns={"case": "slide"})
    tested = set(batch.results)
    write_table(lab.evaluation / "truth.csv", truth[truth["slide"].isin(tested)])
    rows = read_manifest(manifest)
    write_table(lab.evaluation / "manifest.csv", rows[rows["case"].isin(tested)])
    result = evaluate_mitoses(
        lab.evaluation / "truth.csv", lab.results / "candidates.parquet", bootstrap=BootstrapConfig(),
        card=lab.model.with_suffix(".json"), manifest=lab.evaluation / "manifest.csv",
    )  # fmt: skip
    write_mitosis_report(result, lab.evaluation)
    return facts | compared(lab, report)


def compared(lab: Lab, report: Report) -> Facts:
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


def _calibration(lab: Lab) -> list[Step]:
    if not lab.settings.calibration.answers:
        return []
    nothing, asked = (lab.calibration / NOTHING).is_file(), asked_calibration(lab)
    stage = Stage(
        "calibration", "what the model's probabilities mean here", ("results",),
        (inside(lab, lab.calibration if nothing else lab.site),), partial(_fit, lab),
        ModelCalibrated(all_answers(asked)),
    )  # fmt: skip
    return [Step(stage, asked, partial(_draw_calibration, lab))]


def _draw_calibration(lab: Lab, report: Report) -> bool:
    """Draw the sample, without squares where none lies within the tissue; or say why there is none.

    Whether it did either.
    """
    if (lab.calibration / SAMPLE).is_file() or (lab.calibration / NOTHING).is_file():
        return False
    report("drawing what to answer", 0, 1)
    settings, where = lab.settings.calibration, ([lab.results], lab.calibration)
    config = SampleConfig(settings.answers, settings.squares)
    try:
        try:
            drawn = draw_sample(*where, config)
        except NoSquareError:
            drawn = draw_sample(*where, replace(config, squares=0))
        why = "" if drawn.detections >= FEWEST_ANSWERS // 2 else f"{drawn.detections} detections are too few"
    except UsageError as error:
        why = error.problem
    if why:
        shutil.rmtree(lab.calibration, ignore_errors=True)
        write_text(lab.calibration / NOTHING, f"not calibrated: {why}\n")
    return True


def _fit(lab: Lab, report: Report) -> Facts:
    if (lab.calibration / NOTHING).is_file():
        return {"why": (lab.calibration / NOTHING).read_text(encoding="utf-8").strip()}
    report("fitting the laboratory's profile", 0, 1)
    profile = fit_profile(lab.calibration, lab.settings.name)
    save_profile(lab.site, profile)
    return {"profile": profile.described()}


def fact_line(facts: Mapping[str, Any]) -> str:
    """What a step made, in a line."""
    return ", ".join(f"{name} {_plain(value)}" for name, value in facts.items() if name != FAILED)


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return named(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
