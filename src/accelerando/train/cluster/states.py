"""How the states of ranks come to the process that drives them."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from accelerando.train.cluster.crew import Host

if TYPE_CHECKING:
    from accelerando.train.cluster.drive import Drive

_SECONDS = 60.0  # beyond the time after which a rank counts as silent


def fetch(drive: Drive) -> bool:
    """Take up the newest state there is; False if nobody who has it is left."""
    while (best := drive.best()) is not None:
        content = _ask(drive, [best], shown=True, own=False).get(best.place)
        if content is not None:
            drive.own.take_up(content)
            run, pending = drive.training.run, drive.training.interrupt.pending
            if run.epoch + 1 >= run.until or pending or best.how != "epoch":
                gather(drive)
            return True
    return False


def gather(drive: Drive) -> None:
    """Take up what only single ranks have, where that is so, and not here yet.

    It is needed to save a run, and to go on with it when these ranks are no more.
    """
    best = drive.best()
    if not drive.averages or drive.net.fleet_ is not None or best is None:
        return
    if best.update != drive.training.run.update or drive.crew.with_status("training"):
        return
    there = [host for host in drive.members if host.position == best.position]
    contents = _ask(drive, there, shown=False, own=True)
    drive.own.take_up_ranks([contents.get(host.place) for host in drive.members])


def checkpoint(drive: Drive, note: dict[str, Any]) -> None:
    """Write a checkpoint when all who have a part in it have handed theirs over."""
    members, board = drive.members, drive.board
    places = [host.place for host in (members if drive.averages else members[:1])]
    names = drive.checkpoints.complete(note, drive.segment, places)
    contents = [board.take(name) for name in names]
    if contents:
        drive.own.take_up(contents[0])
        if drive.averages:
            drive.own.take_up_ranks(contents)
        drive.net._write_checkpoint()
    for name in drive.checkpoints.stale():
        board.take(name)


def _ask(drive: Drive, hosts: list[Host], *, shown: bool, own: bool) -> dict[str, bytes]:
    """Ask for states: what all ranks have, what only one has, or both."""
    crew, blobs = drive.crew, drive.blobs
    names = {host.place: f"state/{uuid.uuid4().hex}" for host in hosts}
    for host in hosts:
        crew.command(host, "state", name=names[host.place], shown=shown, own=own)
    asked = time.monotonic()
    while True:
        waiting = [host for host in hosts if host.place in crew.hosts and host.status != "silent"]
        waiting = [host for host in waiting if names[host.place] not in blobs]
        if not waiting:
            break
        crew.attend()
        if time.monotonic() - asked > drive.net.rank_timeout + _SECONDS:
            for host in waiting:
                host.status = "silent"
    there = {place: name for place, name in names.items() if blobs.pop(name, None)}
    return {place: drive.board.take(name) for place, name in there.items()}
