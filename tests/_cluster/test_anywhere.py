"""Tasks of lazy Dask collections that every worker can load."""

import functools
import operator
import pickle
import subprocess
import sys

import cloudpickle
import pytest

from accelerando._cluster.anywhere import anywhere

# A process in which accelerando and PyTorch are missing.
WITHOUT = """
import pickle, sys
sys.modules["accelerando"] = sys.modules["torch"] = None
task = pickle.loads(bytes.fromhex(sys.stdin.read()))
again = pickle.loads(pickle.dumps(task))  # as Dask's scheduler does, which sends it to a worker
try:
    again(1)
except RuntimeError as error:
    print(error)
"""


def test_a_function_is_called_here_and_after_two_trips():
    here = anywhere(functools.partial(operator.add, 1))
    there = pickle.loads(pickle.dumps(pickle.loads(cloudpickle.dumps(here))))
    assert (here(2), there(2)) == (3, 3)
    assert anywhere(len).__name__ == "len"


def test_a_function_that_cannot_be_pickled_is_called_here():
    with open(__file__) as file:
        assert anywhere(functools.partial(getattr, file))("name") == __file__


def test_a_process_without_accelerando_loads_it_and_answers_with_a_sentence():
    from accelerando.estimators._predict import predict_part

    content = cloudpickle.dumps(anywhere(predict_part)).hex()
    words = (sys.executable, "-c", WITHOUT)
    done = subprocess.run(words, input=content, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("This process cannot load what it has to compute (ModuleNotFound")
    assert "compute(workers=[...])" in done.stdout


def test_what_the_function_raises_is_passed_on():
    with pytest.raises(ZeroDivisionError):
        pickle.loads(pickle.dumps(anywhere(functools.partial(operator.truediv, 1))))(0)
