"""The driver executes what the machine decides; ranks are threads, and there is no Dask."""

import threading

import pytest
import torch

from accelerando._cluster import messages
from accelerando._cluster.driver import run
from accelerando._cluster.driver import state as actions
from accelerando._cluster.driver.run import cluster_trainer
from accelerando._cluster.mailbox import MailboxGone
from accelerando.exceptions import ClusterError
from accelerando.sync import ModelAveraging, PeriodicAveraging
from tests._cluster.driver.threads import ThreadClient, job_of
from tests._cluster.worker.plain import PlainBuilder, validation_of
from tests._engine.comm.ranks import MLP, data_of, fit_of, flat, model_of, train

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def train_epochs(job, trainer, epochs=2):
    """Train as the estimator does."""
    for _ in range(epochs):
        trainer.train_epoch()
        job.fit.state.end_epoch()


def parameters(job):
    return flat(job.fit.model.module)


def alone(epochs=2):
    model = model_of()
    train(fit_of(model), epochs)
    return flat(model.module)


def test_ranks_train_what_one_process_trains():
    client, records = ThreadClient(2), []
    job = job_of(client, add_records=records.extend)
    with cluster_trainer(job) as trainer:
        assert trainer.membership == []
        train_epochs(job, trainer)
        assert [info.worker for info in trainer.membership] == client.workers
        assert trainer.newest_update == 10
        assert trainer.live_signals["ranks"] == 2
        futures = list(client.futures.values())
        assert not any(future.done() for future in futures)
    torch.testing.assert_close(parameters(job), alone(), **EXACT)
    assert [record["update"] for record in records] == list(range(1, 11))
    assert {record["ranks"] for record in records} == {2}
    # Nothing is left: no rank, no thread, no topic, no reference to the user's arrays.
    assert all(future.status == "finished" for future in futures)
    assert not any(t.name.startswith("accelerando-") for t in threading.enumerate())
    assert client.topics == {}
    assert vars(trainer) == {}


def test_validation_batches_come_back_in_their_order():
    job = job_of(ThreadClient(2), validation=validation_of(rows=20))
    with cluster_trainer(job) as trainer:
        train_epochs(job, trainer, 1)
        found = trainer.evaluate()
        X, y = data_of()
        assert [len(y_pred) for _, y_pred in found] == [20, 20, 10]
        with torch.no_grad():
            expected = job.fit.model.module(X)
        torch.testing.assert_close(torch.cat([y_pred for _, y_pred in found]), expected, **EXACT)
        loss = torch.nn.functional.cross_entropy(expected[40:], y[40:])
        torch.testing.assert_close(found[2][0], loss, **EXACT)


def test_the_driver_evaluates_if_there_is_no_plan():
    job = job_of(ThreadClient(1), ranks=1)
    with cluster_trainer(job) as trainer:
        train_epochs(job, trainer, 1)
        assert trainer.evaluate() is None


def test_a_change_on_the_driver_reaches_the_ranks():
    job, model = job_of(ThreadClient(2)), model_of()
    with cluster_trainer(job) as trainer:
        train_epochs(job, trainer, 1)
        with torch.no_grad():
            for parameter in job.fit.model.module.parameters():
                parameter.zero_()
        job.fit.model.optimizers[0].param_groups[0]["lr"] = 0.01
        train_epochs(job, trainer, 1)
    fit = train(fit_of(model), 1)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.zero_()
    model.optimizers[0].param_groups[0]["lr"] = 0.01
    train(fit, 1)
    torch.testing.assert_close(parameters(job), flat(model.module), **EXACT)


# -- Ctrl-C and errors ----------------------------------------------------------------------------


class Calling(MLP):
    """Calls a function of the test in its third training batch: ranks are threads of this one."""

    action = None

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        if self.calls == 3 and type(self).action is not None:
            type(self).action()
        return super().forward(x)


@pytest.fixture
def third_batch():
    """Set what happens in the third batch of each rank."""

    def set_action(action):
        Calling.action = staticmethod(action)

    yield set_action
    Calling.action = None


def test_ctrl_c_stops_after_an_update_and_the_state_is_here(third_batch):
    job = job_of(ThreadClient(2), builder=PlainBuilder(module=Calling), epochs=40)
    third_batch(lambda: setattr(job.interrupt, "pending", True))
    with cluster_trainer(job) as trainer, pytest.raises(KeyboardInterrupt):
        train_epochs(job, trainer, 40)
    stopped = job.fit.state.position
    assert 3 <= stopped.update < 200
    job.interrupt.pending = False
    with cluster_trainer(job) as trainer:
        if stopped.cursor:
            trainer.train_epoch()
            job.fit.state.end_epoch()
        epochs = job.fit.state.position.epoch
    torch.testing.assert_close(parameters(job), alone(epochs), **EXACT)


def trouble():
    raise LookupError("the module's own trouble")


def test_a_users_error_is_raised_here_with_the_state_before_it(third_batch):
    client = ThreadClient(2)
    job = job_of(client, builder=PlainBuilder(module=Calling))
    third_batch(trouble)
    with cluster_trainer(job) as trainer, pytest.raises(LookupError, match="own trouble") as caught:
        train_epochs(job, trainer)
    assert any(entry.name == "trouble" for entry in caught.traceback)
    assert job.fit.state.position.update == 2
    assert all(future.done() for future in client.futures.values())


def test_no_workers_for_too_long_is_an_error():
    job = job_of(ThreadClient(0), worker_timeout=0.2)
    with cluster_trainer(job) as trainer, pytest.raises(ClusterError, match="worker_timeout"):
        trainer.train_epoch()


def test_a_cluster_whose_workers_are_all_lost_may_start_them_again(monkeypatch):
    asked = []
    monkeypatch.setattr(run, "replace_lost_workers", lambda client, present: asked.append(present))
    job = job_of(ThreadClient(0), worker_timeout=0.2)
    with cluster_trainer(job) as trainer, pytest.raises(ClusterError):
        trainer.train_epoch()
    assert set(asked) == {0}
    asked.clear()
    job = job_of(ThreadClient(1), ranks=1)
    with cluster_trainer(job) as trainer:
        train_epochs(job, trainer, 1)
    assert asked == []


class Unreachable(PlainBuilder):
    def build(self):
        raise OSError("no route to host")


def test_a_rank_that_cannot_start_is_an_error_with_its_cause():
    job = job_of(ThreadClient(1), ranks=1, builder=Unreachable())
    with cluster_trainer(job) as trainer, pytest.raises(ClusterError, match="no route") as caught:
        trainer.train_epoch()
    assert isinstance(caught.value.__cause__, OSError)


def test_workers_with_other_versions_receive_nothing_and_are_named(monkeypatch):
    monkeypatch.setattr(ThreadClient, "other_versions", {"torch": None})
    client = ThreadClient(2)
    job = job_of(client, ranks=2, worker_timeout=0.5)
    named = r"no worker .* cannot be used: tcp://127.0.0.1:1 has no torch; tcp://127.0.0.2:1"
    with cluster_trainer(job) as trainer, pytest.raises(ClusterError, match=named):
        trainer.train_epoch()
    assert client.futures == {}
    assert [entry["event"] for entry in job.log] == ["unfit", "unfit"]


def test_a_worker_that_left_is_replaced_by_the_others():
    client = ThreadClient(3)
    job = job_of(client, ranks=2)
    with cluster_trainer(job) as trainer:
        train_epochs(job, trainer, 1)
        gone = trainer.membership[0].worker
        client.workers.remove(gone)
        trainer.mailbox.send(trainer.state.members[0], messages.Stop())  # it dies
        trainer.mailbox.report(messages.WorkerLeft(gone))
        train_epochs(job, trainer, 1)
    assert [entry["event"] for entry in job.log][:1] == ["lost"]
    assert gone in job.log[0]["text"]
    torch.testing.assert_close(parameters(job), alone(), **EXACT)


def test_ranks_are_cancelled_even_if_the_mailbox_is_gone(monkeypatch):
    client = ThreadClient(1)
    job = job_of(client, ranks=1)
    with cluster_trainer(job) as trainer:
        train_epochs(job, trainer, 1)
        monkeypatch.setattr(trainer.mailbox, "send", gone)
        monkeypatch.setattr(trainer.tasks, "wait", lambda ranks, seconds: None)
    assert client.futures["rank-0"].cancelled


def test_a_scheduler_that_is_gone_is_named(monkeypatch):
    job = job_of(ThreadClient(1), ranks=1)
    with cluster_trainer(job) as trainer:
        train_epochs(job, trainer, 1)

        def no_events(seconds):
            raise MailboxGone("recv") from OSError("Connection was closed")

        monkeypatch.setattr(trainer.events, "next", no_events)
        where = "{}:{}".format(*trainer.mailbox.address[:2])
        with pytest.raises(ClusterError) as error:
            train_epochs(job, trainer, 1)
        update = job.fit.state.position.update
        assert update > 0
        assert str(error.value) == (
            f"The Dask scheduler at tcp://127.0.0.1:8786 is gone (mailbox at {where}: Connection "
            f"was closed). The estimator holds the state of update {update}, after 1 whole epoch. "
            "partial_fit with the client of another cluster continues from it. (checkpoint= would "
            "keep it on disk, too.)"
        )


def test_a_client_that_has_given_up_ends_the_fit():
    """Also if the mailbox is in this process, and so cannot be gone."""
    client = ThreadClient(1)
    job = job_of(client, ranks=1)
    job.checkpoint = "folder"
    with cluster_trainer(job) as trainer:
        train_epochs(job, trainer, 1)
        client.status = "closed"
        trainer._survey_at = 0.0
        with pytest.raises(ClusterError, match=r"given up\)\. The .* with checkpoint='folder' c"):
            train_epochs(job, trainer, 1)
        client.status = "running"


def test_a_client_that_gives_up_while_it_is_asked_has_lost_no_workers(monkeypatch):
    """It returns no workers then, which must not count as the loss of all ranks."""
    client = ThreadClient(1)
    job = job_of(client, ranks=1)
    with cluster_trainer(job) as trainer:
        train_epochs(job, trainer, 1)

        def workers_of(client):
            client.status = "closed"
            return {}

        monkeypatch.setattr(run, "workers_of", workers_of)
        trainer._survey_at = 0.0
        with pytest.raises(ClusterError, match="Dask's client has given up"):
            train_epochs(job, trainer, 1)
        client.status = "running"


def gone(*arguments):
    raise ClusterError("The mailbox is gone.")


# -- what belongs to the next call ----------------------------------------------------------------


def test_events_after_the_end_of_a_call_are_kept_for_the_next():
    job = job_of(ThreadClient(1), ranks=1)
    with cluster_trainer(job) as trainer:
        trainer._result = None
        fed = []

        def feed(event):
            fed.append(event)
            trainer._result = actions.Finish("epoch")

        trainer._feed = feed
        trainer.mailbox.report(messages.WorkerJoined("tcp://127.0.0.8:1"))
        trainer.mailbox.report(messages.WorkerJoined("tcp://127.0.0.9:1"))
        trainer._later = [messages.RankNotStarted("rank-0"), messages.RankNotStarted("rank-1")]
        for _ in range(2):
            trainer._pump()
            trainer._result = None
        assert [event.worker[-3] for event in fed] == ["8", "9"]
        fed.clear()
        trainer._pump()
        assert fed == [messages.RankNotStarted("rank-0")]
        assert trainer._later == [messages.RankNotStarted("rank-1")]
        del trainer._feed


# -- local SGD and checkpoints --------------------------------------------------------------------

PERIOD = PeriodicAveraging(4)


def test_replicas_are_collected_when_a_callback_saves():
    job = job_of(ThreadClient(2), strategy=PERIOD, rows=6, epochs=2)
    state = job.fit.state
    with cluster_trainer(job) as trainer:
        trainer.collect_replicas()  # there is nobody to ask
        assert state.replicas is None
        train_epochs(job, trainer, 1)
        assert state.replicas is None  # not before they are needed
        trainer.collect_replicas()
        assert len(state.replicas) == 2
        assert state.averaging.since == 1
        assert not torch.equal(state.replicas.tensors[0][0], state.replicas.tensors[1][0])
        # What was collected changes nothing on the ranks.
        train_epochs(job, trainer, 1)
        assert len(state.replicas) == 2  # the last epoch brings them here
    other = job_of(ThreadClient(2), strategy=PERIOD, rows=6, epochs=2)
    with cluster_trainer(other) as trainer:
        train_epochs(other, trainer, 2)
    torch.testing.assert_close(parameters(job), parameters(other), **EXACT)


@pytest.mark.parametrize("strategy", [None, PERIOD], ids=["all-reduce", "local SGD"])
def test_a_checkpoint_has_the_state_of_its_update(strategy):
    seen = []

    def save():
        state = job.fit.state
        seen.append((state.position.update, 0 if state.replicas is None else len(state.replicas)))

    rows = 12 if strategy is None else 6
    job = job_of(
        ThreadClient(2), strategy=strategy, rows=rows, checkpoint_every=2, save_checkpoint=save
    )
    with cluster_trainer(job) as trainer:
        train_epochs(job, trainer, 2)
    replicas = 0 if strategy is None else 2
    assert set(seen) <= {(update, replicas) for update in (2, 4, 6, 8, 10)}
    assert (2, replicas) in seen
    assert seen == sorted(seen)


def test_the_history_shows_how_many_replicas_paid():
    values = []
    job = job_of(
        ThreadClient(1), ranks=1, strategy=ModelAveraging("auto"), add_to_history=values.append
    )
    job.limits = type(job.limits)(averages=True, replicas="auto")
    with cluster_trainer(job) as trainer:
        train_epochs(job, trainer, 1)
    assert values == [{"replicas": 1, "replicas_throughput": []}]
