"""What a call of ``fit`` begins with: settings are checked, a run begins or goes on."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from accelerando.sync import Averaging
from accelerando.train import averaging, checks, state
from accelerando.train.company import AllReduceHere
from accelerando.train.control import Control
from accelerando.train.data import make_feed
from accelerando.train.exchange import AloneCompressed
from accelerando.train.feed import Feed
from accelerando.train.interrupt import Interrupt
from accelerando.train.loop import Training
from accelerando.train.progress import Progress
from accelerando.train.world import Alone, World


def prepare(
    net: Any, dataset: Any, epochs: int | None, weights: torch.Tensor | None, fit_params: Any
) -> Training:
    """Gather what the loop works with, and begin or continue a run.

    Parameters
    ----------
    net : estimator
        Initialized.
    dataset : Dataset
        To train on.
    epochs : int or None
        Of a new run; None is the estimator's ``max_epochs``.
    weights : torch.Tensor or None
        Of the rows.
    fit_params : dict
        What the module's ``forward`` takes.
    """
    checks.check_settings(net)
    net._read_checkpoint()
    own_step = checks.check_overrides(net, weighted=weights is not None)
    checks.check_closures(net)
    feed = _feed(net, dataset)
    checks.check_feed(net, feed)
    _begin_or_continue(net, feed, net.max_epochs if epochs is None else epochs)
    net.micro_.whole = net.micro_batch_size is None or (
        net.micro_batch_size == "auto" and (own_step or not checks.may_split(net))
    )
    net.control_.check(checks.setting(net, own_step=own_step))
    together = _together(net, feed, own_step=own_step)
    return Training(
        net=net,
        feed=feed,
        run=net.run_,
        policy=net.policy_,
        max_batch_size=net.max_batch_size,
        micro=net.micro_,
        records=net.records_,
        progress=Progress(net.verbose),
        interrupt=Interrupt(),
        control=net.control_,
        divisible=checks.divisible(net) and not own_step,
        world=_world(net) if together is None else together.world,
        averaging=together,
        batches=checks.ranks_here(net, net.strategy_),
        weights=weights,
        fit_params=fit_params,
        own_step=own_step,
        after_updates=net._write_checkpoint if net.client is None else None,
        every=net.checkpoint_every if net.checkpoint is not None else None,
    )


def _world(net: Any) -> World:
    """Return the world of training in this process; ranks of a cluster make their own."""
    compressor = net.compressor()
    if net.virtual_ranks > 1:
        return AllReduceHere(net, net.virtual_ranks)
    if compressor is None or net.client is not None:
        return Alone()
    checks.check_alone(compressor)
    return AloneCompressed(net, compressor)


def _together(net: Any, feed: Feed, *, own_step: bool) -> averaging.Together | None:
    """Return what averages the parameters of virtual ranks, if that is the strategy."""
    checks.check_ranks(net, feed, own_step=own_step)
    if not isinstance(net.strategy_, Averaging) or net.client is not None:
        return None
    here, watch = checks.ranks_here(net, net.strategy_), net.control_.watches_spread
    return averaging.Together(net, net.strategy_, here, watch_every=watch)


def _feed(net: Any, dataset: Any) -> Feed:
    if hasattr(dataset, "lengths"):
        from accelerando.train.cluster.chunks import ShardFeed

        return ShardFeed(dataset.lengths)
    options = {k: v for k, v in net.get_params_for("iterator_train").items() if k != "batch_size"}
    return make_feed(dataset, options, loader=net.iterator_train)


def _begin_or_continue(net: Any, feed: Feed, epochs: int) -> None:
    run, policy = net.run_, net._policy()
    if policy != net.policy_:  # changed by set_params since the last call
        net.policy_, run.policy_state = policy, policy.start()
    control = Control.of(net.monitors, net.policies, policy)
    strategy = net.strategy()
    if strategy != net.strategy_:
        net.strategy_, run.sync = strategy, averaging.start(strategy)
        net.fleet_ = net.saved_ranks_ = None  # all start from the model that is there
    if control != net.control_:
        net.control_, run.control = control, control.start()
    net.records_.watch(net._columns())
    if run.update == 0 and not run.policy_state:
        run.policy_state = policy.start()
    other_data = feed.n_examples is not None and run.n_examples not in (None, feed.n_examples)
    if run.interrupted and run.cursor and other_data:
        warnings.warn(
            f"The interrupted epoch had {run.n_examples} training examples, these data have "
            f"{feed.n_examples}: a new run of {epochs} epochs begins, the rest is left out.",
            stacklevel=3,
        )
        run.end_epoch()
        run.until = run.epoch
    resume, net.resume_ = net.resume_, None
    if run.interrupted and resume is not None:
        state.continue_with(net, resume)
    if not run.interrupted:
        run.until = run.epoch + epochs
    run.n_examples = feed.n_examples if feed.n_examples is not None else run.n_examples
