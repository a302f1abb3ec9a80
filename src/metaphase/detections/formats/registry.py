"""All formats in one table."""

from __future__ import annotations

from metaphase.detections.formats.asap import ASAP
from metaphase.detections.formats.coco import COCO
from metaphase.detections.formats.contract import Format
from metaphase.detections.formats.grand_challenge import GRAND_CHALLENGE
from metaphase.detections.formats.qupath import GEOJSON
from metaphase.detections.formats.sliderunner import SLIDERUNNER
from metaphase.detections.formats.tabular import CSV, PARQUET

FORMATS: tuple[Format, ...] = (PARQUET, CSV, GEOJSON, ASAP, GRAND_CHALLENGE, COCO, SLIDERUNNER)
NAMES = tuple(sorted(known.name for known in FORMATS))
