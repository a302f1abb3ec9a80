"""A plain client of an application in this process: httpx, without the rest of a test framework."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

import httpx
from starlette.types import ASGIApp


class Client:
    """Blocking requests that share cookies, as a browser would send them."""

    def __init__(self, app: ASGIApp, base_url: str, token: str = "") -> None:
        """With a token, as a program sends it."""
        self._runner = asyncio.Runner()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url=base_url, headers=headers
        )

    def request(self, method: str, address: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._client.request(method, address, **options))

    def get(self, address: str, **options: Any) -> httpx.Response:
        return self.request("GET", address, **options)

    def post(self, address: str, **options: Any) -> httpx.Response:
        return self.request("POST", address, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()
