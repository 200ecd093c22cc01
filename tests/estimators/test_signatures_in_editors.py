"""An editor knows the parameters: pyright finds wrong constructor calls, and nothing in right ones.

A misspelled name is found by ``fit``, with a suggestion: ``module__x`` and its like are open.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import accelerando

HEAD = """
import torch
from functools import partial
from skorch.callbacks import EarlyStopping
from skorch.dataset import ValidSplit
from torch import nn
from accelerando import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier
from accelerando import NeuralNetRegressor
from accelerando.batch_size import GeoDamp
from accelerando.compress import QSGD
from accelerando.sync import PeriodicAveraging


class Net(nn.Module):
    def __init__(self, hidden: int = 4) -> None:
        super().__init__()


"""
WRONG = [
    "NeuralNetClassifier()",
    "NeuralNet(Net)",
    "NeuralNetClassifier(Net, nn.CrossEntropyLoss)",
    'NeuralNetClassifier("Net")',
    'NeuralNetClassifier(Net, lr="0.1")',
    "NeuralNetRegressor(Net, max_epochs=1.5)",
    'NeuralNetRegressor(Net, batch_size="32")',
    'NeuralNetBinaryClassifier(Net, optimizer="sgd")',
    "NeuralNetClassifier(Net, train_split=0.2)",
    'NeuralNetClassifier(Net, data="sharded")',
]
RIGHT = [
    "NeuralNetClassifier(Net)",
    "NeuralNet(Net, nn.MSELoss)",
    "NeuralNetClassifier(Net(), criterion=nn.CrossEntropyLoss(), lr=0.1, device=None)",
    'NeuralNetClassifier(partial(Net, hidden=3), criterion="auto", lr="auto", device="cuda")',
    "NeuralNetRegressor(module=Net, module__hidden=8, max_epochs=3, train_split=ValidSplit(5))",
    "NeuralNetRegressor(Net, batch_size=GeoDamp(initial=32), optimizer=torch.optim.Adam)",
    "NeuralNetRegressor(Net, batch_size=GeoDamp, batch_size__initial=32, train_split=None)",
    "NeuralNetRegressor(Net, batch_size=lambda signals: 32, callbacks=[EarlyStopping()])",
    "NeuralNetBinaryClassifier(Net, optimizer=partial(torch.optim.SGD, momentum=0.9))",
    'NeuralNetClassifier(Net, compression=QSGD, sync=PeriodicAveraging(2), data="shard")',
]


def lines_with_errors(folder, calls):
    """Return for each call whether pyright reports an error on its line."""
    pytest.importorskip("basedpyright", reason="install the extra 'dev'")
    script = folder / "script.py"
    script.write_text(HEAD + "\n".join(calls) + "\n")
    source = str(Path(accelerando.__file__).parents[1])
    (folder / "pyrightconfig.json").write_text(
        json.dumps(
            {"typeCheckingMode": "standard", "extraPaths": [source], "include": ["script.py"]}
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1, done.stdout
    first = HEAD.count("\n")
    errors = [one for one in report["generalDiagnostics"] if one["severity"] == "error"]
    found = {one["range"]["start"]["line"] - first for one in errors}
    assert found <= set(range(len(calls))), errors
    return [number in found for number in range(len(calls))]


@pytest.mark.timeout(300)
def test_pyright_finds_ten_wrong_calls_and_accepts_right_ones(tmp_path):
    found = lines_with_errors(tmp_path, [*WRONG, *RIGHT])
    assert found == [True] * len(WRONG) + [False] * len(RIGHT)
