"""Public names of the package, and those that are deprecated."""

import doctest
import subprocess
import sys

import pytest

import accelerando.search
from accelerando.search import simulate
from accelerando.search._plan import hyperband_brackets
from accelerando.search._simulate import SimulatedSearch


def test_deprecated_names_work_and_say_what_to_use():
    with pytest.warns(FutureWarning, match=r"search\.hyperband_brackets .* Use Hyperband"):
        assert accelerando.search.hyperband_brackets is hyperband_brackets
    with pytest.warns(FutureWarning, match=r"search\.Replay is deprecated .*simulate returns"):
        from accelerando.search import Replay
    assert Replay is SimulatedSearch


def test_other_names_do_not_exist():
    with pytest.raises(AttributeError, match=r"'accelerando\.search' has no attribute 'Hyper'"):
        accelerando.search.Hyper  # noqa: B018


def test_deprecated_names_are_not_listed():
    assert "Replay" not in accelerando.search.__all__
    assert "Replay" not in dir(accelerando.search)


def test_the_docstring_of_simulate_describes_its_result():
    names = {name for name in vars(SimulatedSearch) if not name.startswith("_")}
    names |= set(SimulatedSearch.__annotations__)
    assert [name for name in names if name not in simulate.__doc__] == []
    assert doctest.testmod(accelerando.search).failed == 0


def test_a_search_without_nets_does_not_import_torch():
    """It takes more than a second and 150 MB in this process and on every worker."""
    code = (
        "import sys, numpy as np\n"
        "from sklearn.linear_model import SGDClassifier\n"
        "import accelerando.search._task\n"  # what a worker imports
        "from accelerando.search import HyperbandSearchCV\n"
        "X, y = np.arange(60.0)[:, None], np.arange(60) % 2\n"
        "HyperbandSearchCV(SGDClassifier(), {'alpha': [1, 2]}, max_iter=3, client=None).fit(X, y)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
