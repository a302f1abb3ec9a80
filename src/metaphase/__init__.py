"""Whole-slide mitosis detection for breast histology."""

__version__ = "0.1.0"
