"""The estimators a user sees."""

from __future__ import annotations

from typing import Any, Self

import skorch
import torch
from skorch.dataset import ValidSplit

from accelerando.train.checks import check_classes
from accelerando.train.net import AdaptiveNet
from accelerando.train.weights import combine


class NeuralNet(AdaptiveNet):
    """A PyTorch module as a scikit-learn estimator whose batch size adapts while it trains.

    skorch's :class:`skorch.NeuralNet` with another training loop. Every parameter, callback and
    method of skorch's is there; what is added or different stands below.

    Parameters
    ----------
    module : torch.nn.Module class, function or instance
        The model; ``module__x`` parameters go to its constructor, or to the function that makes it.
        Each ``fit`` makes a new one. An instance is used as it is, as in skorch: it begins with the
        parameters it has, which `random_state` did not draw, and a second ``fit`` goes on with it.
    criterion : class
        The loss; ``criterion__x`` parameters go to its constructor.
    batch_size : int, policy of :mod:`accelerando.batch_size`, or function, default=128
        Rows per model update. A policy may be given as a class, with ``batch_size__x`` parameters,
        or as an instance; ``-1`` is the whole training set.
    max_batch_size : int or None, default=None
        The largest batch. Where a policy wants more, the learning rate falls instead, by the same
        factor.
    micro_batch_size : int, "auto" or None, default="auto"
        Rows that go through the model at once; gradients of a larger batch are accumulated, with
        the same result. ``"auto"`` weighs in the first update what a row keeps in memory and, if
        `random_state` is None, lets the sizes around that compete for speed in the next updates;
        it never divides a batch where that would change the result (BatchNorm, losses that are no
        mean over rows). None never divides.
    channels_last : bool or "auto", default="auto"
        Memory layout of convolutions; ``"auto"`` takes the faster one on CPUs if the module
        accepts it.
    random_state : int, NumPy generator or None, default=None
        Seed of the module's initial parameters, of the shuffles and of dropout. Two runs with one
        seed are bit-equal on a CPU with the same number of threads. None follows
        ``torch.manual_seed``.
    client : distributed.Client or None, default=None
        Train on the workers of this Dask cluster; None trains in this process. Clones share the
        client, pickled estimators come back without it.
    examples_per_worker : int, default=128
        Rows of a batch that are worth a rank of their own: training uses
        clip(⌈batch size / examples_per_worker⌉, min_workers, max_workers) ranks.
    min_workers : int, default=1
        The fewest ranks, as far as the cluster has workers.
    max_workers : int, "auto" or None, default=None
        The most ranks. A number lets a cluster that can be scaled be asked for so many workers;
        None takes those that are there; ``"auto"`` measures and stops where more do not pay.
    data : "replicate" or "shard", default="replicate"
        Whether every worker gets all rows, or ranks train on the chunks of Dask arrays that are on
        their workers.
    compression : compressor of :mod:`accelerando.compress` or None, default=None
        How gradients are written on their way between ranks; a class with ``compression__x``
        parameters, or an instance. One process steps with what would be decoded.
    sync : strategy of :mod:`accelerando.sync` or None, default=None
        How ranks keep in step; a class with ``sync__x`` parameters, or an instance. None is
        ``AllReduce``: gradients in every update. The others average parameters now and then; each
        rank then has its own batches of `batch_size` rows, its own parameters and optimizer, and
        the estimator holds their average.
    virtual_ranks : int, default=1
        Ranks that this process stands for, each with batches of `batch_size` rows: an update sees
        ``virtual_ranks * batch_size`` rows. To try on one machine what many would learn.
    rank_timeout : float, default=10.0
        Seconds, beyond the time of twenty usual updates, after which a silent rank counts as lost.
    worker_timeout : float, default=300.0
        Seconds for which a cluster without workers is waited for.
    checkpoint : path or None, default=None
        A directory in which the run is saved; ``fit`` in a new process goes on from there if the
        run was not finished.
    checkpoint_every : int, default=100
        Updates between two checkpoints; one is written at the end of every epoch as well.
    monitors : list of monitors, default=()
        What to watch while training, from :mod:`accelerando.monitor`; their signals are columns of
        ``updates_frame()``.
    policies : list of policies or functions, default=()
        What decides about batch size, learning rate, momentum and workers before every update,
        from :mod:`accelerando.policies` or ``signals -> Decision | None``. Monitors that the ready
        ones need are added by themselves.
    **kwargs
        Everything that :class:`skorch.NeuralNet` takes.

    Notes
    -----
    Each epoch visits every example exactly once, in a shuffle that depends on (random_state,
    epoch) only; ``iterator_train__shuffle=False`` keeps the given order. The gradient of an update
    is the mean over the rows of its batch, of a short last batch as well.

    Examples
    --------
    >>> import torch
    >>> from accelerando import NeuralNet
    >>> from accelerando.batch_size import PadaDamp
    >>> X = torch.linspace(-1, 1, 64).reshape(-1, 1)
    >>> net = NeuralNet(torch.nn.Linear, torch.nn.MSELoss, module__in_features=1,
    ...                 module__out_features=1, lr=0.5, max_epochs=20, train_split=None,
    ...                 batch_size=PadaDamp(initial=4, rate=0.5), random_state=0, verbose=0)
    >>> _ = net.fit(X, 2 * X)
    >>> round(net.module_.weight.item(), 2)
    2.0
    >>> net.updates_frame()["batch_size"].head(4).tolist()
    [4, 5, 5, 6]
    """


class NeuralNetClassifier(AdaptiveNet, skorch.NeuralNetClassifier):  # type: ignore[misc]
    """A classifier made of a PyTorch module; see :class:`NeuralNet` for its parameters.

    Parameters
    ----------
    module : torch.nn.Module class or instance
        The model, with one output per class.
    *args, **kwargs
        As for :class:`NeuralNet` and :class:`skorch.NeuralNetClassifier`.
    criterion : class, default=torch.nn.NLLLoss
        With NLLLoss the module's outputs are probabilities, with CrossEntropyLoss they are logits.
    train_split : callable or None, default=ValidSplit(5, stratified=True)
        What divides the rows into those for training and those for validation: by default a fifth
        is held out, with the same share of every class. None trains on all rows.
    classes : list or None, default=None
        The classes, if they cannot be seen from `y`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from torch import nn
    >>> from accelerando import NeuralNetClassifier
    >>> from accelerando.batch_size import GeoDamp
    >>> X, y = load_digits(return_X_y=True)
    >>> net = NeuralNetClassifier(nn.Linear, module__in_features=64, module__out_features=10,
    ...                           criterion=nn.CrossEntropyLoss, lr=0.01, max_epochs=6,
    ...                           batch_size=GeoDamp, batch_size__initial=32, batch_size__delay=2,
    ...                           random_state=0, verbose=0)
    >>> _ = net.fit(X.astype("float32"), y)
    >>> net.history_frame()["batch_size"].tolist()
    [32, 32, 64, 64, 128, 128]
    """

    def __init__(
        self,
        module: Any,
        *args: Any,
        criterion: Any = torch.nn.NLLLoss,
        train_split: Any = ValidSplit(5, stratified=True),  # noqa: B008  as skorch has it
        classes: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            module, *args, criterion=criterion, train_split=train_split, classes=classes, **kwargs
        )

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        class_weight: Any = None,
        **fit_params: Any,
    ) -> Self:
        """Train from the start (or further, with ``warm_start``).

        Parameters
        ----------
        X : array, tensor, frame, dictionary of them, or Dataset
            The examples.
        y : array or None
            Their classes; None if `X` is a Dataset that has them.
        sample_weight : array of shape (n_examples,), optional
            Weight of each example in the training loss; only ratios matter.
        class_weight : dict or "balanced", optional
            Weight of each class, as in scikit-learn.
        **fit_params
            Further arguments of the module's ``forward`` and of ``train_split``.
        """
        check_classes(y)
        weight = combine(sample_weight, class_weight, y)
        extra = {} if weight is None else {"sample_weight": weight}
        super().fit(X, y, **extra, **fit_params)
        return self


class NeuralNetRegressor(AdaptiveNet, skorch.NeuralNetRegressor):  # type: ignore[misc]
    """A regressor made of a PyTorch module; see :class:`NeuralNet` for its parameters.

    Parameters
    ----------
    module : torch.nn.Module class or instance
        The model.
    *args, **kwargs
        As for :class:`NeuralNet` and :class:`skorch.NeuralNetRegressor`.
    criterion : class, default=torch.nn.MSELoss
        The loss.

    Examples
    --------
    >>> import torch
    >>> from sklearn.datasets import make_regression
    >>> from accelerando import NeuralNetRegressor
    >>> X, y = make_regression(200, n_features=10, random_state=0)
    >>> X, y = X.astype("float32"), y.astype("float32").reshape(-1, 1)
    >>> net = NeuralNetRegressor(torch.nn.Linear, module__in_features=10, module__out_features=1,
    ...                          lr=0.1, batch_size=20, max_epochs=10, random_state=0, verbose=0)
    >>> net.fit(X, y).score(X, y) > 0.99
    True
    """

    def __init__(
        self, module: Any, *args: Any, criterion: Any = torch.nn.MSELoss, **kwargs: Any
    ) -> None:
        super().__init__(module, *args, criterion=criterion, **kwargs)

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Train from the start (or further, with ``warm_start``).

        Parameters
        ----------
        X : array, tensor, frame, dictionary of them, or Dataset
            The examples.
        y : array of shape (n_examples, n_outputs), or None
            Their values; None if `X` is a Dataset that has them.
        sample_weight : array of shape (n_examples,), optional
            Weight of each example in the training loss; only ratios matter.
        **fit_params
            Further arguments of the module's ``forward`` and of ``train_split``.
        """
        extra = {} if sample_weight is None else {"sample_weight": sample_weight}
        super().fit(X, y, **extra, **fit_params)
        return self
