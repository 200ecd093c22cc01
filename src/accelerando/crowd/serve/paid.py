"""The command ``accelerando crowd codes``: which completion codes are to be paid."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from datetime import datetime

from sqlalchemy import Connection

from accelerando._terminal import printable
from accelerando.crowd.serve.backup import open_store
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.codes import check_codes

__all__ = ["run_codes"]


def run_codes(options: argparse.Namespace) -> int:
    """Print what is known about each code of a file; return 1 if one of them is not valid."""
    lines = options.check.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    store = open_store(options)
    try:
        with store.write() as connection:
            snapshot = stored.find(connection, _name(connection, options.experiment))
            found = check_codes(
                *(connection, store.secret(connection), snapshot, lines, time.time()),
                use=options.use,
                who="(command)",
            )
    finally:
        store.close()
    for one in found:
        columns = [one["status"], one["line"]]
        if one["participant"] is not None:
            columns.append(f"{one['participant']}, {one['outcome']}, {one['answered']} answers")
        if one["status"] == "used":
            when = datetime.fromtimestamp(one["used"]).astimezone()
            columns.append(f"used up {when.isoformat(' ', 'minutes')}")
        print("\t".join(map(printable, columns)))  # lines and names are texts of participants
    counts = Counter(one["status"] for one in found)
    print(", ".join(f"{n} {status}" for status, n in sorted(counts.items())) or "no codes")
    if options.use and counts["valid"]:
        print(f"{counts['valid']} codes are used up now.")
    return 0 if set(counts) <= {"valid"} else 1


def _name(connection: Connection, chosen: str | None) -> str:
    names = stored.names(connection)
    if chosen is None and len(names) == 1:
        return names[0]
    if chosen not in names:
        what = "--experiment is needed" if chosen is None else f"There is no experiment {chosen!r}"
        raise ValueError(f"{what}. The server has {', '.join(names) or 'no experiments'}.")
    return chosen
