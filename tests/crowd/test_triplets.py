import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from accelerando.crowd._triplets import as_triplets, as_weights

queries = arrays(np.int64, st.tuples(st.integers(0, 20), st.just(3)), elements=st.integers(-2, 9))


@given(queries)
def test_rows_are_accepted_unchanged_or_refused_with_their_number(rows):
    good = all(len(set(row)) == 3 and min(row) >= 0 and max(row) < 8 for row in rows.tolist())
    if good:
        assert as_triplets(rows, n_items=8).tolist() == rows.tolist()
    else:
        with pytest.raises(ValueError, match=r"in row \d+ instead"):
            as_triplets(rows, n_items=8)


@given(st.lists(st.tuples(st.permutations(range(5)), st.booleans()), min_size=1, max_size=20))
def test_booleans_and_item_numbers_say_the_same(drawn):
    asked = np.array([order[:3] for order, _ in drawn])
    left = np.array([answer for _, answer in drawn])
    chosen = np.where(left, asked[:, 1], asked[:, 2])
    by_flag, by_item = as_triplets(asked, left), as_triplets(asked, chosen)
    assert by_flag.tolist() == by_item.tolist()
    assert by_flag[:, 1].tolist() == chosen.tolist()


def test_an_answer_that_was_not_asked_for_is_refused():
    with pytest.raises(ValueError, match=r"Got 0 for the query \[0, 1, 2\] in row 1"):
        as_triplets([[0, 1, 2], [0, 1, 2]], [1, 0])


@pytest.mark.parametrize(
    ("rows", "answers", "error", "says"),
    [
        ([[0, 1]], None, ValueError, r"shape \(n, 3\).*Got shape \(1, 2\)"),
        ([[0.5, 1, 2]], None, TypeError, "must contain integers"),
        ([["a", "b", "c"]], None, TypeError, "must contain integers"),
        ([[0, 1, 2]], [True, False], ValueError, "one entry per query"),
        ([[0, 1, 2]], [0.5], TypeError, "Booleans"),
    ],
)
def test_wrong_input_is_named(rows, answers, error, says):
    with pytest.raises(error, match=says):
        as_triplets(rows, answers)


def test_weights_are_checked():
    assert as_weights(None, 2).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match=r"shape \(2,\).* Got shape \(1,\)"):
        as_weights([1.0], 2)
    with pytest.raises(ValueError, match="of at least 0"):
        as_weights([1.0, -1.0], 2)
