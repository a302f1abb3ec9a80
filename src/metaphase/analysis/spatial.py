"""Results of a slide as a SpatialData object, in its level-0 pixels and in micrometres."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import shapely

from metaphase.analysis.record import SlideResult
from metaphase.base.foreign import library

if TYPE_CHECKING:
    from spatialdata import SpatialData

UM = "um"
"""The coordinate system in micrometres; `global` is that of level-0 pixels."""


def spatial_data(result: SlideResult) -> SpatialData:
    """Detections as points, and as shapes the tissue and the circle or the fields that were counted.

    Pixels stay in the slide: `attrs["metaphase"]` has its path with all that `summary.json` says.
    Needs `metaphase[spatialdata]`.
    """
    sd, geopandas, models, transformations = (
        library(name, "spatialdata", "SpatialData needs")
        for name in ("spatialdata", "geopandas", "spatialdata.models", "spatialdata.transformations")
    )
    placed = {
        "global": transformations.Identity(),
        UM: transformations.Scale([result.mpp, result.mpp], axes=("x", "y")),
    }

    def shapes(geometry: list[Any], **columns: Any) -> Any:
        frame = geopandas.GeoDataFrame({"geometry": geometry, **columns})
        return models.ShapesModel.parse(frame, transformations=placed)

    circles = result.record.hotspot.circles
    centres = [shapely.Point(x, y) for x, y, _ in circles]
    found = {
        "tissue": shapes(list(result.tissue.polygons(1.0))),
        "hotspot": shapes(centres, radius=[radius for _, _, radius in circles]),
    }
    points = models.PointsModel.parse(
        result.table.reset_index(drop=True), coordinates={"x": "x", "y": "y"}, transformations=placed
    )
    made: SpatialData = sd.SpatialData(
        points={"detections": points}, shapes=found, attrs={"metaphase": dict(result.summary)}
    )
    return made
