"""The steps from pairs of slides to a laboratory's detector: what each makes, and who has to do something.

Each step is a stage (`jobs.stages`) over the functions that the single commands call. A step that asks people
has pages, and is worked on when enough of them is answered.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.base.batch import Batch, BatchWatch, Failure, Progress
from metaphase.base.errors import UsageError
from metaphase.base.provenance import Ingredients
from metaphase.base.tables import named, phh3_mpp, read_manifest, read_table, stated_number, write_table
from metaphase.detections import MITOSIS
from metaphase.evaluation import BootstrapConfig, evaluate_mitoses
from metaphase.evaluation.sites import SampleConfig, save_profile
from metaphase.jobs.calibration import DETECTIONS, SAMPLE, SQUARES, draw_sample, fit_profile
from metaphase.jobs.cohort import cohort_slides
from metaphase.jobs.detection_cohort import detect_cohort
from metaphase.jobs.lab.answers import Asked, asked_calibration, asked_review, asked_round
from metaphase.jobs.lab.folder import Lab, RoundSettings
from metaphase.jobs.labelling import merge_project
from metaphase.jobs.phh3 import classify_cohort, search_cohort
from metaphase.jobs.reference import build_cohort, finish_cohort, network_points
from metaphase.jobs.review import collect_decisions
from metaphase.jobs.stages import Facts, Report, Stage
from metaphase.jobs.training.chain import REFERENCE
from metaphase.jobs.training.config import (
    CNN3,
    START,
    EnsembleSection,
    EvaluationSection,
    LearningSection,
    StudentSection,
    members,
    students,
)
from metaphase.jobs.training.run import read_results, run_chain
from metaphase.jobs.training.summary import run_report
from metaphase.labels.mining import MiningConfig
from metaphase.labels.observers.project import ITEMS, LABELS, read_items
from metaphase.labels.phh3.cases import read_candidates
from metaphase.labels.phh3.classification import load_classifier
from metaphase.labels.phh3.config import Phh3Error
from metaphase.labels.phh3.sampling import HELD_OUT, Purpose, draw_project
from metaphase.labels.phh3.sampling import SampleConfig as DrawConfig
from metaphase.labels.phh3.training import LearningConfig, train_cnn1, train_cnn2
from metaphase.networks.cards import (
    LEARNT_FROM,
    CardAdditions,
    NetworkIdentity,
    TrainingData,
    doubts_about,
    named_model,
    parse_card,
)
from metaphase.networks.checkpoints import package_model
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine import EngineConfig
from metaphase.networks.training.loop import Update
from metaphase.reports.evaluation import write_mitosis_report
from metaphase.reports.run import write_run_page
from metaphase.slides import SlideSource

PATCHES_PER_S = {"cpu": 60.0, "cuda": 10_000.0}
"""Trained patches a second, roughly, before any was measured."""
CUT_SHARE = "failed"
"""Fact of a step: cases that could not be done, the others went on."""


@dataclass(frozen=True)
class Step:
    """One step of the thread."""

    stage: Stage
    pages: Callable[[], list[Asked]] = field(default=list)
    """What people have to answer before its work; nothing for a step of the machine alone."""
    prepare: Callable[[Report], None] | None = None
    """Makes these pages, unless they are there."""
    seconds: float | None = None
    """Rough time of the work, where it is more than moments."""

    @property
    def by_people(self) -> bool:
        """Whether somebody has to answer."""
        return self.prepare is not None

    @property
    def name(self) -> str:
        """Of the step."""
        return self.stage.name


# ---- what decides each step, beside the steps before it ----


@dataclass(frozen=True)
class PairSlides:
    """The slides of a case, and what it is for."""

    case: str
    he: SlideSource
    phh3: SlideSource
    split: str
    patient: str
    centre: str


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

    learning: LearningConfig


@dataclass(frozen=True)
class ReferencePlaced(Ingredients, stage="reference"):
    """The mitoses in H&E coordinates."""

    pairs: tuple[PairSlides, ...]


@dataclass(frozen=True, eq=False)
class ReferenceReviewed(Ingredients, stage="review"):
    """The same as people decided."""

    answers: pd.DataFrame


@dataclass(frozen=True)
class DetectorTaught(Ingredients, stage="detector"):
    """The networks of `metaphase run`, and their test."""

    mining: MiningConfig
    training: LearningSection
    ensemble: EnsembleSection
    students: StudentSection
    test: EvaluationSection
    start: NetworkIdentity | None


@dataclass(frozen=True)
class ModelPackaged(Ingredients, stage="model"):
    """The model to use."""

    name: str


@dataclass(frozen=True)
class ModelTried(Ingredients, stage="results"):
    """Reports of the test slides, and how good they are."""


@dataclass(frozen=True, eq=False)
class ModelCalibrated(Ingredients, stage="calibration"):
    """The site profile."""

    answers: pd.DataFrame


# ---- the list of steps ----


def steps_of(lab: Lab) -> list[Step]:
    """All steps, in order; those that `lab.toml` leaves out are not among them."""
    pairs, settings = pairs_of(lab), lab.settings
    learning, chain = settings.phh3, lab.run_config
    passes = _seconds(lab, learning.epochs * (learning.samples_per_epoch or settings.rounds.round1))
    start = settings.run.get("training", {}).get("start", settings.start)
    identity = parse_card(named_model(start).with_suffix(".json")).identity if start else None
    networks = 1 + len(members(chain)) + len(students(chain))
    patches = networks * chain.training.epochs * (chain.training.samples_per_epoch or 10_000)
    detector = DetectorTaught(
        chain.mining, chain.training, chain.ensemble, chain.students, chain.test, identity
    )
    return [
        Step(Stage("candidates", "brown objects of the PHH3 slides", (), ("cases",), partial(_search, lab),
                   CandidatesSearched(pairs)), seconds=3.0 * len(pairs)),
        _round(lab, 1, "labels of brown objects, for CNN1", ("candidates",)),
        Step(Stage("cnn1", "CNN1, which drops artefacts", ("round 1",), ("cnn1",),
                   partial(_teach, lab, "cnn1"), NetworkTaught(learning), renew=True), seconds=passes),
        _round(lab, 2, "labels of what CNN1 keeps, for CNN2", ("cnn1",)),
        Step(Stage("cnn2", "CNN2, which recognises mitoses", ("round 1", "round 2", "cnn1"), ("cnn2",),
                   partial(_teach, lab, "cnn2"), NetworkTaught(learning), renew=True), seconds=passes),
        Step(Stage("reference", "mitoses carried to H&E", ("cnn2",), ("cases/reference.parquet",),
                   partial(_build, lab), ReferencePlaced(pairs)), seconds=20.0 * len(pairs)),
        *_review(lab),
        Step(Stage("detector", "the H&E detector, trained and tested", (_review_name(lab),),
                   ("detector/results.json",), partial(_train_detector, lab), detector),
             seconds=_seconds(lab, patches)),
        Step(Stage("model", "the packaged model with its card", ("detector",), (_inside(lab, lab.model),),
                   partial(_package, lab), ModelPackaged(settings.name))),
        Step(Stage("results", "reports of the test slides, and how good they are", ("model",),
                   ("results/index.html", "evaluation/index.html"), partial(_try, lab), ModelTried())),
        *_calibration(lab),
    ]  # fmt: skip


def pairs_of(lab: Lab) -> tuple[PairSlides, ...]:
    """The pairs of the manifest."""
    if not lab.manifest.is_file():
        raise UsageError(
            "the slides were not paired yet", path=lab.root, next_step="run metaphase lab init FOLDER again"
        )
    return tuple(
        PairSlides(
            str(row["case"]),
            SlideSource(Path(str(row["he"])), stated_number(row, "mpp")),
            SlideSource(Path(str(row["phh3"])), phh3_mpp(row)),
            *(str(row[name]) for name in ("split", "patient", "centre")),
        )
        for row in read_manifest(lab.manifest).to_dict("records")
    )


def _inside(lab: Lab, path: Path) -> str:
    return str(path.relative_to(lab.root))


def _seconds(lab: Lab, patches: float) -> float:
    return patches / PATCHES_PER_S["cuda" if _on_gpu(lab.device) else "cpu"]


def _on_gpu(device: str | None) -> bool:
    import torch

    return torch.cuda.is_available() if device is None else device.startswith("cuda")


# ---- PHH3: candidates, rounds, networks ----


class _Reporting(BatchWatch):
    """A batch that tells the step's report how far it is."""

    def __init__(self, what: str, report: Report) -> None:
        self._what, self._report = what, report

    def started(self, name: str, number: int, total: int) -> Progress:
        """An item begins."""
        self._report(f"{self._what} {name}", number, total)
        return lambda *_: None


def _outcome(batch: Batch[Any], facts: Facts) -> Facts:
    """Facts of a batch, with the cases that failed; where all did, the first error."""
    failures: list[Failure] = batch.failures
    if failures and not batch.results:
        raise Phh3Error(failures[0].message.rstrip("."), next_step="mend that first, then run it again")
    told = {one.name: one.message for one in failures}
    return facts | ({CUT_SHARE: told} if told else {})


def _search(lab: Lab, report: Report) -> Facts:
    batch = search_cohort(lab.manifest, lab.cases, watch=_Reporting("candidates of", report))
    return _outcome(batch, {"candidates": sum(one.candidates for one in batch.results.values())})


def _round(lab: Lab, number: int, about: str, reads: tuple[str, ...]) -> Step:
    asked = asked_round(lab, number)
    given = asked.answers if asked is not None else _no_answers()
    made_from = RoundAnswered(given, lab.settings.rounds.agree)
    writes = (_inside(lab, lab.round(number)),)
    stage = Stage(f"round {number}", about, reads, writes, partial(_merge, lab, number), made_from)
    return Step(stage, partial(_pages_of_round, lab, number), partial(_draw, lab, number))


def _no_answers() -> pd.DataFrame:
    return pd.DataFrame(columns=["observer", "item", "answer"], dtype=str)


def _pages_of_round(lab: Lab, number: int) -> list[Asked]:
    asked = asked_round(lab, number)
    return [] if asked is None else [asked]


def _draw(lab: Lab, number: int, report: Report) -> None:
    """Draw the items of a round, or add to them where `lab.toml` asks for more than there are."""
    rounds, folder = lab.settings.rounds, lab.round(number)
    report(f"drawing round {number}", 0, 1)
    there = len(read_items(folder)) if (folder / ITEMS).is_file() else 0
    wanted = _wanted(lab, rounds) if number == 1 else rounds.round2
    if there >= wanted or (folder / NOTHING).exists():
        return
    purpose: Purpose = "cnn1" if number == 1 else "cnn2"
    earlier = [lab.round(1)] if number == 2 else []
    target = folder if not there else folder / "more"
    if there:
        shutil.rmtree(target, ignore_errors=True)  # of a run that was killed
    share = rounds.unsure_share if number == 2 else 0.0
    config = DrawConfig(wanted - there, active_share=share, seed=rounds.seed)
    try:
        draw_project(
            read_manifest(lab.manifest), lab.cases, target, purpose, config,
            exclude=[*earlier, *([folder] if there else [])],
        )  # fmt: skip
    except Phh3Error as error:
        if number == 2 and not there:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / NOTHING).write_text(str(error) + "\n", encoding="utf-8")
        return
    if there:
        _take_more(folder, target)


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
    observers = asked.answers["observer"].nunique() if asked is not None else 0
    merged = merge_project(folder, max(1, min(lab.settings.rounds.agree, observers)))
    facts: Facts = {"items": len(merged.labels), "labels": merged.labelled, "observers": observers}
    counts = merged.labels["label"].value_counts()
    facts |= {str(name): int(count) for name, count in counts.items() if name}
    if asked is not None and asked.curve is not None:
        facts["curve"] = str(asked.curve)
    if observers > 1:
        low, high = merged.fleiss_interval
        facts["Fleiss' kappa"] = f"{merged.fleiss:.2f} [{low:.2f}, {high:.2f}]"
    return facts


def _teach(lab: Lab, name: str, report: Report) -> Facts:
    """Train CNN1 or CNN2 from the rounds, and ask it about every candidate."""
    config, folder = lab.settings.phh3, lab.network(name)

    def show(update: Update) -> None:
        report(f"{name}  {update}", update.epoch + update.step / update.steps, config.epochs)

    report(f"{name}: cutting patches", 0, 1)
    if name == "cnn1":
        result = train_cnn1(lab.round(1), folder, config, device=lab.device, watch=show)
    else:
        rounds = [lab.round(number) for number in (2, 1) if (lab.round(number) / LABELS).is_file()]
        result = train_cnn2(rounds[0], folder, config, also=rounds[1:], device=lab.device, watch=show)
    classifier = load_classifier(name, result.model, lab.device)
    batch = classify_cohort(
        lab.manifest, lab.cases, [classifier], watch=_Reporting(f"{name} classifies", report)
    )
    what = "objects" if name == "cnn1" else "mitoses"
    found = sum(one.counts.get(what, 0) for one in batch.results.values())
    return _outcome(batch, {"F1 on validation patients": round(result.best, 3), what: found})


# ---- the reference standard ----


def _build(lab: Lab, report: Report) -> Facts:
    built = build_cohort(
        lab.manifest, lab.cases, network_points(()), watch=_Reporting("reference standard of", report)
    )
    bad = {one.case: one.reason for one in built.failures}
    facts: Facts = {"points": len(built.table), "accepted": int(built.table["accepted"].sum())}
    return facts | ({CUT_SHARE: bad} if bad else {})


def _review_name(lab: Lab) -> str:
    return "review" if lab.settings.rounds.review else "reference"


def _review(lab: Lab) -> list[Step]:
    if not lab.settings.rounds.review:
        return []
    asked = asked_review(lab)
    given = asked.answers if asked is not None else _no_answers()
    stage = Stage(
        "review", "the least sure mitoses, decided by somebody", ("reference",), ("cases/reference.parquet",),
        partial(_apply, lab), ReferenceReviewed(given),
    )  # fmt: skip
    return [Step(stage, partial(_pages_of_review, lab), _nothing)]


def _pages_of_review(lab: Lab) -> list[Asked]:
    asked = asked_review(lab)
    return [] if asked is None else [asked]


def _nothing(_report: Report) -> None:
    """Pages that are there by themselves."""


def _apply(lab: Lab, report: Report) -> Facts:
    report("putting decisions in force", 0, 1)
    if asked_review(lab) is None:
        return {"reviewed": 0}
    collect_decisions(lab.cases)
    built = finish_cohort(lab.cases)
    accepted = int(built.review.table["accepted"].sum())
    return {"reviewed": built.review.reviewed, "changed": built.review.changed, "accepted": accepted}


# ---- the detector ----


def _train_detector(lab: Lab, report: Report) -> Facts:
    chain = lab.chain
    states = run_chain(chain, report=report)
    write_run_page(lab.detector / "index.html", run_report(chain, states))
    results = read_results(lab.detector)["networks"]
    return {name: f"F1 {values['validation_f1'] or 0:.3f} on validation" for name, values in results.items()}


def chosen_network(lab: Lab) -> str:
    """The single network with the highest F1 on the validation slides; of equal ones the own one."""
    results = read_results(lab.detector)["networks"]
    own = [task.name for task in students(lab.chain.config)]
    names = [name for name in (*own, CNN3, START) if name in results]
    return max(names, key=lambda name: (results[name]["validation_f1"] or 0.0, -names.index(name)))


def _package(lab: Lab, report: Report) -> Facts:
    report("packaging", 0, 1)
    chain, results, chosen = lab.chain, read_results(lab.detector)["networks"], chosen_network(lab)
    slides = chain.cohort[chain.cohort["split"] == "train"]
    points = chain.reference
    mitoses = int((points["case"].isin(slides["case"]) & (points["label"] == MITOSIS)).sum())
    learnt = {"mitoses": mitoses, "patients": int(slides["patient"].nunique()), "slides": len(slides)}
    start = chain.config.training.start
    before = parse_card(named_model(start).with_suffix(".json")) if start else None
    own = () if chosen == START else (
        TrainingData(name=f"slides of {lab.settings.name}, labelled by PHH3", terms="the laboratory's own",
                     positives=mitoses),
    )  # fmt: skip
    metrics: dict[str, Any] = {"chosen": chosen, "F1 on validation slides": {
        name: values["validation_f1"] for name, values in results.items()}}  # fmt: skip
    metrics |= {} if chosen == START else {LEARNT_FROM: learnt}
    failures = before.known_failures if before is not None else ()
    if chosen == START:
        failures = (
            *failures,
            f"own slides did not better {start}: these are its weights, with a threshold of the own slides",
        )
    additions = CardAdditions(
        data=(*(before.data if before is not None else ()), *own), metrics=metrics,
        known_failures=failures,
    )  # fmt: skip
    card = package_model(chain.model(chosen), lab.model, name=lab.settings.name, additions=additions)
    doubts = tuple(str(doubt) for doubt in doubts_about(card))
    if doubts:
        additions = additions.model_copy(update={"known_failures": (*failures, *doubts)})
        package_model(chain.model(chosen), lab.model, name=lab.settings.name, additions=additions)
    facts: Facts = {"network": chosen} | ({} if chosen == START else learnt)
    return facts | ({"beware": list(doubts)} if doubts else {})


def _try(lab: Lab, report: Report) -> Facts:
    """Search the test slides with the packaged model, and compare."""
    manifest = lab.cases / "manifest.csv"
    ready = ReadyDetector(load_detector([lab.model]), EngineConfig(device=lab.device))
    batch = detect_cohort(
        cohort_slides(manifest, "test"), lab.results, ready, watch=_Reporting("detecting", report)
    )
    facts = _outcome(batch, {"slides": len(batch.results)})
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
    return facts | {"F1 on test slides": str(result.overall.f1)}


# ---- calibration ----


def _calibration(lab: Lab) -> list[Step]:
    if not lab.settings.calibration.answers:
        return []
    asked = _pages_of_calibration(lab)
    tables = [one.answers for one in asked] or [_no_answers()]
    stage = Stage(
        "calibration", "what the model's probabilities mean here", ("results",), (_inside(lab, lab.site),),
        partial(_fit, lab), ModelCalibrated(pd.concat(tables, ignore_index=True)),
    )  # fmt: skip
    return [Step(stage, partial(_pages_of_calibration, lab), partial(_draw_calibration, lab))]


def _pages_of_calibration(lab: Lab) -> list[Asked]:
    asked = (asked_calibration(lab, part) for part in (DETECTIONS, SQUARES))
    return [one for one in asked if one is not None]


def _draw_calibration(lab: Lab, report: Report) -> None:
    if (lab.calibration / SAMPLE).is_file():
        return
    report("drawing what to answer", 0, 1)
    settings = lab.settings.calibration
    draw_sample([lab.results], lab.calibration, SampleConfig(settings.answers, settings.squares))


def _fit(lab: Lab, report: Report) -> Facts:
    report("fitting the site profile", 0, 1)
    profile = fit_profile(lab.calibration, lab.settings.name)
    save_profile(lab.site, profile)
    return {"profile": profile.told()}


def told_facts(facts: Mapping[str, Any]) -> str:
    """What a step made, in a line."""
    return ", ".join(f"{name} {_plain(value)}" for name, value in facts.items() if name != CUT_SHARE)


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return named(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
