"""Make the models `phh3-cnn1` and `phh3-cnn2`: artefact or not, mitosis or not, from simulated PHH3 slides.

Every training slide comes from a virtual laboratory of its own, whose stain and scanner are drawn at random;
the laboratories with names are left out and test the networks. Slides are rendered and searched for
candidates as `metaphase phh3 candidates` does; the simulator's truth labels them. Candidates of real tiles
that hold artefacts alone (`--tiles`) are further negatives. A GPU machine needs five minutes.

    python -m recipes.simulated.phh3_models --folder WORK -o src/metaphase/models --tiles DATA/phh3-tiles

Run it again to go on after a stop.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image

from metaphase.base.arrays import RGB
from metaphase.labels.observers.project import ARTEFACT, MITOSIS
from metaphase.labels.phh3.candidates import BrownConfig, find_brown_candidates, survey_slide
from metaphase.labels.phh3.networks import (
    SIDE_PX,
    TRAIN,
    VALIDATION,
    Classifier,
    LearningConfig,
    load_classifier,
)
from metaphase.networks.additions import CardAdditions
from metaphase.networks.cards import TrainingData
from metaphase.networks.checkpoints import package_model
from metaphase.networks.training.data import REPEAT, open_set
from metaphase.networks.training.loop import train
from metaphase.networks.training.patches import PatchWriter
from metaphase.simulation.cohort import case_truth
from metaphase.simulation.config import (
    LABORATORIES,
    Case,
    Scanner,
    SimulationConfig,
    Triple,
    VirtualLaboratory,
    cohort_cases,
)
from metaphase.simulation.observers import RADIUS_UM, true_labels
from metaphase.simulation.rendering import render_region
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.contract import Slide
from metaphase.slides.tiles import cut_squares

TEST = "test"
MPP, TILE_MPP = 0.25, 0.5
NETWORKS = ("cnn1", "cnn2")
USE = (
    "To draw and order the candidates that people label, and to start a laboratory's own CNN1 and CNN2 from. "
    "Trained on simulated slides; what they say of real ones is a suggestion."
)
FAILURES = ("Hardly any real PHH3 tissue was seen: real mitoses may be missed, above all by CNN2.",)


# ---- laboratories and their slides ----


def drawn_laboratory(number: int) -> VirtualLaboratory:
    """A virtual laboratory whose PHH3 stain and scanner are drawn at random."""
    rng = np.random.default_rng((number, 23))
    white = tuple(rng.uniform((238, 225, 228), 255.0).tolist())
    scanner = Scanner(
        white=white, gamma=float(rng.uniform(0.85, 1.15)), blur_px=float(rng.uniform(0.4, 1.5)),
        sharpening=float(rng.uniform(0.0, 1.0)), noise=float(rng.uniform(0.5, 2.0)),
        jpeg_quality=int(rng.integers(70, 96)),
    )  # fmt: skip
    return VirtualLaboratory(
        name=f"drawn{number:03d}", scanner=scanner, haematoxylin=(0.5, 0.76, 0.42), eosin=(0.1, 0.87, 0.48),
        haematoxylin_gain=1.0, eosin_gain=1.0,
        counterstain=_unit(rng.normal((0.78, 0.55, 0.28), 0.07)),
        counterstain_gain=float(np.exp(rng.uniform(*np.log((0.15, 0.9))))),
        dab=_unit(rng.normal((0.32, 0.52, 0.79), 0.08)),
        dab_gain=float(np.exp(rng.uniform(*np.log((0.4, 1.3))))),
        ground=_unit(rng.normal((0.62, 0.56, 0.53), 0.08)), ground_gain=float(rng.uniform(0.02, 0.35)),
    )  # fmt: skip


def _unit(vector: npt.NDArray[np.float64]) -> Triple:
    kept = np.maximum(vector, 0.02)
    red, green, blue = (kept / np.linalg.norm(kept)).tolist()
    return red, green, blue


def cases_of(options: argparse.Namespace) -> dict[str, list[Case]]:
    """The slides of each role: one a drawn laboratory, and some of each laboratory with a name."""
    config = SimulationConfig(
        cases=options.laboratories + options.validation + options.test * len(LABORATORIES),
        width=options.side, height=options.side, centres=1, mitoses_per_mm2=(120.0, 500.0),
        brown_nuclei_per_mitosis=0.6, artefacts_per_mitosis=1.5, seed=options.seed + 71,
    )  # fmt: skip
    cases = list(cohort_cases(config))
    drawn = cases[: options.laboratories + options.validation]
    learnt = [_moved(case, drawn_laboratory(number)) for number, case in enumerate(drawn)]
    others = cases[len(drawn) :]
    tested = [_moved(case, LABORATORIES[i % len(LABORATORIES)]) for i, case in enumerate(others)]
    return {
        TRAIN: learnt[: options.laboratories],
        VALIDATION: learnt[options.laboratories :],
        TEST: tested,
    }


def _moved(case: Case, laboratory: VirtualLaboratory) -> Case:
    return replace(case, laboratory=laboratory, name=f"{laboratory.name}-{case.name}")


# ---- candidates, their labels and patches ----


@dataclass(frozen=True)
class Cut:
    """The candidates of a slide."""

    table: pd.DataFrame
    """x, y, answer (artefact, not, mitosis), slide, laboratory, source."""
    patches: RGB
    mitoses: int
    """PHH3-positive mitoses of the slide ..."""
    found: int
    """... and of them, those that are candidates."""


def cut_case(case: Case) -> Cut:
    """Render a PHH3 slide, search it, and label what was found by the truth."""
    cv2.setNumThreads(1)
    pixels = render_region(case, "phh3", 0, 0, case.width, case.height)
    slide = ArraySlide(_through_jpeg(pixels, case.laboratory.scanner.jpeg_quality), mpp=MPP)
    table, truth = searched(slide), case_truth(case)
    table["answer"] = true_labels(table, truth, MPP)
    table["slide"], table["laboratory"], table["source"] = case.name, case.laboratory.name, "simulation"
    wanted = truth[truth["phh3_positive"] & truth["in_phh3"] & (truth["category"] == "mitosis")]
    return Cut(table, squares(slide, table), len(wanted), _near(wanted, table))


def cut_tiles(folder: Path, repeats: int) -> Cut:
    """The candidates of tiles without any mitosis, which are put together to one slide."""
    source = folder.parent.name
    tiles = [_on_glass(np.asarray(Image.open(path).convert("RGB"))) for path in sorted(folder.glob("*.jpg"))]
    across = max(1, int(np.sqrt(len(tiles))))
    rows = [np.hstack(tiles[i : i + across]) for i in range(0, len(tiles) - across + 1, across)]
    slide = ArraySlide(np.ascontiguousarray(np.vstack(rows)), mpp=TILE_MPP)
    facts: dict[str, Any] = {
        "answer": ARTEFACT,
        "slide": source,
        "laboratory": source,
        "source": source,
        REPEAT: repeats,
    }
    table = searched(slide).assign(**facts)
    return Cut(table, squares(slide, table), 0, 0)


def _on_glass(tile: RGB) -> RGB:
    """A tile with so much white around it that no patch shows two."""
    margin = SIDE_PX // 4
    return np.pad(tile, ((margin, margin), (margin, margin), (0, 0)), constant_values=255)


def searched(slide: Slide) -> pd.DataFrame:
    """Positions of the brown candidates of a slide."""
    config = BrownConfig()
    survey = survey_slide(slide, config, 1)
    if survey.threshold is None:
        return pd.DataFrame({"x": [], "y": []}, dtype=float)
    found = find_brown_candidates(slide, survey.tissue, survey.threshold, config, threads=1)
    return found.table[["x", "y"]].copy()


def squares(slide: Slide, table: pd.DataFrame) -> RGB:
    """Patches (n, side, side, 3) around the rows of a table."""
    patches = np.empty((len(table), SIDE_PX, SIDE_PX, 3), np.uint8)
    for rows, cut in cut_squares(slide, table[["x", "y"]].to_numpy(float), SIDE_PX, MPP, threads=1):
        patches[rows] = cut
    return patches


def _near(wanted: pd.DataFrame, table: pd.DataFrame) -> int:
    positions = wanted[["x_phh3", "y_phh3"]].to_numpy(float)
    away = np.linalg.norm(positions[:, None] - table[["x", "y"]].to_numpy(float)[None], axis=2)
    return int((away.min(axis=1, initial=np.inf) * MPP <= RADIUS_UM).sum())


def _through_jpeg(pixels: RGB, quality: int) -> RGB:
    coded = cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    decoded: RGB = np.ascontiguousarray(
        np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR), np.uint8)[..., ::-1]
    )
    return decoded


# ---- stores ----


def write_stores(folder: Path, options: argparse.Namespace) -> None:
    """A store for each role and network, and what the search found of the mitoses."""
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for role, cases in cases_of(options).items():
            if (folder / role / "search.json").exists():
                continue
            cuts = list(pool.map(cut_case, cases))
            if role == TRAIN and options.tiles:
                cuts.append(cut_tiles(options.tiles / "artefact", options.tile_repeats))
            for network in NETWORKS:
                _write_store(folder / role / network, network, cuts)
            described = {"mitoses": sum(cut.mitoses for cut in cuts), "found": sum(cut.found for cut in cuts)}
            (folder / role / "search.json").write_text(json.dumps(described))
            print(f"{role}: {len(cuts)} slides, {described}", flush=True)


def _write_store(store: Path, network: str, cuts: Iterable[Cut]) -> None:
    if (store / "store.json").exists():
        return
    with PatchWriter(store, side_px=SIDE_PX, mpp=MPP) as writer:
        for cut in cuts:
            for patch, row in zip(cut.patches, cut.table.to_dict("records"), strict=True):
                facts = {str(name): value for name, value in row.items()}
                writer.add(patch, label=int(_is_yes(network, row["answer"])), **facts)


def _is_yes(network: str, answer: Any) -> bool:
    return bool(answer == MITOSIS if network == "cnn2" else answer != ARTEFACT)


# ---- training and testing ----


def learn(network: str, folder: Path, options: argparse.Namespace) -> Path:
    """Train a network; returns its weights."""
    config = LearningConfig(
        epochs=options.epochs, samples_per_epoch=options.samples, batch=options.batch, augment="RCSEHB",
        stain_mix=0.3, gamma=options.gamma, seed=options.seed,
    )  # fmt: skip
    stores = {role: folder / role / network for role in (TRAIN, VALIDATION)}
    return train(config.of_network(network, stores), folder / network, device=options.device).model


def judged(network: Classifier, store: Path) -> dict[str, Any]:
    """F1 on the patches of laboratories left out: of each, and of all with an interval over slides."""
    patches = open_set([str(store)])
    answers = np.concatenate(
        [
            network(patches.take(np.arange(start, min(start + 512, len(patches.labels)))))
            for start in range(0, len(patches.labels), 512)
        ]
    )
    table = patches.index.assign(called=answers >= network.decision, yes=patches.labels == 1)
    slides = [group for _, group in table.groupby("slide")]
    rng = np.random.default_rng(0)
    draws = [_f1([slides[i] for i in rng.integers(0, len(slides), len(slides))]) for _ in range(1000)]
    return {
        "f1": round(_f1(slides), 3),
        "interval": np.quantile(draws, (0.025, 0.975)).round(3).tolist(),
        "candidates": len(table),
        "yes": int(table["yes"].sum()),
        "by laboratory": {
            str(name): round(_f1([group]), 3) for name, group in table.groupby("laboratory")
        },
    }  # fmt: skip


def _f1(tables: Sequence[pd.DataFrame]) -> float:
    right = sum(int((one["called"] & one["yes"]).sum()) for one in tables)
    return 2 * right / max(1, sum(int(one["called"].sum() + one["yes"].sum()) for one in tables))


def packaged(network: str, model: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Test a network, and write it with its card; returns the figures."""
    figures = judged(load_classifier(network, model, options.device), folder / TEST / network)
    figures["candidate search"] = json.loads((folder / TEST / "search.json").read_text())
    index = open_set([str(folder / TRAIN / network)]).index
    data = [
        _data(f"metaphase simulated PHH3 slides, {options.laboratories} laboratories drawn at random",
              "made by this project, no restriction", index[index["source"] == "simulation"]),
    ]  # fmt: skip
    real = index[index["source"] != "simulation"]
    if len(real):
        data.append(_data("phh3-tiles, artefact tiles of lung", "BSD-3-Clause", real))
    additions = CardAdditions(
        data=tuple(data), metrics={"laboratories left out": figures}, intended_use=USE,
        known_failures=FAILURES,
    )  # fmt: skip
    package_model(model, options.output / f"phh3-{network}", additions=additions)
    return figures


def _data(name: str, terms: str, index: pd.DataFrame) -> TrainingData:
    yes = int(index["label"].sum())
    return TrainingData(name=name, terms=terms, positives=yes, negatives=len(index) - yes)


def main() -> None:
    """Render, cut, train, test, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="for patches and networks")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the two models")
    parser.add_argument("--tiles", type=Path, help="folder with artefact/*.jpg at 0.5 um/px")
    parser.add_argument("--tile-repeats", type=int, default=3, help="how often each real tile counts")
    parser.add_argument("--laboratories", type=int, default=96, help="drawn ones to learn from, a slide each")
    parser.add_argument("--validation", type=int, default=12, help="drawn ones to choose epoch and decision")
    parser.add_argument("--test", type=int, default=3, help="slides of each laboratory with a name")
    parser.add_argument("--side", type=int, default=2048)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--gamma", type=float, default=0.5, help="width of the networks; the paper has 1")
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = options.folder.resolve()
    write_stores(folder, options)
    figures = {name: packaged(name, learn(name, folder, options), folder, options) for name in NETWORKS}
    print(json.dumps(figures, indent=2))
    (options.output / "phh3-figures.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
