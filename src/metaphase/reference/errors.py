"""What can be wrong with a reference standard."""

from __future__ import annotations

from metaphase.errors import MetaphaseError


class ReferenceStandardError(MetaphaseError):
    """A reference standard cannot be built, read or changed."""
