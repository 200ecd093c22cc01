"""Who is asking: the experimenter's session in requests."""

from __future__ import annotations

import hmac
import secrets
from typing import Annotated

import anyio.to_thread
from fastapi import Depends, Request
from fastapi.responses import Response

from accelerando.crowd.store.errors import Refused
from accelerando.crowd.web import accounts
from accelerando.crowd.web.accounts import Signed
from accelerando.crowd.web.context import Context, context_of

__all__ = ["COOKIE", "Experimenter", "may_write", "signed_in", "try_password"]

COOKIE = "accelerando_session"
CSRF_COOKIE = "accelerando_csrf"


async def signed_in(request: Request) -> Signed | None:
    """The experimenter of this request, or None."""
    context = context_of(request)
    token = request.cookies.get(COOKIE)
    if not token:
        return None
    return await context.read(accounts.check_session, token, context.clock())


async def _require(request: Request) -> Signed:
    """Reading needs a session; writing also the token that only our own pages know."""
    signed = await signed_in(request)
    if signed is None:
        raise Refused("sign_in", "Please sign in.", 401)
    if request.method not in ("GET", "HEAD"):
        may_write(request, signed, request.headers.get("x-csrf-token", ""))
    return signed


Experimenter = Annotated[Signed, Depends(_require)]


def may_write(request: Request, signed: Signed, token: str) -> None:
    """Raise Refused unless the request comes from one of our pages."""
    require_same_origin(request)
    if not hmac.compare_digest(token.encode(), signed.csrf.encode()):
        raise Refused("csrf", "This request did not come from the experimenter's page.", 403)


def require_same_origin(request: Request) -> None:
    """Raise Refused if a browser says that another site sent this."""
    site = request.headers.get("sec-fetch-site")
    if site not in (None, "same-origin", "none"):
        raise Refused("csrf", "This request came from another site.", 403)
    origin = request.headers.get("origin")
    if origin is not None and origin != "null":
        host = origin.partition("://")[2]
        if host != request.headers.get("host", ""):
            raise Refused("csrf", "This request came from another site.", 403)


async def try_password(request: Request, name: str, password: str) -> str:
    """The token of a new session.

    Raises
    ------
    Refused
        Wrong name or password (401), or too many of them (429).
    """
    context = context_of(request)
    address = request.client.host if request.client else ""
    caller = accounts.caller_key(context.secret, address)
    now = context.clock()
    await context.write(accounts.require_guesses_left, caller, name, now)
    number, hashed = await context.read(accounts.stored_hash, name)
    right = await anyio.to_thread.run_sync(accounts.matches, hashed, password)
    if number is None or not right:
        await context.write(accounts.note_failure, caller, name, now)
        raise Refused("wrong_password", "Wrong name or password.", 401)
    return await context.write(accounts.sign_in, number, caller, now)


def set_session(request: Request, response: Response, token: str) -> None:
    """Always a fresh token: one planted before signing in is worth nothing."""
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
    """For the sign-in form, where there is no session yet: the same value in form and cookie."""
    found = request.cookies.get(CSRF_COOKIE, "")
    return found if len(found) == 32 and found.isalnum() else secrets.token_hex(16)


def check_form_token(request: Request, sent: str) -> None:
    """Raise Refused unless form and cookie agree."""
    require_same_origin(request)
    kept = request.cookies.get(CSRF_COOKIE, "")
    if not kept or not hmac.compare_digest(sent.encode(), kept.encode()):
        raise Refused("csrf", "The form has expired; load the page again.", 403)


def forget(request: Request, response: Response) -> None:
    """Remove the session's cookie."""
    response.delete_cookie(COOKIE, path=f"{request.scope.get('root_path', '')}/")


__all__ += ["CSRF_COOKIE", "Context", "check_form_token", "forget", "form_token", "set_session"]
