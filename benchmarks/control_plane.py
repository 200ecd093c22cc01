"""What do idle ranks cost the control plane of a fit on a cluster?

A store in its own process serves a number of ranks, which are threads of another process and wait
for a command, as ranks do between two epochs. CPU seconds per minute of the store, and of all
clients together, by

polling  each rank asks the store for its next command again and again, after naps of 1 to 10 ms:
         what accelerando did before, emulated here
inbox    each rank has an inbox: a thread that blocks inside the store until a command arrives

Then all ranks get a command: the seconds until the last one has it. Either way, ranks that train
send nothing through the store per update, whatever their number.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from _cluster_common import OtherLoad
from _common import console, output_path, parser, print_table, write
from accelerando._cluster.address import Address
from accelerando._cluster.mailbox import Mailbox, decode, encode
from accelerando._cluster.messages import Stop
from accelerando._cluster.plugins import serve_store

NAP = (0.001, 0.01)  # seconds between two questions: at first, and at most
SETTLE = 2.0  # seconds until all naps are long


class Used(NamedTuple):
    """CPU seconds of a process since it started."""

    store: float
    clients: float


# -- ranks: each is a thread ----------------------------------------------------------------------


def poll(address: Address, rank: str, connected: threading.Barrier) -> None:
    """Wait for a command as ranks did before there were inboxes."""
    store = Mailbox(address).store
    connected.wait()
    key, began = f"{rank}/0", time.monotonic()
    while not store.check([key]):
        time.sleep(min(NAP[1], max(NAP[0], 0.05 * (time.monotonic() - began))))
    assert decode(store.get(key)) == Stop()


def listen(address: Address, rank: str, connected: threading.Barrier) -> None:
    """Wait for a command as ranks do."""
    inbox = Mailbox(address).inbox(rank)
    connected.wait()
    assert inbox.next() == Stop()


def command_by_key(mailbox: Mailbox, rank: str) -> None:
    mailbox.store.set(f"{rank}/0", encode(Stop()))


def command_by_queue(mailbox: Mailbox, rank: str) -> None:
    mailbox.send(rank, Stop())


WAYS: dict[str, tuple[Callable[..., None], Callable[[Mailbox, str], None]]] = {
    "polling": (poll, command_by_key),
    "inbox": (listen, command_by_queue),
}


# -- processes ------------------------------------------------------------------------------------


def run_store(end: Connection) -> None:
    """Serve a store; report its CPU time whenever the other end asks."""
    store = serve_store("127.0.0.1")
    end.send(store.port)
    while end.recv():
        end.send(time.process_time())


def run_ranks(end: Connection, way: str, ranks: int, address: Address) -> None:
    """Run idle ranks; report their CPU time whenever the other end asks."""
    wait, connected = WAYS[way][0], threading.Barrier(ranks + 1)
    threads = [
        threading.Thread(target=wait, args=(address, f"rank-{number}", connected))
        for number in range(ranks)
    ]
    for thread in threads:
        thread.start()
    connected.wait()
    end.send("ready")
    while end.recv():
        end.send(time.process_time())
    for thread in threads:
        thread.join()
    end.send("done")


def started(target: Callable[..., None], *args: Any) -> tuple[Any, Connection]:
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(there, *args))
    process.start()
    return process, here


def asked(end: Connection) -> float:
    end.send(True)
    return float(end.recv())


# -- measurement ----------------------------------------------------------------------------------


def measure(way: str, ranks: int, seconds: float) -> dict[str, float]:
    """Return the CPU seconds per minute of one way, and how long a command to all takes."""
    store_process, store = started(run_store)
    address = Address("127.0.0.1", store.recv())
    rank_process, clients = started(run_ranks, way, ranks, address)
    clients.recv()
    time.sleep(SETTLE)
    before = Used(asked(store), asked(clients))
    time.sleep(seconds)
    after = Used(asked(store), asked(clients))
    driver, send = Mailbox(address), WAYS[way][1]
    clients.send(False)
    began = time.perf_counter()
    for number in range(ranks):
        send(driver, f"rank-{number}")
    sent = time.perf_counter() - began
    clients.recv()
    arrived = time.perf_counter() - began
    rank_process.join()
    store.send(False)
    store_process.join()
    minutes = seconds / 60.0
    return {
        "store_cpu_seconds_per_minute": (after.store - before.store) / minutes,
        "clients_cpu_seconds_per_minute": (after.clients - before.clients) / minutes,
        "seconds_to_send": sent,
        "seconds_until_all_have_it": arrived,
    }


def main() -> None:
    arguments = parser(__doc__ or "", data=False, cache=False)
    arguments.add_argument("--ranks", type=int, default=200, help="the largest number of ranks")
    args = arguments.parse_args()
    seconds = 8.0 if args.quick else 15.0
    sizes = [args.ranks] if args.quick else [args.ranks // 4, args.ranks // 2, args.ranks]
    load = OtherLoad()
    results: list[dict[str, Any]] = []
    for ranks in sizes:
        for way in WAYS:
            console.print(f"{way}, {ranks} ranks, for {SETTLE + seconds:.0f} s ...")
            results.append({"way": way, "ranks": ranks, **measure(way, ranks, seconds)})
            console.print(f"  {results[-1]}")
    print_table(
        f"Idle ranks on one store, {seconds:.0f} s each",
        ["way", "ranks", "store: CPU s / min", "clients: CPU s / min", "command to all, ms"],
        [
            [
                row["way"],
                row["ranks"],
                f"{row['store_cpu_seconds_per_minute']:.3f}",
                f"{row['clients_cpu_seconds_per_minute']:.3f}",
                f"{1e3 * row['seconds_until_all_have_it']:.1f}",
            ]
            for row in results
        ],
    )
    console.print(f"Other load: {load.taken():.1f} processors.")
    write(
        output_path(args, __file__),
        __file__,
        {"seconds": seconds, "ranks": sizes, "nap_seconds": list(NAP)},
        results=results,
        other_load=load.taken(),
    )


if __name__ == "__main__":
    main()
