"""The command ``accelerando crowd serve``."""

from __future__ import annotations

import argparse
import errno
import ipaddress
import logging
import os
import re
import secrets
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from accelerando._extras import require
from accelerando._validation import check_integer
from accelerando.crowd.experiment import Experiment, Item, Settings, load_experiment
from accelerando.crowd.experiment.showing import Known
from accelerando.crowd.serve.processes import Serving, supervise
from accelerando.crowd.store import Store
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.media import note_sources, sources_of
from accelerando.crowd.store.store import explained
from accelerando.crowd.web import accounts
from accelerando.crowd.web.passwords import check_password

__all__ = [
    "as_stored",
    "changed_items",
    "check_certificate",
    "check_proxies",
    "database_url",
    "listen",
    "prepare",
    "run_serve",
    "stored_pictures",
]

ACCOUNT = "experimenter"


def run_serve(options: argparse.Namespace) -> int:
    """Load and store the experiments, print the links, and serve until Ctrl-C."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if options.scheduler is not None:
        require("search", "--scheduler", "dask", "distributed")
    if (options.certificate is None) != (options.key is None):
        raise ValueError("--certificate and --key must be passed together.")
    if options.certificate is not None:
        check_certificate(options.certificate, options.key)
    check_integer("crowd serve", "--processes", options.processes)
    check_proxies(options.proxy)
    given = options.database or os.environ.get("ACCELERANDO_DATABASE")
    url = database_url(given, options.experiments)
    with stored_pictures(url) as known:
        made = [load_experiment(path, options.items, known=known) for path in options.experiments]
    store = Store(url)
    store.check()
    _print_notes(readable_by_others(url))
    # Before the first password is made: it is shown once, and only if the port is free.
    listener = listen(options.host, options.port)
    try:
        password = prepare(store, made, reset=options.reset_password)
        with store.read() as connection:
            names = stored.names(connection)
    except DBAPIError as error:
        listener.close()
        raise explained(error) from None
    except BaseException:
        listener.close()
        raise
    finally:
        store.close()
    port = listener.getsockname()[1]
    scheme = "http" if options.certificate is None else "https"
    shown = f"[{options.host}]" if ":" in options.host else options.host
    base = f"{scheme}://{shown}:{port}{options.root_path}"

    def ready() -> None:
        for name in names:
            print(f"participants:  {base}/e/{name}/")
        print(f"experimenter:  {base}/experiments")
        if password is None:
            print(f"sign in as:    {ACCOUNT}  (forgotten? --reset-password)")
        else:
            print(f"sign in as:    {ACCOUNT}  password: {password}  (shown this once)")
        if options.host not in ("127.0.0.1", "::1", "localhost") and scheme == "http":
            print("note: without TLS others in the network can read answers and the password;")
            print("      use --certificate and --key, or a proxy with TLS.")
        if options.root_path:
            print(f"note: these links work at the proxy, which must strip {options.root_path};")
            print("      write its address in place of this one.")
        print("stop:          Ctrl-C", flush=True)

    serving = Serving(
        database=url,
        processes=options.processes,
        worker=not options.no_worker,
        turn_seconds=options.turn,
        scheduler=options.scheduler,
        certificate=None if options.certificate is None else str(options.certificate),
        key=None if options.key is None else str(options.key),
        proxies=options.proxy,
        root_path=options.root_path.rstrip("/"),
    )
    with listener:
        supervise(serving, listener, ready)
    print("Stopped. All answers are stored.")
    return 0


def prepare(store: Store, made: list[Experiment], *, reset: bool = False) -> str | None:
    """Store new experiments; return the experimenter's password if it was generated."""
    chosen = os.environ.get("ACCELERANDO_PASSWORD")
    if chosen:
        try:
            check_password(chosen, ACCOUNT)
        except ApiError as error:
            raise ValueError(
                f"ACCELERANDO_PASSWORD: {error} Got {len(chosen)} characters."
            ) from None
    clock = time.time()
    password: str | None = None
    with store.write() as connection:
        if reset or not accounts.has_account(connection):
            password = chosen or secrets.token_urlsafe(12)
            hashed = accounts.password_hash(password)
            accounts.set_password(connection, ACCOUNT, hashed, clock, must_change=not chosen)
        there = set(stored.names(connection))
        for experiment in made:
            name = experiment.settings.name
            if name not in there:
                missing = {item.media for item in experiment.items} - {"", *experiment.media}
                if missing:
                    raise ValueError(
                        f"{name} was deleted from the database while its pictures were read. "
                        "Start again."
                    )
                stored.add(connection, experiment, clock)
                there.add(name)
                _print_notes([*experiment.notices, *guessable_codes(experiment.settings)])
                continue
            snapshot = stored.find(connection, name)
            before = stored.items_of(connection, snapshot.frame.id)
            note_sources(connection, snapshot.frame.id, experiment.media)
            _print_notes(experiment.notices)
            after = as_stored(before, experiment)
            if before != after:
                _print_notes([changed_items(name, before, after)])
            if snapshot.frame.settings != experiment.settings:
                print(
                    f"note: {name} is stored with other settings, which stay in use. To use the "
                    "new ones, choose another name or delete the stored experiment.",
                    file=sys.stderr,
                )
    return None if chosen else password


def readable_by_others(url: str) -> list[str]:
    """Return a sentence if other users of this computer can read the SQLite file."""
    file = Path(url.removeprefix("sqlite:///"))
    if not url.startswith("sqlite:///") or not file.is_file() or not file.stat().st_mode & 0o004:
        return []
    return [
        f"every user of this computer can read {file}, and with it the key that signs sessions and "
        f"links. A new database is readable by its owner only; for this one: chmod o-rwx {file}*"
    ]


def _print_notes(notices: list[str]) -> None:
    for notice in notices:
        print(f"note: {notice}", file=sys.stderr)


def as_stored(before: list[Item], experiment: Experiment) -> list[Item]:
    """Return the items, with the stored files of those that are still the same.

    A former version stored files as they are, with their metadata and without conversion.
    """
    sources = {key: media.source for key, media in experiment.media.items()}
    after = list(experiment.items)
    for k, old in enumerate(before[: len(after)]):
        source = sources.get(after[k].media)
        if source and old.media.partition(".")[0] == source:
            after[k] = replace(after[k], kind=old.kind, media=old.media)
    return after


@contextmanager
def stored_pictures(url: str) -> Iterator[Callable[[str], Known]]:
    """Yield a function that returns the pictures that are stored for an experiment.

    They are not decoded again when the service restarts. A new database is not made yet, because
    the files may be refused.
    """
    file = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not file.is_file():
        yield lambda name: {}
        return
    store = Store(url)
    store.check()

    def known(name: str) -> Known:
        with store.read() as connection:
            if name not in stored.names(connection):
                return {}
            return sources_of(connection, stored.find(connection, name).frame.id)

    try:
        yield known
    finally:
        store.close()


def guessable_codes(settings: Settings) -> list[str]:
    """Return a sentence for each completion code that differs per person and can be guessed."""
    return [
        f"completion.{outcome}.code {made.code!r} can be guessed by whoever knows how IDs look. "
        "Write {code} for a code that only this server can make; `crowd codes` checks it."
        for outcome, made in settings.completion.items()
        if made.code and "{code}" not in made.code and re.search(r"\{\w+\}", made.code)
    ]


def changed_items(name: str, before: list[Item], after: list[Item]) -> str:
    """Return a sentence about items that differ from the stored ones."""
    old, new = _by_name(before), _by_name(after)
    both = [text for text in old if text in new]
    parts = {
        "added": [text for text in new if text not in old],
        "removed": [text for text in old if text not in new],
        "changed": [text for text in both if old[text] != new[text]],
    }
    said = []
    for what, texts in parts.items():
        if texts:
            more = f" and {len(texts) - 5} more" if len(texts) > 5 else ""
            said.append(f"{what}: {', '.join(text[:40] for text in texts[:5])}{more}")
    return (
        f"the items of {name} are not those it was created with "
        f"({'; '.join(said) or 'another order'}). The stored items stay in use. To use the new "
        "ones, choose another name or delete the stored experiment."
    )


def _by_name(items: list[Item]) -> dict[str, Item]:
    """Return items by their texts; of several with one text, the later ones with a number."""
    found: dict[str, Item] = {}
    for item in items:
        name, number = item.text, 1
        while name in found:
            number += 1
            name = f"{item.text} ({number})"
        found[name] = item
    return found


def database_url(given: str | None, experiments: list[Path]) -> str:
    """Return the given URL, or that of a file next to the first experiment."""
    if given is not None:
        return given
    first = experiments[0] if experiments else Path()
    folder = first if first.is_dir() else first.parent
    return f"sqlite:///{(folder / 'crowd.sqlite').resolve()}"


def check_certificate(certificate: Path, key: Path) -> None:
    """Raise ValueError unless the files can be used for TLS."""
    for option, file in (("--certificate", certificate), ("--key", key)):
        try:
            with file.open("rb"):
                pass
        except OSError as error:
            raise ValueError(f"{option} {file} cannot be read: {error.strerror}.") from None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        raise ValueError(
            f"--certificate {certificate} and --key {key} cannot be used: {error.reason or error}. "
            "They must be PEM files that belong together, the key without a password."
        ) from None


def check_proxies(given: str | None) -> None:
    """Raise ValueError unless these are addresses or networks of proxies.

    Everybody else could name an address of their choice, and with it escape every limit per
    address: ``*`` is refused, and networks that contain all addresses. A name would never match.
    """
    for one in [] if given is None else given.split(","):
        try:
            network = ipaddress.ip_network(one.strip())
        except ValueError:
            network = None
        if network is None or network.prefixlen == 0:
            raise ValueError(
                "The '--proxy' parameter of crowd serve must be addresses or networks of proxies, "
                "separated by commas, such as 127.0.0.1,10.0.0.0/24: a server believes these what "
                f"the address of a request is. Got {one.strip()!r} instead."
            )


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 is any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = "it must be at most 65535" if isinstance(error, OverflowError) else error.strerror
        # The address is wrong if it is unknown or not one of this machine, else the port.
        unknown = isinstance(error, socket.gaierror) or (
            isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL
        )
        remedy = "Pass an address of this machine as --host" if unknown else "Choose another --port"
        raise ValueError(f"Cannot listen on {host}, port {port}: {reason}. {remedy}.") from None
    listener.listen(1024)
    listener.set_inheritable(True)
    return listener
