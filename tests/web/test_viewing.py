"""The viewer through HTTP: tiles, counts, answers, who may see what, and names that mean harm."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from PIL import Image

from metaphase.analysis.index import write_cohort
from metaphase.analysis.record import load_result, write_stored
from metaphase.analysis.review import apply_reviews, withdraw_review
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.tables import read_table
from metaphase.counting.clinical import SlideCount
from metaphase.counting.specimen import CountConfig
from metaphase.labels.observers.positions import PositionLog, moved_to, position_name
from metaphase.reports.pages import in_words
from metaphase.slides.opening import open_slide
from metaphase.web import viewing
from metaphase.web.access import Access, Guard
from metaphase.web.viewed import TILE_PX, TileMaker, ViewedSlide, viewed_slides
from metaphase.web.viewing import viewing_app
from tests.web.asgi import Client
from tests.web.results import (
    spread_positions,
    write_probability_map,
    write_registration,
    write_result,
    write_sparse_slide,
)

HERE = "http://127.0.0.1:8502"
WIDTH, HEIGHT = 3000, 2200
PLACES = spread_positions(24, WIDTH, HEIGHT)
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def slide_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sparse_slide(tmp_path_factory.mktemp("slides") / "one.tif", WIDTH, HEIGHT, PLACES)


@pytest.fixture
def results(tmp_path: Path, slide_file: Path) -> Path:
    write_result(tmp_path / "results" / "one", slide_file, WIDTH, HEIGHT, PLACES)
    write_result(tmp_path / "results" / "two", slide_file, WIDTH, HEIGHT, PLACES[:6], HOSTILE)
    return tmp_path / "results"


@pytest.fixture
def slides(results: Path) -> Iterator[list[ViewedSlide]]:
    found = viewed_slides([results])
    yield found
    for one in found:
        one.close()


@pytest.fixture
def tiles() -> Iterator[TileMaker]:
    made = TileMaker(cache_bytes=400_000)
    yield made
    made.close()


def client_of(slides: list[ViewedSlide], tiles: TileMaker, **options: Any) -> Client:
    access = Access()
    return Client(Guard(viewing_app(slides, tiles, **options), access), HERE, access.token)


@pytest.fixture
def client(slides: list[ViewedSlide], tiles: TileMaker) -> Iterator[Client]:
    with client_of(slides, tiles) as opened:
        yield opened


def verdict(slide: ViewedSlide, position: Any, answer: str | None) -> dict[str, Any]:
    item = {"slide": slide.key, "x": round(float(position[0]), 1), "y": round(float(position[1]), 1)}
    return {"uuid": str(uuid4()), "item": item, "answer": answer, "seconds": 1.0}


def send(client: Client, *answers: dict[str, Any], observer: str = "Anna") -> dict[str, Any]:
    reply = client.post("/api/answers", json={"observer": observer, "answers": answers})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def seen(client: Client, slide: ViewedSlide, **asked: Any) -> dict[str, Any]:
    reply = client.post(f"/api/count/{slide.key}", json=asked)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def count(client: Client, slide: ViewedSlide, **asked: Any) -> dict[str, Any]:
    counted: dict[str, Any] = seen(client, slide, **asked)["count"]
    return counted


def test_tiles_are_the_slide_at_every_level_without_seams(
    client: Client, slides: list[ViewedSlide], slide_file: Path
) -> None:
    view = client.get(f"/api/slide/{slides[0].key}").json()
    with open_slide(slide_file) as slide:
        for level in range(view["levels"] + 1):
            scale = 2**level
            shape = (-(-HEIGHT // scale), -(-WIDTH // scale))
            whole = np.zeros((*shape, 3), np.uint8)
            for row in range(-(-shape[0] // TILE_PX)):
                for column in range(-(-shape[1] // TILE_PX)):
                    reply = client.get(f"{view['tiles']}/{level}/{column}_{row}.jpg")
                    assert "immutable" in reply.headers["cache-control"]
                    pixels = np.asarray(Image.open(io.BytesIO(reply.content)))
                    y, x = row * TILE_PX, column * TILE_PX
                    whole[y : y + pixels.shape[0], x : x + pixels.shape[1]] = pixels
            expected = slide.read(0, 0, shape[1], shape[0], slide.mpp * scale)
            assert np.abs(whole.astype(int) - expected).mean() < 6  # JPEG
    huge = "9" * 400
    for address in ("9/0_0.jpg", "0/99_0.jpg", "0/-1_0.jpg", "-1/0_0.jpg", "60/0_0.jpg", f"{huge}/0_0.jpg",
                    f"0/{huge}_0.jpg", f"0/0_{huge}.jpg", f"0/{2**47}_0.jpg"):  # fmt: skip
        assert client.get(f"{view['tiles']}/{address}").status_code in (404, 422)
    tiles = TileMaker()
    assert tiles.make(slides[0], 5000, 0, 0) is tiles.make(slides[0], 0, int(huge), 0) is None
    assert client.get(f"/tile/{slides[0].key}/slide/older/0/0_0.jpg").status_code == 404


def layer_at(client: Client, view: dict[str, Any], layer: dict[str, Any], level: int) -> Any:
    """All tiles of a layer as one picture."""
    shape = (-(-HEIGHT // 2**level), -(-WIDTH // 2**level))
    whole = np.zeros((*shape, 4 if layer["ending"] == "png" else 3), np.uint8)
    for row in range(-(-shape[0] // TILE_PX)):
        for column in range(-(-shape[1] // TILE_PX)):
            reply = client.get(f"{layer['tiles']}/{level}/{column}_{row}.{layer['ending']}")
            assert reply.status_code == 200, reply.text
            pixels = np.asarray(Image.open(io.BytesIO(reply.content)))
            y, x = row * TILE_PX, column * TILE_PX
            whole[y : y + pixels.shape[0], x : x + pixels.shape[1]] = pixels
    return whole


def test_layers_lie_where_the_slide_is(results: Path, slide_file: Path, tiles: TileMaker) -> None:
    pair = write_registration(results.parent / "pair", slide_file, WIDTH, HEIGHT, PLACES)
    write_probability_map(results / "one", WIDTH, HEIGHT, PLACES)
    slides = viewed_slides([results / "one"], registrations=[pair])
    inner = PLACES[((PLACES > 150) & (PLACES < (WIDTH - 150, HEIGHT - 150))).all(axis=1)]
    with client_of(slides, tiles) as client:
        view = client.get(f"/api/slide/{slides[0].key}").json()
        assert [one["name"] for one in view["layers"]] == ["phh3", "probability"]
        for level in (0, 2):
            at = (inner / 2**level).astype(int)
            phh3, probability = (layer_at(client, view, one, level) for one in view["layers"])
            figures, away = (phh3[at[:, 1] + off, at[:, 0]].mean(axis=1) for off in (0, 160 // 2**level))
            assert (figures < 110).all()
            assert np.median(away) > 150
            alpha, away = (probability[at[:, 1] + off, at[:, 0], 3] for off in (0, 160 // 2**level))
            assert (alpha > 100).all()
            assert np.median(away) == 0
        for wrong in ("none/0/0/0_0.jpg", f"phh3/{'0' * 16}/0/0_0.jpg"):
            assert client.get(f"/tile/{slides[0].key}/{wrong}").status_code == 404
        address = view["layers"][0]["tiles"]
        assert client.get(f"{address}/0/99_0.jpg").status_code == 404
        assert client.get(f"{address}/0/0_0.png").status_code == 404
    for one in slides:
        one.close()


def test_pairs_that_cannot_be_shown_are_refused(results: Path, slide_file: Path, tmp_path: Path) -> None:
    other = write_registration(tmp_path / "pair", Path("other.tif"), 600, 600, PLACES[:1])
    with pytest.raises(
        UsageError, match=r"belongs to the H&E slide other\.tif, which is not among those to view"
    ):
        viewed_slides([results], registrations=[other])
    summary = json.loads((other / "summary.json").read_text())
    for change, described in (
        ({"verdict": "failed"}, "the registration failed"),
        ({"phh3_path": "absent.tif"}, "no longer there"),
        ({"he_path": None, "phh3_path": 7}, "no longer there"),
    ):
        (other / "summary.json").write_text(json.dumps(summary | change))
        with pytest.raises(MetaphaseError, match=described):
            viewed_slides([slide_file], registrations=[other])
    (other / "summary.json").write_text("{}")
    with pytest.raises(MetaphaseError, match="holds no registration of a pair"):
        viewed_slides([slide_file], registrations=[other])


def test_tiles_are_kept_within_bounds(slides: list[ViewedSlide], tiles: TileMaker) -> None:
    for _ in range(2):
        for column in range(5):
            if tiles.kept(slides[0], 0, column, 0) is None:
                tiles.make(slides[0], 0, column, 0)
    made = tiles.made
    assert tiles.kept(slides[0], 0, 4, 0) is not None
    assert sum(len(tiles.kept(slides[0], 0, column, 0) or b"") for column in range(5)) <= 400_000
    tiles.make(slides[0], 0, 0, 1)
    assert tiles.made == made + 1


def test_a_tile_that_the_browser_gave_up_is_not_made(slides: list[ViewedSlide], tiles: TileMaker) -> None:
    access = Access()
    app = Guard(viewing_app(slides, tiles), access)
    path = f"/tile/{slides[0].key}/slide/{slides[0].layers['slide'].version}/0/0_0.jpg"
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {access.token}".encode())],
        "http_version": "1.1", "scheme": "http",
        "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip
    messages = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"", "more_body": False}]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return messages.pop() if len(messages) > 1 else messages[0]

    async def keep(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, keep))
    assert tiles.made == 0
    assert sent[0]["status"] == 499


def test_the_count_follows_answers_and_nothing_is_lost(
    client: Client, slides: list[ViewedSlide], tiles: TileMaker
) -> None:
    slide = slides[0]
    before = count(client, slide)
    assert before["count"] == slide.found.machine.count
    assert (before["kind"], before["beneath"]) == ("model", [])
    sent = [verdict(slide, PLACES[row], "not") for row in (0, 1)]
    extra = verdict(slide, PLACES[0] + 300, "mitosis")
    for _ in range(2):  # sent twice, written once
        receipt = send(client, *sent, extra)
        assert receipt == {"saved": [one["uuid"] for one in (*sent, extra)], "refused": []}
    view = seen(client, slide, observer="Anna")
    after = view["count"]
    assert after["counted"] == before["counted"] - 2 + 1
    assert after["kind"] == "reviewed"
    assert view["lines"][1:] == [str(slide.found.in_force)]
    assert view["shares"] == ["Anna: 2 of 12"]
    assert view["standing"] == [], "the page has its own"
    nobody = seen(client, slide)
    assert nobody["count"] == after
    said = {(one["x"], one["y"]): one["answer"] for one in nobody["standing"]}
    assert said == {(one["item"]["x"], one["item"]["y"]): one["answer"] for one in (*sent, extra)}
    (reopened,) = viewed_slides([slide.found.folder])
    with client_of([reopened], tiles) as again:
        assert count(again, reopened)["counted"] == after["counted"]
    reopened.close()
    send(client, verdict(slide, PLACES[0], None))
    standing = client.post(f"/api/review/{slide.key}", json={"observer": "anna"}).json()
    assert standing["observer"] == "Anna"
    assert sorted(one["answer"] for one in standing["standing"]) == ["mitosis", "not"]


def rows(client: Client, observer: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.post("/api/slides", json={"observer": observer}).json()["slides"]
    return found


def test_the_list_follows_the_answers(client: Client, slides: list[ViewedSlide]) -> None:
    slide = slides[0]
    send(client, *(verdict(slide, PLACES[row], "not") for row in (0, 1, len(PLACES) - 1)))
    followed = seen(client, slide, observer="Anna")["row"]
    assert followed == rows(client, "Anna")[0]
    assert (followed["answered"], followed["candidates"]) == (3, len(PLACES))
    assert followed["waits"]
    assert followed["count"]["count"] < slide.found.machine.count
    assert rows(client, "Ben")[0]["answered"] == 0
    assert rows(client)[0]["answered"] == 3
    assert followed["width"] == np.diff(followed["count"]["likely"]["interval"])
    assert seen(client, slide, threshold=0.3)["row"] is None


def test_count_interval_and_score_follow_an_answer_and_the_threshold(
    client: Client, slides: list[ViewedSlide]
) -> None:
    """What the server says is what the count says of the same answers, at the same threshold."""
    slide = slides[0]
    before = count(client, slide)
    assert before == json.loads(json.dumps(slide.found.record.to_dict()))
    assert (before["count"], before["likely"]["answers"]) == (before["hotspot"]["count"], 0)
    send(client, *(verdict(slide, PLACES[row], "not") for row in range(4)))
    after = count(client, slide)
    assert after["count"] == before["count"] - 4
    assert after["likely"]["answers"] == 4
    assert after["likely"]["figures"] < before["likely"]["figures"]
    assert "from 4 answers in the circle" in after["interval_note"]
    assert [one["text"] for one in after["scores"]] == [count_of(slide, None).score.text]
    low = count(client, slide, threshold=0.3)
    assert low["count"] > after["count"]
    assert low["to_look_at"] < count(client, slide, threshold=0.9)["to_look_at"]
    for threshold, found in ((None, after), (0.3, low)):
        assert found == json.loads(json.dumps(count_of(slide, threshold).to_dict()))


def count_of(slide: ViewedSlide, threshold: float | None) -> SlideCount:
    return slide.counted(slide.answers("", blind=False), threshold)[1]


def test_without_an_interval_the_list_and_the_count_say_so(
    tmp_path: Path, slide_file: Path, tiles: TileMaker
) -> None:
    plain = CountConfig(threshold=0.6)
    write_result(tmp_path / "one", slide_file, WIDTH, HEIGHT, PLACES, counting=plain)
    slides = viewed_slides([tmp_path / "one"])
    with client_of(slides, tiles) as client:
        (row,) = rows(client)
        assert (row["width"], row["count"]["interval_text"]) == (None, "")
        assert count(client, slides[0])["interval_note"].startswith("no interval: nothing is known")
    for one in slides:
        one.close()


def test_a_review_is_applied_and_withdrawn_from_the_page(
    client: Client, slides: list[ViewedSlide], tiles: TileMaker
) -> None:
    slide = slides[0]
    write_cohort(slide.found.folder.parent)
    before = rows(client, "Anna")[0]
    send(client, *(verdict(slide, PLACES[row], "not") for row in range(4)))
    send(client, verdict(slides[1], PLACES[0], "not"), observer="Ben")
    assert [one["waits"] for one in rows(client)] == [True, True]
    applied = client.post("/api/apply", json={}).json()
    results = [load_result(one.found.folder) for one in slides]
    assert applied == {"applied": {one.name: str(one.in_force) for one in results}, "failed": []}
    result = results[0]
    assert [one["count"]["count"] for one in rows(client)] == [one.count for one in results]
    assert [one["waits"] for one in rows(client)] == [False, False]
    assert read_table(slide.found.folder.parent / "counts.csv")["count"].tolist() == [
        one.count for one in results
    ]
    assert "Anna" in result.report.read_text()
    with client_of(slides, tiles, blind=True) as blind:
        refused = blind.post("/api/apply", json={})
        assert (refused.status_code, "blind" in refused.json()["detail"]) == (409, True)
    standing = client.post(f"/api/withdraw/{slide.key}", json={"observer": "Anna"}).json()
    assert standing == {"observer": "Anna", "standing": [], "marks": [], "seconds": 4.0}
    assert rows(client, "Anna")[0] == before
    assert load_result(slide.found.folder).count == before["count"]["count"]
    assert "Reviewed" not in result.report.read_text()
    assert client.post(f"/api/withdraw/{slide.key}", json={"observer": "Anna"}).status_code == 422
    assert slide.log.changes() == {"Anna": 4}


def test_the_threshold_moves_the_count_and_density_is_a_picture(
    client: Client, slides: list[ViewedSlide]
) -> None:
    low, high = (count(client, slides[0], threshold=threshold) for threshold in (0.3, 0.9))
    assert low["counted"] > high["counted"]
    assert low["config"]["threshold"] == 0.3
    view = seen(client, slides[0], threshold=0.3)
    picture = client.get(view["density"]["address"])
    assert Image.open(io.BytesIO(picture.content)).mode == "RGBA"
    assert client.get("/density/none.png").status_code == 404


def test_blind_observers_learn_nothing_of_each_other(slides: list[ViewedSlide], tiles: TileMaker) -> None:
    slide = slides[0]
    with client_of(slides, tiles, blind=True) as client:
        machine = count(client, slide)
        send(client, *(verdict(slide, PLACES[row], "not") for row in range(4)), observer="Ben")
        replies = [
            client.post("/api/slides", json={"observer": "Anna"}).json(),
            client.post(f"/api/review/{slide.key}", json={"observer": "Anna"}).json(),
            count(client, slide, observer="Anna"),
            count(client, slide),
            seen(client, slide),
        ]
        assert replies[-1]["standing"] == replies[-1]["shares"] == []
        assert "Ben" not in json.dumps(replies)
        assert replies[0]["slides"][0]["progress"] == 0
        assert replies[2]["count"] == replies[3]["count"] == machine["count"]
        assert count(client, slide, observer="Ben")["counted"] == machine["counted"] - 4


def test_marks_are_kept_beside_the_answers_and_reported(client: Client, slides: list[ViewedSlide]) -> None:
    """Atypical figures and notes change no count, wait to be applied, are reported, can be taken back."""
    slide, before = slides[0], count(client, slides[0])
    note = verdict(slide, (20.0, 30.0), "mucin & <b>folds</b>")
    note["item"]["kind"] = "note"
    atypical = verdict(slide, PLACES[0], "atypical")
    atypical["item"]["kind"] = "atypical"
    long, other, off = (verdict(slide, PLACES[1], text) for text in ("x" * 299 + "\n", "odd", "atypical"))
    long["item"]["kind"], other["item"]["kind"] = "note", "atypical"
    off["item"] |= {"kind": "atypical", "x": WIDTH + 9}
    wrong = [long, other, off]
    assert send(client, note, atypical, *wrong)["refused"] == [one["uuid"] for one in wrong]
    assert count(client, slide) == before
    assert rows(client)[0]["waits"]
    reply = client.post(f"/api/review/{slide.key}", json={"observer": "Anna"}).json()
    assert [(one["kind"], one["text"], one["own"]) for one in reply["marks"]] == [
        ("note", "mucin & <b>folds</b>", True),
        ("atypical", "atypical", True),
    ]
    client.post("/api/apply", json={})
    assert not rows(client)[0]["waits"]
    page = slide.found.report.read_text()
    assert "mucin &amp; &lt;b&gt;folds&lt;/b&gt;" in page
    assert "atypical, marked by Anna" in page
    assert slide.found.record.count == before["count"]
    with client_of(slides, TileMaker(), blind=True) as blind:
        hidden = blind.post(f"/api/review/{slide.key}", json={"observer": "Ben"}).json()
        assert hidden["marks"] == []
    client.post(f"/api/withdraw/{slide.key}", json={"observer": "Anna"})
    assert "mucin" not in slide.found.report.read_text()


def test_figures_are_cut_from_the_slide(client: Client, slides: list[ViewedSlide], slide_file: Path) -> None:
    view = client.get(f"/api/slide/{slides[0].key}").json()
    x, y = view["x"][0], view["y"][0]
    reply = client.get(f"{view['figures']}/{x}_{y}.jpg")
    pixels = np.asarray(Image.open(io.BytesIO(reply.content)))
    with open_slide(slide_file) as slide:
        expected = slide.read(x - 128, y - 128, 256, 256)
    assert np.abs(pixels.astype(int) - expected).mean() < 6  # JPEG
    for wrong in (
        f"{view['figures']}/nan_{y}.jpg",
        f"{view['figures']}/{x}_1e99.jpg",
        f"{view['figures']}x/{x}_{y}.jpg",
    ):
        assert client.get(wrong).status_code in (404, 422)


def test_looking_leaves_no_trace(client: Client, slides: list[ViewedSlide]) -> None:
    client.post("/api/slides", json={})
    client.get(f"/api/slide/{slides[0].key}")
    count(client, slides[0])
    assert not (slides[0].found.folder / "review.sqlite").exists()


def test_wrong_answers_are_refused_and_others_kept(client: Client, slides: list[ViewedSlide]) -> None:
    good = verdict(slides[0], PLACES[0], "not")
    bad = [verdict(slides[0], PLACES[1], "<script>"), verdict(slides[0], PLACES[1], "not")]
    bad[1]["item"]["slide"] = "none"
    off = (("-5000", 5), (5, HEIGHT + 1), (WIDTH + 1, 5), (1e8, 1e8))
    bad += [verdict(slides[0], position, "mitosis") for position in off]
    bad.append(verdict(slides[0], PLACES[1], moved_to(-1, 5)))
    assert send(client, good, *bad) == {"saved": [good["uuid"]], "refused": [one["uuid"] for one in bad]}
    for wrong in (
        {"observer": ""},
        {"observer": "\x00", "answers": [good]},
        {"observer": "=1+1", "answers": [good]},
        {"observer": "Anna", "answers": [good | {"uuid": "-" * 36}]},
    ):
        assert client.post("/api/answers", json=wrong).status_code in (200, 422)
    with PositionLog(slides[0].found.folder, WIDTH, HEIGHT) as log:
        assert log.observers() == ["Anna"]


def test_a_bad_answer_that_is_stored_keeps_nobody_from_the_others(
    client: Client, slides: list[ViewedSlide]
) -> None:
    before = count(client, slides[0])["count"]
    with PositionLog(slides[0].found.folder, 10**9, 10**9) as log:  # as an earlier version took it
        log.record("Ben", position_name(1e8, 1e8), "mitosis")
        log.record("Ben", position_name(5, 5), moved_to(1e8, 5))
    rows = client.post("/api/slides", json={})
    assert rows.json()["slides"][0]["count"]["count"] == before == count(client, slides[0])["count"]
    (slides[1].found.folder / "review.sqlite").write_bytes(b"damaged" * 1000)
    assert [one["name"] for one in client.post("/api/slides", json={}).json()["slides"]] == ["one", HOSTILE]


def test_hostile_names_are_plain_text_in_strict_pages(client: Client) -> None:
    rows = client.post("/api/slides", json={})
    assert rows.headers["content-type"] == "application/json"
    assert [one["name"] for one in rows.json()["slides"]] == ["one", HOSTILE]
    page = client.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert HOSTILE not in page.text
    assert "<script>" not in page.text  # scripts are files of our own
    assert "OpenSeadragon contributors" in client.get("/LICENSE.txt").text


def test_who_is_let_in(slides: list[ViewedSlide], tiles: TileMaker) -> None:
    with Client(Guard(viewing_app(slides, tiles), Access()), "http://slides.example") as foreign:
        assert foreign.get("/").status_code == 421
    access = Access("a-token-of-some-length", loopback_only=False)
    with Client(Guard(viewing_app(slides, tiles), access), "http://slides.example") as distant:
        tile = f"/tile/{slides[0].key}/slide/{slides[0].layers['slide'].version}/0/0_0.jpg"
        assert distant.get(tile).status_code == 403
        distant.get("/?token=a-token-of-some-length")
        assert distant.get(tile).status_code == 200
        posted = distant.post("/api/slides", json={}, headers={"origin": "http://elsewhere.example"})
        assert posted.status_code == 403


def test_a_slide_by_itself_and_wrong_paths(slide_file: Path, tiles: TileMaker, tmp_path: Path) -> None:
    slides = viewed_slides([slide_file, slide_file])
    with client_of(slides, tiles) as client:
        view = client.get(f"/api/slide/{slides[0].key}").json()
        assert len(slides) == 1
        assert (view["counted"], view["x"]) == (False, [])
        assert client.post(f"/api/count/{slides[0].key}", json={}).status_code == 404
    with pytest.raises(UsageError, match="holds no results"):
        viewed_slides([tmp_path])
    with pytest.raises(MetaphaseError, match="no such file"):
        viewed_slides([tmp_path / "absent.svs"])


def test_without_openseadragon_the_next_step_is_named(
    slides: list[ViewedSlide], tiles: TileMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewing, "ZOOMER", "absent.js")
    with pytest.raises(MetaphaseError, match=r"OpenSeadragon is missing.*[Ii]nstall it from a wheel"):
        viewing_app(slides, tiles)


def test_a_slide_that_is_gone_does_not_keep_the_others_away(results: Path, tiles: TileMaker) -> None:
    summary = json.loads((results / "two" / "summary.json").read_text())
    write_stored(results / "two" / "summary.json", summary | {"slide": "absent.tif"})
    described: list[str] = []
    one, two = viewed_slides([results], failed=described.append)
    assert (one.name, one.problem) == ("one", "")
    assert described == [two.problem]
    assert re.search(
        r"absent\.tif: the slide of .*two is no longer there\. Put it back, or .*--slides", two.problem
    )
    with client_of([one, two], tiles) as client:
        listed = rows(client)
        assert [row["problem"] for row in listed] == ["", in_words(two.problem)]
        assert listed[1]["count"]["count"] == count(client, two)["count"] == two.found.count
        view = client.get(f"/api/slide/{two.key}").json()
        assert (view["problem"], len(view["x"])) == (in_words(two.problem), 6)
        assert client.get(f"{view['tiles']}/0/0_0.jpg").status_code == 404
        send(client, verdict(one, PLACES[0], "not"), verdict(two, PLACES[0], "not"))
        applied = client.post("/api/apply", json={}).json()
        assert list(applied["applied"]) == ["one"]
        assert "no longer there" in applied["failed"][0]
        assert [row["waits"] for row in rows(client)] == [False, True], "nothing is lost"


def test_moved_slides_are_found_by_what_they_hold(
    results: Path, slide_file: Path, tmp_path: Path, tiles: TileMaker
) -> None:
    for name in ("one", "two"):
        path = results / name / "summary.json"
        write_stored(path, json.loads(path.read_text()) | {"slide": "absent.tif"})
    (tmp_path / "moved").mkdir()
    with pytest.raises(MetaphaseError, match=r"absent\.tif: .* no longer there, and is not in .*moved"):
        apply_reviews_after_an_answer(results / "one", tmp_path / "moved")
    (tmp_path / "moved" / "deep").mkdir()
    shutil.copy(slide_file, tmp_path / "moved" / "deep" / "renamed.tif")
    (tmp_path / "moved" / "other.tif").write_bytes(b"something else")
    slides = viewed_slides([results], moved=tmp_path / "moved")
    assert [one.problem for one in slides] == ["", ""]
    with client_of(slides, tiles, moved=tmp_path / "moved") as client:
        view = client.get(f"/api/slide/{slides[0].key}").json()
        assert client.get(f"{view['tiles']}/0/0_0.jpg").status_code == 200
        applied = client.post("/api/apply", json={}).json()
        assert (list(applied["applied"]), applied["failed"]) == (["one"], [])
    assert load_result(results / "one").source.path.name == "renamed.tif", "and where it is, is known now"


def apply_reviews_after_an_answer(folder: Path, moved: Path) -> None:
    with PositionLog(folder, WIDTH, HEIGHT) as log:
        log.record("Anna", position_name(*PLACES[0]), "not")
    apply_reviews([folder], slides=moved)


def test_a_viewer_left_open_shows_what_the_files_say_now(client: Client, slides: list[ViewedSlide]) -> None:
    slide = slides[0]
    before = seen(client, slide)
    assert client.get(f"/api/record/{slide.key}").json() == before["record"] == slide.record
    apply_reviews_after_an_answer(slide.found.folder, slide.found.folder)
    now = load_result(slide.found.folder)
    assert client.get(f"/api/record/{slide.key}").json() != before["record"]
    after = seen(client, slide)
    assert after["count"]["count"] == now.count == rows(client)[0]["count"]["count"]
    assert now.count == before["count"]["count"] - 1
    withdraw_review([slide.found.folder], "Anna")
    assert count(client, slide) == before["count"]
