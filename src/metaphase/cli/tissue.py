"""`metaphase tissue`: where the tissue is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.cli.console import for_each_slide, print_json, stdout, warn
from metaphase.cli.options import Folder, Json, Mpp, Slides


def tissue(slides: Slides, output: Folder, mpp: Mpp = None, as_json: Json = False) -> None:
    """Outline the tissue of slides: mask (PNG), polygons for QuPath (GeoJSON), picture, area in mm2."""
    from metaphase.slides import open_slide
    from metaphase.tissue import find_tissue, save_overlay, save_tissue

    def outline(path: Path) -> dict[str, Any]:
        with open_slide(path, mpp=mpp) as slide:
            mask = find_tissue(slide)
            files = [*save_tissue(mask, output, path.stem), save_overlay(slide, mask, output, path.stem)]
            whole_mm2 = slide.bounds.area * (slide.mpp / 1000) ** 2
        for warning in mask.warnings:
            warn(f"{path}: {warning}")
        return {
            "slide": str(path),
            "area_mm2": mask.area_mm2,
            "fraction": mask.area_mm2 / whole_mm2,
            "files": [str(file) for file in files],
        }

    results, code = for_each_slide(slides, outline, output)
    if as_json:
        print_json(results)
    elif results:
        stdout.print(_table(results))
    raise typer.Exit(code)


def _table(results: list[dict[str, Any]]) -> Table:
    table = Table("slide", "tissue mm2", "of the scan", "picture", box=None)
    for row in results:
        area, fraction = f"{row['area_mm2']:.2f}", f"{row['fraction']:.0%}"
        table.add_row(escape(Path(row["slide"]).name), area, fraction, escape(row["files"][-1]))
    return table
