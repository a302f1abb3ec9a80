"""Pixels at a physical resolution from any slide, tile plans, a prefetching reader and a pyramid writer."""

from metaphase.slides.array import ArraySlide
from metaphase.slides.contract import RGB, WORKING_MPP, Level, Resolution, Slide, SlideInfo
from metaphase.slides.opening import Backend, open_slide
from metaphase.slides.planning import MaskGrid, Tile, TilePlan, plan_tiles
from metaphase.slides.reading import read_tiles
from metaphase.slides.squares import cut_squares
from metaphase.slides.writer import PyramidFormat, write_pyramid

__all__ = [
    "RGB",
    "WORKING_MPP",
    "ArraySlide",
    "Backend",
    "Level",
    "MaskGrid",
    "PyramidFormat",
    "Resolution",
    "Slide",
    "SlideInfo",
    "Tile",
    "TilePlan",
    "cut_squares",
    "open_slide",
    "plan_tiles",
    "read_tiles",
    "write_pyramid",
]
