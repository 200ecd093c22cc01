"""The channel between driver and ranks: real stores, threads instead of processes."""

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

from accelerando._cluster.mailbox import (
    Address,
    Mailbox,
    MailboxGone,
)
from accelerando._cluster.messages import (
    Abandon,
    AverageNow,
    Evaluate,
    Pause,
    RankReady,
    Stop,
)
from accelerando._cluster.plugins import serve_store


@pytest.fixture
def mailbox():
    store = serve_store("127.0.0.1")
    return Mailbox(Address("127.0.0.1", store.port), store)


def listeners():
    return [thread for thread in threading.enumerate() if thread.name.startswith("accelerando-")]


def test_the_store_listens_on_one_address_only(mailbox):
    with open("/proc/net/tcp") as table:
        lines = [line.split() for line in table]
    port = f"{mailbox.address.port:04X}"
    listening = [row[1] for row in lines[1:] if row[1].endswith(":" + port) and row[3] == "0A"]
    assert listening == [f"0100007F:{port}"]


# -- messages -------------------------------------------------------------------------------------


def test_events_arrive_in_order(mailbox):
    events = mailbox.events()
    sent = [RankReady(f"rank-{number}") for number in range(20)]
    for event in sent:
        mailbox.report(event)
    assert [events.next(10.0) for _ in sent] == sent
    assert events.next(0.0) is None
    assert events.next(0.001) is None
    events.close()
    assert not listeners()


def test_each_rank_gets_its_commands(mailbox):
    inboxes = [mailbox.inbox(f"rank-{number}") for number in range(3)]
    for number in range(3):
        mailbox.send(f"rank-{number}", Evaluate((number,), "valid/1"))
        mailbox.send(f"rank-{number}", Stop())
    for number, inbox in enumerate(inboxes):
        assert inbox.next() == Evaluate((number,), "valid/1")
        assert inbox.next() == Stop()
        assert inbox.stopping
        inbox._thread.join(10.0)
    assert not listeners(), "Stop ends the thread, before the store closes"


def test_pause_and_abandon_do_not_wait_for_their_turn(mailbox):
    inbox = mailbox.inbox("rank-0")
    mailbox.send("rank-0", AverageNow())
    mailbox.send("rank-0", Pause(segment=4, membership_changes=True))
    mailbox.send("rank-0", Abandon(generation=2))
    mailbox.send("rank-0", Stop())
    inbox._thread.join(10.0)  # the commands before have not been executed yet
    assert inbox.pause(4) == Pause(segment=4, membership_changes=True)
    assert inbox.pause(3) is None
    assert inbox.pause(5) is None, "a pause is for one segment"
    assert inbox.abandoned(2)
    assert inbox.abandoned(1)
    assert not inbox.abandoned(3)
    assert [inbox.next(), inbox.next()] == [AverageNow(), Stop()]


def test_an_inbox_that_is_closed_ends_its_thread(mailbox):
    inbox = mailbox.inbox("rank-0")
    inbox.close()
    assert not listeners()
    inbox.close()
    assert inbox.next(0.0) is None


def test_a_message_of_another_version_reaches_the_one_who_waits(mailbox):
    inbox, events = mailbox.inbox("rank-0"), mailbox.events()
    for name, listener in (("to/rank-0", inbox), ("events", events)):
        Mailbox(mailbox.address)._push(name, b'{"kind": "Explode"}')
        for _ in range(2):
            with pytest.raises(ValueError, match="Install the same version"):
                listener.next(10.0)


def test_ranks_notice_that_the_store_is_gone(capfd):
    store = serve_store("127.0.0.1")
    rank = Mailbox(Address("127.0.0.1", store.port))
    inbox = rank.inbox("rank-0")
    del store
    for _ in range(2):
        with pytest.raises(MailboxGone, match="cannot be reached"):
            inbox.next(60.0)
    for act in (lambda: rank.put("b", b""), rank.connect, lambda: rank.drop("b")):
        with pytest.raises(MailboxGone):
            act()
    inbox.close()
    assert not listeners()
    capfd.readouterr()  # c10d prints its C++ frames


def test_nothing_is_printed_when_ranks_stop_before_the_store_closes(capfd):
    store = serve_store("127.0.0.1")
    driver = Mailbox(Address("127.0.0.1", store.port), store)
    events = driver.events()
    ranks = [Mailbox(driver.address) for _ in range(20)]
    inboxes = [rank.inbox(f"rank-{number}") for number, rank in enumerate(ranks)]
    capfd.readouterr()  # c10d warns of hosts without a name when they connect
    for number in range(20):
        driver.send(f"rank-{number}", Stop())
    for inbox in inboxes:
        assert inbox.next(60.0) == Stop()
        inbox.close()
    events.close()
    del store, driver, events, ranks, inboxes, inbox
    gc.collect()
    assert capfd.readouterr() == ("", "")


def test_a_closed_port_is_an_error_at_once():
    with pytest.raises(MailboxGone, match="refused"):
        Mailbox(Address("127.0.0.1", 9))


# -- blobs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4 << 20, (9 << 20) + 3])
def test_byte_strings_of_any_length_pass(mailbox, size):
    content = np.random.default_rng(0).bytes(size)
    before = mailbox.store.num_keys()
    mailbox.put("state/1", content)
    assert Mailbox(mailbox.address).take("state/1") == content
    assert mailbox.store.num_keys() == before, "nothing is left behind"


def test_a_blob_can_be_dropped_whether_it_exists_or_not(mailbox):
    before = mailbox.store.num_keys()
    mailbox.drop("state/1")
    mailbox.put("state/1", bytes((4 << 20) + 1))
    mailbox.drop("state/1")
    assert mailbox.store.num_keys() == before


# -- the scheduler --------------------------------------------------------------------------------


def test_the_scheduler_does_not_import_torch_on_its_event_loop():
    code = "import sys, accelerando._cluster.mailbox; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
