"""The steps from pairs of slides to labels: what each makes, and who has to do something.

Each step is a stage (`base.stages`) over the functions that the single commands call. A step that asks people
has pages, and is worked on when enough of them is answered.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd

from metaphase.base.files import write_bytes, write_text
from metaphase.base.stages import Facts, Report, stage
from metaphase.base.tables import case_folder, read_manifest, write_table
from metaphase.lab.folder import Lab, RoundSettings
from metaphase.lab.parts import (
    FAILED,
    NOTHING,
    PairSlides,
    Reporting,
    Step,
    all_answers,
    asked_review,
    asked_round,
    inside,
    outcome,
    pairs_of,
    round_curve,
)
from metaphase.labels.building import (
    BuildConfig,
    build_cohort,
    finish_cohort,
    network_points,
)
from metaphase.labels.observers.project import ITEMS, LABELS, read_items
from metaphase.labels.phh3.candidates import Phh3Error
from metaphase.labels.phh3.cases import read_candidates, read_classified, search_cohort
from metaphase.labels.phh3.networks import (
    CALLED,
    LearningConfig,
    classify_cohort,
    cnn1_rows,
    cnn2_rows,
    load_classifier,
    train_classifier,
)
from metaphase.labels.phh3.sampling import HELD_OUT, DrawConfig, Purpose, draw_project
from metaphase.labels.reviewing import collect_decisions
from metaphase.learn.calibration import merge_project
from metaphase.networks.cards import PHH3_NETWORKS, NetworkIdentity, card_of, named_model

# ---- the steps: candidates, what people label of them, CNN1 and CNN2, mitoses in H&E, their review ----
#
# The bundled CNN1 and CNN2 have a say in which candidates are asked, not in what people see; the laboratory's
# own networks start from them. Where `lab.toml` skips the rounds, the bundled ones take their place.


def label_steps(lab: Lab) -> list[Step]:
    """The steps in order; those that `lab.toml` leaves out are not among them."""
    pairs, rounds = pairs_of(lab), {number: _round(lab, number) for number in _asked_rounds(lab)}
    first, second = (tuple(rounds[number].name for number in rounds if number <= last) for last in (1, 2))
    steps = [
        Step(search_candidates(lab, pairs=pairs)),
        rounds.get(1),
        _network(lab, "cnn1", "CNN1, which drops artefacts", first or ("candidates",), bool(first)),
        rounds.get(2),
        _network(lab, "cnn2", "CNN2, which recognises mitoses", (*second, "cnn1"), bool(second)),
        Step(build_reference(lab, pairs=pairs, build=lab.settings.build), shows=("cases/reference.csv",)),
    ]
    if lab.settings.rounds.review:
        asked = asked_review(lab)
        steps.append(Step(review(lab, answers=all_answers(asked)), asked, shows=("cases/decisions.csv",)))
    return [step for step in steps if step is not None]


def skipped_rounds(lab: Lab) -> list[str]:
    """What of the PHH3 slides the bundled networks decide alone."""
    labelled = _labelled_rounds(lab)
    return [*(["artefacts"] if lab.round(1) not in labelled else []), *([] if labelled else ["mitoses"])]


def _asked_rounds(lab: Lab) -> list[int]:
    rounds = lab.settings.rounds
    return [number for number, items in ((1, rounds.round1), (2, rounds.round2)) if items]


def _labelled_rounds(lab: Lab) -> list[Path]:
    """The rounds that have labels, the last one first."""
    folders = [lab.round(number) for number in reversed(_asked_rounds(lab))]
    return [folder for folder in folders if (folder / LABELS).is_file()]


# ---- candidates and rounds ----


@stage("candidates", "brown objects of the PHH3 slides", writes=("cases",))
def search_candidates(lab: Lab, report: Report, *, pairs: tuple[PairSlides, ...]) -> Facts:
    """Brown objects of all PHH3 slides."""
    batch = search_cohort(lab.manifest, lab.cases, watch=Reporting("candidates of", report))
    return outcome(batch, {"candidates": sum(case.candidates for case in batch.results.values())})


ABOUT = {1: "labels of brown objects, for CNN1", 2: "labels of what CNN1 keeps, for CNN2"}
READS = {1: ("candidates",), 2: ("cnn1",)}


def _round(lab: Lab, number: int) -> Step:
    asked, writes = asked_round(lab, number), (inside(lab, lab.round(number)),)
    merge = merge_round((lab, number), answers=all_answers(asked), agree=lab.settings.rounds.agree)
    made = replace(merge, name=f"round {number}", about=ABOUT[number], reads=READS[number], writes=writes)
    shows = tuple(f"{writes[0]}/{name}" for name in ("agreement.html", LABELS))
    return Step(made, asked, partial(_draw, lab, number), shows=shows)


def _draw(lab: Lab, number: int, report: Report) -> bool:
    """Draw the items of a round, or add to them where `lab.toml` asks for more; whether it did."""
    rounds, folder = lab.settings.rounds, lab.round(number)
    report(f"drawing round {number}", 0, 1)
    there = len(read_items(folder)) if (folder / ITEMS).is_file() else 0
    wanted = _items_wanted(lab, rounds) if number == 1 else rounds.round2
    if there >= wanted or (folder / NOTHING).exists():
        return False
    purpose: Purpose = "cnn1" if number == 1 else "cnn2"
    if number == 1 and lab.settings.bundled_phh3:
        _suggest(lab, report)
    share = rounds.unsure_share if number == 2 or lab.settings.bundled_phh3 else 0.0
    config = DrawConfig(wanted - there, active_share=share, source=rounds.source, seed=rounds.seed)
    exclude = [lab.round(1)] if number == 2 else []
    exclude += [folder] if there else []
    more = folder / "more"
    shutil.rmtree(more, ignore_errors=True)  # of a run that was killed
    target = more if there else folder
    try:
        draw_project(read_manifest(lab.manifest), lab.cases, target, purpose, config, exclude=exclude)
    except Phh3Error as error:
        if number == 2 and not there:
            write_text(folder / NOTHING, str(error) + "\n")
        return False
    if there:
        items = pd.concat([read_items(folder), read_items(more)], ignore_index=True)
        items["slide"] = [str(Path(slide).resolve()) for slide in items["slide"]]
        write_table(folder / ITEMS, items)
        shutil.rmtree(more)
    return True


def _suggest(lab: Lab, report: Report) -> None:
    """Let the bundled networks see all candidates, unless some have: round 1 asks what they doubt."""
    try:
        for pair in pairs_of(lab):
            read_classified(case_folder(lab.cases, pair.case))
    except Phh3Error:
        classifiers = [load_classifier(name, model, lab.device) for name, model in PHH3_NETWORKS.items()]
        classify_cohort(lab.manifest, lab.cases, classifiers, watch=Reporting("suggestions for", report))


def _items_wanted(lab: Lab, rounds: RoundSettings) -> int:
    """Items of round 1: at most half of the candidates, for round 2 needs others."""
    pool = 0
    for pair in pairs_of(lab):
        if pair.split != HELD_OUT:
            with suppress(Phh3Error):
                pool += len(read_candidates(case_folder(lab.cases, pair.case)))
    return max(1, min(rounds.round1, pool // 2))


@stage("round", "labels")
def merge_round(which: tuple[Lab, int], report: Report, *, answers: pd.DataFrame, agree: int) -> Facts:
    """The labels that the answers of a round give."""
    lab, number = which
    folder = lab.round(number)
    if (folder / NOTHING).exists():
        return {"items": 0, "why": (folder / NOTHING).read_text(encoding="utf-8").strip()}
    observers = answers["observer"].nunique()
    merged = merge_project(folder, max(1, min(agree, observers)))
    facts: Facts = {"items": len(merged.labels), "labels": merged.labelled, "observers": observers}
    counts = merged.labels["label"].value_counts()
    facts |= {str(name): int(count) for name, count in counts.items() if name}
    if curve := round_curve(lab, number):
        facts["curve"] = str(curve)
    if observers > 1:
        kappa, low, high = merged.fleiss
        facts["Fleiss' kappa"] = f"{kappa:.2f} [{low:.2f}, {high:.2f}]"
    return facts


# ---- networks ----


def _network(lab: Lab, name: str, about: str, reads: tuple[str, ...], labelled: bool) -> Step:
    """The step of CNN1 or CNN2: trained where it is `labelled`, else the bundled one."""
    learning, use = lab.settings.phh3, lab.settings.bundled_phh3 or not labelled
    start = card_of(PHH3_NETWORKS[name]).identity if use else None
    teach = teach_phh3((lab, name), learning=learning if labelled else None, start=start)
    made = replace(teach, name=name, about=about, reads=reads, writes=(name,))
    return Step(made, shows=(f"{name}/curves.png", f"{name}/{name}.json"))


@stage("PHH3 network", "CNN1 or CNN2", renew=True)
def teach_phh3(
    network: tuple[Lab, str],
    report: Report,
    *,
    learning: LearningConfig | None,
    start: NetworkIdentity | None,
) -> Facts:
    """CNN1 or CNN2 of a laboratory, trained from its rounds, and what it says about every candidate.

    Without learning, or without labels, the bundled one takes its place.
    """
    lab, name = network
    rounds, bundled = _labelled_rounds(lab), PHH3_NETWORKS[name]
    model = lab.network(name) / f"{name}.safetensors"
    facts: Facts = {"bundled": bundled}
    if learning is None or not rounds:
        for suffix in (".safetensors", ".json"):
            source = named_model(bundled).with_suffix(suffix)
            write_bytes(model.with_suffix(suffix), source.read_bytes())
    else:
        rows = cnn1_rows(lab.round(1)) if name == "cnn1" else cnn2_rows(rounds[0], also=rounds[1:])
        begin = bundled if lab.settings.bundled_phh3 else ""
        result = train_classifier(
            name, rows, model.parent, learning, start=begin, device=lab.device, report=report
        )
        facts = {"F1 on validation patients": round(result.best, 3)}
    classifiers = [load_classifier(name, model, lab.device)]
    watch = Reporting(f"{name} classifies", report)
    batch = classify_cohort(lab.manifest, lab.cases, classifiers, watch=watch)
    what = CALLED[name]
    return outcome(batch, facts | {what: sum(case.counts.get(what, 0) for case in batch.results.values())})


# ---- the reference standard ----


@stage("reference", "mitoses carried to H&E", reads=("cnn2",), writes=("cases/reference.parquet",))
def build_reference(lab: Lab, report: Report, *, pairs: tuple[PairSlides, ...], build: BuildConfig) -> Facts:
    """The mitoses in H&E coordinates."""
    watch = Reporting("reference standard of", report)
    built = build_cohort(lab.manifest, lab.cases, network_points(()), build, watch=watch)
    failed = {failure.case: failure.reason for failure in built.failures}
    facts: Facts = {"points": len(built.table), "accepted": int(built.table["accepted"].sum())}
    return facts | ({FAILED: failed} if failed else {})


@stage(
    "review",
    "least certain mitoses, checked by people",
    reads=("reference",),
    writes=("cases/reference.parquet",),
)
def review(lab: Lab, report: Report, *, answers: pd.DataFrame) -> Facts:
    """The mitoses as people decided."""
    if not asked_review(lab):
        return {"reviewed": 0}
    collect_decisions(lab.cases)
    done = finish_cohort(lab.cases)
    return {"reviewed": done.reviewed, "changed": done.changed, "accepted": int(done.table["accepted"].sum())}
