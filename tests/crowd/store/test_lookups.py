"""Database lookups of query assignment."""

from sqlalchemy import event

from accelerando.crowd._sampler import Query
from accelerando.crowd.store import published
from accelerando.crowd.store.lookups import StoredQueue, StoredSeen

EGGS = "name: eggs\nitems: 9\nparticipants: {answers: null}\n"


def test_seen_queries_are_those_that_were_assigned(lab):
    lab = lab(EGGS)
    standing = lab.come(count=2)
    keys = [(q.head, q.low, q.high) for q in standing.queries]
    other = lab.come(count=0, participant="other").person.id
    with lab.store.read() as connection:
        seen = StoredSeen(connection, standing.person.id)
        assert all(key in seen for key in keys)
        assert (8, 0, 1) not in seen or (8, 0, 1) in keys
        assert keys[0] not in StoredSeen(connection, other)
        new = StoredSeen(connection, other)
        new.add(keys[0])
        assert keys[0] in new


def test_many_lookups_read_all_rows_at_once(lab):
    lab = lab(EGGS)
    standing = lab.come(count=5)
    keys = [(q.head, q.low, q.high) for q in standing.queries]
    statements = []
    with lab.store.read() as connection:
        event.listen(connection, "before_cursor_execute", lambda *a: statements.append(a[2]))
        seen = StoredSeen(connection, standing.person.id)
        for _ in range(100):
            assert (0, 0, 0) not in seen
        assert all(key in seen for key in keys)
    selects = [statement for statement in statements if statement.startswith("SELECT")]
    assert len(selects) == 21


def test_a_queue_gives_its_best_unseen_query_and_removes_it(lab):
    lab = lab(EGGS)
    queries = [Query(0, 1, 2, 0.9), Query(3, 4, 5, 0.8), Query(6, 7, 8, 0.7)]
    lab.do(published.publish, lab.find(), {"arr": queries}, {}, None, 1.0)
    person = lab.come(count=1, participant="anna").person.id  # gets the first one
    lab.do(published.publish, lab.find(), {"arr": queries}, {}, None, 2.0)

    def pop(connection, count):
        snapshot = lab.find_in(connection)
        queue = StoredQueue(connection, snapshot, person, "arr")
        return [queue.pop(StoredSeen(connection, person)) for _ in range(count)]

    assert lab.do(pop, 3) == [queries[1], queries[2], None]
    with lab.store.read() as connection:
        assert published.left_in_queue(connection, lab.find()) == {"arr": queries[:1]}


def test_looking_at_a_queue_takes_nothing(lab):
    lab = lab(EGGS)
    lab.do(published.publish, lab.find(), {"arr": [Query(0, 1, 2, 0.9)]}, {}, None, 1.0)
    person = lab.come(count=0).person.id
    with lab.store.write() as connection:
        queue = StoredQueue(connection, lab.find_in(connection), person, "arr")
        assert not hasattr(queue, "__iter__")
        assert published.left_in_queue(connection, lab.find_in(connection))["arr"]
