"""`metaphase run`: the whole chain with its test, and what came of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from metaphase.artifacts import write_text
from metaphase.evaluation import Tuned, save_tuned
from metaphase.evaluation.scoring import Marked
from metaphase.networks import load_model, parameter_count
from metaphase.pipeline.stages import Facts, Report, Stage, States, run_stages, silent
from metaphase.pipeline.stages.running import Watch
from metaphase.pipeline.training.chain import Chain
from metaphase.pipeline.training.config import EvaluationSection, RunConfig
from metaphase.pipeline.training.searching import SlideSearch
from metaphase.pipeline.training.table import data_stages, ensemble_stages
from metaphase.pipeline.training.tasks import CNN3, members, students
from metaphase.pipeline.training.testing import Bench, bench_of, measured

RESULTS, DETECTIONS = "results.json", "detections"
ENSEMBLE = "ensemble"


def run_chain(chain: Chain, *, report: Report = silent, watch: Watch | None = None) -> States:
    """Do what is left of the chain from manifest to CNN5 and its test; `results.json` holds the test."""
    return run_stages(run_table(chain), chain.workspace, report=report, watch=watch)


def run_table(chain: Chain) -> list[Stage]:
    """All stages of a run, in order."""
    stages = [*data_stages(chain), *ensemble_stages(chain)]
    networks = tuple(dict.fromkeys(name for names in answers(chain.config).values() for name in names))
    test = Stage(
        "test", "detection on validation and test slides, F1 by laboratory", networks, (RESULTS,),
        partial(_test, chain), {"test": asdict(chain.config.test)},
    )  # fmt: skip
    return [*stages, test]


def read_results(workspace: str | Path) -> dict[str, Any]:
    """Measured values of each network; empty where the test has not run."""
    path = Path(workspace) / RESULTS
    if not path.is_file():
        return {}
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results


def training_centres(chain: Chain) -> set[str]:
    """Laboratories of the training slides; all others are held out."""
    cohort = chain.cohort
    return set(cohort.loc[cohort["split"] == "train", "centre"])


def answers(config: RunConfig) -> dict[str, tuple[str, ...]]:
    """What is tested, and the networks whose mean it is: CNN3, the ensemble and every CNN5."""
    names = tuple(task.name for task in members(config))
    single = {task.name: (task.name,) for task in students(config)}
    return {CNN3: (CNN3,), ENSEMBLE: names, **single}


def _test(chain: Chain, report: Report) -> Facts:
    config = chain.config.test
    benches = {
        split: bench_of(chain.cohort, chain.reference, split, config) for split in ("validation", "test")
    }
    networks = {
        name: _tested(chain, name, names, benches, report) for name, names in answers(chain.config).items()
    }
    content = {"networks": networks, "training_centres": sorted(training_centres(chain))}
    write_text(chain.workspace / RESULTS, json.dumps(content) + "\n")
    return {"networks": len(networks), "test slides": len(benches["test"].cohort.cases)}


def _tested(
    chain: Chain, name: str, names: tuple[str, ...], benches: dict[str, Bench], report: Report
) -> dict[str, Any]:
    """Search the slides, compare with the reference standard, and note the threshold in the card."""
    models = [chain.model(each) for each in names]
    search = SlideSearch(chain.workspace / DETECTIONS, chain.config.test, chain.device)
    marked = {
        split: bench.marked(search.search(name, models, chain.cohort, split, report))
        for split, bench in benches.items()
    }
    values = measured(marked["validation"], marked["test"], benches["test"].centres())
    if len(models) == 1:
        _note_threshold(models[0], values, marked["validation"], chain.config.test)
    return values | {"parameters": sum(parameter_count(load_model(model)[0]) for model in models)}


def _note_threshold(model: Path, values: dict[str, Any], validation: Marked, test: EvaluationSection) -> None:
    """Put what was tuned on the validation slides into the network's card, for `metaphase detect`."""
    if values["validation_f1"] is None:
        return
    tuned = Tuned(
        "mitoses",
        {"delta": values["threshold"], "suppress_um": test.suppress_um, "smooth_um": test.smooth_um},
        "F1",
        values["validation_f1"],
        validation.cases,
        validation.patients,
        "validation slides of metaphase run",
    )
    save_tuned(model.with_suffix(".json"), tuned)
