"""Atypical figures: a look at each mitosis, asked about slides, scanners and tumours left out.

python recipes/breast/atypical.py --data FOLDER --start STUDENT.safetensors --folder OUT

It begins as the student `lite` of dense_model.py, which knows mitoses but not the flag. OUT/atypical.npz
holds what was said about every crop by networks that had not seen its slide, its scanner or its tumour;
OUT/atypical.safetensors has learnt from all.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from dense_model import Learner, _note, load, save
from pictures import CROP_PX, TUPAC_LABORATORIES, read_pixels
from shapes import STUDENTS, said
from torch import Tensor, nn
from torch.nn import functional
from windows import MIXED

from metaphase.base.files import atomic_path
from metaphase.images.stain.augmentation import Augmentation, AugmentationConfig, StainMixer, appearance_of
from metaphase.networks.cards import PATCH_PX

SEEN_PX = PATCH_PX
FOLDS, BATCH, RATE = 5, 128, 3e-4
AUGMENTATION = AugmentationConfig(
    size_px=SEEN_PX, stain_factor=(0.85, 1.15), stain_bias=(-0.1, 0.1), scale=(0.85, 1.2),
    colour=(0.85, 1.2), contrast=(0.85, 1.2), brightness=(0.9, 1.1), blur_sigma_px=(0.0, 1.0),
    noise_sigma=(0.0, 0.03),
)  # fmt: skip


def read_figures(data: Path) -> pd.DataFrame:
    """One row a crop: its file, slide, scanner, tumour, and whether pathologists called it atypical."""
    midog, tupac = (
        pd.read_csv(data / folder / "patches.csv") for folder in ("midog-mitoses", "tupac-mitoses")
    )
    number = tupac["slide"].str[:2].astype(int)
    tupac["scanner"] = number.map(
        lambda slide: next(name for last, name in TUPAC_LABORATORIES if slide <= last)
    )
    tupac["tumor"] = "human breast cancer"
    midog["path"], tupac["path"] = "midog-mitoses/" + midog["image"], "tupac-mitoses/" + tupac["image"]
    midog["slide"], tupac["slide"] = "midog/" + midog["slide"].astype(str), "tupac/" + tupac["slide"].str[:2]
    table = pd.concat([midog, tupac], ignore_index=True)
    table["atypical"] = table["atypical"].astype(int)
    table["domain"] = table["tumor"] + ", " + table["scanner"]
    return table[["path", "slide", "scanner", "tumor", "domain", "atypical"]]


class Figures:
    """All crops on a device, and the colours of their domains."""

    def __init__(self, data: Path, table: pd.DataFrame, device: torch.device) -> None:
        pixels = np.stack([read_pixels(data / path) for path in table["path"]])
        self.pixels = torch.from_numpy(pixels).to(device)
        codes, names = pd.factorize(table["domain"])
        self.domain = torch.from_numpy(codes.astype(np.int64)).to(device)
        self.appearances = [
            appearance_of(pixels[codes == number][::3, ::3, ::3].reshape(1, -1, 3))
            for number in range(len(names))
        ]
        self.target = torch.from_numpy(table["atypical"].to_numpy(np.float32)).to(device)
        odds = table.groupby(["domain", "atypical"])["path"].transform("size").to_numpy(np.float64)
        self.odds = 1 / odds  # domains and answers alike


def taught(
    look: nn.Module, figures: Figures, mine: npt.NDArray[np.bool_], options: argparse.Namespace
) -> nn.Module:
    """A look after its steps on the crops of `mine`."""
    device = figures.pixels.device
    augment = Augmentation("RCSEHBG", AUGMENTATION).to(device)
    mixer = StainMixer(figures.appearances, MIXED).to(device)
    generator = torch.Generator(device).manual_seed(options.seed)
    rng = np.random.default_rng(options.seed)
    numbers, odds = np.flatnonzero(mine), figures.odds[mine] / figures.odds[mine].sum()
    learner = Learner(look, options.rate)
    for step in range(options.steps):
        drawn = torch.from_numpy(rng.choice(numbers, options.batch, p=odds)).to(device)
        with torch.no_grad():
            images = augment(mixer(figures.pixels[drawn], figures.domain[drawn], generator), generator)
        learner.network.train()
        with torch.autocast(device.type, torch.bfloat16):
            logits = said(learner.network, images.contiguous(memory_format=torch.channels_last))[:, 0, 0]
        wanted = 0.05 + 0.9 * figures.target[drawn]
        loss = functional.binary_cross_entropy_with_logits(logits, wanted)
        learner.step(loss, step / options.steps)
    return learner.mean


@torch.inference_mode()
def answers(look: nn.Module, pixels: Tensor) -> npt.NDArray[np.float64]:
    """Logits of crops, the mean of the two that a mirror gives."""
    first = (CROP_PX - SEEN_PX) // 2
    parts = []
    for batch in pixels[:, first : first + SEEN_PX, first : first + SEEN_PX].split(512):
        images = (batch.permute(0, 3, 1, 2) / 255).contiguous(memory_format=torch.channels_last)
        parts.append((said(look, images) + said(look, images.flip(3)))[:, 0, 0] / 2)
    return torch.cat(parts).double().cpu().numpy()


def main() -> None:
    """Ask about what was left out, one group after the other; then learn from all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--start", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--most", type=int, help="crops, to try it out")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    note = partial(_note, time.perf_counter())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    table = read_figures(options.data)
    if options.most:
        table = table.sample(options.most, random_state=1).reset_index(drop=True)
    figures = Figures(options.data, table, device)
    note(f"{len(table)} crops, {table['slide'].nunique()} slides, {int(table['atypical'].sum())} atypical")

    def fresh() -> nn.Module:
        torch.manual_seed(options.seed)
        return load(STUDENTS["lite"](), options.start, device).requires_grad_(True)

    slides = sorted(table["slide"].unique())
    order = np.random.default_rng(0).permutation(len(slides))
    fold = {slide: str(place % FOLDS) for slide, place in zip(slides, order, strict=True)}
    left_out = {"slides": table["slide"].map(fold), "scanners": table["scanner"], "tumours": table["tumor"]}
    said = {name: np.full(len(table), np.nan) for name in left_out}
    for name, groups in left_out.items():
        for group in sorted(groups.unique()):
            out = (groups == group).to_numpy(bool, copy=True)
            look = taught(fresh(), figures, ~out, options)
            said[name][out] = answers(look, figures.pixels[torch.from_numpy(out).to(device)])
            note(f"{name}: {group}")
    options.folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(options.folder / "atypical.npz") as part, part.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, path=table["path"].to_numpy(str), **said)
    save(
        taught(fresh(), figures, np.ones(len(table), bool), options), options.folder / "atypical.safetensors"
    )
    note("learnt from all")


if __name__ == "__main__":
    main()
