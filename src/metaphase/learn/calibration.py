"""`metaphase calibrate`: a sample of a laboratory's searched slides to answer, and the profile made of it.

A calibration is a folder with a labelling project, `detections`, and `sample.parquet`: all detections of the
slides, with what is known about each and the probability with which it was to be asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metaphase.analysis.record import SlideResult, load_results
from metaphase.base.arrays import Floats
from metaphase.base.errors import OutputError, UsageError
from metaphase.base.tables import TableError, as_text, named, read_table, require_columns, write_table
from metaphase.counting.clinical import SURE, in_circle
from metaphase.counting.likely import (
    ObserverError,
    by_shape,
    log_odds,
    prior_of,
    slide_likelihood,
    tally,
)
from metaphase.counting.sites import (
    FEWEST_ANSWERS,
    SampleConfig,
    SiteProfile,
    design_table,
    draw_detections,
    precision_by_design,
    strata,
)
from metaphase.counting.specimen import CountConfig, at_point, find_hotspot, specimen
from metaphase.detections.table import CANDIDATES
from metaphase.labels.observers.consensus import AGREE, Merged, merge_answers
from metaphase.labels.observers.project import (
    ARTEFACT,
    ITEMS,
    LABELS,
    MITOSIS,
    NOT,
    UNSURE,
    Settings,
    item_name,
    load_project,
    write_project,
)
from metaphase.labels.observers.store import AnswerStore, Given
from metaphase.reports.agreement import write_agreement_page

DETECTIONS, SAMPLE = "detections", "sample.parquet"
DESIGN = "design"
"""Attribute of the sample: how it was drawn, and from what."""
VALUES = {MITOSIS: 1.0, NOT: 0.0, ARTEFACT: 0.0, UNSURE: 0.5}
ASK = Settings(title="Calibration", question="Is a mitosis in the middle?")


# ---- drawing ----


@dataclass(frozen=True)
class Drawn:
    """What there is to answer."""

    folder: Path
    slides: int
    detections: int


def draw_sample(results: Sequence[Path], folder: str | Path, config: SampleConfig | None = None) -> Drawn:
    """Draw detections over searched slides, and write the labelling project.

    `results` are folders of `metaphase detect`, of single slides or of cohorts; all of one model.
    """
    config, folder = config or SampleConfig(), Path(folder)
    if (folder / SAMPLE).exists() and (folder / DETECTIONS / ITEMS).exists():  # written last
        raise OutputError("already holds a calibration", path=folder, next_step="choose another folder")
    slides = load_results(dict.fromkeys(results))
    _refuse_mixed(slides)
    counting = at_point(CountConfig(), slides[0].stated["count"])
    if counting.prior is None:
        raise UsageError(
            f"nothing is known of how the model {slides[0].stated['model']} errs elsewhere",
            path=slides[0].folder,
            next_step="search with a model whose card has that, such as the bundled one",
        )
    parts = [_known_detections(one, number, counting) for number, one in enumerate(slides)]
    sample = pd.concat([part for part, _ in parts], ignore_index=True)
    if sample.empty:
        raise UsageError("the slides have no detections", next_step="give slides with tumour")
    stratum = strata(sample["probability"].to_numpy(np.float64), sample["hot"].to_numpy(bool))
    asked, inclusion = draw_detections(stratum, config.answers, np.random.default_rng(config.seed))
    sample = sample.assign(stratum=stratum, inclusion=inclusion, item="")
    names = [item_name(str(sample["case"][row]), int(sample["index"][row])) for row in asked]
    sample.loc[asked, "item"] = names
    sample.attrs[DESIGN] = {
        "model": slides[0].stated["model"],
        "searched_with": slides[0].stated["searched_with"],
        "deltas": _deltas(slides[0].stated),
        "slides": [one.name for one in slides],
        "areas_mm2": [areas for _, areas in parts],
        "prior": asdict(counting.prior),
        "sample": asdict(config),
        "strata": design_table(stratum, inclusion, (sample["item"] != "").to_numpy(bool)),
    }
    write_table(folder / SAMPLE, sample.drop(columns=["slide", "mpp", "index"]))
    write_project(folder / DETECTIONS, sample.loc[asked, ["item", "slide", "x", "y", "case", "mpp"]], ASK)
    return Drawn(folder, len(slides), len(asked))


def _refuse_mixed(slides: Sequence[SlideResult]) -> None:
    """One model, searched alike, at one pair of operating points; each slide once."""
    for one in slides:
        if "searched_with" not in one.stated:
            raise TableError(
                "does not say which networks made it",
                path=one.folder / CANDIDATES,
                next_step="run `metaphase detect` again, which costs seconds",
            )
    names = pd.Series([one.name for one in slides])
    if names.duplicated().any():
        raise UsageError(
            f"slides of the same name: {named(names[names.duplicated()])}", next_step="give each slide once"
        )
    ways = {
        json.dumps([one.stated["searched_with"], *_deltas(one.stated).values()], sort_keys=True)
        for one in slides
    }
    if len(ways) > 1:
        raise UsageError(
            "the slides were searched with different networks or operating points",
            path=slides[0].folder,
            next_step="first search all of them with the same model and settings",
        )


def _deltas(stated: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(stated[name]["delta"]) for name in ("mitoses", "count")}


def _known_detections(
    one: SlideResult, number: int, counting: CountConfig
) -> tuple[pd.DataFrame, tuple[float, float]]:
    """All detections in a slide's regions, as the model left them; tissue in circle, and beside it (mm2)."""
    slide = specimen(one.candidates, one.mpp, one.tissue, None, counting, one.record.scope)
    spot = find_hotspot(slide)
    inside = slide.area_mm2 if slide.is_small else spot.tissue_mm2
    about = {
        "case": one.name,
        "slide": str(one.summary["slide"]),
        "mpp": one.mpp,
        "number": number,
        "index": np.arange(len(slide.positions)),
        "x": slide.positions[:, 0],
        "y": slide.positions[:, 1],
        "probability": slide.probability,
        "hot": in_circle(slide, spot),
    }
    return pd.DataFrame(about), (inside, slide.area_mm2 - inside)


# ---- fitting ----


def fit_profile(
    folder: str | Path,
    name: str = "",
    *,
    answers: str | Path | None = None,
    error: ObserverError | None = None,
    made: date | None = None,
) -> SiteProfile:
    """The profile that the answers make, those of the project or of a table (item, answer, observer).

    An item with several observers has what most of them say; one that is left open says nothing.
    """
    folder, error = Path(folder), error or ObserverError()
    sample = read_table(folder / SAMPLE)
    design = _design_of(sample, folder)
    answer_rows = (
        answers_table(standing(folder / DETECTIONS)) if answers is None else _answers_of_table(Path(answers))
    )
    unknown = [item for item in answer_rows["item"] if item not in set(sample["item"]) - {""}]
    if unknown:
        raise TableError(
            f"answers about items that were not drawn: {named(unknown)}",
            path=answers or folder,
            next_step="give the answers of this calibration",
        )
    share = np.asarray(sample["item"].map(_values(answer_rows, answers or folder)), np.float64)
    answer = np.where(np.isnan(share) | (share == 0.5), np.nan, np.where(share > 0.5, 1.0, 0.0))
    asked = np.isfinite(answer)
    if asked.sum() < FEWEST_ANSWERS:
        raise UsageError(
            f"detections with an answer: {asked.sum()}", next_step="answer the others, then fit again"
        )
    probability = sample["probability"].to_numpy(np.float64)
    inclusion, sure = sample["inclusion"].to_numpy(np.float64), asked & (probability >= SURE)
    precision = {
        each: found
        for each, delta in design["deltas"].items()
        if (found := precision_by_design(answer, inclusion, probability >= delta, error))
    }
    return SiteProfile(
        name=name or folder.resolve().name,
        made=made or date.today(),
        model=design["model"],
        searched_with=design["searched_with"],
        slides=tuple(design["slides"]),
        area_mm2=float(np.sum(design["areas_mm2"])),
        answers=int(asked.sum()),
        observers=tuple(sorted(set(answer_rows["observer"]))),
        design={"sample": design["sample"], "strata": design["strata"]},
        error=asdict(error),
        deltas=design["deltas"],
        precision=precision,
        sure=(int(sure.sum()), int(answer[sure].sum())),
        shapes=_shapes(sample, answer, design, error),
        answered=_answers_by_slide(sample, answer),
    )


def _design_of(sample: pd.DataFrame, folder: Path) -> dict[str, Any]:
    """How a sample was drawn; of one of another version, what the profile needs is not known."""
    design = sample.attrs.get(DESIGN)
    if not isinstance(design, dict) or not design.keys() >= {"slides", "areas_mm2", "prior"}:
        raise TableError(
            "was drawn by another version of metaphase",
            path=folder / SAMPLE,
            next_step="draw a sample into another folder, and answer it",
        )
    return design


def _shapes(
    sample: pd.DataFrame, answer: Floats, design: Mapping[str, Any], error: ObserverError
) -> dict[str, list[float]]:
    """By slide, the log-likelihood of each shape, relative to the likeliest."""
    prior = prior_of(design["prior"])
    odds = log_odds(sample["probability"].to_numpy(np.float64))
    hot, number = sample["hot"].to_numpy(bool), sample["number"].to_numpy(np.int64)
    found = {}
    for each, (name, areas) in enumerate(zip(design["slides"], design["areas_mm2"], strict=True)):
        inside, beside = (number == each) & hot, (number == each) & ~hot
        circle, rest = (
            tally(odds[part], answer[part], max(area, 1e-3))
            for part, area in zip((inside, beside), areas, strict=True)
        )
        value = by_shape(slide_likelihood(circle, rest, prior, error))
        found[str(name)] = np.round(value - value.max(), 3).tolist()
    return found


def _answers_by_slide(sample: pd.DataFrame, answer: Floats) -> dict[str, list[tuple[float, float, float]]]:
    """Positions and answers by slide."""
    asked = sample.assign(answer=answer)[np.isfinite(answer)]
    return {
        str(case): [tuple(row) for row in part[["x", "y", "answer"]].to_numpy(np.float64).tolist()]
        for case, part in asked.groupby("case")
    }


def standing(folder: Path) -> list[Given]:
    """The answers of a project; none where there is no project or nobody has begun."""
    project = load_project(folder)
    if not project.answers_path.exists():
        return []
    with AnswerStore(project) as store:
        return store.current()


def answers_table(given: Iterable[Given]) -> pd.DataFrame:
    """Answers as a table that says the same however they came in."""
    rows = sorted((one.observer, one.item, one.answer) for one in given)
    return pd.DataFrame(rows, columns=["observer", "item", "answer"], dtype=str)


def _answers_of_table(path: Path) -> pd.DataFrame:
    """Answers from a table; without a column observer they are one person's."""
    table = read_table(path)
    require_columns(table, ("item", "answer"), path)
    if "observer" not in table.columns:
        table = table.assign(observer="")
    table = table.assign(
        **{name: as_text(table[name]).str.strip() for name in ("observer", "item", "answer")}
    )
    return table.loc[table["answer"] != "", ["observer", "item", "answer"]]


def _values(given: pd.DataFrame, source: str | Path) -> pd.Series[float]:
    """The mean answer to each item."""
    plain: Iterable[str] = given["answer"].astype(str).str.lower()
    numbers = {f"{value:g}": value for value in VALUES.values()} | VALUES
    odd = sorted({answer for answer in plain if answer not in numbers})
    if odd:
        raise TableError(
            f"answers that are not known here: {named(odd)}",
            path=source,
            next_step=f"choose one of {', '.join(VALUES)}",
        )
    values = given.assign(value=[numbers[answer] for answer in plain]).drop_duplicates(
        ["observer", "item", "value"]
    )
    both = values["item"][values.duplicated(["observer", "item"])]
    if len(both):
        raise TableError(
            f"an observer gave two answers to the same detection: {named(sorted(set(both)))}",
            path=source,
            next_step="keep the one that was meant",
        )
    return values.groupby("item")["value"].mean().astype(float)


DISAGREEMENTS = "disagreements.csv"


def merge_project(
    folder: str | Path,
    agree: int = AGREE,
    output: str | Path | None = None,
    observers: Sequence[str] | None = None,
) -> Merged:
    """Merge a project's answers (of all observers, or of those named).

    Writes labels, disagreements and a report to `output`, which is the project's folder by default.
    """
    project = load_project(folder)
    with AnswerStore(project) as store:
        given = _chosen_answers(store.current(), observers, store)
        changes = store.changes()
    merged = merge_answers(project, given, agree, changes)
    target = project.folder if output is None else Path(output)
    write_table(target / LABELS, merged.labels)
    write_table(target / DISAGREEMENTS, merged.disagreements)
    write_agreement_page(target, project, merged)
    return merged


def _chosen_answers(given: list[Given], observers: Sequence[str] | None, store: AnswerStore) -> list[Given]:
    if observers is None:
        return given
    wanted = {store.known(name) for name in observers}
    unknown = wanted - {one.observer for one in given}
    if unknown:
        raise UsageError(
            f"these observers have not answered: {named(sorted(unknown))}",
            next_step=f"observers are {', '.join(store.observers()) or 'none yet'}",
        )
    return [one for one in given if one.observer in wanted]
