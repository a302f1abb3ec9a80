"""The paper of one's own data: its stages one after the other, and the numbers behind its tables and figures.

A folder holds `labels` (as of a laboratory's workflow), `cohort` (pairs and outside fields together),
`training` (as of `metaphase experiments`) and `outside` (what is measured elsewhere).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.analysis.cohort import cohort_slides
from metaphase.analysis.scoring import proliferation_at, read_cases
from metaphase.base.errors import UsageError
from metaphase.base.foreign import folder_name
from metaphase.base.settings import (
    PathText,
    blamed,
    config_files,
    read_toml,
    resolved,
    settings,
    settings_of,
)
from metaphase.base.sharing.batch import ERRORS
from metaphase.base.stages import Report, States, Watch, run_stages
from metaphase.base.tables import (
    TableError,
    named,
    read_manifest,
    read_table,
    write_manifest,
    write_table,
)
from metaphase.detections.matching import NOBODY
from metaphase.detections.table import IGNORE, LOOKALIKE, MITOSIS, DetectionSet
from metaphase.evaluation.comparison import load_truth
from metaphase.evaluation.datasets import read_simulated
from metaphase.evaluation.grades import evaluate_scores
from metaphase.evaluation.metrics import BootstrapConfig, Estimate
from metaphase.evaluation.mitoses import evaluate_mitoses, locate
from metaphase.evaluation.tuning import COUNT_PARTS, tune_count, tune_mitoses
from metaphase.lab.folder import Lab, LabSettings, RoundSettings
from metaphase.lab.label_steps import label_steps
from metaphase.lab.parts import first_open
from metaphase.labels.building import BuildConfig
from metaphase.labels.observers.project import load_project, read_items, write_project
from metaphase.labels.observers.store import AnswerStore, Entry
from metaphase.labels.phh3.networks import LearningConfig
from metaphase.learn.calibration import answers_table, current_answers
from metaphase.learn.chain import Chain
from metaphase.learn.config import RunConfig, run_config
from metaphase.learn.experiments import Experiments, run_and_write
from metaphase.learn.run import delivered_model
from metaphase.learn.sources import split_manifest
from metaphase.simulation.cohort import BOTH, simulate_cohort
from metaphase.simulation.config import MPP, SimulationConfig
from metaphase.simulation.observers import FOUR_OBSERVERS, right_answers, simulate_answers
from metaphase.simulation.rendering import Frame

# ---- what a file says ----


@settings
class PaperSection:
    """What the tables and figures are made of, beside the pairs and what `metaphase experiments` takes."""

    labels1: PathText = ""
    """Labelling project of CNN1's candidates, answered or merged; without one, the bundled CNN1 is taken."""
    labels2: PathText = ""
    """That of CNN2's; without any, the bundled CNN2 is taken."""
    rounds: RoundSettings = RoundSettings(round1=2000, round2=2000, unsure_share=0.0, agree=3, review=0)
    """How many candidates simulated observers label, and how many must agree."""
    phh3: LearningConfig = LearningConfig()
    """How CNN1 and CNN2 are trained."""
    build: BuildConfig = BuildConfig()
    """How pairs are registered, by default not as in the paper, and which figures become labels."""
    fields: PathText = ""
    """Folder with the manifest and truth of labelled fields from elsewhere, as `metaphase data import` writes
    it. Those of the split test judge, the others tune."""
    slides: PathText = ""
    """Manifest of slides from elsewhere with grade, proliferation or both; splits as of `fields`."""
    study: PathText = ""
    """Key of an observer study of the detections (`metaphase observers export`)."""
    answers: tuple[PathText, ...] = ()
    """Its answer sheets, each beside its folder of patches."""
    pairs: SimulationConfig | None = None
    """Pairs to simulate, in place of a manifest; simulated observers then label."""
    outside: SimulationConfig | None = None
    """Fields and slides of other laboratories to simulate, in place of `fields` and `slides`."""


@dataclass(frozen=True)
class Paper:
    """The settings and the folder of a run."""

    root: Path
    section: PaperSection
    run: RunConfig
    manifest: str
    """Of the pairs; empty where they are simulated."""
    device: str | None = None

    @property
    def lab(self) -> Lab:
        """Where candidates become labels; with labels of one's own, the networks start from nothing."""
        section = self.section
        given: dict[str, Any] = {
            "round1": int(bool(section.labels1)),
            "round2": int(bool(section.labels2)),
        }
        rounds = replace(section.rounds, review=0, **({} if section.pairs else given))  # nobody is asked
        said = LabSettings(bundled_phh3=False, rounds=rounds, phh3=section.phh3, build=section.build)
        return Lab(self.root / "labels", self.device, said)

    @cached_property
    def job(self) -> Experiments:
        """The experiments that tables and figures are made of."""
        return Experiments(Chain(self.run, self.root / "training", self.device))

    @property
    def bootstrap(self) -> BootstrapConfig:
        """Settings of the bootstrap of intervals."""
        return BootstrapConfig(samples=self.run.test.bootstrap)

    @property
    def outside(self) -> Path:
        """Folder of what is measured elsewhere."""
        return self.root / "outside"


def read_paper(path: Path, root: Path, device: str | None = None) -> Paper:
    """The paper of a TOML file of `metaphase experiments` with a table `[paper]`, or of a manifest of pairs,
    for which `configs/paper.toml` has the numbers. The table of the reference standard is made here,
    whatever the file names."""
    is_manifest, root = path.suffix.lower() != ".toml", root.resolve()
    with blamed(path):
        values = read_toml(config_files()["paper"] if is_manifest else path)
        cohort = dict(values.get("cohort", {}))
        given = str(path) if is_manifest else resolved(path.parent, str(cohort.get("manifest", "")))
        section = settings_of(PaperSection, values.pop("paper", {}), "paper", base=path.parent)
        if bool(given) == bool(section.pairs):
            raise UsageError(
                "it names no pairs, or both a manifest and pairs to simulate",
                next_step="give cohort.manifest or a table [paper.pairs]",
            )
        values["cohort"] = cohort | {"manifest": str(root / "cohort" / "manifest.csv")}
        made_here = {"source": "phh3", "table": str(root / "cohort" / "reference.parquet")}
        values["reference"] = dict(values.get("reference", {})) | made_here
        return Paper(root, section, run_config(values, path.parent), given, device)


# ---- the stages: labels, the cohort, experiments ----


def run_paper(paper: Paper, *, report: Report, watch: Watch, at_once: int = 1) -> States:
    """Do what is left of labels and experiments; each stage is kept and resumed as ever."""
    if paper.section.pairs is not None:
        pairs = _simulate(paper.root / "pairs", paper.section.pairs, BOTH, report)
    else:
        pairs = split_manifest(paper.manifest, paper.run.cohort)
        pairs = pairs[(pairs["he"] != "") & (pairs["phh3"] != "")]
    if pairs.empty:
        advice = "fill its columns he and phh3"
        raise TableError("there is no pair of slides", path=paper.manifest, next_step=advice)
    write_manifest(paper.lab.manifest, pairs)
    labelled = label_pairs(paper, report, watch)
    _find_outside(paper, report)
    _join_cohort(paper)
    return (*labelled, *run_and_write(paper.job, report=report, watch=watch, at_once=at_once))


def _simulate(
    folder: Path, config: SimulationConfig, frames: tuple[Frame, ...], report: Report
) -> pd.DataFrame:
    simulate_cohort(folder, config, frames=frames, progress=report, replace=True)
    return read_manifest(folder / "manifest.csv")


def label_pairs(paper: Paper, report: Report, watch: Watch) -> States:
    """The steps of a laboratory's workflow up to the reference standard; what people are asked is answered
    already, or by simulated observers."""
    lab = paper.lab
    for source, target in ((paper.section.labels1, lab.round(1)), (paper.section.labels2, lab.round(2))):
        if source:
            _take_project(Path(source), target)
    while True:
        steps = label_steps(lab)
        number, states = first_open(lab, steps)
        if number is None:
            return states
        step = steps[number]
        if paper.section.pairs is not None and step.prepare is not None and step.prepare(report):
            continue
        unanswered = [page for page in step.pages if page.answers.empty]
        for page in unanswered:
            _answer(paper, page.folder)
        if not unanswered:
            run_stages([each.stage for each in steps[: number + 1]], lab.root, report=report, watch=watch)


def _take_project(source: Path, target: Path) -> None:
    """A labelling project with its answers, unless they are there."""
    given = current_answers(source)
    if not given:
        raise UsageError(
            "nobody has answered anything there",
            path=source,
            next_step="label it, or take answers in with metaphase label import",
        )
    if target.exists():
        if answers_table(current_answers(target)).equals(answers_table(given)):
            return
        shutil.rmtree(target)
    write_project(target, read_items(source), load_project(source).settings)
    entries = [Entry(each.observer, each.item, each.answer, each.seconds, each.time) for each in given]
    with AnswerStore(load_project(target)) as store:
        store.record_many(entries)


def _answer(paper: Paper, folder: Path) -> None:
    """Simulated observers answer: a student in round 1, four people in round 2, as in the paper."""
    items, first = read_items(folder), folder == paper.lab.round(1)
    observers = [observer for observer in FOUR_OBSERVERS if observer.name == "student" or not first]
    truths = {
        str(case): read_table(paper.root / "pairs" / str(case) / "truth.parquet")
        for case in items["case"].unique()
    }
    answers = simulate_answers(right_answers(items, truths, MPP), observers)
    with AnswerStore(load_project(folder)) as store:
        store.record_many(Entry(*row) for row in answers.itertuples(index=False, name=None))


# ---- what comes from elsewhere ----

FIELDS, SLIDES = "fields", "slides"
TUNE, TEST = "tune", "test"


def _find_outside(paper: Paper, report: Report) -> None:
    """The manifests of fields and slides from elsewhere, and the truth of the fields, where there are any."""
    section = paper.section
    for kind in (FIELDS, SLIDES):
        (paper.outside / f"{kind}.csv").unlink(missing_ok=True)
    if section.outside is not None:
        folder = paper.root / "elsewhere"
        first = _simulate(folder, section.outside, ("he",), report)["laboratory"].iloc[0]  # trains
        made = read_simulated(folder)
        away = made.manifest[made.manifest["laboratory"] != first]
        _write_outside(paper, FIELDS, away, made.truth)
        _write_outside(paper, SLIDES, away)
    if section.fields:
        cohort, points = load_truth(Path(section.fields))
        labelled = cohort.manifest[cohort.manifest["case"].isin(points.slides)]
        _write_outside(paper, FIELDS, labelled, points)
    if section.slides:
        _write_outside(paper, SLIDES, read_manifest(section.slides))


def _write_outside(
    paper: Paper, kind: str, manifest: pd.DataFrame, truth: DetectionSet | None = None
) -> None:
    """Cases begin with the kind: a field may be called as a pair is. The split test judges, the others
    tune; where all are of one split, every second patient judges."""
    called = {case: folder_name(f"{kind}-{case}".replace("/", "-")) for case in manifest["case"]}
    judges = manifest["split"] == TEST
    if judges.nunique() == 1:
        judges = pd.Series(pd.factorize(manifest["patient"])[0] % 2 == 1, index=manifest.index)
    written = manifest.assign(
        case=manifest["case"].map(called),
        patient="outside " + manifest["patient"],
        split=judges.map({True: TEST, False: TUNE}),
    )
    write_manifest(paper.outside / f"{kind}.csv", written)
    if truth is not None:
        own = truth.table[truth.table["label"].isin((MITOSIS, LOOKALIKE, IGNORE))]
        own = pd.concat([own, pd.DataFrame({"slide": truth.slides})])  # some have no point
        own = own.assign(slide=own["slide"].map(called)).dropna(subset="slide")
        write_table(paper.outside / "truth.csv", own[["slide", "x", "y", "label"]])


def outside_manifest(paper: Paper, kind: str) -> pd.DataFrame | None:
    """The fields or slides from elsewhere; None where there are none."""
    path = paper.outside / f"{kind}.csv"
    return read_manifest(path) if path.is_file() else None


def _join_cohort(paper: Paper) -> None:
    """One cohort of the pairs and of the fields that tune, on which the experiments are tested."""
    manifest, every = read_manifest(paper.lab.cases / "manifest.csv"), read_manifest(paper.lab.manifest)
    failed = every[~every["case"].isin(manifest["case"])]
    if emptied := sorted(set(failed["split"]) - set(manifest["split"])):
        raise UsageError(
            f"no pair is left in the split {named(emptied)}: {named(failed['case'])} failed",
            path=paper.manifest or paper.lab.manifest,
            next_step=f"see {paper.lab.cases / ERRORS}, mend or replace these pairs, or deal other splits",
        )
    reference = read_table(paper.lab.cases / "reference.parquet")
    fields = outside_manifest(paper, FIELDS)
    if fields is not None:
        manifest = pd.concat([manifest, fields[fields["split"] == TUNE].assign(split=TEST)])
        truth = read_table(paper.outside / "truth.csv").rename(columns={"slide": "case"})
        reference = pd.concat([reference, truth.assign(accepted=True)])
    write_table(Path(paper.run.cohort.manifest), manifest)
    write_table(Path(paper.run.reference.table), reference)


# ---- the three tasks elsewhere ----

DELTAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995)
"""Thresholds at which slides are counted, for the best Spearman correlation."""


@dataclass(frozen=True)
class Elsewhere:
    """What the delivered network does on fields and slides from elsewhere; what they lack is missing."""

    detections: pd.DataFrame | None = None
    """On the fields that judge, from the tuned threshold on: slide, x, y, probability, and whether true."""
    agreement: Mapping[str, tuple[Estimate, int]] = field(default_factory=dict)
    """F1 of `mitoses`, kappa of `grade` and Spearman of `proliferation`, with the number of slides."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """What was tuned: thresholds of mitoses and of counts, and the thetas."""
    problems: tuple[str, ...] = ()
    """Why something could not be tuned or judged."""


def measure_elsewhere(paper: Paper, report: Report) -> Elsewhere:
    """Search what comes from elsewhere with the delivered network; tune on one part, judge on the other."""
    measured = Elsewhere()
    for kind, measure in ((FIELDS, _mitoses_elsewhere), (SLIDES, _counts_elsewhere)):
        if outside_manifest(paper, kind) is not None:
            try:
                measured = measure(paper, _search(paper, kind, report), measured)
            except TableError as error:
                problem = f"Nothing of {kind}: {error.problem}."
                measured = replace(measured, problems=(*measured.problems, problem))
    return measured


def _search(paper: Paper, kind: str, report: Report) -> Path:
    """The table of detections of fields or slides."""
    model, manifest = delivered_model(paper.job.chain), paper.outside / f"{kind}.csv"
    search = paper.job.chain.split_search
    tables = search.search(model.stem, [model], cohort_slides(manifest), report)
    parts = [table.assign(slide=name) for name, table in tables.items()]
    write_table(manifest.with_suffix(".parquet"), pd.concat(parts, ignore_index=True))
    return manifest.with_suffix(".parquet")


def _mitoses_elsewhere(paper: Paper, table: Path, measured: Elsewhere) -> Elsewhere:
    truth, manifest = paper.outside / "truth.csv", paper.outside / f"{FIELDS}.csv"
    matching = replace(paper.run.test.matching, missing_as_empty=True)
    point = tune_mitoses(truth, table, manifest=manifest, split=TUNE, matching=matching)
    matching = replace(matching, threshold=point.delta)
    result = evaluate_mitoses(
        truth, table, manifest=manifest, split=TEST, matching=matching, bootstrap=paper.bootstrap
    )
    judged = locate(
        truth,
        table,
        manifest=manifest,
        split=TEST,
        mpp=None,
        matching=matching,
        floor=point.delta,
        every=True,
    )
    parts = [
        pd.DataFrame(slide.positions, columns=["x", "y"]).assign(
            slide=case, probability=slide.probability, true=slide.matched != NOBODY
        )
        for case, slide in zip(judged.comparison.cohort.cases, judged.slides, strict=True)
    ]
    f1 = result.overall.f1, result.overall.slides
    numbers = {"delta of mitoses": point.delta}
    return replace(measured, detections=pd.concat(parts), agreement={"mitoses": f1}, numbers=numbers)


def _counts_elsewhere(paper: Paper, table: Path, measured: Elsewhere) -> Elsewhere:
    """Kappa and Spearman of the slides that judge, and what was tuned on the others."""
    manifest, counts, card = (paper.outside / name for name in ("slides.csv", "counts.csv", "points.json"))
    known = read_manifest(manifest)
    parts = [part for part in COUNT_PARTS if part in known and known[part].notna().any()]
    deltas = DELTAS if "proliferation" in parts else [*measured.numbers.values(), 0.5][:1]
    cases = read_cases([table], manifest=manifest)
    write_table(counts, proliferation_at(cases, [delta for delta in deltas if delta >= paper.run.test.floor]))
    card.unlink(missing_ok=True)
    point = tune_count(manifest, counts, card, split=TUNE, parts=parts)
    agreement = dict(measured.agreement)
    for part in parts:
        judged = evaluate_scores(
            part, manifest, counts, split=TEST, card=card, skip_missing=True, bootstrap=paper.bootstrap
        )
        agreement[part] = (judged.overall, len(judged.cases))
    numbers = {f"{name} of counts": value for name, value in point.numbers.items() if value is not None}
    return replace(measured, agreement=agreement, numbers={**measured.numbers, **numbers})
