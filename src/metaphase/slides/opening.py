"""One door for every kind of slide: `open_slide` finds who reads it, `SlideSource` opens it again."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import imagecodecs
import openslide
from PIL import Image, UnidentifiedImageError

from metaphase.base.arrays import RGB, Box
from metaphase.base.errors import MetaphaseError, ResultWarning, SlideError, UsageError
from metaphase.base.foreign import check_plain, files_in, is_file, is_folder, parsing, plugins, state_of
from metaphase.base.provenance import FileContent, fingerprint_of
from metaphase.base.remote import RemotePath, location, reported_as
from metaphase.base.tables import named
from metaphase.slides.arrays import ArraySlide, opaque
from metaphase.slides.backends import (
    SQUARE_TOLERANCE,
    OpenSlideSlide,
    Properties,
    aperio_properties,
    check_flag,
    objective_power,
    openslide_mpp,
    slide_info,
)
from metaphase.slides.contract import Slide, SlideBackend, closed_on_failure, damage
from metaphase.slides.damage import check_jpeg
from metaphase.slides.dicom import dicom_files, is_dicom, is_dicom_slide, open_dicom
from metaphase.slides.further import FURTHER
from metaphase.slides.tiff import DECODABLE, TiffSlide, not_bright_field, open_layout
from metaphase.slides.writer import PyramidFormat, write_pyramid

_log = logging.getLogger(__name__)
FAST_VENDORS = (None, "aperio", "generic-tiff")
"""OpenSlide's names of the TIFF layouts that the fast path reads; the others have traps of their own."""
OPENSLIDE_ONLY = ("ndpi", "philips", "scn", "bif")
"""tifffile's names of TIFF layouts with such traps (Hamamatsu, Philips, Leica, Ventana)."""
LOCALLY = "copy it here, or mount the storage: by URL only tiled TIFF and SVS are read"
_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def open_slide(path: Any, *, mpp: float | None = None, backend: str = "auto") -> Slide:
    """Open a whole-slide image, a plain image, or pixels that you have; close it when done.

    Parameters:
        path: A file or a URL; a folder with the files of one DICOM slide; or pixels (height, width, 3 or 4),
            uint8 or floats from 0 to 1, of NumPy, PIL, dask, zarr, xarray or HDF5. What is not in memory is
            read block by block, as it is asked for.
        mpp: Micrometres per pixel, in the place of what the file says; pixels need it.
        backend: Who reads the file, by default whoever knows it best.

    Returns:
        A `Slide`: `read(x, y, width, height, mpp)` gives pixels at a resolution from level-0 (x, y) on.

    Raises:
        MetaphaseError: The file cannot be read, or the pixels are no picture in colours; it says why.

    Examples:
        >>> import numpy as np
        >>> import metaphase as mp
        >>> pixels = np.full((300, 400, 3), 0.5)
        >>> with mp.open_slide(pixels, mpp=0.25) as slide:
        ...     print(slide.width, slide.mpp, slide.read(0, 0, 100, 100, mpp=0.5).shape)
        400 0.25 (100, 100, 3)
    """
    if not isinstance(path, str | os.PathLike):
        return ArraySlide(path, mpp)
    path = location(path)
    if isinstance(path, RemotePath):
        if backend not in ("auto", "tiff"):
            raise SlideError(f"the backend {backend} needs a file on a disk", path=path, next_step=LOCALLY)
        if not _is_tiff(path):
            raise SlideError("is not a TIFF", path=path, next_step=LOCALLY)
        return _open_tiff(path, mpp)
    backends = _backends()
    if backend != "auto" and backend not in backends:
        known = ", ".join(("auto", *backends))
        raise UsageError(f"there is no backend {backend!r}", next_step=f"choose one of {known}")
    chosen = [backends[backend]] if backend != "auto" else _backends_for(path)
    if (not is_folder(path) or not chosen) and not check_plain(path, SlideError):
        raise SlideError("the file is empty (0 bytes)", path=path, next_step="copy it again")
    for candidate in chosen[:-1]:
        with suppress(SlideError):  # what OpenSlide refuses, another may read
            return candidate.open(path, mpp)
    return chosen[-1].open(path, mpp)


def _backends() -> dict[str, SlideBackend]:
    """Who reads slides, by name, in the order in which they are asked; TIFF and plain images come last."""
    return {
        "dicom": SlideBackend(is_dicom_slide, partial(open_dicom, openslide=False)),
        "openslide": SlideBackend(_is_for_openslide, OpenSlideSlide),
        **plugins("metaphase.slides"),
        **FURTHER,
        "tiff": SlideBackend(_is_tiff, _open_tiff),
        "image": SlideBackend(is_file, _open_image),
    }


def _backends_for(path: Path) -> list[SlideBackend]:
    """The backends that know a file or folder; TIFF and plain images only where no other does."""
    with damage(path):
        if is_dicom_slide(path):
            return [SlideBackend(is_dicom_slide, open_dicom)]
        backends = list(_backends().values())
        special = [known for known in backends[:-2] if known.knows(path)]
        return special or [known for known in backends[-2:] if is_file(path) and known.knows(path)][:1]


def _is_for_openslide(path: Path) -> bool:
    return is_file(path) and openslide.OpenSlide.detect_format(path) not in FAST_VENDORS


def _is_tiff(path: Path) -> bool:
    allowed = parsing(path, "cannot be read", next_step="check its permissions", error=SlideError)
    with reported_as(SlideError), allowed, path.open("rb") as file:
        return file.read(4) in _TIFF_MAGIC


WHOLE_SLIDES = frozenset(
    [".svs", ".tif", ".tiff", ".btf", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".bif", ".svslide"]
)
"""Endings of whole-slide images that need no library of their own."""
SUFFIXES = WHOLE_SLIDES | {".czi", ".dcm", ".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".jp2"}
"""Endings of slides and plain images."""


def is_called_slide(path: Path) -> bool:
    """Whether a file is a slide by its name, be it damaged, or a folder is one by what it holds."""
    return is_slide_there(path) and (
        is_folder(path) or path.suffix.lower() in SUFFIXES or _is_of_other_backend(path)
    )


def is_slide_there(path: Path) -> bool:
    """Whether there is a file of this name, or a folder that is a slide."""
    if not is_folder(path):
        return is_file(path)
    return is_dicom_slide(path) or _is_of_other_backend(path)


def _is_of_other_backend(path: Path) -> bool:
    """Whether one of the backends that need an extra, or come from other packages, knows a file or folder."""
    with damage(path):
        further = [*plugins("metaphase.slides").values(), *FURTHER.values()]
        return any(known.knows(path) for known in further)


@dataclass(frozen=True)
class SlideSource:
    """A slide's file and the resolution given for it: what opens it, and what decides results made of it."""

    path: Path
    mpp: float | None = None
    """Overrides what the file says; None where nothing is given."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", location(self.path))

    def open(self) -> Slide:
        """Open the slide; close it when done."""
        return open_slide(self.path, mpp=self.mpp)

    def account(self) -> dict[str, Any]:
        """The file's content, that of the files beside it that belong to it, and the effective resolution."""
        content = {"content": FileContent(self.path).account(), "mpp": self.effective_mpp}
        parts = [FileContent(path).account() for path in companions(self.path)]
        return content | ({"parts": fingerprint_of(parts)} if parts else {})

    @property
    def effective_mpp(self) -> float | None:
        """Micrometres per pixel as the slide is read; None where nobody states them or it cannot be read."""
        if self.mpp is not None:
            return self.mpp
        try:
            return _stated_mpp(self.path, *state_of(self.path)) if is_slide_there(self.path) else None
        except MetaphaseError:  # a server that refuses
            return None


def sources_with(paths: Iterable[Path], mpp: float | None) -> list[SlideSource]:
    """Slides with their own resolution, or with `mpp` where they state none; those that differ are named."""
    if mpp is not None:
        check_flag(mpp, None)
    sources, others = [], []
    for path in paths:
        own = SlideSource(path).effective_mpp if mpp is not None else None
        sources.append(SlideSource(path, mpp if own is None else None))
        if mpp is not None and own is not None and abs(own / mpp - 1) > SQUARE_TOLERANCE:
            others.append(f"{path.name} ({own:.4g})")
    if others:
        advice = "to override them, give their um/px in the column mpp of a manifest"
        _log.warning("--mpp %g is for slides that state none; %s keep theirs: %s", mpp, named(others), advice)
    return sources


def source_of(slide: Slide, folder: Path | None = None, mpp: float | None = None) -> SlideSource:
    """What opens a slide again, at another resolution where `mpp` is given.

    One in memory is written, without loss, to `folder/NAME/NAME.tif`, unless it is there: its name comes from
    its pixels and resolution.
    """
    if slide.info.path is None:
        if folder is None:
            raise SlideError("is in memory only", path=slide.name, next_step="write it to a file first")
        return SlideSource(_written(slide, slide.mpp if mpp is None else mpp, folder))
    resolution = slide.info.resolution
    given = resolution.mpp if resolution is not None and resolution.source == "flag" else None
    return SlideSource(slide.info.path, given if mpp is None else mpp)


def _written(slide: Slide, mpp: float, folder: Path) -> Path:
    form, width, height = PyramidFormat(mpp, quality=None), slide.width, slide.height

    def tiles() -> Iterator[RGB]:
        return (slide.read_level(0, box) for box in Box(0, 0, width, height).tiles(form.tile_px))

    digest = hashlib.sha256(f"{width} {height} {mpp}".encode())
    for tile in tiles():
        digest.update(tile.tobytes())
    name = f"array-{digest.hexdigest()[:10]}"
    path = folder / name / f"{name}.tif"
    if not is_file(path):
        write_pyramid(path, tiles(), width, height, form)
    return path


def companions(path: Path) -> list[Path]:
    """Files without which a slide's index file says nothing.

    The folder of a .mrxs, the files that a .vms or .vmu names, and all others of a DICOM file's folder
    (which of them are of the same series is not looked at: one too many costs a second search, one too few a
    stale result).
    """
    if isinstance(path, RemotePath):
        return []
    if path.suffix.lower() == ".mrxs":
        return [file for file in files_in(path.with_suffix(""), "*") if file.is_file()]
    if is_dicom(path):
        return [file for file in dicom_files(path.parent) if file != path]
    if path.suffix.lower() in (".vms", ".vmu"):
        lines = path.read_text(encoding="latin-1").splitlines()
        named = (path.parent / line.partition("=")[2].strip() for line in lines if "=" in line)
        return sorted({file for file in named if is_file(file)}, key=lambda file: file.parts)
    return []


@lru_cache(1 << 16)
def _stated_mpp(path: Path, _size: int, _changed_ns: int, _tag: str) -> float | None:
    try:
        with open_slide(path) as slide:
            return slide.info.resolution.mpp if slide.info.resolution else None
    except MetaphaseError:
        return None  # whoever works on the slide says what is wrong with it


def _open_tiff(path: Path, mpp: float | None) -> Slide:
    """A TIFF; of one by its URL, only what is read is fetched."""
    by_url = isinstance(path, RemotePath)
    vendor = None if by_url else openslide.OpenSlide.detect_format(path)
    layout = open_layout(path)
    with closed_on_failure(layout.file):
        full = layout.pages[0]
        problem = not_bright_field(full)
        if full.compression not in DECODABLE:
            if vendor:
                layout.file.close()
                return OpenSlideSlide(path, mpp)
            who = "decoded by OpenSlide only" if by_url else "not supported"
            problem = problem or f"compression {full.compression!r} is {who}"
        if by_url and (others := [name for name in OPENSLIDE_ONLY if getattr(full, f"is_{name}")]):
            problem = f"is of a kind ({others[0]}) that only OpenSlide reads"
        if problem:
            advice = LOCALLY if by_url else "export it as tiled 8-bit RGB TIFF"
            raise SlideError(problem, path=path, next_step=advice)
        properties: Properties = {}
        if by_url and full.is_svs:
            vendor, properties = "aperio", aperio_properties(full.description)
        elif vendor:
            with suppress(openslide.OpenSlideError), openslide.OpenSlide(path) as handle:
                properties = dict(handle.properties)  # the fast path may know more codecs than OpenSlide
        own, tags = openslide_mpp(properties), layout.mpp
        sizes = [(page.imagewidth, page.imagelength) for page in layout.pages]
        more = {"vendor": vendor or "tiff", "objective_power": objective_power(properties)}
        info = slide_info(
            path, "tiff", sizes, own or tags if vendor == "aperio" else tags or own, mpp, **more
        )
        if layout.images > 1:
            text = f"holds {layout.images} images of one size, and the first is read"
            several = ResultWarning("several-images", text, "save each as a file of its own")
            info = replace(info, warnings=(*info.warnings, several))
        return TiffSlide(layout, info)


def _open_image(path: Path, mpp: float | None) -> Slide:
    with damage(path, "damaged image"):
        try:
            with (
                warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning),
                Image.open(path, formats=PLAIN_FORMATS) as image,
            ):
                if image.mode.startswith(("I", "F")):
                    raise SlideError(
                        f"pixels of type {image.mode} are not 8-bit",
                        path=path,
                        next_step="export it as 8-bit RGB",
                    )
                if image.format == "PNG":
                    imagecodecs.png_decode(path.read_bytes())  # Pillow fills rows that are missing
                if image.format == "JPEG":
                    check_jpeg(path.read_bytes())
                pixels = opaque(image)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise SlideError(
                "too many pixels for a plain image",
                path=path,
                next_step="export it as a tiled pyramidal TIFF",
            ) from error
        except UnidentifiedImageError as error:
            raise SlideError(
                "neither a slide that OpenSlide knows, nor a TIFF, nor an image",
                path=path,
                next_step="check the file; of a scanner's folder, name the index file (.mrxs, .vms)",
            ) from error
    return ArraySlide(pixels, mpp, path=path, vendor="image")


PLAIN_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF", "JPEG2000")
"""Kinds of plain images that are read; of others, Pillow would start programs (PostScript)."""


OPEN_SLIDES = 8


@dataclass
class _Handle:
    slide: Slide | None = None
    users: int = 0
    opening: threading.Lock = field(default_factory=threading.Lock)


class SlidePool:
    """Open slides shared by threads; the ones unused longest are closed when there are too many."""

    def __init__(self, limit: int = OPEN_SLIDES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._handles: OrderedDict[tuple[Path, float | None], _Handle] = OrderedDict()

    @contextlib.contextmanager
    def open(self, path: Path, mpp: float | None) -> Iterator[Slide]:
        """The slide, kept open at least until the end of the `with` statement."""
        key = (path, mpp)
        with self._lock:
            handle = self._handles.setdefault(key, _Handle())
            self._handles.move_to_end(key)
            handle.users += 1
        try:
            with handle.opening:
                if handle.slide is None:
                    handle.slide = open_slide(path, mpp=mpp)
            yield handle.slide
        finally:
            with self._lock:
                handle.users -= 1
                self._trim(self._limit)

    def close(self) -> None:
        """Close every slide that nobody reads."""
        with self._lock:
            self._trim(0)

    def _trim(self, limit: int) -> None:
        idle = [key for key, handle in self._handles.items() if not handle.users]
        for key in idle[: max(0, len(self._handles) - limit)]:
            slide = self._handles.pop(key).slide
            if slide is not None:
                slide.close()
