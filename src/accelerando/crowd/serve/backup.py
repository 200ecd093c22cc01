"""Backup: ``accelerando crowd backup`` and ``restore``, all experiments in one file."""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import os
import re
import tempfile
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, select

from accelerando._files import atomic_write
from accelerando.crowd.experiment import Limits
from accelerando.crowd.experiment.files import PACKINGS
from accelerando.crowd.serve.commands import database_url
from accelerando.crowd.store import Store, archive, counters, recruiting
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import audit, experimenter, meta, participant

__all__ = ["backup", "open_store", "restore", "run_backup", "run_links", "run_restore"]

_SERVER_FILE = "server.json"
_SEAL_FILE = "server.seal"
_MOST_SERVER_BYTES = 2**30
_SERVER = (experimenter, audit)
# The disk limits the size of a backup; what is packed in it may not be many times as large.
_LIMITS = Limits(total_bytes=2**40, file_bytes=2**40)


def backup(store: Store, file: Path, key_file: Path | None = None) -> list[str]:
    """Write everything to one ZIP file; return the experiments' names.

    All data are read in one transaction, while the server runs. The file appears when it is
    complete and on disk.

    Parameters
    ----------
    store : Store
    file : Path
        The backup: experiments with their answers, accounts, and the audit log.
    key_file : Path, optional
        Gets the secret of the server, readable by its owner only. Whoever has it can sign links and
        sessions, so it is not part of the backup; keep it elsewhere.
    """
    with store.write() as connection:
        secret = store.secret(connection)
    with store.read() as connection, atomic_write(file) as stream:
        names = stored.names(connection)
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as bundle:
            rows = {
                table.name: [
                    {key: value for key, value in row.items() if key != "id"}
                    for row in connection.execute(select(table).order_by(table.c.id)).mappings()
                ]
                for table in _SERVER
            }
            kept = {"key": _fingerprint(secret), "counters": counters.last_ids(connection), **rows}
            server = json.dumps(kept).encode()
            bundle.writestr(_SERVER_FILE, server)
            bundle.writestr(_SEAL_FILE, _seal(secret, server))
            for name in names:
                with tempfile.TemporaryFile() as one:
                    archive.write_archive(connection, stored.find(connection, name), one)
                    one.seek(0)
                    with bundle.open(f"{name}.zip", "w", force_zip64=True) as entry:
                        while chunk := one.read(1 << 20):
                            entry.write(chunk)
    if key_file is not None:
        with atomic_write(key_file) as stream_of_key:  # its file is readable by the owner only
            stream_of_key.write(secret.hex().encode() + b"\n")
    return names


def restore(store: Store, file: Path, key_file: Path | None = None) -> list[str]:
    """Restore every experiment of a backup, or the one of an archive; return their names.

    If one of them cannot be restored, none is. With the key file of the backup, an empty database
    becomes the server that it was: participants' links and sessions are valid, people with
    pseudonyms are recognized, and accounts and audit log are there.

    Raises
    ------
    ValueError
        The key file does not belong to the backup, the accounts in it are not those that the server
        wrote, or the database is not empty.
    """
    restored = []
    with zipfile.ZipFile(file) as bundle, store.write() as connection:
        entries = bundle.namelist()
        if "manifest.json" in entries:
            parts = iter([file.read_bytes()])
        else:  # one at a time: each is read into memory
            parts = (_content(bundle, entry) for entry in entries if entry.endswith(".zip"))
        least: dict[str, int] = {}
        if key_file is not None:
            if _SERVER_FILE not in entries:
                raise ValueError("This file has no accounts; restore it without --key-file.")
            if bundle.getinfo(_SERVER_FILE).file_size > _MOST_SERVER_BYTES:
                raise ValueError(f"{_SERVER_FILE} is too large for accounts and an audit log.")
            seal = _content(bundle, _SEAL_FILE) if _SEAL_FILE in entries else b""
            server = _content(bundle, _SERVER_FILE)
            least = _restore_server(connection, server, seal, key_file)
        for data in parts:
            one = archive.read_archive(data, _LIMITS)
            name = one.made.settings.name
            archive.restore(connection, one, name, time.time(), keep_ids=key_file is not None)
            restored.append(name)
        counters.advance(connection, least)
    return restored


def _content(bundle: zipfile.ZipFile, entry: str) -> bytes:
    """Return the bytes of an entry, which was made by us: neither encrypted nor a bomb."""
    info = bundle.getinfo(entry)
    if info.flag_bits & 1:
        raise ValueError(f"{entry} in this backup has a password; no backup of crowd has one.")
    if info.compress_type not in PACKINGS:
        raise ValueError(f"{entry} in this backup is packed unusually.")
    if info.file_size > _LIMITS.ratio * max(info.compress_size, 4096):
        raise ValueError(f"{entry} in this backup unpacks to {info.file_size:,} bytes: refused.")
    return bundle.read(info)


def _restore_server(
    connection: Connection, data: bytes, seal: bytes, key_file: Path
) -> dict[str, int]:
    """Restore accounts, audit log and secret; return the last ids of the server."""
    text = key_file.read_text().strip()
    secret = bytes.fromhex(text) if re.fullmatch("[0-9a-f]{64}", text) else b""
    # Whoever can write to the place of the backups could otherwise add their own account.
    if not secret or (seal and not hmac.compare_digest(seal, _seal(secret, data))):
        raise ValueError(f"{key_file.name} is not the key file of this backup, or it was changed.")
    if not seal and _key_of_former_version(data) != _fingerprint(secret):
        raise ValueError(f"{key_file.name} is not the key file of this backup.")
    if connection.execute(select(participant.c.id).limit(1)).first() or stored.names(connection):
        raise ValueError(
            "With --key-file a backup is restored into an empty database only. Pass a new folder."
        )
    connection.execute(delete(meta).where(meta.c.key == "secret"))
    connection.execute(meta.insert().values(key="secret", value=text))
    if not seal:
        warnings.warn(
            "The accounts in this backup have no seal (earlier versions made none): anybody "
            "could have changed them. They and the audit log are left out. The next start of the "
            "server makes an account.",
            stacklevel=2,
        )
        return {}
    kept = json.loads(data)
    for table in _SERVER:
        connection.execute(delete(table))
        if kept[table.name]:
            connection.execute(table.insert(), kept[table.name])
    return dict(kept.get("counters", {}))


def _key_of_former_version(data: bytes) -> Any:
    """Return the fingerprint of the secret that a backup without a seal names, if it does."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found.get("key") if isinstance(found, dict) else None


def _seal(secret: bytes, data: bytes) -> bytes:
    """Return a keyed hash of the accounts in a backup."""
    return hmac.digest(secret, b"accounts of a backup " + data, "sha256").hex().encode()


def _fingerprint(secret: bytes) -> str:
    return hashlib.sha256(b"backup " + secret).hexdigest()[:32]


def run_backup(options: argparse.Namespace) -> int:
    """Write a backup and print its contents."""
    store = open_store(options)
    file = options.output or Path(time.strftime("crowd-backup-%Y%m%d-%H%M%S.zip"))
    names = backup(store, file, options.key_file)
    store.close()
    print(f"written: {file} ({', '.join(names) or 'no experiments'})")
    return 0


def run_restore(options: argparse.Namespace) -> int:
    """Restore a backup and print the names of its experiments."""
    store = open_store(options, new=True)
    try:
        names = restore(store, options.file, options.key_file)
    except (ApiError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(str(error)) from None
    finally:
        store.close()
    for name in names:
        print(f"restored: {name} (paused; resume it on its dashboard)")
    return 0


def run_links(options: argparse.Namespace) -> int:
    """Print the links of all experiments."""
    ids = [] if options.ids is None else options.ids.read_text().split("\n")
    store = open_store(options)
    with store.write() as connection:
        secret = store.secret(connection)
        for name in stored.names(connection):
            page = f"{options.url.rstrip('/')}/e/{name}/"
            wanted = [one.strip() for one in ids if one.strip()]
            found = recruiting.links(secret, stored.find(connection, name), page, wanted)
            for service in ("open", "prolific", "sona", "mturk"):
                print(f"{service + ':':10}{found[service]}")
            for one, link in found["personal"].items():
                print(f"{one}\t{link}")
    store.close()
    return 0


def open_store(options: argparse.Namespace, *, new: bool = False) -> Store:
    """Open the database that a command names, or raise ValueError if there is none."""
    given = options.database or os.environ.get("ACCELERANDO_DATABASE")
    url = database_url(given, [options.directory] if options.directory else [])
    file = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not file.exists() and not new:
        raise ValueError(
            f"There is no database {file.name} in {file.parent}. Pass the folder that contains it."
        )
    store = Store(url)
    store.check()
    return store
