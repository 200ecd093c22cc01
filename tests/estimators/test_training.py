"""Training computes what a hand-written PyTorch loop computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from accelerando import NeuralNet
from accelerando._engine.data.feed import epoch_order
from accelerando.batch_size import Constant, GeoDamp, GeoDampLR, Schedule
from tests.nets import MLP, classifier, parameters_of, regressor


def by_hand(X, y, *, epochs, size, lr, scale=lambda epoch: 1.0, seed=0, momentum=0.9):
    """SGD on mean squared error, written out."""
    torch.manual_seed(seed)
    module = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)
    X, y = torch.from_numpy(X), torch.from_numpy(y)
    for epoch in range(epochs):
        order = torch.from_numpy(epoch_order(seed, epoch, len(X)))
        rows = size(epoch) if callable(size) else size
        for start in range(0, len(X), rows):
            batch = order[start : start + rows]
            optimizer.zero_grad()
            nn.functional.mse_loss(module(X[batch]), y[batch]).backward()
            for group in optimizer.param_groups:
                group["lr"] = lr * scale(epoch)
            optimizer.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize(
    ("batch_size", "size", "scale"),
    [
        (32, 32, lambda e: 1.0),  # 120 rows: the last batch has 24
        (Schedule({0: 7, 2: 50}), lambda e: 7 if e < 2 else 50, lambda e: 1.0),
        (GeoDamp(8, 1, 2), lambda e: 8 * 2**e, lambda e: 1.0),
        (GeoDampLR(8, 1, 2), 8, lambda e: 0.5**e),
    ],
)
def test_equals_a_hand_written_loop(line, batch_size, size, scale):
    net = regressor(batch_size=batch_size, max_epochs=4, optimizer__momentum=0.9).fit(*line)
    expected = by_hand(*line, epochs=4, size=size, lr=0.05, scale=scale)
    assert torch.equal(parameters_of(net), expected)


def test_past_the_largest_batch_the_learning_rate_falls(line):
    policy = GeoDamp(initial=20, delay=1, factor=2)
    net = regressor(batch_size=policy, max_batch_size=40, max_epochs=4, optimizer__momentum=0.9)
    net.fit(*line)
    expected = by_hand(
        *line,
        epochs=4,
        lr=0.05,
        size=lambda e: [20, 40, 40, 40][e],
        scale=lambda e: [1, 1, 0.5, 0.25][e],
    )
    assert torch.equal(parameters_of(net), expected)
    assert net.history_frame()["lr"].tolist() == pytest.approx([0.05, 0.05, 0.025, 0.0125])
    assert net.optimizer_.param_groups[0]["lr"] == 0.05, "the damping must not stay behind"


def test_two_runs_with_one_seed_are_bit_equal_and_another_seed_differs(digits):
    make = lambda seed: classifier(module__dropout=0.3, random_state=seed, max_epochs=2)  # noqa: E731
    one, two, other = (make(seed).fit(*digits) for seed in (5, 5, 6))
    assert torch.equal(parameters_of(one), parameters_of(two))
    assert not torch.equal(parameters_of(one), parameters_of(other))


def test_without_a_seed_torch_manual_seed_decides(digits):
    def run():
        torch.manual_seed(3)
        return parameters_of(classifier(random_state=None, max_epochs=1).fit(*digits))

    assert torch.equal(run(), run())


def test_a_seeded_fit_leaves_the_global_generator_alone(digits):
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    classifier(module__dropout=0.3, max_epochs=1).fit(*digits)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("seed", [np.random.RandomState(0), np.random.default_rng(0), np.int64(3)])
def test_numpy_generators_are_seeds(line, seed):
    assert regressor(random_state=seed, max_epochs=1).fit(*line)._state_.seeded


@pytest.mark.parametrize("bad", [-1, "zero", 1.5])
def test_what_is_no_seed_says_so(line, bad):
    with pytest.raises(
        ValueError, match="'random_state' parameter must be None, an integer of at least 0"
    ):
        regressor(random_state=bad).fit(*line)


class Seen(Dataset):
    """Rows 0..n-1 that remember who asked for them."""

    def __init__(self, n):
        self.n = n
        self.asked = []

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.asked.append(i)
        return torch.tensor([float(i)]), torch.tensor([0.0])


@pytest.mark.parametrize("batch_size", [1, 7, 30, 100, Schedule({0: 7, 1: 11})])
def test_every_epoch_visits_every_example_once_in_the_epochs_order(batch_size):
    data = Seen(30)
    net = NeuralNet(
        nn.Linear, nn.MSELoss, module__in_features=1, module__out_features=1, lr=0.0,
        batch_size=batch_size, max_epochs=3, train_split=None, random_state=4, verbose=0,
    )  # fmt: skip
    net.fit(data, None)
    assert data.asked == [int(i) for epoch in range(3) for i in epoch_order(4, epoch, 30)]


def test_shuffle_off_keeps_the_given_order():
    data = Seen(10)
    net = NeuralNet(
        nn.Linear, nn.MSELoss, module__in_features=1, module__out_features=1, lr=0.0, batch_size=4,
        max_epochs=1, train_split=None, iterator_train__shuffle=False, verbose=0,
    )  # fmt: skip
    net.fit(data, None)
    assert data.asked == list(range(10))


class Counting(IterableDataset):
    def __iter__(self):
        for i in range(25):
            yield torch.tensor([float(i), 1.0, -1.0]), torch.tensor([float(i % 2)])


def test_a_stream_gives_batches_of_changing_size():
    net = regressor(batch_size=Schedule({0: 4, 1: 10}), max_epochs=2, lr=1e-4)
    net.fit(Counting(), None)
    assert net.updates_frame()["batch_size"].tolist() == [4] * 6 + [1] + [10, 10, 5]
    assert net.position_.n_examples == 25


def test_loader_workers_bring_the_same_batches(line):
    X, y = line
    plain = regressor(batch_size=Schedule({0: 7, 1: 50}), max_epochs=2).fit(X, y)
    workers = regressor(
        batch_size=Schedule({0: 7, 1: 50}), max_epochs=2, iterator_train__num_workers=2,
        iterator_train__multiprocessing_context="fork",
    )  # fmt: skip
    workers.fit(X, y)
    assert torch.equal(parameters_of(plain), parameters_of(workers))


def test_a_collate_function_sees_whole_batches(line):
    X, y = line
    sizes = []

    def collate(items):
        sizes.append(len(items))
        return torch.utils.data.default_collate(items)

    regressor(batch_size=50, max_epochs=1, iterator_train__collate_fn=collate).fit(X, y)
    assert sizes == [50, 50, 20]


def test_drop_last_and_own_sampler(line):
    X, y = line
    net = regressor(batch_size=50, max_epochs=1, iterator_train__drop_last=True).fit(X, y)
    assert net.updates_frame()["batch_size"].tolist() == [50, 50]
    net = regressor(batch_size=50, max_epochs=1, iterator_train__sampler=list(range(10)))
    assert net.fit(X, y).updates_frame()["batch_size"].tolist() == [10]


def test_lbfgs_gets_its_closure(line):
    net = regressor(optimizer=torch.optim.LBFGS, lr=1.0, batch_size=-1, max_epochs=5).fit(*line)
    best = np.linalg.lstsq(np.c_[line[0], np.ones(120)], line[1], rcond=None)[0].ravel()
    assert parameters_of(net).numpy() == pytest.approx(best, abs=1e-3)


def test_module_with_batchnorm_dropout_and_groups(digits):
    net = classifier(
        module__norm=True,
        module__dropout=0.1,
        optimizer__param_groups=[("last*", {"lr": 0.01})],
        batch_size=Constant(50),
        max_epochs=4,
    ).fit(*digits)
    assert [group["lr"] for group in net.optimizer_.param_groups] == [0.01, 0.1]
    assert net.score(*digits) > 0.8
    assert net.module_.norm.num_batches_tracked == net.position_.update


def test_damping_scales_every_group_and_restores_it(line):
    net = regressor(
        optimizer__param_groups=[("bias", {"lr": 0.02})],
        batch_size=GeoDampLR(16, 1, 10),
        max_epochs=3,
    ).fit(*line)
    assert sorted(group["lr"] for group in net.optimizer_.param_groups) == [0.02, 0.05]


def test_sparse_embeddings_train(line):
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.EmbeddingBag(20, 1, sparse=True, mode="sum")

        def forward(self, x):
            return self.table(x)

    X = np.random.default_rng(0).integers(0, 20, size=(200, 3))
    y = X.sum(1, keepdims=True).astype("float32") / 20
    net = regressor(Bag, max_epochs=30, lr=0.1).fit(X, y)
    assert net.score(X, y) > 0.9


class Doubled(DataLoader):
    """A user's own loader class."""


def test_a_subclass_of_dataloader_is_used(line):
    net = regressor(iterator_train=Doubled, max_epochs=1).fit(*line)
    assert net.position_.examples == 120


def test_training_step_of_a_subclass_is_used(line):
    from accelerando import NeuralNetRegressor

    class Mine(NeuralNetRegressor):
        def train_step(self, batch, **fit_params):
            self.steps_ = getattr(self, "steps_", 0) + 1
            return super().train_step(batch, **fit_params)

    mine = Mine(
        nn.Linear, module__in_features=3, module__out_features=1, lr=0.05, max_epochs=3,
        batch_size=16, train_split=None, random_state=0, verbose=0,
    )  # fmt: skip
    mine.fit(*line)
    assert mine.steps_ == 24
    assert torch.allclose(parameters_of(mine), parameters_of(regressor().fit(*line)))


def test_mlp_learns_digits(digits):
    net = classifier(MLP, max_epochs=20, batch_size=GeoDamp(16, 5, 2)).fit(*digits)
    assert net.history[-1, "valid_acc"] > 0.85


def test_what_a_stream_cannot_give_is_said_before_training():
    from accelerando.batch_size import AdaDamp, FullBatch
    from accelerando.exceptions import UnsupportedError

    with pytest.raises(UnsupportedError, match="an IterableDataset has no numbers"):
        regressor().fit(Counting(), None, sample_weight=np.ones(25))
    with pytest.raises(UnsupportedError, match="AdaDamp measures on the training set"):
        regressor(batch_size=AdaDamp).fit(Counting(), None)
    with pytest.raises(ValueError, match="FullBatch has to know"):
        regressor(batch_size=FullBatch).fit(Counting(), None)


def test_a_policy_that_measures_later_is_refused_when_it_does():
    from accelerando._decisions import Measure
    from accelerando.exceptions import UnsupportedError
    from accelerando.policies import Decision, Policy

    class Late(Policy):
        def measures(self, update):
            return Measure("loss") if update == 8 else None

        def decide(self, signals, state):
            return Decision(batch_size=5), state

    net = regressor(batch_size=Late(), max_epochs=3, lr=1e-4)
    with pytest.raises(UnsupportedError, match="Late measures on the training set"):
        net.fit(Counting(), None)
    assert net.position_.update == 8  # in the second epoch, when the length of the stream is known
