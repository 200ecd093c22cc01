"""Authentication of experimenters: session cookies and protection against CSRF."""

from __future__ import annotations

import hmac
import secrets
from typing import Annotated

import anyio.to_thread
from fastapi import Depends, Request
from fastapi.responses import Response

from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.web import accounts
from accelerando.crowd.web.accounts import Signed
from accelerando.crowd.web.context import context_of

__all__ = [
    "COOKIE",
    "CSRF_COOKIE",
    "Experimenter",
    "check_csrf",
    "check_form_token",
    "forget",
    "form_token",
    "require_same_origin",
    "set_session",
    "signed_in",
    "try_password",
]

COOKIE = "accelerando_session"
CSRF_COOKIE = "accelerando_csrf"


async def signed_in(request: Request) -> Signed | None:
    """Return the experimenter of this request, or None."""
    context = context_of(request)
    token = request.cookies.get(COOKIE)
    if not token:
        return None
    return await context.read(accounts.check_session, token, context.clock())


async def _require(request: Request) -> Signed:
    """Check the session and, for writes, the CSRF token of the page."""
    signed = await signed_in(request)
    if signed is None:
        raise ApiError("sign_in", "Please sign in.", 401)
    if request.method not in ("GET", "HEAD"):
        check_csrf(request, signed, request.headers.get("x-csrf-token", ""))
    return signed


Experimenter = Annotated[Signed, Depends(_require)]


def check_csrf(request: Request, signed: Signed, token: str) -> None:
    """Raise ApiError unless the request has the CSRF token of the session."""
    require_same_origin(request)
    if not hmac.compare_digest(token.encode(), signed.csrf.encode()):
        raise ApiError("csrf", "This request did not come from the experimenter's page.", 403)


def require_same_origin(request: Request) -> None:
    """Raise ApiError if the headers name another site as the origin."""
    site = request.headers.get("sec-fetch-site")
    if site not in (None, "same-origin", "none"):
        raise ApiError("csrf", "This request came from another site.", 403)
    origin = request.headers.get("origin")
    if origin is not None and origin != "null":
        host = origin.partition("://")[2]
        if host != request.headers.get("host", ""):
            raise ApiError("csrf", "This request came from another site.", 403)


async def try_password(request: Request, name: str, password: str) -> str:
    """Check name and password and return the token of a new session.

    Raises
    ------
    ApiError
        The name or password is wrong (401), or too many were wrong (429).
    """
    context = context_of(request)
    address = request.client.host if request.client else ""
    caller = accounts.caller_key(context.secret, address)
    clock = context.clock()
    await context.write(accounts.check_failures, caller, name, clock)
    number, hashed = await context.read(accounts.stored_hash, name)
    right = await anyio.to_thread.run_sync(accounts.matches, hashed, password)
    if number is None or not right:
        await context.write(accounts.add_failure, caller, name, clock)
        raise ApiError("wrong_password", "Wrong name or password.", 401)
    return await context.write(accounts.sign_in, number, caller, clock)


def set_session(request: Request, response: Response, token: str) -> None:
    """Set the session cookie. The token is new, which prevents session fixation."""
    root = request.scope.get("root_path", "")
    response.set_cookie(
        COOKIE,
        token,
        max_age=int(accounts.SESSION_SECONDS),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path=f"{root}/",
    )


def form_token(request: Request) -> str:
    """Return the CSRF token of the sign-in form, which must equal that of its cookie."""
    found = request.cookies.get(CSRF_COOKIE, "")
    return found if len(found) == 32 and found.isalnum() else secrets.token_hex(16)


def check_form_token(request: Request, sent: str) -> None:
    """Raise ApiError unless the tokens of form and cookie are equal."""
    require_same_origin(request)
    kept = request.cookies.get(CSRF_COOKIE, "")
    if not kept or not hmac.compare_digest(sent.encode(), kept.encode()):
        raise ApiError("csrf", "The form has expired; load the page again.", 403)


def forget(request: Request, response: Response) -> None:
    """Delete the session cookie."""
    response.delete_cookie(COOKIE, path=f"{request.scope.get('root_path', '')}/")
