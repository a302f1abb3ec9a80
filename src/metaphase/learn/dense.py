"""The method `dense`: images, teachers, both networks of a pair, and the network of atypical figures.

`delivery` chooses and packages the pair, and has the table of stages. The test that follows is that of all
methods (`run`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save
from torch import nn

from metaphase.base.errors import ModelError
from metaphase.base.files import write_bytes
from metaphase.base.foreign import parsing
from metaphase.base.provenance import FileContent, account_of
from metaphase.base.stages import Facts, Report, stage
from metaphase.base.tables import write_table
from metaphase.detections.table import LOOKALIKE, MITOSIS
from metaphase.evaluation.pairs import fit_calibration
from metaphase.learn.chain import NETWORKS, Chain
from metaphase.learn.config import DenseSection, LearningSection
from metaphase.learn.sources import (
    SPLITS,
    UNSEEN,
    corrected_points,
    correction_sources,
    image_sources,
    read_cohort,
    trained_by_corrections,
)
from metaphase.networks.architectures import build_network
from metaphase.networks.cards import (
    PATCH_PX,
    ModelCard,
    NetworkIdentity,
    NetworkSpec,
    TrainingData,
    card_of,
    current_versions,
    named_model,
)
from metaphase.networks.checkpoints import choose_device, load_model, save_model
from metaphase.networks.exporting import GraphNetwork
from metaphase.networks.training.answers import all_maps
from metaphase.networks.training.atypical import FOLDS, atypical_figures, learnt_figures
from metaphase.networks.training.dense import DenseTraining, Lesson
from metaphase.networks.training.images import MPP, LabelledImage, read_images
from metaphase.networks.training.teachers import Teacher, published_weights, with_published
from metaphase.networks.training.windows import Flat, ViewConfig, Views, WindowSampler

IMAGES, MODEL = "images.csv", "model"
FIRST, SECOND, ATYPICAL = "lite", "residual", "atypical"
STUDENTS = f"{NETWORKS}/students"
NEW, OLD, MEAN = "new", "start", "mean"
"""Pairs that may be delivered: the new one, the one that it started from, the mean of their weights."""
PUBLISHED = (".pth", ".pt")


@dataclass(frozen=True)
class Protocol:
    """What of the settings decides how networks learn densely."""

    augment: str
    augmentation: Any
    stain_mix: float
    batch: int
    learning_rate: float
    seed: int

    @classmethod
    def of(cls, training: LearningSection) -> Protocol:
        """The settings of a run."""
        return cls(**{each.name: getattr(training, each.name) for each in fields(cls)})

    @property
    def view(self) -> ViewConfig:
        """How windows are shown."""
        return ViewConfig(self.batch, self.augment, self.augmentation, self.stain_mix)


@dataclass(frozen=True)
class DenseChain(Chain):
    """A run by the method `dense`."""

    # ---- what it learns from ----

    @property
    def dense(self) -> DenseSection:
        """Settings of the method `dense`."""
        return self.config.dense

    @property
    def delivered(self) -> Path:
        """The model that comes out."""
        return self.workspace / MODEL / f"{self.config.card.name}.safetensors"

    @cached_property
    def corrections(self) -> pd.DataFrame:
        """What people answered about detections, as far as the run was given it."""
        return corrected_points(self.config.reference.corrections)

    @cached_property
    def cohort(self) -> pd.DataFrame:
        """The slides with their splits; those of corrected patients train."""
        cohort = read_cohort(self.manifest, self.needed, self.config.cohort)
        return trained_by_corrections(cohort, self.corrections)

    @property
    def needed(self) -> Sequence[str]:
        """Splits needed: training is optional if corrections stand in or nothing is learnt."""
        return SPLITS if self.learns and self.corrections.empty else UNSEEN

    @cached_property
    def images(self) -> list[LabelledImage]:
        """All labelled images, in memory."""
        sources = image_sources(self.cohort, self.reference)
        if self.config.reference.source == "phh3":  # without a brown nucleus there certainly is no mitosis
            sources = [
                source if MITOSIS in set(source.points["label"]) else replace(source, kind="negatives")
                for source in sources
            ]
        sources = correction_sources(sources, self.corrections)
        return read_images(sources, self.dense.memory_gb, self.config.training.seed)

    @property
    def training_images(self) -> list[LabelledImage]:
        """Those that are learnt from."""
        return [image for image in self.images if image.split == "train"]

    @property
    def held_out(self) -> list[LabelledImage]:
        """Images to search: all others, or only validation where a pair is trained further."""
        splits = ("validation",) if self.pair and self.learns else ("validation", "test")
        return [image for image in self.images if image.split in splits]

    @cached_property
    def torch_device(self) -> torch.device:
        """Where networks learn."""
        return choose_device(self.device)

    @cached_property
    def _windows(self) -> WindowSampler:
        return WindowSampler(self.training_images, self.torch_device, 0, self.dense.collage)

    def windows(self, seed: int) -> WindowSampler:
        """Windows of the training images, drawn anew; no errors are known yet."""
        self._windows.seed, self._windows.answers = seed, None
        self._windows.forget()
        return self._windows

    @property
    def published(self) -> list[str]:
        """Files of published weights, each of a teacher."""
        return [name for name in self.dense.teachers if Path(name).suffix in PUBLISHED]

    @property
    def teaching_models(self) -> list[Path]:
        """Networks that teach as they are."""
        names = [name for name in self.dense.teachers if name not in self.published]
        return [path for name in names for path in pair_files(name)]

    @property
    def learns(self) -> bool:
        """Whether there are lessons; else a pair stays as it is."""
        return self.dense.student_steps > 0

    @property
    def pair(self) -> list[Path]:
        """The networks of the pair that training continues from."""
        return pair_files(self.dense.start) if self.dense.start else []

    @cached_property
    def start_cards(self) -> list[ModelCard]:
        """Cards of the models that training starts from."""
        return [card_of(path) for path in self.pair]

    @property
    def start(self) -> tuple[NetworkIdentity, ...]:
        """What decides their answers."""
        return tuple(card.identity for card in self.start_cards)

    # ---- stages ----

    @stage("images", "labelled images at 0.25 um/px", reads=("reference",), writes=(IMAGES,))
    def read_images(
        self,
        report: Report,
        *,
        facts: pd.DataFrame,
        memory_gb: float,
        seed: int,
        corrections: pd.DataFrame,
    ) -> Facts:
        """Read all images once, and say what there is; `facts` are what the manifest says of each."""
        rows = [
            {
                "image": image.name,
                "laboratory": image.laboratory,
                "patient": image.patient,
                "split": image.split,
                "kind": image.kind,
                "mm2": round(image.area_mm2, 4),
                "mitoses": len(image.of(MITOSIS)),
                "lookalikes": len(image.of(LOOKALIKE)),
            }
            for image in self.images
        ]
        table = pd.DataFrame(rows)
        write_table(self.workspace / IMAGES, table)
        learnt = table[table["split"] == "train"]
        return {
            "images": len(learnt),
            "laboratories": int(learnt["laboratory"].nunique()),
            "mitoses": int(learnt["mitoses"].sum()),
            "left out": len(table) - len(learnt),
        }

    @stage(
        "teacher",
        "EfficientNet-Lite, which learns from labels and its own errors",
        reads=("images",),
        renew=True,
    )
    def teach_teacher(
        self,
        report: Report,
        *,
        weights: FileContent,
        protocol: Protocol,
        steps: int,
        collage: float,
        mine_at: tuple[float, ...],
        number: int,
    ) -> Facts:
        """A teacher that begins with published weights and learns the labels."""
        name, seed = f"teacher-{number}", protocol.seed + number
        torch.manual_seed(seed)
        teacher = self._on_device(Teacher(published_weights(weights.path)))
        training = DenseTraining(
            {name: teacher},
            Views(self.windows(seed), protocol.view),
            Lesson(steps, protocol.learning_rate, mine_at=mine_at),
            (),
            self.workspace / NETWORKS / name,
            account_of([weights, protocol, steps, collage, mine_at, number]),
            self.dense.checkpoint_minutes,
        )
        state = training.finish(report)[name].cpu().half().state_dict()
        write_bytes(self._teacher(number), save({key: value.contiguous() for key, value in state.items()}))
        training.forget()
        return {"steps": steps, "loss": round(float(training.loss), 4)}

    def _teacher(self, number: int) -> Path:
        return self.workspace / NETWORKS / f"teacher-{number}" / "teacher.safetensors"

    def teachers(self) -> list[nn.Module]:
        """All that teach the students: those of the run, and models as they are."""
        networks: list[nn.Module] = []
        for number, weights in enumerate(self.published, start=1):
            networks.append(Teacher(published_weights(weights)))
            path = self._teacher(number)
            with parsing(path, "damaged weights", next_step="remove it", error=ModelError):
                networks[-1].load_state_dict(load_file(path))
        networks += [load_model(path)[0] for path in self.teaching_models]
        return [self._on_device(network).eval().requires_grad_(False) for network in networks]

    @stage("students", "both networks of the pair", writes=(STUDENTS,), renew=True)
    def teach_students(
        self,
        report: Report,
        *,
        protocol: Protocol,
        steps: int,
        gammas: tuple[float, float],
        trust: float,
        views: int,
        collage: float,
        mine_at: tuple[float, ...],
        published: tuple[FileContent, ...],
        models: tuple[NetworkIdentity, ...],
    ) -> Facts:
        """Both networks side by side: from teachers and labels, or from a pair and its answers.

        `models` are networks that teach, or that training continues from.
        """
        seed = protocol.seed + 100
        torch.manual_seed(seed)
        windows, teachers = self.windows(seed), list[nn.Module]()
        if self.pair:
            students = self.candidate(OLD)
            windows.answers = self._frozen_answers(windows, report)
        else:
            students = {name: build_network(spec) for name, spec in self.specs.items()}
            if self.published:
                with_published(students[FIRST], published_weights(self.published[0]))
            teachers = self.teachers()
        at_mitoses = 0.0 if self.pair else trust
        training = DenseTraining(
            {name: self._on_device(network).requires_grad_(True) for name, network in students.items()},
            Views(windows, protocol.view),
            Lesson(steps, protocol.learning_rate, trust, at_mitoses, mine_at, views),
            teachers,
            self.workspace / STUDENTS,
            account_of([protocol, steps, gammas, trust, views, collage, mine_at, published, models]),
            self.dense.checkpoint_minutes,
        )
        for name, network in training.finish(report).items():
            path = self.workspace / STUDENTS / f"{NEW}-{name}.safetensors"
            save_model(path, network, self.plain_card(path.stem, name), half=True)
        training.forget()
        return {"steps": steps, "teachers": len(teachers), "loss": round(float(training.loss), 4)}

    @property
    def specs(self) -> dict[str, NetworkSpec]:
        """The networks of the pair."""
        if self.pair:
            return {name: card.spec for name, card in zip((FIRST, SECOND), self.start_cards, strict=True)}
        widths = zip((FIRST, SECOND), self.dense.gammas, strict=True)
        return {name: NetworkSpec(name, gamma, "batch") for name, gamma in widths}

    def _frozen_answers(self, windows: WindowSampler, report: Report) -> Flat:
        """What the pair to continue from says about every cell of the training images, asked once."""
        answers: list[Any] = [None] * len(windows.images)
        maps_of = all_maps(self.searchers(OLD), windows.images, self.torch_device)
        for done, (number, maps) in enumerate(maps_of):
            mean = torch.sigmoid(torch.stack(maps).mean(dim=0))[0]
            answers[number] = mean.half().cpu().numpy()
            report("asking the pair about the training images", done + 1, len(answers))
        return Flat(answers, self.torch_device)

    def plain_card(self, stem: str, name: str) -> ModelCard:
        """A card for a network of the pair, without any measurements."""
        return ModelCard(
            name=stem,
            **asdict(self.specs[name]),
            mpp=MPP,
            patch_px=PATCH_PX,
            classes=("other", "mitosis"),
            versions=current_versions(),
        )

    def candidate(self, name: str) -> dict[str, nn.Sequential]:
        """The networks of a pair that may be delivered."""
        if name == OLD:
            return {each: load_model(path)[0] for each, path in zip((FIRST, SECOND), self.pair, strict=True)}
        folder = self.workspace / STUDENTS
        networks = {each: load_model(folder / f"{NEW}-{each}.safetensors")[0] for each in (FIRST, SECOND)}
        if name == MEAN:
            for each, other in self.candidate(OLD).items():
                before = other.state_dict()
                for key, value in networks[each].state_dict().items():
                    if value.is_floating_point():
                        value.copy_((value + before[key]) / 2)
        return networks

    def searchers(self, name: str) -> list[nn.Module]:
        """The networks of such a pair as they search: on a CPU by ONNX Runtime where it is installed."""
        pair = self.candidate(name)
        if self.torch_device.type == "cpu" and find_spec("onnxruntime"):
            return [GraphNetwork(net.eval(), self.plain_card(each, each)) for each, net in pair.items()]
        return [self._on_device(network).eval() for network in pair.values()]

    def _on_device(self, network: Any) -> Any:
        """The network where it computes."""
        return network.to(self.torch_device, memory_format=torch.channels_last)

    @property
    def candidates(self) -> tuple[str, ...]:
        """Pairs that are compared on the validation images."""
        if not self.learns:
            return (OLD,)
        return (NEW, MEAN, OLD) if self.pair else (NEW,)

    @stage(
        ATYPICAL,
        "the network that tells atypical figures",
        reads=("students",),
        writes=(f"{NETWORKS}/{ATYPICAL}",),
    )
    def teach_atypical(self, report: Report, *, protocol: Protocol, steps: int) -> Facts:
        """Evaluate and calibrate by folds over patients, then train on all of the images."""

        def start() -> nn.Module:
            network: nn.Module = self._on_device(self.candidate(NEW)[FIRST])
            return network.requires_grad_(True)

        def show(done: float) -> None:
            report("atypical figures", done, FOLDS + 1)

        lesson = Lesson(steps, 0.3 * protocol.learning_rate)
        network, figures, said = learnt_figures(
            self.training_images, start, protocol.view, lesson, protocol.seed, self.torch_device, show
        )
        calibration = fit_calibration(said, figures.atypical, np.ones(len(said)))
        metrics = atypical_figures(calibration(said), figures.atypical, figures.patient)
        changes = {
            "classes": ("typical", "atypical"),
            "metrics": {"left out": metrics},
            "data": self.training_data(atypical=True),
            "intended_use": self.config.card.intended_use,
            "calibration": calibration,
        }
        card = self.plain_card(ATYPICAL, FIRST).model_copy(update=changes)
        save_model(self.model(ATYPICAL), network, card, half=True)
        return metrics

    def training_data(self, *, atypical: bool = False) -> tuple[TrainingData, ...]:
        """The training images with their terms; one entry per prefix of laboratory names."""
        terms, positives = self.config.card.terms, Counter[str]()
        for image in self.training_images:
            key = next((key for key in terms if image.laboratory.startswith(key)), image.laboratory)
            positives[key] += int(np.nansum(image.atypical)) if atypical else len(image.of(MITOSIS))
        return tuple(
            TrainingData(name=key, terms=terms.get(key, "not stated"), positives=count)
            for key, count in positives.items()
        )


def pair_files(model: str | Path) -> list[Path]:
    """The networks of a model: itself, and the one that re-checks where it has one."""
    path, second = named_model(model).with_suffix(".safetensors"), card_of(model).second
    return [path] if second is None else [path, path.with_name(f"{second.model}.safetensors")]
