"""What the applications of the pages that take answers share: their files, pictures and replies to errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from metaphase.errors import MetaphaseError, UsageError

HTML, SCRIPT = "text/html; charset=utf-8", "text/javascript; charset=utf-8"
STYLE, ICON = "text/css; charset=utf-8", "image/svg+xml"
Assets = Mapping[str, tuple[str, str]]
"""Name and kind of every file that the browser may ask for, by its address."""
KEEP_PICTURES = "private, max-age=604800, immutable"


def bare_app(title: str) -> FastAPI:
    """An application that describes itself to nobody, with our replies to errors."""
    app = FastAPI(title=title, docs_url=None, redoc_url=None, openapi_url=None)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(MetaphaseError)(_failed)
    return app


def add_assets(app: FastAPI, package: str, assets: Assets) -> None:
    """Serve files of a package's folder `static`, read once."""
    for address, (name, kind) in assets.items():
        app.add_api_route(f"/{address}", _asset(package, name, kind), methods=["GET"])


def picture(jpeg: bytes | None) -> Response:
    """A picture that browsers keep, or word that there is none."""
    if jpeg is None:
        raise HTTPException(404, "unavailable")
    return Response(jpeg, media_type="image/jpeg", headers={"cache-control": KEEP_PICTURES})


def _asset(package: str, name: str, kind: str) -> Callable[[], Response]:
    content = files(package).joinpath("static", name).read_bytes()

    def asset() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return asset


def _invalid(_request: Request, error: Exception) -> Response:
    """Say which field is wrong, without echoing what was sent."""
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    fields = [".".join(map(str, one["loc"])) for one in problems]
    return JSONResponse({"detail": f"invalid: {', '.join(fields)}"}, 422)


def _failed(_request: Request, error: Exception) -> Response:
    """A name that is none is the observer's to mend; all else the operator's, and the browser tries again."""
    if isinstance(error, UsageError):
        return JSONResponse({"detail": str(error)}, 422)
    return JSONResponse({"detail": "the server cannot save at the moment"}, 503)
