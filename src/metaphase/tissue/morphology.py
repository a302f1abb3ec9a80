"""Binary morphology with discs, and connected pieces. The image border is no edge of the mask."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


def dilated(mask: Mask, radius_px: float) -> Mask:
    """The mask grown by a disc."""
    return cv2.dilate(mask.astype(np.uint8), _disc(radius_px)) > 0


def eroded(mask: Mask, radius_px: float) -> Mask:
    """The mask shrunk by a disc."""
    return cv2.erode(mask.astype(np.uint8), _disc(radius_px)) > 0


def opened(mask: Mask, radius_px: float) -> Mask:
    """The parts of the mask that a disc fits into."""
    return _morphed(mask, cv2.MORPH_OPEN, radius_px)


def closed(mask: Mask, radius_px: float) -> Mask:
    """The mask with the gaps filled that a disc does not fit into."""
    return _morphed(mask, cv2.MORPH_CLOSE, radius_px)


def piece_areas(mask: Mask, *, connectivity: int = 8) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """A label for each pixel (0 outside the mask) and the area in pixels by label."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=connectivity)
    return np.asarray(labels, np.int32), np.asarray(stats[:, cv2.CC_STAT_AREA], np.int32)


def without_small_objects(mask: Mask, min_area_px: float) -> Mask:
    """The mask without connected pieces (8 neighbours) smaller than `min_area_px`."""
    labels, areas = piece_areas(mask)
    return (areas >= min_area_px)[labels] & mask


def without_small_holes(mask: Mask, min_area_px: float) -> Mask:
    """The mask with holes (4 neighbours) smaller than `min_area_px` filled; gaps at the border are none."""
    outside = np.pad(~mask, 1, constant_values=True)
    labels, areas = piece_areas(outside, connectivity=4)
    filled = (areas < min_area_px) & (np.arange(len(areas)) != labels[0, 0])
    return np.asarray(filled[labels] & outside, np.bool_)[1:-1, 1:-1] | mask


def without_coreless_objects(mask: Mask, core: Mask) -> Mask:
    """The connected pieces (8 neighbours) of the mask that hold some of `core`."""
    labels, areas = piece_areas(mask)
    keep = np.zeros(len(areas), np.bool_)
    keep[labels[core & mask]] = True
    return keep[labels] & mask


def _morphed(mask: Mask, operation: int, radius_px: float) -> Mask:
    """Morphology on the mask continued beyond the image border by repeating its edge."""
    disc = _disc(radius_px)
    reach = 2 * (disc.shape[0] // 2)
    padded = np.pad(mask.astype(np.uint8), reach, mode="edge")
    result = cv2.morphologyEx(padded, operation, disc)
    return result[reach : reach + mask.shape[0], reach : reach + mask.shape[1]] > 0


def _disc(radius_px: float) -> npt.NDArray[np.uint8]:
    """All pixels within the radius; below one pixel a single one, which changes nothing."""
    reach = int(radius_px)
    y, x = np.ogrid[-reach : reach + 1, -reach : reach + 1]
    return np.asarray(x * x + y * y <= radius_px * radius_px + 1e-6, np.uint8)
