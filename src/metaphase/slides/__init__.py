"""Pixels at a physical resolution from any slide, tile plans, a prefetching reader and a pyramid writer."""

from metaphase.base.arrays import RGB
from metaphase.slides.backends import ArraySlide
from metaphase.slides.contract import WORKING_MPP, Level, Resolution, Slide, SlideBackend, SlideInfo
from metaphase.slides.opening import Backend, SlideSource, is_slide_there, open_slide
from metaphase.slides.tiles import (
    MaskGrid,
    Tile,
    TilePlan,
    TileProcesses,
    cut_square,
    cut_squares,
    plan_tiles,
    read_tiles,
)
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
    "SlideBackend",
    "SlideInfo",
    "SlideSource",
    "Tile",
    "TilePlan",
    "TileProcesses",
    "cut_square",
    "cut_squares",
    "is_slide_there",
    "open_slide",
    "plan_tiles",
    "read_tiles",
    "write_pyramid",
]
