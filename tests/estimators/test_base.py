"""Parameters: set, cloned, pickled, and suggested where they are misspelled."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from skorch.callbacks import EpochScoring, PassthroughScoring
from skorch.history import History
from torch import nn

from accelerando.batch_size import GeoDamp, RadaDamp
from accelerando.compress import QSGD, TernGrad
from accelerando.estimators._base import PIECES, ConfiguredNet, EpochAverage, seed_from
from accelerando.estimators._parameters import OURS
from accelerando.sync import PeriodicAveraging
from tests.nets import MLP, classifier, parameters_of, regressor


class FakeClient:
    """A connection, which can neither be copied nor pickled."""

    def scheduler_info(self):
        return {}

    def __deepcopy__(self, memo):
        raise TypeError("a connection cannot be copied")

    def __reduce__(self):
        raise TypeError("a connection cannot be pickled")


# -- set and get ----------------------------------------------------------------------------------


def test_every_parameter_is_stored_as_it_was_given():
    values = {parameter.name: object() for parameter in OURS}
    net = ConfiguredNet(nn.Linear, nn.MSELoss, **values)
    assert {name: net.get_params(deep=False)[name] for name in values} == values


@pytest.mark.parametrize(
    ("piece", "settings", "other"),
    [
        ("batch_size", {"delay": 2, "factor": 7}, RadaDamp),
        ("compression", {"bits": 4}, TernGrad),
        ("sync", {"period": 4}, PeriodicAveraging(period=2)),
    ],
)
def test_settings_of_a_piece_are_set_and_forgotten_with_it(piece, settings, other):
    kinds = {"batch_size": GeoDamp, "compression": QSGD, "sync": PeriodicAveraging}
    given = {f"{piece}__{name}": value for name, value in settings.items()}
    net = regressor().set_params(**{piece: kinds[piece]}, **given)
    params = net.get_params()
    assert {name: params[name] for name in given} == given
    assert net.get_params_for(piece) == settings
    net.set_params(**{piece: kinds[piece]})
    assert net.get_params_for(piece) == settings, "the same piece keeps its settings"
    net.set_params(**{piece: other})
    assert net.get_params_for(piece) == {}
    assert not [name for name in net._params_to_validate if name.startswith(piece + "__")]


def test_a_new_piece_keeps_settings_that_came_with_it():
    net = regressor(batch_size=GeoDamp, batch_size__delay=2)
    net.set_params(batch_size=RadaDamp, batch_size__memory=0.5)
    assert net.get_params_for("batch_size") == {"memory": 0.5}


def test_parameters_of_skorch_are_left_to_skorch():
    net = regressor().set_params(lr=0.5, module__bias=False, max_epochs=7)
    assert (net.lr, net.max_epochs) == (0.5, 7)
    assert net.initialize().module_.bias is None
    net.set_params(module__bias=True)
    assert net.module_.bias is not None, "skorch initializes the module again"


def test_pieces_have_their_prefixes():
    assert set(PIECES) <= set(ConfiguredNet.prefixes_)


@pytest.mark.parametrize("fitted", [False, True])
def test_no_private_name_is_a_parameter(line, fitted):
    net = regressor(max_epochs=1)
    before = set(net.get_params())
    if fitted:
        net.fit(*line)
    net.set_callbacks()
    assert set(net.get_params()) == before
    private = {name for name in before if name.startswith("_") or name.endswith("_")}
    assert private <= {"_params_to_validate"}, "only skorch's, which clone passes on"


# -- clone and pickle -----------------------------------------------------------------------------


def test_clones_share_the_client():
    client = FakeClient()
    net = regressor(client=client, batch_size=GeoDamp(4), sync=None)
    twin = clone(net)
    assert twin.client is client
    assert net.client is client, "and the original keeps it"
    assert twin.batch_size == GeoDamp(4)


def test_a_clone_that_fails_leaves_the_client():
    client = FakeClient()
    net = regressor(client=client, module__in_features=FakeClient())
    with pytest.raises(TypeError):
        clone(net)
    assert net.client is client


def test_a_pickled_estimator_has_no_client(line):
    client = FakeClient()
    net = regressor(max_epochs=1).fit(*line)
    net.client = client
    loaded = pickle.loads(pickle.dumps(net))
    assert loaded.client is None
    assert loaded._trainer_ is None
    assert net.client is client


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_copies_share_the_client_and_continue(make, line):
    client = FakeClient()
    net = regressor(max_epochs=1).fit(*line)
    net.client = client
    twin = make(net)
    assert twin.client is client
    assert twin._trainer_ is None
    assert net.client is client
    net.client = twin.client = None
    net.partial_fit(*line)
    assert twin.position_.update * 2 == net.position_.update, "they are apart"
    twin.partial_fit(*line)
    assert torch.equal(*(one.module_.weight for one in (net, twin)))


def test_a_deep_copy_of_a_net_that_holds_itself():
    net = regressor()
    net.itself = [net]
    twin = copy.deepcopy(net)
    assert twin.itself[0] is twin


def test_a_fitted_estimator_is_cloned_without_its_run(line):
    net = regressor(max_epochs=1).fit(*line)
    assert "_state_" not in vars(clone(net))


# -- misspelled -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("max_worker", "max_workers"), ("batchsize", "batch_size"), ("random_sate", "random_state")],
)
def test_a_misspelled_parameter_has_a_suggestion(line, wrong, right):
    with pytest.raises(ValueError, match=f"Did you mean '{right}' instead of '{wrong}'"):
        regressor(**{wrong: 3}).fit(*line)
    with pytest.raises(ValueError, match=f"Did you mean '{right}' instead of '{wrong}'"):
        classifier(**{wrong: 3}).initialize()


def test_a_parameter_like_no_other_has_none(line):
    with pytest.raises(ValueError, match="unexpected argument") as caught:
        regressor(xyzzy=3).fit(*line)
    assert "Did you mean" not in str(caught.value)


def test_a_class_that_pickle_does_not_find_is_copied_by_value(digits):
    """As on a worker, where the class of a script is not the one that has its name there."""
    script = type("MLP", (MLP,), {"__module__": MLP.__module__, "__qualname__": "MLP"})
    net = classifier(script, max_epochs=1).fit(*digits)
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(net.module_)
    twin = copy.deepcopy(net)
    assert torch.equal(parameters_of(twin), parameters_of(net))
    assert twin.predict(digits[0]).tolist() == net.predict(digits[0]).tolist()


@pytest.mark.parametrize(
    ("seed", "expected"),
    [(3, (3, True)), (np.int64(4), (4, True)), (0, (0, True))],
)
def test_an_integer_is_the_seed_itself(seed, expected):
    assert seed_from(seed) == expected


def test_seeds_from_generators_and_from_pytorch():
    for make in (np.random.RandomState, np.random.default_rng):
        assert seed_from(make(0)) == seed_from(make(0))
        assert seed_from(make(0)) != seed_from(make(1))
        assert seed_from(make(0))[1] is True
    torch.manual_seed(1)
    first = seed_from(None)
    torch.manual_seed(1)
    assert seed_from(None) == first
    assert first[1] is False


# -- averages over an epoch ------------------------------------------------------------------------


class FakeNet:
    def __init__(self, epochs):
        self.history = History([{"batches": [dict(row) for row in rows]} for rows in epochs])


def losses(epochs, seed=0):
    """Return rows of batches as skorch writes them: of training, then of validation."""
    rng = np.random.default_rng(seed)
    return [
        [
            {f"{kind}_loss": float(rng.normal()), f"{kind}_batch_size": int(rng.integers(1, 9))}
            for kind in ["train"] * 7 + ["valid"] * valid
        ]
        for valid in epochs
    ]


@pytest.mark.parametrize(("name", "on_train"), [("train_loss", True), ("valid_loss", False)])
@pytest.mark.parametrize("lower", [True, False, None])
def test_the_average_of_an_epoch_is_that_of_skorch_bit_for_bit(name, on_train, lower):
    given = {"name": name, "on_train": on_train, "lower_is_better": lower}
    epochs = losses([3, 0, 2])
    rows = []
    for callback in (PassthroughScoring(**given), EpochAverage(**given)):
        callback.initialize()
        found = []
        for count in range(1, len(epochs) + 1):
            net = FakeNet(epochs[:count])
            callback.on_epoch_end(net)
            found.append({k: v for k, v in net.history[-1].items() if k != "batches"})
        rows.append((found, callback.best_score_))
    assert rows[0] == rows[1]
    assert len(rows[0][0][0]) == (1 if lower is None else 2)


def test_only_the_averages_of_skorch_are_replaced():
    class Own(PassthroughScoring):
        pass

    own, scoring = Own("a"), EpochScoring("accuracy")
    assert EpochAverage.instead_of(own) is own
    assert EpochAverage.instead_of(scoring) is scoring
    kinds = {name: type(one) for name, one in classifier().get_default_callbacks()}
    assert (kinds["train_loss"], kinds["valid_loss"]) == (EpochAverage, EpochAverage)
    net = classifier(callbacks__train_loss__lower_is_better=False).initialize()
    assert dict(net.callbacks_)["train_loss"].lower_is_better is False
