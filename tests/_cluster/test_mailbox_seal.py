"""What a stranger writes into the mailbox is dropped and logged, and never read."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from skorch.callbacks import Callback
from torch.distributed import TCPStore

from accelerando._cluster.address import Address
from accelerando._cluster.mailbox import Mailbox, Seal, encode, new_secret
from accelerando._cluster.messages import AverageNow, RankReady, Stop
from accelerando._cluster.plugins import serve_store
from accelerando._dask import plugin_of
from accelerando.exceptions import ClusterError
from tests.nets import parameters_of, regressor


@pytest.fixture
def ends():
    """Return the mailboxes of a driver and a rank, and one whose owner does not know the secret."""
    store = serve_store("127.0.0.1")
    address = Address("127.0.0.1", store.port, new_secret())
    return Mailbox(address, store), Mailbox(address), Mailbox(address._replace(secret="guessed"))


def test_messages_of_strangers_are_dropped_and_logged(ends, caplog):
    driver, rank, stranger = ends
    events, inbox = driver.events(), rank.inbox("rank-0")
    with caplog.at_level(logging.WARNING, logger="accelerando"):
        for garbage in (b"", b"closed", b"garbage", encode(Stop()).encode(), b"\0" * 500):
            stranger.store.queue_push("events", garbage)
            stranger.store.queue_push("to/rank-0", garbage)
        stranger.report(RankReady("rank-7"))
        stranger.send("rank-0", Stop())
        rank.report(RankReady("rank-0"))
        driver.send("rank-0", AverageNow())
        assert events.next(10.0) == RankReady("rank-0")
        assert inbox.next(10.0) == AverageNow()
    assert len(caplog.messages) == 10, "five each, however many there were"
    assert "was dropped. Somebody else can reach the port" in caplog.text
    for listener in (events, inbox):
        listener.close()
        assert not listener._thread.is_alive()


def test_a_message_is_taken_once_and_from_its_queue():
    sender, receiver = Seal("s"), Seal("s")
    first, second = sender.close("a", b"1"), sender.close("a", b"2")
    assert receiver.open("b", first) is None
    assert receiver.open("a", first) == b"1"
    assert receiver.open("a", first) is None
    assert receiver.open("a", second) == b"2"
    assert receiver.open("a", first) is None
    assert receiver.open("a", Seal("s").close("a", b"3")) == b"3"


@given(st.binary(max_size=80), st.integers(0, 59), st.integers(1, 255))
def test_no_changed_byte_is_accepted(garbage, place, change):
    receiver, sealed = Seal("s"), bytearray(Seal("s").close("a", b"hello, rank."))
    assert receiver.open("a", garbage) is None
    sealed[place] ^= change
    assert receiver.open("a", bytes(sealed)) is None


@pytest.mark.parametrize("key", ["state", "state/0"])
@pytest.mark.parametrize("forged", [b"", b"999999999999", b"garbage"])
def test_a_byte_string_that_somebody_changed_is_not_read(ends, key, forged):
    driver, rank, stranger = ends
    rank.put("state", b"the model")
    assert rank.store.check(["state"])
    stranger.store.set(key, forged)
    assert stranger.store.get(key) == forged  # waits until it is there
    with pytest.raises(ClusterError, match="'state' in the mailbox of this fit is not what"):
        driver.take("state")


def test_every_run_has_a_secret_of_its_own():
    assert len({new_secret() for _ in range(100)}) == 100
    assert Seal("a").derive("direct") != Seal("b").derive("direct")
    assert len(Seal("a").derive("direct")) == 32


def find_mailbox(dask_scheduler=None):
    names = [name for name in dask_scheduler.plugins if str(name).startswith("accelerando-")]
    plugins = [plugin_of(dask_scheduler, name) for name in names]
    return [tuple(one.mailbox.address)[:2] for one in plugins if hasattr(one, "mailbox")]


class Stranger(Callback):
    """Write garbage into the mailbox while the fit runs."""

    def on_epoch_begin(self, net, **kwargs):
        for host, port in net.client.run_on_scheduler(find_mailbox):
            store = TCPStore(host, port, is_master=False, wait_for_workers=False)
            for name in ("events", "to/rank-0", "to/rank-1"):
                for text in ("garbage", "closed", encode(Stop()), '{"kind": "Explode"}'):
                    store.queue_push(name, text)


@pytest.mark.timeout(120)
def test_garbage_in_the_mailbox_changes_no_fit(client, line):
    settings = {"max_epochs": 3, "batch_size": 16}
    ranks = {"client": client, "min_workers": 2, "max_workers": 2}
    far = regressor(callbacks=[Stranger()], **settings, **ranks).fit(*line)
    here = regressor(**settings).fit(*line)
    assert torch.allclose(parameters_of(far), parameters_of(here), atol=1e-6)
