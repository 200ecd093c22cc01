"""Who is on a cluster, while the client takes its own notes about it."""

import threading

from accelerando._workers import workers_of


def test_a_note_of_the_client_does_not_make_the_cluster_look_empty(client):
    stop = threading.Event()

    def take_notes():  # as the client does by itself every other second
        while not stop.is_set():
            client.sync(client._update_scheduler_info)

    thread = threading.Thread(target=take_notes)
    thread.start()
    try:
        seen = [workers_of(client) for _ in range(300)]
    finally:
        stop.set()
        thread.join()
    present = set(client.run(int))
    assert present
    assert all(set(workers) == present for workers in seen)
    assert {worker["nthreads"] for worker in seen[0].values()} == {1}
