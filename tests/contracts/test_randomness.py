"""Random numbers of a module: the same in this process and on one rank, repeatable on two.

Ranks draw for their own rows: on two of them dropout has other masks than in one process. What an
update draws does not move the generators of what is between epochs.
"""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from skorch.callbacks import Callback
from torch import nn

from accelerando import NeuralNetClassifier
from tests.contracts.test_unlisted import Net, X, Y, net_of, result_of


class Dropout(Net):
    def forward(self, x):
        return self.last(F.dropout(self.act(self.first(x)), 0.5, self.training))


class Noise(Net):
    """It draws from NumPy's generator; Python's is shared with the threads of Dask's workers."""

    def forward(self, x):
        if self.training and np.random.random() < 0.7:
            x = x * (1.0 + np.random.random())
        return super().forward(x)


class Gumbel(Net):
    def forward(self, x):
        y = super().forward(x)
        return y + F.gumbel_softmax(y, 1.0) if self.training else y


class LayerDrop(Net):
    def forward(self, x):
        x = self.first(x)
        return self.last(self.act(x) if torch.rand(()) < 0.5 else x)


class Jitter(Callback):
    """Between two epochs it draws from the global generators of this process."""

    def on_epoch_end(self, net, **kwargs):
        with torch.no_grad():
            for p in net.module_.parameters():
                p.add_(0.01 * torch.randn_like(p) * np.random.random())


def lbfgs(client, ranks):
    where = {"client": client, "min_workers": ranks, "max_workers": ranks} if ranks else {}
    return NeuralNetClassifier(
        Net,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.LBFGS,
        lr=0.1,
        batch_size=20,
        max_epochs=3,
        train_split=None,
        random_state=0,
        verbose=0,
        **where,
    )


ROWS = {
    "dropout": {"module": Dropout},
    "dropout, and a callback that draws": {"module": Dropout, "callbacks": [Jitter()]},
    "NumPy": {"module": Noise},
    "Gumbel softmax": {"module": Gumbel},
    "LayerDrop": {"module": LayerDrop},
}


def trained(client, ranks, params):
    np.random.seed(5)  # what callbacks draw between epochs
    return result_of(net_of(client, ranks, **params).fit(X, Y).partial_fit(X, Y))


@pytest.mark.parametrize("name", ROWS)
def test_one_rank_draws_what_this_process_draws(name, client):
    params = ROWS[name]
    alone = trained(None, 0, params)
    torch.testing.assert_close(trained(client, 1, params), alone, rtol=0, atol=1e-12)
    seeds = {"random_state": 1}
    assert not torch.equal(trained(None, 0, params | seeds)["loss"], alone["loss"])


@pytest.mark.parametrize("name", ["dropout", "NumPy"])
def test_two_ranks_draw_the_same_again(name, client):
    """Masks are those of the ranks: another run than on one rank, as with another seed."""
    params = ROWS[name]
    first, again = (trained(client, 2, params) for _ in range(2))
    torch.testing.assert_close(again, first, rtol=0, atol=1e-12)
    assert not torch.allclose(first["loss"], trained(None, 0, params)["loss"])


def test_a_callback_between_epochs_draws_the_same_on_any_number_of_ranks(client):
    params = {"callbacks": [Jitter()]}
    alone = trained(None, 0, params)
    for ranks in (1, 2):
        torch.testing.assert_close(trained(client, ranks, params), alone, rtol=0, atol=1e-12)


def test_the_users_generators_are_where_they_were():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    net_of(None, 0, module=Noise, random_state=0).fit(X, Y)
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


def test_a_run_that_is_continued_inside_an_epoch_draws_the_same(tmp_path):
    """The callback draws after an epoch that began in another process."""
    params = {"module": Dropout, "callbacks": [Jitter()], "train_split": None}
    np.random.seed(5)
    alone = net_of(None, 0, checkpoint=tmp_path, checkpoint_every=1, checkpoint_keep=99, **params)
    expected = result_of(alone.fit(X, Y))
    within = 0
    for path in sorted(tmp_path.glob("state-*.pt")):
        net = net_of(None, 0, **params)
        net.initialize().load_state(path)
        if net.position_.update == 2:
            np.random.seed(5)
            found = result_of(net.partial_fit(X, Y))
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
            within += 1
    assert within == 1


# -- optimizers that amplify rounding -------------------------------------------------------------


def test_lbfgs_is_exact_on_one_rank_and_amplifies_rounding_on_two(client):
    """One process differs from itself as much if the rows of each batch are summed the other way.

    The bound is a thousand times what the page tells, since it depends on the processor.
    """
    alone = result_of(lbfgs(None, 0).fit(X, Y))
    torch.testing.assert_close(result_of(lbfgs(client, 1).fit(X, Y)), alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(result_of(lbfgs(client, 2).fit(X, Y)), alone, rtol=0, atol=1e-8)
