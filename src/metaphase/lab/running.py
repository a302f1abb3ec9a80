"""A laboratory's workflow: start it, run it until people have to answer, and report its status."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from metaphase.base.errors import MetaphaseError, OutputError, ResultWarnings, UsageError
from metaphase.base.files import held, write_text
from metaphase.base.foreign import read_json
from metaphase.base.stages import Report, StageState, kept_facts, run_stages, silent
from metaphase.base.tables import as_text, read_manifest, read_table, write_manifest
from metaphase.lab.detector_steps import DEFAULT, DELIVERED, detector_steps
from metaphase.lab.folder import Lab, write_settings
from metaphase.lab.label_steps import label_steps
from metaphase.lab.pairing import manifest_of, pair_slides, stated_facts, write_slides
from metaphase.lab.parts import FAILED, Asked, Step, StepProgress, first_open
from metaphase.learn.dense import OLD
from metaphase.networks.cards import BUNDLED, card_of, warnings_about
from metaphase.reports.pages import data_uri, facts_text, render
from metaphase.reports.plots import label_curve_plot

Status = Literal[
    "done", "running", "waiting for a person", "next", "out of date", "later", "interrupted", "failed"
]
NEXT = "metaphase lab next"
Describe = Callable[[StageState, int, int], None]
"""Called with a step that was done, its number, and how many steps there are."""
Watch = Callable[[StepProgress], None]
WRITTEN_EVERY_S, SHOWN_EVERY_S = 2, 20
"""Between notes of a step's progress for `metaphase lab`, and for the page."""


# ---- the beginning ----


@dataclass(frozen=True)
class Begun:
    """What `metaphase lab init` made."""

    lab: Lab
    manifest: pd.DataFrame
    notes: list[str]
    """What is odd, and what was guessed."""


def begin(
    root: Path,
    folder: Path,
    *,
    name: str = "",
    table: Path | None = None,
    start: str = BUNDLED,
    report: Report = silent,
) -> Begun:
    """Pair the slides of a folder and write manifest and `lab.toml`; again, it takes new slides in."""
    lab = Lab(root.resolve())
    name = name or re.sub(r"[^\w-]", "-", lab.root.name).strip("-_") or "laboratory"
    write_settings(lab.root, name, folder.resolve(), start)
    kept = (lab.settings.name, lab.settings.start) != (name, start)
    paired = pair_slides(lab, folder.resolve(), report=report)
    earlier = read_manifest(lab.manifest) if lab.manifest.is_file() else None
    write_slides(lab, paired)
    manifest, guessed = manifest_of(paired, stated_facts(table, folder), earlier)
    write_manifest(lab.manifest, manifest)
    show(lab)
    if kept:
        guessed.append(f"lab.toml exists and is kept: {lab.settings.name}, start {lab.settings.start!r}")
    return Begun(lab, manifest, [*paired.notes, *guessed])


# ---- going on ----


def steps_of(lab: Lab) -> list[Step]:
    """All steps, in order."""
    return [*label_steps(lab), *detector_steps(lab)]


def go_on(lab: Lab, *, say: Describe | None = None, watch: Watch | None = None) -> Asked | None:
    """Run all steps that need nobody; returns the page that people have to answer first, None at the end.

    `watch` is called with the progress of steps.
    """
    while True:
        steps = steps_of(lab)
        number, _ = first_open(lab, steps)
        if number is None:
            show(lab, steps)
            return None
        step = steps[number]
        with _working_on(lab, steps, number, watch) as report:
            if step.prepare is not None and step.prepare(report):
                continue
            waiting = [page for page in step.pages if not page.enough]
            if not waiting:
                done = run_stages([each.stage for each in steps[: number + 1]], lab.root, report=report)
        if waiting:
            show(lab, steps)
            return waiting[0]
        left, _ = first_open(lab, steps)
        if left is not None and left <= number:  # it would run for ever
            raise OutputError(
                f"step {step.name} ran, but its result does not hold",
                next_step="check that nothing else changes the files of this folder, and run it again",
            )
        if say is not None:
            say(done[-1], number + 1, len(steps))


@contextmanager
def _working_on(lab: Lab, steps: Sequence[Step], number: int, watch: Watch | None) -> Iterator[Report]:
    """A report that tells the progress of a step to whoever watches, to the page and to `metaphase lab`."""
    written_s = shown_s = -math.inf

    def report(what: str, done: float, total: float) -> None:
        nonlocal written_s, shown_s
        share, now_s = min(1.0, done / total) if total > 0 else 0.0, time.monotonic()
        progress = StepProgress(steps[number].name, number, len(steps), what, share)
        if watch is not None:
            watch(progress)
        if now_s - written_s >= WRITTEN_EVERY_S:
            written_s = now_s
            write_text(lab.progress, json.dumps(asdict(progress)) + "\n")
        if now_s - shown_s >= SHOWN_EVERY_S:
            shown_s = now_s
            show(lab, steps)

    try:
        report(steps[number].stage.about, 0, 1)
        yield report
    except BaseException:
        lab.progress.unlink(missing_ok=True)
        with suppress(MetaphaseError):
            show(lab)
        raise
    lab.progress.unlink(missing_ok=True)


@contextmanager
def hold_folder(lab: Lab) -> Iterator[None]:
    """Hold the lock of a laboratory's folder."""
    with held(lab.lock) as free:
        if not free:
            raise UsageError(
                "another process is already working here",
                path=lab.root,
                next_step="wait for it, or stop it; metaphase lab shows where it stands. If none does, the "
                "disk knows no locks: move the folder to another one",
            )
        yield


# ---- where it stands ----


@dataclass(frozen=True)
class Standing:
    """A step, and where it stands."""

    step: Step
    status: Status
    what: str
    """What it made, what is answered, or why it has to be done."""
    state: StageState


def standings(lab: Lab, steps: Sequence[Step] | None = None) -> list[Standing]:
    """Every step, of those that are known or as they are now; the first that is not done is the next one."""
    steps = steps or steps_of(lab)
    first, states = first_open(lab, steps)
    standing, progress = [], None
    with held(lab.lock) as free, suppress(MetaphaseError, TypeError):  # another process may not say
        if not free:
            progress = StepProgress(**read_json(lab.progress, "says no progress", next_step="remove it"))
    for number, (step, state) in enumerate(zip(steps, states, strict=True)):
        status, what = _describe(step, state, number == first)
        if number == first and progress is not None and progress.step == step.name:
            status, what = "running", str(progress)
        standing.append(Standing(step, status, what, state))
    return standing


def _describe(step: Step, state: StageState, is_first: bool) -> tuple[Status, str]:
    if state.status == "kept":
        cut = state.facts.get(FAILED, {})
        failed = f"; failed: {', '.join(cut)}" if cut else ""
        return "done", fact_line(state.facts) + failed
    waiting = [page for page in step.pages if not page.enough]
    if waiting and is_first:
        return "waiting for a person", "; ".join(f"{page.what}: {page}" for page in waiting)
    if state.status in ("interrupted", "failed"):
        return state.status, state.reason
    if state.reason not in ("", "not made yet"):
        return "out of date", state.reason
    return ("next" if is_first else "later"), step.stage.about


def fact_line(facts: Mapping[str, Any]) -> str:
    """What a step made, in a line."""
    return facts_text({name: value for name, value in facts.items() if name != FAILED})


def next_command(standing: Sequence[Standing]) -> str:
    """The one command to give now; none where all is done."""
    return NEXT if any(each.status != "done" for each in standing) else ""


def last_words(lab: Lab) -> tuple[list[str], ResultWarnings]:
    """What a finished model is, and how to use it; and what speaks against it."""
    card, facts = card_of(lab.model), kept_facts(lab.root, "results")
    site = f" --site {lab.site}" if lab.site.is_file() and lab.settings.calibration.answers else ""
    unchanged = "training on your slides did not improve it: weights are unchanged, thresholds are your own"
    lines = [
        f"model {lab.model}",
        *(str(facts[name]) for name in (DELIVERED, DEFAULT) if name in facts),
        *([unchanged] if card.known_metrics.chosen == OLD else []),
        f"card {lab.model.with_suffix('.json')}",
        f"evaluation {lab.evaluation / 'index.html'}",
        f"metaphase detect SLIDE... -o DIR --model {lab.model}{site}",
    ]
    return lines, warnings_about(card)


def show(lab: Lab, steps: Sequence[Step] | None = None) -> None:
    """Write the page about where it stands, as one HTML file that opens offline."""
    write_text(lab.page, render("lab.html", **page_content(lab, steps)))


def page_content(lab: Lab, steps: Sequence[Step] | None = None) -> dict[str, Any]:
    """Content of the laboratory's page."""
    standing = standings(lab, steps)
    manifest, slides = read_manifest(lab.manifest), read_table(lab.slides)
    notes = [
        (Path(slide).name, what)
        for slide, what in zip(slides["slide"], as_text(slides["what"]), strict=True)
        if what
    ]
    rounds = [page for each in standing for page in each.step.pages]
    done = {each.step.name for each in standing if each.status == "done"}
    lines, warnings = last_words(lab) if "model" in done else ([], ())
    return {
        "name": lab.settings.name,
        "root": lab.root,
        "command": next_command(standing),
        "standing": standing,
        "splits": manifest["split"].value_counts().to_dict(),
        "patients": manifest["patient"].nunique(),
        "centres": sorted({str(centre) for centre in manifest["laboratory"] if centre}),
        "notes": list(dict.fromkeys(notes)),
        "rounds": rounds,
        "pictures": {
            page.what: data_uri("image/png", label_curve_plot(page.curve)) for page in rounds if page.curve
        },
        "model": lines,
        "warnings": warnings,
        "refresh_s": SHOWN_EVERY_S if any(each.status == "running" for each in standing) else 0,
    }
