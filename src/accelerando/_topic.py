"""Leave no topic of ours behind on a Dask scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

_LATE_SECONDS = 2.0  # words on the way when a topic is dropped would make it anew


def stop_listening(client: Any, topic: str) -> None:
    """End a client's subscription and drop the topic with its events."""
    with contextlib.suppress(Exception):  # a scheduler that is gone has no topics
        client.unsubscribe_topic(topic)
        client.run_on_scheduler(_drop, topic)


async def _drop(topic: str, dask_scheduler: Any = None) -> None:
    topics = dask_scheduler._broker._topics
    for _ in range(100):  # the client's word that it has stopped listening comes by another way
        if topic not in topics or not topics[topic].subscribers:
            break
        await asyncio.sleep(0.01)
    topics.pop(topic, None)
    drop_late(dask_scheduler, topic)


def drop_late(scheduler: Any, topic: str) -> None:
    """Drop a topic once the last words about it must have arrived."""
    scheduler.loop.call_later(_LATE_SECONDS, scheduler._broker._topics.pop, topic, None)
