"""`metaphase view` and `metaphase review`: slides with deep zoom, and answers about what was found."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from metaphase.cli.console import Json, Mpp, complain, explain_counts, print_json, say
from metaphase.cli.label import announce

Results = Annotated[
    list[Path],
    typer.Argument(help="Folders that metaphase detect made, of one slide or of many.", metavar="RESULTS..."),
]


def view(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Folders of results, or slides by themselves.", metavar="RESULTS|SLIDE..."),
    ],
    registration: Annotated[
        list[Path] | None,
        typer.Option(
            help="A folder of metaphase register: its PHH3 slide can be laid over the H&E slide or beside "
            "it. As often as there are pairs."
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port; 0 takes any free one.")] = 8502,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 opens it to the network.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(envvar="METAPHASE_TOKEN", help="Secret of the link, 16 characters or more; else made."),
    ] = None,
    blind: Annotated[
        bool, typer.Option("--blind", help="Observers see neither the answers of others nor their counts.")
    ] = False,
    mpp: Mpp = None,
) -> None:
    """Look at slides and what was found on them, and correct it, in a browser.

    Stop with Ctrl-C; every answer is on the disk at once. `metaphase review apply` puts them in force.
    """
    from metaphase.web.viewing import serve_view

    serve_view(
        paths, mpp=mpp, registrations=registration or (), host=host, port=port, token=token, blind=blind,
        ready=announce("slides"), failed=complain,
    )  # fmt: skip


review = typer.Typer(help="Apply what people said about detections.", no_args_is_help=True)


@review.command()
def apply(results: Results, as_json: Json = False) -> None:
    """Rewrite report, exports and summary of every reviewed slide, the machine's count beside the new one."""
    from metaphase.jobs.slide_review import apply_reviews

    problems: list[str] = []
    done = apply_reviews(results, problems.append)
    for problem in problems:
        complain(problem)
    if as_json:
        shown = ("name", "detections", "machine", "review")
        print_json([{**one.told, **{key: one.summary.get(key) for key in shown}} for one in done])
    else:
        for one in done:
            line = "; ".join(map(str, (one.in_force, *one.beneath)))
            say(f"{one.name}: {line}; see {one.report}")
        explain_counts(one.summary for one in done)
    raise typer.Exit(int(bool(problems)))


@review.command()
def withdraw(
    results: Results,
    observer: Annotated[str, typer.Option(help="Whose answers no longer count; they stay in the log.")],
    as_json: Json = False,
) -> None:
    """Withdraw the review of an observer: counts, and files where it was applied, are as without it."""
    from metaphase.jobs.slide_review import withdraw_review

    withdrawn = withdraw_review(results, observer)
    if as_json:
        print_json(withdrawn)
        return
    for name, answers in withdrawn.items():
        say(f"{name}: {answers} answers withdrawn")


@review.command("import")
def import_review(
    results: Results,
    file: Annotated[
        Path,
        typer.Option("--from", help="File edited in QuPath, ASAP or another program, or a table."),
    ],
    observer: Annotated[str, typer.Option(help="Who edited it.")],
    complete: Annotated[
        bool, typer.Option("--complete", help="All was reviewed: counted detections left are accepted.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Take the changes of an edited export as a review; the rest stays unanswered."""
    from metaphase.jobs.results import load_results
    from metaphase.jobs.slide_review import import_review as take

    taken = take(load_results(results), file, observer, complete=complete)
    if as_json:
        print_json([asdict(one) for one in taken])
        return
    for one in taken:
        say(
            f"{one.slide}: {one.mitoses} mitoses, {one.added} of them added; {one.rejected} rejected, "
            f"{one.accepted} accepted that did not count, {one.moved} moved, all else as it was"
        )


@review.command()
def export(
    results: Results,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Table, or with --to a folder for one file per slide.")
    ],
    to: Annotated[
        str | None, typer.Option(help="Format, as in metaphase convert; by default what the name says.")
    ] = None,
) -> None:
    """Write mitoses and look-alikes that people decided on, as a reference for training and evaluation."""
    from metaphase.detections import write_detections
    from metaphase.jobs.results import load_results
    from metaphase.jobs.slide_review import reviewed_truth

    found = load_results(results)
    truth = reviewed_truth(found)
    write_detections(truth, output, to, mpp={one.name: one.mpp for one in found})
    counts = truth.table["label"].value_counts()
    told = ", ".join(f"{count} {label}" for label, count in counts.items()) or "nothing"
    say(f"{output}: {told}")
