"""Who may talk to the server: checks before any request reaches the application.

A token is needed, on loopback too: other users of the machine reach the port as well. A browser brings it in
the link and then as a cookie, a program as `Authorization: Bearer TOKEN`. On loopback the Host header must be
loopback, so that a foreign site cannot reach the server by pointing its own name here. Writing needs JSON
from the page's own origin, within a limit.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metaphase.base.errors import OutputError, UsageError
from metaphase.base.files import atomic_path

MAX_BODY = 64 * 1024
MIN_TOKEN = 16
COOKIE_S = 30 * 24 * 3600
POLICY = "content-security-policy"
"""Which a reply may state by itself."""
HEADERS = {
    POLICY: (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_ENTRANCE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/">'
    '<title>metaphase</title><a href="/">Continue</a></html>'
)


def new_token() -> str:
    """A secret that nobody guesses."""
    return secrets.token_urlsafe(24)


def kept_token(path: Path) -> str:
    """The secret of a file that only its owner can read, which is made: links outlive the server."""
    if path.is_file():
        return path.read_text(encoding="ascii", errors="replace").strip()
    token = new_token()
    with atomic_path(path) as temporary:
        temporary.touch(mode=0o600)
        temporary.write_text(token + "\n", encoding="ascii")
    return token


def own_token() -> str:
    """The secret of this user for pages on this machine: open ones go on when their server starts again."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return kept_token(Path(state) / "metaphase" / "token")
    except (OutputError, OSError, RuntimeError):  # nowhere to keep it
        return new_token()


@dataclass(frozen=True, slots=True)
class Access:
    """What the server asks of its visitors."""

    token: str = field(default_factory=new_token)
    """Secret of the link; by default a new one."""

    loopback_only: bool = True
    """Whether the Host header must name this machine's loopback."""

    def __post_init__(self) -> None:
        if len(self.token) < MIN_TOKEN or not self.token.isascii():
            raise UsageError(
                "the token is too short, or not plain ASCII",
                next_step=f"give at least {MIN_TOKEN} letters and digits, or none to have one made",
            )

    @property
    def cookie(self) -> str:
        """Name of the cookie; servers on other ports of the same machine have other names."""
        return f"metaphase_label_{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"

    def matches(self, offered: str | None) -> bool:
        """Whether a token is the right one, in constant time."""
        return hmac.compare_digest((offered or "").encode(), self.token.encode())


def is_loopback(host: str) -> bool:
    """Whether a host name or address (without port) is this machine alone."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def refusal(request: Request, access: Access) -> tuple[str, int] | None:
    """The first thing wrong with a request, apart from its body: the reason, and the HTTP status."""
    host = request.headers.get("host", "")
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if access.loopback_only and not is_loopback(name):
        return "This server answers to localhost only.", 421
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not (access.matches(request.cookies.get(access.cookie)) or access.matches(bearer)):
        return "Open the link with its token, as printed where the server was started.", 403
    if request.method not in ("GET", "HEAD", "POST"):
        return "Not allowed.", 405
    if request.method != "POST":
        return None
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return "Send JSON.", 415
    origin = request.headers.get("origin")
    foreign = origin is not None and origin.lower().partition("://")[2] != host.lower()
    if foreign or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "Another site may not write here.", 403
    return None


def _refused(reason: str, status: int) -> Response:
    """The reply to whoever has no business here, who also gets no answer to what else the connection asks."""
    return PlainTextResponse(reason, status, {"connection": "close"})


class Guard:
    """ASGI middleware that lets only proper requests through, and adds the security headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection; websockets are not ours."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return

        async def sender(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({name: text for name, text in HEADERS.items() if name != POLICY})
                headers.setdefault(POLICY, HEADERS[POLICY])
                headers.setdefault("cache-control", "no-store")
            await send(message)

        waiting: list[Message] = []

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        request = Request(scope)
        response = self._entrance(request)
        if response is None and (problem := refusal(request, self._access)):
            response = _refused(*problem)
        if response is None and request.method == "POST":
            body, more = b"", True
            while more and len(body) <= MAX_BODY:
                message = await receive()
                body += message.get("body", b"")
                more = message.get("more_body", False)
            if len(body) > MAX_BODY:
                response, body = _refused("Too long.", 413), b""
            waiting.append({"type": "http.request", "body": body, "more_body": False})
        await (response or self._app)(scope, replay, sender)

    def _entrance(self, request: Request) -> Response | None:
        """Turn a valid token in the address into a cookie, and the address into a clean one.

        A page that refreshes itself, and not a redirect: after a link from elsewhere, browsers would hold a
        strict cookie back from the redirected request.
        """
        token = request.query_params.get("token")
        if request.url.path != "/" or not self._access.matches(token):
            return None
        response = HTMLResponse(_ENTRANCE, headers={"cache-control": "no-store"})
        cookie = self._access.cookie
        response.set_cookie(cookie, self._access.token, COOKIE_S, httponly=True, samesite="strict")
        return response
