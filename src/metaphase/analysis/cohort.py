"""The H&E slides of a cohort, by path or manifest, with names, resolution and tissue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from metaphase.base.errors import MetaphaseError, MissingResolutionError, UsageError
from metaphase.base.foreign import folder_key, folder_name
from metaphase.base.parallel import ordered_map
from metaphase.base.remote import location
from metaphase.base.tables import case_folder, flat_case, named, natural, read_manifest, stated_number
from metaphase.counting.region_files import read_regions, regions_for
from metaphase.counting.regions import Region
from metaphase.images.tissue.finding import TissueSource
from metaphase.slides.opening import SlideSource, is_called_slide, sources_with

AT_ONCE = 8
"""Slides that are looked at together before a run: storage far away answers slowly."""


@dataclass(frozen=True)
class CohortSlide:
    """An H&E slide with its name, and where its tissue comes from."""

    name: str
    """What its results are called: a manifest's case, the stem of the file, the name of a DICOM folder."""
    slide: SlideSource
    tissue: TissueSource = field(default_factory=TissueSource)
    regions: tuple[Region, ...] | None = None
    """Regions that a file gives for it."""


def slides_in(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Slides, of folders those directly inside; and what else lies there that is none."""
    found, others = list[Path](), list[Path]()
    for path in paths:
        if not path.is_dir() or is_called_slide(path):
            found.append(path)
            continue
        inside = sorted(path.iterdir(), key=lambda child: natural(child.name))
        inside = [child for child in inside if not child.name.startswith(".")]
        slides = [child for child in inside if is_called_slide(child) and ".tissue." not in child.name]
        if not slides:
            raise UsageError("no slide in the folder", path=path, next_step="give the folder with the slides")
        parts = {slide.with_suffix("") for slide in slides if slide.suffix.lower() == ".mrxs"}
        others += [child for child in inside if child not in slides and child not in parts]
        found += slides
    return found, others


def named_slides(
    slides: Iterable[Path | SlideSource], *, mpp: float | None = None, tissue: str = ""
) -> dict[str, CohortSlide]:
    """Slides by their files' stems; those of one name have the names of their folders before it.

    `mpp` is that of paths to slides that state none.
    """
    found, keys = dict[str, CohortSlide](), dict[str, Path]()
    slides, source = list(slides), TissueSource.stated(tissue)
    if source.mask is not None and len(slides) > 1:
        raise UsageError(
            f"one tissue mask is given for {len(slides)} slides",
            path=source.mask,
            next_step="name each slide's mask in the column tissue of a manifest, or run them one by one",
        )
    stated = iter(sources_with([slide for slide in slides if not isinstance(slide, SlideSource)], mpp))
    given = [slide if isinstance(slide, SlideSource) else next(stated) for slide in slides]
    for slide, name in zip(given, _distinct_names([slide.path for slide in given]), strict=True):
        if (other := keys.setdefault(folder_key(name), slide.path)) is not slide.path:
            raise UsageError(
                f"its outputs would overwrite those of {other}",
                path=slide.path,
                next_step="name each slide once, rename one, or name them in a manifest",
            )
        found[name] = CohortSlide(name, slide, source)
    return found


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """The stems; where several are the same, with as many folders before them as it takes.

    >>> _distinct_names([Path("a/he.tif"), Path("b/he.tif"), Path("c.tif")])
    ['a-he', 'b-he', 'c']
    """
    ways = [(*path.parts[:-1], path.resolve().name if path.is_dir() else path.stem) for path in paths]
    names = [folder_name(way[-1]) for way in ways]
    for folders in range(1, max(map(len, ways), default=0)):
        often = Counter(map(folder_key, names))
        names = [
            folder_name("-".join(part.strip("/\\:.") for part in way[-folders - 1 :]).strip("-"))
            if often[folder_key(name)] > 1
            else name
            for way, name in zip(ways, names, strict=True)
        ]
    return names


def without_resolution(slides: Iterable[CohortSlide]) -> dict[str, MissingResolutionError]:
    """What to tell of slides that state no resolution, by name, before a model is loaded for them.

    Slides that cannot be opened fail when their turn comes.
    """
    unstated, slides = dict[str, MissingResolutionError](), list(slides)
    stated = ordered_map(lambda item: item.slide.effective_mpp, slides, threads=AT_ONCE, ahead=4 * AT_ONCE)
    for item, mpp in zip(slides, stated, strict=True):
        if mpp is not None:
            continue
        try:
            with item.slide.open() as slide:
                _ = slide.mpp
        except MissingResolutionError as error:
            unstated[item.name] = error
        except MetaphaseError:
            continue
    return unstated


def cohort_slides(
    manifest: str | Path, split: str = "", *, mpp: float | None = None, tissue: str = ""
) -> list[CohortSlide]:
    """The H&E slides of a manifest, with what it says of their resolution and tissue; else what is given."""
    table = read_manifest(manifest)
    table = table[(table["he"] != "") & ((table["split"] == split) | (not split))]
    found = [cohort_slide(row, tissue=tissue) for row in table.to_dict("records")]
    often = Counter(slide.name for slide in found)
    if alike := [name for name in often if often[name] > 1]:
        advice = "name its cases differently: / becomes - in the names of folders"
        raise UsageError(f"two cases would write to {named(alike)}", path=manifest, next_step=advice)
    silent = iter(sources_with([slide.slide.path for slide in found if slide.slide.mpp is None], mpp))
    return [replace(slide, slide=next(silent)) if slide.slide.mpp is None else slide for slide in found]


def cohort_slide(row: Mapping[Any, Any], *, tissue: str = "") -> CohortSlide:
    """The H&E slide of a manifest's row."""
    return CohortSlide(
        case_folder("", flat_case(str(row["case"]))).name,
        SlideSource(Path(str(row["he"])), stated_number(row, "mpp")),
        TissueSource.stated(str(row.get("tissue") or tissue)),
        read_regions(regions) if (regions := str(row.get("regions") or "")) else None,
    )


def with_regions(slides: Sequence[CohortSlide], path: Path) -> list[CohortSlide]:
    """Slides with the regions of a file, or of a folder with files named after them."""
    if len(slides) > 1 and not path.is_dir():
        raise UsageError(
            f"one file of regions is given for {len(slides)} slides",
            path=path,
            next_step="give a folder with a file named after each slide, or the column regions of a manifest",
        )
    found = [replace(slide, regions=regions_for(path, slide.name)) for slide in slides]
    if slides and not any(slide.regions for slide in found):
        raise UsageError(
            f"holds no regions of {named(slide.name for slide in slides)}",
            path=path,
            next_step="name its files after the slides: NAME.geojson or NAME.xml",
        )
    return found


def asked_by(arguments: Iterable[Path], slides: Iterable[CohortSlide]) -> dict[str, list[str]]:
    """The names of slides by what asked for them: a file, or the folder in which it lies."""
    names: dict[str, list[str]] = {asker(path): [] for path in arguments}
    for slide in slides:
        own, folder = asker(slide.slide.path), asker(slide.slide.path.parent)
        names.setdefault(own if own in names or folder not in names else folder, []).append(slide.name)
    return names


def asker(path: Path, split: str = "") -> str:
    """What asks for slides, by a name that stays: a file, a folder, a manifest with its split."""
    return " ".join(filter(None, (str(location(path).absolute()), split)))
