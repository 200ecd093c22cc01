"""Archive: an experiment as one ZIP file with settings, items, answers and embeddings.

It contains JSON and the media files, so that other programs can read it.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json
from sqlalchemy import Connection, Table, select

from accelerando import __version__
from accelerando.crowd.experiment import Experiment, Item, Limits, Media, Settings
from accelerando.crowd.experiment.files import PACKINGS
from accelerando.crowd.experiment.html import clean_html
from accelerando.crowd.experiment.items import ItemKind
from accelerando.crowd.experiment.media import recognize
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.media import all_media
from accelerando.crowd.store.schema import answer, model, participant, served

__all__ = ["FORMAT", "read_archive", "restore", "write_archive"]

FORMAT = 1
_ROWS = 500
_MOST_ROWS = 20_000_000


# Until the year 9999, where calendars end; numbers of people are those of the web routes.
_Time = Annotated[float, Field(ge=0, lt=253_370_764_800)]
_PersonId = Annotated[int, Field(ge=1, lt=2**53)]


class _Row(BaseModel):
    """A line of an archive; other fields are refused."""

    # Strict: true is no number, and "1" neither. Nothing that we write is infinite or NaN.
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Manifest(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)

    created: _Time = 0.0
    id: int = Field(default=0, ge=0, lt=2**31)
    declined: int | None = Field(default=None, ge=0, lt=2**31)


class _ItemRow(_Row):
    kind: ItemKind
    text: str
    html: str
    media: str
    alt: str


class _Copies(_Row):
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


_TABLES: dict[str, tuple[Table, type[_Row]]] = {
    "participants": (participant, _ParticipantRow),
    "queries": (served, _ServedRow),
    "answers": (answer, _AnswerRow),
    "models": (model, _ModelRow),
}


def write_archive(connection: Connection, snapshot: Snapshot, stream: IO[bytes]) -> None:
    """Write everything about an experiment to a ZIP file."""
    number = snapshot.frame.id
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        manifest = {
            "format": FORMAT,
            "accelerando": __version__,
            "name": snapshot.frame.name,
            "id": number,
            "created": snapshot.frame.created,
            "state": snapshot.state,
            "declined": stored.declined(connection, number),
        }
        archive.writestr("manifest.json", json.dumps(manifest, indent=1))
        archive.writestr(
            "settings.json", snapshot.frame.settings.model_dump_json(by_alias=True, indent=1)
        )
        items = stored.items_of(connection, number)
        archive.writestr("items.json", json.dumps([i.stored() for i in items], indent=1))
        names, sources, copies = {}, {}, {}
        for key, media in all_media(connection, number).items():
            names[key], sources[key] = media.name, media.source
            # Images and videos are compressed already.
            archive.writestr(f"media/{key}", media.data, zipfile.ZIP_STORED)
            for width, (kind, data) in media.sizes.items():
                copies[f"copies/{width}/{key}"] = kind
                archive.writestr(f"copies/{width}/{key}", data, zipfile.ZIP_STORED)
        archive.writestr("media.json", json.dumps(names))
        archive.writestr("copies.json", json.dumps({"sources": sources, "copies": copies}))
        for name, (table, row_type) in _TABLES.items():
            columns = [table.c[field] for field in row_type.model_fields]
            order = answer.c.seq if table is answer else columns[0]
            found = connection.execution_options(yield_per=_ROWS).execute(
                select(*columns).where(table.c.experiment_id == number).order_by(order)
            )
            with archive.open(f"{name}.jsonl", "w", force_zip64=True) as file:
                for row in found.mappings():
                    file.write(json.dumps(dict(row)).encode() + b"\n")


class Archive:
    """A valid archive, ready to be restored."""

    def __init__(
        self,
        made: Experiment,
        created: float,
        rows: dict[str, list[dict[str, Any]]],
        number: int,
        declined: int = 0,
    ) -> None:
        self.made, self.created, self.rows, self.number = made, created, rows, number
        self.declined = declined


def read_archive(data: bytes, limits: Limits = Limits()) -> Archive:  # noqa: B008 (frozen)
    """Read an archive and check everything in it.

    Raises
    ------
    ApiError
        The file is damaged, too large, or not an archive of an experiment.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _read(archive, _Budget(archive, limits))
    except (zipfile.BadZipFile, EOFError, KeyError, NotImplementedError, RuntimeError) as error:
        raise _bad(f"it cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _bad(f"{place}: {first['msg']}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise _bad(str(error)) from None


class _Budget:
    """Read entries of a ZIP file within a limit of bytes."""

    def __init__(self, archive: zipfile.ZipFile, limits: Limits) -> None:
        self.archive, self.left, self.ratio = archive, limits.total_bytes, limits.ratio
        # A picture has up to three smaller copies.
        if len(archive.infolist()) > 4 * limits.files + 10:
            raise _bad("it has too many files")

    def read(self, name: str) -> bytes:
        info = self.archive.getinfo(name)
        if info.compress_type not in PACKINGS:
            raise _bad(f"{name} is packed unusually")
        most = min(self.left, int(self.ratio * max(info.compress_size, 4096)))
        with self.archive.open(info) as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise _bad(f"{name} unpacks to more than {most:,} bytes")
        self.left -= len(content)
        return content

    def json(self, name: str, kind: type) -> Any:
        found = _parse(self.read(name))
        if not isinstance(found, kind):
            raise _bad(f"the content of {name} has another form")
        return found

    def lines(self, name: str) -> Iterator[Any]:
        for line in self.read(name).splitlines():
            if line.strip():
                yield _parse(line)


def _parse(text: bytes) -> Any:
    # Unlike json.loads, it refuses halves of characters, which no database stores.
    return from_json(text)


def _read(archive: zipfile.ZipFile, budget: _Budget) -> Archive:
    manifest = _parse(budget.read("manifest.json"))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _bad(f"it must have format {FORMAT}")
    settings = Settings.model_validate_json(budget.read("settings.json"), context={"stored": True})
    names = budget.json("media.json", dict)
    media: dict[str, Media] = {}
    for key, name in names.items():
        content = budget.read(f"media/{key}")
        kind = recognize(content)
        made = None if kind is None else Media(str(name), kind, content)
        if made is None or made.key != key:
            raise _bad(f"the content of media/{key} does not match its name")
        media[key] = made
    _add_copies(media, budget)
    items = [_item(entry, media) for entry in budget.json("items.json", list)]
    if len(items) < 3:
        raise _bad("it has fewer than 3 items")
    rows = {
        name: [row_type.model_validate(line).model_dump() for line in budget.lines(f"{name}.jsonl")]
        for name, (_, row_type) in _TABLES.items()
    }
    _check(rows, len(items), settings)
    about = _Manifest.model_validate(manifest)
    declined = about.declined
    if declined is None:
        declined = _of_former_version(rows, settings)
    return Archive(Experiment(settings, items, media), about.created, rows, about.id, declined)


def _add_copies(media: dict[str, Media], budget: _Budget) -> None:
    """Add smaller copies and sources; archives of former versions do not have them."""
    if "copies.json" not in budget.archive.namelist():
        return
    more = _Copies.model_validate_json(budget.read("copies.json"))
    for key, source in more.sources.items():
        if key not in media:
            raise _bad(f"media/{key} is missing")
        media[key] = replace(media[key], source=source)
    for name, kind in more.copies.items():
        _, width, key = name.split("/")
        content = budget.read(name)
        if key not in media or recognize(content) != kind or not kind.startswith("image/"):
            raise _bad(f"the content of {name} does not match its name")
        media[key].sizes[int(width)] = kind, content


def _of_former_version(rows: dict[str, list[dict[str, Any]]], settings: Settings) -> int:
    """Count as the present version does; return the number of people who refused consent."""
    kinds = {row["id"]: (row["participant_id"], row["kind"]) for row in rows["queries"]}
    given = Counter(kinds[row["query_id"]] for row in rows["answers"] if row["winner"] is not None)
    for row in rows["participants"]:
        row["quota"] = settings.participants.answers
        row["answered"] = given[row["id"], "query"]
        row["extra"] = given[row["id"], "check"] + given[row["id"], "repeat"]
    gone = {
        row["id"]
        for row in rows["participants"]
        if row["outcome"] == "no_consent" and not row["answered"]
    }
    unused = {number for number, (person, _) in kinds.items() if person in gone}
    rows["participants"] = [row for row in rows["participants"] if row["id"] not in gone]
    rows["queries"] = [row for row in rows["queries"] if row["id"] not in unused]
    rows["answers"] = [row for row in rows["answers"] if row["query_id"] not in unused]
    return len(gone)


def _item(entry: Any, media: dict[str, Media]) -> Item:
    row = _ItemRow.model_validate(entry)
    if row.kind in ("image", "video", "audio"):
        if row.media not in media or media[row.media].kind != row.kind:
            raise _bad(f"the file of item {row.text!r} is missing")
    elif row.media:
        raise _bad(f"item {row.text!r} is {row.kind} and has a file")
    # Sanitized again, because an archive may have been edited.
    return Item(row.kind, row.text, clean_html(row.html), row.media, row.alt)


def _check(rows: dict[str, list[dict[str, Any]]], n_items: int, settings: Settings) -> None:
    for path, message, _ in settings.problems(n_items):
        raise _bad(f"settings.{'.'.join(map(str, path))}: {message.rstrip('.')}")
    people = {row["id"] for row in rows["participants"]}
    queries = {row["id"]: row for row in rows["queries"]}
    if len(people) != len(rows["participants"]) or len(queries) != len(rows["queries"]):
        raise _bad("a participant or query occurs twice")
    for row in rows["queries"]:
        feet = {row["head"], row["left"], row["right"]}
        if len(feet) != 3 or max(feet) >= n_items or row["participant_id"] not in people:
            raise _bad(f"query {row['id']} refers to items or participants that do not exist")
        if row["winner"] not in (None, row["left"], row["right"]):
            raise _bad(f"the right answer to query {row['id']} is not one of its items")
    answered = set()
    for row in rows["answers"]:
        query = queries.get(row["query_id"])
        if query is None or row["query_id"] in answered:
            raise _bad(f"the answer to query {row['query_id']} occurs twice or without its query")
        if row["winner"] not in (None, query["left"], query["right"]):
            raise _bad(f"the winner of query {row['query_id']} is not one of its items")
        answered.add(row["query_id"])
    dimensions = settings.embedding.dimensions
    for row in rows["models"]:
        where = row["positions"]
        width = len(where[0]) if where and dimensions == "auto" else dimensions
        if where is not None and (
            len(where) != n_items or any(len(point) != width for point in where)
        ):
            raise _bad("an embedding has the wrong shape")


def restore(
    connection: Connection, archive: Archive, name: str, clock: float, *, keep_ids: bool = False
) -> None:
    """Store an archive as a paused experiment with this name.

    With `keep_ids`, experiment and participants keep their numbers, which are part of participants'
    tokens. The database must be empty then.
    """
    kept = archive.number if keep_ids and archive.number else None
    number = stored.add(connection, archive.made, archive.created or clock, name, kept)
    stored.set_state(connection, number, "paused")
    stored.count_declined(connection, number, archive.declined)
    numbers: dict[int, int] = {}
    for row in archive.rows["participants"]:
        old = row.pop("id")
        if kept is not None:
            row["id"] = old
        numbers[old] = connection.execute(
            participant.insert().values(experiment_id=number, **row).returning(participant.c.id)
        ).scalar_one()
    answered = {row["query_id"] for row in archive.rows["answers"]}
    for row in archive.rows["queries"]:
        row["participant_id"] = numbers[row["participant_id"]]
        row["low"], row["high"] = sorted((row["left"], row["right"]))
        row["open"] = row["open"] and row["id"] not in answered
    for key, table in (("queries", served), ("answers", answer), ("models", model)):
        rows = [{"experiment_id": number, **row} for row in archive.rows[key]]
        for begin in range(0, len(rows), _ROWS):
            connection.execute(table.insert(), rows[begin : begin + _ROWS])


def _bad(why: str) -> ApiError:
    return ApiError("archive", f"This archive cannot be restored: {why}.", 422)
