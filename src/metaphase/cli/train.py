"""`metaphase train`, `model` and `bench`: one network from patch stores; models shown, given away, timed."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metaphase.cli import console, progress
from metaphase.cli.options import Answer, Group, given, takes

if TYPE_CHECKING:
    from metaphase.detections.points import OperatingPoint
    from metaphase.networks.cards import ModelCard
    from metaphase.networks.training.loop import TrainingResult

model = Group("Look at trained models, and make them ready to share.")


def train(
    config: Path,
    output: console.Folder,
    device: console.Device = None,
) -> Answer | None:
    """Train one network from patch stores; run it again to continue after a stop.

    For several GPUs, start it with PyTorch's launcher: torchrun --nproc-per-node N -m metaphase train ...

    Parameters:
        config: TOML file; see docs/training.md.
    """
    from metaphase.networks.training.loop import train as train_network
    from metaphase.networks.training.protocol import read_config

    settings = read_config(config)
    with progress.reporting() as report:
        result = train_network(settings, output, device=device, report=report)
    return trained(result) if os.environ.get("RANK", "0") == "0" else None  # one of several processes tells


def trained(result: TrainingResult) -> Answer:
    """What a training made."""
    plain = {"model": result.model, "f1": result.best, "history": result.history}
    return Answer(plain, f"best validation F1 {result.best:.3f}, model {result.model}")


@model.command("info")
def model_info(
    file: Annotated[
        Path,
        typer.Argument(
            help="A .safetensors file, its .json card, or a bundled model by name.", metavar="MODEL"
        ),
    ],
) -> Answer:
    """Show what a model is, what it was trained on, and how good it is."""
    from metaphase.networks.cards import named_model, stored_network
    from metaphase.networks.engine.onnx import load_onnx

    path, more = named_model(file), []
    if path.suffix == ".onnx":
        _, card = load_onnx(path)
    else:
        stored = stored_network(path)
        card, more = stored.card, [("parameters", f"{stored.parameters:,}")]
    facts = [*_facts(card), *more]
    return Answer(card.model_dump(mode="json"), console.rows_table((), facts))


@model.command("package")
def model_package(
    file: Annotated[
        Path, typer.Argument(help="A .safetensors file, or a bundled model by name.", metavar="MODEL")
    ],
    output: console.Output,
    card: Path | None = None,
) -> Answer:
    """Make a trained model ready to share: small weights, and a card with data, terms and failures.

    Parameters:
        output: Model to write.
        card: TOML or JSON file with data, known_failures, intended_use ...: docs/model.md.
    """
    from metaphase.networks.additions import read_additions
    from metaphase.networks.checkpoints import package_model

    additions = None if card is None else read_additions(card)
    written = package_model(file, output, additions=additions)
    return _written(written, output.with_suffix(".safetensors"))


@model.command("export")
def model_export(
    file: Annotated[
        Path, typer.Argument(help="A .safetensors detector, or a bundled model by name.", metavar="MODEL")
    ],
    output: console.Output,
) -> Answer:
    """Write a detector as ONNX graphs, uint8 pixels in, probabilities out, with its card beside it.

    `metaphase detect --model FILE.onnx` runs it by ONNX Runtime, without torch; FILE.detections.onnx gives
    the detections of an image to any program: docs/inference.md.

    Parameters:
        output: The .onnx file to write.
    """
    from metaphase.networks.joining import export_detector

    card, joined = export_detector(file, output)
    return _written(card, output.with_suffix(".onnx"), *([] if joined is None else [joined]))


def _written(card: ModelCard, path: Path, *others: Path) -> Answer:
    line = f"{card.name}: {path}, {path.stat().st_size / 1e6:.1f} MB"
    return Answer(card.model_dump(mode="json"), line, *others)


def _point(point: OperatingPoint) -> str:
    """An operating point in a line: its numbers, how good they were, where they were chosen."""
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in point.numbers.items())
    measures = (
        (point.value, point.metric + " {:.3f}"),
        (point.kappa, "kappa {:.3f}"),
        (point.false_per_mm2, "{:.1f} false per mm2"),
        (point.recall, "recall {:.2f}"),
    )
    reached = [text.format(value) for value, text in measures if value is not None]
    sources = ", ".join(filter(None, [*reached, point.source, *point.laboratories]))
    return f"{numbers} ({sources})" if sources else numbers


def _facts(card: ModelCard) -> list[tuple[str, str]]:
    from metaphase.networks.cards import warnings_about

    facts = [
        ("name", card.name),
        ("network", f"{card.family}, gamma {card.gamma:g}, normalisation {card.normalisation}"),
        ("classes", ", ".join(card.classes)),
        ("input", f"{card.patch_px} px at {card.mpp:g} um/px"),
        ("use", card.intended_use),
    ]
    facts += [(f"point {name}", _point(point)) for name, point in card.thresholds.items()]
    facts += [("trained on", f"{data.name} ({data.terms})") for data in card.data]
    facts += [
        (f"validation {key}", f"{value:.3f}")
        for key, value in card.known_metrics.validation.items()
        if key != "threshold" and value is not None
    ]
    facts += [("known failure", failure) for failure in card.known_failures]
    facts += [("beware", str(warning)) for warning in warnings_about(card)]
    return [*facts, ("made by", ", ".join(" ".join(pair) for pair in card.versions.items()))]


AREAS_MM2 = (5.0, 50.0, 200.0)


@takes("networks.engine.settings.EngineConfig", "device")
def bench(
    slide: Annotated[
        Path | None, typer.Argument(help="Measure on this slide; by default on simulated JPEG tiles.")
    ] = None,
    model: console.Models = None,
    mpp: console.Mpp = None,
) -> Answer:
    """Measure decoding, detector and both together, and say how long a slide will take."""
    from metaphase.lab.rates import measure_rates
    from metaphase.networks.detector import ReadyDetector, load_detector
    from metaphase.networks.engine.settings import EngineConfig
    from metaphase.slides.opening import sources_with

    config = given(EngineConfig)
    ready = ReadyDetector(load_detector(model or ()), config, may_start_processes=True)
    source = None if slide is None else sources_with([slide], mpp)[0]
    with progress.reporting() as report:
        rates = measure_rates(ready, source, report=report)
    minutes = {f"{area:g}": rates.minutes(area) for area in AREAS_MM2}
    facts = {"model": ready.detector.name, "limit": rates.limit, "share_of_limit": rates.share_of_limit}
    steps = {
        "decoding": rates.decode_mm2_per_s,
        "detector": rates.detector_mm2_per_s,
        "both together": rates.whole_mm2_per_s,
    }
    rows = [(name, f"{rate:.3g}", f"{1 / rate:.3g}") for name, rate in steps.items()]
    return Answer(
        asdict(rates) | facts | {"minutes": minutes},
        f"{ready.detector.name} on {rates.device}, {rates.arithmetic}",
        console.rows_table(("", "mm2/s", "s/mm2"), rows),
        f"A slide is limited by {rates.limit}; both together reach {rates.share_of_limit:.0%} of its speed.",
        *(
            f"{area} mm2 of tissue: " + (f"{60 * value:.0f} s" if value < 2 else f"{value:.0f} minutes")
            for area, value in minutes.items()
        ),
    )
