"""Completion codes: one per participant, made with the server's key, and used up once."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, select, update

from accelerando.crowd.store.experiments import Snapshot, note
from accelerando.crowd.store.participants import Person
from accelerando.crowd.store.schema import participant

__all__ = ["check_codes", "completion_code"]

# Without 0, 1, I and O, which people confuse. 32 signs: five bits each.
_SIGNS = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"
_LENGTH = 12
_FOUR = rf"([{_SIGNS}]{{4}})"
_CODE = re.compile(rf"(?<![0-9A-Z]){_FOUR}-?{_FOUR}-?{_FOUR}(?![0-9A-Z])")


def completion_code(secret: bytes, snapshot: Snapshot, person: Person) -> str:
    """Return the completion code of a participant: 60 bits that only this server can compute."""
    who = person.secret or f"number {person.id}"
    signed = hmac.digest(secret, f"completion {snapshot.frame.created} {who}".encode(), "sha256")
    number = int.from_bytes(signed[:8], "big")
    signs = "".join(_SIGNS[number >> 5 * k & 31] for k in range(_LENGTH))
    return f"{signs[:4]}-{signs[4:8]}-{signs[8:]}"


def check_codes(
    connection: Connection,
    secret: bytes,
    snapshot: Snapshot,
    lines: Iterable[str],
    clock: float,
    *,
    use: bool,
    who: str,
) -> list[dict[str, Any]]:
    """Return what is known about the completion code in each line of a list.

    Parameters
    ----------
    connection : Connection
    secret : bytes
    snapshot : Snapshot
    lines : iterable of str
        Codes, or texts with a code in them; empty ones are skipped.
    clock : float
        The Unix time.
    use : bool
        Whether to use up the valid codes, because they are paid now.
    who : str
        Who checks, for the audit log.

    Returns
    -------
    list of dict
        ``line``; ``status``, which is valid, used, twice (earlier in this list), unfinished or
        unknown; ``participant``, ``outcome``, ``answered``; and ``used``, the time when the code
        was used up before.
    """
    people = connection.execute(
        select(participant).where(participant.c.experiment_id == snapshot.frame.id)
    ).all()
    known = {completion_code(secret, snapshot, person): person for person in people}
    found, here = [], set()
    for line in lines:
        if not line.strip():
            continue
        codes = ["-".join(parts) for parts in _CODE.findall(line.upper())]
        code = next((one for one in codes if one in known), None)
        facts: dict[str, Any] = {
            "line": line.strip()[:200],
            "status": "unknown",
            **dict.fromkeys(("participant", "outcome", "answered", "used")),
        }
        if code is not None:
            person = known[code]
            facts |= {
                "participant": person.name,
                "outcome": person.outcome or "active",
                "answered": person.answered,
                "used": person.code_used,
            }
            facts["status"] = (
                "twice" if code in here
                else "used" if person.code_used is not None
                else "unfinished" if person.outcome is None
                else "valid"
            )  # fmt: skip
            here.add(code)
            if use and facts["status"] == "valid":
                used = connection.execute(
                    update(participant)
                    .where(participant.c.id == person.id, participant.c.code_used.is_(None))
                    .values(code_used=clock)
                )
                if not used.rowcount:  # by a colleague who checks the same list at this moment
                    facts |= {"status": "used", "used": clock}
        found.append(facts)
    if use:
        count = sum(one["status"] == "valid" for one in found)
        note(connection, clock, who, "use codes", f"{snapshot.frame.name} ({count})")
    return found
