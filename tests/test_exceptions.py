"""One tree of exceptions, each of which is also what scikit-learn's users catch."""

import inspect
import pickle

import pytest

from accelerando import exceptions

TREE = {
    name: error
    for name, error in vars(exceptions).items()
    if inspect.isclass(error) and issubclass(error, BaseException)
}


@pytest.mark.parametrize(
    ("name", "built_in"),
    [
        ("ClusterError", RuntimeError),
        ("InputError", RuntimeError),  # as PyTorch raises it
        ("InputError", ValueError),  # as scikit-learn raises it
        ("NotFiniteError", ArithmeticError),
        ("PayloadError", ValueError),
        ("StateError", ValueError),
        ("UnknownSignalError", KeyError),
        ("UnknownSignalError", AttributeError),
        ("UnsupportedError", ValueError),
    ],
)
def test_it_is_caught_by_the_name_that_users_know(name, built_in):
    with pytest.raises(built_in):
        raise TREE[name]("Because.")


@pytest.mark.parametrize("name", TREE)
def test_one_name_catches_all_and_the_sentence_travels(name):
    error = TREE[name]("The 'x' parameter must be 'a'.")
    assert isinstance(error, exceptions.AccelerandoError)
    assert str(error) == "The 'x' parameter must be 'a'."
    arrived = pickle.loads(pickle.dumps(error))  # from a rank to the driver
    assert type(arrived) is TREE[name]
    assert str(arrived) == str(error)


@pytest.mark.parametrize("name", [name for name in TREE if name != "AccelerandoError"])
def test_the_drawing_of_the_tree_is_complete(name):
    assert f"── {name} " in exceptions.__doc__
