"""The classifier. Signature and *Parameters* are generated: see ``_signatures.py``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import skorch
import torch
from skorch.dataset import Dataset, ValidSplit
from torch.utils.data import DataLoader

from accelerando._decisions import Decision, Signals
from accelerando.estimators._neural_net import NeuralNet
from accelerando.estimators._skorch import WeightedClassifier
from accelerando.monitor import Monitor
from accelerando.policies import Policy


class NeuralNetClassifier(WeightedClassifier, NeuralNet, skorch.NeuralNetClassifier):  # type: ignore[misc]
    """A classifier made of a PyTorch module with one output per class.

    Parameters
    ----------
    module : torch.nn.Module class, function or instance
        The model; ``module__x`` parameters go to its constructor, or to the function that makes
        it. Each ``fit`` makes a new one. An instance is used as it is, as in skorch: it begins
        with the parameters it has, and a second ``fit`` continues with it.
    criterion : class or "auto", default="auto"
        The loss; ``criterion__x`` go to its constructor. With NLLLoss the module's outputs are
        probabilities, with CrossEntropyLoss they are logits. ``"auto"`` looks at the outputs
        for the first rows: NLLLoss if they are probabilities (not negative, with a sum of 1),
        CrossEntropyLoss otherwise.
    optimizer : class, default=torch.optim.SGD
        ``optimizer__x`` parameters go to its constructor.
    lr : float, "auto" or None, default="auto"
        The learning rate. ``"auto"`` is 0.01 as in skorch, or the default of the optimizer if
        that is larger (1.0 for Adadelta and L-BFGS, which learn next to nothing with 0.01).
        None is the default of the optimizer.
    max_epochs : int, default=10
        Epochs of one ``fit`` or ``partial_fit``.
    batch_size : int, policy of :mod:`accelerando.batch_size`, or function, default=128
        Rows per update. A policy may be given as a class, with ``batch_size__x`` parameters, or
        as an instance; ``-1`` is the whole training set.
    iterator_train : class, default=torch.utils.data.DataLoader
        How data that are not arrays are read; ``iterator_train__x`` parameters go to it.
    iterator_valid : class, default=torch.utils.data.DataLoader
        The same for validation and prediction.
    dataset : class, default=skorch.dataset.Dataset
        What `X` and `y` are wrapped in, unless they are a Dataset already.
    train_split : callable or None, default=ValidSplit(5, stratified=True)
        Divides the rows into those for training and those for validation: by default a fifth is
        held out, with the same share of every class. None trains on all rows.
    callbacks : list of callbacks, None or "disable", default=None
        skorch's callbacks, in addition to its default ones.
    predict_nonlinearity : callable, None or "auto", default="auto"
        What ``predict_proba`` applies to the outputs of the module.
    warm_start : bool, default=False
        Whether ``fit`` continues with the parameters of the last one.
    verbose : int, default=1
        0 prints nothing and shows no progress.
    device : str, torch.device or None, default="cpu"
        Where the model is trained; None leaves it where it is.
    compile : bool, default=False
        Whether ``torch.compile`` compiles the modules; ``compile__x`` parameters go to it.
    use_caching : bool or "auto", default="auto"
        Whether skorch's scoring callbacks may reuse predictions of the validation.
    torch_load_kwargs : dict or None, default=None
        Arguments of ``torch.load`` in ``load_params``.
    classes : list or None, default=None
        The classes, in the order of the module's outputs, if they cannot be seen from `y`.
    max_batch_size : int or None, default=None
        The largest batch. Where a policy wants more, the learning rate falls by the same
        factor.
    micro_batch_size : int, "auto" or None, default="auto"
        Rows that go through the model at once; gradients of a larger batch are accumulated,
        with the same result. ``"auto"`` measures in the first update what a row keeps in memory
        and, if `random_state` is None, compares the speed of similar sizes in the next updates;
        it never divides a batch where that would change the result. None never divides.
    couples_rows : "gather", False or None, default=None
        If rows depend on each other: ``"gather"`` lets ranks compute the loss of all rows; None
        finds out and refuses to divide a batch; False does not look.
    channels_last : bool or "auto", default="auto"
        Memory format of convolutions; ``"auto"`` uses the faster one on CPUs if that works.
    ema : float between 0 and 1, or None, default=None
        Decay of an exponential moving average of the weights, such as 0.999: after each update
        the average is ``ema * average + (1 - ema) * weights``, corrected for its start.
        Predictions, scores and validation use the average, ``save_params`` writes it; training,
        callbacks and ``module_`` have the weights themselves (see ``averaged_weights``).
    random_state : int, NumPy generator or None, default=None
        Seed of the module's initial parameters, of the shuffles and of dropout. Two runs with
        one seed are bit-equal on a CPU with the same number of threads. None follows
        ``torch.manual_seed``.
    client : distributed.Client or None, default=None
        Train on the workers of this Dask cluster; None trains in this process. Clones share the
        client; unpickled estimators have none.
    examples_per_worker : int, default=128
        Rows of a batch that are worth a rank: training uses clip(⌈batch size /
        examples_per_worker⌉, min_workers, max_workers) ranks.
    min_workers : int, default=1
        The fewest ranks, as far as there are workers.
    max_workers : int, "auto" or None, default=None
        The most ranks. With a number, a cluster that can be scaled is asked for that many
        workers; None uses the workers that are there; ``"auto"`` measures and stops where more
        do not pay.
    data : "replicate" or "shard", default="replicate"
        Whether all workers get all rows, or ranks train on the chunks of Dask arrays they hold.
    compression : compressor of :mod:`accelerando.compress` or None, default=None
        How gradients, or with `sync` differences of parameters, are encoded between ranks; a
        class with ``compression__x`` parameters, or an instance. One process steps with what
        would be decoded.
    sync : strategy of :mod:`accelerando.sync` or None, default=None
        How ranks agree; a class with ``sync__x`` parameters, or an instance. None is
        ``AllReduce``: gradients are averaged in every update. The others average parameters now
        and then; each rank then has its own batches of `batch_size` rows, its own parameters
        and optimizer, and the estimator holds their average.
    virtual_ranks : int, default=1
        Ranks that this process simulates, each with batches of `batch_size` rows: an update has
        ``virtual_ranks * batch_size`` rows. To try on one machine what many would learn.
    rank_timeout : float, default=10.0
        Seconds, in addition to the time of twenty usual updates, after which a silent rank
        counts as lost.
    worker_timeout : float, default=300.0
        Seconds to wait for a cluster that has no workers.
    checkpoint : path or None, default=None
        A directory in which the run is saved, or a URL that fsspec knows (``s3://...``);
        ``fit`` in a new process continues from there if the run was not finished. Checkpoints
        are written in the background.
    checkpoint_every : int, default=100
        Updates between two checkpoints; one is written at the end of every epoch as well.
    checkpoint_keep : int, default=3
        The number of newest checkpoints that are kept. If the newest one is damaged, the run
        continues from the one before.
    checkpoint_best : str or None, default="valid_loss"
        A score in the history; the checkpoint of the epoch where it was best is kept, too, and
        ``load_state(path, best=True)`` loads it. A callback such as skorch's EpochScoring says
        which epoch that is. None keeps only the newest ones.
    monitors : list of monitors, default=()
        What to measure during training, from :mod:`accelerando.monitor`; the signals are
        columns of ``updates_frame()``.
    policies : list of policies or functions, default=()
        What decides about batch size, learning rate, momentum and workers before every update,
        from :mod:`accelerando.policies` or ``signals -> Decision | None``. The monitors that
        policies need are added.
    **kwargs
        Parameters of the components: ``module__x``, ``optimizer__x``, ``batch_size__x``, ...

    Attributes
    ----------
    classes_ : array
        The classes.
    module_, criterion_, optimizer_, history_, callbacks_, position_, world_log_ : object
        As for :class:`NeuralNet`.

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

    # generated signature
    def __init__(
        self,
        module: torch.nn.Module | Callable[..., torch.nn.Module],
        *,
        criterion: Callable[..., Any] | Literal["auto"] = "auto",
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
        lr: float | Literal["auto"] | None = "auto",
        max_epochs: int = 10,
        batch_size: int | Policy | type[Policy] | Callable[[Signals], float | None] = 128,
        iterator_train: type[DataLoader[Any]] = DataLoader,
        iterator_valid: type[DataLoader[Any]] = DataLoader,
        dataset: Any = Dataset,
        train_split: Callable[..., Any] | Literal[False] | None = ValidSplit(5, stratified=True),  # noqa: B008  as skorch has it
        callbacks: Sequence[Any] | Literal["disable"] | None = None,
        predict_nonlinearity: Callable[..., Any] | Literal["auto"] | None = "auto",
        warm_start: bool = False,
        verbose: int = 1,
        device: str | torch.device | None = "cpu",
        compile: bool = False,
        use_caching: bool | Literal["auto"] = "auto",
        torch_load_kwargs: dict[str, Any] | None = None,
        classes: Any = None,
        max_batch_size: int | None = None,
        micro_batch_size: int | Literal["auto"] | None = "auto",
        couples_rows: Literal["gather", False] | None = None,
        channels_last: bool | Literal["auto"] = "auto",
        ema: float | None = None,
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
        client: Any = None,
        examples_per_worker: int = 128,
        min_workers: int = 1,
        max_workers: int | Literal["auto"] | None = None,
        data: Literal["replicate", "shard"] = "replicate",
        compression: Any = None,
        sync: Any = None,
        virtual_ranks: int = 1,
        rank_timeout: float = 10.0,
        worker_timeout: float = 300.0,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 100,
        checkpoint_keep: int = 3,
        checkpoint_best: str | None = "valid_loss",
        monitors: Sequence[Monitor] = (),
        policies: Sequence[Policy | Callable[[Signals], Decision | None]] = (),
        **kwargs: Any,
    ) -> None:
        super(NeuralNet, self).__init__(
            module=module,
            criterion=criterion,
            optimizer=optimizer,
            lr=lr,
            max_epochs=max_epochs,
            batch_size=batch_size,
            iterator_train=iterator_train,
            iterator_valid=iterator_valid,
            dataset=dataset,
            train_split=train_split,
            callbacks=callbacks,
            predict_nonlinearity=predict_nonlinearity,
            warm_start=warm_start,
            verbose=verbose,
            device=device,
            compile=compile,
            use_caching=use_caching,
            torch_load_kwargs=torch_load_kwargs,
            classes=classes,
            max_batch_size=max_batch_size,
            micro_batch_size=micro_batch_size,
            couples_rows=couples_rows,
            channels_last=channels_last,
            ema=ema,
            random_state=random_state,
            client=client,
            examples_per_worker=examples_per_worker,
            min_workers=min_workers,
            max_workers=max_workers,
            data=data,
            compression=compression,
            sync=sync,
            virtual_ranks=virtual_ranks,
            rank_timeout=rank_timeout,
            worker_timeout=worker_timeout,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            checkpoint_keep=checkpoint_keep,
            checkpoint_best=checkpoint_best,
            monitors=monitors,
            policies=policies,
            **kwargs,
        )

    # end of the generated signature
