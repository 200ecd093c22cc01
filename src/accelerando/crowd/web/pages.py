"""HTML pages of participants and experimenters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Form, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from sqlalchemy import Connection

from accelerando import __version__
from accelerando.crowd.experiment import Item
from accelerando.crowd.experiment.html import clean_html
from accelerando.crowd.experiment.texts import TEXTS
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store import participants, statistics
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.web import accounts, roles
from accelerando.crowd.web.auth import (
    COOKIE,
    CSRF_COOKIE,
    check_csrf,
    check_form_token,
    forget,
    form_token,
    set_session,
    signed_in,
    try_password,
)
from accelerando.crowd.web.context import Context, Ctx
from accelerando.crowd.web.cookies import cookie_of, drop_cookie, set_cookie
from accelerando.crowd.web.middleware import page_policy
from accelerando.crowd.web.origin import path_of
from accelerando.crowd.web.participant_api import Name, cookie_name

__all__ = ["STATIC", "error_page", "router"]

HERE = Path(__file__).parent
STATIC = HERE / "static"
_PRELOADED = 12

router = APIRouter(include_in_schema=False)

_templates = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=select_autoescape(default=True),
    undefined=StrictUndefined,
)


def render(
    request: Request, template: str, data: dict[str, Any], *, status: int = 200, **more: Any
) -> HTMLResponse:
    """Render a template. It gets `data` as variables and, for scripts, as one object."""
    root = request.scope.get("root_path", "")

    def url(path: str) -> str:
        return f"{root}{path}"

    text = _templates.get_template(template).render(
        **{"lang": "en", "version": __version__, "url": url, "data": data} | data | more
    )
    return HTMLResponse(text, status_code=status)


def error_page(request: Request, status: int, title: str, detail: str) -> HTMLResponse:
    """Return the page of an error."""
    return render(
        request, "error.html", {"status": status, "title": title, "detail": detail}, status=status
    )


@router.get("/")
async def front(request: Request, context: Ctx) -> Response:
    """List the running experiments that anybody may enter, or redirect to the only one."""

    def look(connection: Connection) -> list[Snapshot]:
        found = [stored.find(connection, name) for name in stored.names(connection)]
        return [
            snapshot
            for snapshot in found
            if not snapshot.paused and snapshot.frame.settings.participants.entry == "open"
        ]

    running = await context.read(look)
    root = request.scope.get("root_path", "")
    if len(running) == 1:
        there = f"{root}/e/{running[0].frame.name}/{_query(request)}"
        return RedirectResponse(there, status_code=302)
    listed = [
        {
            "name": snapshot.frame.name,
            "title": snapshot.frame.settings.title,
            "url": f"{root}/e/{snapshot.frame.name}/",
        }
        for snapshot in running
    ]
    return render(request, "index.html", {"experiments": listed})


def _query(request: Request) -> str:
    """Return the part of the address that begins with a question mark, or nothing."""
    text = request.scope.get("query_string", b"").decode("latin-1")
    return f"?{text}" if text else ""


@router.get("/favicon.ico")
async def icon() -> Response:
    """Return the icon that browsers request for downloads and other non-pages."""
    return FileResponse(STATIC / "icon.svg", media_type="image/svg+xml; charset=utf-8")


@router.get("/e/{name}")
async def participant_without_slash(request: Request, name: Name) -> Response:
    """Redirect to the page with a slash, which its relative URLs need."""
    root = request.scope.get("root_path", "")
    return RedirectResponse(f"{root}/e/{name}/{_query(request)}", status_code=307)


@router.get("/e/{name}/")
async def participant(request: Request, name: Name, context: Ctx) -> Response:
    """Return the participant's page. It writes nothing, because crawlers load it, too."""

    def look(connection: Connection) -> tuple[Snapshot, list[Item]]:
        snapshot = stored.find(connection, name)
        if not _may_enter(request, connection, context, snapshot):
            return snapshot, []  # whoever has no invitation sees no item
        return snapshot, context.items(connection, snapshot)

    snapshot, items = await context.read(look)
    root = request.scope.get("root_path", "")
    page = page_data(snapshot, items, root)
    response = render(request, "participant.html", page, lang=page["language"], page=page)
    hosts = snapshot.frame.settings.media_hosts
    if hosts:
        response.headers["content-security-policy"] = page_policy(hosts)
    return response


def _may_enter(
    request: Request, connection: Connection, context: Context, snapshot: Snapshot
) -> bool:
    """Return True if who opens the page takes part, is invited, or needs no invitation."""
    secret = context.secret
    if snapshot.frame.settings.participants.entry == "open":
        return True
    if participants.is_invited(snapshot, secret, request.query_params):
        return True
    shown = cookie_of(request, cookie_name(snapshot.frame.name))
    return participants.authenticate(connection, secret, snapshot, shown) is not None


@router.get("/e/{name}/style.css")
async def style(name: Name, context: Ctx) -> Response:
    """Return the experimenter's style sheet."""
    snapshot = await context.read(stored.find, name)
    return Response(snapshot.frame.settings.css, media_type="text/css")


def page_data(snapshot: Snapshot, items: list[Item], root: str) -> dict[str, Any]:
    """Return the data that the participant's page needs before the first query."""
    settings, name = snapshot.frame.settings, snapshot.frame.name
    pictures = [
        {"src": f"{root}/media/{name}/{item.media}", "widths": list(item.widths)}
        for item in items
        if item.kind == "image"
    ]
    consent = settings.consent
    return {
        "api": f"{root}/api/v1/experiments/{name}",
        "name": name,
        "title": settings.title,
        "language": settings.language,
        "texts": TEXTS | settings.texts,
        "instructions_html": clean_html(settings.instructions),
        "consent_html": None if consent is None else clean_html(consent.text),
        "consent_version": None if consent is None else consent.version,
        "practice": len(settings.practice),
        "breaks": {
            "every": settings.breaks.every,
            "text_html": clean_html(settings.breaks.text),
            "seconds": settings.breaks.seconds,
        },
        "skip": settings.skip,
        "keyboard": settings.keyboard,
        "withdraw": settings.participants.withdraw,
        "total": settings.participants.answers,
        "parameters": [
            *settings.participants.id_parameters,
            *settings.participants.keep_parameters,
        ],
        "slots": {place: clean_html(text) for place, text in settings.slots.model_dump().items()},
        "preload": pictures if len(pictures) <= _PRELOADED else [],
        "css": f"{root}/e/{name}/style.css" if settings.css else None,
        "pause_between": settings.pause_between,
    }


@router.get("/sign-in")
async def sign_in_page(request: Request, next: str = "/experiments") -> Response:
    """Return the sign-in form."""
    return _sign_in_form(request, next)


@router.post("/sign-in")
async def sign_in(
    request: Request,
    name: Annotated[str, Form(max_length=100)],
    password: Annotated[str, Form(max_length=1000)],
    csrf: Annotated[str, Form(max_length=100)] = "",
    next: Annotated[str, Form(max_length=500)] = "/experiments",
    code: Annotated[str, Form(max_length=20)] = "",
) -> Response:
    """Check name and password and start a session."""
    try:
        check_form_token(request, csrf)
        token = await try_password(request, name, password, code)
    except ApiError as error:
        return _sign_in_form(request, next, str(error), error.status)
    root = request.scope.get("root_path", "")
    response = RedirectResponse(f"{root}{_inside(next)}", status_code=303)
    set_session(request, response, token)
    drop_cookie(request, response, CSRF_COOKIE)
    return response


@router.post("/sign-out")
async def sign_out(
    request: Request, context: Ctx, csrf: Annotated[str, Form(max_length=100)] = ""
) -> Response:
    """End the session."""
    signed = await signed_in(request)
    root = request.scope.get("root_path", "")
    response = RedirectResponse(f"{root}/sign-in", status_code=303)
    if signed is not None:
        check_csrf(request, signed, csrf)
        await context.write(accounts.sign_out, cookie_of(request, COOKIE) or "")
        forget(request, response)
    return response


@router.get("/experiments")
async def experiments(request: Request, context: Ctx) -> Response:
    """Return the experimenter's list of experiments."""
    signed = await signed_in(request)
    if signed is None:
        return _to_sign_in(request)
    root = request.scope.get("root_path", "")
    if signed.must_change:
        return RedirectResponse(f"{root}/experiments-account", status_code=303)
    only = await context.read(roles.visible, signed)
    found = await context.read(statistics.summaries, root, only)
    return render(
        request,
        "experiments.html",
        {"experiments": found, "csrf": signed.csrf, "experimenter": signed.name},
    )


@router.get("/experiments/")
async def experiments_with_slash(request: Request) -> Response:
    """Redirect to the list."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}/experiments", status_code=307)


@router.get("/experiments/{name}")
async def dashboard(request: Request, name: Name, context: Ctx) -> Response:
    """Return the dashboard of an experiment."""
    signed = await signed_in(request)
    if signed is None:
        return _to_sign_in(request)
    root = request.scope.get("root_path", "")
    if signed.must_change:
        return RedirectResponse(f"{root}/experiments-account", status_code=303)
    await context.read(roles.require, signed, name, "viewer")
    found = await context.read(statistics.summary, name, root)
    role = await context.read(roles.role_of, signed, name)
    return render(
        request,
        "dashboard.html",
        {"experiment": found, "csrf": signed.csrf, "experimenter": signed.name, "role": role},
    )


def _to_sign_in(request: Request) -> Response:
    root = request.scope.get("root_path", "")
    return RedirectResponse(f"{root}/sign-in?next={quote(path_of(request))}", status_code=303)


def _sign_in_form(
    request: Request, next_page: str, error: str | None = None, status: int = 200
) -> Response:
    token = form_token(request)
    response = render(
        request,
        "sign_in.html",
        {"csrf": token, "next": _inside(next_page), "error": error},
        status=status,
    )
    set_cookie(request, response, CSRF_COOKIE, token, samesite="strict")
    return response


def _inside(path: str) -> str:
    """Return the path if it is a page of experimenters, else the list of experiments."""
    plain = path.startswith("/experiments") and "\\" not in path and path.isprintable()
    return path if plain else "/experiments"
