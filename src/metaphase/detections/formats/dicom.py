"""DICOM Microscopy Bulk Simple Annotations: one file per slide, points in pixels of its total pixel matrix.

What is written refers to the slide's finest level, by study, series and instance, and says who found it. No
public code of a mitotic figure could be verified, so its code is of a private scheme.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from metaphase.base.errors import OutputError
from metaphase.base.files import atomic_path
from metaphase.base.foreign import is_file, library, parsing
from metaphase.base.later import pandas as pd
from metaphase.base.tables import TableError
from metaphase.detections.formats.contract import (
    Context,
    Format,
    Row,
    found_in,
    name_of,
)
from metaphase.detections.table import (
    BELOW,
    CERTAIN,
    IGNORE,
    LOOKALIKE,
    MITOSIS,
    OPERATING_POINTS,
    DetectionSet,
    identities,
)
from metaphase.slides.archive import source_image
from metaphase.version import __version__

ANNOTATIONS = "1.2.840.10008.5.1.4.1.1.91.1"
"""SOP class of Microscopy Bulk Simple Annotations."""
SCHEME = "99METAPHASE"
"""Private scheme of our codes."""
MAKER = "metaphase"
NEEDS = "DICOM annotations need"
KINDS = {MITOSIS: "mitotic-figure", BELOW: "below-threshold", LOOKALIKE: "lookalike", IGNORE: "ignore"}
"""Values of our codes."""
_START = 4096
DIGITS = [bytes([digit]) for digit in b"0123456789."]
"""What would make another UID of one."""


def coded(value: str, meaning: str) -> Any:
    """A code of our own scheme."""
    from pydicom.sr.coding import Code

    return Code(value, SCHEME, meaning)


def written(label: str) -> str:
    """The class name of a label as DICOM text holds it: 64 characters, no backslash, which parts values."""
    return name_of(label).replace("%", "%25").replace("\\", "%5C")[:64]


def kind_of(label: str) -> Any:
    """The code of a label; what DICOM has no code for has one of ours."""
    value = KINDS.get(label) or hashlib.sha256(label.encode()).hexdigest()[:16]
    return coded(value, written(label))


def uid_of(*parts: object) -> str:
    """A UID that depends on these alone, so that the same result has the same one."""
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).digest()
    return f"2.25.{int.from_bytes(digest[:16], 'big')}"


def equipment() -> dict[str, Any]:
    """Who made an object."""
    return {
        "manufacturer": MAKER,
        "manufacturer_model_name": MAKER,
        "software_versions": __version__,
        "device_serial_number": __version__,
    }


def source_of(context: Context, slide: str, path: Path) -> Any:
    """Header of the DICOM slide that a file refers to."""
    position = context.sources.get(slide)
    if position is None:
        raise OutputError(
            f"the DICOM file of slide {slide} is not known, to which annotations refer",
            path=path,
            next_step="give the slide's file or folder with --slide, or in the column he of --manifest",
        )
    return source_image(position)


def algorithm(stated: dict[str, Any]) -> Any:
    """The model by name, with its operating points."""
    import highdicom
    from pydicom.sr.codedict import codes

    parameters = {
        f"delta {name}": f"{stated[name]['delta']:g}"
        for name in ("mitoses", "count")
        if "delta" in stated.get(name, {})
    }
    name, family = str(stated.get("model") or MAKER)[:64], codes.DCM.ArtificialIntelligence
    return highdicom.AlgorithmIdentificationSequence(name, family, __version__, MAKER, parameters or None)


def save(dataset: Any, path: Path) -> None:
    """Write an object whole or not at all."""
    with atomic_path(path) as temporary:
        dataset.save_as(temporary, enforce_file_format=True)


def write(detections: DetectionSet, path: Path, context: Context) -> None:
    """A group of points for each label, with their probabilities."""
    (slide,) = detections.slides
    highdicom = library("highdicom", "dicom", NEEDS, path=path, error=OutputError)
    source = source_of(context, slide, path)
    table = detections.table
    stated = table.attrs.get(OPERATING_POINTS, {})
    labels = list(dict.fromkeys(table["label"])) or [MITOSIS]
    with parsing(
        path, "the slide's header does not allow annotations", next_step="check the slide", error=OutputError
    ):
        groups = [
            _group(number, table[table["label"] == label], label, source, stated)
            for number, label in enumerate(labels, 1)
        ]
        identity = uid_of(source.SOPInstanceUID, *identities(table), *table["probability"], stated)
        annotations = highdicom.ann.MicroscopyBulkSimpleAnnotations(
            source_images=[source],
            annotation_coordinate_type="2D",
            annotation_groups=groups,
            series_instance_uid=uid_of(source.SeriesInstanceUID, "annotations"),
            series_number=9001,
            sop_instance_uid=identity,
            instance_number=1,
            content_label="MITOSES",
            content_description="Mitoses found by metaphase; research only, not for diagnosis",
            **equipment(),
        )
        annotations.SpecificCharacterSet = "ISO_IR 192"
        save(annotations, path)


def _group(number: int, points: pd.DataFrame, label: str, source: Any, stated: dict[str, Any]) -> Any:
    import highdicom
    from pydicom.sr.codedict import codes

    positions = points[["x", "y"]].to_numpy(np.float64)
    about = {
        "number": number,
        "uid": uid_of(source.SOPInstanceUID, label, positions.tobytes().hex()),
        "label": written(label),
        "annotated_property_category": codes.SCT.MorphologicallyAbnormalStructure,
        "annotated_property_type": kind_of(label),
        "graphic_type": "POINT",
        "algorithm_type": "MANUAL",
    }
    if stated or (points["probability"] < CERTAIN).any():
        about |= {"algorithm_type": "AUTOMATIC", "algorithm_identification": algorithm(stated)}
    probability = highdicom.ann.Measurements(
        codes.DCM.Probability, points["probability"].to_numpy(np.float64), codes.UCUM.NoUnits
    )
    if len(positions):
        rows = [position[None] for position in positions]
        return highdicom.ann.AnnotationGroup(graphic_data=rows, measurements=[probability], **about)
    empty = highdicom.ann.AnnotationGroup(graphic_data=[np.zeros((1, 2))], **about)
    empty.NumberOfAnnotations, empty.DoublePointCoordinatesData = 0, b""
    return empty


def read(path: Path, context: Context) -> DetectionSet:
    """Points of all groups; outlines and boxes by their centres."""
    highdicom = library("highdicom", "dicom", NEEDS, path=path, error=OutputError)
    if not holds_annotations(path):
        raise TableError(
            "is DICOM, but not Microscopy Bulk Simple Annotations", path=path, next_step="name that file"
        )
    annotations = highdicom.ann.annread(path)
    if annotations.AnnotationCoordinateType != "2D":
        raise TableError(
            "its positions are millimetres on the glass, not pixels of an image",
            path=path,
            next_step="export them as 2D annotations",
        )
    rows = [row for group in annotations.get_annotation_groups() for row in _rows(group, context.slide)]
    return found_in(path, rows, (context.slide,))


def _rows(group: Any, slide: str) -> list[Row]:
    count = int(group.NumberOfAnnotations)
    if not count:
        return []
    positions = [(shape.min(0) + shape.max(0)) / 2 for shape in group.get_graphic_data("2D")]
    if len(positions) != count:
        raise ValueError(f"{len(positions):,} positions of {count:,} annotations")
    names, values, _ = group.get_measurements()
    columns = [index for index, name in enumerate(names) if name.value == "122157"]
    given = values[:, columns[0]] if columns else np.full(count, np.nan)
    known = [None if np.isnan(value) else round(float(value), 7) for value in given]
    label = unquote(str(group.annotated_property_type.meaning))
    if group.annotated_property_type.scheme_designator != SCHEME:
        label = f"{group.AnnotationGroupLabel} {label}"
    return [(slide, float(x), float(y), value, label) for (x, y), value in zip(positions, known, strict=True)]


def holds_annotations(path: Path) -> bool:
    """Whether a DICOM file is of this format; slides and reports may lie beside it."""
    if not is_file(path):
        return False
    with path.open("rb") as file:
        start = file.read(_START)
    position = start.find(ANNOTATIONS.encode())
    return position > 0 and start[position + len(ANNOTATIONS) :][:1] not in DIGITS


DICOM = Format(
    "dicom",
    (".dcm",),
    read,
    write,
    one_slide=True,
    title="DICOM annotations",
    recognises=holds_annotations,
)
