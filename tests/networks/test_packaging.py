"""Models to give away: small weights, a card that says all, and no paths of the machine that made them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from metaphase.base.errors import MetaphaseError, ModelError, UsageError
from metaphase.detections.points import OperatingPoint
from metaphase.networks.additions import CardAdditions, read_additions
from metaphase.networks.architectures import build_network
from metaphase.networks.cards import (
    NOT_LABELLED,
    ModelCard,
    TrainingData,
    bundled_model,
    parse_card,
    warnings_about,
)
from metaphase.networks.checkpoints import load_model, package_model, save_model

DATA = TrainingData(name="fields", terms="CC0", positives=7)
POINT = OperatingPoint(name="patches", delta=0.9, metric="F1", value=0.7)
STATED = """
intended_use = "Research."
known_failures = ["Pale figures are missed."]
optical_density = [0.1, 0.4, 0.2]

[[data]]
name = "fields"
terms = "CC0"
positives = 7

[thresholds.mitoses]
parameters = { delta = 0.8 }
metric = "F1"
value = 0.75
false_per_mm2 = 6.0

[metrics.test]
f1 = 0.7
"""


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    card = ModelCard(
        name="cnn5", family="detector", gamma=0.05, mpp=0.25, patch_px=100, classes=("other", "mitosis"),
        thresholds={"patches": POINT}, metrics={"validation": {"f1": 0.9}}, seed=3,
        recipe={"train": ["stores/a"], "validation": ["stores/b"], "teachers": ["x"], "epochs": 2},
    )  # fmt: skip
    torch.manual_seed(0)
    save_model(tmp_path / "trained", build_network(card.spec), card)
    return tmp_path / "trained.safetensors"


def written(folder: Path, text: str, name: str = "card.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_weights_are_halved_and_answer_alike(trained: Path, tmp_path: Path) -> None:
    package_model(trained, tmp_path / "out" / "given", additions=CardAdditions(data=(DATA,)))
    given = tmp_path / "out" / "given.safetensors"
    assert given.stat().st_size < 0.6 * trained.stat().st_size
    image = torch.rand(2, 3, 100, 100)
    (first, _), (second, _) = load_model(trained), load_model(given)
    torch.testing.assert_close(second(image), first(image), atol=1e-2, rtol=1e-2)


def test_card_is_completed(trained: Path, tmp_path: Path) -> None:
    additions = read_additions(written(tmp_path, STATED))
    package_model(trained, tmp_path / "given", name="ours", additions=additions)
    _, card = load_model(tmp_path / "given")
    assert (card.name, card.seed, card.recipe) == ("ours", 3, {"epochs": 2})
    assert (card.data, card.intended_use) == ((DATA,), "Research.")
    assert card.known_failures == ("Pale figures are missed.",)
    assert card.optical_density == (0.1, 0.4, 0.2)
    assert card.thresholds["patches"] == POINT
    assert card.thresholds["mitoses"].numbers == {"delta": 0.8}
    assert card.metrics == {"validation": {"f1": 0.9}, "test": {"f1": 0.7}}


def test_what_is_not_stated_stays(trained: Path, tmp_path: Path) -> None:
    package_model(trained, tmp_path / "given", additions=CardAdditions(data=(DATA,)))
    _, card = load_model(tmp_path / "given")
    assert card.name == "given"
    assert card.intended_use == load_model(trained)[1].intended_use


def test_a_packaged_model_can_be_packaged_again(trained: Path, tmp_path: Path) -> None:
    package_model(trained, tmp_path / "first", additions=CardAdditions(data=(DATA,)))
    again = package_model(tmp_path / "first", tmp_path / "second", name="first")
    assert again == load_model(tmp_path / "first")[1]


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    toml = read_additions(written(tmp_path, STATED))
    text = toml.model_dump_json(exclude_unset=True)
    assert read_additions(written(tmp_path, text, "card.json")) == toml


def test_terms_are_needed(trained: Path, tmp_path: Path) -> None:
    unnamed = CardAdditions(data=(TrainingData(name="fields", terms=""),))
    for additions in (None, CardAdditions(), unnamed):
        with pytest.raises(ModelError, match=r"trained\.json: the card does not name .* terms\. Give --card"):
            package_model(trained, tmp_path / "given", additions=additions)
    assert not (tmp_path / "given.safetensors").exists()


def test_a_model_is_not_overwritten(trained: Path) -> None:
    for output in (trained, trained.with_suffix("")):
        with pytest.raises(UsageError, match="would overwrite"):
            package_model(trained, output, additions=CardAdditions(data=(DATA,)))


def test_a_missing_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent\.safetensors: no such model"):
        package_model(tmp_path / "absent.safetensors", tmp_path / "given")


@pytest.mark.parametrize(
    ("name", "text", "described"),
    [
        ("card.toml", "licence = 1", r"has no setting licence\. Choose among data, .*known_failures"),
        ("card.json", '{"licence": 1}', r"has no setting licence\. Choose among data"),
        ("card.toml", '[[data]]\nname = "fields"', r"'fields' states no terms\. Add terms"),
        ("card.json", '{"data": [{"name": "fields", "terms": ""}]}', r"'fields' states no terms"),
        ("card.toml", '[[data]]\nterms = "CC0"', r"data\.0\.name"),
        ("card.toml", "optical_density = [1.0]", r"optical_density"),
        ("card.toml", "data = 3", r"data"),
        ("card.toml", "data = [3]", r"data\.0"),
        ("card.toml", "data =", r"not valid TOML"),
        ("card.json", "{", r"not valid JSON"),
        ("card.json", "[" * 100_000, r"not valid JSON"),
        ("card.json", "[]", r"not a JSON object"),
    ],
)
def test_mistakes_in_a_card_are_told(tmp_path: Path, name: str, text: str, described: str) -> None:
    with pytest.raises(UsageError, match=rf"{name}: .*{described}"):
        read_additions(written(tmp_path, text, name))


@pytest.mark.parametrize("name", ["absent.toml", "absent.json"])
def test_a_missing_card_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(MetaphaseError, match=rf"{name}: no such file, .* Check the spelling"):
        read_additions(tmp_path / name)


def test_cards_hold_no_paths(trained: Path, tmp_path: Path) -> None:
    package_model(trained, tmp_path / "given", additions=CardAdditions(data=(DATA,)))
    assert "stores/" not in json.dumps(json.loads((tmp_path / "given.json").read_text()))


def test_a_poor_model_says_so() -> None:
    for name in ("breast", "simulated"):
        assert warnings_about(parse_card(bundled_model(name).with_suffix(".json"))) == ()
    good = parse_card(bundled_model().with_suffix(".json"))
    point = good.thresholds["mitoses"]
    poor = good.model_copy(
        update={
            "thresholds": {"mitoses": point.model_copy(update={"value": 0.3, "patients": ("one",)})},
            "metrics": {"learnt from": {"mitoses": 12}},
        }
    )
    assert [warning.code for warning in warnings_about(poor)] == ["poor-model", "few-patients", "few-labels"]
    skipped = poor.model_copy(update={"thresholds": {}, "metrics": {NOT_LABELLED: ["artefacts", "mitoses"]}})
    described = warnings_about(skipped)
    assert described[-1].code == "rounds-skipped"
    assert "nobody labelled artefacts and mitoses" in str(described[-1])
