"""Images, videos and sounds in the database, with smaller copies of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, func, select, update

from accelerando.crowd.experiment import Media
from accelerando.crowd.store.schema import media, media_copy

__all__ = [
    "add_media",
    "all_media",
    "copy_of",
    "media_of",
    "media_piece",
    "media_size",
    "note_sources",
    "sources_of",
    "widths_of",
]


def add_media(connection: Connection, number: int, files: Mapping[str, Media]) -> None:
    """Store the files of an experiment, by their keys."""
    for key, file in files.items():
        values = {"name": file.name, "type": file.type, "data": file.data, "source": file.source}
        connection.execute(media.insert().values(experiment_id=number, key=key, **values))
        for width, (kind, data) in file.sizes.items():
            connection.execute(
                media_copy.insert().values(
                    experiment_id=number, key=key, width=width, type=kind, data=data
                )
            )


def widths_of(connection: Connection, number: int) -> dict[str, tuple[int, ...]]:
    """Return the widths of the smaller copies of each image that has some."""
    rows = connection.execute(
        select(media_copy.c.key, media_copy.c.width)
        .where(media_copy.c.experiment_id == number)
        .order_by(media_copy.c.width)
    )
    found: dict[str, tuple[int, ...]] = {}
    for key, width in rows:
        found[key] = (*found.get(key, ()), width)
    return found


def copy_of(connection: Connection, number: int, key: str, width: int) -> tuple[str, bytes] | None:
    """Return type and content of the smaller copy of an image with this width; None without one."""
    row = connection.execute(
        select(media_copy.c.type, media_copy.c.data).where(
            media_copy.c.experiment_id == number,
            media_copy.c.key == key,
            media_copy.c.width == width,
        )
    ).first()
    return None if row is None else (row.type, bytes(row.data))


def sources_of(connection: Connection, number: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return key and widths of what was made from each file, by the hash of the file."""
    widths = widths_of(connection, number)
    rows = connection.execute(
        select(media.c.source, media.c.key).where(
            media.c.experiment_id == number, media.c.source != ""
        )
    )
    return {source: (key, widths.get(key, ())) for source, key in rows}


def note_sources(connection: Connection, number: int, files: Mapping[str, Media]) -> None:
    """Write down from which files the stored ones were made, where a former version did not."""
    for key, file in files.items():
        connection.execute(
            update(media)
            .where(media.c.experiment_id == number, media.c.key == key, media.c.source == "")
            .values(source=file.source)
        )


def media_of(connection: Connection, number: int, key: str) -> Media | None:
    """Return an image, video or sound; None if there is none with this key."""
    row = connection.execute(
        select(media).where(media.c.experiment_id == number, media.c.key == key)
    ).first()
    return None if row is None else Media(row.name, row.type, bytes(row.data), row.source)


def media_size(connection: Connection, number: int, key: str) -> tuple[int, str] | None:
    """Return number of bytes and MIME type of a file; None if there is none with this key."""
    row = connection.execute(
        select(func.length(media.c.data), media.c.type).where(
            media.c.experiment_id == number, media.c.key == key
        )
    ).first()
    return None if row is None else (int(row[0]), row[1])


def media_piece(connection: Connection, number: int, key: str, begin: int, count: int) -> bytes:
    """Return some bytes of a file, without reading the rest into memory."""
    where = {"number": number, "key": key}
    if connection.dialect.name == "sqlite":
        row = connection.exec_driver_sql(
            "SELECT rowid FROM media WHERE experiment_id = :number AND key = :key", where
        ).first()
        if row is None:
            return b""
        raw: Any = connection.connection.driver_connection
        with raw.blobopen("media", "data", row[0], readonly=True) as blob:
            blob.seek(begin)
            return bytes(blob.read(count))
    piece = func.substring(media.c.data, begin + 1, count)
    found = connection.execute(
        select(piece).where(media.c.experiment_id == number, media.c.key == key)
    ).scalar()
    return b"" if found is None else bytes(found)


def all_media(connection: Connection, number: int) -> dict[str, Media]:
    """Return all images, videos and sounds of an experiment, with their smaller copies."""
    rows = connection.execute(select(media).where(media.c.experiment_id == number))
    found = {row.key: Media(row.name, row.type, bytes(row.data), row.source) for row in rows}
    copies = connection.execute(select(media_copy).where(media_copy.c.experiment_id == number))
    for row in copies:
        found[row.key].sizes[row.width] = row.type, bytes(row.data)
    return found
