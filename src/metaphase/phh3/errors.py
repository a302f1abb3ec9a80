"""What can be wrong with a slide that should be PHH3."""

from __future__ import annotations

from metaphase.errors import MetaphaseError


class Phh3Error(MetaphaseError):
    """A PHH3 slide, or what was made from it, cannot be used."""
