"""`metaphase calibrate`: a sample of a laboratory's searched slides to answer, and the profile made of it.

A calibration is a folder with a labelling project, `detections`, and `sample.parquet`: all detections of the
slides, with what is known about each and the probability with which it was to be asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
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


def draw_sample(
    results: Sequence[Path], folder: str | Path, config: SampleConfig | None = None
) -> tuple[int, int]:
    """Draw detections over searched slides, and write the labelling project.

    `results` are folders of `metaphase detect`, of single slides or of cohorts; all of one model. Returns the
    number of slides, and of detections to answer.
    """
    config, folder = config or SampleConfig(), Path(folder)
    if (folder / SAMPLE).exists() and (folder / DETECTIONS / ITEMS).exists():  # written last
        raise OutputError("already holds a calibration", path=folder, next_step="choose another folder")
    slides = load_results(dict.fromkeys(results))
    _refuse_mixed(slides)
    stated = slides[0].stated
    counting = at_point(CountConfig(), stated["count"])
    if counting.prior is None:
        raise UsageError(
            f"nothing is known of how the model {stated['model']} errs elsewhere",
            path=slides[0].folder,
            next_step="search with a model whose card has that, such as the bundled one",
        )
    parts = [_known_detections(slide, number, counting) for number, slide in enumerate(slides)]
    sample, drawn = _draw(pd.concat([table for table, _ in parts], ignore_index=True), config)
    sample.attrs[DESIGN] = {
        "model": stated["model"],
        "searched_with": stated["searched_with"],
        "deltas": _deltas(stated),
        "slides": [slide.name for slide in slides],
        "areas_mm2": [areas for _, areas in parts],
        "prior": asdict(counting.prior),
        "sample": asdict(config),
        "strata": drawn,
    }
    asked = sample[sample["item"] != ""]
    write_table(folder / SAMPLE, sample.drop(columns=["slide", "mpp", "index"]))
    write_project(folder / DETECTIONS, asked[["item", "slide", "x", "y", "case", "mpp"]], ASK)
    return len(slides), len(asked)


def _draw(detections: pd.DataFrame, config: SampleConfig) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """The detections with stratum, probability of being asked about and the item of those that are; and how
    many of each stratum are."""
    if detections.empty:
        raise UsageError("the slides have no detections", next_step="give slides with tumour")
    probability, hot = (detections[name].to_numpy() for name in ("probability", "hot"))
    stratum = strata(probability, hot)
    asked, inclusion = draw_detections(stratum, config.answers, np.random.default_rng(config.seed))
    sample = detections.assign(stratum=stratum, inclusion=inclusion, item="")
    rows = sample.loc[asked, ["case", "index"]].itertuples(index=False)
    sample.loc[asked, "item"] = [item_name(case, index) for case, index in rows]
    return sample, design_table(stratum, inclusion, (sample["item"] != "").to_numpy(bool))


def _refuse_mixed(slides: Sequence[SlideResult]) -> None:
    """One model, searched alike, at one pair of operating points; each slide once."""
    names = pd.Series([slide.name for slide in slides])
    if names.duplicated().any():
        raise UsageError(
            f"slides of the same name: {named(names[names.duplicated()])}", next_step="give each slide once"
        )
    searches = [(slide.stated["searched_with"], _deltas(slide.stated)) for slide in slides]
    if any(search != searches[0] for search in searches):
        raise UsageError(
            "the slides were searched with different networks or operating points",
            path=slides[0].folder,
            next_step="first search all of them with the same model and settings",
        )


def _deltas(stated: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(stated[name]["delta"]) for name in ("mitoses", "count")}


def _known_detections(
    result: SlideResult, number: int, counting: CountConfig
) -> tuple[pd.DataFrame, tuple[float, float]]:
    """All detections in a slide's regions, as the model left them; tissue in circle, and beside it (mm2)."""
    slide = specimen(result.candidates, result.mpp, result.tissue, None, counting, result.record.scope)
    spot = find_hotspot(slide)
    inside = slide.area_mm2 if slide.is_small else spot.tissue_mm2
    table = {
        "case": result.name,
        "slide": str(result.summary["slide"]),
        "mpp": result.mpp,
        "number": number,
        "index": np.arange(len(slide.positions)),
        "x": slide.positions[:, 0],
        "y": slide.positions[:, 1],
        "probability": slide.probability,
        "hot": in_circle(slide, spot),
    }
    return pd.DataFrame(table), (inside, slide.area_mm2 - inside)


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
    design = sample.attrs[DESIGN]
    given = (
        answers_table(current_answers(folder / DETECTIONS))
        if answers is None
        else _read_answers(Path(answers))
    )
    sample["answer"] = consensus(sample, given, answers or folder)
    answered = sample[sample["answer"].notna()]
    if len(answered) < FEWEST_ANSWERS:
        raise UsageError(
            f"detections with an answer: {len(answered)}", next_step="answer the others, then fit again"
        )
    sure = answered[answered["probability"] >= SURE]
    answer, inclusion, probability = (
        sample[column].to_numpy(np.float64) for column in ("answer", "inclusion", "probability")
    )
    precision = {
        point: precision_by_design(answer, inclusion, probability >= delta, error)
        for point, delta in design["deltas"].items()
    }
    return SiteProfile(
        name=name or folder.resolve().name,
        made=made or date.today(),
        model=design["model"],
        searched_with=design["searched_with"],
        slides=tuple(design["slides"]),
        area_mm2=float(np.sum(design["areas_mm2"])),
        answers=len(answered),
        observers=tuple(sorted(set(given["observer"]))),
        design={"sample": design["sample"], "strata": design["strata"]},
        error=asdict(error),
        deltas=design["deltas"],
        precision={point: estimate for point, estimate in precision.items() if estimate},
        sure=(len(sure), int(sure["answer"].sum())),
        shapes=_shapes(sample, design, error),
        answered={
            str(case): [tuple(row) for row in rows[["x", "y", "answer"]].to_numpy(np.float64).tolist()]
            for case, rows in answered.groupby("case")
        },
    )


def _shapes(sample: pd.DataFrame, design: Mapping[str, Any], error: ObserverError) -> dict[str, list[float]]:
    """By slide, the log-likelihood of each level and shape, relative to the likeliest."""
    prior, shapes = prior_of(design["prior"]), {}
    for number, (name, areas) in enumerate(zip(design["slides"], design["areas_mm2"], strict=True)):
        own = sample[sample["number"] == number]
        circle, rest = (
            tally(
                log_odds(part["probability"].to_numpy(np.float64)),
                part["answer"].to_numpy(np.float64),
                max(area, 1e-3),
            )
            for part, area in zip((own[own["hot"]], own[~own["hot"]]), areas, strict=True)
        )
        value = by_shape(slide_likelihood(circle, rest, prior, error))
        shapes[str(name)] = np.round(value - value.max(), 3).ravel().tolist()
    return shapes


def current_answers(folder: Path) -> list[Given]:
    """The answers of a project; none where there is no project or nobody has begun."""
    project = load_project(folder)
    if not project.answers_path.exists():
        return []
    with AnswerStore(project) as store:
        return store.current()


def answers_table(given: Iterable[Given]) -> pd.DataFrame:
    """Answers as a table that says the same however they came in."""
    rows = sorted((each.observer, each.item, each.answer) for each in given)
    return pd.DataFrame(rows, columns=["observer", "item", "answer"], dtype=str)


def _read_answers(path: Path) -> pd.DataFrame:
    """Answers from a table; without a column observer they are one person's."""
    table = read_table(path)
    require_columns(table, ("item", "answer"), path)
    table = table.assign(observer=table.get("observer", ""))[["observer", "item", "answer"]]
    table = table.apply(lambda column: as_text(column).str.strip())
    return table[table["answer"] != ""]


def consensus(sample: pd.DataFrame, given: pd.DataFrame, source: str | Path) -> Floats:
    """What most observers say of each item, 1 or 0; NaN where nobody was asked or it is left open."""
    unknown = [item for item in given["item"] if item not in set(sample["item"]) - {""}]
    if unknown:
        raise TableError(
            f"answers about items that were not drawn: {named(unknown)}",
            path=source,
            next_step="give the answers of this calibration",
        )
    numbers = {f"{value:g}": value for value in VALUES.values()} | VALUES
    value = given["answer"].astype(str).str.lower().map(numbers).astype(float)
    if value.isna().any():
        raise TableError(
            f"answers that are not known here: {named(sorted(set(given['answer'][value.isna()])))}",
            path=source,
            next_step=f"choose one of {', '.join(VALUES)}",
        )
    values = given.assign(value=value).drop_duplicates(["observer", "item", "value"])
    twice = values["item"][values.duplicated(["observer", "item"])]
    if len(twice):
        raise TableError(
            f"an observer gave two answers to the same detection: {named(sorted(set(twice)))}",
            path=source,
            next_step="keep the one that was meant",
        )
    share = sample["item"].map(values.groupby("item")["value"].mean())
    return np.select([share > 0.5, share < 0.5], [1.0, 0.0], np.nan)


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
        given, changes, known = store.current(), store.changes(), store.observers()
        wanted = None if observers is None else {store.known(name) for name in observers}
    if wanted is not None:
        unknown = wanted - {each.observer for each in given}
        if unknown:
            raise UsageError(
                f"these observers have not answered: {named(sorted(unknown))}",
                next_step=f"observers are {', '.join(known) or 'none yet'}",
            )
        given = [each for each in given if each.observer in wanted]
    merged = merge_answers(project, given, agree, changes)
    target = project.folder if output is None else Path(output)
    write_table(target / LABELS, merged.labels)
    write_table(target / DISAGREEMENTS, merged.disagreements)
    write_agreement_page(target, project, merged)
    return merged
