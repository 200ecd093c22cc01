"""Whether rows are coupled is found out without false alarms, and without changing anything."""

import copy
import functools
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from accelerando._engine.coupling import (
    Rows,
    cut_rows,
    differ,
    find_coupling,
    is_known_to_be_by_row,
    norm,
    try_losses,
)
from accelerando._engine.trial import evaluate, nothing_changes
from tests._engine.coupled import (
    COUPLED,
    FEATURES,
    IGNORED,
    IMAGES,
    LABELS,
    SEQUENCES,
    WEIGHT,
    WORDS,
    Convolutions,
    Statistics,
    Transformer,
    contrastive,
    dice,
    linear,
    look,
    model_of,
    numbers,
)
from tests._engine.plain import PlainModel


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(6, 12, num_layers=2, dropout=0.4, batch_first=True)
        self.last = nn.Linear(12, 5)

    def forward(self, x):
        return self.last(self.rnn(x)[0][:, -1])


class Random(nn.Module):
    """Noise, a mask, a layer that is skipped at random, and one by NumPy and by Python."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(8, 8) for _ in range(3))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = self.first(x) + 0.1 * torch.randn_like(x) * torch.rand(len(x), 1)
        x = F.dropout(x, 0.3, self.training)
        for skips in (random.random() < 0.5, np.random.rand() < 0.5, torch.rand(()) < 0.5):
            x = x if skips else torch.tanh(self.second(x))
        return self.last(x)[:, :5]


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 3), nn.ModuleList(nn.Linear(8, 5) for _ in range(3))

    def forward(self, x):
        scores = self.gate(x).softmax(1)
        found = torch.zeros(len(x), 5, dtype=x.dtype)
        for number, expert in enumerate(self.experts):
            rows = scores.argmax(1) == number
            if rows.any():
                found[rows] = expert(x[rows]) * scores[rows, number, None]
        return found


ORDINARY = {
    "convolutions, BatchNorm, dropout": (Convolutions, nn.CrossEntropyLoss(), IMAGES, LABELS),
    "transformer": (Transformer, nn.CrossEntropyLoss(), WORDS, LABELS),
    "LSTM": (Recurrent, nn.CrossEntropyLoss(), SEQUENCES, LABELS),
    "randomness": (Random, nn.CrossEntropyLoss(), FEATURES, LABELS),
    "experts": (Experts, nn.CrossEntropyLoss(), FEATURES, LABELS),
    "class weights": (linear, nn.CrossEntropyLoss(weight=WEIGHT), FEATURES, LABELS),
    "ignored targets": (linear, nn.CrossEntropyLoss(ignore_index=-100), FEATURES, IGNORED),
    "smoothing": (
        linear,
        nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=-100, label_smoothing=0.2),
        FEATURES,
        IGNORED,
    ),
    "probabilities": (linear, nn.CrossEntropyLoss(), FEATURES, numbers(64, 5).softmax(1)),
    "large loss": (linear, nn.MSELoss(), 1e4 * FEATURES, 1e8 * numbers(64, 5)),
    "tiny loss": (linear, nn.MSELoss(), 1e-6 * FEATURES, 1e-6 * numbers(64, 5)),
    "divergence": (
        lambda: nn.Sequential(nn.Linear(8, 5), nn.LogSoftmax(1)),
        nn.KLDivLoss(reduction="batchmean"),
        FEATURES,
        numbers(64, 5).softmax(1),
    ),
    "function": (linear, lambda p, y: ((p - y) ** 2).mean() + 3.0, FEATURES, numbers(64, 5)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ORDINARY)
def test_there_are_no_false_alarms(name, dtype):
    module, criterion, X, y = ORDINARY[name]
    module = module if isinstance(module, type) else module()
    assert look(module, copy.deepcopy(criterion), X, y, dtype) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", COUPLED)
def test_coupled_rows_are_found(name, dtype):
    module, criterion, X, y, where = COUPLED[name]
    module = module if isinstance(module, type) else module()
    found = look(module, copy.deepcopy(criterion), X, y, dtype)
    if name == "weak statistics":
        assert found in (where, "loss")  # outputs differ by less than rounding may
    else:
        assert found == where


def test_a_penalty_is_counted_once_per_part_if_the_loss_is_a_sum():
    penalized = model_of(linear(), None)

    class Penalized(nn.CrossEntropyLoss):
        def forward(self, p, y):
            weights = sum((w**2).sum() for w in penalized.module.parameters())
            return super().forward(p, y) + weights

    for reduction, where in (("mean", None), ("sum", "loss")):
        penalized.criterion = Penalized(reduction=reduction)
        sums = reduction == "sum"
        found = find_coupling(penalized, FEATURES, LABELS, sums=sums, repeated=False)
        assert found == where


def test_spectral_norm_may_be_divided_among_ranks_but_not_over_time():
    """Its iteration counts forward passes, whatever the rows are."""
    for repeated, where in ((False, None), (True, "buffers")):
        module = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 5))
        module.parametrizations.weight[0]._u.fill_(0.4)  # not converged yet
        criterion = nn.CrossEntropyLoss()
        assert look(module, criterion, FEATURES, LABELS, repeated=repeated) == where


@pytest.mark.parametrize("criterion", [nn.CrossEntropyLoss(), dice], ids=["mean", "dice"])
@pytest.mark.parametrize("module", [Convolutions, Random, Statistics])
def test_nothing_is_changed(module, criterion):
    X = IMAGES if module is Convolutions else FEATURES
    model = model_of(module, criterion)
    model.module.eval()
    first = next(model.module.parameters())
    first.grad = torch.ones_like(first)
    before = copy.deepcopy(model.module.state_dict()), dict(vars(model.module))
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    expected = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    find_coupling(model, X, LABELS, sums=False, repeated=True)
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected
    after = model.module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before[0].items())
    assert all(after[name].dtype == value.dtype for name, value in before[0].items())
    assert dict(vars(model.module)) == before[1]
    assert not any(part.training for part in model.module.modules())
    assert all("forward" not in vars(part) for part in model.module.modules())
    assert torch.equal(first.grad, torch.ones_like(first))


def test_it_is_deterministic_and_silent_where_it_cannot_look():
    assert look(linear(), contrastive, FEATURES[:1], LABELS[:1]) is None

    def broken(p, y):
        raise RuntimeError("training says so, too")

    assert look(linear(), broken, FEATURES, LABELS) is None
    assert look(linear(), lambda p, y: p.sum() * float("nan"), FEATURES, LABELS) is None


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_shapes_that_do_not_match_compare_all_rows_with_all_rows():
    assert look(nn.Linear(8, 1), nn.MSELoss(), FEATURES, numbers(64)) == "loss"


class Counting(nn.Module):
    """What it keeps, it keeps in objects that belong to other ones."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 5)
        self.kept = {"calls": [0], "drawn": np.zeros(2)}
        self.own = SimpleNamespace(generator=torch.Generator(), numbers={1})
        self.python, self.numpy = random.Random(0), np.random.default_rng(0)

    def forward(self, x):
        self.kept["calls"][0] += 1
        self.kept["drawn"] += self.numpy.random()
        self.own.numbers.add(self.python.random())
        self.own.last = torch.rand((), generator=self.own.generator).item()
        return self.last(x)


def test_objects_inside_of_objects_are_put_back():
    model = model_of(Counting, nn.CrossEntropyLoss())
    state = model.module.own.generator.get_state()
    drawn = random.Random(0).random(), np.random.default_rng(0).random()
    assert find_coupling(model, FEATURES, LABELS, sums=False, repeated=False) is None
    kept, own = model.module.kept, model.module.own
    assert kept["calls"] == [0]
    assert not kept["drawn"].any()
    assert vars(own).keys() == {"generator", "numbers"}
    assert own.numbers == {1}
    assert torch.equal(own.generator.get_state(), state)
    assert (model.module.python.random(), model.module.numpy.random()) == drawn


def test_fewer_rows_are_tried_if_a_module_cannot_take_all():
    class Twenty(Statistics):
        def forward(self, x):
            return super().forward(x.reshape(20, 8))

    model = model_of(Twenty, nn.CrossEntropyLoss())
    look = functools.partial(find_coupling, model, FEATURES, LABELS, sums=False, repeated=False)
    assert look() is None
    assert look(batch_size=20) == "module"


def test_modules_that_are_known_need_no_look():
    assert is_known_to_be_by_row(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert not is_known_to_be_by_row(Statistics())


@pytest.mark.parametrize(
    ("layer", "known"),
    [
        (nn.Flatten(), True),
        (nn.Flatten(2), True),
        (nn.Flatten(0), False),
        (nn.Flatten(-2), False),  # of a matrix, all of it
        (nn.Softmax(dim=1), True),
        (nn.Softmax(dim=0), False),
        (nn.Softmax(), False),  # of three dimensions, over the rows
        (nn.LogSoftmax(dim=1), True),
        (nn.LogSoftmax(dim=-1), False),
    ],
    ids=repr,
)
def test_layers_of_other_dimensions_than_that_of_the_rows_are_known(layer, known):
    assert is_known_to_be_by_row(nn.Sequential(nn.Linear(2, 2), layer)) is known


class CountsCalls(nn.Linear):
    """Raises in its third call, whatever the rows are."""

    def __init__(self):
        super().__init__(4, 1)
        self.calls = 1

    def forward(self, x):
        self.calls += 1
        if self.calls == 3:
            raise ValueError("an error of mine")
        return super().forward(x)


@pytest.mark.parametrize("repeated", [False, True])
def test_an_error_that_does_not_depend_on_the_rows_is_no_coupling(repeated):
    X = numbers(16, 4)
    assert look(CountsCalls, nn.MSELoss(), X, X[:, :1], repeated=repeated) is None


# -- rows and their parts --------------------------------------------------------------------------

X = torch.arange(24, dtype=torch.float64).reshape(8, 3) / 10
Y = torch.linspace(-1, 1, 8, dtype=torch.float64)[:, None]
BATCH = Rows(X, Y, cut_rows([X, Y], [0, 3, 8]))


def plain(criterion):
    torch.manual_seed(0)
    module = nn.Linear(3, 1).double()
    return PlainModel(module, criterion, torch.optim.SGD(module.parameters(), lr=0.1))


def test_rows_are_cut_without_a_rest():
    assert BATCH.rows == 8
    assert [rows for _, _, rows in BATCH.parts] == [3, 5]
    assert torch.equal(torch.cat([x for x, _, _ in BATCH.parts]), X)
    assert torch.equal(torch.cat([y for _, y, _ in BATCH.parts]), Y)


def test_rows_become_double_and_integers_stay():
    rows = Rows(X.float(), torch.arange(8), cut_rows([X.float(), torch.arange(8)], [0, 3, 8]))
    wide = rows.in_double_precision()
    assert (wide.X.dtype, wide.y.dtype) == (torch.float64, torch.int64)
    assert [(x.dtype, rows) for x, _, rows in wide.parts] == [
        (torch.float64, 3),
        (torch.float64, 5),
    ]


def test_the_gradient_of_a_batch_is_the_mean_of_those_of_its_rows():
    model = plain(nn.MSELoss())
    with nothing_changes(model) as reset:
        whole = evaluate(model, X, Y, reset)
        parts = [evaluate(model, x, y, reset) for x, y, _ in BATCH.parts]
    mean = [3 / 8 * a + 5 / 8 * b for a, b in zip(*(part.gradient for part in parts), strict=True)]
    assert not differ(whole.gradient, mean)
    assert torch.isclose(whole.loss, 3 / 8 * parts[0].loss + 5 / 8 * parts[1].loss)


def test_rounding_is_no_difference():
    one = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert not differ([one], [one + 1e-10])
    assert differ([one], [one + 1e-8])
    assert not differ([one.float()], [one.float() + 1e-4])
    assert differ([one], [one[:1]])
    assert norm([one, 2 * one]) == pytest.approx(5.0)
    assert norm([]) == 0.0


def bent(y_pred, y):
    return (((y_pred - y) ** 2).mean() - 0.5).abs() + 0.5


@pytest.mark.parametrize(("criterion", "apart"), [(nn.MSELoss(), False), (bent, True)])
def test_losses_that_bend_are_found_with_other_predictions(criterion, apart):
    model = plain(criterion)
    with nothing_changes(model) as reset, torch.no_grad():
        found = try_losses(model, BATCH, model.module(X), False, reset)
    assert math.isfinite(found)
    assert (found > 1e-6) == apart
