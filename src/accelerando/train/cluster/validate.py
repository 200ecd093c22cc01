"""Validation spread over the ranks, and handed to skorch batch by batch."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from accelerando.train.cluster.crew import Host
from accelerando.train.cluster.packet import unpack

if TYPE_CHECKING:
    from accelerando.train.cluster.drive import Drive


def validation_step(drive: Drive, net: Any) -> Any:
    """Return the step that skorch's loop over the validation batches calls.

    It only looks up what the ranks have computed; where they cannot (predictions that are no
    tensors, an iterator of the user's own) it is the estimator's own step.
    """
    results = _spread(drive)
    if results is None:
        return net.validation_step
    known = iter([results[number] for number in sorted(results)])

    def look_up(batch: Any, **fit_params: Any) -> dict[str, Any]:
        loss, y_pred = next(known)
        return {"loss": loss, "y_pred": y_pred}

    return look_up


def _spread(drive: Drive) -> dict[int, Any] | None:
    """Evaluate all batches; those of a rank that is lost meanwhile go to the others."""
    if drive.valid_plan is None:
        return None
    results: dict[int, Any] = {}
    todo = set(range(drive.valid_plan.n_batches))
    while todo:
        # Only ranks at the newest update can tell.
        newest = drive.training.run.update
        hosts = [host for host in drive.crew.with_status("ready") if host.update == newest]
        if not hosts:
            return None
        found = _ask(drive, hosts, sorted(todo))
        if found is None:
            return None
        results.update(found)
        todo -= set(found)
    return results


def _ask(drive: Drive, hosts: list[Host], numbers: list[int]) -> dict[int, Any] | None:
    """Ask each host for its share; return what came back, None if it cannot be sent."""
    crew, results = drive.crew, {}
    at_work: dict[str, Host] = {}
    for position, host in enumerate(hosts):
        share = numbers[position :: len(hosts)]
        if share:
            name = f"valid/{uuid.uuid4().hex}"
            crew.command(host, "validate", numbers=share, name=name)
            at_work[name] = host
    deadline = time.monotonic() + drive.net.worker_timeout
    while at_work:
        crew.attend()
        if raised := crew.with_status("raised"):
            drive.raise_from(raised)
        for name, host in list(at_work.items()):
            if name in drive.blobs:
                if not drive.blobs.pop(name):
                    return None
                found = unpack(drive.board.take(name))
                results.update({int(number): values for number, values in found.items()})
            elif host.place in crew.hosts and time.monotonic() < deadline:
                continue
            elif host.place in crew.hosts:
                host.status = "silent"
            del at_work[name]
    return results
