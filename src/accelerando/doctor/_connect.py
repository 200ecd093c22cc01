"""Connect to a Dask scheduler, and say why it is not possible."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from accelerando.exceptions import ClusterError

_SCHEMES = ("tcp", "tls", "ws", "wss", "ucx", "ucxx")  # of Dask


@contextmanager
def connect(address: str, timeout: float, tls: Mapping[str, str | None]) -> Iterator[Any]:
    """Yield a client of the scheduler, or raise with the reason.

    Parameters
    ----------
    address : str
        Such as ``tcp://node1:8786`` or ``tls://node1:8786``.
    timeout : float
        Seconds to wait.
    tls : mapping
        The files ``tls_ca_file``, ``tls_cert`` and ``tls_key``; None for those that Dask's
        configuration names.
    """
    from distributed import Client
    from distributed.security import Security

    given = {name: path for name, path in tls.items() if path is not None}
    for name, path in given.items():
        if not Path(path).is_file():
            option = "--" + name.replace("_", "-")
            raise ClusterError(f"The file {path} of {option} does not exist.")
    names = {"tls_cert": "tls_client_cert", "tls_key": "tls_client_key"}
    files = {names.get(name, name): path for name, path in given.items()}
    security = Security(require_encryption=True, **files) if files else Security()
    if address.startswith("tls://") and not (security.tls_ca_file and security.tls_client_cert):
        raise ClusterError(
            f"The address {address} asks for TLS. Pass --tls-ca-file, --tls-cert and --tls-key, or "
            "set distributed.comm.tls in Dask's configuration."
        )
    client = None
    try:
        client = Client(address, timeout=timeout, set_as_default=False, security=security)
    except (OSError, TimeoutError, ValueError, RuntimeError, TypeError) as error:
        raise ClusterError(
            f"No Dask scheduler answers at {address} within {timeout:g} s: {reason(address, error)}"
        ) from error
    with client:
        yield client


def reason(address: str, error: BaseException, seconds: float = 3.0) -> str:
    """Return why a scheduler did not answer, and the remedy."""
    try:
        parts = urlsplit(address if "://" in address else f"tcp://{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme not in _SCHEMES:
        return (
            f"the address must be like tcp://node1:8786, tls://node1:8786 or tcp://[fd77::1]:8786 "
            f"({error})."
        )
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        socket.create_connection((host, port), seconds).close()
    except socket.gaierror:
        return f"this machine cannot resolve the name {host}. Check its spelling, or DNS."
    except ConnectionRefusedError:
        return (
            f"nothing listens at {where}. Check the address and the port in the scheduler's log, "
            "and whether the scheduler runs."
        )
    except OSError as failure:
        return (
            f"{where} cannot be reached from this machine ({failure}). Check the network, and "
            "firewalls between this machine and the scheduler."
        )
    encrypted = speaks_tls(host, port, seconds)
    if encrypted and parts.scheme != "tls":
        return (
            f"{where} speaks TLS. Pass tls://{where} with --tls-ca-file, --tls-cert and --tls-key."
        )
    if parts.scheme == "tls":
        said = "the certificates do not fit" if encrypted else "the port does not speak TLS"
        return f"{where} accepts connections, but {said} ({error})."
    return (
        f"{where} accepts connections, but what answers is not a Dask scheduler of a similar "
        f"version ({error}). Check the port (8786, not the dashboard's 8787) and the scheduler's "
        "version of distributed."
    )


def speaks_tls(host: str, port: int, seconds: float) -> bool:
    """Return True if a port answers the first message of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    with contextlib.suppress(OSError), socket.create_connection((host, port), seconds) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=host):
                return True
        except ssl.SSLError as error:
            # An alert, such as "certificate required", is an answer of TLS.
            return "alert" in str(error).lower()
    return False


def parse_memory(text: str | None) -> int:
    """Return a number of bytes such as ``2GB``; 0 for None.

    Examples
    --------
    >>> parse_memory("2GB")
    2000000000
    """
    from dask.utils import parse_bytes

    if text is None:
        return 0
    try:
        number = int(parse_bytes(text))
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError(
            f"The '--memory' parameter of accelerando doctor must be a size such as 2GB. Got "
            f"{text!r} instead."
        )
    return number
