"""Backup: ``accelerando crowd backup`` and ``restore``, all experiments in one file."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import zipfile
from pathlib import Path

from accelerando._files import atomic_write
from accelerando.crowd.experiment import Limits
from accelerando.crowd.serve.commands import database_url
from accelerando.crowd.store import Store, archive
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.errors import ApiError

__all__ = ["backup", "restore", "run_backup", "run_restore"]

# A backup is a trusted file, so only the disk limits its size.
_LIMITS = Limits(total_bytes=2**40, file_bytes=2**40, ratio=1e6)


def backup(store: Store, file: Path) -> list[str]:
    """Write an archive of every experiment to one ZIP file; return the experiments' names.

    All data are read in one transaction, while the server runs. The file appears when it is
    complete and on disk.
    """
    with store.read() as connection, atomic_write(file) as stream:
        names = stored.names(connection)
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as bundle:
            for name in names:
                with tempfile.TemporaryFile() as one:
                    archive.write_archive(connection, stored.find(connection, name), one)
                    one.seek(0)
                    with bundle.open(f"{name}.zip", "w", force_zip64=True) as entry:
                        while chunk := one.read(1 << 20):
                            entry.write(chunk)
    return names


def restore(store: Store, file: Path) -> list[str]:
    """Restore every experiment of a backup, or the one of an archive; return their names.

    If one of them cannot be restored, none is.
    """
    restored = []
    with zipfile.ZipFile(file) as bundle, store.write() as connection:
        entries = bundle.namelist()
        if "manifest.json" in entries:
            parts = [file.read_bytes()]
        else:
            parts = [bundle.read(entry) for entry in entries if entry.endswith(".zip")]
        for data in parts:
            one = archive.read_archive(data, _LIMITS)
            name = one.made.settings.name
            archive.restore(connection, one, name, time.time())
            restored.append(name)
    return restored


def run_backup(options: argparse.Namespace) -> int:
    """Write a backup and print its contents."""
    store = _open(options)
    file = options.output or Path(time.strftime("crowd-backup-%Y%m%d-%H%M%S.zip"))
    names = backup(store, file)
    store.close()
    print(f"written: {file} ({', '.join(names) or 'no experiments'})")
    return 0


def run_restore(options: argparse.Namespace) -> int:
    """Restore a backup and print the names of its experiments."""
    store = _open(options, new=True)
    try:
        names = restore(store, options.file)
    except (ApiError, zipfile.BadZipFile) as error:
        raise ValueError(str(error)) from None
    finally:
        store.close()
    for name in names:
        print(f"restored: {name} (paused; resume it on its dashboard)")
    return 0


def _open(options: argparse.Namespace, *, new: bool = False) -> Store:
    given = options.database or os.environ.get("ACCELERANDO_DATABASE")
    url = database_url(given, [options.directory] if options.directory else [])
    file = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not file.exists() and not new:
        raise ValueError(
            f"There is no database {file.name} in {file.parent}. Pass the folder that contains it."
        )
    return Store(url)
