"""The table of stages from slides to CNN5: what each reads and writes, and what decides its result."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from metaphase.pipeline.stages import Stage
from metaphase.pipeline.training.chain import COHORT, MINING, NETWORKS, REFERENCE, Chain
from metaphase.pipeline.training.config import LearningSection, RunConfig, Task
from metaphase.pipeline.training.tasks import CNN3, cnn3, members, students
from metaphase.records import file_fingerprint, joint_fingerprint, plain_settings
from metaphase.tables import read_manifest

ABSENT = "absent"


def data_stages(chain: Chain) -> list[Stage]:
    """From slides to the difficult sets, with CNN3 on the way."""
    config, sets, patches = chain.config, chain.config.mining.sets, f"{MINING}/patches"
    files, drawn = _outside_files(config), asdict(sets)
    easy = (f"{patches}/positives", f"{patches}/easy", f"{patches}/validation")
    hard = {name: drawn.pop(name) for name in ("hard_negatives", "hard_sets", "even_share")}
    where = plain_settings(config.mining.candidates, config.mining.labels)
    return [
        Stage("slides", "slides, simulated or as the manifest names them", (), (COHORT,), chain.find_slides,
              _simulation(config), files),
        Stage("reference", "the reference standard in H&E coordinates", ("slides",), (REFERENCE,),
              chain.find_reference, {"source": config.reference.source}, files),
        Stage("candidates", "dark places of training and validation slides", ("reference",),
              (f"{MINING}/candidates",), chain.find_candidates,
              where | {"standardise": config.mining.standardise}),
        Stage("easy set", "patches for CNN3, and for validation", ("candidates",), easy, chain.cut_easy_sets,
              drawn),
        network_stage(chain, cnn3(config), ("easy set",), "CNN3, which finds the hard negatives"),
        Stage("difficult sets", "CNN3's scores, and negatives drawn by them", ("easy set", CNN3),
              (f"{MINING}/scores", f"{patches}/hard"), chain.score_and_draw, hard),
    ]  # fmt: skip


def _simulation(config: RunConfig) -> dict[str, Any]:
    """What decides simulated slides; nothing where they are not simulated."""
    if config.simulate is None:
        return {}
    values = asdict(config.simulate)
    del values["workers"]
    return {"simulate": values, "phh3": config.reference.source != "simulated"}


def _outside_files(config: RunConfig) -> dict[str, str]:
    """Fingerprints of the manifest, the slides it names and the reference table, where they are there."""
    files = {"manifest": config.cohort.manifest, "table": config.reference.table}
    found = {name: _fingerprint(Path(path)) for name, path in files.items() if path}
    if config.cohort.manifest and found["manifest"] != ABSENT:
        slides = read_manifest(config.cohort.manifest)["he"]
        found["slides"] = joint_fingerprint(_fingerprint(Path(str(path))) for path in slides)
    return found


def _fingerprint(path: Path) -> str:
    return file_fingerprint(path) if path.is_file() else ABSENT


def ensemble_stages(chain: Chain) -> list[Stage]:
    """The CNN4s, the ensemble's soft targets and the CNN5s."""
    tasks = members(chain.config)
    names = tuple(task.name for task in tasks)
    stages = [network_stage(chain, task, ("difficult sets",), "CNN4, one of the ensemble") for task in tasks]
    learnt_from = ("difficult sets", *names)
    if chain.config.students.answers == "stored":
        stages.append(soft_target_stage(chain, names))
        learnt_from = ("soft targets",)
    stages += [
        network_stage(chain, task, learnt_from, f"CNN5 with gamma {task.gamma:g}")
        for task in students(chain.config)
    ]
    return stages


def network_stage(chain: Chain, task: Task, reads: tuple[str, ...], about: str) -> Stage:
    """Training of one network as a stage."""
    settings = {"task": asdict(task), "training": _plain_learning(chain.config.training)}
    work = partial(chain.train_network, task)
    return Stage(task.name, about, reads, (f"{NETWORKS}/{task.name}",), work, settings, renew=True)


def soft_target_stage(chain: Chain, names: tuple[str, ...]) -> Stage:
    """The ensemble's answers as a stage."""
    work = partial(chain.add_soft_targets, names)
    about = "what the ensemble says about every patch"
    return Stage("soft targets", about, ("difficult sets", *names), (f"{MINING}/patches/hard",), work)


def _plain_learning(section: LearningSection) -> dict[str, Any]:
    """The protocol as plain values."""
    values = asdict(section)
    values["augmentation"]["stain_matrix"] = section.augmentation.stain_matrix.array.tolist()
    return values
