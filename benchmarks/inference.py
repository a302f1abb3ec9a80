"""How fast and how exact the dense engine is, beside the same network called as it is, in the same run.

Both compute the same tiles in turns, so that a shared machine disturbs both alike. Networks are trained ones
(`--model`), or He-initialised, without or with batch normalisation, and scaled so that their probabilities
spread over 0 to 1. Then JPEG pyramids are written and detected end to end.

    python benchmarks/inference.py [--device cuda] [--networks lite residual] [--gamma 0.6 1.0]
        [--model breast] [--tissue PICTURES] [--side 0] [--explore] [--json FILE]
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from metaphase.base.arrays import RGB
from metaphase.base.parallel import available_cores
from metaphase.networks.architectures import build_network, probability
from metaphase.networks.cards import OUTPUT_STRIDE_PX, RECEPTIVE_PX, NetworkSpec
from metaphase.networks.checkpoints import choose_device
from metaphase.networks.detector import load_detector
from metaphase.networks.engine.arithmetic import tissue_like
from metaphase.networks.engine.engine import Engine, page_locked
from metaphase.networks.engine.positions import BORDER
from metaphase.networks.engine.settings import EngineConfig, PeakConfig, Precision, Second
from metaphase.networks.engine.streaming import detect_tiles, plan_detection
from metaphase.slides.opening import open_slide
from metaphase.slides.tiles import TileProcesses, read_tiles
from metaphase.slides.writer import PyramidFormat, write_pyramid

GPU_BATCH = 4
MPX_PER_MM2 = 16.0
PLAIN_OUTPUTS = 160
WAYS = ("threads", "processes")
Row = dict[str, Any]


def tile_outputs(engine: Engine) -> int:
    """Outputs a side of the tiles that run fastest."""
    return engine.tile_px // OUTPUT_STRIDE_PX + 2 * BORDER


KINDS: dict[str, Callable[[float], NetworkSpec]] = {
    "none": lambda gamma: NetworkSpec("detector", gamma),
    "batch": lambda gamma: NetworkSpec("detector", gamma, "batch"),
    "residual": lambda gamma: NetworkSpec("residual", gamma, "batch"),
    "lite": lambda gamma: NetworkSpec("lite", gamma, "batch"),
}
"""The paper's detector without and with batch normalisation, and those of other blocks."""


def spread_network(gamma: float, kind: str) -> nn.Sequential:
    """A network whose logits on tissue have a mean of -1 and a spread of 3, as trained ones may."""
    torch.manual_seed(0)
    network = build_network(KINDS[kind](gamma))
    images = pixels_of(tissue_like(300))[None]
    with torch.no_grad():
        if kind != "none":
            for _ in range(15):
                network.train()(images[..., :180, :180])
        logits = network.eval()(images)
        difference = logits[:, 1] - logits[:, 0]
        scale = 3 / difference.std()
        weight, bias = network[-1].parameters()
        weight.mul_(scale)
        shift = torch.stack([torch.zeros(()), -1 - difference.mean() * scale])
        bias.mul_(scale).add_(shift.repeat_interleave(len(bias) // 2))
    return network


def pixels_of(image: RGB) -> Tensor:
    """(3, height, width) in 0..1."""
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Wall time of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


class Stopwatch:
    """Wall and processor times of repeated work, a megapixel."""

    def __init__(self, work: Callable[[], object], megapixels: float, device: torch.device) -> None:
        self.work, self.megapixels, self.device = work, megapixels, device
        self.wall: list[float] = []
        self.processor: list[float] = []

    def run(self, times: int = 1) -> None:
        """Do the work and remember."""
        for _ in range(times):
            start = time.process_time()
            self.wall.append(seconds(self.work, self.device) / self.megapixels)
            self.processor.append((time.process_time() - start) / self.megapixels)

    def row(self) -> Row:
        """Best and middle speeds."""
        return {
            "megapixels_per_s": 1 / min(self.wall),
            "median_megapixels_per_s": 1 / statistics.median(self.wall),
            "seconds_per_mm2": min(self.wall) * MPX_PER_MM2,
            "processor_s_per_megapixel": min(self.processor),
        }


@contextmanager
def tensor_float(allowed: bool) -> Iterator[None]:
    """Whether the plain network on a GPU rounds to TensorFloat-32, PyTorch's default for convolutions."""
    torch.backends.cudnn.allow_tf32 = allowed
    yield
    torch.backends.cudnn.allow_tf32 = True


def plain_ways(network: nn.Sequential, images: Tensor, compiled: bool) -> dict[str, Callable[[], Tensor]]:
    """The ways to call the network as it is, all cores at work; a GPU may round, and compile."""
    last = copy.deepcopy(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    pixels = images.contiguous(memory_format=torch.channels_last)

    def way(
        called: Callable[[Tensor], Tensor], given: Tensor, rounded: bool = False, half: bool = False
    ) -> Callable[[], Tensor]:
        def work() -> Tensor:
            torch.set_num_threads(available_cores())
            with tensor_float(rounded), torch.autocast(given.device.type, torch.float16, enabled=half):
                return probability(called(given).float())

        return work

    ways = {"float32": way(network, images), "float32, channels last": way(last, pixels)}
    if images.device.type == "cuda":
        ways |= {
            "TensorFloat-32": way(network, images, rounded=True),
            "TensorFloat-32, channels last": way(last, pixels, rounded=True),
            "float16 autocast, channels last": way(last, pixels, rounded=True, half=True),
        }
    if compiled:
        ways |= {
            "TensorFloat-32, compiled": way(torch.compile(last), pixels, rounded=True),
            "float16, compiled": way(torch.compile(copy.deepcopy(last).half()), pixels.half(), rounded=True),
        }
    return ways


def compare(
    name: str,
    network: nn.Sequential,
    second: Second[nn.Sequential] | None,
    config: EngineConfig,
    rounds: int,
    compiled: bool,
) -> tuple[list[Row], Engine]:
    """Rows of engine and plain on the same images, in turns; on a CPU plain gets a part of the tile.

    What is compared is the network that sees everything; the engine has its re-check too.
    """
    engine = Engine([network], config, second)
    device, outputs = engine.device, tile_outputs(engine)
    image = tissue_like(RECEPTIVE_PX + OUTPUT_STRIDE_PX * (outputs - 1), seed=1)
    on_gpu = device.type == "cuda"
    part = outputs if on_gpu else min(outputs, PLAIN_OUTPUTS)
    side = RECEPTIVE_PX + OUTPUT_STRIDE_PX * (part - 1)
    tiles = GPU_BATCH if on_gpu else 1
    batch = torch.from_numpy(image)[None].repeat(tiles, 1, 1, 1).to(device)
    cut = pixels_of(np.ascontiguousarray(image[:side, :side]))[None].repeat(tiles, 1, 1, 1).to(device)
    with torch.inference_mode():
        ways = plain_ways(network.to(device), cut, compiled)
        watches = {way: Stopwatch(work, covered(part) * tiles, device) for way, work in ways.items()}
        for work in ways.values():
            work()
        fast = Stopwatch(lambda: engine.logits(batch), covered(outputs) * tiles, device)
        engine.logits(batch)
        for _ in range(rounds):
            fast.run(3)
            for watch in watches.values():
                watch.run()
        expected = ways["float32"]()[0][:part, :part]
        found = torch.sigmoid(engine.logits(batch)[0])[:part, :part]
    ours = {
        "way": "engine",
        **fast.row(),
        "arithmetic": engine.arithmetic,
        "largest_difference": float((found - expected).abs().max()),
        "probabilities_5_to_95_percent": np.quantile(expected.cpu().numpy(), (0.05, 0.95)).round(2).tolist(),
    }
    rows = [ours, *({"way": f"plain {way}", **watch.row()} for way, watch in watches.items())]
    for row in rows:
        row["engine_times"] = ours["megapixels_per_s"] / row["megapixels_per_s"]
    return [{"network": name, **row} for row in rows], engine


def covered(outputs: int) -> float:
    """Megapixels of a square of outputs."""
    return (OUTPUT_STRIDE_PX * outputs) ** 2 / 1e6


def read_rgb(path: Path) -> RGB:
    """Pixels of a picture."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def sheet_of(pictures: list[Path]) -> list[RGB]:
    """Squares of 512 px of pictures of tissue, or of what looks like it."""
    images = [read_rgb(path) for path in pictures] or [tissue_like(2048)]
    return [
        np.ascontiguousarray(image[y : y + 512, x : x + 512])
        for image in images
        for y in range(0, image.shape[0] - 511, 512)
        for x in range(0, image.shape[1] - 511, 512)
    ]


def write_slide(path: Path, side: int, pictures: list[Path]) -> int:
    """A JPEG pyramid of such squares; its true side."""
    squares, count = sheet_of(pictures), -(-side // 512)
    rng = np.random.default_rng(0)
    tiles = (squares[number] for number in rng.integers(len(squares), size=count**2))
    write_pyramid(path, tiles, 512 * count, 512 * count, PyramidFormat(0.25))
    return 512 * count


def end_to_end(
    engine: Engine, path: Path, peaks: PeakConfig | None, decoders: TileProcesses | None, rounds: int
) -> Row:
    """A slide: decoding alone, computing alone, and both at once; by threads or processes."""
    with open_slide(path) as slide:
        pixels = next(iter(read_tiles(slide, plan_detection(slide, engine))))[1]
        peaks = peaks or PeakConfig(floor=rare(engine.probability_map(pixels)))
        plan = plan_detection(slide, engine, config=peaks)
        megapixels = slide.levels[0].width * slide.levels[0].height / 1e6

        def tiles_read() -> None:
            for _ in (
                read_tiles(slide, plan)
                if decoders is None
                else decoders.read(slide, plan, ahead=2 * decoders.count, hold=1)
            ):
                pass

        decode = seconds(tiles_read, engine.device)
        count = min(engine.batch, len(plan.tiles))
        some = [pixels for _, (_, pixels) in zip(range(count), read_tiles(slide, plan), strict=False)]
        batch = torch.from_numpy(np.stack(some)).to(engine.device)
        sigma = peaks.smooth_um / (0.25 * OUTPUT_STRIDE_PX)

        def computed() -> None:
            engine.start(batch, peaks, sigma).results(maps=False)

        one = min(seconds(computed, engine.device) for _ in range(3)) / count
        points = 0

        def both() -> None:
            nonlocal points
            found = detect_tiles(engine, slide, plan, peaks, decoders=decoders)
            points = sum(len(result.points.x) for result in found)

        watch = Stopwatch(both, megapixels, engine.device)
        watch.run(rounds)
        together = min(watch.wall) * megapixels
    compute = one * len(plan.tiles)
    return {
        "decoders": "threads" if decoders is None else f"{decoders.count} processes",
        "arithmetic": engine.arithmetic,
        "exhaustive": engine.config.exhaustive,
        "mm2": megapixels / MPX_PER_MM2,
        "tiles": len(plan.tiles),
        "points": points,
        "decode_megapixels_per_s": megapixels / decode,
        "compute_megapixels_per_s": megapixels / compute,
        "both_megapixels_per_s": megapixels / together,
        "seconds": together,
        "seconds_per_mm2": together / megapixels * MPX_PER_MM2,
        "processor_s_per_megapixel": min(watch.processor),
        "fraction_of_the_slower": max(decode, compute) / together,
        "memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def rare(probabilities: npt.NDArray[np.float32]) -> float:
    """A floor that leaves about as many peaks as a trained network: some hundred per mm2, not one in ten."""
    return float(np.clip(np.quantile(probabilities, 0.9995), 0.01, 1 - 1e-6))


def explore(gamma: float) -> list[Row]:
    """Speeds of other settings on a GPU: precisions, and numbers of tiles at once."""
    network, rows = spread_network(gamma, "none"), []
    precisions: tuple[Precision, ...] = ("auto", "fast", "float32")
    for precision in precisions:
        for batch in (1, 2, 4, 8) if precision != "float32" else (1,):
            engine = Engine([network], EngineConfig(device="cuda", precision=precision, batch=batch))
            name = f"{precision}, batch {batch}"
            rows.append(measured(name, engine.logits, tile_outputs(engine), batch, engine.device))
            gc.collect()
    return rows


def measured(
    name: str, logits: Callable[[Tensor], Tensor], outputs: int, batch: int, device: torch.device
) -> Row:
    """Best of three on tiles of `outputs` a side."""
    image = torch.from_numpy(tissue_like(RECEPTIVE_PX + OUTPUT_STRIDE_PX * (outputs - 1)))
    tiles = image[None].repeat(batch, 1, 1, 1).to(device)
    logits(tiles)
    best = min(seconds(lambda: logits(tiles), device) for _ in range(3))
    speed = batch * covered(outputs) / best
    print(f"{name:24s} {speed:10.3f} Mpx/s", flush=True)
    return {"setting": name, "megapixels_per_s": speed}


def print_rows(rows: list[Row]) -> None:
    """One line a way."""
    for row in rows:
        extra = f"  engine {row['engine_times']:.2f}x"
        if "arithmetic" in row:
            extra = f"  {row['arithmetic']}, difference at most {row['largest_difference']:.1e}"
        print(
            f"{row['network']:14s} {row['way']:38s}"
            f" {row['megapixels_per_s']:9.3f} Mpx/s {row['seconds_per_mm2']:9.3f} s/mm2"
            f" {row['processor_s_per_megapixel']:7.2f} processor s/Mpx{extra}",
            flush=True,
        )


def chosen_networks(
    arguments: argparse.Namespace,
) -> Iterator[tuple[str, nn.Sequential, Second[nn.Sequential] | None]]:
    """Each by its name, with its re-check: trained ones, or made-up ones of each kind and width."""
    for model in arguments.model:
        detector = load_detector([model]).built()
        yield Path(model).stem, detector.networks[0], detector.second  # type: ignore[misc]
    for kind in () if arguments.model else arguments.networks:
        for gamma in arguments.gamma:
            yield f"{kind} {gamma:g}", spread_network(gamma, kind), None


def main() -> None:
    """Measure and print; with --json also write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--gamma", type=float, nargs="+", default=[0.6])
    parser.add_argument("--networks", nargs="+", choices=[*KINDS], default=["none", "batch"])
    parser.add_argument("--model", nargs="+", default=[], help="trained ones instead, for one: breast")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--side", type=int, nargs="+", help="px of the slides for the end-to-end runs; 0 leaves them out"
    )
    parser.add_argument("--decoders", nargs="+", choices=WAYS, default=WAYS, help="of slides for a GPU")
    parser.add_argument("--tissue", type=Path, nargs="*", default=[], help="pictures that slides are made of")
    parser.add_argument("--smooth-um", type=float, default=0.0, help="of trained models")
    parser.add_argument(
        "--exhaustive",
        nargs="?",
        choices=("also", "only"),
        const="also",
        help="slides with the second network everywhere, beside the re-check or without it",
    )
    parser.add_argument("--compiled", action="store_true", help="also plain networks that PyTorch compiled")
    parser.add_argument("--explore", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    config = EngineConfig(device=arguments.device, precision=arguments.precision)
    results: Row = {"speed": [], "end_to_end": [], "torch": torch.__version__}
    device = choose_device(arguments.device)
    processes = TileProcesses(available_cores(), page_locked if device.type == "cuda" else None)
    decoders = {"threads": None, "processes": processes}
    sides = arguments.side or [4096 if device.type == "cpu" else 30_000]
    peaks = PeakConfig(smooth_um=arguments.smooth_um) if arguments.model else None
    with tempfile.TemporaryDirectory() as folder:
        slides = {side: Path(folder) / f"{side}.tiff" for side in sides if side}
        for side, path in slides.items():
            write_slide(path, side, arguments.tissue)
        for name, network, second in chosen_networks(arguments):
            rows, engine = compare(name, network, second, config, arguments.rounds, arguments.compiled)
            print_rows(rows)
            results["speed"] += rows
            engines = [engine]
            if second is not None and arguments.exhaustive:
                engines.append(Engine([network], replace(config, exhaustive=True), second))
            if arguments.exhaustive == "only":
                del engines[:-1]
            for path in slides.values():
                for each in engines:
                    for way in arguments.decoders if device.type == "cuda" else ("threads",):
                        row = {
                            "network": name,
                            **end_to_end(each, path, peaks, decoders[way], arguments.rounds),
                        }
                        print({key: _rounded(value) for key, value in row.items()}, flush=True)
                        results["end_to_end"].append(row)
            del engine, engines
            gc.collect()
    processes.close()
    if arguments.explore:
        results["explore"] = explore(arguments.gamma[0])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
