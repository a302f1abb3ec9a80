"""The page of a run: gather what its workspace holds, render, write one file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metaphase.artifacts import write_text
from metaphase.evaluation import BootstrapConfig
from metaphase.pipeline.stages import States
from metaphase.pipeline.training.chain import NETWORKS, Chain
from metaphase.pipeline.training.examples import ExampleGroup, example_groups
from metaphase.pipeline.training.run import read_results
from metaphase.pipeline.training.testing import GRID, scores_of
from metaphase.web.run_page.plots import Line, f1_plot, learning_plot
from metaphase.web.run_page.rendering import TextTable, duration, png_uri, render
from metaphase.web.slide_report.drawing import jpeg_uris

EXAMPLE_BYTES = 1_500_000
CROP_PX = 100
"""Side of the shown patches: what the networks see."""


@dataclass(frozen=True)
class Example:
    """A patch with where it came from."""

    image: str
    caption: str


@dataclass(frozen=True)
class ExampleRow:
    """Patches of one kind."""

    title: str
    note: str
    examples: tuple[Example, ...]


def write_run_page(path: str | Path, chain: Chain, states: States) -> Path:
    """Write what a run made so far as one HTML file that opens offline."""
    write_text(path, run_page(chain, states))
    return Path(path)


def run_page(chain: Chain, states: States) -> str:
    """The page as HTML text; parts that the run has not reached are left out."""
    results = read_results(chain.workspace)
    histories = _histories(chain.workspace / NETWORKS)
    return render(
        "run.html",
        name=chain.workspace.name,
        stages=_stage_rows(states),
        total=duration(sum(state.seconds or 0 for state in states)),
        finished=all(state.status in ("done", "kept") for state in states),
        headline=_headline(results),
        tables=_tables(results, chain.config.test.bootstrap),
        f1=png_uri(_curves(results)) if results else "",
        learning=png_uri(learning_plot(histories)) if histories else "",
        examples=_examples(chain.hard_stores()),
    )


def _headline(results: dict[str, Any]) -> list[tuple[str, str]]:
    """F1 on held-out laboratories of CNN3 and the last CNN5."""
    if not results:
        return []
    away, _ = _centres(results)
    names = list(results["networks"])
    none = BootstrapConfig(samples=0)
    return [
        (name, f"{scores_of([results['networks'][name]], away).f1_at_validation(none).value:.3f}")
        for name in (names[0], "ensemble", names[-1])
    ]


def _centres(results: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Laboratories held out (all, where none is), and those trained on that have test slides."""
    every = set(next(iter(results["networks"].values()))["slides"]["centre"])
    home = every & set(results["training_centres"])
    return (every - home) or every, home


def _tables(results: dict[str, Any], samples: int) -> list[TextTable]:
    if not results:
        return []
    away, home = _centres(results)
    bootstrap, none = BootstrapConfig(samples=samples), BootstrapConfig(samples=0)
    headings = ["network", "parameters", "threshold", "F1 held out", "highest F1 held out", "F1 at home"]
    rows, by_centre = [], []
    for name, values in results["networks"].items():
        scores = scores_of([values], away)
        at_home = scores_of([values], home).f1_at_validation(none).value if home else np.nan
        rows.append(
            [
                name,
                f"{values['parameters']:,}",
                f"{values['threshold']:.3f}",
                str(scores.f1_at_validation(bootstrap)),
                str(scores.highest_f1(bootstrap)),
                "–" if np.isnan(at_home) else f"{at_home:.3f}",
            ]
        )
        by_centre.append([name, *(_f1_of(values, centre) for centre in sorted(away | home))])
    centres = [f"{centre} (trained on)" if centre in home else centre for centre in sorted(away | home)]
    return [
        TextTable(
            headings, rows, "F1 at the threshold chosen on validation slides; 95 % intervals draw slides."
        ),
        TextTable(["F1 by laboratory", *centres], by_centre, "At the same thresholds."),
    ]


def _f1_of(values: dict[str, Any], centre: str) -> str:
    value = scores_of([values], {centre}).f1_at_validation(BootstrapConfig(samples=0)).value
    return "–" if np.isnan(value) else f"{value:.3f}"


def _curves(results: dict[str, Any]) -> bytes:
    away, home = _centres(results)
    panels = {"Laboratories held out": away} | ({"Training laboratory": home} if home else {})
    lines = {
        title: [
            Line(name, scores_of([values], centres).curves().tolist(), [values["threshold"]])
            for name, values in results["networks"].items()
        ]
        for title, centres in panels.items()
    }
    return f1_plot(lines, GRID.tolist())


def _histories(folder: Path) -> dict[str, pd.DataFrame]:
    return {path.parent.name: pd.read_csv(path) for path in sorted(folder.glob("*/history.csv"))}


def _stage_rows(states: States) -> list[dict[str, Any]]:
    longest = max((state.seconds or 0 for state in states), default=0) or 1
    return [
        {
            "name": state.stage.name,
            "about": state.stage.about,
            "status": {"kept": "done"}.get(state.status, state.status),
            "time": duration(state.seconds),
            "share": 100 * (state.seconds or 0) / longest,
            "facts": ", ".join(f"{name} {_plain(value)}" for name, value in state.facts.items()),
        }
        for state in states
    ]


def _examples(stores: list[str]) -> list[ExampleRow]:
    groups = example_groups(stores) if stores else []
    edge = [(group.patches.shape[1] - CROP_PX) // 2 for group in groups]
    crops = [
        patch[margin : margin + CROP_PX, margin : margin + CROP_PX]
        for group, margin in zip(groups, edge, strict=True)
        for patch in group.patches
    ]
    images = iter(jpeg_uris(crops, EXAMPLE_BYTES))
    return [
        ExampleRow(group.title, group.note, tuple(Example(next(images), text) for text in _captions(group)))
        for group in groups
    ]


def _captions(group: ExampleGroup) -> list[str]:
    rows = group.rows
    columns = zip(rows["slide"], rows["x"], rows["y"], rows["ensemble"], strict=True)
    return [f"{value:.3f} · {slide} at {x:.0f}, {y:.0f}" for slide, x, y, value in columns]


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
