"""Training one network of a run, and where networks lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from metaphase.learning.training import STATE_FILE, TrainingResult, Update, train
from metaphase.networks import load_model, parameter_count
from metaphase.pipeline.stages import Facts, Report
from metaphase.pipeline.training.config import LearningSection, Task
from metaphase.pipeline.training.sets import drawn_set


@dataclass(frozen=True)
class Folders:
    """Where a run keeps its networks, and the sets that exist while a network learns from them."""

    networks: Path
    sets: Path


def model_path(networks: Path, name: str) -> Path:
    """Weights of a network among those of a run."""
    return networks / name / f"{name}.safetensors"


def train_task(
    task: Task,
    protocol: LearningSection,
    stores: Sequence[str],
    validation: Sequence[str],
    folders: Folders,
    *,
    device: str | None,
    report: Report,
) -> Facts:
    """Train a network into its folder, or go on after a stop; the state to resume from is removed."""
    folder = folders.networks / task.name

    def show(update: Update) -> None:
        done = update.epoch + update.step / update.steps
        report(f"{task.name}  loss {update.loss:.3f}  best F1 {update.f1:.3f}", done, protocol.epochs)

    with _stores_of(task, stores, folders.sets) as chosen:
        config = protocol.training(task, tuple(chosen), tuple(validation))
        result = train(config, folder, device=device, watch=show)
    (folder / STATE_FILE).unlink(missing_ok=True)
    return _facts(result)


@contextmanager
def _stores_of(task: Task, stores: Sequence[str], sets: Path) -> Iterator[Sequence[str]]:
    if task.hard_set is None:
        yield stores
        return
    with drawn_set(sets / task.name, stores, task.hard_set) as store:
        yield [store]


def _facts(result: TrainingResult) -> Facts:
    network, card = load_model(result.model)
    seconds = sum(row["train_seconds"] for row in result.history)
    return {
        "patch F1 on validation": round(result.best, 4),
        "parameters": parameter_count(network),
        "gamma": card.gamma,
        "seconds in the loop": round(seconds, 1),
    }
