"""Experiments 1 to 4 between real scanners: MIDOG++ mitoses of one scanner train, those of all others test.

    python recipes/accuracy/domain_ablation.py --pack crops.parquet --data FOLDER
    python recipes/accuracy/domain_ablation.py --crops crops.parquet --folder OUT --work WORK
    python recipes/accuracy/domain_ablation.py --folder OUT --tables-only

OUT/DIRECTION/ gets `answers.npz` (what every network said about every test patch), `results.json` and
`table.md`, anew after every network; run it again to go on after a stop. WORK holds patches and networks.

Patches are those of `domain_patches.py`, figures and tables those of `domain_answers.py`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from domain_answers import Answers, experiments, groups_of, network_name, plan, write_tables
from domain_patches import AWAY, HOME, TRAIN, VALIDATION, make_store, read_crops, with_parts

from metaphase.base.arrays import Floats32
from metaphase.base.errors import UsageError
from metaphase.base.files import atomic_path, write_text
from metaphase.images.stain.pixels import stained_density
from metaphase.networks.architectures import centre_crop
from metaphase.networks.cards import NetworkSpec
from metaphase.networks.checkpoints import choose_device, load_model
from metaphase.networks.training.config import TrainingConfig
from metaphase.networks.training.data import Feeder, open_set
from metaphase.networks.training.loop import feed_in_order, train
from metaphase.networks.training.patches import open_store

DIRECTIONS = {"histech": "3D Histech", "aperio": "Aperio CS2"}
"""Scanners that train, each tested on all others."""


@dataclass(frozen=True)
class Settings:
    """What decides the answers of a network beside its recipe and seed."""

    scanner: str
    gamma: float
    normalisation: str
    epochs: int
    samples: int
    batch: int
    blank_px: float
    most: int | None


class Ablation:
    """One direction: its patches, its networks, their answers."""

    def __init__(self, name: str, crops: pd.DataFrame, settings: Settings, folder: Path, work: Path) -> None:
        self.name, self.settings, self.work = name, settings, work / name
        _require_same(self.work / "settings.json", asdict(settings))
        crops = with_parts(crops, settings.scanner)
        parts = {TRAIN: [TRAIN], VALIDATION: [VALIDATION], "test": [HOME, AWAY]}
        for store, names in parts.items():
            chosen = crops[crops["part"].isin(names)]
            make_store(self.work / "patches" / store, chosen, settings.blank_px)
            print(f"{name}: {store} patches of {len(chosen):,} crops", flush=True)
        self.tested = open_set([self._store(VALIDATION), self._store("test")])
        self.answers = Answers(folder / name / "answers.npz")
        columns = ["image", "slide", "tumor", "scanner", "part", "label", "x", "y"]
        facts = {"settings": asdict(settings), "crops": _counts(crops), "colour": self._colours()}
        self.answers.begin(self.tested.index[columns], facts)

    def _store(self, part: str) -> str:
        return str(self.work / "patches" / part)

    def _colours(self) -> dict[str, float]:
        """Largest ratio of a colour channel's mean density to that of the training patches, by group."""
        rng = np.random.default_rng(0)
        trained = open_store(self._store(TRAIN))
        home = stained_density(trained.take(np.sort(rng.integers(0, len(trained), COLOUR_SAMPLE))))
        ratios = {}
        for group, rows in groups_of(self.tested.index).items():
            density = stained_density(self.tested.take(np.sort(rng.choice(rows, COLOUR_SAMPLE))))
            ratios[group] = round(float(np.exp(np.abs(np.log(density / home)).max())), 3)
        return ratios

    def config(self, augment: str, seed: int) -> TrainingConfig:
        """How a network is trained."""
        chosen = self.settings
        return TrainingConfig(
            train=(self._store(TRAIN),),
            validation=(self._store(VALIDATION),),
            network=NetworkSpec("detector", chosen.gamma, chosen.normalisation),  # type: ignore[arg-type]
            name=network_name(augment, seed),
            augment=augment,
            batch=chosen.batch,
            epochs=chosen.epochs,
            samples_per_epoch=chosen.samples,
            seed=seed,
        )

    def run(self, networks: Sequence[tuple[str, int]], device: str | None, deadline: float) -> Iterator[str]:
        """Train and ask the networks that are left, until the deadline; yields a line for each."""
        chosen = choose_device(device)
        feed = Feeder(self.tested, chosen)
        for augment, seed in networks:
            name = network_name(augment, seed)
            if name in self.answers.logits:
                continue
            if time.monotonic() > deadline:
                print(f"{self.name}: out of time before {name}", flush=True)
                return
            started = time.monotonic()
            result = train(self.config(augment, seed), self.work / name, device=device)
            trained = time.monotonic()
            self.answers.add(name, _ask(result.model, feed, len(self.tested.index), chosen), result.best)
            seconds = f"{trained - started:.1f} s and {time.monotonic() - trained:.1f} s"
            yield f"{name}, validation F1 {result.best:.3f}, trained and asked in {seconds}"


@torch.inference_mode()
def _ask(model: Path, feed: Feeder, count: int, device: torch.device) -> Floats32:
    """Logit of every test patch, in full precision: rounded ones would be equal too often."""
    network, _ = load_model(model, device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    logits = [
        network(centre_crop(pixels)).flatten(1).diff(dim=1)[:, 0]
        for pixels in feed_in_order(feed, np.arange(count), ASKED_AT_ONCE)
    ]
    said: Floats32 = torch.cat(logits).float().cpu().numpy()
    return said


ASKED_AT_ONCE, COLOUR_SAMPLE = 1024, 500


def _counts(crops: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Mitoses and slides of each part, and of each scanner that tests."""
    named = crops["part"].where(crops["part"] != AWAY, crops["scanner"])
    counted = crops.groupby(named)["slide"].agg(["size", "nunique"])
    return {str(name): {"mitoses": int(row["size"]), "slides": int(row["nunique"])}
            for name, row in counted.iterrows()}  # fmt: skip


def _require_same(path: Path, settings: dict[str, Any]) -> None:
    """Write the settings of a folder, or refuse others than it has."""
    text = json.dumps(settings, indent=1)
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise UsageError(
            "the folder was made with other settings", path=path, next_step="choose another folder"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


# ---- command line ----


def prepared(name: str, crops: pd.DataFrame, options: argparse.Namespace) -> Ablation:
    """A direction with its patches made."""
    settings = Settings(
        DIRECTIONS[name], options.gamma, options.normalisation, options.epochs,
        options.samples, options.batch, options.blank_px, options.most,
    )  # fmt: skip
    (options.folder / name).mkdir(parents=True, exist_ok=True)
    return Ablation(name, crops, settings, options.folder, options.work or options.folder / "work")


def run_direction(ablation: Ablation, options: argparse.Namespace, deadline: float) -> None:
    """Train and ask all networks of a direction; tables get their intervals in the end."""
    folder, name = options.folder / ablation.name, ablation.name
    wanted, networks = experiments(options.seeds, options.members), plan(options.seeds, options.members)
    started = time.monotonic()
    try:
        for line in ablation.run(networks, options.device, deadline):
            write_tables(folder, ablation.answers, wanted, samples=0)
            done = f"{len(ablation.answers.logits)} of {len(networks)}"
            print(f"{name}: {done}, {time.monotonic() - started:.0f} s: {line}", flush=True)
    finally:
        write_tables(folder, ablation.answers, wanted, options.bootstrap)


def main() -> None:
    """Pack, or train and ask, or only make the tables anew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write the crops of --data to one file")
    parser.add_argument("--crops", type=Path, metavar="FILE", help="such a file, instead of --data")
    parser.add_argument("--folder", type=Path, help="where results go")
    parser.add_argument("--work", type=Path, help="where patches and networks go; FOLDER/work by default")
    parser.add_argument("--tables-only", action="store_true", help="from the answers in FOLDER")
    parser.add_argument("--directions", nargs="+", choices=list(DIRECTIONS), default=list(DIRECTIONS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--members", type=int, default=5, help="networks of an ensemble")
    parser.add_argument("--gamma", type=float, default=1.0)
    parser.add_argument("--normalisation", default="none", choices=("none", "batch"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--samples", type=int, default=28_160, help="patches an epoch")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--blank-px", type=float, default=0.0, help="control: blank middles of this radius")
    parser.add_argument("--most", type=int, help="crops of a scanner, for a trial")
    parser.add_argument("--minutes", type=float, default=np.inf, help="begin no network after these")
    parser.add_argument("--bootstrap", type=int, default=1000, help="draws of slides")
    parser.add_argument("--device")
    options = parser.parse_args()
    if options.pack:
        with atomic_path(options.pack) as temporary:
            read_crops(options.data).to_parquet(temporary, index=False)
        return
    if options.tables_only:
        wanted = experiments(options.seeds, options.members)
        for path in sorted(options.folder.glob("*/answers.npz")):
            write_tables(path.parent, Answers(path), wanted, options.bootstrap)
        return
    deadline = time.monotonic() + 60 * options.minutes
    crops = read_crops(options.crops or options.data, options.most)
    # All patches come first: processes are not to be forked once a GPU is in use.
    ablations = [prepared(name, crops, options) for name in options.directions]
    for ablation in ablations:
        run_direction(ablation, options, deadline)


if __name__ == "__main__":
    main()
