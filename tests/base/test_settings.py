"""A setting is written once: it is checked, read from files, accounted for and explained by its field."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, PositiveInt

from metaphase.base.errors import UsageError
from metaphase.base.provenance import account_of, decides
from metaphase.base.settings import (
    CODE_ONLY,
    IN_ORDER,
    PathText,
    PositiveShare,
    read_settings,
    settings,
    settings_of,
)


@settings
class Oven:
    """What a cake is baked in."""

    celsius: Annotated[int, Field(ge=100, le=250)] = 180
    """Temperature of the oven."""
    kind: Literal["gas", "electric"] = "gas"
    """How it is heated."""


@settings
class Cake:
    """A cake."""

    sugar: PositiveShare = 0.2
    """Share of sugar,
    by weight."""
    layers: Annotated[PositiveInt, Field(multiple_of=2)] | None = None
    """Layers; by default as they come."""
    minutes: Annotated[tuple[float, float], IN_ORDER] = (30.0, 40.0)
    """Shortest and longest time."""
    recipe: PathText = ""
    """File of the recipe."""
    cooks: PositiveInt = field(default=1, metadata=decides())
    """Who changes nothing about it."""
    batch: Annotated[int, CODE_ONLY] = 7
    """Only code sets it."""
    oven: Oven = field(default_factory=Oven)
    """Which oven."""

    def __post_init__(self) -> None:
        if self.sugar > 0.5 and self.oven.celsius > 200:
            raise UsageError("it burns", next_step="take less sugar")


def test_it_is_a_frozen_dataclass_whose_numbers_are_of_their_type() -> None:
    cake = Cake(1, 4, oven=Oven(150))
    assert (cake.sugar, type(cake.sugar), cake.layers, cake.oven.celsius) == (1.0, float, 4, 150)
    assert [one.name for one in fields(cake)][:2] == ["sugar", "layers"]
    assert replace(cake, sugar=0.5) != cake
    assert pickle.loads(pickle.dumps(cake)) == cake  # noqa: S301 -- our own
    assert hash(cake) == hash(replace(cake))
    with pytest.raises(FrozenInstanceError):
        cake.sugar = 0.3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sugar": 1.5}, "sugar is 1.5. Give a number above 0 and of at most 1."),
        ({"sugar": float("nan")}, "sugar is nan. Give a finite number."),
        ({"layers": 3}, "layers is 3. Give a number above 0 and a multiple of 2."),
        ({"sugar": "much"}, "sugar is 'much'. Give a number above 0 and of at most 1."),
        ({"minutes": (4.0, 3.0)}, "minutes is (4.0, 3.0). Give a lowest and then a highest number."),
        ({"sugar": 0.9, "oven": Oven(250)}, "it burns. Take less sugar."),
    ],
)
def test_what_is_wrong_is_named_with_its_range(wrong: dict[str, Any], message: str) -> None:
    for make in (lambda: Cake(**wrong), lambda: replace(Cake(), **wrong)):
        for _ in range(2):
            with pytest.raises(UsageError) as refused:
                make()
            assert str(refused.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sugar = 0", "sugar is 0. Give a number above 0 and of at most 1."),
        ("[oven]\ncelsius = 99", "oven.celsius is 99. Give a number from 100 to 250."),
        ('[oven]\nkind = "wood"', "oven.kind is 'wood'. Give 'gas' or 'electric'."),
        ("cooks = 1.5", "cooks is 1.5. Give a number above 0."),
        ("cooks = true", "cooks is True. Give a number above 0."),
        ("recipe = 3", "recipe is 3. Give a string."),
        ("minutes = [1, 'a']".replace("'", '"'), "minutes[1] is 'a'. Give a number."),
        ("minutes = 3", "minutes is 3. Give a list."),
        ("oven = 3", "oven is 3. Write a table [oven]."),
        ("[oven]\nheat = 1\nglow = 2", "[oven] has no setting glow, heat. Choose among celsius, kind."),
        ("sugar = 2020-01-01", "sugar is '2020-01-01'. Give a number above 0 and of at most 1."),
        (
            "batch = 3",
            "the file has no setting batch. Choose among cooks, layers, minutes, oven, recipe, sugar.",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named_by_file_table_and_key(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "cake.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_settings(Cake, path)
    assert str(refused.value) == f"{path}: {message}"


def test_a_file_gives_what_its_tables_say(tmp_path: Path) -> None:
    path = tmp_path / "cake.toml"
    path.write_text('sugar = 1\nminutes = [20, 25]\nrecipe = "a.txt"\n[oven]\ncelsius = 120\n')
    cake = read_settings(Cake, path, {"sugar": 0.25})
    assert cake == Cake(0.25, minutes=(20, 25), recipe=str(tmp_path / "a.txt"), oven=Oven(120))
    assert read_settings(Cake, None) == settings_of(Cake, {}) == Cake()


def test_every_setting_is_an_ingredient_unless_it_says_otherwise() -> None:
    account = account_of(Cake())
    assert account == {
        "sugar": 0.2, "layers": None, "minutes": [30, 40], "recipe": "", "batch": 7,
        "oven": {"celsius": 180, "kind": "gas"},
    }  # fmt: skip
    assert account_of(Cake(cooks=3)) == account
    assert account_of(Cake(1)) == account_of(Cake(1.0)) != account
