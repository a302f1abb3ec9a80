"""Arrays by what they hold. Shapes stand in the functions' descriptions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

RGB = npt.NDArray[np.uint8]
"""Pixels (..., 3), red, green, blue from 0 to 255."""
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
AnyFloats = npt.NDArray[np.floating[Any]]
"""Of either precision."""
Integers = npt.NDArray[np.int64]
Points = npt.NDArray[np.float64]
"""Places (n, 2), columns x and y."""
