"""The private names of scikit-learn that accelerando depends on."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import check_scoring, get_scorer

from accelerando import _sklearn


@pytest.mark.parametrize(
    "data", [np.arange(6).reshape(3, 2), pd.DataFrame({"a": [1, 2, 3]}), sparse.eye(3).tocsr()]
)
def test_safe_indexing_takes_rows_of_every_container(data):
    assert _sklearn.take_rows(data, [0, 2]).shape[0] == 2, "sklearn.utils._safe_indexing changed"


def test_safe_indexing_takes_rows_of_lists():
    assert _sklearn.take_rows(["a", "b", "c"], [2, 0]) == ["c", "a"]


def test_num_samples_counts_rows_and_refuses_scalars():
    assert _sklearn.count_rows(np.zeros((4, 2))) == 4
    with pytest.raises(TypeError):
        _sklearn.count_rows(3.0)


def test_arrays_and_lists_are_told_from_scalars():
    assert _sklearn.is_arraylike(np.zeros(3)), "sklearn.utils.validation._is_arraylike changed"
    assert _sklearn.is_arraylike([1, 2])
    assert not _sklearn.is_arraylike(3)


def test_scorers_that_predict_are_recognized():
    assert isinstance(get_scorer("accuracy"), _sklearn.BaseScorer)
    assert isinstance(check_scoring(SGDClassifier()), _sklearn.PassthroughScorer)


def test_before_1_9_there_are_no_callbacks_to_call():
    code = (
        "import sys\n"
        "import sklearn.metrics\n"  # uses the callbacks, too
        "sys.modules['sklearn.callback'] = None\n"
        "from accelerando._sklearn import CallbackSupportMixin, with_callbacks\n"
        "task = CallbackSupportMixin()._init_callback_context(max_subtasks=1).subcontext(a=1)\n"
        "task.call_on_fit_task_begin(estimator=None)\n"
        "assert task.call_on_fit_task_end(estimator=None) is False\n"
        "assert with_callbacks(len) is len\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
