"""A part whose extra is missing says so in one sentence, and needs nothing of the other parts."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from accelerando._extras import EXTRAS, MissingExtraError, require
from accelerando.exceptions import AccelerandoError

ROOT = Path(__file__).parents[1]
# scikit-learn's joblib needs cloudpickle, too.
OPTIONAL = sorted({name for names in EXTRAS.values() for name in names} - {"cloudpickle"})


def python(code, blocked):
    """Run code in a process that cannot import the blocked packages."""
    return subprocess.run(
        [sys.executable, "-c", BLOCK.format(sorted(blocked)) + code],
        capture_output=True,
        text=True,
        check=False,
    )


# As if they were not installed: scikit-learn asks sys.modules for PyTorch and pandas.
BLOCK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


# What a user writes, the extra it needs, and how the message begins.
NEEDS = [
    ("from accelerando import NeuralNetClassifier", "train", "accelerando.NeuralNet"),
    ("from accelerando.search import HyperbandSearchCV", "search", "accelerando.search"),
    ("import accelerando as acc; acc.search", "search", "accelerando.search"),
    ("import accelerando.compress", "train", "accelerando.compress"),
    ("import accelerando.cost", "train", "accelerando.cost"),
    ("import accelerando.plot", "plot", "accelerando.plot"),
    ("from accelerando.crowd.web import create_app", "crowd", "The web service"),
    ("from accelerando.crowd.store import Store", "crowd", "The web service"),
    ("import accelerando.crowd.serve", "crowd", "The web service"),
    ("from accelerando.crowd.experiment import load_experiment", "crowd", "The web service"),
]


@pytest.fixture(scope="module")
def messages():
    """The message of each row of the table, from one process without any optional package."""
    code = "".join(
        f"try:\n    {line}\nexcept ImportError as error:\n    print(error)\nelse:\n    print('-')\n"
        for line, *_ in NEEDS
    )
    done = python(code, OPTIONAL)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("number", range(len(NEEDS)), ids=lambda number: NEEDS[number][0])
def test_an_import_names_its_extra_in_one_sentence(messages, number):
    _, extra, what = NEEDS[number]
    pattern = (
        rf"{what} needs [\w, ]+, which (is|are) not installed\. "
        rf"Install the extra '{extra}': pip install 'accelerando\[{extra}\]'"
    )
    assert re.fullmatch(pattern, messages[number])


COMMANDS = {
    "demo": "train",
    "doctor": "train",
    "plan --batch-size 64 --examples 9 --epochs 1 --parameters 9": "train",
    "crowd serve": "crowd",
    "crowd demo": "crowd",
}


def test_a_command_names_its_extra():
    code = f"from accelerando import cli\nfor line in {list(COMMANDS)!r}: cli.main(line.split())\n"
    done = python(code, OPTIONAL)
    said = re.findall(r"pip install 'accelerando\[(\w+)\]'", done.stderr)
    assert said == list(COMMANDS.values()), done.stderr
    assert "Traceback" not in done.stderr


def test_asking_people_needs_nothing_of_training(tmp_path):
    code = (
        "from accelerando import cli\n"
        "from accelerando.crowd import OrdinalEmbedding, simulate, plan\n"
        "from accelerando.crowd.serve import commands, worker, processes, cluster, analysis\n"
        "from accelerando.crowd.web import create_app\n"
        "import numpy as np\n"
        "rows = np.random.default_rng(0).permuted(np.tile(np.arange(6), (60, 1)), axis=1)[:, :3]\n"
        "print(OrdinalEmbedding(n_components=1, random_state=0).fit(rows).embedding_.shape)\n"
        f"print(cli.main(['crowd', 'new', {str(tmp_path / 'new')!r}]))\n"
    )
    done = python(code, set(OPTIONAL) - set(EXTRAS["crowd"]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "(6, 1)"
    assert done.stdout.splitlines()[-1] == "0"


def test_training_and_searching_need_no_web_stack():
    code = (
        "import accelerando as acc\n"
        "from accelerando import NeuralNetClassifier\n"
        "from accelerando.search import HyperbandSearchCV\n"
        "from accelerando.crowd import OrdinalEmbedding\n"  # is fitted without the service
        "from accelerando.demo import _crowd, _search, _train\n"
        "acc.cost, acc.compress, acc.sync, acc.policies, acc.monitor, acc.batch_size\n"
        "print('imported')\n"
    )
    blocked = set(OPTIONAL) - set(EXTRAS["train"]) - {"yaml"}  # Dask needs it, too
    done = python(code, blocked)
    assert done.stdout == "imported\n", done.stderr


def test_a_scheduler_for_the_service_is_refused_before_it_starts(tmp_path):
    code = "from accelerando import cli\ncli.main('crowd serve --scheduler tcp://a:1'.split())"
    done = python(code, {"dask", "distributed"})
    assert "--scheduler needs dask and distributed" in done.stderr
    assert "pip install 'accelerando[search]'" in done.stderr


def test_several_missing_packages_are_one_sentence(monkeypatch):
    monkeypatch.setitem(EXTRAS, "odd", ("no_a", "no_b", "no_c"))
    with pytest.raises(MissingExtraError) as raised:
        require("odd", "It")
    assert str(raised.value) == (
        "It needs no_a, no_b and no_c, which are not installed. "
        "Install the extra 'odd': pip install 'accelerando[odd]'"
    )
    assert raised.value.name == "no_a"
    with pytest.raises(MissingExtraError, match=r"^It needs no_b, which is not installed\. "):
        require("odd", "It", "no_b")
    require("odd", "It", "numpy")
    assert isinstance(raised.value, ImportError)
    assert isinstance(raised.value, AccelerandoError)  # the command line shows it without traceback


def test_what_is_installed_is_not_refused():
    for extra in EXTRAS:
        require(extra, "It")


DISTRIBUTIONS = packages_distributions()  # takes seconds
# The service works without these.
DISPENSABLE = {"uvloop", "httptools", "psycopg", "pillow-heif"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_of_an_extra_are_those_of_pyproject(extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    lines = optional["train"] if extra == "search" else optional[extra]
    wanted = {re.match(r"[\w.-]+", line)[0].lower() for line in lines} - {"accelerando"}
    names = {
        distribution.lower() for package in EXTRAS[extra] for distribution in DISTRIBUTIONS[package]
    }
    assert wanted - DISPENSABLE == names
