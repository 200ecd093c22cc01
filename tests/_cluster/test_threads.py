"""Ranks of one machine divide the threads that Dask gave to its workers."""

from accelerando._cluster.threads import threads_each, threads_for


def test_ranks_of_a_machine_divide_the_threads_of_its_workers():
    facts = {
        "tcp://10.0.0.1:1": {"nthreads": 2},
        "tcp://10.0.0.1:2": {},
        "tcp://10.0.0.1:3": {"nthreads": 1},
        "tcp://10.0.0.2:1": {"nthreads": 1},
    }
    workers = {
        "rank-0": "tcp://10.0.0.1:1",
        "rank-1": "tcp://10.0.0.1:2",
        "rank-2": "tcp://10.0.0.2:1",
        "rank-3": "tcp://10.0.0.3:1",
    }
    assert threads_for(workers, facts) == {
        "rank-0": (4, 2), "rank-1": (4, 2), "rank-2": (1, 1),
    }  # fmt: skip


def test_a_rank_has_no_more_threads_than_its_share_of_the_processors():
    assert threads_each(8, 2, processors=4) == 2
    assert threads_each(1, 3, processors=4) == 1
