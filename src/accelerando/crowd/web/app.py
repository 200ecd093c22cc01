"""The web application: routes, middleware and error responses."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from accelerando import __version__
from accelerando.crowd.experiment import Limits, SettingsError
from accelerando.crowd.store import Store
from accelerando.crowd.store.errors import ApiError, NoConnectionError, classify
from accelerando.crowd.store.store import RESTORE
from accelerando.crowd.web import (
    account_routes,
    download_routes,
    experimenter_api,
    health,
    media_routes,
    pages,
    participant_api,
    recruiting_api,
    salmon,
)
from accelerando.crowd.web.auth import signed_in
from accelerando.crowd.web.context import Context
from accelerando.crowd.web.fast_path import FastPath
from accelerando.crowd.web.group_commit import GroupCommit
from accelerando.crowd.web.middleware import BodyLimit, SafeHeaders
from accelerando.crowd.web.origin import path_of

__all__ = ["create_app"]

_JSON_BYTES = 64 * 1024
_TITLES = {404: "Not found", 401: "Please sign in", 403: "Not allowed", 422: "Not understood"}

log = logging.getLogger("accelerando.crowd")


def create_app(store: Store, limits: Limits = Limits()) -> FastAPI:  # noqa: B008 (frozen)
    """Return the service as an ASGI application on this store.

    Examples
    --------
    >>> import tempfile
    >>> app = create_app(Store(f"sqlite:///{tempfile.mkdtemp()}/crowd.sqlite"))
    >>> app.title
    'accelerando crowd'
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        app.state.context.writer.close()

    app = FastAPI(
        title="accelerando crowd",
        version=__version__,
        description="Ask a crowd which of two items is more like a third.",
        lifespan=lifespan,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # FastAPI's page loads scripts from a CDN
        redoc_url=None,
        redirect_slashes=False,  # such a redirect would lead to whatever host the request names
    )
    with store.write() as connection:
        secret = store.secret(connection)
    context = Context(store, GroupCommit(store), secret, limits)
    app.state.context = context
    for part in (
        *(participant_api, experimenter_api, recruiting_api, account_routes),
        *(download_routes, salmon, media_routes, health),
        pages,
    ):
        app.include_router(part.router)
    app.mount("/static", _Static(directory=pages.STATIC), name="static")

    async def may_upload(scope: Scope) -> bool:
        who = await signed_in(Request({**scope, "app": app}))
        return who is not None and who.scope != "read" and not who.must_change

    app.add_middleware(FastPath, context=context)
    app.add_middleware(
        BodyLimit, most=_JSON_BYTES, uploads=limits.upload_bytes, may_upload=may_upload
    )
    app.add_middleware(SafeHeaders)
    _add_error_handlers(app)
    return app


class _Static(StaticFiles):
    """Static files, which browsers cache and revalidate."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "no-cache"
        if response.headers.get("content-type") == "image/svg+xml":
            response.headers["content-type"] = "image/svg+xml; charset=utf-8"
        return response


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api(request: Request, error: ApiError) -> Response:
        headers = {"retry-after": "300"} if error.status == 429 else {}
        return _error_response(request, error.status, error.code, str(error), headers)

    @app.exception_handler(SettingsError)
    async def settings(request: Request, error: SettingsError) -> Response:
        problems = [problem.to_json() for problem in error.problems]
        return _error_response(request, 422, "settings", str(error), {}, problems=problems)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        said = [
            f"{'.'.join(str(part) for part in found['loc'])}: {found['msg']}"
            for found in error.errors()[:10]
        ]
        return _error_response(request, 422, "invalid", "; ".join(said), {})

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method"}.get(error.status_code, "http")
        headers = dict(error.headers or {})
        return _error_response(request, error.status_code, code, str(error.detail), headers)

    @app.exception_handler(NoConnectionError)
    @app.exception_handler(DBAPIError)
    async def database(request: Request, error: DBAPIError | NoConnectionError) -> Response:
        trouble = classify(error)
        if isinstance(error, DataError):
            sentence = "Something in the request cannot be stored, such as a character NUL."
            return _error_response(request, 422, "invalid", sentence, {})
        if isinstance(error, IntegrityError):  # found by the database, after our own checks
            sentence = "Somebody else has changed the same thing at this moment; please try again."
            return _error_response(request, 409, "conflict", sentence, {})
        if trouble == "damaged":
            request.app.state.context.damaged = True
            log.critical("The database is damaged: %s. %s", _cause(error), RESTORE)
        elif trouble == "other":
            log.error("Database error: %s", type(_cause(error)).__name__, exc_info=error)
            sentence = "Something went wrong on the server."
            return _error_response(request, 500, "internal", sentence, {})
        else:
            log.warning("The database cannot be used (%s): %s", trouble, _cause(error))
        sentence = "The server cannot store anything at the moment; please try again soon."
        return _error_response(request, 503, "unavailable", sentence, {"retry-after": "2"})


def _cause(error: Exception) -> object:
    return getattr(error, "orig", error)


def _error_response(
    request: Request, status: int, code: str, message: str, headers: dict[str, str], **more: Any
) -> Response:
    """Return an error as JSON for programs, or as a page for browsers."""
    path = path_of(request)
    is_page = path.startswith(("/e/", "/experiments", "/sign-")) or path == "/"
    if is_page and "text/html" in request.headers.get("accept", ""):
        response: Response = pages.error_page(
            request, status, _TITLES.get(status, "Error"), message
        )
    else:
        what = {"error": {"code": code, "message": message, **more}}
        response = JSONResponse(what, status_code=status)
    response.headers.update(headers)
    return response
