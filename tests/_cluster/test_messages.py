"""Messages between driver and ranks, and their wire format."""

import dataclasses
import json
import typing

import pytest

from accelerando._cluster import messages
from accelerando._cluster.mailbox import KINDS, decode, encode
from accelerando._cluster.messages import (
    Abandon,
    BatchesEvaluated,
    CheckpointSent,
    Evaluate,
    Message,
    Pause,
    RankRaised,
    RanksAllowed,
    SegmentEnded,
    SendState,
    StateSent,
    Stop,
    Tick,
    TrainSegment,
    WorkerLeft,
)

SENT = [
    TrainSegment(
        segment=3,
        generation=2,
        group_rank=1,
        group_size=4,
        source=0,
        blob="start/7",
        epoch=1,
        until=5,
        patch={"groups": [[{"lr": 0.1, "betas": [0.9, 0.99]}]]},
        records_after=40,
        seconds=1.5,
        threads=(4, 2),
        chunks=(0, 3),
        deposit="run/rank-1/3",
    ),
    TrainSegment(1, 1, 0, 1, None, None, 0, 1),
    SendState("state/1", messages.REPLICA_PARTS),
    Evaluate((0, 2, 4), "valid/1"),
    Pause(3, membership_changes=True),
    Abandon(2),
    Stop(),
    SegmentEnded("rank-1", 2, "paused", 41, averagings=3, since=2, begun=False),
    RankRaised("rank-1", 41),
    StateSent("rank-1", "state/1", 41),
    BatchesEvaluated("rank-1", "valid/1", sendable=False),
    CheckpointSent("rank-1", "checkpoint/40/rank-1", segment=3, update=40, averagings=2),
    RanksAllowed("rank-0", None, 12),
    WorkerLeft("tcp://10.0.0.1:1", retired=True),
]


@pytest.mark.parametrize("message", SENT, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message):
    assert decode(encode(message)) == message
    assert decode(encode(message).encode()) == message, "the store returns bytes"


def test_every_message_can_be_sent():
    for kind in typing.get_args(Message):
        assert KINDS[kind.__name__] is kind
        fields = dataclasses.fields(kind)
        made = kind(**{f.name: () if "tuple" in str(f.type) else 1 for f in fields})
        assert decode(encode(made)) == made


def test_messages_are_values():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Abandon(1).generation = 2
    assert Abandon(1) == Abandon(1) != Abandon(2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"kind": "Explode"}', "unknown kind 'Explode'"),
        ('{"kind": "Tick"}', "unknown kind 'Tick'"),
        ('{"generation": 1}', "unknown kind None"),
        ("[]", "unknown kind None"),
        ('{"kind": "Abandon", "generation": 1, "when": 2}', "Abandon message does not fit.*'when'"),
        ('{"kind": "Abandon"}', "Abandon message does not fit.*'generation'"),
    ],
)
def test_what_another_version_sent_is_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        decode(text)
    assert "Install the same version of accelerando" in str(caught.value)


def test_events_of_the_drivers_process_are_not_sent():
    with pytest.raises(TypeError, match="Tick is not sent between processes"):
        encode(Tick())


def test_the_table_of_the_module_lists_every_message():
    table = messages.__doc__
    for union in (messages.Command, messages.Event):
        for kind in typing.get_args(union):
            assert f"\n{kind.__name__} " in table, f"{kind.__name__} is missing in the table"


def test_nothing_is_pickled():
    assert json.loads(encode(Evaluate((1,), "b"))) == {
        "kind": "Evaluate", "batches": [1], "blob": "b",
    }  # fmt: skip
