"""What can go wrong with stains through no fault of the options."""

from __future__ import annotations

from metaphase.errors import MetaphaseError


class TooLittleTissueError(MetaphaseError):
    """An image or slide has too few stained pixels to tell how it is stained."""


class StainFileError(MetaphaseError):
    """A saved transform or template cannot be understood."""
