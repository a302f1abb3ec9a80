"""The steps on PHH3 slides: candidates, what people label of them, CNN1 and CNN2.

The bundled CNN1 and CNN2 have a say in which candidates are asked, not in what people see; the laboratory's
own networks start from them. Where `lab.toml` skips the rounds, the bundled ones take their place.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from metaphase.base.provenance import Ingredients
from metaphase.base.tables import read_manifest, read_table, write_table
from metaphase.jobs.calibration import merge_project
from metaphase.jobs.lab.folder import Lab, RoundSettings
from metaphase.jobs.lab.parts import (
    PairSlides,
    Reporting,
    Step,
    all_answers,
    asked_round,
    in_parts,
    inside,
    outcome,
    pairs_of,
    seconds_of,
)
from metaphase.jobs.phh3 import CALLED, classify_cohort, search_cohort
from metaphase.jobs.stages import Facts, Report, Stage
from metaphase.labels.observers.project import ITEMS, LABELS, read_items
from metaphase.labels.phh3.cases import (
    HELD_OUT,
    DrawConfig,
    Purpose,
    draw_project,
    read_candidates,
    read_classified,
)
from metaphase.labels.phh3.networks import (
    LearningConfig,
    cnn1_rows,
    cnn2_rows,
    load_classifier,
    train_classifier,
)
from metaphase.labels.phh3.survey import Phh3Error
from metaphase.networks.cards import PHH3_NETWORKS, NetworkIdentity, NetworkSpec, named_model, parse_card
from metaphase.networks.training.loop import Update

BROWN_S_PER_MM2 = 0.5
"""Finding brown objects in a square millimetre of slide, roughly."""

# ---- what decides them ----


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


# ---- the list of them ----


def phh3_steps(lab: Lab) -> list[Step]:
    """From the PHH3 slides to their mitoses."""
    pairs = pairs_of(lab)
    search = Stage("candidates", "brown objects of the PHH3 slides", (), ("cases",), partial(_search, lab),
                   CandidatesSearched(pairs))  # fmt: skip
    rounds = {number: _round(lab, number) for number in (1, 2) if _asks(lab, number)}
    first, second = (tuple(f"round {number}" for number in rounds if number <= last) for last in (1, 2))
    return [
        Step(search, seconds=3.0 * len(pairs) + BROWN_S_PER_MM2 * sum(lab.areas_mm2.values())),
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
            folder.mkdir(parents=True, exist_ok=True)
            (folder / NOTHING).write_text(str(error) + "\n", encoding="utf-8")
        return
    if there:
        _take_more(folder, target)


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
    seconds = sum(_seconds(lab, labelled))
    return Step(
        stage, seconds=seconds, shows=tuple(f"{name}/{one}" for one in ("curves.png", f"{name}.json"))
    )


def network_spec(lab: Lab) -> NetworkSpec:
    """The kind of network that CNN1 and CNN2 are."""
    if lab.settings.bundled_phh3:
        return parse_card(named_model(PHH3_NETWORKS["cnn1"]).with_suffix(".json")).spec
    return NetworkSpec("classifier", lab.settings.phh3.gamma, lab.settings.phh3.normalisation)


def _seconds(lab: Lab, labelled: bool) -> tuple[float, float]:
    """What training CNN1 or CNN2 takes, and then asking it about every candidate, roughly."""
    learning, rounds = lab.settings.phh3, lab.settings.rounds
    passes = learning.epochs * (learning.samples_per_epoch or rounds.round1 or rounds.round2)
    return seconds_of(lab, (network_spec(lab),), passes) if labelled else 0.0, 3.0 * len(pairs_of(lab))


def _teach(lab: Lab, name: str, report: Report) -> Facts:
    """Train CNN1 or CNN2 from the rounds, and ask it about every candidate."""
    config, folder = lab.settings.phh3, lab.network(name)
    training, asking = in_parts(report, *_seconds(lab, True))

    def show(update: Update) -> None:
        training(f"{name}  {update}", update.epoch + update.step / update.steps, config.epochs)

    training(f"{name}: cutting patches", 0, 1)
    rounds, start = _labelled(lab), PHH3_NETWORKS[name] if lab.settings.bundled_phh3 else ""
    if not rounds:
        return _take(lab, name, report)
    rows = cnn1_rows(lab.round(1)) if name == "cnn1" else cnn2_rows(rounds[0], also=rounds[1:])
    result = train_classifier(name, rows, folder, config, start=start, device=lab.device, watch=show)
    return _classify(lab, name, result.model, {"F1 on validation patients": round(result.best, 3)}, asking)


def _take(lab: Lab, name: str, report: Report) -> Facts:
    """The bundled CNN1 or CNN2 in the place of an own one."""
    bundled, model = named_model(PHH3_NETWORKS[name]), lab.network(name) / f"{name}.safetensors"
    model.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".safetensors", ".json"):
        shutil.copyfile(bundled.with_suffix(suffix), model.with_suffix(suffix))
    return _classify(lab, name, model, {"bundled": PHH3_NETWORKS[name]}, report)


def _classify(lab: Lab, name: str, model: Path, facts: Facts, report: Report) -> Facts:
    classifier = load_classifier(name, model, lab.device)
    watch = Reporting(f"{name} classifies", report)
    batch = classify_cohort(lab.manifest, lab.cases, [classifier], watch=watch)
    what = CALLED[name]
    found = sum(one.counts.get(what, 0) for one in batch.results.values())
    return outcome(batch, facts | {what: found})
