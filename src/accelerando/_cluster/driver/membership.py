"""Changes of the membership: what is logged, and what happens to a model that only ranks had.

Used by :mod:`accelerando._cluster.driver.machine`; a fit whose ranks stay calls none of it.
"""

from __future__ import annotations

from accelerando._cluster.driver.pool import Turn
from accelerando._cluster.driver.sizing import plural
from accelerando._cluster.driver.state import NO_STATE
from accelerando._cluster.messages import RankId


def log_segment(turn: Turn, members: tuple[RankId, ...]) -> None:
    """Log why the membership changed, and what local SGD lost."""
    state, count, bound = turn.state, len(members), turn.bound()
    fewest = min(state.sizing.limits.min_workers, bound.ranks)
    if count < fewest:
        turn.log(
            "min_workers",
            f"min_workers={fewest} is not met: this fit can use "
            f"{plural(len(state.workers), 'worker')} of the cluster. Training begins with "
            f"{plural(count, 'rank')} and does not wait for others; they join when they come."
            f"{_describe_starting(turn)}",
        )
    if not state.members:
        return
    gone = len(state.members) - len(turn.present())
    since = max(state.ranks[rank].since for rank in members)
    if state.averages and gone and since:
        turn.log(
            "unaveraged",
            f"The last averaging was {plural(since, 'update')} ago: what "
            f"{plural(gone, 'lost rank')} did since then is lost, what the others did is kept.",
        )
    why = bound.why if count >= bound.ranks else f"{bound.ranks} are wanted: {bound.why}"
    turn.log(
        "segment",
        f"Update {max(state.ranks[members[0]].key, state.here).update}: training continues with "
        f"{plural(count, 'rank')} (before: {len(state.members)}; {why}).",
    )


def _describe_starting(turn: Turn) -> str:
    """Return a sentence about the ranks that have not started yet; empty if all have.

    A rank cannot start where no thread is free or Dask cannot fetch the data from another worker.
    """
    late = [turn.state.ranks[rank] for rank in turn.with_status("starting", "silent")]
    workers = [info.worker for info in late if info.key == NO_STATE]
    if not workers:
        return ""
    return (
        f" Ranks on {', '.join(workers[:10])} have not started yet. If they never do, the threads "
        "there may be busy with other tasks, or workers unable to reach each other: 'accelerando "
        "doctor --scheduler ADDRESS' looks at both."
    )


def go_back(turn: Turn) -> None:
    """Note that the driver gives its model to ranks although the run was further.

    Nobody has a newer state. Nothing that happened between the epochs since then has changed the
    model, and what was sent before each is kept: training them again gives the same result.
    """
    state = turn.state
    assert state.noted is not None
    turn.log(
        "again",
        f"Update {state.noted.update}: all ranks that had this state are lost. Training goes back "
        f"to update {state.here.update}, the newest state that the driver has.",
    )
    state.noted = None
