"""Names, tables, archives and links that lead out of the output folder, or onto files of our own in it."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import any_of
from tests.hostile.inputs.sound import ASSETS, COLUMNS, DRAW, POINTS, SEARCH, quoted
from tests.hostile.trials import Attempt

SHARE = 8
NAMES = (
    "..", "...", ".", ". ", "....", "..\\..\\x", "index.html", "index.js", "counts.csv", "detections.parquet",
    "candidates.parquet", "cohort.json", "errors.log", "removed", ".batch", "stages", "summary.json",
    "review.sqlite", "a:b", "C:x", "con", "NUL.x", "x.", "x ", "a\x01b", "a\rb", "\u202e..", "․․", "‥",
    "a／b", "ﬀ", "e\u0301", "é", "n" * 200, "é" * 100, "%2E%2E", "%2F", "~", "-o", "--output", "*", "?",
    "slide", "Sound", "\ufeff..", "..\u200b", "tiles.journal", "=index.lease",
)  # fmt: skip
PATHS = (
    "../x", "../../x", "/tmp/metaphase-x", "a/../../b", "..\\x", "/", "a/b", "./..", "C:\\x", "out/../../y",
)  # fmt: skip
LINKED = (
    "errors.log", "index.html", "index.js", "counts.csv", "cohort.json", "detections.parquet", ".batch",
    "removed", "slide", "slide/stages", "slide/stages/search.json", "slide/report.html", "slide/count.json",
    "slide/summary.json", "slide/settings.json", "slide/search.parquet", "slide/review.sqlite",
    "slide/tiles.journal", "slide/reviewed.parquet", "slide/detections.geojson", "slide/slide.tissue.png",
    "slide/review.sqlite-wal", "slide/site.json",
)  # fmt: skip
WHOLE = ("--tissue", "whole", "--model", str(ASSETS / "tiny.safetensors"))


def make(random: Random, folder: Path) -> Attempt:
    kinds = (_slides, _slides, _manifest, _table, _linked, _linked, _linked, _packed)
    return any_of(random, *kinds)(random, folder)  # type: ignore[no-any-return]


def _slides(random: Random, folder: Path) -> Attempt:
    """Slides of odd names beside a sound one, which must have its result."""
    data = (ASSETS / "slide.tif").read_bytes()
    (folder / "slides").mkdir()
    for name in (*random.sample(NAMES, any_of(random, 1, 2)), "sound"):
        (folder / "slides" / (name + any_of(random, ".tif", ".tif", ".TIFF"))).write_bytes(data)
    kinds = any_of(random, (), ("--format", "csv"), ("--format", "asap", "--format", "qupath"), ("--prune",))
    slides = [os.path.join("slides", one.name) for one in (folder / "slides").iterdir()]  # noqa: PTH118
    given = any_of(random, ["slides"], slides)
    if random.random() < 0.2:
        return Attempt(("tissue", *given, "-o", "out"))

    def went_on(_printed: str) -> str:
        return "" if Path("out/sound/report.html").is_file() else "the other slide was lost"

    return Attempt(("detect", *given, "-o", "out", *WHOLE, *kinds), went_on)


def _manifest(random: Random, folder: Path) -> Attempt:
    slide = str(ASSETS / "slide.tif")
    rows = [("case", "he", "tissue"), ("sound", slide, "whole")]
    rows += [(name, slide, "whole") for name in random.sample((*NAMES, *PATHS), any_of(random, 1, 3))]
    text = "\n".join(",".join(map(quoted, row)) for row in rows) + "\n"
    (folder / "cohort.csv").write_text(text, encoding="utf-8", newline="")
    return Attempt(("detect", "--manifest", "cohort.csv", "-o", "out", *WHOLE[2:]))


def _table(random: Random, folder: Path) -> Attempt:
    rows = [COLUMNS, *((any_of(random, *NAMES, *PATHS), *row[1:]) for row in POINTS)]
    text = "\n".join(",".join(quoted(str(cell)) for cell in row) for row in rows) + "\n"
    (folder / "points.csv").write_text(text, encoding="utf-8", newline="")
    form = any_of(random, "qupath", "asap", "grand-challenge", "csv", "parquet", "sliderunner", "coco")
    return Attempt(("convert", "points.csv", "-o", "out", "--to", form, "--mpp", "0.25"))


def _linked(random: Random, folder: Path) -> Attempt:
    """Results in which a file or folder is a link to what is not theirs."""
    kept = folder / "elsewhere"
    kept.mkdir()
    (kept / "file").write_bytes(b"not yours\n")
    (kept / "folder").mkdir()
    out = folder / "out"
    shutil.copytree(ASSETS / any_of(random, "out", "reviewed"), out)
    for name in random.sample(LINKED, any_of(random, 1, 1, 2)):
        path = out / name
        if not path.parent.is_dir() or path.parent.is_symlink():
            continue
        target, moved = kept / any_of(random, "file", "folder", "absent"), kept / path.name
        if os.path.lexists(path) and random.random() < 0.4:
            target = path.rename(moved)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.symlink_to(any_of(random, target, os.path.relpath(target, path.parent)))
    answers = json.loads((ASSETS / "out" / "slide" / "detections.geojson").read_text())
    answers["features"] = answers["features"][1:]
    (folder / "edited.geojson").write_text(json.dumps(answers))
    more = any_of(random, (), ("--threshold", "0.3"), ("--probability-map",), ("--format", "csv"))
    again = (*SEARCH, *more)
    missing = ("detect", "absent.tif", *again[1:])
    other = ("detect", str(ASSETS / "series"), *again[2:])
    edited = ("review", "import", "out", "--from", "edited.geojson", "--observer", "Berta")
    taken = ("review", "withdraw", "out", "--observer", "Anna")
    apply = ("review", "apply", "out")
    return Attempt(any_of(random, again, again, missing, (*other, "--prune"), apply, edited, taken, DRAW))


def _packed(random: Random, folder: Path) -> Attempt:
    """An archive whose member leads out of it."""
    point = {"type": "Point", "coordinates": [1, 2]}
    with zipfile.ZipFile(folder / "points.zip", "w") as archive:
        archive.writestr(any_of(random, *PATHS) + ".geojson", json.dumps(point))
    return Attempt(("convert", "points.zip", "-o", "out", "--to", any_of(random, "csv", "qupath", "asap")))
