"""Values that are stored as JSON and read back: typed models of one kind, and numbers that may be unknown."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
)

from metaphase.base.errors import UsageError
from metaphase.base.foreign import parsing, read_json


class Stored(BaseModel):
    """Base of what is stored. Types are strict; keys of a file that are not named here are for people."""

    model_config = ConfigDict(
        strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, populate_by_name=True
    )


Kind = TypeVar("Kind", bound=Stored)


def read_typed(path: Path, kind: type[Kind], what: str, *, next_step: str) -> Kind:
    """What a JSON file holds; `what` says what a file that holds anything else is not."""
    content = read_json(path, what, next_step=next_step)
    with parsing(path, what, next_step=next_step):
        try:
            return kind.model_validate_json(json.dumps(content))
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        except UsageError as error:
            raise ValueError(str(error)) from error


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
