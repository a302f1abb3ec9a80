"""DICOM whole slides (VL Whole Slide Microscopy): which files are one slide, and what OpenSlide cannot read.

Positions are pixels of the total pixel matrix, counted from 0: as OpenSlide counts them, and as
annotations in image coordinates refer to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metaphase.base.arrays import RGB, Box
from metaphase.base.errors import SlideError
from metaphase.base.foreign import RAISE_LIMITS, files_in, is_file, is_folder, library, raised
from metaphase.base.remote import RemotePath
from metaphase.slides.backends import OpenSlideSlide, slide_info
from metaphase.slides.contract import (
    DamagedPixelsError,
    Level,
    Slide,
    SlideInfo,
    as_rgb,
    closed_on_failure,
    damage,
)
from metaphase.slides.damage import check_jpeg
from metaphase.slides.tiff import MAX_CHUNK_PX

if TYPE_CHECKING:
    from wsidicom import WsiDicom

WHOLE_SLIDE = "1.2.840.10008.5.1.4.1.1.77.1.6"
"""SOP class of VL Whole Slide Microscopy images."""
_PREAMBLE, _MAGIC = 128, b"DICM"
_HEADER = ("SOPClassUID", "SeriesInstanceUID", "ImageType")


def is_dicom(path: Path) -> bool:
    """Whether a file is DICOM, whatever it is called; a pipe or device, which might never answer, is none."""
    if isinstance(path, RemotePath) or not is_file(path):
        return False
    try:
        with path.open("rb") as file:
            file.seek(_PREAMBLE)
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def dicom_files(folder: Path) -> list[Path]:
    """The DICOM files of a folder."""
    return [path for path in files_in(folder, "*") if is_dicom(path)]


def is_dicom_slide(path: Path) -> bool:
    """Whether a file is DICOM, or a folder holds DICOM files."""
    return bool(dicom_files(path)) if is_folder(path) else is_dicom(path)


def open_dicom(path: Path, mpp: float | None, *, openslide: bool = True) -> Slide:
    """The slide of a file, with the others of its series beside it, or the only slide of a folder.

    OpenSlide is asked first; wsidicom reads what it refuses (JPEG-LS, JPEG XL, HTJ2K, ...).
    """
    parts = _only_slide(path) if path.is_dir() else None
    first = parts[0] if parts else path
    if openslide:
        try:
            return _OpenSlideDicom(first, mpp, parts)
        except SlideError as error:
            if not _has_wsidicom():
                advice = "pip install 'metaphase[dicom]', which reads more"
                raise SlideError(error.problem, path=path, next_step=advice) from error
    return DicomSlide(_opened(path, parts), mpp, path, local=True)


def _opened(path: Path, parts: list[Path] | None) -> WsiDicom:
    """A slide's files, or those of a file's series, as wsidicom opens them."""
    with damage(path, "damaged DICOM slide"):
        handle: WsiDicom = _library("wsidicom", path).WsiDicom.open(parts or _of_series(path))
        return handle


def _library(name: str, path: Path) -> Any:
    return library(name, "dicom", path=path, error=SlideError)


_JPEG = ("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51")
"""Transfer syntaxes: baseline and extended."""


class _JpegFrames:
    """The JPEG frames of a slide, whose damage decoders do not report; each is checked once."""

    def __init__(self, handle: WsiDicom) -> None:
        self._handle = handle
        self._levels = {
            (level.size.width, level.size.height): level
            for level in handle.pyramid.levels
            if str(level.default_instance.image_data.transfer_syntax) in _JPEG
        }
        self._sound: set[tuple[int, int, int]] = set()

    def check(self, level: Level, box: Box) -> None:
        """Refuse a box with a frame that is damaged."""
        own = self._levels.get((level.width, level.height))
        if own is None:
            return
        width, height = own.tile_size.width, own.tile_size.height
        for row in range(box.y // height, -(-box.bottom // height)):
            for column in range(box.x // width, -(-box.right // width)):
                if (frame := (own.level, column, row)) not in self._sound:
                    check_jpeg(
                        self._handle.read_encoded_tile(own.level, (column, row), crop_to_image_boundary=False)
                    )
                    self._sound.add(frame)


class _OpenSlideDicom(OpenSlideSlide):
    """A DICOM slide read through OpenSlide, its frames checked where wsidicom is there to hand them out."""

    def __init__(self, path: Path, mpp: float | None, parts: list[Path] | None) -> None:
        super().__init__(path, mpp)
        self._parts = parts
        self._checks = ExitStack()

    @cached_property
    def _frames(self) -> _JpegFrames | None:
        path = self.info.path
        if path is None or not _has_wsidicom():
            return None
        with damage(path, "damaged DICOM slide"):
            return _JpegFrames(self._checks.enter_context(_opened(path, self._parts)))

    def _decode(self, level: int, box: Box) -> RGB:
        if self.flaws is not None and self._frames is not None:
            with self.decoding(level, box):
                self._frames.check(self.levels[level], box)
        return super()._decode(level, box)

    def close(self) -> None:
        """Release the files."""
        self._checks.close()
        super().close()


class DicomSlide(Slide):
    """A slide read through wsidicom, from files or from a server; reading is thread-safe."""

    def __init__(self, handle: WsiDicom, mpp: float | None, path: Path, *, local: bool = False) -> None:
        """Of a `local` slide, what cannot be read is damaged; a server may answer another time."""
        self._handle, self._local = handle, local
        with closed_on_failure(handle), damage(path, "DICOM slide that cannot be used"):
            info = self._described(mpp, path)
        super().__init__(info)

    def _described(self, mpp: float | None, path: Path) -> SlideInfo:
        pyramid = self._handle.pyramid
        self._levels = [level.level for level in pyramid.levels]
        if max(level.tile_size.area for level in pyramid.levels) > raised(MAX_CHUNK_PX):
            raise SlideError("its tiles are too large", path=path, next_step=RAISE_LIMITS)
        base, spacing = pyramid.base_level, pyramid.mpp
        if len(base.optical_paths) > 1:
            raise SlideError(
                f"has {len(base.optical_paths)} optical paths: not a bright-field scan",
                path=path,
                next_step="give an H&E slide with one optical path",
            )
        stated = (float(spacing.width), float(spacing.height))
        sizes = [(level.size.width, level.size.height) for level in pyramid.levels]
        return slide_info(path, "dicom", sizes, stated, mpp)

    @cached_property
    def _frames(self) -> _JpegFrames:
        return _JpegFrames(self._handle)

    def _decode(self, level: int, box: Box) -> RGB:
        corner, size = (box.x, box.y), (box.width, box.height)
        with self.decoding(level, box, DamagedPixelsError if self._local else SlideError):
            if self._local and self.flaws is not None:
                self._frames.check(self.levels[level], box)
            pixels = self._handle.read_region(corner, self._levels[level], size, threads=1, as_array=True)
            if pixels.dtype != np.uint8:
                raise ValueError(f"its samples are {pixels.dtype}, not 8-bit")
            return as_rgb(np.atleast_3d(pixels))

    def close(self) -> None:
        """Release files and connections."""
        self._handle.close()


def header_of(path: Path, names: tuple[str, ...] = _HEADER) -> Any:
    """What a DICOM file says of itself, its pixels left out."""
    with damage(path, "damaged DICOM file"):
        return _library("pydicom", path).dcmread(path, stop_before_pixels=True, specific_tags=list(names))


def source_image(path: Path) -> Any:
    """Header of a slide's finest level, to which results refer; of concatenated parts, of the first."""
    parts = _only_slide(path) if path.is_dir() else _of_series(path)
    sized = ("TotalPixelMatrixColumns", "ConcatenationFrameOffsetNumber", "ImageType", "SOPClassUID")
    headers = [header_of(part, sized) for part in parts]
    chosen = finest(headers, path)
    with damage(path, "damaged DICOM slide"):
        return _library("pydicom", path).dcmread(chosen.filename, stop_before_pixels=True)


def finest(headers: Sequence[Any], path: Path) -> Any:
    """The header of the finest level among those of a series; of concatenated parts, of the first."""
    levels = [header for header in headers if _is_level(header)]
    if not levels:
        raise SlideError("its series has no level of a pyramid", path=path, next_step="name the slide's file")
    first = "ConcatenationFrameOffsetNumber"
    with damage(path, "damaged DICOM slide"):
        return min(levels, key=lambda it: (-int(it.TotalPixelMatrixColumns), int(it.get(first) or 0)))


def _only_slide(folder: Path) -> list[Path]:
    """Files of the one slide in a folder, its pyramid's levels."""
    slides: dict[str, list[Path]] = {}
    for path in dicom_files(folder):
        header = header_of(path)
        if _is_level(header):
            slides.setdefault(str(header.get("SeriesInstanceUID")), []).append(path)
    if len(slides) != 1:
        names = ", ".join(paths[0].name for paths in slides.values()) or "none"
        raise SlideError(
            f"the folder holds {len(slides)} DICOM whole slides ({names})",
            path=folder,
            next_step="name a file of the slide you mean",
        )
    return next(iter(slides.values()))


def _of_series(path: Path) -> list[Path]:
    """The file and the others of its series beside it."""
    own = header_of(path)
    if own.get("SOPClassUID") != WHOLE_SLIDE:
        kind = getattr(own.get("SOPClassUID"), "name", "of no stated kind")
        raise SlideError(
            f"is DICOM, but not a whole slide ({kind})", path=path, next_step="name the slide's file"
        )
    others = (other for other in dicom_files(path.parent) if other != path)
    series = own.get("SeriesInstanceUID")
    return [path, *(other for other in others if header_of(other).get("SeriesInstanceUID") == series)]


def _is_level(header: Any) -> bool:
    kind = header.get("ImageType") or []
    return header.get("SOPClassUID") == WHOLE_SLIDE and "VOLUME" in kind and "THUMBNAIL" not in kind


def _has_wsidicom() -> bool:
    return find_spec("wsidicom") is not None
