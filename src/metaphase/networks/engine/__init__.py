"""The dense engine: detectors over whole slides, from tiles of pixels to points, in bounded memory."""

from metaphase.detections.suppression import suppress
from metaphase.networks.engine.engine import DeviceError, Engine, EngineConfig, PeakConfig
from metaphase.networks.engine.second import Second
from metaphase.networks.engine.streaming import (
    Detections,
    TileResult,
    as_detections,
    check_count,
    detect_tiles,
    find_detections,
    inside,
    plan_detection,
    suppress_points,
)

__all__ = [
    "Detections",
    "DeviceError",
    "Engine",
    "EngineConfig",
    "PeakConfig",
    "Second",
    "TileResult",
    "as_detections",
    "check_count",
    "detect_tiles",
    "find_detections",
    "inside",
    "plan_detection",
    "suppress",
    "suppress_points",
]
