import io
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerando.crowd import read_answers
from accelerando.crowd._read import from_arrays, read_csv

SALMON = """head,left,right,winner,sampler,score,puid,response_time,loser,head_filename,winner_html
3,1,2,2,random,-9999,anna,1.2,1,i3.png,<b>two</b>
1,3,2,3,arr,0.4,ben,0.9,2,,
"""


def read(text):
    return read_csv(io.StringIO(text))


def test_salmons_responses_are_read_with_names_participants_and_what_was_random():
    answers = read(SALMON)
    assert answers.items == ["1", "2", "3"]
    assert answers.triplets.tolist() == [[2, 1, 0], [0, 2, 1]]
    assert answers.at_random.tolist() == [True, False]
    assert answers.participants == 2
    assert answers.names == {"3": "i3.png", "2": "<b>two</b>"}
    assert answers.problems == []


def test_our_export_may_name_items():
    answers = read("participant,head,winner,loser,at_random\n7,pear,apple,brick,true\n")
    assert answers.items == ["apple", "brick", "pear"]
    assert answers.triplets.tolist() == [[2, 0, 1]]
    assert answers.at_random.tolist() == [True]


def test_rows_that_the_service_does_not_use_are_left_out_and_counted():
    answers = read(
        "participant,kind,head,winner,loser,blocked\n"
        "1,query,0,1,2,false\n"
        "1,check,0,1,2,false\n"
        "1,repeat,0,2,1,false\n"
        "2,query,0,2,1,true\n"
        "2,check,0,2,1,true\n"
        "3,query,1,2,0,false\n"
    )
    assert answers.triplets.tolist() == [[0, 1, 2], [1, 2, 0]]
    assert answers.left_out == {"check": 1, "repeat": 1, "blocked": 2}
    assert answers.participants == 2
    assert answers.problems == []


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,2,0", "column winner is empty"),
        (",1,2,1", "column head is empty"),
        ("0,1,2,5", "The winner 5 is neither left (1) nor right (2)"),
        ("1,1,2,2", "three different items. Got 1, 2, 1"),
        ("-1,1,2,2", "an integer of at least 0. Got '-1'"),
        ("0.5,1,2,2", "Got '0.5'"),
        ("x,1,2,2", "Got 'x'"),
    ],
)
def test_a_bad_row_is_reported_with_its_line_and_the_others_are_kept(row, reason):
    answers = read(f"head,left,right,winner\n0,1,2,1\n{row}\n2,1,0,0\n")
    assert len(answers.triplets) == 2
    assert [problem.line for problem in answers.problems] == [3]
    assert reason in answers.problems[0].reason


def test_a_loser_that_was_not_asked_about_is_reported():
    answers = read("head,left,right,winner,loser\n0,1,2,1,2\n0,1,2,1,3\n0,1,2,2,\n")
    assert answers.triplets.tolist() == [[0, 1, 2], [0, 2, 1]]
    (problem,) = answers.problems
    assert problem.line == 3
    assert problem.reason == "The loser 3 is not the other item of the query, 2."


def test_a_row_broken_over_lines_is_reported_where_it_ends():
    answers = read('head,winner,loser\n0,"1\n",2\n0,0,0\n')
    assert [problem.line for problem in answers.problems] == [4]
    assert len(answers.triplets) == 1


def test_a_huge_item_number_costs_no_memory():
    answers = read("head,winner,loser\n0,1,999999999999\n")
    assert answers.items == ["0", "1", "999999999999"]


def test_a_header_without_the_columns_says_what_is_needed():
    with pytest.raises(ValueError, match=r"head, winner, loser or .* Got a, b"):
        read("a,b\n1,2\n")
    with pytest.raises(ValueError, match="Got no header"):
        read("")


cells = st.one_of(
    st.integers(-2, 6).map(str), st.sampled_from(["", "x", " 3 ", '"', "1,2", "\x00"])
)


@given(st.lists(st.lists(cells, min_size=1, max_size=5), max_size=15))
def test_every_row_is_an_answer_or_a_problem(rows):
    stream = io.StringIO()
    stream.write("head,winner,loser\n")
    for row in rows:
        quoted = ['"' + cell.replace('"', '""') + '"' for cell in row]
        stream.write(",".join(quoted) + "\n")
    stream.seek(0)
    answers = read_csv(stream)
    assert len(answers.triplets) + len(answers.problems) == len(rows)
    assert len(answers.at_random) == len(answers.triplets)
    for head, winner, loser in answers.triplets.tolist():
        assert len({head, winner, loser}) == 3
        assert max(head, winner, loser) < len(answers.items)


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused_in_words(text):
    try:
        read("head,winner,loser\n" + text)
    except ValueError as error:
        assert "must have the columns" in str(error)  # noqa: PT017


def test_arrays_as_cblearn_has_them(tmp_path):
    order = np.array([[0, 1, 2], [2, 1, 0]])
    np.save(tmp_path / "order.npy", order)
    assert read_answers(tmp_path / "order.npy").triplets.tolist() == order.tolist()
    np.savez(tmp_path / "pairs.npz", queries=order, responses=np.array([1, -1]))
    assert read_answers(tmp_path / "pairs.npz").triplets.tolist() == [[0, 1, 2], [2, 0, 1]]
    np.savez(tmp_path / "flags.npz", queries=order, responses=np.array([False, True]))
    assert read_answers(tmp_path / "flags.npz").triplets.tolist() == [[0, 2, 1], [2, 1, 0]]
    np.savez(tmp_path / "named.npz", triplets=order)
    assert read_answers(tmp_path / "named.npz").triplets.tolist() == order.tolist()


def test_bad_rows_of_arrays_are_reported_too():
    rows = np.array([[0, 1, 2], [0, 0, 2], [0, 1, 2], [-1, 1, 2]])
    answers = from_arrays(rows, np.array([1, 1, 0, 1]))
    assert answers.triplets.tolist() == [[0, 1, 2]]
    assert [problem.line for problem in answers.problems] == [2, 3, 4]
    with pytest.raises(ValueError, match=r"shape \(n, 3\)"):
        from_arrays(np.zeros((4, 2)))
    with pytest.raises(ValueError, match="one entry per query"):
        from_arrays(rows, np.array([1]))


def test_a_pickle_in_an_array_file_is_refused(tmp_path):
    with (tmp_path / "evil.npy").open("wb") as stream:
        pickle.dump([[0, 1, 2]], stream)
    with pytest.raises(ValueError, match="pickled"):
        read_answers(tmp_path / "evil.npy")
    np.savez(tmp_path / "other.npz", something=np.zeros(3))
    with pytest.raises(ValueError, match=r"'queries' and 'responses'. Got \['something'\]"):
        read_answers(tmp_path / "other.npz")
