"""How much of the possible speed the training engine reaches.

The same network and step are run on tensors that are already there ("synthetic"), then by the engine from a
patch store, with and without augmentation. Patches a second, and the fraction of the synthetic rate. The
largest layer is also run as an ordinary convolution, to see what the matrix product gains.

    python benchmarks/training.py [--gamma 1.0] [--batches 64,1024] [--patches 16384] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metaphase.networks.architectures import WideConv2d, build_network
from metaphase.networks.cards import NetworkSpec
from metaphase.networks.checkpoints import choose_device
from metaphase.networks.training.loop import train
from metaphase.networks.training.patches import PatchWriter
from metaphase.networks.training.protocol import TrainingConfig

PAPER_PATCHES = 20 * (22_000 + 400_000)


def write_random_store(folder: Path, count: int, slide: str) -> str:
    """Patches of noise; what they show does not matter for speed."""
    rng = np.random.default_rng(len(slide))
    with PatchWriter(folder) as writer:
        for number in range(count):
            patch = rng.integers(0, 256, (128, 128, 3), dtype=np.uint8)
            writer.add(patch, label=number % 2, slide=slide, x=0.0, y=0.0, source="noise")
    return str(folder)


def plain(network: torch.nn.Sequential) -> torch.nn.Sequential:
    """The same layers with the 14 x 14 one as an ordinary convolution."""
    wide = next(layer for layer in network if isinstance(layer, WideConv2d))
    conv = torch.nn.Conv2d(wide.in_channels, wide.out_channels, wide.kernel_size[0])
    return torch.nn.Sequential(*(conv if layer is wide else layer for layer in network))


def synthetic_rate(network: torch.nn.Sequential, batch: int, steps: int, device: torch.device) -> float:
    """Patches a second of the bare step: forward, backward, Adam, on one tensor that stays where it is."""
    network = network.to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(network.parameters(), weight_decay=2e-5, fused=device.type == "cuda")
    images = torch.rand(batch, 3, 100, 100, device=device).contiguous(memory_format=torch.channels_last)
    wanted = (torch.arange(batch, device=device) % 2).float()

    def loss_of(images: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = network(images)[:, :, 0, 0]
        return torch.nn.functional.cross_entropy(logits.float(), torch.stack([1 - wanted, wanted], dim=1))

    started = 0.0
    for number in range(steps + max(3, steps // 5)):
        if number == max(3, steps // 5):
            _wait(device)
            started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss_of(images).backward()
        optimizer.step()
    _wait(device)
    return batch * steps / (time.perf_counter() - started)


def engine_rate(stores: tuple[str, str], gamma: float, batch: int, steps: int, augment: str) -> float:
    """Patches a second of the second epoch of the engine, validation left out by making it tiny."""
    config = TrainingConfig(
        train=(stores[0],),
        validation=(stores[1],),
        network=NetworkSpec(gamma=gamma),
        batch=batch,
        epochs=2,
        samples_per_epoch=batch * steps,
        augment=augment,
    )
    with tempfile.TemporaryDirectory() as folder:
        result = train(config, folder)
    return batch * steps / result.history[1]["train_seconds"]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gamma", type=float, default=1.0)
    parser.add_argument("--batches", default="64")
    parser.add_argument("--patches", type=int, default=2048)
    parser.add_argument(
        "--steps", type=int, default=20, help="timed steps of batch 64; fewer for larger ones"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = choose_device(None)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        stores = (
            write_random_store(Path(folder) / "train", options.patches, "train"),
            write_random_store(Path(folder) / "validation", 64, "validation"),
        )
        for batch in map(int, options.batches.split(",")):
            steps = max(5, options.steps * 64 // batch)
            network = build_network(NetworkSpec(gamma=options.gamma))
            base = synthetic_rate(network, batch, steps, device)
            rows.append({"batch": batch, "what": "synthetic tensors", "rate": base, "fraction": 1.0})
            rate = synthetic_rate(plain(network), batch, steps, device)
            name = "14 x 14 as a convolution"
            rows.append({"batch": batch, "what": name, "rate": rate, "fraction": rate / base})
            for augment in ("", "RCSEHBG"):
                rate = engine_rate(stores, options.gamma, batch, steps, augment)
                name = f"engine, {augment or 'no augmentation'}"
                rows.append({"batch": batch, "what": name, "rate": rate, "fraction": rate / base})
    print(f"{device}, torch {torch.__version__}, gamma {options.gamma}")
    print(f"{'batch':>6} {'what':26} {'patches/s':>10} {'fraction':>9} {'paper run, min':>15}")
    for row in rows:
        minutes = PAPER_PATCHES / row["rate"] / 60
        print(
            f"{row['batch']:6} {row['what']:26} {row['rate']:10,.0f} {row['fraction']:9.2f} {minutes:15.1f}"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
