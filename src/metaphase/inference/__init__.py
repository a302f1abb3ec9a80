"""The dense engine: detectors over whole slides, from tiles of pixels to points, in bounded memory."""

from metaphase.inference.config import EngineConfig, PeakConfig
from metaphase.inference.engine import DeviceError, Engine
from metaphase.inference.streaming import (
    Points,
    TileResult,
    detect_slide,
    detect_tiles,
    inside,
    plan_detection,
    suppress_points,
)
from metaphase.inference.suppression import suppress

__all__ = [
    "DeviceError",
    "Engine",
    "EngineConfig",
    "PeakConfig",
    "Points",
    "TileResult",
    "detect_slide",
    "detect_tiles",
    "inside",
    "plan_detection",
    "suppress",
    "suppress_points",
]
