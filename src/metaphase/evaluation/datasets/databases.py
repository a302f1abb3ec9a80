"""Data sets kept as SlideRunner databases: CCMCT, CMC, and anybody's own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from metaphase.base.cautions import Caution
from metaphase.base.tables import TableError, named, tails, without_suffix
from metaphase.detections import read_detections
from metaphase.detections.formats.sliderunner import SLIDERUNNER, folders, listed_slides
from metaphase.evaluation.datasets.contract import Collector, Dataset, images_below


def read_ccmct(folder: Path) -> Dataset:
    """Canine cutaneous mast cell tumour: one SQLite database and the slides."""
    return _read(folder, Collector("ccmct/"), tumour="canine cutaneous mast cell tumour")


def read_cmc(folder: Path) -> Dataset:
    """Canine mammary carcinoma: one SQLite database and the slides."""
    return _read(folder, Collector("cmc/"), tumour="canine mammary carcinoma")


def read_sliderunner(folder: Path) -> Dataset:
    """Any SlideRunner database and the slides; cases are named after it and their files."""
    return _read(folder, Collector(f"{only_database(folder).stem}/"))


def _read(folder: Path, collector: Collector, **facts: str) -> Dataset:
    path = only_database(folder)
    slides = listed_slides(path)
    stems = slides["slide"].map(without_suffix)
    names = dict(zip(slides["slide"], slides["slide"] if stems.duplicated().any() else stems, strict=True))
    images = _images_by_end(beside(folder))
    doubtful = []
    for row in slides.to_dict("records"):
        slide = row["slide"]
        candidates = images.get(without_suffix(slide), [])
        chosen = _nearest(candidates, [*folders(row["directory"]), row["filename"]])
        if candidates and chosen is None:
            doubtful.append(slide)
        size = {"width": row["width"] or None, "height": row["height"] or None}
        collector.image(names[slide], chosen, **size, **facts)
    note_points(collector, path, names)
    if not images:
        text = "no slide was found beside the database"
        collector.warnings.append(Caution("no-slides", text, "give --mpp"))
    if doubtful:
        text = f"several files may be {named(doubtful)}, and none was taken"
        collector.warnings.append(Caution("doubtful-slides", text, "keep one of them beside the database"))
    return collector.dataset(path)


def note_points(collector: Collector, path: Path, names: Mapping[str, str]) -> int:
    """Note the points of a database under the names of its slides; says how many are on slides without."""
    found = read_detections(path)
    columns = (found.table[name] for name in ("slide", "x", "y", "label"))
    noted = 0
    for slide, x, y, label in zip(*columns, strict=True):
        if slide in names:
            collector.point(names[slide], x, y, label)
            noted += 1
    collector.warnings.extend(found.warnings)
    return len(found.table) - noted


def only_database(folder: Path) -> Path:
    """The database given itself, or the only one below the folder.

    The published variants (MEL, HEAEL, ODAEL) differ in their labels, so that one must be chosen.
    """
    if folder.is_file():
        return folder
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SLIDERUNNER.suffixes)
    if len(found) != 1:
        raise TableError(
            f"holds {len(found)} databases" + (f": {named(path.name for path in found)}" if found else ""),
            path=folder,
            next_step="name the database itself instead of its folder",
        )
    return found[0]


def beside(folder: Path) -> Path:
    """Where the slides of a database lie: in the folder that was named, or beside the file that was."""
    return folder.parent if folder.is_file() else folder


def _images_by_end(folder: Path) -> dict[str, list[Path]]:
    """Every image below a folder under each end of its path, without suffix."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in images_below(folder).values():
        for end in tails(without_suffix(path.resolve().as_posix())):
            found[end].append(path)
    return found


def _nearest(candidates: list[Path], wanted: list[str]) -> Path | None:
    """The image whose path ends most like the wanted one; none where two do so equally."""

    def agreement(path: Path) -> tuple[int, bool]:
        ours, theirs = path.resolve().parent.parts[::-1], wanted[-2::-1]
        equal = [one == other for one, other in zip(ours, theirs, strict=False)]
        return [*equal, False].index(False), path.name == wanted[-1]

    ranked = sorted(candidates, key=agreement, reverse=True)
    if not ranked or (len(ranked) > 1 and agreement(ranked[0]) == agreement(ranked[1])):
        return None
    return ranked[0]
