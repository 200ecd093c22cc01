"""Routes of accounts: passwords, sessions, tokens, codes of an app, roles, and the audit log."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, BeforeValidator, Field
from sqlalchemy import Connection, delete, func, select

from accelerando.crowd.experiment.settings import not_boolean
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import audit, experimenter
from accelerando.crowd.web import accounts, roles, totp
from accelerando.crowd.web.auth import (
    COOKIE,
    Experimenter,
    check_csrf,
    confirm_password,
    forget,
    signed_in,
    use_code,
    write_as,
)
from accelerando.crowd.web.context import Context, Ctx, context_of
from accelerando.crowd.web.cookies import cookie_of
from accelerando.crowd.web.pages import render
from accelerando.crowd.web.participant_api import Name
from accelerando.crowd.web.passwords import check_password
from accelerando.crowd.web.schemas import ErrorOut
from accelerando.crowd.web.signed import Signed

__all__ = ["router"]

_REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorOut} for code in (401, 403, 404, 409, 413, 422, 429, 503)
}
router = APIRouter(tags=["account"], responses=_REFUSALS)
Secret = Annotated[str, Field(max_length=1000)]
AccountName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}$")]
AccountInPath = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}$")]


class NewPassword(BaseModel):
    """The present password and a new one."""

    present: Secret
    new: Secret


class NewAccount(BaseModel):
    """An account: its owner has to change the password at the first sign-in."""

    name: AccountName
    password: Secret
    admin: bool = False


class NewToken(BaseModel):
    """A token with which a program acts for this account."""

    name: str = Field(min_length=1, max_length=100)
    scope: Literal["read", "write"] = "read"
    experiment: str | None = Field(default=None, max_length=63)
    days: Annotated[int, BeforeValidator(not_boolean)] = Field(default=90, ge=1, le=roles.MOST_DAYS)


class Present(BaseModel):
    """The present password, and a code where one is needed."""

    present: Secret
    code: str = Field(default="", max_length=20)


class Member(BaseModel):
    """A role in an experiment; null takes it away."""

    role: roles.Role | None


# -- my account ------------------------------------------------------------------------------------


@router.put("/api/v1/account/password", status_code=204, summary="Change my password")
async def change_password(request: Request, body: NewPassword, who: Experimenter) -> Response:
    """Change the password, which ends all sessions and tokens of the account."""
    await _change(request, who, body.present, body.new)
    response = Response(status_code=204)
    forget(request, response)
    return response


async def _change(request: Request, who: Signed, present: str, new: str) -> None:
    context = context_of(request)
    clock = context.clock()
    check_password(new, who.name)
    await confirm_password(request, who, present)
    if new == present:
        raise ApiError("password", "The new password is the present one.", 422)
    hashed = await anyio.to_thread.run_sync(accounts.password_hash, new)

    def change(connection: Connection) -> None:
        accounts.change_password(connection, who.id, hashed)
        stored.note(connection, clock, who.name, "change password", "")

    await write_as(who, context, change)


@router.get("/experiments-account", include_in_schema=False)
async def page(request: Request) -> Response:
    """Return the page of the account: password, sessions, tokens, codes, and other accounts."""
    signed = await signed_in(request)
    root = request.scope.get("root_path", "")
    if signed is None or signed.scope:
        return RedirectResponse(f"{root}/sign-in?next=/experiments-account", status_code=303)
    return await _page(request, signed)


@router.post("/experiments-account", include_in_schema=False)
async def change_on_page(
    request: Request,
    present: Annotated[str, Form(max_length=1000)],
    new: Annotated[str, Form(max_length=1000)],
    csrf: Annotated[str, Form(max_length=100)] = "",
) -> Response:
    """Change the password and ask to sign in again."""
    signed = await signed_in(request)
    root = request.scope.get("root_path", "")
    response: Response = RedirectResponse(f"{root}/sign-in", status_code=303)
    if signed is not None and not signed.scope:
        check_csrf(request, signed, csrf)
        try:
            await _change(request, signed, present, new)
        except ApiError as error:
            return await _page(request, signed, str(error), error.status)
        forget(request, response)
    return response


async def _page(
    request: Request, signed: Signed, error: str | None = None, status: int = 200
) -> Response:
    key, _ = await context_of(request).read(accounts.totp_of, signed.id)
    shown = {
        "csrf": signed.csrf,
        "experimenter": signed.name,
        "error": error,
        "must_change": signed.must_change,
        "admin": signed.admin,
        "codes": key is not None,
    }
    return render(request, "account.html", shown, status=status)


@router.get("/api/v1/account/sessions", summary="My sessions")
async def sessions(request: Request, context: Ctx, who: Experimenter) -> dict[str, Any]:
    """Return the sessions of the account that have not ended; ``current`` is the one that asks."""
    found = await context.read(accounts.sessions_of, who.id, context.clock())
    here = accounts.session_id(cookie_of(request, COOKIE) or "")
    return {"sessions": [{**one, "current": one["id"] == here} for one in found]}


@router.delete("/api/v1/account/sessions/{which}", status_code=204, summary="End a session")
async def end_session(
    which: Annotated[str, Path(pattern="^[0-9a-f]{16}$")], context: Ctx, who: Experimenter
) -> Response:
    """End one of the sessions of the account."""
    if not await write_as(who, context, accounts.end_session, who.id, which):
        raise ApiError("unknown_session", "There is no such session.", 404)
    return Response(status_code=204)


@router.get("/api/v1/account/tokens", summary="My tokens")
async def tokens(context: Ctx, who: Experimenter) -> dict[str, Any]:
    """Return the tokens of the account, without the secrets."""
    return {"tokens": await context.read(roles.tokens_of, who.id, context.clock())}


@router.post("/api/v1/account/tokens", status_code=201, summary="Make a token")
async def make_token(body: NewToken, context: Ctx, who: Experimenter) -> dict[str, str]:
    """Return a new token. It is shown once; send it as ``Authorization: Bearer ...``."""
    clock = context.clock()

    def make(connection: Connection) -> str:
        stored.note(connection, clock, who.name, "make token", f"{body.name} ({body.scope})")
        return roles.make_token(
            connection, who, name=body.name, scope=body.scope, only=body.experiment,
            days=body.days, clock=clock,
        )  # fmt: skip

    return {"token": await write_as(who, context, make)}


@router.delete("/api/v1/account/tokens/{number}", status_code=204, summary="Revoke a token")
async def end_token(
    number: Annotated[int, Path(ge=1, lt=2**31)], context: Ctx, who: Experimenter
) -> Response:
    """Revoke a token of the account."""
    if not await write_as(who, context, roles.end_token, who.id, number):
        raise ApiError("unknown_token", "There is no such token.", 404)
    return Response(status_code=204)


@router.post("/api/v1/account/totp", summary="Propose a key for an app")
async def propose_totp(who: Experimenter) -> dict[str, str]:
    """Return a key for an app; it counts when a code of it has been confirmed."""
    key = totp.new_key()
    return {"key": key, "uri": totp.uri(key, who.name)}


class Totp(Present):
    """The key that was proposed, with a code of it."""

    key: str = Field(pattern="^[A-Z2-7]{32}$")


@router.put("/api/v1/account/totp", status_code=204, summary="Demand codes of an app")
async def set_totp(request: Request, body: Totp, context: Ctx, who: Experimenter) -> Response:
    """Demand a code at every sign-in from now on."""
    clock = context.clock()
    await confirm_password(request, who, body.present)
    key, _ = await context.read(accounts.totp_of, who.id)
    if key is not None:  # the password alone must not replace the second factor
        raise ApiError("has_codes", "The account has codes already; remove them first.", 409)
    step = totp.accepted_step(body.key, body.code, clock, 0)
    if step is None:
        raise ApiError("code", "The code does not belong to this key.", 422)
    await _note_totp(context, who, body.key, step, "demand codes", clock)
    return Response(status_code=204)


@router.delete("/api/v1/account/totp", status_code=204, summary="Demand no codes")
async def drop_totp(request: Request, body: Present, context: Ctx, who: Experimenter) -> Response:
    """Demand no codes any more; needs the password and a code."""
    clock = context.clock()
    await confirm_password(request, who, body.present)
    await use_code(request, who.id, who.name, body.code)
    await _note_totp(context, who, None, 0, "demand no codes", clock)
    return Response(status_code=204)


async def _note_totp(
    context: Context, who: Signed, key: str | None, step: int, action: str, clock: float
) -> None:
    def change(connection: Connection) -> None:
        accounts.set_totp(connection, who.id, key, step)
        stored.note(connection, clock, who.name, action, "")

    await write_as(who, context, change)


# -- accounts of others ----------------------------------------------------------------------------


def _require_admin(who: Signed) -> None:
    if not who.admin:
        raise ApiError("role", "Only administrators of the server may do this.", 403)


@router.get("/api/v1/accounts", summary="All accounts")
async def all_accounts(context: Ctx, who: Experimenter) -> dict[str, Any]:
    """Return all accounts; for administrators."""
    _require_admin(who)
    shown = ("name", "admin", "must_change", "created")

    def look(connection: Connection) -> list[dict[str, Any]]:
        rows = connection.execute(select(experimenter).order_by(experimenter.c.id)).mappings()
        return [{k: row[k] for k in shown} | {"totp": row["totp"] is not None} for row in rows]

    return {"accounts": await context.read(look)}


@router.post("/api/v1/accounts", status_code=201, summary="Create an account")
async def create_account(body: NewAccount, context: Ctx, who: Experimenter) -> dict[str, str]:
    """Create an account whose owner has to change the password; for administrators."""
    _require_admin(who)
    check_password(body.password, body.name)
    clock = context.clock()
    hashed = await anyio.to_thread.run_sync(accounts.password_hash, body.password)

    def create(connection: Connection) -> None:
        # Mary and mary would be taken for one person, on the audit log as well.
        same = func.lower(experimenter.c.name) == body.name.lower()
        there = connection.execute(select(experimenter.c.name).where(same)).scalar()
        if there is not None:
            raise ApiError("name_taken", f"There is an account {there!r} already.", 409)
        accounts.set_password(
            connection, body.name, hashed, clock, admin=body.admin, must_change=True
        )
        stored.note(connection, clock, who.name, "create account", body.name)

    await write_as(who, context, create)
    return {"name": body.name}


@router.delete("/api/v1/accounts/{account}", status_code=204, summary="Delete an account")
async def delete_account(account: AccountInPath, context: Ctx, who: Experimenter) -> Response:
    """Delete an account with its sessions, tokens and roles; for administrators."""
    _require_admin(who)
    clock = context.clock()

    def remove(connection: Connection) -> None:
        if account == who.name:
            raise ApiError("own_account", "You cannot delete your own account.", 409)
        found = connection.execute(delete(experimenter).where(experimenter.c.name == account))
        if not found.rowcount:
            raise ApiError("unknown_account", f"There is no account {account!r}.", 404)
        stored.note(connection, clock, who.name, "delete account", account)

    await write_as(who, context, remove)
    return Response(status_code=204)


@router.get("/api/v1/experiments/{name}/members", summary="Roles in an experiment")
async def members(name: Name, context: Ctx, who: Experimenter) -> dict[str, Any]:
    """Return who has a role in the experiment."""
    del who
    return {"members": await context.read(roles.members, name)}


@router.put("/api/v1/experiments/{name}/members/{account}", summary="Give a role")
async def set_member(
    name: Name, account: AccountInPath, body: Member, context: Ctx, who: Experimenter
) -> dict[str, Any]:
    """Give an account a role, or take it away; for owners. Administrators own everything."""
    clock = context.clock()

    def change(connection: Connection) -> list[dict[str, Any]]:
        roles.give(connection, name, account, body.role)
        subject = f"{name}: {account} {body.role or 'none'}"
        stored.note(connection, clock, who.name, "give role", subject)
        return roles.members(connection, name)

    return {"members": await write_as(who, context, change)}


@router.get("/api/v1/audit", summary="The audit log")
async def audit_log(
    context: Ctx, who: Experimenter, before: Annotated[int, Query(ge=1, lt=2**31)] = 2**31 - 1
) -> dict[str, Any]:
    """Return 200 entries, newest first: sign-ins, withdrawals and all changes.

    Administrators see all entries, others their own.
    """

    def look(connection: Connection) -> list[dict[str, Any]]:
        found = select(audit).where(audit.c.id < before).order_by(audit.c.id.desc()).limit(200)
        if not who.admin:
            # A former account may have had the same name.
            since = select(experimenter.c.created).where(experimenter.c.id == who.id)
            found = found.where(
                audit.c.experimenter == who.name, audit.c.at >= since.scalar_subquery()
            )
        return [dict(row) for row in connection.execute(found).mappings()]

    return {"entries": await context.read(look)}
