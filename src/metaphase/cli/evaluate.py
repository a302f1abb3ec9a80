"""`metaphase evaluate` and `metaphase observers`: the three TUPAC tasks, tuning, observer studies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaphase.cli import console
from metaphase.cli.options import Answer, Group, given, takes

if TYPE_CHECKING:
    from metaphase.detections.points import OperatingPoint
    from metaphase.evaluation.grades import AgreementResult, CountPart
    from metaphase.evaluation.mitoses import MitosisResult

# ---- `metaphase evaluate`: the three TUPAC tasks on anybody's detections, and tuning ----

evaluate = Group("Compare detections, grades and scores with the truth.")
tune = Group("Choose thresholds on a tuning set and keep them in a model card.")
evaluate.add_typer(tune, name="tune")


Truth = Annotated[Path, typer.Option(help="Truth: a table, or a folder that `metaphase data import` wrote.")]
Predictions = Annotated[
    Path, typer.Option(help="Predictions: a file or a folder, in any format that is read.")
]
Counts = Annotated[
    Path,
    typer.Option(
        "--predictions",
        help="Table of case, threshold and count: `metaphase score --threshold ... -o` writes it.",
    ),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Folder for tables, plots and the page.")]
By = Annotated[list[str] | None, typer.Option(help="Manifest column to report by; may be repeated.")]
Split = Annotated[str | None, typer.Option(help="Use only this split of the manifest.")]
Card = Annotated[Path | None, typer.Option(help="Model card whose tuned parameters are used.")]
NewCard = Annotated[Path | None, typer.Option(help="Model card to keep the parameters in.")]


@evaluate.command()
@takes("evaluation.marks.MatchingConfig", "threshold")
@takes("evaluation.metrics.BootstrapConfig")
def mitoses(
    truth: Truth,
    predictions: Predictions,
    output: Output = None,
    manifest: console.Manifest = None,
    by: By = None,
    split: Split = None,
    card: Card = None,
    mpp: console.Mpp = None,
) -> Answer:
    """Are the mitoses in the right positions? Precision, recall, F1, average precision, FROC."""
    from metaphase.evaluation.marks import MatchingConfig
    from metaphase.evaluation.metrics import BootstrapConfig
    from metaphase.evaluation.mitoses import evaluate_mitoses
    from metaphase.reports.evaluation import write_mitosis_report

    result = evaluate_mitoses(
        truth,
        predictions,
        manifest=manifest,
        by=by or (),
        split=split,
        mpp=mpp,
        card=card,
        matching=given(MatchingConfig),
        bootstrap=given(BootstrapConfig),
    )
    if output is not None:
        write_mitosis_report(result, output)
    return _shown(result, output, f"from {result.threshold:.6g}")


@evaluate.command("compare")
@takes(
    "evaluation.marks.MatchingConfig",
    others=("radius_um", "method", "border_um", "missing_as_empty", "ignore"),
)
@takes("evaluation.metrics.BootstrapConfig")
def compare_command(
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCES...")],
    labels: Annotated[
        Path, typer.Option(help="The truth: a table, or a folder that `metaphase data import` wrote.")
    ],
    output: console.Folder,
    threshold: list[float] | None = None,
) -> None:
    """Which detector is better on the same slides, and what does each find that the others miss?

    Parameters:
        sources: Two or more of: results of `metaphase detect`, files or folders in any format that is read.
        output: Folder for tables and the page.
        threshold: Lowest probability that counts, one for all or one each; by default what results state.
    """
    from metaphase.evaluation.differences import compare_sources
    from metaphase.evaluation.marks import MatchingConfig
    from metaphase.evaluation.metrics import RATES, BootstrapConfig
    from metaphase.reports.evaluation import write_sources_report

    result = compare_sources(
        labels,
        sources,
        thresholds=threshold or (),
        matching=given(MatchingConfig),
        bootstrap=given(BootstrapConfig),
    )
    write_sources_report(result, output)
    console.warn(*result.warnings)
    rows = [
        (source.name, *(str(getattr(source.metrics, rate)) for rate in RATES)) for source in result.sources
    ]
    for (first, second), apart in result.differences.items():
        rows.append((f"{first} less {second}", *map(str, apart.values())))
    console.stdout.print(console.rows_table(("", *(rate.replace("_", " ") for rate in RATES)), rows))
    console.say(output / "index.html")


def _add_agreement(task: CountPart, about: str) -> None:
    """The command of a task with one number a case."""

    def command(
        truth: Truth,
        predictions: Predictions,
        output: Output = None,
        by: By = None,
        split: Split = None,
        card: Card = None,
    ) -> Answer:
        from metaphase.evaluation.grades import evaluate_scores
        from metaphase.reports.evaluation import write_agreement_report

        result = evaluate_scores(task, truth, predictions, by=by or (), split=split, card=card)
        if output is not None:
            write_agreement_report(result, output)
        return _shown(result, output)

    evaluate.command(task, help=about)(command)


_add_agreement("grade", "Is the mitotic grade right? Quadratic weighted kappa.")
_add_agreement("proliferation", "Does the score follow proliferation? Spearman correlation.")


@evaluate.command()
def tasks(truth: Path, found: Path, output: console.Folder) -> None:
    """Tune all three tasks on the training part of a data set and answer for its test part: table IV.

    Parameters:
        truth: Folder that `metaphase data import` wrote; its splits are train and test, of fields also
          aux-train and aux-test.
        found: Results of `metaphase detect` with its manifest.
    """
    from metaphase.analysis.tasks import evaluate_tasks

    table, warnings = evaluate_tasks(truth, found, output)
    console.warn(*warnings)
    console.stdout.print(console.rows_table(table.headings, table.rows))
    console.say(output / "index.html")


@tune.command("mitoses")
@takes("evaluation.marks.MatchingConfig", others=("radius_um", "method", "missing_as_empty", "ignore"))
def tune_mitoses_command(
    truth: Truth,
    predictions: Predictions,
    card: NewCard = None,
    manifest: console.Manifest = None,
    split: Split = None,
    mpp: console.Mpp = None,
    paper: console.Paper = False,
) -> Answer:
    """Choose delta for single mitoses, the probability threshold with the highest F1."""
    from metaphase.evaluation.marks import MatchingConfig
    from metaphase.evaluation.tuning import tune_mitoses

    tuned = tune_mitoses(
        truth,
        predictions,
        card,
        manifest=manifest,
        split=split,
        mpp=mpp,
        matching=given(MatchingConfig),
        floor=_floor(paper),
    )
    return _tuned(tuned)


@tune.command("count")
def tune_count_command(
    truth: Truth,
    predictions: Counts,
    card: NewCard = None,
    split: Split = None,
    paper: console.Paper = False,
) -> Answer:
    """Choose delta for Spearman, then theta1 and theta2 for kappa at that delta, as the paper does."""
    from metaphase.evaluation.tuning import tune_count

    tuned = tune_count(truth, predictions, card, split=split, floor=_floor(paper))
    return _tuned(tuned)


def _floor(paper: bool) -> float:
    """The paper knows no detection below it."""
    from metaphase.detections.table import PAPER_FLOOR

    return PAPER_FLOOR if paper else 0.0


def _shown(result: MitosisResult | AgreementResult, output: Path | None, threshold: str = "") -> Answer:
    console.warn(*result.warnings)
    table = result.table()
    point = result.settings["operating_point"] or ("no operating point" if threshold else "")
    plain = table.assign(operating_point=point or None).to_dict(orient="records")
    rows = [
        [name, *(f"{value:.3f}" if isinstance(value, float) else value for value in table[name])]
        for name in table.columns.drop(["by", "group"])
    ]
    lines = [f"{threshold} ({point})" if threshold else f"operating point {point}"] if point else []
    if output is not None:
        lines.append(str(output / "index.html"))
    return Answer(plain, console.rows_table(("", *map(str, table["group"])), rows), *lines)


def _tuned(tuned: OperatingPoint) -> Answer:
    reached = {tuned.metric: tuned.value, "quadratic kappa": tuned.kappa}
    known = {name: value for name, value in reached.items() if value is not None}
    values: dict[str, Any] = {"point": tuned.name, **tuned.numbers, **known, "cases": len(tuned.cases)}
    exact = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in values.items()}
    lines = [", ".join(f"{name} {value}" for name, value in exact.items())]
    if tuned.delta_range is not None:
        low, high = tuned.delta_range
        lines.append(f"delta is {low:.4g} to {high:.4g} in 95 % of the draws of patients")
    elif tuned.metric:
        console.warn("too few patients to say how much delta depends on them: tune on more")
    return Answer(values | {"delta_range": tuned.delta_range}, *lines)


# ---- `metaphase observers`: let people judge detections, blind ----

observers = Group("Blinded observer studies.")


@observers.command()
@takes("evaluation.observers.StudyConfig")
def export(
    detections: Path,
    manifest: console.NeededManifest,
    output: console.Folder,
    key: Annotated[Path, typer.Option(help="File that says which patch is what; keep it from the observer.")],
    threshold: float | None = None,
    paper: console.Paper = False,
) -> None:
    """Write shuffled patches of detections and distractors, and an answer sheet.

    Parameters:
        detections: Detections to judge.
        threshold: Lowest probability of a detection; by default the point that the tables state.
    """
    from metaphase.evaluation.observers import StudyConfig, export_observers

    study = export_observers(
        detections,
        manifest,
        output,
        key=key,
        threshold=threshold,
        config=given(StudyConfig),
        paper=paper,
    )
    console.warn(*study.warnings)
    console.say(f"{len(study.key)} patches in {output}, key in {key}")


@observers.command()
def read(
    key: Annotated[Path, typer.Option(help="The key of the study.")],
    answers: Annotated[
        list[Path], typer.Argument(help="Answer sheets, one per observer.", metavar="ANSWERS...")
    ],
    recall: float | None = None,
) -> Answer:
    """Precision according to the observers, and the F1 that follows from it.

    Parameters:
        recall: Recall of the detector, for the alternative F1.
    """
    from metaphase.evaluation.observers import read_observers

    results = read_observers(key, answers, recall=recall)
    rows = [
        (
            row.observer,
            f"{row.confirmed} of {row.judged}",
            f"{row.precision.value:.3f}",
            f"{row.precision.low:.3f} to {row.precision.high:.3f}",
            f"{row.alternative_f1:.3f}",
        )
        for row in results
    ]
    table = console.rows_table(("observer", "confirmed", "precision", "95 %", "F1"), rows)
    return Answer(results, table)
