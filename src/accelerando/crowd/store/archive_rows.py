"""The rows of an archive, and what they must be: nothing of an edited file is stored unseen."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Table

from accelerando.crowd.experiment import Settings
from accelerando.crowd.experiment.items import ItemKind
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import answer, model, participant, served
from accelerando.crowd.store.serving import CHECK, UNSHOWN

__all__ = ["TABLES", "Copies", "ItemRow", "Manifest", "bad", "check_rows"]

# Until the year 9999, where calendars end; numbers of people are those of the web routes.
_Time = Annotated[float, Field(ge=0, lt=253_370_764_800)]
_PersonId = Annotated[int, Field(ge=1, lt=2**53)]


class _Row(BaseModel):
    """A line of an archive; other fields are refused."""

    # Strict: true is no number, and "1" neither. Nothing that we write is infinite or NaN.
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Manifest(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)

    created: _Time = 0.0
    id: int = Field(default=0, ge=0, lt=2**31)
    declined: int | None = Field(default=None, ge=0, lt=2**31)


class ItemRow(_Row):
    kind: ItemKind
    text: str
    html: str
    media: str
    alt: str


class Copies(_Row):
    sources: dict[str, Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]]
    copies: dict[Annotated[str, Field(pattern=r"^copies/[1-9][0-9]{0,4}/[^/]+$")], str]


class _ParticipantRow(_Row):
    id: _PersonId
    external: str | None = Field(max_length=200)
    name: str = Field(max_length=200)
    state: str = Field(pattern="^(active|blocked)$")
    outcome: str | None = Field(max_length=16)
    created: _Time
    last: _Time
    consented: _Time | None
    consent_version: str | None = Field(max_length=64)
    device: str = Field(max_length=16)
    parameters: dict[str, str]
    personal: dict[str, Any]
    practised: int = Field(ge=0, lt=2**31)
    asked: int = Field(ge=0, lt=2**31)
    answered: int = Field(ge=0, lt=2**31)
    skipped: int = Field(ge=0, lt=2**31)
    failed: int = Field(ge=0, lt=2**31)
    # Archives of earlier versions do not have these.
    withdrawn: _Time | None = None
    proven: bool = False
    browser: str = Field(default="", max_length=64)
    secret: str = Field(default="", pattern="^([0-9a-f]{32})?$")
    extra: int = Field(default=0, ge=0, lt=2**31)
    quota: int | None = Field(default=None, ge=0, lt=2**31)
    code_used: _Time | None = None


class _ServedRow(_Row):
    id: int = Field(ge=0, lt=2**53)
    participant_id: _PersonId
    number: int = Field(gt=-(2**31), lt=2**31)
    kind: str = Field(pattern="^(query|check|repeat|practice)$")
    head: int = Field(ge=0)
    left: int = Field(ge=0)
    right: int = Field(ge=0)
    winner: int | None = Field(default=None, ge=0)
    sampler: str = Field(max_length=64)
    score: float | None
    fallback: bool
    version: int = Field(ge=0, lt=2**31)
    at: _Time
    open: bool


class _AnswerRow(_Row):
    query_id: int
    winner: int | None
    response_time: float | None
    network_latency: float | None
    received: _Time


class _ModelRow(_Row):
    version: int = Field(ge=0, lt=2**31)
    n_answers: int = Field(ge=0, lt=2**31)
    at: _Time
    seconds: float
    loss: float | None
    lapse: float | None
    accuracy: float | None
    tested: int = Field(ge=0, lt=2**31)
    positions: list[list[float]] | None


class _State(_Row):
    n_items: int
    seed: int = Field(default=0, ge=0, lt=2**63)
    turn: int = Field(default=0, ge=0, lt=2**31)
    deck: list[int] = []
    cover: list[int] = []


class _Unshown(_Row):
    counts: dict[
        Annotated[str, Field(pattern="^[0-9]{1,9}$")], Annotated[int, Field(ge=0, lt=2**31)]
    ]


TABLES: dict[str, tuple[Table, type[_Row]]] = {
    "participants": (participant, _ParticipantRow),
    "queries": (served, _ServedRow),
    "answers": (answer, _AnswerRow),
    "models": (model, _ModelRow),
}


def check_rows(rows: dict[str, list[dict[str, Any]]], n_items: int, settings: Settings) -> None:
    """Check that rows fit one another, the settings and the number of items.

    Raises
    ------
    ApiError
        They do not; the message has the reason.
    """
    for path, message, _ in settings.problems(n_items):
        raise bad(f"settings.{'.'.join(map(str, path))}: {message.rstrip('.')}")
    people = {row["id"] for row in rows["participants"]}
    queries = {row["id"]: row for row in rows["queries"]}
    if len(people) != len(rows["participants"]) or len(queries) != len(rows["queries"]):
        raise bad("a participant or query occurs twice")
    for row in rows["queries"]:
        feet = {row["head"], row["left"], row["right"]}
        if len(feet) != 3 or max(feet) >= n_items or row["participant_id"] not in people:
            raise bad(f"query {row['id']} refers to items or participants that do not exist")
        if row["winner"] not in (None, row["left"], row["right"]):
            raise bad(f"the right answer to query {row['id']} is not one of its items")
    for row in rows["participants"]:
        _check_personal(row["personal"], n_items, settings)
    names = [row["external"] for row in rows["participants"] if row["external"] is not None]
    versions = [row["version"] for row in rows["models"]]
    if len(set(names)) != len(names) or len(set(versions)) != len(versions):
        raise bad("a participant's ID or an embedding's version occurs twice")
    answered = set()
    for row in rows["answers"]:
        query = queries.get(row["query_id"])
        if query is None or row["query_id"] in answered:
            raise bad(f"the answer to query {row['query_id']} occurs twice or without its query")
        if row["winner"] not in (None, query["left"], query["right"]):
            raise bad(f"the winner of query {row['query_id']} is not one of its items")
        answered.add(row["query_id"])
    dimensions = settings.embedding.dimensions
    for row in rows["models"]:
        where = row["positions"]
        width = len(where[0]) if where and dimensions == "auto" else dimensions
        if where is not None and (
            len(where) != n_items or any(len(point) != width for point in where)
        ):
            raise bad("an embedding has the wrong shape")


def _check_personal(personal: dict[str, Any], n_items: int, settings: Settings) -> None:
    """Check the states of a participant's own samplers, and the counts of items not shown."""
    for name, value in personal.items():
        if name == UNSHOWN:
            counts = _Unshown.model_validate({"counts": value}).counts
            if any(int(item) >= n_items for item in counts):
                raise bad("an item that did not load does not exist")
            continue
        state = _State.model_validate(value)
        sampler = settings.samplers.get(name)
        asked = None if sampler is None else sampler.queries
        if name == CHECK:
            asked = [[known.head, known.left, known.right] for known in settings.checks.queries]
        # Cards are items, or queries on either side.
        cards = set(range(n_items if asked is None else 2 * len(asked)))
        if sampler is not None and asked is None and sampler.items is not None:
            cards &= set(sampler.items)
        if state.n_items != n_items or not set(state.deck) <= cards:
            raise bad(f"the state of the sampler {name!r} does not fit the items")


def bad(why: str) -> ApiError:
    """Return the error of an archive that cannot be restored."""
    return ApiError("archive", f"This archive cannot be restored: {why}.", 422)
