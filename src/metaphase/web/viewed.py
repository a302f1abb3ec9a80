"""What is viewed: slides, what was found on them, layers over them, and the tiles of all of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path

import cv2
import numpy as np
from fastapi import HTTPException

from metaphase.analysis.record import PROBABILITIES, SlideResult, found_from, load_result, source_of
from metaphase.analysis.review import count_with, review_order, scope_of
from metaphase.analysis.slide import answers_key
from metaphase.base.arrays import RGB, Box
from metaphase.base.errors import MetaphaseError, SlideError, UsageError
from metaphase.base.foreign import parsing, read_json
from metaphase.base.parallel import KeptBytes
from metaphase.counting.clinical import SlideCount
from metaphase.counting.regions import Scope
from metaphase.detections.files import result_folders
from metaphase.detections.table import SUMMARY
from metaphase.labels.observers.positions import ANSWERS, Mark, PositionLog, Reviewed
from metaphase.labels.observers.store import Given
from metaphase.labels.registration.outputs import SUMMARY as REGISTERED
from metaphase.labels.registration.outputs import TRANSFORM
from metaphase.labels.registration.transform import Transform, load_transform
from metaphase.reports.pages import encode_jpeg, encode_png
from metaphase.reports.slide.pictures import heat_colours
from metaphase.slides.contract import Slide
from metaphase.slides.opening import OPEN_SLIDES, SlidePool, SlideSource, sources_with
from metaphase.slides.tiles import cut_square

# ---- what is viewed ----

KEY_BYTES = 8


class ViewedSlide:
    """A slide with what was found on it, if anything was sought. Safe to use from several threads."""

    def __init__(
        self,
        source: SlideSource | None,
        result: SlideResult | None = None,
        pair: RegisteredPair | None = None,
        problem: str = "",
    ) -> None:
        self.source = source
        """What opens it; None where it cannot be found, as `problem` says."""
        self.problem = problem
        self._result = result
        self._loaded = "" if result is None else record_stamp(result.folder)
        self._order: tuple[SlideResult, list[int]] | None = None
        record = None if result is None else result.record
        if source is None:
            assert record is not None
            self.width, self.height, self.mpp = record.width, record.height, record.mpp
        else:
            with source.open() as slide:
                self.width, self.height, self.mpp = slide.width, slide.height, slide.mpp
        path = source.path if result is None and source is not None else self.found.folder
        self.name = path.stem if record is None else record.name
        self.key = _digest(str(path.resolve()))
        """What the browser calls it, the same whenever it is viewed."""
        layers = [] if source is None else [slide_layer(source, self.mpp)]
        if source is not None and pair is not None:
            layers.append(phh3_layer(pair, self.mpp))
        if source is not None and result is not None and (result.folder / PROBABILITIES).is_file():
            layers.append(probability_layer(result.folder / PROBABILITIES, self.mpp))
        self.layers = {layer.name: layer for layer in layers}
        """Its own picture and what can be laid over it, by name; nothing where it cannot be found."""

    @property
    def result(self) -> SlideResult | None:
        """What was found on it, as its files say now; None where nothing was sought."""
        if self._result is not None and (stamp := record_stamp(self._result.folder)) != self._loaded:
            with suppress(MetaphaseError):  # somebody works on it: what it was before
                self._result, self._loaded = load_result(self._result.folder), stamp
        return self._result

    @property
    def record(self) -> str:
        """The slide's record, read again when its files change."""
        return self._loaded if self.result is not None else ""

    @cached_property
    def log(self) -> PositionLog:
        """The answers about it."""
        return PositionLog(self.found.folder, self.width, self.height)

    @property
    def found(self) -> SlideResult:
        """What was found on it; only where something was sought."""
        if (result := self.result) is None:
            raise HTTPException(404, "this slide was not searched")
        return result

    @property
    def order(self) -> list[int]:
        """Rows of the candidates in the order of review."""
        result = self.found
        if self._order is None or self._order[0] is not result:
            hotspot = result.machine.hotspot
            self._order = result, review_order(result.candidates, hotspot, result.counting, self.mpp)
        return self._order[1]

    def counted(self, given: Sequence[Given], threshold: float | None = None) -> tuple[Reviewed, SlideCount]:
        """Detections and count with these answers, at the result's own threshold or another."""
        config = self.found.counting
        config = config if threshold is None else replace(config, threshold=threshold)
        return count_with(self.found, given, config, self.scope)

    @property
    def scope(self) -> Scope:
        """Where its figures count, as people say now."""
        return scope_of(self.found)

    def stored(self, given: Sequence[Given]) -> SlideCount | None:
        """The count of these answers, where it is on the disk: without any, or in force."""
        record = self.found.record
        if self._in_force(given):
            return record.count_only
        return None if given or record.scope != self.scope else record.unreviewed.count_only

    @property
    def is_reviewed(self) -> bool:
        """Whether anybody ever answered about the slide."""
        return (self.found.folder / ANSWERS).is_file() or bool(self.found.record.review)

    @property
    def waits(self) -> bool:
        """Whether people answered, or took back, what is not in force."""
        return self.result is not None and not self._in_force(self.answers("", blind=False))

    def _in_force(self, given: Sequence[Given]) -> bool:
        """Whether the record was made with these answers, and what else people say now."""
        key = answers_key(given, self.scope, self.marks("", blind=False))
        return self.found.record.answers == key

    def answers(self, observer: str, *, blind: bool) -> list[Given]:
        """The answers an observer may know of: where they are blind, their own."""
        return self.log.current(observer if blind else None) if self._may_know(observer, blind) else []

    def marks(self, observer: str, *, blind: bool) -> list[Mark]:
        """The marks an observer may know of, likewise."""
        return self.log.marks(observer if blind else None) if self._may_know(observer, blind) else []

    def _may_know(self, observer: str, blind: bool) -> bool:
        return (self.found.folder / ANSWERS).is_file() and bool(observer or not blind)

    def close(self) -> None:
        """Release the answers."""
        if "log" in self.__dict__:
            self.log.close()


def record_stamp(folder: Path) -> str:
    """Tells the record of a slide from others: it is written last."""
    with suppress(OSError):
        return _version(folder / SUMMARY)
    return ""


def viewed_slides(
    paths: Sequence[Path],
    *,
    mpp: float | None = None,
    registrations: Sequence[Path] = (),
    moved: Path | None = None,
    failed: Callable[[str], None] | None = None,
) -> list[ViewedSlide]:
    """Slides of result folders, and slides by themselves, each once; with PHH3 where a registration has it.

    `failed` gets those that cannot be opened and the others go on; without it, or where none is left,
    that is an error. The results of a slide that has moved are there without its picture, unless it lies in
    the folder `moved`.
    """
    found: dict[str, ViewedSlide] = {}
    problems: list[MetaphaseError] = []
    pairs = [registered_pair(folder) for folder in registrations]
    for file, folder in (part for path in paths for part in _parts(path)):
        try:
            slide = _viewed(file, folder, mpp, pairs, moved)
        except MetaphaseError as error:
            problems.append(error)
        else:
            found[slide.key] = slide
    if problems and (failed is None or not found):
        raise problems[0]
    for pair in pairs:
        if not any(slide.source is not None and pair.is_of(slide.source.path) for slide in found.values()):
            raise UsageError(
                f"belongs to the H&E slide {pair.he}, which is not among those to view",
                path=pair.folder,
                next_step="give that slide, or its results, too",
            )
    for problem in (*map(str, problems), *(slide.problem for slide in found.values() if slide.problem)):
        if failed is not None:
            failed(problem)
    return list(found.values())


def _viewed(
    file: Path, folder: Path | None, mpp: float | None, pairs: Sequence[RegisteredPair], moved: Path | None
) -> ViewedSlide:
    """A slide with its results, or by itself."""
    result = load_result(folder) if folder is not None else None
    try:
        source = (
            sources_with([file], mpp)[0] if result is None else source_of(result.folder, result.record, moved)
        )
        return ViewedSlide(source, result, next((pair for pair in pairs if pair.is_of(source.path)), None))
    except SlideError as error:
        if result is None:
            raise
        return ViewedSlide(None, result, problem=str(error))


def _parts(path: Path) -> list[tuple[Path, Path | None]]:
    """What a path stands for: folders of results, or a slide."""
    if not path.is_dir():
        return [(path, None)]
    folders = result_folders(path)
    if not folders:
        raise UsageError(
            "holds no results", path=path, next_step="give what metaphase detect -o named, or slides"
        )
    return [(path, folder) for folder in folders]


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=KEY_BYTES).hexdigest()


def _version(path: Path, *drawn: object) -> str:
    """Changes with a file, and with how it is drawn."""
    stat = path.stat()
    return _digest(repr((stat.st_mtime_ns, stat.st_size, *drawn)))


# ---- layers over a slide ----


@dataclass(frozen=True, eq=False)
class RegisteredPair:
    """A folder of `metaphase register`."""

    folder: Path
    he: Path
    phh3: Path
    transform: Transform
    verdict: str

    def is_of(self, slide: Path) -> bool:
        """Whether it lays PHH3 over this slide: the same file, or where that has moved, one of its name."""
        if self.he.is_file():
            return self.he.resolve() == slide.resolve()
        return self.he.name == slide.name


def registered_pair(folder: Path) -> RegisteredPair:
    """Read a folder of `metaphase register`; a failed registration positions nothing, and is refused."""
    what, again = "holds no registration of a pair", "give a folder that metaphase register made"
    summary = read_json(folder / REGISTERED, what, next_step=again)
    with parsing(folder, what, next_step=again):
        he, phh3 = (found_from(folder, str(summary[name])) for name in ("he_path", "phh3_path"))
        verdict = str(summary["verdict"])
    if verdict == "failed":
        raise UsageError("the registration failed", path=folder, next_step="see its registration.png")
    if not phh3.is_file():
        raise SlideError(
            f"the PHH3 slide of {folder} is no longer there",
            path=phh3,
            next_step="put it back, or start where register was started",
        )
    return RegisteredPair(folder, he, phh3, load_transform(folder / TRANSFORM), verdict)


Draw = Callable[[Slide, Box, int], bytes]
"""From an open slide, a picture of a box of the viewed slide, with a pixel for so many of its own a side."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A picture of a slide, drawn in the slide's own pixels: its own, or one to lay over it."""

    name: str
    title: str
    """What a person calls it."""
    ending: str
    source: SlideSource
    version: str
    """Changes with its pixels, and with where they lie."""
    tile: Draw


SLIDE = "slide"
"""The layer of the slide itself."""


def slide_layer(source: SlideSource, mpp: float) -> Layer:
    """Deep-zoom layer of the slide."""
    return Layer(SLIDE, "", "jpg", source, _version(source.path, SLIDE, mpp, TILE_PX, TILE_QUALITY), _plain)


def _plain(opened: Slide, box: Box, scale: int) -> bytes:
    pixels = opened.read(box.x, box.y, *_shape(box, scale), opened.mpp * scale)
    return encode_jpeg(pixels, TILE_QUALITY, subsampling=2)


def _shape(box: Box, scale: int) -> tuple[int, int]:
    """Width and height of the picture of a box."""
    return math.ceil(box.width / scale), math.ceil(box.height / scale)


GRID_PX = 32
"""Between positions that a transform is asked about; straight lines between."""


def phh3_layer(pair: RegisteredPair, mpp: float) -> Layer:
    """The PHH3 slide as it lies on the H&E slide; its title says where that is in doubt."""
    title = "PHH3" if pair.verdict == "reliable" else f"PHH3 (registration {pair.verdict})"
    source = SlideSource(pair.phh3, pair.transform.phh3_mpp)
    placed = json.dumps(pair.transform.to_json())
    version = _version(source.path, "phh3", mpp, TILE_PX, TILE_QUALITY, placed)
    return Layer("phh3", title, "jpg", source, version, partial(_warped, pair.transform, mpp))


def _warped(transform: Transform, mpp: float, opened: Slide, box: Box, scale: int) -> bytes:
    """White where the PHH3 slide ends."""
    width, height = _shape(box, scale)
    columns, rows = (np.linspace(0, side, -(-side // GRID_PX) + 1) for side in (width, height))
    grid = np.stack(np.meshgrid(box.x + columns * scale, box.y + rows * scale), axis=-1)
    there = transform.he_to_phh3(grid.reshape(-1, 2)).reshape(grid.shape)
    step = scale * mpp / opened.mpp
    low = there.min(axis=(0, 1)) - 2 * step
    wide, tall = (np.ceil((there.max(axis=(0, 1)) - low) / step) + 2).astype(int).tolist()
    pixels = opened.read(float(low[0]), float(low[1]), wide, tall, step * opened.mpp)
    at = ((there - low) / step - 0.5).astype(np.float32)
    middles = (
        (np.arange(side, dtype=np.float32) + 0.5) / side * (len(axis) - 1)
        for side, axis in ((width, columns), (height, rows))
    )
    across, down = (np.ascontiguousarray(axis, np.float32) for axis in np.meshgrid(*middles))
    where = cv2.remap(at, across, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    warped = cv2.remap(pixels, where[..., 0], where[..., 1], cv2.INTER_LINEAR, borderValue=(255, 255, 255))
    return encode_jpeg(np.asarray(warped, np.uint8), TILE_QUALITY, subsampling=2)


def probability_layer(path: Path, mpp: float) -> Layer:
    """What the networks said everywhere, where `metaphase detect --probability-map` kept it."""
    version = _version(path, mpp, TILE_PX, TILE_QUALITY)
    return Layer("probability", "Probability map", "png", SlideSource(path), version, partial(_coloured, mpp))


def _coloured(mpp: float, opened: Slide, box: Box, scale: int) -> bytes:
    """Clear at 0; nothing beyond the map."""
    ratio = mpp / opened.mpp
    levels: RGB = opened.read(box.x * ratio, box.y * ratio, *_shape(box, scale), scale * mpp)
    share = levels[..., 0].astype(np.float32) / np.float32(255)
    right, bottom = (opened.width / ratio - box.x) / scale, (opened.height / ratio - box.y) / scale
    share[math.ceil(max(bottom, 0)) :] = 0
    share[:, math.ceil(max(right, 0)) :] = 0
    return encode_png(heat_colours(share), compress_level=1)


# ---- tiles ----

TILE_PX = 512
TILE_QUALITY = 82
CACHE_BYTES = 256_000_000
FIGURE_PX = 256
"""Side of a figure's picture, 64 um."""


class TileMaker:
    """Tiles of slides and layers at powers of two, the latest kept in memory. Safe in several threads."""

    def __init__(self, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._slides = SlidePool(OPEN_SLIDES)
        self._kept = KeptBytes(cache_bytes)
        self.made = 0
        """How many tiles were made, not found."""

    def kept(self, slide: ViewedSlide, level: int, column: int, row: int, layer: str = SLIDE) -> bytes | None:
        """A tile that is in memory."""
        return self._kept.get((slide.key, slide.layers[layer].version, level, column, row))

    def make(self, slide: ViewedSlide, level: int, column: int, row: int, layer: str = SLIDE) -> bytes | None:
        """A tile of a layer of a slide; None beyond the edge.

        Level 0 has the slide's own pixels, each next half as many a side.
        """
        if not 0 <= level <= levels_of(slide.width, slide.height):
            return None
        scale, shown = 2**level, slide.layers[layer]
        side = TILE_PX * scale
        box = Box(column * side, row * side, side, side)
        box = box.intersection(Box(0, 0, slide.width, slide.height))
        if not box.area:
            return None
        self.made += 1
        key = (slide.key, shown.version, level, column, row)
        return self._keep(key, shown.source, lambda opened: shown.tile(opened, box, scale))

    def figure(self, slide: ViewedSlide, x: float, y: float) -> bytes:
        """A figure and its neighbours, cut from the slide."""
        shown = slide.layers[SLIDE]
        key = (slide.key, shown.version, round(10 * x), round(10 * y))
        return self._kept.get(key) or self._keep(
            key, shown.source, lambda opened: encode_jpeg(cut_square(opened, x, y, FIGURE_PX), TILE_QUALITY)
        )

    def _keep(self, key: Hashable, source: SlideSource, draw: Callable[[Slide], bytes]) -> bytes:
        with self._slides.open(source.path, source.mpp) as opened:
            opened.flaws = []  # what is there is shown
            data = draw(opened)
        self._kept.put(key, data)
        return data

    def close(self) -> None:
        """Close the slides."""
        self._slides.close()


def levels_of(width: int, height: int) -> int:
    """How often a slide is halved until it fits one tile.

    >>> levels_of(512, 100), levels_of(513, 100), levels_of(100_000, 60_000)
    (0, 1, 8)
    """
    return max(0, math.ceil(math.log2(max(width, height) / TILE_PX)))
