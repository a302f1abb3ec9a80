"""`metaphase view`, `review`, `label` and `calibrate`: pages on which people answer, and what comes of it."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from metaphase.base.errors import several
from metaphase.cli import console
from metaphase.cli.options import Answer, Group, given, takes

if TYPE_CHECKING:
    from metaphase.counting.sites import SiteProfile
    from metaphase.labels.observers.consensus import Merged
    from metaphase.web.serving import Running

label = Group("Label candidates with several observers.")

Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 opens it to the network.")]
Port = Annotated[int, typer.Option(help="Port; 0 takes any free one.")]
ProjectFolder = Annotated[
    Path, typer.Argument(help="Folder with items.csv (item, slide, x, y, case).", metavar="PROJECT")
]


@label.command()
def serve(
    project: ProjectFolder,
    host: Host = "127.0.0.1",
    port: Port = 8500,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="METAPHASE_TOKEN",
            help="Secret of the link, 16 characters or more; else made, and kept in the project.",
        ),
    ] = None,
) -> None:
    """Start the labelling page; stop it with Ctrl-C. Every answer is saved at once."""
    from metaphase.labels.observers.project import load_project
    from metaphase.web.labelling import serve_project

    asked = load_project(project)
    missing = asked.missing_slides()
    if missing:
        blank = f"{sum(missing.values())} of {several(len(asked.items), 'item')}"
        console.warn(
            f"{blank} have no picture: {several(len(missing), 'slide')} missing, first {next(iter(missing))}"
        )
    serve_project(project, host=host, port=port, token=token, ready=announce("item"))


def announce(what: str) -> Callable[[Running], None]:
    """What a page that is about to be served shows, and where; at a desk the browser opens it."""

    def tell_link(running: Running) -> None:
        console.tell(f"{several(running.shown, what)}. Open this address; Ctrl-C stops:")
        typer.echo(running.url)
        if sys.platform in ("win32", "darwin") and sys.stdout.isatty():
            webbrowser.open(running.url)

    return tell_link


@label.command()
def merge(
    project: ProjectFolder,
    agree: int = 3,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for the results; by default the project's.")
    ] = None,
    observer: list[str] | None = None,
) -> Answer:
    """Make labels of the answers: labels.csv, what to discuss, and how well the observers agree.

    Parameters:
        agree: How many observers must give the same answer.
        observer: Only these observers; repeat for each. By default all.
    """
    from metaphase.learn.calibration import merge_project
    from metaphase.reports.agreement import REPORT, kappa_text, record

    merged = merge_project(project, agree, output, observer or None)
    counts = merged.labels["label"].value_counts()
    labels = ", ".join(f"{counts[name]} {name}" for name in counts.index if name)
    return Answer(
        record(merged),
        _table(merged),
        f"{merged.labelled} of {len(merged.labels)} items have a label ({labels or 'none'}); "
        f"{len(merged.disagreements)} to discuss; "
        f"Fleiss' kappa {kappa_text(*merged.fleiss)} over the {merged.complete} "
        "that all observers answered",
        f"see {(output or project) / REPORT}",
    )


@label.command("export")
def export_labels(
    project: ProjectFolder,
    output: console.Output,
) -> None:
    """Write the answers to a CSV, for other tools.

    Parameters:
        output: CSV to write.
    """
    from metaphase.labels.observers.store import export_answers

    console.say(f"{several(export_answers(project, output), 'answer')} in {output}")


@label.command(name="import")
def import_(project: ProjectFolder, file: Path) -> None:
    """Take answers from a CSV of another tool; all of them or, if one is wrong, none.

    Parameters:
        file: CSV with observer, item, answer, seconds, time.
    """
    from metaphase.labels.observers.store import import_answers

    done = import_answers(project, file)
    console.say(f"{done.added} new answers, {done.replaced} replaced, {done.unchanged} known already")


def _table(merged: Merged) -> Table:
    rows = []
    for row in merged.observers.to_dict("records"):
        pairs = merged.pairs
        own = pairs["kappa"][(pairs["observer"] == row["observer"]) | (pairs["other"] == row["observer"])]
        span = f"{own.min():.2f} to {own.max():.2f}" if own.notna().any() else "-"
        seconds, minutes = f"{row['seconds']:.1f}", f"{row['minutes']:.1f}"
        rows.append([row["observer"], row["answers"], seconds, minutes, row["changes"], span])
    headings = ("observer", "answers", "median s", "minutes", "changed", "kappa with others")
    return console.rows_table(headings, rows)


# ---- `metaphase calibrate`: about 100 answers make a laboratory's counts calibrated ones ----

calibrate = Group("Calibrate a model for a laboratory by about 100 answers.")


@calibrate.command()
@takes("counting.sites.SampleConfig", "answers")
def draw(
    results: Annotated[
        list[Path],
        typer.Argument(help="Folders of `metaphase detect`: the laboratory's slides.", metavar="RESULTS..."),
    ],
    output: console.Folder,
) -> None:
    """Draw what to answer: detections of all probabilities, inside the hotspots and elsewhere."""
    from metaphase.counting.sites import SampleConfig
    from metaphase.learn.calibration import DETECTIONS, draw_sample

    slides, detections = draw_sample(results, output, given(SampleConfig))
    console.say(f"slides: {slides}, detections: {detections}. Answer:")
    console.say(f"  metaphase label serve {output / DETECTIONS}")
    console.say(f"then: metaphase calibrate fit {output} -o site.json")


@calibrate.command()
@takes("counting.likely.ObserverError")
def fit(
    calibration: Path,
    output: console.Output,
    answers: Path | None = None,
) -> Answer:
    """Make the laboratory's profile from the answers, for `metaphase detect --site`.

    Parameters:
        calibration: Folder that `metaphase calibrate draw` made.
        output: The laboratory's profile to write, JSON.
        answers: A CSV with item, answer (and observer) instead of the project.
    """
    from metaphase.counting.likely import ObserverError
    from metaphase.counting.sites import save_profile
    from metaphase.learn.calibration import fit_profile

    profile = fit_profile(calibration, answers=answers, error=given(ObserverError))
    save_profile(output, profile)
    return Answer(
        profile.model_dump(mode="json", exclude={"shapes", "answered", "design"}),
        _profile_table(profile),
        f"{profile.described()}, model {profile.model}",
        f"metaphase detect SLIDE... -o DIR --site {output}",
    )


def _profile_table(profile: SiteProfile) -> Table:
    rows: list[tuple[str, object]] = [
        (f"precision at the threshold for {point} ({profile.deltas[point]:.4g})", value)
        for point, value in profile.precision.items()
    ]
    asked, right = profile.sure
    rows.append((f"mitotic figures among the {asked} sure detections (0.8 and more) answered", right))
    return console.rows_table(("of the laboratory's slides", "value [95 %]"), rows)


Results = Annotated[
    list[Path],
    typer.Argument(help="Folders that metaphase detect made, of one slide or of many.", metavar="RESULTS..."),
]


MovedSlides = Annotated[
    Path | None,
    typer.Option("--slides", help="Folder where slides are now that have moved; found by their content."),
]


def view(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Folders of results, or slides by themselves.", metavar="RESULTS|SLIDE..."),
    ],
    registration: list[Path] | None = None,
    port: Port = 8502,
    host: Host = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(envvar="METAPHASE_TOKEN", help="Secret of the link, 16 characters or more; else made."),
    ] = None,
    blind: bool = False,
    slides: MovedSlides = None,
    mpp: console.Mpp = None,
) -> None:
    """Look at slides and what was found on them, and correct it, in a browser.

    Stop with Ctrl-C; every answer is saved at once. `metaphase review apply` applies them.

    Parameters:
        registration: Folder of metaphase register, to show its PHH3 slide; may be repeated.
        blind: Observers see neither the answers of others nor their counts.
    """
    from metaphase.web.viewing import serve_view

    serve_view(
        paths,
        mpp=mpp,
        slides=slides,
        registrations=registration or (),
        host=host,
        port=port,
        token=token,
        blind=blind,
        ready=announce("slide"),
        failed=console.complain,
    )


review = Group("Apply what people said about detections.")


@review.command()
def apply(results: Results, slides: MovedSlides = None) -> Answer:
    """Rewrite report, exports and summary of every reviewed slide, the machine's count beside the new one."""
    from metaphase.analysis.review import apply_reviews

    problems: list[str] = []
    done = apply_reviews(results, problems.append, slides=slides)
    for problem in problems:
        console.complain(problem)
    lines = [
        f"{result.name}: {'; '.join(map(str, result.record.counts))}; see {result.report}" for result in done
    ]
    notes = console.count_notes(result.in_force for result in done)
    plain = [{"folder": result.folder, **result.summary} for result in done]
    return Answer(plain, *lines, *notes, failed=problems)


@review.command()
def withdraw(
    results: Results,
    observer: Annotated[str, typer.Option(help="Observer whose answers no longer count (the log stays).")],
    slides: MovedSlides = None,
) -> Answer:
    """Withdraw the review of an observer: counts, and files where it was applied, are as without it."""
    from metaphase.analysis.review import withdraw_review

    withdrawn = withdraw_review(results, observer, slides=slides)
    lines = (f"{name}: {several(answers, 'answer')} withdrawn" for name, answers in withdrawn.items())
    return Answer(withdrawn, *lines)


@review.command("import")
def import_review(
    results: Results,
    file: Annotated[
        Path,
        typer.Option("--from", help="File edited in QuPath, ASAP or another program, or a table."),
    ],
    observer: Annotated[str, typer.Option(help="Who edited it.")],
    complete: bool = False,
) -> Answer:
    """Take the changes of an edited export as a review; the rest stays unanswered.

    Parameters:
        complete: All was reviewed: untouched counted detections are accepted.
    """
    from metaphase.analysis.record import load_results
    from metaphase.analysis.review import import_review as take

    lines = []
    for slide in (taken := take(load_results(results), file, observer, complete=complete)):
        regions = f"; {several(slide.regions, 'region')}" if slide.regions else ""
        lines.append(
            f"{slide.slide}: {slide.rejected} rejected, {slide.added} added, {slide.moved} moved, "
            f"{slide.accepted} accepted below the threshold; mitoses listed now: {slide.mitoses}{regions}"
        )
        for what, number in slide.left.items():
            console.warn(f"{slide.slide}: {number} x {what} in {file.name} became no answer")
    return Answer(taken, *lines)


@review.command("export")
def export_truth(
    results: Results,
    output: console.Output,
    to: str | None = None,
) -> None:
    """Write mitoses and look-alikes that people decided on, as a reference for training and evaluation.

    Parameters:
        output: Table, or with --to a folder for one file per slide.
        to: Format, as in metaphase convert, by default what the name says; or `regions`, the outlined ones.
    """
    from metaphase.analysis.record import load_results
    from metaphase.analysis.review import export_regions, reviewed_truth
    from metaphase.detections.files import write_detections

    found = load_results(results)
    if to == "regions":
        for name, number in export_regions(found, output).items():
            console.say(f"{name}: {several(number, 'region')} in {output}")
        return
    truth = reviewed_truth(found)
    write_detections(truth, output, to, mpp={result.name: result.mpp for result in found})
    counts = truth.table["label"].value_counts()
    text = ", ".join(f"{count} {label}" for label, count in counts.items()) or "nothing"
    console.say(f"{output}: {text}")
