"""What fits, searches and predictions must not leave behind on a cluster."""

import signal
import time


def check_nothing_left(client):
    """No task, no rank, no mailbox, no plugin, no topic; cancelled tasks take a moment to go."""
    _until_nothing(lambda: client.run_on_scheduler(on_scheduler))


def check_nothing_ignored(client):
    """Ctrl-C ends all workers; all of them must answer."""
    _until_nothing(lambda: client.run(ignores_ctrl_c).values())


def _until_nothing(look):
    for _ in range(1000):
        left = look()
        if not any(left):
            return
        time.sleep(0.02)
    raise AssertionError(left)


def on_scheduler(dask_scheduler):
    plugins = [*dask_scheduler.plugins, *dask_scheduler.worker_plugins]
    return (
        [key for key in dask_scheduler.tasks if "rank-" in str(key) or "bytes" in str(key)],
        [name for name in [*plugins, *dask_scheduler.nanny_plugins] if "accelerando" in name],
        [name for name in dask_scheduler._broker._topics if "accelerando" in name],
    )


def ignores_ctrl_c():
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN
