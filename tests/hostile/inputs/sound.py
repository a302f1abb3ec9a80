"""What hostile inputs are made of: a sound slide, detector and table, and the commands that read them."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import zlib
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import any_of
from tests.hostile.trials import Attempt, Judge, right

ASSETS = Path("..") / ".." / "assets"
"""As a child sees them from its folder."""
SIDE = 192
ZEROS = (10, 10**6, 10**8, 10**9)
"""Packed zeros among the assets, by their number."""
SEARCH = (
    "detect",
    str(ASSETS / "slide.tif"),
    "-o",
    "out",
    "--tissue",
    "whole",
    "--set",
    "floor=0.1",
    "--model",
    str(ASSETS / "tiny.safetensors"),
)
DRAW = ("calibrate", "draw", "out", "-o", "calibration", "--answers", "40")


def write_assets(folder: Path) -> None:
    """A small slide, a tiny detector and tables, made once in a child."""
    folder.mkdir(parents=True)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _write_assets(folder)
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("the assets could not be made")


def _write_assets(folder: Path) -> None:
    import torch

    from metaphase.cli.main import main
    from metaphase.networks.architectures import build_network
    from metaphase.networks.cards import ModelCard, NetworkSpec
    from metaphase.networks.checkpoints import save_model

    torch.manual_seed(0)
    spec = NetworkSpec("detector", 0.05)
    network = build_network(spec)
    point = {"delta": 0.5, "suppress_um": 7.5, "theta1": 6, "theta2": 20}
    card = ModelCard.model_validate(
        {
            "name": "tiny",
            "family": "detector",
            "gamma": 0.05,
            "mpp": 0.25,
            "patch_px": 100,
            "classes": ("other", "mitosis"),
            "thresholds": {"mitoses": point, "count": point | {"prior": {}}},
            "optical_density": (0.2, 0.3, 0.2),
            "data": [{"name": "none", "terms": "none"}],
        }
    )
    save_model(folder / "tiny.safetensors", network, card)
    (folder / "slide.tif").write_bytes(tiff_bytes(Random(0), "none"))
    for write in (_write_dicom, _write_graph):
        with contextlib.suppress(ModuleNotFoundError):  # their families leave out what needs them
            write(folder)
    for size in ZEROS:
        packer = zlib.compressobj()
        packed = [packer.compress(bytes(min(size, 10**6))) for _ in range(max(1, size // 10**6))]
        (folder / f"zeros{size}.zlib").write_bytes(b"".join([*packed, packer.flush()]))
    made = folder.parent / "made" / "in"  # as deep as the folders of the trials
    made.mkdir(parents=True)
    os.chdir(made)
    said = io.StringIO()
    edited = ("--from", "out/slide/detections.geojson", "--observer", "Anna")
    for command in (SEARCH, DRAW, ("review", "import", "reviewed", *edited)):
        sys.argv = ["metaphase", *command]
        with (
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
            contextlib.suppress(SystemExit),
        ):
            main()
        if command == SEARCH:
            shutil.copytree("out", "reviewed")
    for name in ("out", "calibration", "reviewed"):
        Path(name).rename(folder / name)


def _write_dicom(folder: Path) -> None:
    """A DICOM slide of one file and one of several, and its annotations."""
    import pandas as pd

    from metaphase.detections.files import write_detections
    from metaphase.detections.table import DetectionSet
    from tests.slides.dicoms import write_plain, write_series

    write_plain(folder / "plain" / "a.dcm", picture(), left_out=(1,))
    series = write_series(folder / "series", picture())
    points = pd.DataFrame([("s1", 10.5, 20.25, 0.9, "mitosis")], columns=list(COLUMNS))
    write_detections(DetectionSet(points, ("s1",)), folder / "ann.dcm", sources={"s1": series})


def _write_graph(folder: Path) -> None:
    import onnx  # noqa: F401 -- what the families change it with

    from metaphase.networks.exporting import export_model

    export_model(folder / "tiny.safetensors", folder / "graph.onnx")


def picture(width: int = SIDE, height: int = SIDE, samples: int = 3) -> Any:
    """Something pink with dark spots."""
    import numpy as np

    y, x = np.mgrid[:height, :width]
    spots = (np.sin(x / 9) * np.cos(y / 7) > 0.6)[..., None]
    pixels = np.where(spots, (90, 40, 120), (225, 170, 205)).astype(np.uint8)
    pixels[: height // 8] = 245
    if samples == 1:
        return pixels[..., 0]
    return pixels if samples == 3 else np.dstack([pixels, np.full((height, width), 255, np.uint8)])


def tiff_bytes(random: Random, compression: str | None = None, **options: Any) -> bytes:
    """A sound TIFF, tiled or in strips, of two levels or one."""
    import tifffile

    samples = any_of(random, 3, 3, 3, 1, 4) if compression is None else 3
    kind = compression or any_of(random, "none", "jpeg", "zlib", "lzw", "packbits", "zstd")
    kind = "zlib" if kind == "jpeg" and samples == 4 else kind
    image = picture(samples=samples)
    keywords: dict[str, Any] = {
        "photometric": "minisblack" if samples == 1 else "rgb",
        "metadata": None,
        "compression": None if kind == "none" else kind,
        "resolution": (40000, 40000),
        "resolutionunit": 3,
    } | options
    if samples == 4:
        keywords["extrasamples"] = any_of(random, ["assocalpha"], ["unassalpha"], [0])
    if compression or random.random() < 0.8:
        keywords["tile"] = (64, 64)
    else:
        keywords["rowsperstrip"] = any_of(random, 1, 16, SIDE)
    out = io.BytesIO()
    with tifffile.TiffWriter(out, bigtiff=random.random() < 0.2, ome=False) as tiff:
        tiff.write(image, **keywords)
        if random.random() < 0.6:
            tiff.write(image[::2, ::2].copy(), **{**keywords, "resolution": None, "subfiletype": 1})
    return out.getvalue()


SLIDE_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("info", "{}"),
    ("info", "{}", "--json"),
    ("info", "{}", "--mpp", "0.25"),
    ("tissue", "{}", "-o", "out", "--mpp", "0.25"),
    ("tissue", "{}", "-o", "out"),
    ("detect", "{}", "-o", "out", "--tissue", "whole", "--mpp", "0.25", "--model", "{model}"),
)
"""The last one searches the slide."""


def on_slide(random: Random, file: str | Path, judge: Judge = right, *, search: bool = True) -> Attempt:
    """One of the commands that open a slide; large ones that are sound take long to search."""
    command = any_of(random, *(SLIDE_COMMANDS if search else SLIDE_COMMANDS[:-1]))
    model = str(ASSETS / "tiny.safetensors")
    return Attempt([part.replace("{model}", model) if part != "{}" else str(file) for part in command], judge)


POINTS = [
    ("s1", 100.5, 200.25, 0.9, "mitosis"),
    ("s1", 300.0, 20.0, 0.4, "lookalike"),
    ("s2", 5.0, 6.0, 0.95, "mitosis"),
]
COLUMNS = ("slide", "x", "y", "probability", "label")


def on_table(random: Random, file: str, judge: Judge = right) -> Attempt:
    """One of the commands that read detections."""
    commands: tuple[tuple[str, ...], ...] = (
        ("convert", file, "-o", "out.csv", "--mpp", "0.25"),
        ("convert", file, "-o", "out.parquet", "--mpp", "0.25"),
        (
            "convert",
            file,
            "-o",
            "out",
            "--to",
            any_of(random, "qupath", "asap", "grand-challenge"),
            "--mpp",
            "0.25",
        ),
        ("convert", file, "-o", "out.sqlite", "--mpp", "0.25"),
        ("score", file, "--mpp", "0.25", "--area", "5"),
        ("score", file, "--mpp", "0.25", "-o", "out.csv"),
        (
            "evaluate",
            "mitoses",
            "--truth",
            file,
            "--predictions",
            file,
            "--mpp",
            "0.25",
            "--set",
            "samples=0",
        ),
    )
    return Attempt(any_of(random, *commands), judge)


def quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if any(sign in cell for sign in ',"\n\r') else cell
