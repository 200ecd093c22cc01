"""The store itself: schema, migrations, archives, exports, numbers for the dashboard."""

import threading

import pytest

from accelerando.crowd.store import Store, experiments


def test_opening_twice_changes_nothing(store):
    Store(store.url).close()
    with store.read() as connection:
        assert experiments.names(connection) == []


def test_processes_that_start_at_once_agree_on_the_secret(store):
    found = []

    def another():
        other = Store(store.url)
        with other.write() as connection:
            found.append(other.secret(connection))
        other.close()

    thread = threading.Thread(target=another)
    with store.write() as connection:
        found.append(store.secret(connection))  # not committed yet: the other cannot see it
        thread.start()
        thread.join(0.2)
    thread.join()
    assert found == 2 * found[:1]


@pytest.mark.parametrize("url", ["mysql://x/y", "crowd.sqlite", "sqlite:memory"])
def test_other_databases_are_refused_without_showing_passwords(url):
    with pytest.raises(ValueError, match="sqlite:///FILE or postgresql"):
        Store(url)
