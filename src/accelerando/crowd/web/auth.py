"""Authentication of experimenters: session cookies and protection against CSRF."""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import anyio
import anyio.to_thread
from fastapi import Depends, Request
from fastapi.responses import Response

from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.web import accounts, roles
from accelerando.crowd.web.context import Context, context_of
from accelerando.crowd.web.cookies import cookie_of, drop_cookie, set_cookie
from accelerando.crowd.web.limits import address_key
from accelerando.crowd.web.origin import path_of, require_same_origin
from accelerando.crowd.web.signed import Signed

__all__ = [
    "COOKIE",
    "CSRF_COOKIE",
    "Experimenter",
    "check_csrf",
    "check_form_token",
    "forget",
    "form_token",
    "set_session",
    "signed_in",
    "try_password",
    "write_as",
]

Result = TypeVar("Result")
COOKIE = "accelerando_session"
CSRF_COOKIE = "accelerando_csrf"
_CHECKS_AT_ONCE = 2

log = logging.getLogger("accelerando.crowd")


# What somebody whose password must be changed may still do.
_BEFORE_CHANGE = ("/api/v1/session", "/api/v1/account/password")
_OF_PEOPLE = ("/api/v1/account", "/api/v1/session", "/api/v1/accounts", "/api/v1/audit")
# An open page asks for it all day; that is no use of the session.
_POLLED = re.compile(r"/api/v1/experiments/[^/]+/dashboard")


async def signed_in(request: Request) -> Signed | None:
    """Return the experimenter of this request, or None."""
    context = context_of(request)
    clock = context.clock()
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and bearer.startswith("accelerando_"):
        return await context.read(roles.check_token, bearer, clock)
    token = cookie_of(request, COOKIE)
    if not token:
        return None
    signed = await context.read(accounts.check_session, token, clock)
    polled = _POLLED.fullmatch(path_of(request)) is not None
    if signed is not None and not polled and accounts.is_due(signed, clock):
        await context.write(accounts.touch, token, clock)
    return signed


async def _require(request: Request) -> Signed:
    """Check the session, the role in the experiment and, for writes, the page's CSRF token."""
    signed = await signed_in(request)
    if signed is None:
        raise ApiError("sign_in", "Please sign in.", 401)
    path = path_of(request)
    if signed.must_change and path not in _BEFORE_CHANGE:
        raise ApiError("change_password", "Please change your password first.", 403)
    is_write = request.method not in ("GET", "HEAD")
    if signed.scope:
        if path.startswith(_OF_PEOPLE):
            raise ApiError("role", "A token cannot be used for accounts.", 403)
        if is_write and signed.scope != "write":
            raise ApiError("role", "This token can only read.", 403)
    elif is_write:
        check_csrf(request, signed, request.headers.get("x-csrf-token", ""))
    name = request.path_params.get("name")
    if name is not None and path.startswith("/api/v1/experiments/"):
        needed = roles.needed_role(request.method, path)
        await context_of(request).read(roles.require, signed, name, needed)
        signed = replace(signed, needs=(name, needed))
    elif signed.scope and is_write and signed.experiment_id is not None:
        raise ApiError("role", "This token is for one experiment.", 403)
    return signed


Experimenter = Annotated[Signed, Depends(_require)]


async def write_as(
    signed: Signed, context: Context, function: Callable[..., Result], *arguments: Any
) -> Result:
    """Run a function in a transaction, if the experimenter may still do it at that moment."""
    return await context.write(roles.still_allowed(signed, function), *arguments)


def check_csrf(request: Request, signed: Signed, token: str) -> None:
    """Raise ApiError unless the request has the CSRF token of the session; programs have none."""
    require_same_origin(request, form=True)
    if not signed.csrf or not hmac.compare_digest(token.encode(), signed.csrf.encode()):
        raise ApiError("csrf", "This request did not come from the experimenter's page.", 403)


async def try_password(request: Request, name: str, password: str, code: str = "") -> str:
    """Check name and password and return the token of a new session.

    Raises
    ------
    ApiError
        The name or password is wrong (401), or too many were wrong (429).
    """
    context = context_of(request)
    caller = address_key(context.secret, request)
    clock = context.clock()
    await context.write(accounts.count_attempt, caller, name, clock)
    number, hashed = await context.read(accounts.stored_hash, name)
    right = await check_hash(request, hashed, password)
    if number is None or not right:
        log.warning("A password for the account %r was wrong.", name[:100])
        raise ApiError("wrong_password", "Wrong name or password.", 401)
    await use_code(request, number, name, code)
    old = cookie_of(request, COOKIE)
    if old:  # the new session replaces the one of this browser
        await context.write(accounts.sign_out, old)
    return await context.write(accounts.sign_in, number, hashed, caller, name, clock)


async def use_code(request: Request, number: int, name: str, code: str) -> None:
    """Use up a one-time password if the account has them.

    Raises
    ------
    ApiError
        It is missing, wrong or used (401), or too many were wrong (429).
    """
    context = context_of(request)
    clock = context.clock()
    key, _ = await context.read(accounts.totp_of, number)
    if key is not None and code:  # in its own transaction: a refusal rolls back
        caller = address_key(context.secret, request)
        await context.write(accounts.count_code, caller, name, clock)
    await context.write(accounts.use_code, number, name, code, clock)


async def confirm_password(request: Request, signed: Signed, password: str) -> None:
    """Raise ApiError unless this is the password of the experimenter; attempts are counted."""
    context, clock = context_of(request), context_of(request).clock()
    caller = address_key(context.secret, request)
    await context.write(accounts.count_attempt, caller, signed.name, clock)
    _, hashed = await context.read(accounts.stored_hash, signed.name)
    if not await check_hash(request, hashed, password):
        raise ApiError("wrong_password", "The present password is wrong.", 403)
    await context.write(accounts.take_back_attempt, caller, signed.name)


async def check_hash(request: Request, hashed: str, password: str) -> bool:
    """Return True if the password matches. Each check takes 64 MB: a few at a time."""
    checks: anyio.CapacityLimiter = context_of(request).cache.setdefault(
        "password checks", anyio.CapacityLimiter(_CHECKS_AT_ONCE)
    )
    return await anyio.to_thread.run_sync(accounts.matches, hashed, password, limiter=checks)


def set_session(request: Request, response: Response, token: str) -> None:
    """Set the session cookie. The token is new, which prevents session fixation."""
    seconds = accounts.SESSION_SECONDS
    set_cookie(request, response, COOKIE, token, seconds=seconds, samesite="strict")


def form_token(request: Request) -> str:
    """Return the CSRF token of the sign-in form, which must equal that of its cookie."""
    found = cookie_of(request, CSRF_COOKIE) or ""
    return found if len(found) == 32 and found.isalnum() else secrets.token_hex(16)


def check_form_token(request: Request, sent: str) -> None:
    """Raise ApiError unless the tokens of form and cookie are equal."""
    require_same_origin(request, form=True)
    kept = cookie_of(request, CSRF_COOKIE) or ""
    if not kept or not hmac.compare_digest(sent.encode(), kept.encode()):
        raise ApiError("csrf", "The form has expired; load the page again.", 403)


def forget(request: Request, response: Response) -> None:
    """Delete the session cookie, and what the browser has cached of our pages."""
    drop_cookie(request, response, COOKIE)
    response.headers["clear-site-data"] = '"cache"'
