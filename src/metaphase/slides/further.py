"""Slides whose libraries are extras: Zeiss CZI (`[czi]`), OME-Zarr (`[zarr]`), DICOMweb (`[dicom]`)."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metaphase.base.arrays import RGB, Box
from metaphase.base.errors import SlideError
from metaphase.base.foreign import RAISE_LIMITS, library, raised
from metaphase.slides.archive import is_remote, open_remote
from metaphase.slides.backends import micrometres, slide_info
from metaphase.slides.contract import Slide, SlideBackend, as_rgb, closed_on_failure, damage

EXPORT = "export it as 8-bit RGB (bright field), as OME-TIFF"
OR_CONVERT = ", or convert the slide to OME-TIFF"


# ---- Zeiss CZI ----

COARSE = (8, 16, 32, 64, 128)
"""Reductions that are offered beside the full size: libCZI takes the nearest pixel of the file's own pyramid,
which moves things by up to half of one, so that only overviews are made of these."""
LEAST_SIDE_PX = 256


class CziSlide(Slide):
    """All scenes of a CZI where they lie on the glass; level 0 begins where the first of them does."""

    def __init__(self, path: Path, mpp: float | None = None) -> None:
        czi = library("pylibCZIrw.czi", "czi", path=path, instead=OR_CONVERT, error=SlideError)
        with damage(path, "damaged CZI"):
            self._opened = czi.open_czi(str(path))
            self._file = self._opened.__enter__()
            kinds = set(self._file.pixel_types.values())
            area = self._file.total_bounding_rectangle
            stated = _czi_mpp(self._file.metadata)
        if kinds != {"Bgr24"}:
            self.close()
            raise SlideError(f"its pixels are {', '.join(sorted(kinds))}", path=path, next_step=EXPORT)
        self._corner, self._lock = (area.x, area.y), threading.Lock()
        steps = [step for step in COARSE if min(area.w, area.h) // step >= LEAST_SIDE_PX]
        sizes = [(area.w, area.h), *((area.w // step, area.h // step) for step in steps)]
        super().__init__(slide_info(path, "czi", sizes, stated, mpp))

    def _decode(self, level: int, box: Box) -> RGB:
        step = round(self.levels[level].downsample)
        x, y = self._corner[0] + box.x * step, self._corner[1] + box.y * step
        region = (x, y, box.width * step, box.height * step)
        with self._lock, self.decoding(level, box):
            pixels = self._file.read(
                roi=region, plane={"C": 0}, zoom=1 / step, background_pixel=(1.0, 1.0, 1.0)
            )
        return np.ascontiguousarray(pixels[: box.height, : box.width, ::-1])

    def close(self) -> None:
        """Release the file."""
        self._opened.__exit__(None, None, None)


def _czi_mpp(metadata: Mapping[str, Any]) -> tuple[float, float] | None:
    """Micrometres per pixel: the scaling is stated in metres."""
    try:
        distances = metadata["ImageDocument"]["Metadata"]["Scaling"]["Items"]["Distance"]
        metres = {str(axis["@Id"]): float(axis["Value"]) for axis in distances}
        return metres["X"] * 1e6, metres["Y"] * 1e6
    except (KeyError, TypeError, ValueError):
        return None


# ---- OME-Zarr ----


class OmeZarrSlide(Slide):
    """The first image of an OME-Zarr (0.4 or 0.5), a folder or `.ozx` file; first of times and depths."""

    def __init__(self, path: Path, mpp: float | None = None) -> None:
        zarr = library("zarr", "zarr", path=path, instead=OR_CONVERT, error=SlideError)
        what = "not an OME-Zarr image"
        with damage(path, what):
            self._store = zarr.storage.ZipStore(path, mode="r") if path.is_file() else str(path)
        with closed_on_failure(self), damage(path, what):
            group = zarr.open_group(self._store, mode="r")
            if "bioformats2raw.layout" in _ome(group.attrs):
                group = group["0"]
            image = _ome(group.attrs)["multiscales"][0]
            self._axes = [str(axis["name"]) for axis in image["axes"]]
            self._arrays = [group[level["path"]] for level in image["datasets"]]
            if len(set(self._axes)) < len(self._axes):
                raise ValueError(f"axes {self._axes}")
            for array in self._arrays:
                self._check(array, path)
            stated = _ome_mpp(image)
        x, y = self._axes.index("x"), self._axes.index("y")
        sizes = [(int(array.shape[x]), int(array.shape[y])) for array in self._arrays]
        super().__init__(slide_info(path, "ome-zarr", sizes, stated, mpp))

    def _check(self, array: Any, path: Path) -> None:
        """Refuse a level that does not fit the axes, is no bright-field picture or might do harm."""
        if array.ndim != len(self._axes):
            raise ValueError(f"{len(self._axes)} axes for an array of {array.ndim}")
        side = dict(zip(self._axes, array.shape, strict=True))
        if not min(side["x"], side["y"]) > 0:
            raise ValueError("a level without pixels")
        _refuse_risky(array, path)
        if array.dtype != np.uint8 or side.get("c", 1) not in (1, 3, 4):
            problem = f"{side.get('c', 1)} channels of {array.dtype}"
            raise SlideError(problem, path=path, next_step=EXPORT)

    def _decode(self, level: int, box: Box) -> RGB:
        wanted = {"x": slice(box.x, box.right), "y": slice(box.y, box.bottom), "c": slice(None)}
        index = tuple(wanted.get(axis, 0) for axis in self._axes)
        with self.decoding(level, box):
            pixels = np.asarray(self._arrays[level][index])
        left = [axis for axis in self._axes if axis in wanted]
        if "c" not in left:
            left, pixels = [*left, "c"], pixels[..., None]
        return np.ascontiguousarray(as_rgb(pixels.transpose([left.index(axis) for axis in "yxc"])))

    def close(self) -> None:
        """Release the file."""
        if not isinstance(self._store, str):
            self._store.close()


CODECS = frozenset(
    {
        *("blosc", "bytes", "bz2", "crc32c", "delta", "gzip", "lz4", "lzma"),
        *("sharding_indexed", "shuffle", "transpose", "zlib", "zstd"),
    }
)
"""How chunks may be packed; others run what a file says (pickle), or are not known."""
MOST_CHUNK_PX = 1 << 28


def _refuse_risky(array: Any, path: Path) -> None:
    """Refuse chunks that are too large for the memory, or packed in a way not known to be harmless."""
    whole = getattr(array, "shards", None) or array.chunks
    if math.prod(whole) > raised(MOST_CHUNK_PX):
        raise SlideError(f"chunks of {whole}", path=path, next_step=RAISE_LIMITS)
    stated = array.metadata.to_dict()
    for name in _codecs([stated.get("codecs"), stated.get("filters"), stated.get("compressor")]):
        if name.removeprefix("numcodecs.") not in CODECS:
            raise SlideError(f"its chunks are packed by {name!r}", path=path, next_step=EXPORT)


def _codecs(stated: Any) -> Iterator[str]:
    """The names of codecs, those inside others too."""
    if isinstance(stated, Mapping):
        if "name" in stated or "id" in stated:
            yield str(stated.get("name", stated.get("id")))
        stated = list(stated.values())
    for part in stated if isinstance(stated, list | tuple) else ():
        yield from _codecs(part)


def _ome(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata: under `ome` since 0.5, bare before."""
    return dict(attributes.get("ome", attributes))


def _ome_mpp(image: Mapping[str, Any]) -> tuple[float, float] | None:
    """Micrometres per pixel of the finest level, where the axes state a unit of length."""
    scales = [
        transformation["scale"]
        for stated in (image["datasets"][0], image)
        for transformation in stated.get("coordinateTransformations", ())
        if transformation["type"] == "scale"
    ]
    sizes = {}
    for number, axis in enumerate(image["axes"]):
        unit = micrometres(str(axis.get("unit", "")))
        if unit is not None and scales:
            sizes[axis["name"]] = math.prod(float(scale[number]) for scale in scales) * unit
    return (sizes["x"], sizes["y"]) if {"x", "y"} <= sizes.keys() else None


def _is_zarr(path: Path) -> bool:
    if path.is_dir():
        return any((path / name).is_file() for name in ("zarr.json", ".zgroup"))
    return path.suffix.lower() == ".ozx"


FURTHER = {
    "dicomweb": SlideBackend(is_remote, open_remote),
    "czi": SlideBackend(lambda path: path.is_file() and path.suffix.lower() == ".czi", CziSlide),
    "ome-zarr": SlideBackend(_is_zarr, OmeZarrSlide),
}
