"""Values that are stored as JSON and read back: typed models of one kind, and numbers that may be unknown."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationInfo


class Stored(BaseModel):
    """Base of what is stored. Types are strict; keys of a file that are not named here are for people."""

    model_config = ConfigDict(
        strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, populate_by_name=True
    )


def _number(value: object, info: ValidationInfo) -> object:
    if info.mode == "json" and isinstance(value, float) and not math.isfinite(value):
        raise ValueError("is not a finite number")
    return math.nan if value is None else value


Number = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(_number),
    PlainSerializer(
        lambda value: value if math.isfinite(value) else None, return_type=float | None, when_used="json"
    ),
]
"""A number that may be unknown: NaN in Python, null in JSON."""
