"""Links for participants: one per recruiting service, and personal ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.participants import clean, invitation, proof

__all__ = ["links"]

# What each service replaces by the person's own values.
_SERVICES = {
    "prolific": "PROLIFIC_PID={{%PROLIFIC_PID%}}&STUDY_ID={{%STUDY_ID%}}"
    "&SESSION_ID={{%SESSION_ID%}}",
    "sona": "id=%SURVEY_CODE%",
    "mturk": "workerId=${workerId}&assignmentId=${assignmentId}&hitId=${hitId}",
}


def links(secret: bytes, snapshot: Snapshot, page: str, ids: Iterable[str]) -> dict[str, Any]:
    """Return the links of an experiment.

    Parameters
    ----------
    secret : bytes
    snapshot : Snapshot
    page : str
        Address of the participant's page.
    ids : iterable of str
        People who get a personal link, with which they may continue on another device.

    Returns
    -------
    dict
        ``open`` for everybody who is invited, one link per recruiting service, and ``personal``,
        a dict of id to link.
    """
    parameter = next(iter(snapshot.frame.settings.participants.id_parameters), "participant")
    key = f"invitation={invitation(secret, snapshot)}"
    found: dict[str, Any] = {"open": f"{page}?{key}"}
    found |= {name: f"{page}?{key}&{values}" for name, values in _SERVICES.items()}
    found["personal"] = {
        one: f"{page}?{quote(parameter)}={quote(one, safe='')}"
        f"&proof={proof(secret, snapshot, clean(one))}"
        for one in ids
    }
    return found
