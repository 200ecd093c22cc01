"""Schemas: JSON of the HTTP interface of participants."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from accelerando.crowd.experiment import Item, Settings
from accelerando.crowd.experiment.html import clean_html
from accelerando.crowd.experiment.settings import not_boolean
from accelerando.crowd.experiment.texts import TEXTS
from accelerando.crowd.store.codes import completion_code
from accelerando.crowd.store.experiments import Frame
from accelerando.crowd.store.participants import token
from accelerando.crowd.store.session import Standing

__all__ = [
    "AnswerIn",
    "ConsentIn",
    "ParticipantIn",
    "QueriesIn",
    "ReplaceIn",
    "SessionOut",
    "item_json",
    "session_json",
]

# The range of INTEGER columns.
ItemNumber = Annotated[int, BeforeValidator(not_boolean), Field(ge=0, lt=2**31)]
Seconds = Annotated[float, BeforeValidator(not_boolean), Field(allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(not_boolean), Field(ge=0, le=5)]
ShortText = Annotated[str, Field(max_length=100)]
LongerText = Annotated[str, Field(max_length=1000)]
QueryId = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]


class _In(BaseModel):
    model_config = ConfigDict(extra="ignore")


class ParticipantIn(_In):
    """A participant opens the page."""

    parameters: dict[ShortText, LongerText] = Field(default={}, max_length=50)
    device: Literal["", "phone", "tablet", "computer"] = ""
    count: Count = 2
    # A random number that the browser keeps: it proves that a later visit is by the same browser.
    browser: str = Field(default="", pattern=r"^([A-Za-z0-9_-]{22,64})?$")


class QueriesIn(_In):
    """How many open queries the participant wants to have."""

    count: Count = 2


class ConsentIn(_In):
    """Whether the participant gives consent."""

    agreed: bool


class AnswerIn(_In):
    """An answer; ``winner: null`` skips the query."""

    query: QueryId
    winner: ItemNumber | None
    response_time: Seconds | None = None
    network_latency: Seconds | None = None
    count: Count = 2


class ReplaceIn(_In):
    """A query whose items did not load, with the numbers of these items."""

    query: QueryId
    failed: list[ItemNumber] = Field(min_length=1, max_length=3)
    count: Count = 2


class ItemOut(BaseModel):
    """An item."""

    item: int
    kind: Literal["text", "image", "video", "audio", "html"]
    text: str
    html: str | None = None
    src: str | None = None
    widths: list[int] | None = None
    alt: str


class QueryOut(BaseModel):
    """A query: is left or right more like head?"""

    id: str
    kind: Literal["practice", "query"]
    head: ItemOut
    left: ItemOut
    right: ItemOut
    feedback: dict[str, int] | None = None


class ProgressOut(BaseModel):
    """Progress of the participant."""

    answered: int
    skipped: int
    total: int | None


class CompletionOut(BaseModel):
    """The end of a session: text, completion code, redirect."""

    text_html: str
    code: str | None
    redirect: str | None


class SessionOut(BaseModel):
    """The state of a session."""

    participant: str
    token: str
    consent_required: bool
    practice_left: int
    progress: ProgressOut
    queries: list[QueryOut]
    finished: bool
    outcome: str | None
    completion: CompletionOut | None
    stored: bool | None = None
    reason: str | None = None


class ErrorDetail(BaseModel):
    """An error: a code for programs, a sentence for people."""

    code: str
    message: str
    problems: list[dict[str, Any]] | None = None


class ErrorOut(BaseModel):
    """The body of every error response."""

    error: ErrorDetail


def item_json(item: Item, number: int, frame: Frame, root: str) -> dict[str, Any]:
    """Return an item as JSON."""
    shown: dict[str, Any] = {
        "item": number,
        "kind": item.kind,
        "text": item.text,
        "alt": item.alt,
    }
    if item.kind == "html":
        shown["html"] = item.html
    if item.media:
        shown["src"] = f"{root}/media/{frame.name}/{item.media}"
        if item.widths:
            shown["widths"] = list(item.widths)
    return shown


def session_json(standing: Standing, items: list[Item], secret: bytes, root: str) -> dict[str, Any]:
    """Return a session as JSON."""
    snapshot, person = standing.snapshot, standing.person
    settings, frame = snapshot.frame.settings, snapshot.frame
    outcome = standing.outcome
    # Blocked participants are not informed, because they might return under another name.
    finished = outcome is not None and outcome != "paused"
    counted = None if person is None or person.withdrawn is not None else person
    answer: dict[str, Any] = {
        "participant": "" if person is None else person.name,
        "token": "" if person is None else token(secret, snapshot, person),
        "consent_required": standing.consent_required and not finished,
        "practice_left": 0 if person is None else len(settings.practice) - person.practised,
        "progress": _progress(settings, counted),
        "queries": [_query(row, items, frame, root) for row in standing.queries],
        "finished": finished,
        "outcome": "done" if outcome == "blocked" else outcome,
        "completion": _completion(standing, secret) if finished else None,
    }
    if standing.taken is not None:
        answer["stored"] = standing.taken.stored
        answer["reason"] = standing.taken.reason
    return answer


def _query(row: Any, items: list[Item], frame: Frame, root: str) -> dict[str, Any]:
    practice = row.kind == "practice"
    return {
        "id": str(row.id),
        "kind": "practice" if practice else "query",
        "head": item_json(items[row.head], row.head, frame, root),
        "left": item_json(items[row.left], row.left, frame, root),
        "right": item_json(items[row.right], row.right, frame, root),
        "feedback": {"winner": row.winner} if practice and row.winner is not None else None,
    }


def _progress(settings: Settings, person: Any) -> dict[str, Any]:
    """Return the progress in screens: checks and repeats look like other queries."""
    if person is None:
        total = settings.participants.answers
        return {
            "answered": 0,
            "skipped": 0,
            "total": None if total is None else total + _extras(settings, 0, total),
        }
    total = None
    if person.quota is not None:
        left = max(0, person.quota - person.answered)
        done = person.answered + person.extra + person.skipped
        total = person.answered + person.extra + left + _extras(settings, done, left)
    return {"answered": person.answered + person.extra, "skipped": person.skipped, "total": total}


def _extras(settings: Settings, after: int, queries: int) -> int:
    """Return how many checks and repeats come among this many queries after a screen number."""
    checks, fixed = settings.checks, settings.fixed
    periods = [checks.every] if checks.queries else []
    periods += [checks.repeat_every] if checks.repeat_every else []
    if not periods:
        return 0
    found, number = 0, after
    while queries > 0:
        number += 1
        is_fixed = number in fixed and fixed[number].query is not None
        if not is_fixed and any(number % period == 0 for period in periods):
            found += 1
        else:
            queries -= 1
    return found


def _completion(standing: Standing, secret: bytes) -> dict[str, Any]:
    snapshot, person = standing.snapshot, standing.person
    settings = snapshot.frame.settings
    outcome = standing.outcome or "done"
    text = settings.debrief if outcome == "done" else settings.texts.get(outcome, "")
    if outcome == "no_consent" and person is not None:
        text = settings.texts.get("no_consent_again", TEXTS["no_consent_again"])
    made = settings.completion.get(outcome)  # type: ignore[call-overload]
    # Who is not a participant has no code, and cannot bring one along in the link either.
    known = {"code": ""}
    if person is not None:
        own = {"participant": person.name, "code": completion_code(secret, snapshot, person)}
        known = {**person.parameters, **own}
    template = None if made is None else made.code
    if person is None and template and "{code}" in template:
        template = None
    return {
        "text_html": clean_html(text),
        "code": _fill(template, known, encode=False),
        "redirect": None if made is None else _fill(made.redirect, known, encode=True),
    }


def _fill(template: str | None, known: dict[str, str], *, encode: bool) -> str | None:
    """Replace ``{NAME}`` by parameters of the participant's link; the page fills in the rest."""
    if template is None:
        return None

    def value(found: re.Match[str]) -> str:
        if found[1] not in known:
            return found[0]
        return quote(known[found[1]], safe="") if encode else known[found[1]]

    return re.sub(r"\{(\w+)\}", value, template)
