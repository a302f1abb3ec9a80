"""Starting and stopping for real: ports, locks, tokens."""

from __future__ import annotations

import stat
from urllib.parse import urlsplit

import httpx
import pytest

from metaphase.base.errors import MetaphaseError, OutputError, UsageError
from metaphase.labels.observers.project import LabellingError, Project
from metaphase.web.labelling import only_server, serve_project
from metaphase.web.serving import LOOPBACK, listening
from tests.web.server import serving


def test_two_servers_on_one_project_and_a_killed_one(project: Project) -> None:
    with serving(project.folder) as server:
        with pytest.raises(LabellingError, match=r"another server.*Open its link"):
            serve_project(project.folder, port=0)
        server.kill()
        with only_server(project):
            pass


def test_a_free_port_is_taken_in_the_place_of_one_in_use(caplog: pytest.LogCaptureFixture) -> None:
    with listening(LOOPBACK, 0) as first:
        port = first.getsockname()[1]
        with listening(LOOPBACK, port) as second:
            other = second.getsockname()[1]
    assert other != port
    assert f"port {port} of 127.0.0.1 is in use: listening at port {other} instead" in caplog.text


def test_impossible_addresses(project: Project) -> None:
    with pytest.raises(UsageError, match="port is 70000"):
        serve_project(project.folder, port=70000)
    with pytest.raises(MetaphaseError, match=r"cannot listen on 192\.0\.2\.7.*--host"):
        serve_project(project.folder, host="192.0.2.7", token="t" * 20)


@pytest.mark.slow
def test_a_network_gets_a_token_that_outlives_the_server(project: Project) -> None:
    with serving(project.folder, "0.0.0.0") as server:
        first = server.url
        assert httpx.get(f"http://127.0.0.1:{server.port}/").status_code == 403
        token = urlsplit(first).query.removeprefix("token=")
        assert len(token) >= 32
        reply = httpx.get(f"http://127.0.0.1:{server.port}/?token={token}")
        assert reply.status_code == 200
        assert "uvicorn" not in str(reply.headers)
        port = server.port
        server.kill()
    with serving(project.folder, "0.0.0.0", port) as server:
        assert server.url == first
        assert server.end() == 0
    assert stat.S_IMODE((project.folder / ".server-token").stat().st_mode) == 0o600


def test_the_lock_needs_a_folder_to_write_to(project: Project) -> None:
    (project.folder / ".server-lock").mkdir()
    with pytest.raises(OutputError, match="cannot be locked"), only_server(project):
        pass
