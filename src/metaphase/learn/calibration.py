"""`metaphase calibrate`: a sample of a laboratory's searched slides to answer, and the profile made of it.

A calibration is a folder with two labelling projects, `detections` and `squares`, and `sample.parquet`: all
detections of the slides, with what is known about each and the probability with which it was to be asked.
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

from metaphase.analysis.record import CANDIDATES, SlideResult, load_results
from metaphase.base.arrays import Floats, Integers
from metaphase.base.errors import OutputError, UsageError
from metaphase.base.tables import TableError, as_text, named, read_table, require_columns, write_table
from metaphase.counting.calibration import EVIDENCE, evidence
from metaphase.counting.clinical import find_hotspot
from metaphase.counting.populations import ReviewerError
from metaphase.counting.sites import (
    Answered,
    SampleConfig,
    SiteProfile,
    design_table,
    draw_detections,
    draw_squares,
    fit_site,
    strata,
    supposed_chance,
)
from metaphase.counting.specimen import CountConfig, at_point, specimen
from metaphase.labels.observers.consensus import AGREE, Merged, merge_answers
from metaphase.labels.observers.project import (
    ARTEFACT,
    LABELS,
    MITOSIS,
    NOT,
    UNSURE,
    Answer,
    Settings,
    item_name,
    load_project,
    write_project,
)
from metaphase.labels.observers.store import AnswerStore, Given
from metaphase.reports.agreement import write_agreement_page

DETECTIONS, SQUARES, SAMPLE = "detections", "squares", "sample.parquet"
DESIGN = "design"
"""Attribute of the sample: how it was drawn, and from what."""
LEAST_TISSUE = 0.5
"""Share of a square that must be tissue."""
VALUES = {MITOSIS: 1.0, NOT: 0.0, ARTEFACT: 0.0, UNSURE: 0.5}
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight or more")
"""Answers to a square, by the number they stand for."""
ASK = Settings(title="Calibration: detections", question="Is a mitosis in the middle?")


# ---- drawing ----


def _grid(one: SlideResult, side_um: float) -> tuple[Floats, Integers]:
    """Where the squares of a side begin (x, y), and how many whole ones there are in each direction."""
    size_um = np.array((one.summary["width"], one.summary["height"])) * one.mpp
    count = np.floor(size_um / side_um + 1e-9).astype(np.int64)
    return (size_um - count * side_um) / 2 / one.mpp, count


def _squares_at(one: SlideResult, positions: Floats, side_um: float) -> Integers:
    """Column and row of the square in which each position (n, 2) lies; -1, -1 outside of all."""
    origin, count = _grid(one, side_um)
    cells = np.floor((positions - origin) * one.mpp / side_um).astype(np.int64)
    cells[((cells < 0) | (cells >= count)).any(axis=1)] = -1
    return cells


class NoSquareError(UsageError):
    """The slides have no square to ask about."""


@dataclass(frozen=True)
class Drawn:
    """What there is to answer."""

    folder: Path
    slides: int
    detections: int
    squares: int


def draw_sample(results: Sequence[Path], folder: str | Path, config: SampleConfig | None = None) -> Drawn:
    """Draw detections and squares over searched slides, and write the two labelling projects.

    `results` are folders of `metaphase detect`, of single slides or of cohorts; all of one model.
    """
    config, folder = config or SampleConfig(), Path(folder)
    if (folder / SAMPLE).exists():
        raise OutputError("already holds a calibration", path=folder, next_step="choose another folder")
    slides = load_results(dict.fromkeys(results))
    _refuse_mixed(slides)
    stated, generator = slides[0].stated, np.random.default_rng(config.seed)
    counting = at_point(CountConfig(), stated["count"])
    parts = [
        (_known(one, number, counting, config), _cells(one, number, config))
        for number, one in enumerate(slides)
    ]
    sample, squares = (pd.concat(each, ignore_index=True) for each in zip(*parts, strict=True))
    _refuse_nothing(sample, squares, config)
    sample = _with_asked(sample, config.answers - config.squares, generator)
    squares = _asked_squares(squares, sample, config.squares, generator)
    asked = sample[sample["item"] != ""]
    write_project(folder / DETECTIONS, asked[ASKED], ASK)
    if len(squares):
        settings = Settings(
            title="Calibration: squares",
            question="How many mitoses are in the whole square?",
            answers=tuple(Answer(name=name, key=str(number)) for number, name in enumerate(NUMBERS)),
            close_um=config.square_um,
            context_um=2 * config.square_um,
        )
        write_project(folder / SQUARES, squares[ASKED], settings)
    drawn = squares[["item", *SQUARE]].rename(columns={"item": "square"})
    table = sample.merge(drawn, "left", SQUARE).fillna({"square": ""})
    table.attrs[DESIGN] = {
        "model": stated["model"],
        "searched_with": stated["searched_with"],
        "deltas": _deltas(stated),
        "slides": [one.name for one in slides],
        "area_mm2": float(sum(one.tissue.area_mm2 for one in slides)),
        "radius_um": counting.radius_um,
        "sample": asdict(config),
        "strata": design_table(
            sample["stratum"].to_numpy(), sample["inclusion"].to_numpy(), (sample["item"] != "").to_numpy()
        ),
        "squares": squares[["item", "chance", "tissue_mm2", "expected"]].round(6).to_dict("records"),
    }
    write_table(folder / SAMPLE, table.drop(columns=["slide", "mpp", "index", "supposed"]))
    return Drawn(folder, len(slides), len(asked), len(squares))


SQUARE = ["number", "row", "column"]
"""Columns that name a square: its slide, and where it lies in the slide's grid."""
ASKED = ["item", "slide", "x", "y", "case", "mpp"]
"""Columns of a labelling project."""


def _with_asked(sample: pd.DataFrame, number: int, generator: np.random.Generator) -> pd.DataFrame:
    """All detections with their stratum, the probability with which each was to be asked about, and the item
    of those that are."""
    supposed = supposed_chance(sample[list(EVIDENCE)].to_numpy(np.float64))
    stratum = strata(sample["probability"].to_numpy(np.float64), sample["hot"].to_numpy(bool))
    asked, inclusion = draw_detections(stratum, supposed, number, generator)
    sample = sample.assign(stratum=stratum, inclusion=inclusion, item="", supposed=supposed)
    rows = zip(sample["case"][asked], sample["index"][asked], strict=True)
    sample.loc[asked, "item"] = [item_name(case, int(index)) for case, index in rows]
    return sample


def _asked_squares(
    squares: pd.DataFrame, sample: pd.DataFrame, number: int, generator: np.random.Generator
) -> pd.DataFrame:
    """The squares to ask about, with the chance of each in every draw, by the mitoses expected in it."""
    expected = sample.groupby(SQUARE)["supposed"].sum()
    expected = expected.reindex(pd.MultiIndex.from_frame(squares[SQUARE]), fill_value=0.0)
    squares["expected"] = expected.to_numpy()
    tissue_mm2 = squares["tissue_mm2"].to_numpy(np.float64)
    chosen, chance = draw_squares(tissue_mm2, expected.to_numpy(np.float64), number, generator)
    squares = squares.assign(chance=chance).iloc[chosen].reset_index(drop=True)
    squares["item"] = [f"{case}-square-{row}-{column}" for case, row, column in
                       zip(squares["case"], squares["row"], squares["column"], strict=True)]  # fmt: skip
    return squares


def _refuse_nothing(sample: pd.DataFrame, squares: pd.DataFrame, config: SampleConfig) -> None:
    """Refuse slides that have nothing to ask about."""
    if sample.empty:
        raise UsageError("the slides have no detections", next_step="give slides with tumour")
    if config.squares and squares.empty:
        raise NoSquareError(
            f"no square of {config.square_um:g} um has enough tissue",
            next_step="give slides with more tissue, smaller squares (--square-um), or none (--squares 0)",
        )


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


def _known(one: SlideResult, number: int, counting: CountConfig, config: SampleConfig) -> pd.DataFrame:
    """All detections of a slide, as the model left them, with what is known about each."""
    slide = specimen(one.candidates, one.mpp, one.tissue, None, counting)
    spot = find_hotspot(slide)
    known = evidence(
        slide.positions * one.mpp, slide.probability, counted_from=counting.threshold,
        area_mm2=slide.area_mm2, config=counting,
    )  # fmt: skip
    away = np.hypot(slide.positions[:, 0] - spot.x, slide.positions[:, 1] - spot.y)
    cell = _squares_at(one, slide.positions, config.square_um)
    about = _about(one, number) | {
        "index": np.arange(len(known)),
        "x": slide.positions[:, 0], "y": slide.positions[:, 1], "probability": slide.probability,
        "hot": away <= spot.radius_px, "row": cell[:, 1], "column": cell[:, 0],
    }  # fmt: skip
    return pd.DataFrame(about | dict(zip(EVIDENCE, known.T, strict=True)))


def _about(one: SlideResult, number: int) -> dict[str, Any]:
    return {"case": one.name, "slide": str(one.summary["slide"]), "mpp": one.mpp, "number": number}


def _cells(one: SlideResult, number: int, config: SampleConfig) -> pd.DataFrame:
    """The squares that lie within a slide and are tissue enough, by their middles."""
    side_px, (origin, _) = config.square_um / one.mpp, _grid(one, config.square_um)
    row, column = np.nonzero(one.tissue.mask)
    x, y = (one.tissue.x + (column + 0.5) * one.tissue.scale, one.tissue.y + (row + 0.5) * one.tissue.scale)
    positions = np.stack([x, y], axis=1).astype(np.float64)
    cells, pixels = np.unique(_squares_at(one, positions, config.square_um), axis=0, return_counts=True)
    tissue_mm2 = pixels * one.tissue.mpp**2 / 1e6
    kept = (cells[:, 0] >= 0) & (tissue_mm2 >= LEAST_TISSUE * config.square_um**2 / 1e6)
    columns, rows = cells[kept].T
    about = _about(one, number) | {
        "row": rows, "column": columns,
        "x": origin[0] + (columns + 0.5) * side_px, "y": origin[1] + (rows + 0.5) * side_px,
        "tissue_mm2": tissue_mm2[kept],
    }  # fmt: skip
    return pd.DataFrame(about)


# ---- fitting ----


def fit_profile(
    folder: str | Path,
    name: str = "",
    *,
    answers: str | Path | None = None,
    reviewer: ReviewerError | None = None,
    made: date | None = None,
) -> SiteProfile:
    """The profile that the answers make, those of the projects or of a table (item, answer, observer).

    An item with several observers has their mean; unsure is half a mitosis.
    """
    folder, reviewer = Path(folder), reviewer or ReviewerError()
    sample = read_table(folder / SAMPLE)
    design: dict[str, Any] = sample.attrs[DESIGN]
    projects = [folder / name for name in (DETECTIONS, SQUARES) if (folder / name).is_dir()]
    answer_rows = (
        answers_table(one for project in projects for one in standing(project))
        if answers is None
        else _listed(Path(answers))
    )
    known = {*sample["item"], *(row["item"] for row in design["squares"])} - {""}
    unknown = [item for item in answer_rows["item"] if item not in known]
    if unknown:
        raise TableError(
            f"answers about items that were not drawn: {named(unknown)}",
            path=answers or folder,
            next_step="give the answers of this calibration",
        )
    is_square = answer_rows["item"].isin([row["item"] for row in design["squares"]])
    often = {name: float(number) for number, name in enumerate(NUMBERS)}
    value = _values(answer_rows[~is_square], VALUES, answers or folder)
    seen = _values(answer_rows[is_square], often, answers or folder)
    given = Answered(
        known=sample[list(EVIDENCE)].to_numpy(np.float64),
        probability=sample["probability"].to_numpy(np.float64),
        slide=sample["number"].to_numpy(np.int64),
        answer=np.asarray(sample["item"].map(value), np.float64),
        inclusion=sample["inclusion"].to_numpy(np.float64),
        in_square=sample["square"].isin(seen.index).to_numpy(bool),
        area_mm2=design["area_mm2"],
        squares=len(seen),
        seen=float(seen.sum()),
    )
    fitted = fit_site(given, design["deltas"], reviewer)
    return SiteProfile(
        name=name or folder.resolve().name,
        made=made or date.today(),
        **{part: design[part] for part in ("model", "searched_with", "slides", "area_mm2", "deltas")},
        answers=given.answers,
        squares=given.squares,
        observers=tuple(sorted(set(answer_rows["observer"]))),
        design={part: design[part] for part in ("sample", "strata", "squares")},
        reviewer=asdict(reviewer),
        at=fitted.at,
        found=fitted.found,
        mitoses_per_mm2=fitted.mitoses_per_mm2,
        draws=fitted.laboratory.to_dict(),
        answered={
            str(case): list(part[["x", "y", "answer"]].astype(float).itertuples(index=False, name=None))
            for case, part in sample.assign(answer=given.answer).dropna(subset="answer").groupby("case")
        },
    )


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


def _listed(path: Path) -> pd.DataFrame:
    """Answers from a table; without a column observer they are one person's."""
    table = read_table(path)
    require_columns(table, ("item", "answer"), path)
    if "observer" not in table.columns:
        table = table.assign(observer="")
    table = table.assign(
        **{name: as_text(table[name]).str.strip() for name in ("observer", "item", "answer")}
    )
    return table.loc[table["answer"] != "", ["observer", "item", "answer"]]


def _values(given: pd.DataFrame, meaning: Mapping[str, float], source: str | Path) -> pd.Series[float]:
    """The mean answer to each item."""
    plain: Iterable[str] = given["answer"].astype(str).str.lower()
    numbers = {f"{value:g}": value for value in meaning.values()} | dict(meaning)
    odd = sorted({answer for answer in plain if answer not in numbers})
    if odd:
        raise TableError(
            f"answers that are not known here: {named(odd)}",
            path=source,
            next_step=f"choose one of {', '.join(meaning)}",
        )
    values = pd.Series(
        [numbers[answer] for answer in plain], index=given["item"].to_numpy(object), dtype=float
    )
    return values.groupby(level=0).mean()


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
        given = _chosen(store.current(), observers, store)
        changes = store.changes()
    merged = merge_answers(project, given, agree, changes)
    target = project.folder if output is None else Path(output)
    write_table(target / LABELS, merged.labels)
    write_table(target / DISAGREEMENTS, merged.disagreements)
    write_agreement_page(target, project, merged)
    return merged


def _chosen(given: list[Given], observers: Sequence[str] | None, store: AnswerStore) -> list[Given]:
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
