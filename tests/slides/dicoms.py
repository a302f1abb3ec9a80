"""Small VL Whole Slide Microscopy series: a plain instance by pydicom, all else by wsidicom's writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sr.codedict import codes
from pydicom.uid import ExplicitVRLittleEndian, VLWholeSlideMicroscopyImageStorage, generate_uid
from wsidicom import WsiDicom

TILE_PX = 64
Pixels = npt.NDArray[np.uint8]


def write_plain(
    path: Path, image: Pixels, mpp: float | None = 0.25, *, left_out: tuple[int, ...] = (), **changes: Any
) -> Path:
    """Level 0, uncompressed; with `left_out` tiles (by number) it is sparse."""
    tiles = _tiles(image)
    kept = [number for number in range(len(tiles)) if number not in left_out]
    dataset = _described(image, mpp, **changes)
    dataset.NumberOfFrames = len(kept)
    dataset.PixelData = b"".join(tiles[number].tobytes() for number in kept)
    if left_out:
        dataset.DimensionOrganizationType = "TILED_SPARSE"
        across = -(-image.shape[1] // TILE_PX)
        dataset.PerFrameFunctionalGroupsSequence = [_frame(number, across, mpp or 1) for number in kept]
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)
    return path


def write_series(folder: Path, image: Pixels, mpp: float = 0.25, **options: Any) -> Path:
    """A pyramid of several files, by wsidicom; `options` are those of its `save`."""
    plain = write_plain(folder.with_name(f"{folder.name}-plain") / "level0.dcm", image, mpp)
    folder.mkdir(parents=True, exist_ok=True)
    with WsiDicom.open(plain) as slide:
        slide.save(folder, **{"add_missing_levels": True, "workers": 1, **options})
    return folder


def _tiles(image: Pixels) -> list[Pixels]:
    rows, columns = (-(-side // TILE_PX) for side in image.shape[:2])
    padded = np.full((rows * TILE_PX, columns * TILE_PX, 3), 255, np.uint8)
    padded[: image.shape[0], : image.shape[1]] = image
    grid = padded.reshape(rows, TILE_PX, columns, TILE_PX, 3).swapaxes(1, 2)
    return list(grid.reshape(-1, TILE_PX, TILE_PX, 3))


def _frame(number: int, across: int, mpp: float) -> Dataset:
    row, column = divmod(number, across)
    position, frame, content = Dataset(), Dataset(), Dataset()
    position.ColumnPositionInTotalImagePixelMatrix = column * TILE_PX + 1
    position.RowPositionInTotalImagePixelMatrix = row * TILE_PX + 1
    position.XOffsetInSlideCoordinateSystem = 10.0 - row * TILE_PX * mpp / 1000
    position.YOffsetInSlideCoordinateSystem = 20.0 - column * TILE_PX * mpp / 1000
    position.ZOffsetInSlideCoordinateSystem = 0.0
    content.DimensionIndexValues = [column + 1, row + 1]
    frame.PlanePositionSlideSequence, frame.FrameContentSequence = [position], [content]
    return frame


def _described(image: Pixels, mpp: float | None, **changes: Any) -> Dataset:
    """Everything but the pixels."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = VLWholeSlideMicroscopyImageStorage
    dataset.SOPClassUID = VLWholeSlideMicroscopyImageStorage
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = generate_uid(), generate_uid()
    dataset.FrameOfReferenceUID, dataset.PositionReferenceIndicator = generate_uid(), "SLIDE_CORNER"
    dataset.PatientName, dataset.PatientID = "Doe^Jane", "P1"
    dataset.PatientBirthDate, dataset.PatientSex = "19700101", "F"
    dataset.StudyDate, dataset.StudyTime, dataset.StudyID = "20240102", "030405", "S1"
    dataset.ContentDate = dataset.AcquisitionDateTime = "20240102"
    dataset.ContentTime, dataset.AccessionNumber = "030405", "A1"
    dataset.ReferringPhysicianName, dataset.Modality, dataset.SeriesNumber = "", "SM", 1
    dataset.InstanceNumber, dataset.AcquisitionDateTime = 1, "20240102030405"
    dataset.Manufacturer, dataset.ManufacturerModelName = "Maker", "Scanner"
    dataset.DeviceSerialNumber, dataset.SoftwareVersions = "1", "1"
    dataset.ImageType = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
    dataset.BurnedInAnnotation, dataset.SpecimenLabelInImage = "NO", "NO"
    dataset.LossyImageCompression, dataset.VolumetricProperties = "00", "VOLUME"
    dataset.FocusMethod, dataset.ExtendedDepthOfField = "AUTO", "NO"
    dataset.Rows = dataset.Columns = TILE_PX
    dataset.TotalPixelMatrixRows, dataset.TotalPixelMatrixColumns = image.shape[:2]
    dataset.TotalPixelMatrixFocalPlanes = dataset.NumberOfOpticalPaths = 1
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 3, "RGB"
    dataset.PlanarConfiguration = dataset.PixelRepresentation = 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
    dataset.DimensionOrganizationType = "TILED_FULL"
    dataset.ImagedVolumeHeight, dataset.ImagedVolumeWidth = (
        side * (mpp or 1) / 1000 for side in image.shape[:2]
    )
    dataset.ImagedVolumeDepth = 0.001
    dataset.ImageOrientationSlide = [0, -1, 0, -1, 0, 0]
    origin = Dataset()
    origin.XOffsetInSlideCoordinateSystem, origin.YOffsetInSlideCoordinateSystem = 10.0, 20.0
    dataset.TotalPixelMatrixOriginSequence = [origin]
    dataset.SharedFunctionalGroupsSequence = [_shared(mpp)]
    dataset.OpticalPathSequence = [_optical_path()]
    dataset.ContainerIdentifier, dataset.IssuerOfTheContainerIdentifierSequence = "C1", []
    dataset.ContainerTypeCodeSequence = [_code(codes.SCT.MicroscopeSlide)]
    specimen = Dataset()
    specimen.SpecimenIdentifier, specimen.SpecimenUID = "S1", generate_uid()
    specimen.IssuerOfTheSpecimenIdentifierSequence, specimen.SpecimenPreparationSequence = [], []
    dataset.SpecimenDescriptionSequence, dataset.AcquisitionContextSequence = [specimen], []
    dataset.DimensionOrganizationSequence = [Dataset()]
    dataset.DimensionOrganizationSequence[0].DimensionOrganizationUID = generate_uid()
    for name, value in changes.items():
        setattr(dataset, name, value)
    return dataset


def _shared(mpp: float | None) -> Dataset:
    shared, path, kind = Dataset(), Dataset(), Dataset()
    path.OpticalPathIdentifier = "1"
    kind.FrameType = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
    shared.OpticalPathIdentificationSequence, shared.WholeSlideMicroscopyImageFrameTypeSequence = (
        [path],
        [kind],
    )
    if mpp is not None:
        measures = Dataset()
        measures.PixelSpacing, measures.SliceThickness = [mpp / 1000, mpp / 1000], 0.001
        measures.SpacingBetweenSlices = 0.001
        shared.PixelMeasuresSequence = [measures]
    return shared


def _optical_path() -> Dataset:
    path = Dataset()
    path.OpticalPathIdentifier = "1"
    path.IlluminationTypeCodeSequence = [_code(codes.DCM.BrightfieldIllumination)]
    path.IlluminationColorCodeSequence = [_code(codes.SCT.FullSpectrum)]
    path.ICCProfile = b""
    return path


def _code(concept: Any) -> Dataset:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = (
        concept.value,
        concept.scheme_designator,
        concept.meaning,
    )
    return item
