"""The one loop that trains CNN1 to CNN5 by the paper's protocol, in one process or several.

Every step derives its random numbers from (seed, epoch, step), so a run that was killed and resumed ends with
the same weights as one that was not, bit for bit on a CPU.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from metaphase.base.arrays import Floats32, Integers
from metaphase.base.errors import TrainingError
from metaphase.base.provenance import Ingredients
from metaphase.base.stages import Report, silent
from metaphase.detections.points import OperatingPoint
from metaphase.images.stain.augmentation import Augmentation
from metaphase.images.stain.deconvolution import stained_density
from metaphase.networks.architectures import (
    build_network,
    centre_crop,
    is_finite,
    parameter_count,
    patch_probability,
)
from metaphase.networks.cards import (
    PATCH_PX,
    ModelCard,
    NetworkIdentity,
    current_versions,
    parse_card,
)
from metaphase.networks.checkpoints import choose_device, load_model, save_model
from metaphase.networks.training.data import (
    Feeder,
    PatchSet,
    balanced_batches,
    check_disjoint,
    open_set,
    rows_on,
    stain_mixer,
)
from metaphase.networks.training.patches import PatchStore
from metaphase.networks.training.progress import (
    BestF1,
    Progress,
    Timer,
    best_f1,
    load_state,
    save_state,
    set_rate,
    write_curves,
    write_history,
)
from metaphase.networks.training.protocol import TrainingConfig

STATE_FILE = "last.safetensors"
CHECK_EVERY_S = 5.0
"""Seconds between looks at the loss; each look makes a GPU wait."""
VALIDATION_BATCH = 512
AUGMENT_AT_ONCE = 1024
"""Patches that are augmented together."""
COLOUR_SAMPLE = 500
"""Training patches from which the model card's colour is taken."""
_AUGMENTATION, _DROPOUT = 0, 1


@dataclass(frozen=True)
class TrainingResult:
    """The best network of a run."""

    model: Path
    best: float
    history: list[dict[str, float]]


def train(
    config: TrainingConfig, folder: str | Path, *, device: str | None = None, report: Report = silent
) -> TrainingResult:
    """Train a network into `folder`, or go on where an earlier call was stopped; `report` counts epochs.

    Leaves `NAME.safetensors` and `NAME.json` (the epoch with the highest validation F1), `history.csv`,
    `curves.png`, TensorBoard events where that package is installed, and the state to resume from.
    """
    with join_team(device) as team:
        run = _Run(config, Path(folder), team, report)
        try:
            return run.finish()
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"the GPU has no room for batches of {config.batch}",
                next_step=f"try batch = {config.batch // 2}",
            ) from error


@dataclass(frozen=True)
class NetworkLearnt(Ingredients, stage="training"):
    """What decides a network's weights; where stores lie does not."""

    config: TrainingConfig
    train: tuple[PatchStore, ...]
    validation: tuple[PatchStore, ...]
    start: tuple[NetworkIdentity, ...]


class _Run:
    """One run: what stays the same over its steps, and the loop."""

    def __init__(self, config: TrainingConfig, folder: Path, team: Team, report: Report) -> None:
        self.config, self.folder, self.team, self.report = config, folder, team, report
        self.model_path = folder / f"{config.name}.safetensors"
        self.patches, self.held_out = open_set(config.train), open_set(config.validation)
        _check_sets(config, team, self.patches, self.held_out)
        self.drawn = self.patches.drawn_rows(config.draws)
        self.look, self.keep = Timer(CHECK_EVERY_S), Timer(60 * config.checkpoint_minutes)
        self.wanted = torch.tensor(self.patches.targets(config.target), device=team.device)
        torch.manual_seed(config.seed)
        self.network = _first_network(config).to(team.device)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model = team.wrap(self.network)
        self.optimizer = _make_optimizer(self.network, config, team.device)
        self.augment = Augmentation(config.augment, config.augmentation) if config.augment else None
        self.mixer = stain_mixer(self.patches, config.stain_mix, team.device) if config.stain_mix else None
        self.loss_sum = torch.zeros((), device=team.device)
        start = (parse_card(Path(config.start).with_suffix(".json")).identity,) if config.start else ()
        made_from = NetworkLearnt(config, self.patches.stores, self.held_out.stores, start).account()
        self.progress = Progress(made_from)
        if (folder / STATE_FILE).exists():
            arguments = self.network, self.optimizer, self.loss_sum
            self.progress = load_state(folder / STATE_FILE, *arguments, made_from)
        self.generator = torch.Generator(team.device)

    def finish(self) -> TrainingResult:
        """Train the epochs that are left."""
        feed = Feeder(self.patches, self.team.device, np.unique(self.drawn))
        feed_held_out = Feeder(self.held_out, self.team.device)
        while self.progress.epoch < self.config.epochs:
            steps = self._train_epoch(feed)
            seconds = time.monotonic() - self.started_s
            self._close_epoch(self._validate(feed_held_out), steps, seconds)
        return TrainingResult(self.model_path, self.progress.best_f1, self.progress.history)

    def _train_epoch(self, feed: Feeder) -> int:
        epoch, config = self.progress.epoch, self.config
        labels = self.patches.labels[self.drawn]
        batches = balanced_batches(
            labels, config.batch, seed=config.seed, epoch=epoch, samples=config.samples_per_epoch
        )[:, self.team.rank :: self.team.size]
        batches = self.drawn[batches]
        set_rate(self.optimizer, config.learning_rate_at(epoch))
        self.model.train()
        self.first_step, self.started_s = self.progress.step, time.monotonic()
        for images, wanted in self._prepared(feed, batches):
            self._step(images, wanted)
            self.progress.step += 1
            if self.look.is_due():
                self._check(len(batches))
        self._check(len(batches))
        return len(batches)

    def _prepared(self, feed: Feeder, batches: Integers) -> Iterator[tuple[Tensor, Tensor]]:
        """Augmented images and wanted answers of each step that is left.

        Several steps are augmented at once, since small batches leave a GPU waiting for its next order; a run
        that resumes within such a group makes the whole group again, with the same random numbers.
        """
        size = batches.shape[1]
        group = max(1, AUGMENT_AT_ONCE // size)
        first, done = self.progress.step // group, self.progress.step
        rows = batches[first * group :].reshape(-1)
        for number, pixels in enumerate(feed(rows, group * size), start=first):
            shown = batches[number * group :][:group].reshape(-1)
            if self.augment is None:
                images = centre_crop(pixels)
            else:
                self.generator.manual_seed(self._seed(_AUGMENTATION, number))
                if self.mixer is not None:
                    pixels = self.mixer(pixels, shown, self.generator)
                images = self.augment(pixels, self.generator)
            answers = self.wanted[rows_on(self.team.device, shown)]
            steps = zip(images.split(size), answers.split(size), strict=True)
            yield from itertools.islice(steps, max(0, done - number * group), None)

    def _step(self, images: Tensor, wanted: Tensor) -> None:
        torch.manual_seed(self._seed(_DROPOUT, self.progress.step))
        with _precision(self.config, self.team.device):
            logits = self.model(images)[:, :, 0, 0]
        loss = functional.cross_entropy(logits.float(), torch.stack([1 - wanted, wanted], dim=1))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.loss_sum += loss.detach()

    def _seed(self, purpose: int, number: int) -> int:
        """A seed that depends on position and purpose alone, so that nothing random has to be saved."""
        words = (self.config.seed, self.progress.epoch, purpose, number, self.team.rank)
        return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)

    def _check(self, steps: int) -> None:
        loss = float(self.loss_sum) / max(1, self.progress.step)
        if not np.isfinite(loss):
            raise self._diverged()
        if self.team.leads:
            progress, best = self.progress, max(0.0, self.progress.best_f1)
            shown = self.config.batch * (progress.step - self.first_step)
            speed = shown / max(1e-9, time.monotonic() - self.started_s)
            what = f"{self.config.name}  loss {loss:.4f}  best F1 {best:.3f}"
            if shown:
                what += f"  {speed:,.3g} patches/s"
            self.report(what, progress.epoch + progress.step / steps, self.config.epochs)
        if self.progress.step < steps and self.keep.is_due():
            self._save()

    def _diverged(self) -> TrainingError:
        return TrainingError(
            f"the loss or a weight became NaN in epoch {self.progress.epoch + 1}",
            path=self.folder,
            next_step=f"lower learning_rate (now {self.config.learning_rate:g}) and use a new folder",
        )

    @torch.inference_mode()
    def _validate(self, feed: Feeder) -> BestF1:
        self.model.eval()
        rows = np.arange(self.team.rank, len(self.held_out.labels), self.team.size)
        answers = []
        for pixels in feed(rows, VALIDATION_BATCH):
            with _precision(self.config, self.team.device):
                logits = self.network(centre_crop(pixels))
            answers.append(patch_probability(logits).cpu())
        mine = torch.cat(answers).numpy() if answers else np.empty(0, np.float32)
        return best_f1(self.team.gather(mine), self.held_out.labels)

    def _close_epoch(self, result: BestF1, steps: int, seconds: float) -> None:
        progress = self.progress
        row = {"epoch": progress.epoch + 1, "loss": float(self.loss_sum) / steps, **asdict(result)}
        row |= {"learning_rate": self.config.learning_rate_at(progress.epoch), "train_seconds": seconds}
        self._refuse_spoilt_weights()
        progress.history.append(row)
        progress.epoch, progress.step = progress.epoch + 1, 0
        self.loss_sum.zero_()
        if result.f1 > progress.best_f1:
            progress.best_f1 = result.f1
            if self.team.leads:
                save_model(self.model_path, self.network, self._card(result))
        if self.team.leads:
            write_history(self.folder, progress.history)
        if progress.epoch == self.config.epochs or self.keep.is_due():
            self._save()
            if self.team.leads:
                write_curves(self.folder, progress.history)

    def _refuse_spoilt_weights(self) -> None:
        """The last update may have made weights NaN although its loss was still finite."""
        if not is_finite(self.network.parameters()):
            raise self._diverged()

    def _save(self) -> None:
        self._refuse_spoilt_weights()
        if self.team.leads:
            optimizer = self.optimizer if self.progress.epoch < self.config.epochs else None
            save_state(self.folder / STATE_FILE, self.network, optimizer, self.loss_sum, self.progress)

    def _card(self, result: BestF1) -> ModelCard:
        config = self.config
        cases = tuple(sorted(self.held_out.index["slide"].unique()))
        rows = np.random.default_rng(0).integers(0, len(self.patches.labels), COLOUR_SAMPLE)
        red, green, blue = map(float, stained_density(self.patches.take(np.sort(rows))))
        point = OperatingPoint(
            name="patches",
            delta=result.threshold,
            metric="F1",
            value=result.f1,
            cases=cases,
            source="validation patches",
        )
        return ModelCard(
            name=config.name,
            **asdict(config.network),
            mpp=self.patches.stores[0].mpp,
            patch_px=PATCH_PX,
            classes=config.classes,
            thresholds={"patches": point},
            optical_density=(red, green, blue),
            recipe=config.to_dict(),
            metrics={"validation": asdict(result), "parameters": parameter_count(self.network)},
            seed=config.seed,
            versions=current_versions(),
        )


def _first_network(config: TrainingConfig) -> nn.Sequential:
    """The network before the first step: drawn at random, or the one to start from."""
    if not config.start:
        return build_network(config.network)
    network, card = load_model(config.start)
    if card.spec != config.network:
        raise TrainingError(
            f"is a {card.family}, gamma {card.gamma:g}, normalisation {card.normalisation}, and the network "
            f"a {config.network.family}, gamma {config.network.gamma:g}, {config.network.normalisation}",
            path=config.start,
            next_step="give the network the family, gamma and normalisation of the model it starts from",
        )
    return network


def _check_sets(config: TrainingConfig, team: Team, train: PatchSet, validation: PatchSet) -> None:
    """Refuse patches that would train or choose a network wrongly, before any work is done."""
    check_disjoint("slide", train=train.index["slide"], validation=validation.index["slide"])
    if train.kind != validation.kind or train.kind[0] < PATCH_PX:
        raise TrainingError(
            f"patches for training and validation, (side px, um/px) = {train.kind} and {validation.kind}",
            next_step=f"use stores of one kind, with patches of at least {PATCH_PX} px",
        )
    if len(np.unique(validation.labels)) < 2:
        raise TrainingError(
            "the validation patches are all of one class", next_step="add patches of the other class"
        )
    if config.batch % team.size:
        raise TrainingError(
            f"a batch of {config.batch} cannot be shared by {team.size} processes",
            next_step=f"choose a multiple of {2 * team.size}",
        )


def _make_optimizer(network: nn.Module, config: TrainingConfig, device: torch.device) -> torch.optim.Adam:
    """Adam. The gradient of l2 * sum(w^2) is 2 * l2 * w, on weights but not on biases."""
    weights = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": 2 * config.l2}, {"params": others}]
    return torch.optim.Adam(groups, lr=config.learning_rate, fused=device.type == "cuda")


def _precision(config: TrainingConfig, device: torch.device) -> torch.autocast:
    wanted = config.precision == "bfloat16" or (config.precision == "auto" and device.type == "cuda")
    return torch.autocast(device.type, torch.bfloat16, enabled=wanted)


# ---- one process, or several that PyTorch's launcher (`torchrun`) started ----


@dataclass(frozen=True)
class Team:
    """This process's position among those that train together."""

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network with gradients averaged over the team."""
        if self.size == 1:
            return network
        if self.device.type == "cuda":
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        return nn.parallel.DistributedDataParallel(network)

    def gather(self, values: Floats32) -> Floats32:
        """Values of all processes that took every `size`-th item, put back in order."""
        if self.size == 1:
            return values
        shares: list[Floats32] = [values] * self.size
        dist.all_gather_object(shares, values)
        out = np.empty(sum(map(len, shares)), np.float32)
        for rank, share in enumerate(shares):
            out[rank :: self.size] = share
        return out


@contextmanager
def join_team(device: str | None = None) -> Iterator[Team]:
    """The team that the environment describes; a single process without a launcher."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        yield Team(0, 1, chosen)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)  # collective operations use the current device
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield Team(rank, size, chosen)
    finally:
        dist.destroy_process_group()
