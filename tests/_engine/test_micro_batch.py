"""The size of micro-batches, and the loss of a batch from the losses of its parts."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from accelerando._engine.micro_batch import (
    MicroBatch,
    check_weightable,
    couples_rows,
    every_row_counts,
    is_mean_over_rows,
    kept_bytes,
    mass,
    rows_for,
    share_of,
    weighted_loss,
)
from accelerando.exceptions import UnsupportedError

# -- size --------------------------------------------------------------------------------------


def weighed(**settings):
    micro = MicroBatch(**settings)
    micro.weigh(kept=64 * 140_000, rows=64)
    return micro


def test_kept_bytes_counts_views_and_not_parameters():
    layer = nn.Linear(10, 20)
    x = torch.randn(64, 10)[:32]
    with kept_bytes(layer) as kept:
        torch.relu(layer(x)).sum()
    assert kept[0] == 32 * 10 * 4 + 32 * 20 * 4


def test_kept_bytes_counts_a_tensor_once():
    """The second layer saves its weight, and the output of ReLU, which ReLU has saved already."""
    layers = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1))
    with kept_bytes(layers) as kept:
        layers(torch.randn(32, 10)).sum()
    assert kept[0] == 32 * 10 * 4 + 32 * 20 * 4


@settings(deadline=None)
@given(st.floats(0, 2**40))
def test_a_micro_batch_keeps_at_most_32_mebibytes(bytes_per_row):
    rows = rows_for(bytes_per_row)
    assert rows & (rows - 1) == 0
    assert rows >= 32
    assert rows == 32 or rows * bytes_per_row <= 32 * 2**20
    assert 2 * rows * max(1.0, bytes_per_row) > 32 * 2**20


def test_the_first_micro_batch_decides_the_size():
    micro = MicroBatch()
    module = nn.Sequential(nn.Linear(10, 700 * 64), nn.ReLU())
    assert micro.probing
    assert micro.size(480) == 64
    with micro.weighing(module, 64):
        module(torch.randn(64, 10)).sum()
    assert not micro.probing
    assert micro.size(480) == micro.rows == rows_for(700 * 64 * 4 + 40) == 128
    with micro.weighing(module, 1):
        module(torch.randn(1, 10)).sum()
    assert micro.rows == 128
    assert micro.seconds == {}


def test_a_failed_probe_decides_nothing():
    micro = MicroBatch()
    with pytest.raises(ZeroDivisionError), micro.weighing(nn.Linear(1, 1), 64):
        1 / 0  # noqa: B018
    assert micro.probing


def test_given_sizes_are_not_questioned():
    assert MicroBatch(fixed=30).size(480) == 30
    assert MicroBatch(whole=True).size(480) == 480
    assert MicroBatch(whole=True, fixed=30).size(480) == 480
    assert not MicroBatch(fixed=30).probing
    assert not MicroBatch(whole=True).probing


def test_the_fastest_candidate_wins_if_it_is_worth_it():
    micro = MicroBatch(timed=True)
    assert micro.probing
    assert micro.size(4096) == 64
    micro.weigh(kept=64 * 140_000, rows=64)
    assert micro.rows == 128
    seconds = {64: 1.0, 128: 0.9, 256: 0.5, 512: 0.7}
    for _ in range(8):
        used = micro.size(4096)
        micro.observe(4096, seconds[used])
    assert micro.rows == micro.size(4096) == 256
    assert micro.seconds == {}


def test_no_candidate_wins_by_a_hair():
    micro = weighed(timed=True)
    while micro.seconds:
        micro.observe(4096, 0.97 if micro.size(4096) == 256 else 1.0)
    assert micro.rows == 128


def test_the_faster_of_two_trials_counts():
    micro = weighed(timed=True)
    slow_first = {64: [9.0, 1.0], 128: [9.0, 1.0], 256: [9.0, 0.5], 512: [9.0, 1.0]}
    while micro.seconds:
        micro.observe(4096, slow_first[micro.size(4096)].pop(0))
    assert micro.rows == 256


def test_batches_too_small_to_divide_teach_nothing():
    micro = weighed(timed=True)
    for _ in range(20):
        assert micro.size(60) == 128
        micro.observe(60, 1.0)
    assert all(times == [] for times in micro.seconds.values())


def test_a_seeded_run_is_not_timed():
    micro = weighed(timed=False)
    for _ in range(10):
        assert micro.size(4096) == 128
        micro.observe(4096, 0.001)
    assert micro.seconds == {}


def test_the_choice_survives_saving():
    micro = weighed(timed=True)
    micro.size(4096)
    micro.observe(4096, 4.096)
    restored = MicroBatch(timed=True)
    restored.from_json(json.loads(json.dumps(micro.to_json())))
    assert restored.rows == 128
    assert restored.seconds == {64: [0.001], 128: [], 256: [], 512: []}
    assert restored.size(4096) == micro.size(4096) == 64


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.BatchNorm3d(2), nn.SyncBatchNorm(2)]
)
def test_batch_norm_couples_rows(layer):
    assert couples_rows(nn.Sequential(nn.Sequential(layer)))


@pytest.mark.parametrize("layer", [nn.Linear(2, 2), nn.GroupNorm(1, 2), nn.LayerNorm(2)])
def test_other_layers_do_not_couple_rows(layer):
    assert not couples_rows(layer)


# -- mass and share ----------------------------------------------------------------------------

CRITERIA = {
    "mean": (nn.CrossEntropyLoss(), 5),
    "class weights": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.5, 3.0])), 9),
    "ignored target": (nn.CrossEntropyLoss(ignore_index=2), 3),
    "both": (nn.NLLLoss(weight=torch.tensor([1.0, 0.5, 3.0]), ignore_index=2), 3),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), 5),
}
Y = torch.tensor([0, 2, 0, 0, 2])


@pytest.mark.parametrize("name", CRITERIA)
def test_mass_is_what_the_loss_divides_by(name):
    criterion, expected = CRITERIA[name]
    assert mass(criterion, Y, 5) == expected


@pytest.mark.parametrize("name", CRITERIA)
def test_parts_add_up_to_the_loss_of_the_batch(name):
    criterion, _ = CRITERIA[name]
    torch.manual_seed(0)
    outputs = torch.randn(5, 3, dtype=torch.float64).log_softmax(1)
    if criterion.weight is not None:
        criterion = type(criterion)(criterion.weight.double(), ignore_index=criterion.ignore_index)
    whole = mass(criterion, Y, 5)
    total = sum(
        criterion(outputs[part], Y[part]) * share_of(criterion, Y[part], len(Y[part]), whole)
        for part in (slice(0, 3), slice(3, 5))
    )
    torch.testing.assert_close(total, criterion(outputs, Y))


def test_probabilities_and_other_losses_count_rows():
    assert mass(nn.CrossEntropyLoss(ignore_index=0), torch.zeros(4, 3), 4) == 4
    assert mass(nn.CrossEntropyLoss(), ["no tensor"], 1) == 1
    assert mass(nn.MSELoss(), torch.zeros(4, 3), 4) == 4
    assert share_of(nn.MSELoss(), torch.zeros(1), 1, 4) == 0.25
    assert share_of(nn.MSELoss(reduction="sum"), torch.zeros(1), 1, 4) == 1
    assert share_of(nn.CrossEntropyLoss(ignore_index=0), torch.zeros(2).long(), 2, 0.0) == 1


def test_where_every_row_counts():
    assert every_row_counts(nn.MSELoss(), None)
    assert not every_row_counts(nn.MSELoss(reduction="sum"), None)
    assert every_row_counts(nn.CrossEntropyLoss(), Y)
    assert every_row_counts(nn.CrossEntropyLoss(ignore_index=2), torch.zeros(3, 3))
    assert not every_row_counts(nn.CrossEntropyLoss(ignore_index=2), Y)
    assert not every_row_counts(nn.CrossEntropyLoss(weight=torch.ones(3)), Y)
    assert not every_row_counts(nn.CrossEntropyLoss(), None)


def test_which_losses_are_known_to_be_means():
    class Contrast(nn.Module):
        def forward(self, y_pred, y):
            return (y_pred @ y_pred.T).square().mean()

    assert is_mean_over_rows(nn.HuberLoss())
    assert is_mean_over_rows(nn.NLLLoss(reduction="sum"))
    assert not is_mean_over_rows(nn.MSELoss(reduction="none"))
    assert not is_mean_over_rows(Contrast())


# -- weights -----------------------------------------------------------------------------------


def loss_of(criterion, y_pred, y, weights):
    return weighted_loss(criterion, lambda: criterion(y_pred, y), y, weights, len(y))


@pytest.mark.parametrize("shape", [(6,), (6, 2), (6, 2, 3)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_equal_weights_change_nothing(shape, reduction):
    torch.manual_seed(0)
    y_pred, y = torch.randn(shape), torch.randn(shape)
    criterion = nn.MSELoss(reduction=reduction)
    torch.testing.assert_close(loss_of(criterion, y_pred, y, torch.ones(6)), criterion(y_pred, y))
    assert criterion.reduction == reduction


def test_a_weight_of_two_is_a_row_twice():
    y_pred, y = torch.randn(4, 1), torch.randn(4, 1)
    criterion = nn.MSELoss()
    twice = criterion(y_pred[[0, 0, 1, 2, 3]], y[[0, 0, 1, 2, 3]])
    weights = torch.tensor([2.0, 1.0, 1.0, 1.0]) * 4 / 5  # the mean is one
    torch.testing.assert_close(loss_of(criterion, y_pred, y, weights), twice)


@pytest.mark.parametrize("name", ["mean", "class weights", "ignored target", "both", "sum"])
def test_equal_weights_with_masses(name):
    criterion, _ = CRITERIA[name]
    outputs = torch.randn(5, 3).log_softmax(1)
    torch.testing.assert_close(loss_of(criterion, outputs, Y, torch.ones(5)), criterion(outputs, Y))


def test_targets_with_several_positions_are_summed_by_their_mass():
    criterion = nn.CrossEntropyLoss(ignore_index=0)
    outputs, y = torch.randn(4, 3, 5), torch.randint(3, (4, 5))
    torch.testing.assert_close(loss_of(criterion, outputs, y, torch.ones(4)), criterion(outputs, y))


def test_an_error_restores_the_reduction():
    criterion = nn.MSELoss()
    with pytest.raises(ZeroDivisionError):
        weighted_loss(criterion, lambda: 1 / 0, torch.zeros(2), torch.ones(2), 2)
    assert criterion.reduction == "mean"


def test_criteria_without_losses_of_examples_are_refused():
    class Own(nn.Module):
        pass

    check_weightable(nn.MSELoss())
    with pytest.raises(UnsupportedError, match="Own has no 'reduction'"):
        check_weightable(Own())
    with pytest.raises(UnsupportedError, match="Own has no 'reduction'"):
        check_weightable(type("Own", (), {"reduction": "none"})())
    for shape in ((), (3,)):
        with pytest.raises(UnsupportedError, match="one loss per example: MSELoss"):
            weighted_loss(
                nn.MSELoss(), lambda shape=shape: torch.ones(shape), None, torch.ones(2), 2
            )
