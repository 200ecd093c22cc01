"""Whether rows are coupled is found out without false alarms, and without changing anything."""

import copy
import functools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from accelerando._engine.coupling import find_coupling, is_known_to_be_by_row
from accelerando._engine.model import PlainModel


def model_of(module, criterion, dtype=torch.float32):
    torch.manual_seed(0)
    module = module() if isinstance(module, type) else module
    module = module.to(dtype)
    if isinstance(criterion, nn.Module):
        criterion = criterion.to(dtype)
    return PlainModel(module, criterion, torch.optim.SGD(module.parameters(), lr=0.1))


def look(module, criterion, X, y, dtype=torch.float32, *, sums=False, repeated=False):
    X = X.to(dtype) if X.is_floating_point() else X
    y = y.to(dtype) if y.is_floating_point() else y
    return find_coupling(model_of(module, criterion, dtype), X, y, sums=sums, repeated=repeated)


def numbers(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout2d(0.3),
            nn.Conv2d(16, 32, 3), nn.InstanceNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3), nn.GroupNorm(4, 32), nn.Flatten(), nn.Dropout(0.5),
            nn.Linear(32 * 9, 5),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


class Transformer(nn.Module):
    def __init__(self, batch_first=True):
        super().__init__()
        self.words = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(16, 5)

    def forward(self, x):
        return self.last(self.encoder(self.words(x)).mean(1))


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


LABELS = torch.arange(64) % 5
IMAGES, FEATURES = numbers(64, 3, 12, 12), numbers(64, 8)
WORDS = torch.arange(64 * 7).reshape(64, 7) % 50
SEQUENCES = numbers(64, 9, 6)
IGNORED = torch.where(torch.arange(64) % 3 == 0, -100, LABELS)
WEIGHT = torch.tensor([0.1, 1.0, 2.0, 5.0, 30.0])


def linear():
    return nn.Linear(8, 5)


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


def contrastive(p, y):
    p = F.normalize(p, dim=1)
    return F.cross_entropy(p @ p.T / 0.5 - 1e3 * torch.eye(len(p), dtype=p.dtype), y % 2)


def supervised_contrastive(p, y):
    p = F.normalize(p, dim=1)
    own = torch.eye(len(p), dtype=torch.bool)
    scores = (p @ p.T / 0.5).masked_fill(own, -1e9).log_softmax(1)
    same = (y[:, None] == y[None]) & ~own
    return -(scores * same).sum(1).div(same.sum(1).clamp(min=1)).mean()


def hardest_triplets(p, y):
    apart = torch.cdist(p, p + 1e-3)
    same = y[:, None] == y[None]
    far = apart.masked_fill(~same, 0).amax(1)
    near = apart.masked_fill(same, 1e9).amin(1)
    return F.relu(far - near + 1.0).mean()


def dice(p, y):
    p, t = p.sigmoid(), F.one_hot(y, 5)
    return 1 - 2 * (p * t).sum() / (p.sum() + t.sum())


def by_the_maximum(p, y):
    return ((p / p.detach().abs().max() - F.one_hot(y, 5)) ** 2).mean()


def over_valid(p, y):
    valid = y != -100
    return ((p[valid] - 1.0) ** 2).mean()


class MemoryBank(nn.Module):
    def __init__(self):
        super().__init__()
        self.bank = torch.zeros(5)

    def forward(self, p, y):
        loss = ((p - self.bank.to(p)) ** 2).mean()
        self.bank = 0.9 * self.bank + 0.1 * p.detach().mean(0)
        return loss


class Statistics(nn.Module):
    def __init__(self, share=1.0):
        super().__init__()
        self.last, self.share = nn.Linear(8, 5), share

    def forward(self, x):
        return self.last((x - self.share * x.mean(0)) / (1 + self.share * x.std(0)))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 5)

    def forward(self, x):
        return self.last(0.7 * x + 0.3 * x[torch.randperm(len(x))])


class RunningMean(nn.Module):
    """The loss is divided by the mean of the losses before, a plain number in a dictionary."""

    def __init__(self):
        super().__init__()
        self.seen = {"losses": [1.0]}

    def forward(self, p, y):
        loss = F.cross_entropy(p, y) / (sum(self.seen["losses"]) / len(self.seen["losses"]))
        self.seen["losses"].append(float(loss.detach()))
        return loss


class Pairs(nn.Module):
    """Two neighboring rows belong together."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 5)

    def forward(self, x):
        pairs = x.view(-1, 2, 8)
        return self.last((pairs + pairs.flip(1)).reshape(-1, 8))


class HalvedNorm(nn.BatchNorm1d):
    def forward(self, x):
        return 0.5 * super().forward(x)


def hooked(register):
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 5))
    register(module)
    return module


def center(layer, args, output):
    return output - output.mean(0)


def own_forward(module):
    module[0].forward = lambda x: x - x.mean(0)


def look_at_gradient(module):
    module[0].weight.register_post_accumulate_grad_hook(lambda p: None)


class CenteredMSE(nn.MSELoss):
    def forward(self, p, y):
        return super().forward(p - p.mean(0), y)


def flooded(p, y):
    return (F.cross_entropy(p, y) - 0.1).abs() + 0.1


def flooded_high(p, y):
    return (F.cross_entropy(p, y) - 0.4).abs() + 0.4


def capped(p, y):
    return F.cross_entropy(p, y).clamp(max=3.0)


def doubled_when_small(p, y):
    loss = F.cross_entropy(p, y)
    return loss * 2 if loss.item() < 0.2 else loss


def weighted_by_class(p, y):
    return F.cross_entropy(p, y, weight=torch.tensor([0.3, 1.7, 1.0, 1.0, 1.0]).to(p))


def valid_targets(p, y):
    return F.cross_entropy(p, y, ignore_index=-100)


TURNS = torch.arange(64) % 2  # both parts have the same share of each class
SKIPPED = torch.where(torch.arange(64) % 4 == 0, -100, TURNS)
COUPLED = {
    "running mean": (linear, RunningMean(), FEATURES, LABELS, "buffers"),
    "pairs of rows": (Pairs, nn.CrossEntropyLoss(), FEATURES, LABELS, "module"),
    "BatchNorm with its own forward": (
        lambda: nn.Sequential(HalvedNorm(8), nn.Linear(8, 5)),
        nn.CrossEntropyLoss(), FEATURES, LABELS, "buffers",
    ),
    "a hook": (
        lambda: hooked(lambda m: m[0].register_forward_hook(center)),
        nn.CrossEntropyLoss(), FEATURES, LABELS, "module",
    ),
    "another forward": (
        lambda: hooked(own_forward), nn.CrossEntropyLoss(), FEATURES, LABELS, "module",
    ),
    "clamped gradients": (
        lambda: hooked(lambda m: m[1].weight.register_hook(lambda g: g.clamp(-1e-2, 1e-2))),
        nn.CrossEntropyLoss(), FEATURES, LABELS, "loss",
    ),
    "accumulated gradients": (
        lambda: hooked(look_at_gradient), nn.CrossEntropyLoss(), FEATURES, LABELS, "hook",
    ),
    "a subclass of MSELoss": (linear, CenteredMSE(), FEATURES, numbers(64, 5), "loss"),
    "flooding": (linear, flooded, FEATURES, LABELS, "loss"),
    "flooding near the first loss": (linear, flooded_high, FEATURES, LABELS, "loss"),
    "a cap": (linear, capped, FEATURES, LABELS, "loss"),
    "a branch": (linear, doubled_when_small, FEATURES, LABELS, "loss"),
    "class weights, classes in turn": (linear, weighted_by_class, FEATURES, TURNS, "loss"),
    "ignored targets in turn": (linear, valid_targets, FEATURES, SKIPPED, "loss"),
    "contrastive": (linear, contrastive, FEATURES, LABELS, "loss"),
    "supervised contrastive": (linear, supervised_contrastive, FEATURES, LABELS, "loss"),
    "triplets": (linear, hardest_triplets, FEATURES, LABELS, "loss"),
    "Dice": (linear, dice, FEATURES, LABELS, "loss"),
    "maximum": (linear, by_the_maximum, FEATURES, LABELS, "loss"),
    "mean over valid rows": (linear, over_valid, FEATURES, IGNORED, "loss"),
    "memory bank": (linear, MemoryBank(), FEATURES, LABELS, "buffers"),
    "statistics": (Statistics, nn.CrossEntropyLoss(), FEATURES, LABELS, "module"),
    "weak statistics": (
        lambda: Statistics(1e-4), nn.CrossEntropyLoss(), FEATURES, LABELS, "module",
    ),
    "mixup": (Mixed, nn.CrossEntropyLoss(), FEATURES, LABELS, "module"),
    "attention over the batch": (
        lambda: Transformer(batch_first=False), nn.CrossEntropyLoss(), WORDS, LABELS, "module",
    ),
    "instance statistics": (
        lambda: nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True), nn.Flatten(),
                              nn.Linear(432, 5)),
        nn.CrossEntropyLoss(), IMAGES, LABELS, "buffers",
    ),
}  # fmt: skip


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
    assert not is_known_to_be_by_row(nn.Sequential(nn.Softmax(dim=0)))
    assert not is_known_to_be_by_row(Statistics())


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
