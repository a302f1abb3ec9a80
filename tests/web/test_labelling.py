"""The application through HTTP: what observers get, what they never get, and who is let in."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from metaphase.base.errors import UsageError
from metaphase.labels.observers.project import Project
from metaphase.labels.observers.store import AnswerStore
from metaphase.web.access import HEADERS, MAX_BODY, Access, Guard, is_loopback, own_token
from metaphase.web.labelling import CropMaker, labelling_app
from metaphase.web.serving import KINDS
from tests.web.asgi import Client

TOKEN = "a-token-of-some-length"
HERE = "http://127.0.0.1:8500"


@pytest.fixture
def client(project: Project, store: AnswerStore) -> Iterator[Client]:
    access = Access()
    with Client(
        Guard(labelling_app(project, store, CropMaker(project)), access), HERE, access.token
    ) as opened:
        yield opened


@pytest.fixture
def distant(project: Project, store: AnswerStore) -> Iterator[Client]:
    """A server open to the network."""
    access = Access(TOKEN, loopback_only=False)
    app = Guard(labelling_app(project, store, CropMaker(project)), access)
    with Client(app, "http://labels.example:8500") as opened:
        yield opened


def session(client: Client, observer: str = "Anna") -> dict[str, Any]:
    response = client.post("/api/session", json={"observer": observer})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def answer(item: int, name: str | None = "mitosis", **fields: Any) -> dict[str, Any]:
    return {"uuid": str(uuid4()), "item": item, "answer": name, "seconds": 1.5, **fields}


def send(client: Client, *answers: dict[str, Any], observer: str = "Anna") -> httpx.Response:
    return client.post("/api/answers", json={"observer": observer, "answers": answers})


def test_an_observer_labels_and_comes_back(client: Client, store: AnswerStore, project: Project) -> None:
    first, second = session(client)["items"][:2]
    sent = [answer(first), answer(second, "not")]
    reply = send(client, *sent).json()
    assert reply == {"saved": [one["uuid"] for one in sent], "refused": []}
    again = session(client, "anna ")
    assert again["observer"] == "Anna"
    assert again["given"] == [[first, "mitosis"], [second, "not"]]
    assert again["seconds"] == 3.0
    assert [one.item for one in store.current()] == [project.by_number[n].name for n in (first, second)]


def test_sending_twice_writes_once_and_undo_takes_back(client: Client, store: AnswerStore) -> None:
    item = session(client)["items"][0]
    given = answer(item)
    for _ in range(3):
        assert send(client, given).json()["saved"] == [given["uuid"]]
    assert store.seconds_spent("Anna") == 1.5
    send(client, answer(item, None))
    send(client, given)  # a late repetition does not bring it back
    assert session(client)["given"] == []


def test_nobody_learns_of_others_or_of_the_slides(
    client: Client, store: AnswerStore, project: Project
) -> None:
    for item in project.by_name:
        store.record("Ben", item, "artefact", 7.0)
    state = session(client)
    described = json.dumps(state | {"answers": None})
    assert state["given"] == []
    assert state["seconds"] == 0
    for secret in ("Ben", "artefact", "secret", "patient", "i00", "0.123", "0.987", str(project.folder)):
        assert secret not in described
    assert set(state) == {
        "observer", "project", "title", "question", "answers", "items", "points", "given", "seconds", "crops",
        "marks", "sides_um",
    }  # fmt: skip
    assert state["points"] == [], "these are for reviews, which are not blind"
    picture = client.get(f"{state['crops']}/{state['items'][0]}/close.jpg")
    assert "secret" not in str(picture.headers) + picture.text


def test_orders_differ_between_observers(client: Client) -> None:
    anna, ben = session(client)["items"], session(client, "Ben")["items"]
    assert anna != ben
    assert sorted(anna) == sorted(ben)


def test_pictures_may_be_kept_and_bad_addresses_lead_nowhere(client: Client) -> None:
    state = session(client)
    good = client.get(f"{state['crops']}/{state['items'][0]}/close.jpg")
    assert good.status_code == 200
    assert good.headers["content-type"] == "image/jpeg"
    assert "immutable" in good.headers["cache-control"]
    assert "private" in good.headers["cache-control"]
    for address in (
        "1/close.jpg",
        f"{state['items'][0]}/wide.jpg",
        "../../items.csv",
        "x/close.jpg",
        "-1/close.jpg",
    ):
        bad = client.get(f"{state['crops']}/{address}")
        assert bad.status_code in (404, 422)
        assert bad.headers["cache-control"] == "no-store"
    assert client.get(f"/crop/old/{state['items'][0]}/close.jpg").status_code == 404


def test_a_missing_slide_does_not_stop_the_others(client: Client, project: Project) -> None:
    (project.folder / "secret-a.png").unlink()
    state = session(client)
    replies = [client.get(f"{state['crops']}/{item}/close.jpg") for item in state["items"]]
    assert sorted(reply.status_code for reply in replies) == [200] * 6 + [404] * 6
    assert {reply.text for reply in replies if reply.status_code == 404} == {'{"detail":"unavailable"}'}


@pytest.mark.parametrize(
    "address",
    ["/items.csv", "/answers.sqlite", "/static/page.js", "/../project.json", "/%2e%2e/items.csv", "/docs",
     "/openapi.json", "/page.js/../../project.py", "/%2fetc/passwd"],
)  # fmt: skip
def test_no_path_reaches_the_file_system(client: Client, address: str) -> None:
    assert client.get(address).status_code == 404


def test_every_asset_is_there_and_the_page_asks_for_no_other(client: Client) -> None:
    page = client.get("/").text
    scripts = "".join(client.get(f"/{name}.js").text for name in ("page", "controls"))
    wanted = re.findall(r'(?:href|src)="/([^"]+)"', page) + re.findall(r'from "/([^"]+)"', scripts)
    assert {"page.js", "page.css", "icon.svg", "controls.js", "outbox.js"} <= set(wanted)
    for address in wanted:
        reply = client.get(f"/{address}")
        assert reply.status_code == 200, address
        assert reply.headers["content-type"] == KINDS[Path(address).suffix]
    assert "http:" not in page
    assert "https:" not in page
    assert "style=" not in page  # the policy forbids it
    assert "onclick=" not in page


@pytest.mark.parametrize(
    "body",
    [
        {"observer": "Anna"},
        {"observer": "Anna", "answers": []},
        {"observer": "Anna", "answers": [{"item": 1}]},
        {"observer": "", "answers": [answer(1)]},
        {"observer": "=Anna", "answers": [answer(1)]},
        {"observer": "a" * 65, "answers": [answer(1)]},
        {"observer": 5, "answers": [answer(1)]},
        {"observer": "Anna", "answers": [answer(1, uuid="no")]},
        {"observer": "Anna", "answers": [answer(-1)]},
        {"observer": "Anna", "answers": [answer(2**60)]},
        {"observer": "Anna", "answers": [answer(1) | {"item": "1"}]},
        {"observer": "Anna", "answers": [answer(1) | {"item": "../items.csv"}]},
        {"observer": "Anna", "answers": [answer(1, seconds=-1)]},
        {"observer": "Anna", "answers": [answer(1, seconds=1e9)]},
        {"observer": "Anna", "answers": [answer(1, extra=1)]},
        {"observer": "Anna", "answers": [answer(1)] * 101},
        [],
        "text",
    ],
)
def test_odd_answers_are_refused(client: Client, store: AnswerStore, body: Any) -> None:
    reply = client.post("/api/answers", json=body)
    assert reply.status_code == 422
    assert "detail" in reply.json()
    assert store.observers() == []


def test_invalid_json_and_infinities(client: Client) -> None:
    for text in ("{", '{"observer": "Anna", "answers": [{"seconds": Infinity}]}'):
        reply = client.post("/api/answers", content=text, headers={"content-type": "application/json"})
        assert reply.status_code == 422


def test_unknown_items_and_answers_are_reported_and_the_rest_saved(client: Client) -> None:
    item = session(client)["items"][0]
    good, gone, odd = answer(item), answer(12345), answer(item, "perhaps")
    reply = send(client, good, gone, odd).json()
    assert reply == {"saved": [good["uuid"]], "refused": [gone["uuid"], odd["uuid"]]}
    assert session(client)["given"] == [[item, "mitosis"]]


def test_a_database_in_trouble_asks_the_browser_to_try_again(client: Client, store: AnswerStore) -> None:
    item = session(client)["items"][0]
    store._connection.execute("PRAGMA query_only = 1")
    reply = send(client, answer(item))
    assert reply.status_code == 503
    assert "sqlite" not in reply.text
    store._connection.execute("PRAGMA query_only = 0")
    assert send(client, answer(item)).status_code == 200


# ---- who is let in ----


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8500", 200), ("localhost:9000", 200), ("[::1]:8500", 200), ("LOCALHOST", 200),
        ("evil.example:8500", 421), ("127.0.0.1.evil.example", 421), ("", 421),
        ("localhost.evil.example", 421), ("[::1", 421), ("192.168.1.5:8500", 421),
    ],
)  # fmt: skip
def test_foreign_names_for_this_machine_are_refused(client: Client, host: str, status: int) -> None:
    assert client.get("/", headers={"host": host}).status_code == status
    reply = client.post("/api/session", json={"observer": "A"}, headers={"host": host})
    assert reply.status_code == status


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_only_json_may_write(client: Client, kind: str) -> None:
    reply = client.post("/api/session", content='{"observer": "A"}', headers={"content-type": kind})
    assert reply.status_code == 415


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": HERE}, 200),
        ({"origin": HERE, "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
    ],
)
def test_only_the_page_itself_may_write(client: Client, headers: dict[str, str], status: int) -> None:
    assert client.post("/api/session", json={"observer": "A"}, headers=headers).status_code == status


async def unstated() -> AsyncIterator[bytes]:
    """A long body whose length is not told beforehand."""
    for _ in range(MAX_BODY // 1000 + 2):
        yield b"x" * 1000


def test_other_methods_and_long_bodies(client: Client) -> None:
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert client.request(method, "/api/answers").status_code == 405
    long = "x" * (MAX_BODY + 1)
    assert client.post("/api/session", json={"observer": long}).status_code == 413
    reply = client.post("/api/session", content=unstated(), headers={"content-type": "application/json"})
    assert reply.status_code == 413


def test_a_full_batch_fits(client: Client) -> None:
    items = session(client)["items"]
    batch = [answer(items[0], "artefact", seconds=123.456) for _ in range(100)]
    assert send(client, *batch, observer="Å" * 64).status_code == 200


def test_security_headers_are_on_every_reply(client: Client) -> None:
    replies = [
        client.get("/"),
        client.get("/nothing"),
        client.get("/", headers={"host": "x"}),
        client.post("/api/answers", json={}),
        client.get(f"{session(client)['crops']}/{session(client)['items'][0]}/close.jpg"),
    ]
    for reply in replies:
        assert {name: reply.headers[name] for name in HEADERS} == HEADERS
        assert "access-control-allow-origin" not in reply.headers
    assert "'unsafe" not in HEADERS["content-security-policy"]


def test_without_the_token_nothing_answers(distant: Client) -> None:
    for reply in (
        distant.get("/"),
        distant.get("/page.js"),
        distant.get("/crop/x/1/close.jpg"),
        distant.post("/api/session", json={"observer": "A"}),
        distant.get("/?token=" + "x" * len(TOKEN)),
        distant.get("/?token="),
        distant.get("/page.js?token=" + TOKEN),
        distant.get("/", headers={"authorization": f"Bearer {TOKEN[:-1]}"}),
        distant.get("/", headers={"authorization": "Bearer "}),
        distant.get("/", headers={"cookie": f"{Access(TOKEN).cookie}={TOKEN[:-1]}"}),
        distant.get("/", headers={"cookie": f"{Access(TOKEN).cookie}=\xff".encode("latin-1")}),
    ):
        assert reply.status_code == 403
        assert TOKEN not in reply.text
        assert "set-cookie" not in reply.headers


def test_the_link_becomes_a_cookie_that_scripts_cannot_read(distant: Client) -> None:
    entrance = distant.get(f"/?token={TOKEN}")
    cookie = entrance.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert 'content="0;url=/"' in entrance.text
    assert entrance.headers["referrer-policy"] == "no-referrer"
    assert distant.get("/").status_code == 200
    assert session(distant)["items"]


def test_cookies_of_two_projects_do_not_meet() -> None:
    assert Access("x" * 20).cookie != Access("y" * 20).cookie
    assert "x" * 20 not in Access("x" * 20).cookie


def test_everybody_needs_a_token_worth_the_name(project: Project, store: AnswerStore) -> None:
    app = Guard(labelling_app(project, store, CropMaker(project)), Access())
    with Client(app, HERE) as another_user_of_the_machine:
        assert another_user_of_the_machine.post("/api/session", json={"observer": "A"}).status_code == 403
    assert Access().token != Access().token
    for token in ("short", "ünïcödé-but-long-enough"):
        with pytest.raises(UsageError, match="token is too short"):
            Access(token)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost.", True), ("0.0.0.0", False),
     ("example.org", False), ("10.0.0.1", False), ("", False), ("localhost.example", False)],
)  # fmt: skip
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_the_secret_of_this_user_is_kept_where_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert own_token() == own_token()
    assert stat.S_IMODE((tmp_path / "metaphase" / "token").stat().st_mode) == 0o600
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    assert own_token() != own_token()
