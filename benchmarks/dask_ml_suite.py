"""Run Dask-ML's own tests of its incremental searches against the classes of accelerando.

``python benchmarks/dask_ml_suite.py PATH`` takes a checkout of Dask-ML. Nothing of it is copied:
its tests are imported from there, with our classes under the names of Dask-ML's. Its tests are
coroutines of an asynchronous client; here they are driven by an ordinary client, whose results are
there as soon as they are awaited.

A test that fails must be in ``PRIVATE`` (it looks at functions or attributes inside Dask-ML) or in
``DIFFERENT`` (it asserts something that accelerando does differently, with the reason). The script
ends with an error if another test fails, or if one that is listed as different passes.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import logging
import sys
import tempfile
import types
from pathlib import Path

import pytest
from distributed import Client, Future, LocalCluster

FILES = (
    "test_hyperband.py",
    "test_incremental.py",
    "test_incremental_warns.py",
    "test_successive_halving.py",
)

LOGGER = "reads the logger dask_ml.model_selection, which Dask-ML writes to"
PRIVATE = {
    "test_hyperband.py::test_correct_params": "reads _SuccessiveHalvings_, and allows no further "
    "parameters of the constructor",
    "test_hyperband.py::test_random_state_no_seed_different_params": "calls _get_SHAs",
    "test_incremental.py::test_basic": "calls Dask-ML's function fit; its authors skip it",
    "test_incremental.py::test_explicit": "calls Dask-ML's function fit",
    "test_incremental.py::test_partial_fit_doesnt_mutate_inputs": "calls _partial_fit",
    "test_incremental.py::test_verbosity": LOGGER,
    "test_incremental.py::test_verbosity_levels": LOGGER,
}

PLAN = (
    "the brackets are those of Algorithm 1 of Li et al. for every max_iter; the calls of "
    "Dask-ML differ if max_iter is no power of aggressiveness"
)
DIFFERENT = {
    "test_hyperband.py::test_basic[numpy-ConstantFunction-15]": PLAN,
    "test_hyperband.py::test_basic[numpy-ConstantFunction-20]": PLAN,
    "test_hyperband.py::test_dataframe_inputs": "models receive the partitions of a Dask DataFrame "
    "as frames with names of columns, which Dask-ML turns into arrays",
    "test_hyperband.py::test_params_passed": "aggressiveness is an integer, and one seed draws the "
    "models of all brackets",
    "test_hyperband.py::test_same_random_state_same_params": "a random search with the same seed "
    "draws all models of Hyperband, not only those of one bracket, as in version 0.1",
    "test_incremental.py::test_search_basic_patience": "no model is trained for more than max_iter "
    "calls, which is what Dask-ML's page says too; the test expects max_iter + 1",
    "test_incremental_warns.py::test_warns_decay_rate": "Dask-ML warns whenever decay_rate is left "
    "out; here its default is None, so there is nothing to warn about",
}

SEARCHES = (
    "HyperbandSearchCV",
    "IncrementalSearchCV",
    "InverseDecaySearchCV",
    "SuccessiveHalvingSearchCV",
)


class Ready:
    """A value that can be awaited."""

    def __init__(self, value):
        self.value = value

    def __await__(self):
        return self.value
        yield  # makes this a generator


class ClientLike:
    """A client whose results can be awaited, as those of an asynchronous client."""

    def __init__(self, client):
        self.client = client

    def compute(self, *args, **kwargs):
        return self.client.compute(*args, **kwargs)  # futures; see main

    def gather(self, futures):
        return Ready(self.client.gather(futures))

    def scatter(self, value):
        return Ready(self.client.scatter(value))


def drive(coroutine):
    """Run a coroutine that waits for nothing but values that are there."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise RuntimeError("The test waits for an event loop, which there is not.")


def cluster_decorator(client):
    """Return what takes the place of ``distributed.utils_test.gen_cluster``."""

    def gen_cluster(**_):
        def decorate(test):
            @functools.wraps(test)
            def run(*args, **kwargs):
                return drive(test(ClientLike(client), None, None, None, *args, **kwargs))

            signature = inspect.signature(test)
            own = list(signature.parameters.values())[4:]
            run.__signature__ = signature.replace(parameters=own)
            return run

        return decorate

    return gen_cluster


def substitute(checkout: Path, client: Client) -> None:
    """Import Dask-ML from `checkout` with our searches, and let the tests run on `client`."""
    import distributed.utils_test

    from accelerando import search

    sys.path.insert(0, str(checkout))
    version = types.ModuleType("dask_ml._version")  # written when Dask-ML is built
    version.__version__ = "0"
    sys.modules["dask_ml._version"] = version
    import dask_ml._compat

    dask_ml._compat.DASK_2025_3_0 = False  # its searches do not work there; ours do
    import dask_ml.model_selection

    for name in SEARCHES:
        ours = getattr(search, name)

        def fit(self, *args, _ours=ours, **kwargs):
            return Ready(_ours.fit(self, *args, **kwargs))

        setattr(dask_ml.model_selection, name, type(name, (ours,), {"fit": fit}))
    distributed.utils_test.gen_cluster = cluster_decorator(client)
    Future.__await__ = lambda future: Ready(future.result()).__await__()


class Recorder:
    """Collects the outcome of each test."""

    def __init__(self):
        self.outcomes = {}
        self.errors = {}

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("model_selection/")[-1]
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[name] = report.outcome
            if report.outcome == "failed":
                crash = getattr(report.longrepr, "reprcrash", None)
                self.errors[name] = (crash.message if crash else str(report.longrepr)).split("\n")[
                    0
                ]


def reason_for(name: str, listed: dict[str, str]) -> str | None:
    """Return the reason of a test; a test without parameters in the list means all of it."""
    return listed.get(name) or listed.get(name.split("[", maxsplit=1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=Path, help="folder with a checkout of Dask-ML")
    parser.add_argument("-k", default="", help="run only the tests that match, as in pytest")
    options = parser.parse_args()
    folder = options.checkout.resolve() / "tests" / "model_selection"
    if not folder.is_dir():
        parser.error(f"{options.checkout} is no checkout of Dask-ML: it has no {folder.name}")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    recorder = Recorder()
    with (
        tempfile.NamedTemporaryFile(suffix=".ini") as settings,
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        settings.write(b"[pytest]\n")
        settings.flush()
        substitute(options.checkout.resolve(), client)
        arguments = [str(folder / name) for name in FILES]
        arguments += ["-c", settings.name, "--rootdir", str(options.checkout.resolve())]
        arguments += ["-p", "no:cacheprovider", "-q", "--no-header", "--tb=no", "--no-summary"]
        pytest.main([*arguments, *(["-k", options.k] if options.k else [])], plugins=[recorder])
    sys.exit(report(recorder))


def report(recorder: Recorder) -> str | None:
    """Print the outcomes; return a sentence if one of them was not expected."""
    passed, expected, unexpected = [], [], []
    for name, outcome in sorted(recorder.outcomes.items()):
        private = reason_for(name, PRIVATE)
        reason = private or reason_for(name, DIFFERENT)
        if outcome == "passed" and reason is None:
            passed.append(name)
        elif private is not None or (outcome != "passed" and reason is not None):
            expected.append((name, "private" if private else "different", reason))
        else:
            unexpected.append((name, outcome, recorder.errors.get(name, reason)))
    public = [name for name in recorder.outcomes if reason_for(name, PRIVATE) is None]
    print(f"\nof {len(recorder.outcomes)} tests {len(public)} are not private to Dask-ML")
    print(f"passed: {len(passed)} of {len(public)}")
    for kind in ("private", "different"):
        listed = [(name, reason) for name, label, reason in expected if label == kind]
        print(f"{kind}: {len(listed)}")
        for name, reason in listed:
            print(f"  {name}\n      {reason}")
    for name, outcome, error in unexpected:
        print(f"NOT EXPECTED: {name} {outcome}\n      {error}")
    return f"{len(unexpected)} outcomes were not expected" if unexpected else None


if __name__ == "__main__":
    main()
