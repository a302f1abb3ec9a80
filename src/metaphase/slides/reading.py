"""A reader that keeps its consumer fed: tiles are decoded ahead, in threads, within a memory bound."""

from __future__ import annotations

from collections.abc import Iterator

from metaphase.parallel import available_cores, ordered_map
from metaphase.slides.contract import RGB, Slide
from metaphase.slides.planning import Tile, TilePlan


def read_tiles(
    slide: Slide, plan: TilePlan, *, threads: int | None = None, ahead: int | None = None
) -> Iterator[tuple[Tile, RGB]]:
    """Each tile of the plan with the pixels of its outer box, in the plan's order.

    At most `ahead` tiles (default: two a thread) wait decoded in memory while the consumer works.
    """
    workers = threads or available_cores()

    def read(tile: Tile) -> tuple[Tile, RGB]:
        x, y = plan.to_level0(tile.outer.x, tile.outer.y)
        return tile, slide.read(x, y, tile.outer.width, tile.outer.height, plan.mpp)

    yield from ordered_map(read, plan.tiles, threads=workers, ahead=2 * workers if ahead is None else ahead)
