"""What is sound to read and cannot be right: doubled columns, edited summaries, oblong pixels, two pages."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import any_of
from tests.hostile.inputs.site import profile
from tests.hostile.inputs.sound import ASSETS, SEARCH, picture
from tests.hostile.trials import Attempt, must_refuse

SHARE = 6
FIELD = Path(__file__).parents[3] / "src" / "metaphase" / "fields" / "brecahad-10028.jpg"
FIELD_MPP = 0.23


def make(random: Random, folder: Path) -> Attempt:
    kinds = (
        _table,
        _table,
        _boxes,
        _semicolons,
        _edited,
        _edited,
        _pages,
        _oblong,
        _pattern,
        _many,
        _scale,
        _grey,
        _site,
    )
    return any_of(random, *kinds)(random, folder)  # type: ignore[no-any-return]


def _table(random: Random, folder: Path) -> Attempt:
    """A column twice, numbers as Python writes them, and others that are none."""
    number = any_of(random, "1_000", "1__0", "0x10", "1e", "½", "٣", "1 000", "--5", "+-5", "1.2.3", "1,5")
    columns, row = any_of(
        random,
        ("x,y,x,y,probability", "1,2,3,4,0.9"),
        ("x,y,probability,probability", "1,2,0.9,0.1"),
        ("x,X,y,probability", "1,5,2,0.9"),
        ("x,y,probability", f'"{number}",2,0.9'),
        ("x,y,probability", f'1,2,"{number}"'),
    )
    (folder / "points.csv").write_text(f"{columns}\n{row}\n", encoding="utf-8")
    score = ("score", "points.csv", "--mpp", "0.25", "--area", "3")
    convert = ("convert", "points.csv", "-o", "out.geojson", "--mpp", "0.25")
    return Attempt(any_of(random, score, convert), right_or_refused if "x,X" in columns else must_refuse)


def right_or_refused(_printed: str) -> str:
    return ""


def _boxes(random: Random, folder: Path) -> Attempt:
    """Boxes of negative size."""
    box = any_of(random, [10, 20, -50, 50], [10, 20, 50, -50], [10, 20, -5, -5])
    tree = {
        "images": [{"id": 1, "file_name": "s.tif"}],
        "categories": [{"id": 1, "name": "mitotic figure"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": box, "score": 0.9}],
    }
    (folder / "a.json").write_text(json.dumps(tree))
    return Attempt(("convert", "a.json", "-o", "out.csv", "--mpp", "0.25"), must_refuse)


def _semicolons(random: Random, folder: Path) -> Attempt:
    """Tables of desks where commas are in numbers."""
    rows = any_of(random, 1, 3, 40)
    lines = ["x;y;probability", *(f"{9 * row},5;{row},25;0,9" for row in range(rows))]
    (folder / "points.csv").write_text("\n".join(lines) + "\n")

    def all_there(_printed: str) -> str:
        out = Path("out.csv").read_text().splitlines()
        return "" if len(out) == rows + 1 and "9.5" in "".join([*out, "9.5" * (rows == 1)]) else f"{out[:3]}"

    return Attempt(("convert", "points.csv", "-o", "out.csv", "--mpp", "0.25"), all_there)


def _edited(random: Random, folder: Path) -> Attempt:
    """Numbers of a result changed by hand to others that could be."""
    shutil.copytree(ASSETS / any_of(random, "out", "reviewed"), folder / "out")
    path = folder / "out" / "slide" / any_of(random, "summary.json", "summary.json", "count.json")
    stored = json.loads(path.read_text())
    key = any_of(random, "count", "likely", "mpp", "area_mm2", "detections", "counted", "grade")
    stored[key] = {"figures": 9817, "interval": [9813, 9829]} if key == "likely" else 9817
    path.write_text(json.dumps(stored))
    table = ("score", "out", "-o", "counts.csv")
    command = any_of(
        random, SEARCH, ("review", "apply", "out"), ("score", "out"), ("score", "out", "--json"), table
    )

    def not_believed(printed: str) -> str:
        files = map(Path, ("counts.csv", "out/counts.csv", "out/index.html"))
        shown = [file.read_text(errors="replace") for file in files if file.is_file()]
        return next(
            (f"{key} is believed" for text in (printed, *shown) if "9817" in text or "9,817" in text), ""
        )

    return Attempt(command, not_believed)


def _pages(random: Random, folder: Path) -> Attempt:
    """A TIFF of several pages of equal size."""
    import tifffile

    with tifffile.TiffWriter(folder / "a.tif") as tiff:
        for _ in range(any_of(random, 2, 3)):
            tiff.write(
                picture(), photometric="rgb", resolution=(40_000, 40_000), resolutionunit=3, metadata=None
            )

    def told(printed: str) -> str:
        return "" if any(word in printed.lower() for word in ("page", "images")) else "read as its first"

    return Attempt(any_of(random, ("info", "a.tif"), (*SEARCH[:1], "a.tif", *SEARCH[2:])), told)


def _oblong(random: Random, folder: Path) -> Attempt:
    import tifffile

    across, down = random.uniform(0.2, 0.3), random.uniform(0.3, 0.6)
    scale = {"resolution": (1e4 / across, 1e4 / down), "resolutionunit": 3}
    tifffile.imwrite(folder / "a.tif", picture(), photometric="rgb", metadata=None, **scale)

    def geometric(printed: str) -> str:
        told = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
        return "" if math.isclose(told["mpp"], math.sqrt(across * down), rel_tol=1e-3) else f"{told['mpp']}"

    return Attempt(("info", "a.tif", "--json"), geometric)


def _pattern(random: Random, folder: Path) -> Attempt:
    """What a shell leaves as it is where it matches nothing."""
    (folder / "slides").mkdir()
    given = any_of(random, "*.tif", "slides/*.tif", "slides", "slides/?.svs", "[a-z].tif", "**")

    def always(printed: str) -> str:
        return "called an overwriting" if "overwrit" in printed else ""

    return Attempt(("detect", given, "-o", "out", *SEARCH[4:]), must_refuse, always)


def _many(random: Random, folder: Path) -> Attempt:
    """Slides that all have the same fault: it is told once."""
    import tifffile

    for number in range(12):
        tifffile.imwrite(folder / f"s{number}.tif", picture(64, 64), photometric="rgb", metadata=None)
    slides = [f"s{number}.tif" for number in range(12)]
    commands = (("info", *slides), ("detect", *slides, "-o", "out", *SEARCH[4:]))

    def once(printed: str) -> str:
        times = printed.count("resolution")
        return f"told {times} times" if times > 6 else ""

    return Attempt(any_of(random, *commands), always=once)


def _scale(random: Random, folder: Path) -> Attempt:
    """A real field at a resolution that makes its nuclei far too large or small."""
    factor = any_of(random, 0.3, 0.4, 2.5, 3.5)
    (folder / "field.jpg").write_bytes(FIELD.read_bytes())

    def told(printed: str) -> str:
        return "" if "would fit" in printed else f"{factor} times its mpp unnoticed"

    return Attempt(("info", "field.jpg", "--mpp", f"{FIELD_MPP * factor:.3f}"), told)


def _grey(random: Random, folder: Path) -> Attempt:
    """A picture without colour."""
    from PIL import Image

    with Image.open(FIELD) as field:
        field.convert("L").convert(any_of(random, "L", "RGB")).save(folder / "a.png")

    def told(printed: str) -> str:
        return "" if any(word in printed.lower() for word in ("grey", "gray", "colour")) else "not told"

    return Attempt(("info", "a.png", "--mpp", "0.23"), told)


def _site(random: Random, folder: Path) -> Attempt:
    """A whole cohort with the profile of a laboratory, whose answers may be all alike."""
    shutil.copytree(ASSETS / "out", folder / "out")
    sure = any_of(random, [20, 15], [20, 0], [0, 0], [20, 20])
    (folder / "site.json").write_text(json.dumps(profile() | {"sure": sure}))
    given = any_of(random, "out", "out/slide", "out/candidates.parquet")
    return Attempt(("score", given, "--site", "site.json", *any_of(random, (), ("--json",))))
