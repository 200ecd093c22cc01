"""Authorization: an account has a role in each experiment, and administrators have all.

A viewer sees everything, an editor also changes what can be undone, an owner also deletes and gives
roles. To accounts without a role an experiment does not exist.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, delete, select

from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import api_token, experiment, experimenter, role
from accelerando.crowd.web.signed import Role, Signed, require_still

__all__ = ["Role", "check_token", "needed_role", "require", "role_of", "still_allowed", "visible"]

Result = TypeVar("Result")
_ORDER: tuple[Role, ...] = ("viewer", "editor", "owner")
_PREFIX = "accelerando_"
MOST_DAYS = 366
_MOST_TOKENS = 50


def needed_role(method: str, path: str) -> Role:
    """Return the role that a request about one experiment needs.

    Examples
    --------
    >>> needed_role("GET", "/api/v1/experiments/eggs/dashboard")
    'viewer'
    >>> needed_role("POST", "/api/v1/experiments/eggs/pause")
    'editor'
    >>> needed_role("DELETE", "/api/v1/experiments/eggs/participants/3")
    'owner'
    >>> needed_role("POST", "/api/v1/experiments/members/pause")
    'editor'
    """
    if method in ("GET", "HEAD"):
        return "viewer"
    rest = path.split("/")[5:]  # after /api/v1/experiments/NAME; a name may be any word
    if method == "DELETE" or rest[:1] == ["members"]:
        return "owner"
    return "editor"


def role_of(connection: Connection, signed: Signed, name: str) -> Role | None:
    """Return the role of an account, or of its token, in an experiment; None without one."""
    row = connection.execute(
        select(experiment.c.id, role.c.role)
        .outerjoin(
            role, (role.c.experiment_id == experiment.c.id) & (role.c.experimenter_id == signed.id)
        )
        .where(experiment.c.name == name)
    ).first()
    if row is None or signed.experiment_id not in (None, row.id):
        return None
    found: Role | None = "owner" if signed.admin else row.role
    if signed.scope and found is not None:  # programs never delete
        most = _ORDER.index("editor" if signed.scope == "write" else "viewer")
        found = _ORDER[min(_ORDER.index(found), most)]
    return found


def require(connection: Connection, signed: Signed, name: str, needed: Role) -> None:
    """Raise ApiError unless the account has this role in an experiment, or a higher one.

    Raises
    ------
    ApiError
        It has no role (404, as if there were no such experiment), or too low a one (403).
    """
    found = role_of(connection, signed, name)
    if found is None:
        raise ApiError("unknown_experiment", f"There is no experiment {name!r}.", 404)
    if _ORDER.index(found) < _ORDER.index(needed):
        means = "token" if signed.scope else "role"
        sentence = f"This needs the role {needed!r} in {name}; your {means} allows {found!r}."
        raise ApiError("role", sentence, 403)


def still_allowed(signed: Signed, function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function that runs `function` if `signed` may still do what the request asks for.

    Sessions, accounts and roles may end while a request is on its way: this is looked up in the
    transaction that writes.
    """

    def work(connection: Connection, *arguments: Any) -> Result:
        require_still(connection, signed)
        if signed.needs is not None:
            require(connection, signed, *signed.needs)
        return function(connection, *arguments)

    return work


def visible(connection: Connection, signed: Signed) -> set[str] | None:
    """Return the names of the experiments that an account sees; None for all."""
    if signed.admin and signed.experiment_id is None:
        return None
    found = select(experiment.c.name)
    if signed.experiment_id is not None:
        found = found.where(experiment.c.id == signed.experiment_id)
    if not signed.admin:
        found = found.join(role, role.c.experiment_id == experiment.c.id).where(
            role.c.experimenter_id == signed.id
        )
    return set(connection.execute(found).scalars())


def give(connection: Connection, name: str, account: str, given: Role | None) -> None:
    """Give an account a role in an experiment, or take it away.

    Raises
    ------
    ApiError
        There is no such account (404).
    """
    number = connection.execute(
        select(experiment.c.id).where(experiment.c.name == name)
    ).scalar_one()
    who = connection.execute(
        select(experimenter.c.id).where(experimenter.c.name == account)
    ).scalar_one_or_none()
    if who is None:
        raise ApiError("unknown_account", f"There is no account {account!r}.", 404)
    here = role.c.experiment_id == number
    connection.execute(delete(role).where(here, role.c.experimenter_id == who))
    if given is not None:
        connection.execute(
            role.insert().values(experiment_id=number, experimenter_id=who, role=given)
        )


def members(connection: Connection, name: str) -> list[dict[str, Any]]:
    """Return the accounts that have a role in an experiment."""
    rows = connection.execute(
        select(experimenter.c.name, role.c.role)
        .join(role, role.c.experimenter_id == experimenter.c.id)
        .join(experiment, experiment.c.id == role.c.experiment_id)
        .where(experiment.c.name == name)
        .order_by(experimenter.c.name)
    ).all()
    return [{"account": row.name, "role": row.role} for row in rows]


# -- tokens of programs ----------------------------------------------------------------------------


def make_token(
    connection: Connection,
    signed: Signed,
    *,
    name: str,
    scope: str,
    only: str | None,
    days: int,
    clock: float,
) -> str:
    """Make a token with which a program acts for an account; the database stores a hash only."""
    own = api_token.c.experimenter_id == signed.id
    connection.execute(delete(api_token).where(own, api_token.c.expires < clock))
    if len(connection.execute(select(api_token.c.id).where(own)).all()) >= _MOST_TOKENS:
        raise ApiError("too_many", f"An account has at most {_MOST_TOKENS} tokens.", 409)
    number = None
    if only is not None:
        require(connection, signed, only, "viewer")
        number = connection.execute(
            select(experiment.c.id).where(experiment.c.name == only)
        ).scalar_one()
    made = _PREFIX + secrets.token_urlsafe(32)
    connection.execute(
        api_token.insert().values(
            token_hash=_hash(made),
            experimenter_id=signed.id,
            name=name,
            scope=scope,
            experiment_id=number,
            created=clock,
            expires=clock + days * 86400.0,
        )
    )
    return made


def tokens_of(connection: Connection, number: int, clock: float) -> list[dict[str, Any]]:
    """Return the tokens of an account that have not expired."""
    rows = connection.execute(
        select(api_token, experiment.c.name.label("experiment"))
        .outerjoin(experiment, experiment.c.id == api_token.c.experiment_id)
        .where(api_token.c.experimenter_id == number, api_token.c.expires > clock)
        .order_by(api_token.c.id)
    ).mappings()
    shown = ("id", "name", "scope", "experiment", "created", "expires")
    return [{key: row[key] for key in shown} for row in rows]


def end_token(connection: Connection, number: int, which: int) -> bool:
    """Revoke a token of an account; return False if it has none of this number."""
    found = connection.execute(
        delete(api_token).where(api_token.c.id == which, api_token.c.experimenter_id == number)
    )
    return bool(found.rowcount)


def check_token(connection: Connection, token: str, clock: float) -> Signed | None:
    """Return the account of a token, or None if the token is not valid."""
    if not token.startswith(_PREFIX) or len(token) > 100:
        return None
    account = experimenter.c
    row = connection.execute(
        select(
            account.id, account.name, account.admin, api_token.c.scope,
            api_token.c.experiment_id, api_token.c.token_hash.label("key"),
        )
        .join(api_token, api_token.c.experimenter_id == account.id)
        .where(
            api_token.c.token_hash == _hash(token),
            api_token.c.expires > clock,
            api_token.c.expires <= clock + MOST_DAYS * 86400.0,
            account.must_change.is_(False),
        )
    ).first()  # fmt: skip
    return None if row is None else Signed(csrf="", **row._mapping)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
