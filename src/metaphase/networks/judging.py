"""What networks say about positions of a slide, or about stored patches: the mean of their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.special import expit, logit

from metaphase.base.arrays import RGB, Floats, Floats32
from metaphase.base.errors import ModelError, UsageError
from metaphase.base.provenance import account_of, fingerprint_of
from metaphase.networks.architectures import centre_crop, patch_probability
from metaphase.networks.cards import PATCH_PX, Calibration
from metaphase.networks.checkpoints import choose_device, load_model
from metaphase.slides.contract import Slide
from metaphase.slides.tiles import cut_squares

CLIP = 1e-6
"""Probabilities are not taken for more certain."""
BATCH = 512


class NetworkJudge:
    """One network or an ensemble. Call it with a slide and points, or give `judge` patches.

    Every candidate is answered from its own patch, which suits some thousand candidates on a CPU and a
    million on a GPU. Whatever has `identity` and the same call can stand in for it, such as a dense engine.
    """

    def __init__(self, models: Sequence[str | Path], device: str | None = None) -> None:
        if not models:
            raise UsageError("no networks are given", next_step="name at least one model")
        self._device = choose_device(device)
        loaded = [load_model(model, self._device) for model in models]
        self._networks = [network.to(memory_format=torch.channels_last) for network, _ in loaded]  # type: ignore[call-overload]
        resolutions = {card.mpp for _, card in loaded}
        if len(resolutions) > 1:
            raise ModelError(
                f"networks for different resolutions, {sorted(resolutions)} um/px, cannot form an ensemble",
                path=models[0],
                next_step="use networks that were trained alike",
            )
        self.mpp = resolutions.pop()
        """Resolution of the patches, in um/px."""
        own = loaded[0][1].calibration if len(loaded) == 1 else None
        self.calibration = own or Calibration()
        self.identity = fingerprint_of(account_of([card.identity for _, card in loaded]))
        """Changes with the weights of any network, and with what it is run at."""

    def __call__(self, slide: Slide, points: Floats) -> Floats32:
        """Probability (n,) of the patch around each level-0 point (n, 2)."""
        answers = np.empty(len(points), np.float32)
        for rows, patches in cut_squares(slide, points, PATCH_PX, self.mpp):
            answers[rows] = self.judge(patches)
        return answers

    def calibrated(self, slide: Slide, points: Floats) -> Floats:
        """As the call, by patches and their mirror images, calibrated as a single network's card says."""
        logits = np.empty(len(points))
        for rows, patches in cut_squares(slide, points, PATCH_PX, self.mpp):
            views = patches, np.ascontiguousarray(patches[:, :, ::-1])
            answers = [np.clip(self.judge(view), CLIP, 1 - CLIP) for view in views]
            logits[rows] = np.mean(logit(answers), axis=0)
        return np.asarray(expit(self.calibration(logits)))

    def judge(self, patches: RGB) -> Floats32:
        """Probability (n,) of each patch (n, side, side, 3)."""
        starts = range(0, len(patches), BATCH)
        parts = [self._judge(torch.from_numpy(patches[at : at + BATCH])) for at in starts]
        return np.concatenate([np.empty(0, np.float32), *parts])

    @torch.inference_mode()
    def _judge(self, pixels: torch.Tensor) -> Floats32:
        images = centre_crop(pixels.to(self._device))
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            answers = [patch_probability(network(images)) for network in self._networks]
        mean: Floats32 = torch.stack(answers).mean(dim=0).cpu().numpy()
        return mean
