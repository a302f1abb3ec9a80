"""`metaphase info`: what a slide is and what to beware of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from metaphase.cli.console import print_json, stdout, warn
from metaphase.cli.options import Json, Mpp, Slide

if TYPE_CHECKING:
    from metaphase.inspection import SlideReport


def info(
    slide: Slide,
    mpp: Mpp = None,
    as_json: Json = False,
) -> None:
    """Show size, resolution and its source, scanner, stain, and warnings."""
    from metaphase.inspection import inspect_slide
    from metaphase.slides import open_slide

    with open_slide(slide, mpp=mpp) as opened:
        report = inspect_slide(opened)
    if as_json:
        print_json(report.to_dict())
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in _rows(report):
        table.add_row(f"[dim]{name}[/]", escape(value))
    stdout.print(table)
    for warning in report.warnings:
        warn(warning)


def _rows(report: SlideReport) -> list[tuple[str, str]]:
    info, resolution = report.slide.info, report.slide.info.resolution
    width, height = report.slide.width, report.slide.height
    rows = [("slide", str(info.path)), ("size", f"{width:,} x {height:,} px")]
    if resolution:
        extent = f"{width * resolution.mpp / 1000:.1f} x {height * resolution.mpp / 1000:.1f} mm"
        rows += [("resolution", f"{resolution.mpp:.4g} um/px (from {resolution.source})"), ("extent", extent)]
    else:
        rows.append(("resolution", "unknown"))
    rows += [
        ("objective", f"{info.objective_power:g}x" if info.objective_power else "not stated"),
        ("vendor", f"{info.vendor} (read by {info.backend})"),
        ("levels", ", ".join(f"{level.downsample:g}" for level in info.levels)),
        ("stain", f"{report.stain.name} (confidence {report.stain.confidence:.2f})"),
    ]
    return rows
