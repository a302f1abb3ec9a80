"""Tables I to IV and figures 1 to 8, from what a run of `paper.py` left; `paper.toml` has the paper's own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
from PIL import Image
from torch import nn

from metaphase.analysis.cohort import cohort_slide
from metaphase.analysis.tasks import TASKS
from metaphase.base.arrays import RGB
from metaphase.base.settings import read_toml
from metaphase.base.stages import kept_facts, note_of
from metaphase.base.tables import read_manifest, read_table
from metaphase.evaluation.observers import DETECTION, majority, read_answers, read_observers
from metaphase.images.stain.deconvolution import combine, separate, to_uint8
from metaphase.images.stain.gallery import gallery
from metaphase.lab.paper import FIELDS, SLIDES, Elsewhere, Paper, outside_manifest
from metaphase.lab.parts import FAILED, pairs_of
from metaphase.learn.chain import Chain
from metaphase.learn.comparison import Summary, f1_panels, main_table
from metaphase.learn.config import CNN3
from metaphase.learn.experiments import summarise_job
from metaphase.learn.run import delivered_model
from metaphase.networks.checkpoints import load_model
from metaphase.networks.training.data import open_set
from metaphase.reports.evaluation import text
from metaphase.reports.pages import DASH, TextTable
from metaphase.reports.paper import (
    ChainStep,
    Part,
    chain_figure,
    grid_figure,
    picture_figure,
    sheet_figure,
    verdict_figure,
)
from metaphase.reports.plots import network_f1_figure
from metaphase.slides.opening import SlideSource
from metaphase.slides.tiles import cut_square

PATCH_PX, PATCH_MPP = 128, 0.25
TILE_PX, TILE_MPP = 256, 0.5
PAIRS_SHOWN, MOST_TILES, MOST_JUDGED = 8, 60, 200
CHAIN_STEPS = ("slides", "candidates", "easy set", CNN3)
LABEL_STEPS = ("candidates", "round 1", "cnn1", "round 2", "cnn2", "reference")
EXAMPLES, GLASS = 64, 225
PAPERS = 7
"""Columns of table IV that are the paper's."""
Judged = list[tuple[RGB, bool, str]]
"""Pictures of detections, each with its verdict and probability."""


def paper_parts(paper: Paper, elsewhere: Elsewhere) -> list[Part]:
    """All parts, in the order of the paper."""
    summary, _ = summarise_job(paper.job)
    made, learning = _Parts(paper, elsewhere, summary), paper.run.training
    panels = f1_panels(summary.tested, summary.home, summary.held_out)
    augmented = gallery(made.example, learning.augment, learning.augmentation)
    pictures = made.judged[0]
    tables = (made.cohorts(), made.layers(), main_table(summary), made.tasks())
    figures = (
        made.pairs(),
        sheet_figure(made.tiles()),
        made.steps("figure-3"),
        made.steps("figure-4"),
        picture_figure(augmented),
        made.channels(),
        network_f1_figure(panels) if panels else None,
        verdict_figure(*zip(*pictures, strict=True)) if pictures else None,
    )
    parts = [made.part(f"table-{number}", table=table) for number, table in enumerate(tables, start=1)]
    return parts + [made.part(f"figure-{number}", figure=one) for number, one in enumerate(figures, start=1)]


@dataclass(frozen=True)
class _Parts:
    """What the parts are made of."""

    paper: Paper
    elsewhere: Elsewhere
    summary: Summary

    def part(self, name: str, **content: Any) -> Part:
        """A part with the paper's own, and what of it the data lack."""
        own, lacks = VALUES["parts"][name], {kind: found is None for kind, found in self.outside.items()}
        lacks |= {"figures": self.accepted.empty, "study": not self.paper.section.study}
        lacks |= {"labels": "round 2/labels" not in self.numbers}
        missing = " ".join(VALUES["missing"][kind] for kind in own["absent"] if lacks[kind])
        text = own["text"].format_map(self.numbers)
        return Part(name, own["title"], text, own["paper"], missing=missing, **content)

    # ---- tables ----

    def cohorts(self) -> TextTable:
        """Table I."""
        tables = {"pairs": self.manifest}
        for kind, found in self.outside.items():
            if found is not None:
                tables |= {f"{kind} {split}": rows for split, rows in found.groupby("split")}
        rows = []
        for alias, data, truth, *rest in VALUES["tables"]["cohorts"]:
            if alias in tables:
                centres = set(filter(None, tables[alias]["laboratory"]))
                several = f"yes ({len(centres)})" if len(centres) > 1 else "no" if centres else "not stated"
                said = truth.format_map(self.numbers)
                rows.append([alias, data, str(len(tables[alias])), several, said, *rest])
        headings = ["alias", "data", "cases", "multicenter", "reference standard", "purpose", "in the paper"]
        return TextTable("", headings, rows)

    def layers(self) -> TextTable:
        """Table II."""
        network, card = load_model(self.chain.model(CNN3))
        rows, own = layer_rows(network), VALUES["tables"]["layers"]
        own = own if len(own) == len(rows) else [DASH] * len(rows)
        headings = ["function", "filters", "size", "stride", "activation", "in the paper"]
        note = f"γ = {card.gamma:g}, normalisation {card.spec.normalisation}."
        return TextTable("", headings, [[*row, one] for row, one in zip(rows, own, strict=True)], note)

    def tasks(self) -> TextTable:
        """Table IV."""
        values = {name: f"{value} of {cases}" for name, (value, cases) in self.elsewhere.agreement.items()}
        rows = [[*map(text, vars(task).values())][:PAPERS] for task in TASKS.values()]
        rows = [[*row, values.get(name, DASH)] for row, name in zip(rows, TASKS, strict=True)]
        headings = [*[name.replace("_", " ") for name in vars(TASKS["grade"])][:PAPERS], "this run"]
        return TextTable("", headings, rows, "95 % intervals draw patients; “of” how many slides.")

    @property
    def tuned(self) -> str:
        """Thresholds and thetas, in words."""
        said = [f"{name} = {value:.4g}" for name, value in self.elsewhere.numbers.items()]
        return " ".join([f"{', '.join(said) or 'nothing'}.", *self.elsewhere.problems])

    # ---- figures ----

    def pairs(self) -> Any:
        """Figure 1."""
        rows = _spread(self.accepted.sort_values(["probability", "case"]), PAIRS_SHOWN)
        slides = {pair.case: pair for pair in pairs_of(self.paper.lab)}
        he = [_patch(slides[row["case"]].he, row["x"], row["y"]) for row in rows]
        phh3 = [_patch(slides[row["case"]].phh3, row["x_phh3"], row["y_phh3"]) for row in rows]
        return grid_figure([he, phh3], ["H&E", "PHH3"]) if rows else None

    def tiles(self) -> dict[str, list[RGB]]:
        """Figure 2."""
        groups = {"pairs": self.manifest, **self.outside}
        found = {name: table for name, table in groups.items() if table is not None}
        return {name: [_tile(row) for row in _spread(table, MOST_TILES)] for name, table in found.items()}

    def steps(self, name: str) -> Any:
        """Figures 3 and 4."""
        steps = {
            group: [ChainStep(title, text.format_map(self.numbers), own) for title, text, own in several]
            for group, several in VALUES["steps"][name].items()
        }
        return chain_figure(steps)

    def channels(self) -> Any:
        """Figure 6."""
        ranges = self.paper.run.training.augmentation
        matrix, epsilon = ranges.stain_matrix, ranges.stain_epsilon
        amounts = separate(self.example, matrix, epsilon=epsilon)
        weak, strong = zip(ranges.stain_factor, ranges.stain_bias, strict=True)
        rows, captions = [], []
        for changes in (((1, 0),) * 3, (strong, weak, weak), (weak, strong, strong)):
            factors, biases = np.transpose(changes)
            changed = amounts * factors + biases
            shown = [changed * stain for stain in np.eye(3)] + [changed]
            pictures = [to_uint8(combine(stains, matrix, epsilon=epsilon)) for stains in shown]
            rows.append([self.example, *pictures])
            said = [
                f"{stain} × {factor:g} {bias:+g}"
                for stain, (factor, bias) in zip("HER", changes, strict=True)
            ]
            captions.append(["patch", *said, "back to RGB"])
        return grid_figure(rows, captions=captions)

    @cached_property
    def judged(self) -> tuple[Judged, str]:
        """Figure 8, and what it says."""
        return self.study() if self.paper.section.study else self.by_reference()

    def study(self) -> tuple[Judged, str]:
        """What the observers of a study said; several decide by majority."""
        section = self.paper.section
        sheets, key = [Path(sheet) for sheet in section.answers], read_table(section.study)
        result = read_observers(Path(section.study), sheets)[-1]
        said = majority([read_answers(sheet, key) for sheet in sheets])
        shown = []
        for row in key[key["kind"] == DETECTION].to_dict("records"):
            with Image.open(sheets[0].parent / "patches" / f"{row['item']}.png") as picture:
                pixels = np.asarray(picture.convert("RGB"))
            shown.append((pixels, bool(said[row["item"]]), f"{row['probability']:.3f}"))
        text = f"{result.observer} confirmed {result.confirmed} of {result.judged} (green): precision "
        return shown, f"{text}{result.precision}."

    def by_reference(self) -> tuple[Judged, str]:
        """Detections on the fields that judge, with the verdict of their reference."""
        found, fields = self.elsewhere.detections, self.outside[FIELDS]
        if found is None or fields is None:
            return [], "There are no detections to judge."
        slides = {slide.name: slide.slide for slide in map(cohort_slide, fields.to_dict("records"))}
        most = found.sort_values("probability", ascending=False, kind="stable").head(MOST_JUDGED)
        shown = [
            (_patch(slides[row["slide"]], row["x"], row["y"]), row["true"], f"{row['probability']:.3f}")
            for row in most.to_dict("records")
        ]
        text = (
            f"{found['true'].sum()} of {len(found)} detections on outside fields are mitotic figures of the "
        )
        return shown, f"{text}reference (green); the {len(shown)} most probable are shown."

    # ---- what they share ----

    @property
    def chain(self) -> Chain:
        """The chain of the experiments."""
        return self.paper.job.chain

    @cached_property
    def manifest(self) -> pd.DataFrame:
        """The pairs that were registered."""
        return read_manifest(self.paper.lab.cases / "manifest.csv")

    @cached_property
    def accepted(self) -> pd.DataFrame:
        """Mitotic figures that registration carried to H&E."""
        table = read_table(self.paper.lab.cases / "reference.parquet")
        return table[table["accepted"]]

    @cached_property
    def outside(self) -> dict[str, pd.DataFrame | None]:
        """Fields and slides from elsewhere."""
        return {kind: outside_manifest(self.paper, kind) for kind in (FIELDS, SLIDES)}

    @cached_property
    def example(self) -> RGB:
        """Of the first mitotic figures that trained, the patch with the least glass."""
        positives = open_set(self.chain.stores("positives"))
        patches: RGB = positives.take(np.arange(min(len(positives.index), EXAMPLES)))
        example: RGB = patches[(patches.min(axis=3) > GLASS).mean(axis=(1, 2)).argmin()]
        return example

    @property
    def failed(self) -> str:
        """Pairs that gave nothing."""
        names = {case for step in LABEL_STEPS for case in _facts(self.paper.lab.root, step).get(FAILED, {})}
        return f" Without {', '.join(sorted(names))}, which failed." if names else ""

    @cached_property
    def numbers(self) -> Mapping[str, str]:
        """Numbers of the run by `stage/fact`, as text; a dash for all others."""
        student, judged = delivered_model(self.chain).stem, self.elsewhere.detections
        found: dict[str, Any] = {"pairs/number": len(self.manifest), "delivered/name": student}
        for folder, names in ((self.paper.lab.root, LABEL_STEPS), (self.chain.workspace, CHAIN_STEPS)):
            for name in names:
                found |= {f"{name}/{fact}": value for fact, value in _facts(folder, name).items()}
        for row in self.summary.rows:
            found |= {f"{network}/F1": row.highest.value for network in row.experiment.networks}
        found["delivered/F1"] = found.get(f"{student}/F1", DASH)
        found |= {f"elsewhere/{name}": value.value for name, (value, _) in self.elsewhere.agreement.items()}
        found |= {f"elsewhere/{name}": value for name, value in self.elsewhere.numbers.items()}
        run = self.paper.run
        found |= {"run/sets": run.ensemble.networks, "run/negatives": run.sets.hard_negatives}
        found |= {"run/letters": run.training.augment, "run/tuned": self.tuned, "run/failed": self.failed}
        other = [found[key] for key in ("round 2/not", "round 2/artefact") if key in found]
        found |= {"round 2/negatives": sum(other)} if other else {}
        found["run/verdict"] = self.judged[1]
        found["elsewhere/detections"] = DASH if judged is None else len(judged)
        return defaultdict(lambda: DASH, {name: _text_of(value) for name, value in found.items()})


VALUES: dict[str, Any] = read_toml(Path(__file__).with_name("paper.toml"))


def layer_rows(network: nn.Sequential) -> list[list[str]]:
    """Function, filters, size, stride and activation of each layer that has weights, and of dropout."""
    rows: list[list[str]] = []
    for layer in network:
        if isinstance(layer, nn.Conv2d):
            size, stride = "x".join(map(str, layer.kernel_size)), str(layer.stride[0])
            rows.append(["conv", str(layer.out_channels), size, stride, "Softmax"])
        elif isinstance(layer, nn.LeakyReLU):
            rows[-1][-1] = f"Leaky-ReLU ({layer.negative_slope:g})"
        elif isinstance(layer, nn.Dropout):
            rows.append(["dropout", *[DASH] * 4])
    return rows


def _text_of(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _facts(folder: Path, stage: str) -> dict[str, Any]:
    return kept_facts(folder, stage) if note_of(folder, stage).is_file() else {}


def _spread(table: pd.DataFrame, most: int) -> list[dict[Any, Any]]:
    """At most so many rows, evenly from all of them."""
    return table.iloc[np.linspace(0, len(table) - 1, min(most, len(table))).astype(int)].to_dict("records")


def _patch(source: SlideSource, x: float, y: float) -> RGB:
    with source.open() as slide:
        return cut_square(slide, x, y, PATCH_PX, PATCH_MPP)


def _tile(row: dict[Any, Any]) -> RGB:
    """The square of a slide around the position that is farthest from the edge of tissue."""
    item = cohort_slide(row)
    with item.slide.open() as slide:
        tissue = item.tissue.of(slide)
        inside = cv2.distanceTransform(np.pad(tissue.mask, 1).astype(np.uint8), cv2.DIST_L2, 3)[1:-1, 1:-1]
        y, x = np.unravel_index(int(inside.argmax()), inside.shape)
        position = (tissue.x + (x + 0.5) * tissue.scale, tissue.y + (y + 0.5) * tissue.scale)
        return cut_square(slide, *position, TILE_PX, TILE_MPP)
