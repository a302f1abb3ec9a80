"""Training one network of a run, and where networks lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from metaphase.learning.training import STATE_FILE, TrainingResult, Update, train
from metaphase.networks import load_model, parameter_count
from metaphase.pipeline.stages import Facts, Report
from metaphase.pipeline.training.config import LearningSection, Task


def model_path(networks: Path, name: str) -> Path:
    """Weights of a network among those of a run."""
    return networks / name / f"{name}.safetensors"


def train_task(
    task: Task,
    protocol: LearningSection,
    stores: Sequence[str],
    validation: Sequence[str],
    networks: Path,
    *,
    device: str | None,
    report: Report,
) -> Facts:
    """Train a network into its folder, or go on after a stop; the state to resume from is removed."""
    folder = networks / task.name
    teachers = tuple(str(model_path(networks, name)) for name in task.teachers)
    config = replace(protocol.training(task, tuple(stores), tuple(validation)), teachers=teachers)

    def show(update: Update) -> None:
        done = update.epoch + update.step / update.steps
        report(f"{task.name}  loss {update.loss:.3f}  best F1 {update.f1:.3f}", done, config.epochs)

    result = train(config, folder, device=device, watch=show)
    (folder / STATE_FILE).unlink(missing_ok=True)
    return _facts(result)


def _facts(result: TrainingResult) -> Facts:
    network, card = load_model(result.model)
    seconds = sum(row["train_seconds"] for row in result.history)
    return {
        "patch F1 on validation": round(result.best, 4),
        "parameters": parameter_count(network),
        "gamma": card.gamma,
        "seconds in the loop": round(seconds, 1),
    }
