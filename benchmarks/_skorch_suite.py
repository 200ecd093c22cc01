"""Run skorch's own tests, from the installed package, with skorch's classes or with ours.

Nothing of skorch is copied. This module is a plugin of pytest, too: before skorch's test modules
are imported, it puts our classes under the names of skorch's, and it writes what every test did.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

import pytest
import torch

OURS, OUTPUT, WHOLE = "SKORCH_SUITE_OURS", "SKORCH_SUITE_OUTPUT", "SKORCH_SUITE_WHOLE"
CLASSES = (
    "NeuralNet",
    "NeuralNetBinaryClassifier",
    "NeuralNetClassifier",
    "NeuralNetRegressor",
)
# Folders and files that do not run here, with either library.
LEFT_OUT = {
    "llm": "needs transformers, and downloads language models",
    "test_hf.py": "needs tokenizers and transformers",
    "test_cli.py": "needs fire; skorch skips these tests without it",
    "test_probabilistic.py": "needs gpytorch; skorch skips these tests without it",
}
# Classes that the benchmark runs, and the test suite does not.
SLOW = {
    "TestDistributedHistoryMultiprocessing": "trains in new processes, which import skorch's own "
    "class in either case: four tests that start ten processes",
}
FAIL_WITH_SKORCH = {
    "test_net.py::TestNeuralNet::test_pickle_load[False]",
    "test_net.py::TestNeuralNet::test_load_cuda_params_to_cpu[f_params-net_cuda.pt]",
    "test_net.py::TestNeuralNet::test_load_cuda_params_to_cpu[f_optimizer-optimizer_cuda.pt]",
}  # read files by a path relative to skorch's repository, which the wheel does not have
REPR = "expects skorch's format of repr(net); ours lists parameters and cuts long modules"
ITEMS = "our sentence about items that are no pairs says what to do for several inputs"
NET = "test_net.py::TestNeuralNet::test_"
# Tests that pass with skorch and may fail with our classes, each with its reason.
DIFFERENT = {
    NET + "repr_uninitialized_works": REPR,
    NET + "repr_initialized_works": REPR,
    NET + "repr_fitted_works": REPR,
    NET + "fit_with_dataset_one_item_error": ITEMS,
    NET + "fit_with_dataset_three_items_error": ITEMS,
    NET + "fit_with_dataset_stratified_without_explicit_y_raises": "a Dataset without labels at "
    "hand is divided at random instead of refused",
    NET + "optimizer_param_groups": 'net.lr is "auto" by default; the optimizer has 0.01',
    NET + "torch_load_kwargs_forwarded_to_torch_load_unpickle": "expects the first call of "
    "torch.load to read the module; ours reads the state of the run first",
    "test_regressor.py::TestNeuralNetRegressor::test_dimension_mismatch_warning": "expects "
    "PyTorch's warning of broadcasting; a 1-d y is a column for a module with one output",
    "test_doctor.py::TestSkorchDoctorSimple::test_activation_recs_values": "expects the rows in "
    "their order; epochs are shuffled by default",
    "test_classifier.py::TestNeuralNetBinaryClassifier::test_module_output_2d_raises": "expects "
    "the shape of a whole batch; the first batch of a run is divided to measure memory",
}


def run(*, ours: bool, whole: bool = False) -> dict[str, str]:
    """Return the outcome of every test: passed, failed, skipped or error.

    Parameters
    ----------
    ours : bool
        Whether our classes stand in for skorch's.
    whole : bool, default=False
        Whether the classes in ``SLOW`` run, too, and compiled modules get compiled C++ code. That
        takes PyTorch a minute; without it they are traced, and the graph runs as it is.
    """
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "outcomes.json")
        path = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, OUTPUT: str(output), OURS: str(int(ours)), "PYTHONPATH": path}
        environment |= {"OMP_NUM_THREADS": "1", WHOLE: str(int(whole))}
        command = [
            *(sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", folder, "-q"),
            # One process: the imports of a second one cost more than it saves.
            *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "_skorch_suite"),
            *("--timeout", "300", "--tb", "no", "--pyargs", "skorch.tests"),
        ]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if not output.exists():
            raise RuntimeError(f"skorch's tests did not run:\n{done.stdout}\n{done.stderr}")
        found: dict[str, str] = json.loads(output.read_text())
    return found


def differences(outcomes: dict[str, str]) -> dict[str, str]:
    """Return the tests that did not do what is expected of our classes, with what they did."""
    expected = set(DIFFERENT) | FAIL_WITH_SKORCH
    wrong = {
        name: outcome
        for name, outcome in outcomes.items()
        if (outcome in ("failed", "error")) != (name in expected)
    }
    return {**wrong, **dict.fromkeys(sorted(expected - set(outcomes)), "missing")}


# -- the plugin -----------------------------------------------------------------------------------

_outcomes: dict[str, str] = {}


def pytest_configure(config: object) -> None:
    if OUTPUT not in os.environ:
        return
    if "flaky" not in sys.modules:
        # skorch seeds one test with the time and repeats it; here it runs once, with one seed.
        flaky = types.ModuleType("flaky")
        same_time = mock.patch("time.time", float)  # float() is 0.0
        flaky.flaky = lambda *args, **kwargs: same_time  # type: ignore[attr-defined]
        sys.modules["flaky"] = flaky
    if os.environ.get(WHOLE) != "1":
        torch.compile = functools.partial(torch.compile, backend="eager")
    if os.environ[OURS] == "1":
        import skorch
        import skorch.classifier
        import skorch.net

        import accelerando

        for name in CLASSES:
            setattr(skorch, name, getattr(accelerando, name))
        # Those of which skorch's own modules make no further use.
        skorch.net.NeuralNet = accelerando.NeuralNet
        skorch.classifier.NeuralNetBinaryClassifier = accelerando.NeuralNetBinaryClassifier


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if collection_path.name in LEFT_OUT else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get(WHOLE) != "1":
        items[:] = [item for item in items if not SLOW.keys() & set(item.nodeid.split("::"))]


def pytest_runtest_logreport(report: object) -> None:
    name = report.nodeid.partition("skorch/tests/")[2] or report.nodeid  # type: ignore[attr-defined]
    outcome = report.outcome  # type: ignore[attr-defined]
    if outcome == "failed" and report.when != "call":  # type: ignore[attr-defined]
        outcome = "error"
    if _outcomes.get(name) not in ("failed", "error") and (
        outcome != "passed" or report.when == "call"  # type: ignore[attr-defined]
    ):
        _outcomes[name] = outcome


def pytest_collectreport(report: object) -> None:
    if report.outcome == "failed":  # type: ignore[attr-defined]
        _outcomes[report.nodeid] = "error"  # type: ignore[attr-defined]


def pytest_sessionfinish(session: object) -> None:
    if OUTPUT in os.environ:
        Path(os.environ[OUTPUT]).write_text(json.dumps(_outcomes))
