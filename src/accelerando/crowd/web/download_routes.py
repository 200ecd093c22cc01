"""Routes of downloads and of restoring an archive."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Annotated, Any, Literal

import anyio.to_thread
import yaml
from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.responses import Response, StreamingResponse
from sqlalchemy import Connection

from accelerando.crowd.store import archive, export, people, statistics
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.web import roles
from accelerando.crowd.web.auth import Experimenter, write_as
from accelerando.crowd.web.context import Ctx
from accelerando.crowd.web.experimenter_api import Summary, require_name
from accelerando.crowd.web.participant_api import Name
from accelerando.crowd.web.schemas import ErrorOut

__all__ = ["router"]

_REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorOut} for code in (400, 401, 403, 404, 409, 413, 422, 503)
}
router = APIRouter(tags=["experimenter"], responses=_REFUSALS)
What = Literal[
    "answers.csv",
    "answers.parquet",
    "answers-salmon.csv",
    "skips.csv",
    "embedding.csv",
    "participants.csv",
    "experiment.yaml",
    "archive.zip",
    "codebook.md",
]
_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "yaml": "application/yaml",
    "zip": "application/zip",
    "md": "text/markdown; charset=utf-8",
}
_CHUNK = 1 << 16


@router.get(
    "/api/v1/experiments/{name}/downloads/{what}",
    response_class=Response,
    summary="Answers, positions, archive",
)
async def download(name: Name, what: What, context: Ctx, who: Experimenter) -> Response:
    """Send a download.

    Answers are sent while they are read; if some are deleted meanwhile, the download breaks off.
    Other files are written to a temporary file first, within one transaction.
    """
    del who
    headers = {"content-disposition": f'attachment; filename="{name}-{what}"'}
    kind = _TYPES[what.rpartition(".")[2]]
    if what in ("answers.csv", "skips.csv"):
        snapshot = await context.read(stored.find, name)
        skips = what == "skips.csv"
        sent = export.answers_csv(context.store.read, snapshot, skips=skips)
        return StreamingResponse((part.encode() for part in sent), media_type=kind, headers=headers)

    def write() -> IO[bytes]:
        file = tempfile.TemporaryFile()  # noqa: SIM115 (closed when it has been sent)
        try:
            with context.store.read() as connection:
                _WRITERS[what](connection, stored.find(connection, name), file)
        except BaseException:
            file.close()
            raise
        return file

    file = await anyio.to_thread.run_sync(write)
    size = file.tell()
    file.seek(0)

    def chunks() -> Iterator[bytes]:
        with file:
            while chunk := file.read(_CHUNK):
                yield chunk

    headers["content-length"] = str(size)
    return StreamingResponse(chunks(), media_type=kind, headers=headers)


@router.post("/api/v1/restore", status_code=201, summary="Restore an experiment")
async def restore(
    request: Request,
    context: Ctx,
    who: Experimenter,
    archive_file: Annotated[UploadFile, File(alias="archive", description="archive.zip")],
    name: Annotated[str, Form(max_length=63)] = "",
) -> Summary:
    """Restore an archive under its name or another one. The experiment is paused at first."""
    data = await archive_file.read()
    checked = await anyio.to_thread.run_sync(archive.read_archive, data, context.limits)
    chosen = name or checked.made.settings.name
    require_name(chosen)
    clock = context.clock()

    def store(connection: Connection) -> None:
        archive.restore(connection, checked, chosen, clock)
        roles.give(connection, chosen, who.name, "owner")
        stored.note(connection, clock, who.name, "restore", chosen)

    await write_as(who, context, store)
    root = request.scope.get("root_path", "")
    return Summary(**await context.read(statistics.summary, chosen, root))


def _text(make: Callable[[Connection, Snapshot], Iterator[str]]) -> Callable[..., None]:
    def write(connection: Connection, snapshot: Snapshot, file: IO[bytes]) -> None:
        for part in make(connection, snapshot):
            file.write(part.encode())

    return write


def _embedding(connection: Connection, snapshot: Snapshot) -> Iterator[str]:
    _, row = statistics.embedding(connection, snapshot.frame.name)
    if row is None:
        raise ApiError("no_embedding", "There are too few answers for an embedding yet.", 404)
    return export.embedding_csv(connection, snapshot, row.positions)


def _participants(connection: Connection, snapshot: Snapshot) -> Iterator[str]:
    return export.participants_csv(connection, snapshot, people.qualities(connection, snapshot))


def _settings(connection: Connection, snapshot: Snapshot) -> Iterator[str]:
    """Yield the settings as YAML that ``crowd serve`` can read next to the items' files."""
    described = snapshot.frame.settings.model_dump(
        mode="json", by_alias=True, exclude_defaults=True
    )
    items = stored.items_of(connection, snapshot.frame.id)
    listed = [
        item.text if item.kind == "text" else {item.kind: item.html or item.text, "alt": item.alt}
        for item in items
    ]
    yield yaml.safe_dump(
        {"name": snapshot.frame.name, **described, "items": listed},
        sort_keys=False,
        allow_unicode=True,
    )


def _codebook(connection: Connection, snapshot: Snapshot) -> Iterator[str]:
    del connection, snapshot
    yield export.CODEBOOK + "\n"


_WRITERS: dict[str, Callable[..., None]] = {
    "answers.parquet": export.answers_parquet,
    "answers-salmon.csv": _text(export.salmon_csv),
    "embedding.csv": _text(_embedding),
    "participants.csv": _text(_participants),
    "experiment.yaml": _text(_settings),
    "archive.zip": archive.write_archive,
    "codebook.md": _text(_codebook),
}
