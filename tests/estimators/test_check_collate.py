"""A collate function may change single rows and pad them, and may not mix them."""

import numpy as np
import pytest
import torch

from accelerando.estimators._check_collate import _same_rows, check_collate
from accelerando.exceptions import UnsupportedError


class Rows:
    """A feed of ten rows, which a collate function turns into batches."""

    def __init__(self, collate, n_examples=10):
        self.collate, self.n_examples = collate, n_examples

    def gather(self, rows):
        return self.collate([(torch.full((2,), float(row)), int(row)) for row in np.asarray(rows)])


def stacked(items):
    return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])


def mixed_up(items):
    x, y = stacked(items)
    return 0.7 * x + 0.3 * x.flip(0), y


def with_one_random_number_per_row(items):
    x, y = stacked(items)
    return x + torch.rand(len(x), 1), y


def padded(items):
    x, y = stacked(items)
    return torch.nn.functional.pad(x, (0, len(items))), y


def as_lists(items):
    return [str(x) for x, _ in items], [y for _, y in items]


@pytest.mark.parametrize("collate", [mixed_up, with_one_random_number_per_row])
def test_rows_that_depend_on_others_are_refused(collate):
    with pytest.raises(UnsupportedError, match=r"collate_fn .* depends on the other rows"):
        check_collate(Rows(collate))


@pytest.mark.parametrize("collate", [stacked, padded, as_lists])
def test_single_rows_padding_and_what_is_no_tensor_pass(collate):
    check_collate(Rows(collate))


@pytest.mark.parametrize("n_examples", [None, 0, 1])
def test_a_stream_and_a_single_row_have_no_rows_to_compare(n_examples):
    check_collate(Rows(mixed_up, n_examples))


def test_padding_is_one_number():
    row = torch.tensor([[1.0, 2.0]])
    assert _same_rows(torch.tensor([[1.0, 2.0, 0.0, 0.0]]), row)
    assert not _same_rows(torch.tensor([[1.0, 2.0, 0.0, 3.0]]), row)
    assert not _same_rows(torch.tensor([[1.0, 9.0, 0.0, 0.0]]), row)
