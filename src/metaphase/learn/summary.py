"""What came of a run, for its page: tables, curves, and patches worth a look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metaphase.base.arrays import Floats32, Integers
from metaphase.base.stages import States, kept_facts
from metaphase.evaluation.metrics import BootstrapConfig
from metaphase.evaluation.operating_points import counts_of
from metaphase.evaluation.pairs import POINTS
from metaphase.learn.chain import NETWORKS, Chain
from metaphase.learn.comparison import by_training, f1_of, f1_panels, laboratory_table
from metaphase.learn.config import CNN3, ENSEMBLE
from metaphase.learn.dense import DenseChain
from metaphase.learn.mining.mining import SOFT_TARGET
from metaphase.learn.run import delivered_model, patch_f1, read_results
from metaphase.networks.cards import parse_card
from metaphase.networks.training.data import open_set
from metaphase.reports.pages import DASH, TextTable
from metaphase.reports.run import Examples

CROP_PX = 100
"""Side of the shown patches: what the networks see."""
SHOWN = 12
"""Patches of each kind."""
CANDIDATE_FACTS = {
    "validation recall": "0.99",
    "negatives per positive": "1,000",
    "candidates per slide": "1,000,000",
    "t": "0.6",
}
"""What is said of candidates, and what the paper says."""
CANDIDATE_NOTE = "Candidates of training and validation slides; below, the paper's."
COUNT_NOTE = "Chosen on validation slides as in the paper; without one, the threshold of mitoses counts."


def run_report(chain: Chain, states: States) -> dict[str, Any]:
    """All that the page of a run shows, from what its workspace holds."""
    results, stores = read_results(chain.workspace), chain.stores("positives", "hard")
    histories = sorted((chain.workspace / NETWORKS).glob("*/history.csv"))
    tested: dict[str, Any] = {"headline": [], "tables": [], "panels": {}}
    if results:
        tested = _test_results(results, BootstrapConfig(samples=chain.config.test.bootstrap))
    return {
        "name": chain.workspace.name,
        "states": states,
        **tested,
        "tables": [*tested["tables"], *left_out_tables(delivered_model(chain))],
        "choices": paper_tables(chain, results),
        "histories": {path.parent.name: pd.read_csv(path) for path in histories},
        "examples": example_groups(stores) if stores else (),
    }


def _test_results(results: dict[str, Any], bootstrap: BootstrapConfig) -> dict[str, Any]:
    """What the test says: F1 on laboratories held out (all, where none is) of CNN3, the ensemble and the last
    CNN5, or of the pairs tested; tables and curves of all, by laboratory."""
    tested = {name: [values] for name, values in results["networks"].items()}
    home, held_out = by_training(results["networks"].values(), results["training_centres"])
    shown = (CNN3, ENSEMBLE, list(tested)[-1]) if CNN3 in tested else tested
    headings = ["network", "parameters", "threshold", "F1 held out", "highest F1 held out", "F1 trained"]
    rows = []
    for name, (values,) in tested.items():
        counts, about = counts_of([values], held_out), [name, f"{values['parameters']:,}"]
        f1 = [str(counts.f1_at_validation(bootstrap)), str(counts.highest_f1(bootstrap))]
        rows.append([*about, f"{values['threshold']:.3f}", *f1, f1_of([values], home)])
    note = "F1 at the threshold chosen on validation slides; 95 % intervals draw slides."
    return {
        "headline": [(name, f1_of(tested[name], held_out)) for name in shown],
        "tables": [TextTable("", headings, rows, note), laboratory_table(tested, home)],
        "panels": f1_panels(tested, home, held_out),
    }


def left_out_tables(model: Path) -> list[TextTable]:
    """What a delivered pair does in each group of images left out, as its card says it."""
    card = parse_card(model.with_suffix(".json")) if model.is_file() else None
    groups = card.metrics.get("left out", {}) if card is not None else {}
    headings = ["images left out", "mitoses", "mm2"]
    headings += [f"{point}: {what}" for point in POINTS for what in ("F1", "recall", "false per mm2")]
    rows = []
    for name, points in groups.items():
        first = next(iter(points.values()))
        figures = [str(points[point][key]) for point in POINTS for key in ("f1", "recall", "false_per_mm2")]
        rows.append([name, str(first["mitoses"]), str(first["mm2"]), *figures])
    note = "Validation images, which chose the operating points, then test images by laboratory."
    return [TextTable("", headings, rows, note)] if rows else []


def paper_tables(chain: Chain, results: dict[str, Any]) -> list[TextTable]:
    """What the paper also says: candidates, the choice of the CNN5, the threshold of the count."""
    tables, facts = [], kept_facts(chain.workspace, "candidates")
    if CANDIDATE_FACTS.keys() <= facts.keys():
        row = [f"{facts[name]:,}" for name in CANDIDATE_FACTS]
        tables.append(TextTable("", [*CANDIDATE_FACTS], [row, [*CANDIDATE_FACTS.values()]], CANDIDATE_NOTE))
    f1 = {} if isinstance(chain, DenseChain) else patch_f1(chain)
    if f1:
        section = chain.config.students
        chosen = section.delivered(f1)
        rows = [
            [f"{gamma:g}", f"{value:.3f}", "delivered" if gamma == chosen else ""]
            for gamma, value in f1.items()
        ]
        rule = "The last of the list is delivered."
        if section.deliver == "narrowest":
            rule = f"The narrowest within {section.most_lost:g} of the highest is delivered, as in the paper."
        tables.append(TextTable("", ["gamma of CNN5", "F1 on validation patches", ""], rows, rule))
    headings, rows = ["delta", "metric", "value", "theta1", "theta2", "kappa"], []
    for network, values in results.get("networks", {}).items():
        count = values.get("count")
        if isinstance(count, str):  # why there is none
            rows.append([network, DASH, count, *[DASH] * 4])
        elif count is not None:
            cells = (count.get(name, DASH) for name in headings)
            rows.append([network, *(f"{c:.3f}" if isinstance(c, float) else str(c) for c in cells)])
    if rows:
        tables.append(TextTable("", ["threshold of the count", *headings], rows, COUNT_NOTE))
    return tables


def example_groups(stores: Sequence[str]) -> list[Examples]:
    """What the ensemble finds easy, hard, and likely to be labelled wrongly; none without soft targets."""
    patches = open_set(stores)
    if SOFT_TARGET not in patches.index.columns or patches.index[SOFT_TARGET].isna().any():
        return []
    groups = []
    for title, note, rows in _choices(patches.targets(SOFT_TARGET), patches.labels):
        pixels = patches.take(rows)
        margin = (pixels.shape[1] - CROP_PX) // 2
        crops = pixels[:, margin : margin + CROP_PX, margin : margin + CROP_PX]
        shown = patches.index.iloc[rows]
        columns = zip(shown["slide"], shown["x"], shown["y"], shown[SOFT_TARGET], strict=True)
        captions = [f"{value:.3f} · {slide} at {x:.0f}, {y:.0f}" for slide, x, y, value in columns]
        groups.append(Examples(title, note, crops, captions))
    return groups


def _choices(answers: Floats32, labels: Integers) -> list[tuple[str, str, Integers]]:
    rising = np.argsort(answers, kind="stable")
    mitoses, others = (rising[labels[rising] == label] for label in (1, 0))
    unsure = np.argsort(np.abs(answers - 0.5), kind="stable")
    return [
        ("Easiest mitoses", "labelled mitosis, highest probability", mitoses[::-1][:SHOWN]),
        ("Easiest negatives", "labelled negative, lowest probability", others[:SHOWN]),
        ("Hardest", "probability nearest to one half, whatever the label", unsure[:SHOWN]),
        ("Suspects: missed mitoses?", "labelled negative, highest probability", others[::-1][:SHOWN]),
        ("Suspects: no mitoses?", "labelled mitosis, lowest probability", mitoses[:SHOWN]),
    ]
