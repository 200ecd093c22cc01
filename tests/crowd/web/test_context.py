"""The context of requests."""

import asyncio
import threading

from sqlalchemy import event, text

from accelerando.crowd.store import experiments


def test_reads_run_in_a_thread_and_writes_are_committed(site):
    context = site.app.state.context

    def where(connection):
        return threading.current_thread() is threading.main_thread()

    def write(connection, value):
        connection.execute(text("INSERT INTO meta VALUES ('note', :v)"), {"v": value})

    def read(connection):
        return connection.execute(text("SELECT value FROM meta WHERE key = 'note'")).scalar()

    async def run():
        await context.write(write, "x")
        return await context.read(where), await context.read(read)

    assert asyncio.run(run()) == (False, "x")


def test_items_are_read_once(site):
    context = site.app.state.context
    statements = []
    with site.store.read() as connection:
        snapshot = experiments.find(connection, "eggs")
        event.listen(connection, "before_cursor_execute", lambda *a: statements.append(a[2]))
        first = context.items(connection, snapshot)
        assert context.items(connection, snapshot) is first
    assert len(first) == 8
    assert len(statements) == 2  # the items, and the widths of the smaller copies
