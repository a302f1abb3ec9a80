"""The review page's server: who may ask, what is shown first, and that decisions arrive."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from metaphase.base.errors import UsageError
from metaphase.labels.building import finish_cohort
from metaphase.labels.observers.project import DEFAULT_ANSWERS
from metaphase.labels.observers.store import AnswerStore
from metaphase.labels.reference import read_reference
from metaphase.labels.reviewing import SETTINGS_OF_REVIEW, Review, collect_decisions, load_review, sureness
from metaphase.slides.arrays import ArraySlide
from metaphase.web.access import Access, Guard
from metaphase.web.labelling import ReviewCrops, labelling_app, turned_crop
from tests.labels.reference.workspaces import built_workspace
from tests.web.asgi import Client

TOKEN = "a-token-for-the-tests"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_workspace(tmp_path_factory.mktemp("review"))


@pytest.fixture
def review(workspace: Path) -> Review:
    return load_review(workspace)


@pytest.fixture
def client(review: Review) -> Iterator[Client]:
    crops = ReviewCrops(review)
    with AnswerStore(review.project) as store:
        app = Guard(labelling_app(review.project, store, crops, review), Access(TOKEN))
        with Client(app, "http://127.0.0.1:8501") as opened:
            opened.get(f"/?token={TOKEN}")
            yield opened
    crops.close()


def begin(client: Client, name: str = "Anna") -> dict[str, Any]:
    answer = client.post("/api/session", json={"observer": name})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def send(client: Client, item: int, decision: str | None, name: str = "Anna") -> dict[str, Any]:
    entry = {"uuid": str(uuid4()), "item": item, "answer": decision, "seconds": 1.5}
    return dict(client.post("/api/answers", json={"observer": name, "answers": [entry]}).json())


def test_strangers_and_foreign_hosts_are_kept_out(review: Review) -> None:
    with AnswerStore(review.project) as store:
        page = labelling_app(review.project, store, ReviewCrops(review), review)
        app = Guard(page, Access(TOKEN))
        with Client(app, "http://127.0.0.1:8501") as stranger:
            assert stranger.get("/").status_code == 403
            assert stranger.get("/", headers={"host": "evil.example"}).status_code == 421
            assert stranger.post("/api/session", json={"observer": "Eve"}).status_code == 403


def test_as_many_as_are_asked_for(workspace: Path, review: Review) -> None:
    """The page shows what the laboratory counts, and not all that there is."""
    few = load_review(workspace, most=3)
    assert few.order == review.order[:3]
    assert len(few.project.items) == len(review.project.items)


def test_a_key_means_one_thing_on_all_pages() -> None:
    page = (files("metaphase.web") / "static" / "viewing" / "page.html").read_text()
    buttons = re.findall(r"<b>([^<]+)</b><kbd>(\w)</kbd>", page)
    answers = [*DEFAULT_ANSWERS, *SETTINGS_OF_REVIEW.answers]
    said: dict[str, set[str]] = {}
    for label, key in [*buttons, *((one.label, one.key.upper()) for one in answers)]:
        said.setdefault(key, set()).add(label)
    assert said["M"] == {"Mitosis"}
    assert said["N"] == {"Not a mitosis", "Other cell"}, "where an artefact has a key of its own"
    assert {key for key, labels in said.items() if len(labels) > 1} == {"N"}


def test_the_least_sure_come_first_with_what_is_known(client: Client, review: Review) -> None:
    state = begin(client)
    sure = sureness(pd.DataFrame(state["points"])).tolist()
    assert sure == sorted(sure)
    assert len(state["items"]) == len(review.table) == 8
    assert [answer["name"] for answer in state["answers"]] == ["accept", "reject"]
    assert all(point["accepted"] and point["case"] == "01" for point in state["points"])


def test_each_warning_alone_brings_a_point_forward() -> None:
    good = {"confidence": 0.99, "probability": 0.99, "contrast": 3.0}
    rows = [good, good | {"confidence": 0.2}, good | {"probability": 0.3}, good | {"contrast": 0.8}]
    table = pd.DataFrame([*rows, good | {"contrast": np.nan}])
    assert np.argsort(sureness(table)).tolist() == [4, 1, 2, 3, 0]


def test_both_stains_show_the_same_tissue(client: Client) -> None:
    state = begin(client)
    centre, dark = slice(236, 276), []
    for side in ("he", "phh3"):
        answer = client.get(f"{state['crops']}/{state['items'][0]}/{side}.jpg")
        assert answer.headers["content-type"] == "image/jpeg"
        picture = np.asarray(Image.open(io.BytesIO(answer.content)).convert("L"), float)
        assert picture.shape == (512, 512)
        assert picture[centre, centre].mean() < picture.mean() - 25
        dark.append(255 - picture)
    assert np.corrcoef(dark[0].ravel(), dark[1].ravel())[0, 1] > 0.6
    assert client.get(f"{state['crops']}/1/he.jpg").status_code == 404
    assert client.get(f"{state['crops']}/{state['items'][0]}/other.jpg").status_code == 404
    assert client.get(f"/registration/{state['items'][0]}.png").content.startswith(b"\x89PNG")
    assert client.get("/registration/1.png").status_code == 404


def test_decisions_reach_the_table(client: Client, review: Review, workspace: Path) -> None:
    first, second, third = begin(client)["items"][:3]
    for item, decision in ((first, "reject"), (second, "reject"), (second, None), (third, "accept")):
        assert send(client, item, decision)["refused"] == []
    assert len(send(client, 1, "reject")["refused"]) == 1
    assert len(send(client, first, "perhaps")["refused"]) == 1
    assert dict(begin(client)["given"]) == {first: "reject", third: "accept"}
    assert begin(client, "Ben")["given"] == []
    collect_decisions(workspace)
    done = finish_cohort(workspace)
    assert (done.reviewed, done.changed, done.stale) == (2, 1, 0)
    table = read_reference(workspace)
    out = table[table["observer"] == "Anna"]
    assert sorted(out["accepted"]) == [False, True]
    assert out["reviewed"].str.startswith("20").all()
    rejected = review.by_number[first]
    position = out.loc[~out["accepted"], ["x", "y"]].to_numpy(float)[0]
    np.testing.assert_allclose(position, (rejected["x"], rejected["y"]))


def test_points_that_moved_are_new_and_old_decisions_stay(workspace: Path, client: Client) -> None:
    before = begin(client)["items"]
    send(client, before[0], "reject")
    table = read_reference(workspace)
    try:
        moved = table.assign(x=table["x"] + 30)
        moved.to_parquet(workspace / "reference.parquet", index=False)
        again = load_review(workspace)
        assert set(again.order).isdisjoint(before)
        assert len(again.project.items) == 2 * len(before)
        with AnswerStore(again.project) as store:
            assert store.current("Anna")
    finally:
        table.to_parquet(workspace / "reference.parquet", index=False)


def test_unknown_cases_and_foreign_points_are_refused(workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no case 99"):
        load_review(workspace, ["99"])
    row = {"case": "01", "x": 1, "y": 1, "x_phh3": 1, "y_phh3": 1}
    row |= {"decision": "accept", "observer": "Anna", "time": "2026"}
    pd.DataFrame([row]).to_csv(tmp_path / "d.csv", index=False)
    with pytest.raises(UsageError, match="row 1 does not match a point"):
        collect_decisions(workspace, tmp_path / "d.csv")


@pytest.mark.parametrize("degrees", [0.0, 7.0, 90.0, -160.0])
def test_a_turned_crop_is_turned_about_its_middle(degrees: float) -> None:
    """A white dot 10 um beside the place must lie where the matrix says."""
    angle = np.radians(degrees)
    matrix = 1.02 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    pixels = np.zeros((400, 400, 3), np.uint8)
    position, offset_um = np.array([200.0, 180.0]), np.array([10.0, -4.0])
    x, y = (position + offset_um / 0.5).astype(int)
    pixels[y - 1 : y + 1, x - 1 : x + 1] = 255
    crop = turned_crop(ArraySlide(pixels, 0.5), position, matrix, 64.0, 256)
    rows, columns = np.nonzero(crop[..., 0] > 60)
    found = (np.array([columns.mean(), rows.mean()]) + 0.5) * 64 / 256 - 32
    np.testing.assert_allclose(found, matrix @ offset_um, atol=0.3)
