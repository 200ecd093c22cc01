"""Every route of the service with what it needs, and everybody who could ask for it."""

import importlib
import pkgutil
import time

from sqlalchemy import select, update

import accelerando.crowd.web
from accelerando.crowd.store import participants as people
from accelerando.crowd.store import session
from accelerando.crowd.store.schema import api_token, experimenter
from accelerando.crowd.store.schema import session as session_table
from accelerando.crowd.web import accounts, auth, roles, totp
from accelerando.crowd.web.participant_api import cookie_name
from accelerando.crowd.web.signed import Signed
from tests.crowd.web.conftest import _HASH, PASSWORD

# -- what each route needs -------------------------------------------------------------------------

ANYBODY = "nothing"
METRICS = "the token of the metrics"
PARTICIPANT = "the token of a participant of this experiment"
LIST, ONE, MINE = "the page of all experiments", "the page of one", "the page of the account"
SIGN_OUT = "a session, or there is nothing to end"
SIGNED = "a session or a token"
PERSON = "a session"
BEFORE_CHANGE = "a session, also with a password that others know"
WHO = "a session or a token, also with a password that others know"
CREATE = "a session, or a token that may write and is not for one experiment"
ADMIN = "the session of an administrator"
VIEWER, EDITOR, OWNER = "viewer", "editor", "owner"

EXPERIMENT = "/api/v1/experiments/{name}"
NEEDS = {
    "GET /": ANYBODY,
    "GET /api/v1/accounts": ADMIN,
    "GET /api/v1/account/sessions": PERSON,
    "GET /api/v1/account/tokens": PERSON,
    "GET /api/v1/audit": PERSON,
    "GET /api/v1/experiments": SIGNED,
    f"GET {EXPERIMENT}": VIEWER,
    f"GET {EXPERIMENT}/dashboard": VIEWER,
    f"GET {EXPERIMENT}/downloads/{{what}}": VIEWER,
    f"GET {EXPERIMENT}/embedding": VIEWER,
    f"GET {EXPERIMENT}/members": VIEWER,
    f"GET {EXPERIMENT}/participants": VIEWER,
    f"GET {EXPERIMENT}/queries": PARTICIPANT,
    "GET /api/v1/health": SIGNED,
    "GET /api/v1/openapi.json": ANYBODY,
    "GET /api/v1/session": WHO,
    "GET /e/{name}": ANYBODY,
    "GET /e/{name}/": ANYBODY,
    "GET /e/{name}/query": ANYBODY,
    "GET /e/{name}/style.css": ANYBODY,
    "GET /experiments": LIST,
    "GET /experiments-account": MINE,
    "GET /experiments/": ANYBODY,
    "GET /experiments/{name}": ONE,
    "GET /favicon.ico": ANYBODY,
    "GET /health": ANYBODY,
    "GET /health/live": ANYBODY,
    "GET /health/ready": ANYBODY,
    "GET /media/{name}/{key}": ANYBODY,
    "GET /metrics": METRICS,
    "GET /query": ANYBODY,
    "GET /sign-in": ANYBODY,
    "GET /static": ANYBODY,
    "POST /answer": ANYBODY,
    "POST /api/v1/accounts": ADMIN,
    "POST /api/v1/account/tokens": PERSON,
    "POST /api/v1/account/totp": PERSON,
    "POST /api/v1/experiments": CREATE,
    f"POST {EXPERIMENT}/answers": PARTICIPANT,
    f"POST {EXPERIMENT}/codes": EDITOR,
    f"POST {EXPERIMENT}/consent": PARTICIPANT,
    f"POST {EXPERIMENT}/links": EDITOR,
    f"POST {EXPERIMENT}/participants": ANYBODY,
    f"POST {EXPERIMENT}/participants/{{person}}/block": EDITOR,
    f"POST {EXPERIMENT}/participants/{{person}}/reinstate": EDITOR,
    f"POST {EXPERIMENT}/participants/{{person}}/unblock": EDITOR,
    f"POST {EXPERIMENT}/pause": EDITOR,
    f"POST {EXPERIMENT}/queries": PARTICIPANT,
    f"POST {EXPERIMENT}/queries/replace": PARTICIPANT,
    f"POST {EXPERIMENT}/resume": EDITOR,
    f"POST {EXPERIMENT}/withdraw": PARTICIPANT,
    "POST /api/v1/restore": CREATE,
    "POST /api/v1/session": ANYBODY,
    "POST /e/{name}/answer": ANYBODY,
    "POST /experiments-account": MINE,
    "POST /sign-in": ANYBODY,
    "POST /sign-out": SIGN_OUT,
    "PUT /api/v1/account/password": BEFORE_CHANGE,
    "PUT /api/v1/account/totp": PERSON,
    f"PUT {EXPERIMENT}/members/{{account}}": OWNER,
    "DELETE /api/v1/account/sessions/{which}": PERSON,
    "DELETE /api/v1/account/tokens/{number}": PERSON,
    "DELETE /api/v1/account/totp": PERSON,
    "DELETE /api/v1/accounts/{account}": ADMIN,
    f"DELETE {EXPERIMENT}": OWNER,
    f"DELETE {EXPERIMENT}/participants/{{person}}": OWNER,
    "DELETE /api/v1/session": BEFORE_CHANGE,
}


def routes_of_the_app(app):
    """Method and path of every route, also of those that the description leaves out."""
    found = {"GET /api/v1/openapi.json", "GET /static"}
    for module in pkgutil.iter_modules(accelerando.crowd.web.__path__):
        router = getattr(
            importlib.import_module(f"accelerando.crowd.web.{module.name}"), "router", None
        )
        for route in [] if router is None else router.routes:
            found |= {f"{method} {route.path}" for method in route.methods}
    described = app.openapi()["paths"]
    there = {f"{method.upper()} {path}" for path, found in described.items() for method in found}
    assert there <= found, "a router that is in no module of the web package"
    return found


# -- who asks --------------------------------------------------------------------------------------

# What each of them has; an account has a session and a token, and what is wrong with it.
NOBODY = {
    "a stranger": {},
    "a participant's token as a session": {"swap": "participant in session"},
    "a session in place of a token": {"account": "owner", "swap": "session in bearer"},
    "a token in place of a session": {"account": "owner", "swap": "token in session"},
    "a session that has expired": {"account": "owner", "session": {"expires": -1.0}},
    "a session that was not used": {"account": "owner", "session": {"seen": -7201.0}},
    "a session of a clock that was ahead": {"account": "owner", "session": {"expires": 1e8}},
    "a session that was ended": {"account": "owner", "session": None},
    "a token that has expired": {"account": "owner", "token": {"expires": -1.0}},
    "a token of a clock that was ahead": {"account": "owner", "token": {"expires": 1e9}},
    "a token that was revoked": {"account": "owner", "token": None},
    "a token whose owner has a new password": {
        "account": "owner", "must_change": True, "token": {"scope": "write"},
    },
}  # fmt: skip
PEOPLE = {
    "an outsider": {"account": None},
    "a viewer": {"account": "viewer"},
    "an editor": {"account": "editor"},
    "an owner": {"account": "owner"},
    "an administrator": {"account": "admin"},
}
TOKENS = {
    "an outsider's token": {"account": None, "token": {"scope": "write"}},
    "a viewer's token": {"account": "viewer", "token": {"scope": "write"}},
    "a token that reads": {"account": "owner", "token": {"scope": "read"}},
    "a token that writes": {"account": "owner", "token": {"scope": "write"}},
    "an administrator's token": {"account": "admin", "token": {"scope": "write"}},
    "a token for this experiment": {"account": "owner", "token": {"scope": "write", "only": 1}},
    "a token for another": {"account": "admin", "token": {"scope": "write", "only": 2}},
}
NEW = {"somebody with a first password": {"account": "admin", "must_change": True}}
PARTICIPANTS = {
    "a participant": {"participant": 1},
    "a participant of another experiment": {"participant": 2},
    "a participant who shows the token in a header": {"participant": 1, "bearer": True},
}
EVERYBODY = NOBODY | PEOPLE | TOKENS | NEW | PARTICIPANTS


def refusal(needs, who):
    """The status of the refusal, or None where the request is to be served."""
    about = EVERYBODY[who]
    role, token = about.get("account"), about.get("token")
    if needs in (ANYBODY, METRICS):
        return None if needs == ANYBODY else 401
    if needs == PARTICIPANT:
        return None if about.get("participant") == 1 else 401
    signed = who in PEOPLE or who in NEW or who in TOKENS
    if not signed:
        return 303 if needs in (LIST, ONE, MINE, SIGN_OUT) else 401
    if who in NEW:
        if needs in (BEFORE_CHANGE, WHO, MINE, SIGN_OUT):
            return None
        return 303 if needs in (LIST, ONE) else 403
    if needs in (LIST, SIGNED, WHO):
        return None
    if needs == MINE:
        return 303 if token else None
    if needs in (BEFORE_CHANGE, PERSON, SIGN_OUT):
        return 403 if token else None
    if needs == ADMIN:
        return None if role == "admin" and not token else 403
    if needs == CREATE:
        return 403 if token and (token["scope"] == "read" or "only" in token) else None
    if role is None or (token and token.get("only") == 2):
        return 404
    most = ["viewer", "editor", "owner", "admin"].index(role)
    if token:
        most = min(most, 0 if token["scope"] == "read" else 1)
    return (
        None
        if most >= ["viewer", "editor", "owner"].index(VIEWER if needs == ONE else needs)
        else 403
    )


class Caller:
    """Somebody with an account, a token or a participant's session in an experiment."""

    def __init__(self, world, who, name):
        self.headers, self.cookies, self.csrf, self.query = {}, {}, "", None
        self.session_id, self.token_id, self.key = "0" * 16, 1, totp.new_key()
        about = EVERYBODY[who]
        with world.site.store.write() as connection:
            if "participant" in about:
                self._take_part(connection, world, about, name)
            if "account" in about:
                self._have_account(connection, world, about, name)
        swap = about.get("swap")
        if swap == "participant in session":
            self.cookies[auth.COOKIE] = world.participant_token
        elif swap == "session in bearer":
            self.headers["authorization"] = f"Bearer {self.cookies.pop(auth.COOKIE)}"
        elif swap == "token in session":
            self.cookies[auth.COOKIE] = self.headers.pop("authorization").partition(" ")[2]

    def _take_part(self, connection, world, about, name):
        here = name if about["participant"] == 1 else "other"
        secret = world.site.app.state.context.secret
        standing = session.begin(connection, here, secret, {}, "", None, 2, time.time())
        shown = people.token(secret, standing.snapshot, standing.person)
        self.query = standing.queries[0]
        if about.get("bearer"):
            self.headers["authorization"] = f"Bearer {shown}"
        else:
            self.cookies[cookie_name(name)] = shown

    def _have_account(self, connection, world, about, name):
        now, account, role = time.time(), world.new("account"), about["account"]
        accounts.set_password(connection, account, _HASH, now, admin=role == "admin")
        if role not in (None, "admin"):
            roles.give(connection, name, account, role)
        number, _ = accounts.stored_hash(connection, account)
        token, changes = about.get("token", {}), about.get("session", {})
        wants_token = "token" in about or about.get("swap") == "token in session"
        if wants_token or about.get("role") != "admin":
            only = {None: None, 1: name, 2: "other"}[(token or {}).get("only")]
            admin = Signed(number, account, "", only is not None or role == "admin")
            made = roles.make_token(
                connection, admin, name="x", scope=(token or {}).get("scope", "write"), only=only,
                days=9, clock=now,
            )  # fmt: skip
            mine = api_token.c.experimenter_id == number
            self.token_id = connection.execute(select(api_token.c.id).where(mine)).scalar_one()
            if token is None:
                roles.end_token(connection, number, self.token_id)
            elif "expires" in token:
                ends = now + token["expires"]
                connection.execute(update(api_token).where(mine).values(expires=ends))
        if wants_token:
            self.headers["authorization"] = f"Bearer {made}"
        else:
            opened = accounts.sign_in(connection, number, _HASH, "caller", account, now)
            signed = accounts.check_session(connection, opened, now)
            self.csrf, self.session_id = signed.csrf, accounts.session_id(opened)
            self.headers["x-csrf-token"] = self.csrf
            self.cookies[auth.COOKIE] = opened
            if changes is None:
                accounts.sign_out(connection, opened)
            elif changes:
                values = {key: now + seconds for key, seconds in changes.items()}
                mine = session_table.c.experimenter_id == number
                connection.execute(update(session_table).where(mine).values(values))
        if about.get("must_change"):
            mine = experimenter.c.id == number
            connection.execute(update(experimenter).where(mine).values(must_change=True))


def request(world, route, caller, name):
    """A complete request for this route: method, path and the body that it takes."""
    method, _, path = route.partition(" ")
    person = world.withdrawn[name] if path.endswith("/reinstate") else world.person[name]
    path = path.format(
        name=name, what="answers.csv", person=person, key=world.media, account=world.colleague(),
        which=caller.session_id, number=caller.token_id,
    )  # fmt: skip
    step = int(time.time()) // 30
    first = caller.query or world.query  # the one of somebody else
    new = {"present": PASSWORD, "new": "entirely new words"}
    form = {**new, "csrf": caller.csrf}
    sign_in = {"name": "experimenter", "password": PASSWORD}
    settings = ("e.yaml", f"name: {world.new('made')}\nitems: 8\n".encode())
    bodies = {
        "POST /answer": {"json": {"head": 0, "left": 1, "right": 2, "winner": 1}},
        "POST /e/{name}/answer": {"json": {"head": 0, "left": 1, "right": 2, "winner": 1}},
        "POST /api/v1/accounts": {"json": {"name": world.new("a"), "password": "words for tom"}},
        "POST /api/v1/account/tokens": {"json": {"name": "x"}},
        "POST /api/v1/experiments": {"files": {"settings": settings}},
        "POST /api/v1/restore": {
            "files": {"archive": ("a.zip", world.archive)}, "data": {"name": world.new("again")},
        },
        f"POST {EXPERIMENT}/answers": {
            "json": {"query": str(first.id), "winner": first.left},
        },
        f"POST {EXPERIMENT}/queries/replace": {
            "json": {"query": str(first.id), "failed": [first.left]},
        },
        f"POST {EXPERIMENT}/codes": {"json": {"codes": []}},
        f"POST {EXPERIMENT}/consent": {"json": {"agreed": True}},
        f"POST {EXPERIMENT}/links": {"json": {"ids": ["1"]}},
        f"POST {EXPERIMENT}/participants": {"json": {}},
        f"POST {EXPERIMENT}/queries": {"json": {"count": 5}},
        "POST /api/v1/session": {"json": sign_in},
        "POST /experiments-account": {"data": form},
        "POST /sign-in": {"data": {**sign_in, "csrf": "c" * 32}},
        "POST /sign-out": {"data": {"csrf": caller.csrf}},
        "PUT /api/v1/account/password": {"json": new},
        "PUT /api/v1/account/totp": {
            "json": {
                "present": PASSWORD, "key": caller.key, "code": totp.code_at(caller.key, step),
            }
        },
        f"PUT {EXPERIMENT}/members/{{account}}": {"json": {"role": "viewer"}},
        "DELETE /api/v1/account/totp": {"json": {"present": PASSWORD}},
        f"DELETE {EXPERIMENT}": {"json": {"confirm": name}},
    }  # fmt: skip
    return method, path, bodies.get(route, {})
