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
from typing import IO, Any

from pydantic import ValidationError
from pydantic_core import from_json
from sqlalchemy import Connection, select
from sqlalchemy.exc import DataError, IntegrityError

from accelerando import __version__
from accelerando.crowd.experiment import Experiment, Item, Limits, Media, Settings
from accelerando.crowd.experiment.files import PACKINGS
from accelerando.crowd.experiment.html import clean_html
from accelerando.crowd.experiment.media import recognize
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.archive_rows import TABLES, Copies, ItemRow, Manifest, bad, check_rows
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.media import all_media
from accelerando.crowd.store.schema import answer, model, participant, served

__all__ = ["FORMAT", "read_archive", "restore", "write_archive"]

FORMAT = 1
_ROWS = 500


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
        for name, (table, row_type) in TABLES.items():
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
        raise bad(f"it cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise bad(f"{place}: {first['msg']}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise bad(str(error)) from None


class _Budget:
    """Read entries of a ZIP file within a limit of bytes."""

    def __init__(self, archive: zipfile.ZipFile, limits: Limits) -> None:
        self.archive, self.left, self.ratio = archive, limits.total_bytes, limits.ratio
        # A picture has up to three smaller copies.
        if len(archive.infolist()) > 4 * limits.files + 10:
            raise bad("it has too many files")

    def read(self, name: str) -> bytes:
        info = self.archive.getinfo(name)
        if info.compress_type not in PACKINGS:
            raise bad(f"{name} is packed unusually")
        most = min(self.left, int(self.ratio * max(info.compress_size, 4096)))
        with self.archive.open(info) as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise bad(f"{name} unpacks to more than {most:,} bytes")
        self.left -= len(content)
        return content

    def json(self, name: str, kind: type) -> Any:
        found = _parse(self.read(name))
        if not isinstance(found, kind):
            raise bad(f"the content of {name} has another form")
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
        raise bad(f"it must have format {FORMAT}")
    settings = Settings.model_validate_json(budget.read("settings.json"), context={"stored": True})
    names = budget.json("media.json", dict)
    media: dict[str, Media] = {}
    for key, name in names.items():
        content = budget.read(f"media/{key}")
        kind = recognize(content)
        made = None if kind is None else Media(str(name), kind, content)
        if made is None or made.key != key:
            raise bad(f"the content of media/{key} does not match its name")
        media[key] = made
    _add_copies(media, budget)
    items = [_item(entry, media) for entry in budget.json("items.json", list)]
    if len(items) < 3:
        raise bad("it has fewer than 3 items")
    rows = {
        name: [row_type.model_validate(line).model_dump() for line in budget.lines(f"{name}.jsonl")]
        for name, (_, row_type) in TABLES.items()
    }
    check_rows(rows, len(items), settings)
    about = Manifest.model_validate(manifest)
    declined = about.declined
    if declined is None:
        declined = _of_former_version(rows, settings)
    return Archive(Experiment(settings, items, media), about.created, rows, about.id, declined)


def _add_copies(media: dict[str, Media], budget: _Budget) -> None:
    """Add smaller copies and sources; archives of former versions do not have them."""
    if "copies.json" not in budget.archive.namelist():
        return
    more = Copies.model_validate_json(budget.read("copies.json"))
    for key, source in more.sources.items():
        if key not in media:
            raise bad(f"media/{key} is missing")
        media[key] = replace(media[key], source=source)
    for name, kind in more.copies.items():
        _, width, key = name.split("/")
        content = budget.read(name)
        if key not in media or recognize(content) != kind or not kind.startswith("image/"):
            raise bad(f"the content of {name} does not match its name")
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
    row = ItemRow.model_validate(entry)
    if row.kind in ("image", "video", "audio"):
        if row.media not in media or media[row.media].kind != row.kind:
            raise bad(f"the file of item {row.text!r} is missing")
    elif row.media:
        raise bad(f"item {row.text!r} is {row.kind} and has a file")
    # Sanitized again, because an archive may have been edited.
    return Item(row.kind, row.text, clean_html(row.html), row.media, row.alt)


def restore(
    connection: Connection, archive: Archive, name: str, clock: float, *, keep_ids: bool = False
) -> None:
    """Store an archive as a paused experiment with this name.

    With `keep_ids`, experiment and participants keep their numbers, which are part of participants'
    tokens. The database must be empty then.

    Raises
    ------
    ApiError
        The name is taken, or the database refuses the rows.
    """
    try:
        _store(connection, archive, name, clock, keep_ids=keep_ids)
    except (IntegrityError, DataError) as error:  # such as NUL in a text, on PostgreSQL
        reason = str(error.orig).partition("\n")[0]
        raise bad(f"the database refuses its rows ({reason})") from None


def _store(
    connection: Connection, archive: Archive, name: str, clock: float, *, keep_ids: bool
) -> None:
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
