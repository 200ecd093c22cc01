"""The table and the sentences of a comparison."""

import pytest
from rich.console import Console

from accelerando.cost import Network, compare, plan
from accelerando.cost._report import table, volume, words

SMALL = {"n_examples": 640, "max_epochs": 2, "parameters": 250_000, "seconds_per_example": 1.0}


def text(comparison):
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table(comparison))
    return captured.get()


def test_the_table_has_one_row_per_number_of_workers_and_marks_the_knee():
    planned = plan(64, **SMALL, examples_per_worker=16, network=Network(1e9))
    shown = text(compare(planned, [1, 2, 4]))
    assert "20 updates, 2 epochs" in shown
    rows = [line.split("│")[1:-1] for line in shown.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["1", "2", "4 *"]
    assert [row[5].strip() for row in rows] == ["0 B", "40.0 MB", "120.0 MB"]
    assert "price" not in shown


def test_a_price_gets_a_column():
    planned = plan(64, **SMALL, price_per_worker_hour=9.0)
    assert "3.2 $" in text(compare(planned, [1]))


def test_the_sentences_name_the_knee_and_the_workers_that_no_batch_uses():
    planned = plan(64, **SMALL, examples_per_worker=32)
    first, knee, unused = words(compare(planned, [1, 2, 8]))
    assert first.startswith("With 1 worker 21 min; with 2 workers 11 min")
    assert knee.startswith("* The knee is at 2: ")
    assert unused == "No batch uses more than 2 workers at 32 examples per worker."
    assert len(words(compare(planned, [1]))) == 1


@pytest.mark.parametrize(
    ("size", "shown"), [(999, "999 B"), (1000, "1.0 kB"), (2.5e15, "2,500.0 TB")]
)
def test_volumes_have_units(size, shown):
    assert volume(size) == shown
