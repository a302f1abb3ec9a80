"""`metaphase bench`: how long slides take on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from metaphase.cli.console import Device, Json, Mpp, print_json, progress_bar, say, stdout

AREAS_MM2 = (5.0, 50.0, 200.0)


def bench(
    slide: Annotated[
        Path | None, typer.Argument(help="Measure on this slide; by default on simulated JPEG tiles.")
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            "--model", help="A .safetensors or .onnx model; several are averaged. By default the bundled one."
        ),
    ] = None,
    device: Device = None,
    mpp: Mpp = None,
    precision: Annotated[str, typer.Option(help="auto, float32 or fast (16 bits).")] = "auto",
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="The second network sees all tissue, too: slow, for checks.")
    ] = False,
    batch: Annotated[int | None, typer.Option(help="Tiles at once on a GPU.")] = None,
    areas_mm2: Annotated[
        list[float] | None, typer.Option("--area", min=0, help="Areas to give the time for, in mm2.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure decoding, detector and both together, and say how long a slide will take."""
    from metaphase.jobs.rates import measure_rates
    from metaphase.networks.detector import ReadyDetector, load_detector
    from metaphase.networks.engine import EngineConfig
    from metaphase.slides.opening import sources_with

    config = EngineConfig(
        device=device,
        precision=precision,  # type: ignore[arg-type]
        exhaustive=exhaustive,
        batch=batch,
    )
    ready = ReadyDetector(load_detector(model or ()), config, may_start_processes=True)
    source = None if slide is None else sources_with([slide], mpp)[0]
    with progress_bar() as bar:
        task = bar.add_task("starting", total=1)

        def report(what: str, done: float, total: float) -> None:
            bar.update(task, description=what, completed=done, total=total)

        rates = measure_rates(ready, source, report=report)
    areas = tuple(areas_mm2 or AREAS_MM2)
    minutes = {f"{area:g}": rates.minutes(area) for area in areas}
    if as_json:
        facts = {"model": ready.detector.name, "limit": rates.limit, "share_of_limit": rates.share_of_limit}
        print_json(asdict(rates) | facts | {"minutes": minutes})
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "mm2/s", "s/mm2"):
        table.add_column(heading, justify="right" if heading else "left")
    steps = {
        "decoding": rates.decode_mm2_per_s,
        "detector": rates.detector_mm2_per_s,
        "both together": rates.whole_mm2_per_s,
    }
    for name, rate in steps.items():
        table.add_row(name, f"{rate:.3g}", f"{1 / rate:.3g}")
    say(f"{ready.detector.name} on {rates.device}, {rates.arithmetic}")
    stdout.print(table)
    say(f"A slide waits for {rates.limit}; both together reach {rates.share_of_limit:.0%} of its speed.")
    for area, value in minutes.items():
        say(f"{area} mm2 of tissue: {_spoken(value)}")


def _spoken(minutes: float) -> str:
    return f"{60 * minutes:.0f} s" if minutes < 2 else f"{minutes:.0f} minutes"
