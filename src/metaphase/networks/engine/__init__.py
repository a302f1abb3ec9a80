"""The dense engine: detectors over whole slides, from tiles of pixels to points, in bounded memory.

`Engine` needs torch and is loaded when it is asked for; all else, and `onnx`, works without.
"""

from typing import TYPE_CHECKING, Any

from metaphase.detections.matching import suppress
from metaphase.networks.engine.settings import DeviceError, EngineConfig, PeakConfig
from metaphase.networks.engine.streaming import (
    Detections,
    TileEngine,
    TileResult,
    as_detections,
    check_count,
    detect_tiles,
    even_tile_px,
    find_detections,
    inside,
    plan_detection,
    suppress_points,
    whole_map,
)

if TYPE_CHECKING:
    from metaphase.networks.engine.engine import Engine

__all__ = [
    "Detections",
    "DeviceError",
    "Engine",
    "EngineConfig",
    "PeakConfig",
    "TileEngine",
    "TileResult",
    "as_detections",
    "check_count",
    "detect_tiles",
    "even_tile_px",
    "find_detections",
    "inside",
    "plan_detection",
    "suppress",
    "suppress_points",
    "whole_map",
]


def __getattr__(name: str) -> Any:
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from metaphase.networks.engine.engine import Engine

    return Engine
