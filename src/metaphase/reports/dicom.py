"""Results for an archive: the count as a DICOM structured report (TID 1500), probabilities as a segmentation.

Both refer to the slide's finest level; annotations of single mitoses are a format of detections.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from metaphase.base.arrays import RGB
from metaphase.base.errors import OutputError
from metaphase.base.foreign import parsing
from metaphase.counting.clinical import KINDS, SlideCount
from metaphase.detections.formats.dicom import MAKER, algorithm, coded, equipment, kind_of, save, uid_of
from metaphase.detections.table import MITOSIS
from metaphase.slides.archive import source_image
from metaphase.version import __version__

TILE_PX = 512
CHECK = "check the slide's header: an object of the archive takes patient and study from it"


def write_count(path: Path, slide: Path, count: SlideCount, stated: dict[str, Any]) -> None:
    """The count in force with kind and interval, in its hotspot."""
    import highdicom
    from highdicom import sr
    from pydicom.sr.codedict import codes

    source = source_image(slide)
    with parsing(path, "the slide's header does not allow a report", next_step=CHECK, error=OutputError):
        report = sr.MeasurementReport(
            observation_context=sr.ObservationContext(
                observer_device_context=sr.ObserverContext(
                    codes.DCM.Device,
                    sr.DeviceObserverIdentifyingAttributes(
                        uid=uid_of(MAKER, __version__), name=MAKER, model_name=f"{MAKER} {__version__}"
                    ),
                )
            ),
            procedure_reported=codes.SCT.LightMicroscopy,
            imaging_measurements=[_hotspot(source, count, stated)],
            title=codes.DCM.ImagingMeasurementReport,
            referenced_images=[source],
        )
        made = highdicom.sr.Comprehensive3DSR(
            evidence=[source],
            content=report,
            series_instance_uid=uid_of(source.SeriesInstanceUID, "report"),
            series_number=9002,
            sop_instance_uid=uid_of(source.SOPInstanceUID, count.to_dict(), stated),
            instance_number=1,
            manufacturer=MAKER,
            is_complete=True,
            is_final=False,
            is_verified=False,
        )
        save(made, path)


def _hotspot(source: Any, count: SlideCount, stated: dict[str, Any]) -> Any:
    """The circle and what was counted in it, or in ten fields inside it."""
    from highdicom import sr
    from pydicom.sr.codedict import codes

    circle = count.hotspot
    middle = np.array([circle.x, circle.y])
    edge = middle + np.array([circle.radius_px, 0])
    image = sr.SourceImageForRegion(source.SOPClassUID, source.SOPInstanceUID)
    region = sr.ImageRegion("CIRCLE", np.stack([middle, edge]), image, "VOLUME")
    low, high = (None, None) if count.likely is None else count.likely.interval
    kind, name = count.kind, "95 % interval of the true mitotic figures"
    values = [
        (coded("mitotic-count", "Mitotic count"), count.count, codes.UCUM.Counts),
        (coded("true-figures-low", f"Lower end of the {name}"), low, codes.UCUM.Counts),
        (coded("true-figures-high", f"Upper end of the {name}"), high, codes.UCUM.Counts),
        (codes.SCT.Area, count.counted_mm2, codes.UCUM.SquareMillimeter),
    ]
    of_kind = coded("count-kind", "Kind of the mitotic count"), coded(f"count-{kind}", KINDS[kind])
    shown, said = count.score, [sr.QualitativeEvaluation(*of_kind)]
    if shown.low == shown.high:
        score = coded(f"score-{shown.low}", f"Mitotic score {shown.low}")
        said.append(sr.QualitativeEvaluation(coded("mitotic-score", f"Mitotic score, {shown.rule}"), score))
    found = algorithm(stated)[0]
    return sr.PlanarROIMeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(
            uid=uid_of(source.SOPInstanceUID, "hotspot"),
            identifier="circle around ten fields" if circle.fields else "hotspot",
        ),
        referenced_region=region,
        finding_type=coded("hotspot", "Mitotic hotspot"),
        finding_category=codes.SCT.MorphologicallyAbnormalStructure,
        algorithm_id=sr.AlgorithmIdentification(
            found.AlgorithmName,
            found.AlgorithmVersion,
            [part for part in str(found.get("AlgorithmParameters", "")).split(",") if part] or None,
        ),
        measurements=[
            sr.Measurement(name, float(value), unit) for name, value, unit in values if value is not None
        ],
        qualitative_evaluations=said,
    )


def write_probabilities(
    path: Path, slide: Path, probabilities: RGB, mpp: float, stated: dict[str, Any]
) -> None:
    """The probability map as a fractional segmentation; `probabilities` of 0 to 255, `mpp` um a side.

    Its first value begins where the slide's first pixel does.
    """
    import highdicom
    from pydicom.sr.codedict import codes

    source = source_image(slide)
    with parsing(path, "the slide's header does not allow a map", next_step=CHECK, error=OutputError):
        measures = source.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0]
        origin = source.TotalPixelMatrixOriginSequence[0]
        between_rows, between_columns = (float(side) for side in measures.PixelSpacing)
        across, down = np.array(source.ImageOrientationSlide, float).reshape(2, 3)
        corner = (origin.XOffsetInSlideCoordinateSystem, origin.YOffsetInSlideCoordinateSystem, 0)
        # DICOM states middles of pixels, here of the map's first value on the glass.
        position = np.array(corner, float) + across * (mpp / 1000 - between_columns) / 2
        position = position + down * (mpp / 1000 - between_rows) / 2
        made = highdicom.seg.Segmentation(
            source_images=[source],
            pixel_array=(probabilities.astype(np.float32) / 255)[None],
            segmentation_type="FRACTIONAL",
            fractional_type="PROBABILITY",
            max_fractional_value=255,
            segment_descriptions=[
                highdicom.seg.SegmentDescription(
                    segment_number=1,
                    segment_label="probability of a mitosis",
                    segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
                    segmented_property_type=kind_of(MITOSIS),
                    algorithm_type="AUTOMATIC",
                    algorithm_identification=algorithm(stated),
                )
            ],
            series_instance_uid=uid_of(source.SeriesInstanceUID, "probabilities"),
            series_number=9003,
            sop_instance_uid=uid_of(source.SOPInstanceUID, stated, probabilities.shape, probabilities.sum()),
            instance_number=1,
            pixel_measures=highdicom.PixelMeasuresSequence(
                (mpp / 1000, mpp / 1000), float(measures.SliceThickness)
            ),
            plane_orientation=highdicom.PlaneOrientationSequence("SLIDE", source.ImageOrientationSlide),
            plane_positions=[highdicom.PlanePositionSequence("SLIDE", tuple(position), (1, 1))],
            tile_pixel_array=True,
            tile_size=(TILE_PX, TILE_PX),
            content_label="PROBABILITY",
            **equipment(),
        )
        made.PatientOrientation = None
        save(made, path)
