"""Client of the web service, for custom pages, simulations and downloads.

It uses the standard library only.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import quote, urlsplit

from accelerando._validation import parameter_error
from accelerando.exceptions import AccelerandoError

__all__ = ["Experimenter", "Participant", "ServiceError"]

_RETRIES = 24  # about a minute, which is enough to restart a server


class ServiceError(AccelerandoError):
    """The service answered a request with an error.

    Attributes
    ----------
    status : int
        The HTTP status.
    code : str
        A short identifier of the error, such as ``"unknown_experiment"``.
    problems : list of dict
        All problems of the settings, for errors about settings.
    """

    def __init__(
        self, status: int, code: str, message: str, problems: list[dict[str, Any]] | None = None
    ) -> None:
        super().__init__(f"{message} ({code}, {status})")
        self.status, self.code, self.problems = status, code, problems or []


@dataclass(frozen=True)
class Asked:
    """A query to answer.

    Attributes
    ----------
    id : str
    head, left, right : int
        Numbers of the items.
    details : dict
        The JSON of the service: texts, images, and whether the query is for practice.
    """

    id: str
    head: int
    left: int
    right: int
    details: Mapping[str, Any]


class _Connection:
    """A persistent HTTP connection that is reopened when it is lost."""

    def __init__(self, url: str, timeout: float, context: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            allowed = "a URL that begins with http:// or https://"
            raise parameter_error("Participant and Experimenter", "url", allowed, url)
        self.scheme, self.host, self.port = parts.scheme, parts.hostname, parts.port
        self.prefix = parts.path.rstrip("/")
        self.timeout, self.context = timeout, context
        self._connection: HTTPConnection | None = None

    def send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[HTTPResponse, bytes]:
        for attempt in range(2):
            fresh = self._connection is None
            try:
                connection = self._connection or self._connect()
                connection.request(method, self.prefix + path, body, dict(headers))
                response = connection.getresponse()
                return response, response.read()
            except (HTTPException, OSError):
                self.close()
                # The server may have closed a persistent connection: try a new one.
                if fresh or attempt:
                    raise
        raise AssertionError

    def _connect(self) -> HTTPConnection:
        if self.scheme == "https":
            self._connection = HTTPSConnection(
                self.host, self.port, timeout=self.timeout, context=self.context
            )
        else:
            self._connection = HTTPConnection(self.host, self.port, timeout=self.timeout)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Participant:
    """The session of a participant.

    Parameters
    ----------
    url : str
        URL of the server, for example ``http://127.0.0.1:8421``.
    experiment : str
        Name of the experiment.
    parameters : mapping of str to str, optional
        Query parameters of the participant's link: ``{"PROLIFIC_PID": "…"}``.
    device : str, optional
        "phone", "tablet" or "computer".
    timeout : float, default=30
        Seconds to wait for a response.
    context : ssl.SSLContext, optional
        For servers with a self-signed certificate.
    token : str, default=""
        ``session["token"]`` of an earlier session, to continue it.

    Attributes
    ----------
    session : dict
        The last response of the service: progress, outcome, completion.

    Examples
    --------
    ::

        person = Participant("http://127.0.0.1:8421", "eggs", {"participant": "anna"})
        while (query := person.next()) is not None:
            person.answer(query, winner=query.left, response_time=1.2)
        print(person.session["completion"])
    """

    def __init__(
        self,
        url: str,
        experiment: str,
        parameters: Mapping[str, str] | None = None,
        *,
        device: str = "computer",
        timeout: float = 30.0,
        context: ssl.SSLContext | None = None,
        token: str = "",
    ) -> None:
        self._http = _Connection(url, timeout, context)
        self._path = f"/api/v1/experiments/{quote(experiment)}"
        self._token = token
        # The number makes a retry find the session that a lost response had begun.
        body = {"parameters": dict(parameters or {}), "device": device, "browser": token_hex(16)}
        try:
            self.session: dict[str, Any] = self._send("POST", "/participants", body)
        except BaseException:
            self.close()
            raise
        self._token = self.session["token"]

    def consent(self, agreed: bool = True) -> None:
        """Send whether the participant agrees to take part."""
        self.session = self._send("POST", "/consent", {"agreed": agreed})

    def next(self) -> Asked | None:
        """Return the next query; None if the session has ended or is paused."""
        if not self.session["queries"] and not self.session["finished"]:
            self.session = self._send("POST", "/queries", {"count": 2})
        waiting = self.session["queries"]
        if not waiting:
            return None
        first = waiting[0]
        head, left, right = (first[place]["item"] for place in ("head", "left", "right"))
        return Asked(first["id"], head, left, right, first)

    def answer(
        self,
        query: Asked,
        winner: int | None,
        *,
        response_time: float | None = None,
        network_latency: float | None = None,
    ) -> bool:
        """Send an answer, or a skip (``winner=None``), and retry until the service has stored it.

        Return True if the answer was stored, False if the query had been answered before.
        """
        body = {
            "query": query.id,
            "winner": winner,
            "response_time": response_time,
            "network_latency": network_latency,
        }
        self.session = self._send("POST", "/answers", body)
        return bool(self.session["stored"])

    def withdraw(self) -> None:
        """Withdraw from the experiment; all answers of the session will be deleted."""
        self.session = self._send("POST", "/withdraw", {})

    def close(self) -> None:
        """Close the connection; the session on the server continues."""
        self._http.close()

    def _send(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        headers = {"accept": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            headers["content-type"] = "application/json"
            data = json.dumps(body).encode()
        for attempt in range(_RETRIES):
            try:
                response, content = self._http.send(method, self._path + path, data, headers)
            except (HTTPException, OSError):
                if attempt == _RETRIES - 1:
                    raise
            else:
                if response.status != 503 or attempt == _RETRIES - 1:
                    return _checked(response, content)
            # Every request of a participant is idempotent, so it is safe to retry.
            time.sleep(min(0.1 * 2**attempt, 3.0))
        raise AssertionError


class Experimenter:
    """The session of an experimenter.

    Parameters
    ----------
    url : str
        URL of the server.
    password : str
        The password that ``accelerando crowd serve`` printed.
    name : str, default="experimenter"
        Name of the account.
    timeout : float, default=60
        Seconds to wait for a response.
    context : ssl.SSLContext, optional
        For servers with a self-signed certificate.

    Examples
    --------
    ::

        me = Experimenter("http://127.0.0.1:8421", password)
        me.create("experiment.yaml", items=["pictures.zip"])
        me.dashboard("eggs")["accuracy"]["sentence"]
        me.download("eggs", "answers.csv", "answers.csv")
    """

    def __init__(
        self,
        url: str,
        password: str,
        *,
        name: str = "experimenter",
        timeout: float = 60.0,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._http = _Connection(url, timeout, context)
        self._cookie = self._csrf = ""
        try:
            response, content = self._raw("POST", "/session", {"name": name, "password": password})
            self._csrf = _checked(response, content)["csrf"]
        except BaseException:
            self._http.close()
            raise
        self._cookie = (response.getheader("set-cookie") or "").partition(";")[0]

    def experiments(self) -> list[dict[str, Any]]:
        """Return a summary of every experiment."""
        found: list[dict[str, Any]] = self._json("GET", "/experiments")["experiments"]
        return found

    def create(
        self, settings: str | Path, items: Iterable[str | Path] = (), name: str | None = None
    ) -> dict[str, Any]:
        """Create an experiment from a settings file and files with items."""
        files = [("settings", Path(settings)), *(("items", Path(item)) for item in items)]
        return self._upload("/experiments", files, name)

    def restore(self, archive: str | Path, name: str | None = None) -> dict[str, Any]:
        """Restore an experiment from its archive."""
        return self._upload("/restore", [("archive", Path(archive))], name)

    def summary(self, experiment: str) -> dict[str, Any]:
        """Return a summary of an experiment."""
        return self._json("GET", f"/experiments/{quote(experiment)}")

    def dashboard(self, experiment: str) -> dict[str, Any]:
        """Return the data of the dashboard."""
        return self._json("GET", f"/experiments/{quote(experiment)}/dashboard")

    def embedding(self, experiment: str) -> dict[str, Any]:
        """Return the newest positions."""
        return self._json("GET", f"/experiments/{quote(experiment)}/embedding")

    def participants(self, experiment: str) -> list[dict[str, Any]]:
        """Return all participants with statistics of their attention."""
        path = f"/experiments/{quote(experiment)}/participants"
        found: list[dict[str, Any]] = self._json("GET", path)["participants"]
        return found

    def pause(self, experiment: str) -> dict[str, Any]:
        """Pause the experiment: participants get no new queries."""
        return self._json("POST", f"/experiments/{quote(experiment)}/pause", {})

    def resume(self, experiment: str) -> dict[str, Any]:
        """Resume the experiment."""
        return self._json("POST", f"/experiments/{quote(experiment)}/resume", {})

    def block(self, experiment: str, participant: int, blocked: bool = True) -> dict[str, Any]:
        """Block a participant: they get no queries, and the fit ignores their answers."""
        verb = "block" if blocked else "unblock"
        path = f"/experiments/{quote(experiment)}/participants/{int(participant)}/{verb}"
        return self._json("POST", path, {})

    def delete(self, experiment: str, confirm: str) -> None:
        """Delete an experiment; ``confirm`` must repeat its name."""
        self._json("DELETE", f"/experiments/{quote(experiment)}", {"confirm": confirm})

    def health(self) -> dict[str, Any]:
        """Return the state of worker, queue and database."""
        return self._json("GET", "/health")

    def download(self, experiment: str, what: str, to: str | Path | None = None) -> bytes:
        """Return the content of a download, and write it to the file `to`.

        Downloads are ``answers.csv``, ``answers.parquet``, ``answers-salmon.csv``, ``skips.csv``,
        ``embedding.csv``, ``participants.csv``, ``experiment.yaml``, ``archive.zip`` and
        ``codebook.md``.
        """
        path = f"/experiments/{quote(experiment)}/downloads/{quote(what)}"
        response, content = self._raw("GET", path)
        if response.status != 200:
            _checked(response, content)
        if to is not None:
            Path(to).write_bytes(content)
        return content

    def close(self) -> None:
        """Sign out and close the connection."""
        self._json("DELETE", "/session")
        self._http.close()

    def _json(self, *request: Any) -> dict[str, Any]:
        return _checked(*self._raw(*request))

    def _raw(self, method: str, path: str, body: Any = None) -> tuple[HTTPResponse, bytes]:
        data = None if body is None else json.dumps(body).encode()
        return self._http.send(method, f"/api/v1{path}", data, self._headers("application/json"))

    def _headers(self, content_type: str) -> dict[str, str]:
        headers = {"accept": "application/json", "content-type": content_type}
        if self._cookie:
            headers |= {"cookie": self._cookie, "x-csrf-token": self._csrf}
        return headers

    def _upload(
        self, path: str, files: Iterable[tuple[str, Path]], name: str | None
    ) -> dict[str, Any]:
        boundary = token_hex(16)
        parts = [] if name is None else [_part(boundary, 'name="name"', name.encode())]
        for field, file in files:
            disposition = f'name="{field}"; filename="{quote(file.name)}"'
            parts.append(_part(boundary, disposition, file.read_bytes()))
        body = b"".join(parts) + f"--{boundary}--\r\n".encode()
        headers = self._headers(f"multipart/form-data; boundary={boundary}")
        return _checked(*self._http.send("POST", f"/api/v1{path}", body, headers))


def _part(boundary: str, disposition: str, content: bytes) -> bytes:
    head = f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
    return head.encode() + content + b"\r\n"


def _checked(response: HTTPResponse, content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if content and (response.getheader("content-type") or "").startswith("application/json"):
        found = json.loads(content)
    if response.status >= 400:
        error = found.get("error", {})
        raise ServiceError(
            response.status,
            error.get("code", "http"),
            error.get("message", response.reason),
            error.get("problems"),
        )
    return found
