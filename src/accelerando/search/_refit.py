"""Before and after a search: start its processes, and train the winner on all rows."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import dask
from distributed import Client, Future, default_client, rejoin, secede
from distributed.deploy.subprocess import SubprocessCluster

from accelerando._dask import workers_of
from accelerando._sklearn import take_rows
from accelerando.search._checks import choose_client
from accelerando.search._data import Data, split, without_empty_groups
from accelerando.search._limits import POLL_SECONDS, current, no_limit
from accelerando.search._train import Slice
from accelerando.search._workers import Workers

__all__ = [
    "all_rows",
    "futures_resolved",
    "opened_client",
    "own_processes",
    "resolve",
    "thread_given_back",
    "train_once",
]


def resolve(value: Any, check: Callable[[], None] = no_limit) -> Any:
    """Return `value` with Dask futures, also those in a tuple, list or dict, as their results.

    `check` is called while a result is not there; what it raises ends the wait.
    """
    if isinstance(value, Future):
        result = _result(value, check)
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError(
                "A future of an asynchronous client was passed, whose result fit cannot wait for. "
                "Pass the result, or a future of a client that is not asynchronous."
            )
        return result
    if type(value) in (tuple, list) and any(isinstance(one, Future) for one in value):
        return type(value)(resolve(one, check) for one in value)
    if type(value) is dict:
        return {key: resolve(one, check) for key, one in value.items()}
    return value


def _result(future: Future, check: Callable[[], None]) -> Any:
    while True:
        try:
            return future.result(timeout=POLL_SECONDS)
        except TimeoutError:
            if future.done():  # its result is large, or it has just ended; or it raised this
                return future.result()
            check()


@contextlib.contextmanager
def futures_resolved(search: Any, check: Callable[[], None]) -> Iterator[None]:
    """Replace futures in ``estimator`` and ``validation_data`` by their results in the block."""
    names = ("estimator", "validation_data")
    before = {name: getattr(search, name) for name in names}
    results = {name: resolve(value, check) for name, value in before.items()}
    changed = {name: value for name, value in results.items() if value is not before[name]}
    vars(search).update(changed)
    try:
        yield
    finally:
        vars(search).update({name: before[name] for name in changed})


@contextlib.contextmanager
def thread_given_back(search: Any, *data: Any) -> Iterator[None]:
    """Let the worker run other tasks in the block if ``fit`` is a Dask task that waits for Dask.

    Otherwise the tasks of the search would wait for the thread of the task that waits for them.
    In the block the client of the search is the current one, which computes Dask collections.

    Parameters
    ----------
    search : search
        Has the parameters ``client`` and ``n_jobs``.
    *data : object
        The arguments of ``fit``.
    """
    with contextlib.ExitStack() as stack:
        if _uses_cluster(search) or any(map(_is_elsewhere, data)):
            # ValueError: this is no Dask task. KeyError: the task has given its thread back before.
            with contextlib.suppress(ValueError, KeyError):
                secede()
                stack.callback(rejoin)
        stack.enter_context(current(search.client))
        yield


def _uses_cluster(search: Any) -> bool:
    if search.n_jobs is not None or search.client is None:
        return False
    if isinstance(search.client, str):
        try:
            default_client()
        except ValueError:
            return False
    return True


def _is_elsewhere(value: Any) -> bool:
    return isinstance(value, Future) or dask.is_dask_collection(value)


@contextlib.contextmanager
def opened_client(search: Any) -> Iterator[Client | None]:
    """Yield the client that trains the models of a search; None for this process."""
    if search.n_jobs is None:
        yield choose_client(search)
        return
    with own_processes(search.n_jobs) as client:
        yield client


@contextlib.contextmanager
def own_processes(n_jobs: int) -> Iterator[Client]:
    """Yield a client of new worker processes with one thread each.

    They are started as separate programs, so that a script needs no ``if __name__ ==
    "__main__"``, and find the modules that this process finds.

    Parameters
    ----------
    n_jobs : int
        Number of processes; -1 is one per core.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = path  # of the new processes
    try:
        cluster = SubprocessCluster(
            n_workers=(count or 1) if n_jobs == -1 else n_jobs,
            threads_per_worker=1,
            dashboard_address=":0",
            worker_kwargs={"dashboard": False},
            silence_logs=50,
        )
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    with cluster, Client(cluster, set_as_default=False) as client:
        yield client


def all_rows(
    X: Any,
    y: Any,
    chunk_size: int | None,
    seed: int,
    fit_params: dict[str, Any],
    client: Any,
    ended: Callable[[], str | None],
) -> Data:
    """Return all rows as training data, without validation rows.

    If `ended` returns why the search ended, no worker is waited for.
    """

    def check() -> None:
        if client is not None and (reason := ended()) and not workers_of(client):
            raise RuntimeError(
                f"The search ended ({reason}), but no worker is left to train on all rows."
            )

    if dask.is_dask_collection(X):
        some: Any = (X.partitions[0], None if y is None else y.partitions[0])
    else:
        some = (take_rows(X, [0]), None if y is None else take_rows(y, [0]))
    data, _ = split(
        X,
        y,
        test_size=None,
        chunk_size=chunk_size,
        seed=seed,
        fit_params=fit_params,
        validation=some,
        check=check,
    )
    return without_empty_groups(data, client, check)


def train_once(workers: Workers, job: Slice, ended: Callable[[], str | None]) -> Any:
    """Return an estimator that was trained for the calls of `job`; raise if that fails.

    Parameters
    ----------
    workers : Workers
        Where to train.
    job : Slice
        The model and its calls.
    ended : callable
        Returns why the search ended, or None. If a limit or the user ended it, no worker is waited
        for.
    """
    workers.submit([job], float("inf"))
    while workers.busy:
        if not workers.present and (reason := ended()):
            raise RuntimeError(
                f"The search ended ({reason}), but no worker is left that could train the best "
                f"model on all rows. Its parameters: {dict(job.params)}."
            )
        for report in workers.wait(timeout=0.1):
            if report.error is not None:
                raise report.error
    state = workers.get(job.model)
    assert state is not None
    return state.estimator
