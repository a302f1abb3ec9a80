"""`metaphase score`: from detections to the mitotic count and grade."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.cli.console import complain, print_json, progress_bar, stdout, warn
from metaphase.cli.options import Json, Mpp
from metaphase.errors import MetaphaseError, UsageError

if TYPE_CHECKING:
    import pandas as pd

    from metaphase.detections import DetectionSet
    from metaphase.evaluation.cohort import Cohort
    from metaphase.grading import GradingConfig, SlideScore

Files = Annotated[
    list[Path],
    typer.Argument(help="Detections: files or folders, in any format that is read.", metavar="DETECTIONS..."),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Table to write, .csv or .parquet.")]
Manifest = Annotated[Path | None, typer.Option(help="Manifest with the um/px of each slide (mpp, or he).")]
OneSlide = Annotated[Path | None, typer.Option("--slide", help="The slide itself: its um/px and tissue.")]
Area = Annotated[
    float | None, typer.Option("--area", help="Tissue in mm2, where there is no slide to look at.")
]
FindTissue = Annotated[bool, typer.Option("--tissue/--no-tissue", help="Find the tissue of slides at hand.")]
Thresholds = Annotated[
    list[float], typer.Option(help="Least probability that counts; several give a row each, for tuning.")
]
Theta1 = Annotated[float, typer.Option(help="Counts up to this are grade 1.")]
Theta2 = Annotated[float, typer.Option(help="Counts above this are grade 3.")]
Draws = Annotated[int, typer.Option(help="Draws behind interval and probabilities; 0 for none.")]


@dataclass(frozen=True)
class Case:
    """One slide to score."""

    name: str
    points: pd.DataFrame
    mpp: float
    slide: Path | None
    """Where its tissue can be seen."""
    area_mm2: float | None


def score(
    detections: Files,
    output: Output = None,
    manifest: Manifest = None,
    slide: OneSlide = None,
    area: Area = None,
    mpp: Mpp = None,
    tissue: FindTissue = True,
    threshold: Thresholds = [0.8],  # noqa: B006 -- typer takes defaults of lists this way
    theta1: Theta1 = 6.0,
    theta2: Theta2 = 20.0,
    draws: Draws = 1000,
    as_json: Json = False,
) -> None:
    """Mitotic count in the 2 mm2 hotspot, grade and proliferation score of slides, with their uncertainty."""
    from metaphase.grading import GradingConfig, scores_table
    from metaphase.tables import write_table

    configs = [GradingConfig(threshold=t, theta1=theta1, theta2=theta2, draws=draws) for t in threshold]
    cases = _cases(detections, manifest, slide, mpp, area)
    scores, code = _score_all(cases, configs, tissue)
    if output is not None:
        write_table(output, scores_table(scores))
    if as_json:
        print_json([{"case": name, **result.to_dict()} for name, result in scores])
    elif scores:
        stdout.print(_table(scores))
    raise typer.Exit(code)


def _cases(
    detections: Iterable[Path],
    manifest: Path | None,
    slide: Path | None,
    mpp: float | None,
    area_mm2: float | None,
) -> list[Case]:
    """What to score: every slide that the detections cover."""
    from metaphase.detections import MITOSIS, joined, read_detections
    from metaphase.evaluation.cohort import cohort_of, load_cohort

    cohort = load_cohort(manifest, mpp) if manifest is not None else None
    if cohort is None and mpp is None and slide is not None:
        mpp = _mpp_of(slide)
    scale = mpp if cohort is None else cohort.mpp_by_name()
    points = joined([read_detections(path, mpp=scale) for path in detections], "detections")
    if slide is not None and len(points.slides) != 1:
        raise UsageError(
            f"the detections are of {len(points.slides)} slides, and one slide was given",
            path=slide,
            next_step="name the slides in a manifest (column he) and give that with --manifest",
        )
    cohort = cohort or cohort_of(points.slides, points.source, mpp)
    return _lined_up(cohort, cohort.renamed(points).of_label(MITOSIS), slide, area_mm2)


def _lined_up(cohort: Cohort, points: DetectionSet, slide: Path | None, area_mm2: float | None) -> list[Case]:
    rows = {str(row["case"]): row for row in cohort.manifest.to_dict(orient="records")}
    cases = []
    for name in points.slides:
        row = rows[name]
        seen = slide or Path(str(row["he"]))
        stated = float(row["area_mm2"]) if area_mm2 is None else area_mm2
        cases.append(
            Case(
                name=name,
                points=points.table[points.table["slide"] == name],
                mpp=float(row["mpp"]),
                slide=seen if seen.is_file() else None,
                area_mm2=None if math.isnan(stated) else stated,
            )
        )
    return cases


def _mpp_of(path: Path) -> float:
    from metaphase.slides import open_slide

    with open_slide(path) as slide:
        return slide.mpp


def _score_all(
    cases: list[Case], configs: list[GradingConfig], tissue: bool
) -> tuple[list[tuple[str, SlideScore]], int]:
    """The scores, and the exit code: a slide that fails is reported and the others go on."""
    scores, code = [], 0
    with progress_bar("slides") as bar:
        for case in bar.track(cases, description="scoring"):
            try:
                results = _score_one(case, configs, tissue)
            except MetaphaseError as error:
                complain(f"{case.name}: {error}")
                code = 1
                continue
            scores += [(case.name, result) for result in results]
            for text in dict.fromkeys(text for result in results for text in result.warnings):
                warn(f"{case.name}: {text}")
    return scores, code


def _score_one(case: Case, configs: list[GradingConfig], tissue: bool) -> list[SlideScore]:
    from metaphase.grading import score_slide
    from metaphase.slides import open_slide
    from metaphase.tissue import find_tissue

    mask = None
    if tissue and case.slide is not None:
        with open_slide(case.slide, mpp=case.mpp) as slide:
            mask = find_tissue(slide)
    return [
        score_slide(case.points, mpp=case.mpp, tissue=mask, area_mm2=case.area_mm2, config=config)
        for config in configs
    ]


def _table(scores: list[tuple[str, SlideScore]]) -> Table:
    """Short enough for a narrow terminal; `most` is the busiest circle's number, at x, y."""
    several = len({result.config.threshold for _, result in scores}) > 1
    columns = ("found", "count", "95 %", "grade", "most", "at x, y")
    table = Table("slide", *(["threshold"] if several else []), *columns, box=None)
    for name, result in scores:
        low, high = result.count_interval
        chance = f" ({result.grade_probabilities[result.grade - 1]:.0%})" if result.draws else ""
        table.add_row(
            escape(name),
            *([f"{result.config.threshold:g}"] if several else []),
            str(result.detections),
            f"{result.count:.4g}",
            f"{low:.1f}-{high:.1f}" if result.draws else "-",
            f"{result.grade}{chance}",
            str(result.maximum),
            f"{result.hotspot.x:.0f}, {result.hotspot.y:.0f}" if result.maximum else "-",
        )
    return table
