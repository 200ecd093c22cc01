"""How many queries can be scored per CPU-second, and how long does a whole search take?

    python benchmarks/query_search.py [--quick]

Compared on the same posterior: NEXT's way (one query after the other, place by place), Salmon's way
(distance matrix, arrays of queries; both written anew from the dissertation's description, section
4.2.2), `salmon-triplets` itself if it is installed (pip install --no-deps salmon-triplets
pydantic), and ours without and with numba.
Methods are timed in turns within one process, in CPU seconds, median of the rounds.

Salmon's way, written anew in single precision with the probabilities in one expression, is several
times faster than salmon-triplets, whose rate is the one the dissertation reports (Figure 4.3:
10,000 queries in 50 ms). Both are shown; "× salmon-triplets" compares with what people can install.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from threadpoolctl import threadpool_limits

from _crowd_common import SMOOTHNESS, cpu, random_answers, table, write
from accelerando.crowd import AlienEggs, OrdinalEmbedding, information_gain, search
from accelerando.crowd._posterior import Posterior
from accelerando.crowd._score import head_entropy
from accelerando.crowd._search import _kernel


def next_way(queries, posterior, tau):
    """One query at a time: t-STE probabilities place by place, entropies of both posteriors."""
    scores = []
    for head, left, right in queries.tolist():
        p = np.empty(posterior.n_items)
        for i in range(posterior.n_items):
            to_left = np.sum((posterior.positions[i] - posterior.positions[left]) ** 2)
            to_right = np.sum((posterior.positions[i] - posterior.positions[right]) ** 2)
            p[i] = (1.0 + to_right) / (2.0 + to_left + to_right)
        expected = np.sum(tau[head] * p)
        if_left = tau[head] * p / expected
        if_right = tau[head] * (1 - p) / (1 - expected)
        entropies = [-np.sum(t * np.log(t + 1e-30)) for t in (if_left, if_right)]
        scores.append(-expected * entropies[0] - (1 - expected) * entropies[1])
    return np.array(scores)


def salmon_way(queries, squared, tau):
    """All queries as arrays on a precomputed distance matrix, without the head's entropy."""
    head, left, right = queries.T
    one = np.float32(1.0)
    p = (one + squared[:, right]) / (one + one + squared[:, left] + squared[:, right])
    weights = tau[head].T
    expected = (weights * p).sum(axis=0)
    if_left = weights * p / expected
    if_right = weights * (one - p) / (one - expected)
    tiny = np.float32(1e-30)
    entropy_left = -(if_left * np.log(if_left + tiny)).sum(axis=0)
    entropy_right = -(if_right * np.log(if_right + tiny)).sum(axis=0)
    return -expected * entropy_left - (one - expected) * entropy_right


def salmon_itself(posterior, tau):
    """A function of queries that runs salmon-triplets' own scorer on this posterior, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from salmon.triplets.samplers.adaptive import TSTE, InfoGainScorer
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)  # it was loaded after the limit for all libraries was set
    noise = TSTE(n=posterior.n_items, d=posterior.positions.shape[1])
    scorer = InfoGainScorer(embedding=posterior.positions.astype(np.float32), probs=noise.probs)
    scorer.score(queries=[[0, 1, 2]])
    scorer.posterior_ = tau.astype(np.float32)
    return lambda queries: np.asarray(scorer.score(queries=queries)[1])


def make_posterior(n_items, n_answers, seed=0):
    truth = SMOOTHNESS[:n_items] if n_items <= 90 else np.arange(float(n_items))
    rows = random_answers(AlienEggs(truth), n_items, n_answers, seed)
    model = OrdinalEmbedding(n_items=n_items, random_state=0).fit(rows)
    # The posterior of Salmon and NEXT: not tempered, and answers count for their heads only.
    return model, rows, Posterior.from_embedding(model, rows, temper=1.0, feet=0.0)


def throughput(n_items, rounds, n_loop):
    _, _, posterior = make_posterior(n_items, 20 * n_items)
    tau = posterior.probabilities()
    squared = np.square(posterior.positions[:, None] - posterior.positions[None]).sum(axis=2)
    single, single_tau = squared.astype(np.float32), tau.astype(np.float32)
    total = n_items * (n_items - 1) * (n_items - 2) // 2
    rng = np.random.default_rng(0)
    sample = np.argsort(rng.random((10_000, n_items)), axis=1)[:, :3]
    methods = {
        "NEXT's way (loop)": (n_loop, lambda: next_way(sample[:n_loop], posterior, tau)),
        "Salmon's way": (10_000, lambda: salmon_way(sample, single, single_tau)),
        "ours, numpy": (total, lambda: search(posterior, pairs="all", backend="numpy")),
        "ours, numba": (total, lambda: search(posterior, pairs="all", backend="numba")),
    }
    itself = salmon_itself(posterior, tau)
    if itself is not None:
        methods["salmon-triplets"] = (10_000, lambda: itself(sample))
    for _, run in methods.values():
        run()
    seconds = {name: [] for name in methods}
    for _ in range(rounds):
        for name, (_, run) in methods.items():
            seconds[name].append(cpu(run)[0])
    rates = {name: methods[name][0] / np.median(times) for name, times in seconds.items()}
    base = rates["Salmon's way"]
    # Salmon's score lacks the head's entropy; put back, the two must agree.
    salmon = salmon_way(sample, single, single_tau) + head_entropy(posterior)[sample[:, 0]]
    difference = float(np.abs(salmon - information_gain(sample, posterior)).max())
    rows = [
        {
            "n": n_items,
            "method": name,
            "queries per CPU-s": rate,
            "× Salmon's way": rate / base,
            "× salmon-triplets": rate / rates["salmon-triplets"] if itself else None,
        }
        for name, rate in rates.items()
    ]
    if itself is None:
        rows.append({"n": n_items, "method": "salmon-triplets (not installed)"})
    return rows, difference


def search_times(sizes, rounds):
    rows = []
    for n_items in sizes:
        _, _, posterior = make_posterior(n_items, 10 * n_items)
        for backend in ("numpy", "numba"):
            for threads in (1, 2):
                if n_items >= 1000 and (threads, backend) != (1, "numba"):
                    continue
                repeat = rounds if n_items < 300 else (3 if n_items < 1000 else 1)
                run = lambda b=posterior, k=backend, t=threads: search(  # noqa: E731
                    b, pairs="all", backend=k, threads=t
                )
                if n_items < 1000:
                    run()
                wall, used = [], []
                for _ in range(repeat):
                    begin = time.perf_counter()
                    used.append(cpu(run)[0])
                    wall.append(time.perf_counter() - begin)
                rows.append(
                    {
                        "n": n_items,
                        "queries": n_items * (n_items - 1) * (n_items - 2) // 2,
                        "backend": backend,
                        "threads": threads,
                        "CPU ms": 1e3 * float(np.median(used)),
                        "wall ms": 1e3 * float(np.median(wall)),
                    }
                )
    return rows


def update_turn(rounds):
    """Refit + posterior + search of all heads, 90 items, ten new answers on top of 3,000."""
    rows = random_answers(AlienEggs(SMOOTHNESS), 90, 3_000 + 10 * rounds, 1)
    result = []
    for backend in ("numpy", "numba"):
        model = OrdinalEmbedding(n_items=90, random_state=0).fit(rows[:3_000])
        search(Posterior.from_embedding(model, rows[:3_000]), pairs="all", backend=backend)
        parts = {"refit": [], "posterior": [], "search": []}
        for k in range(rounds):
            upto = 3_000 + 10 * (k + 1)
            begin = 3_000 + 10 * k
            parts["refit"].append(cpu(lambda: model.partial_fit(rows[begin:upto]))[0])  # noqa: B023
            used, posterior = cpu(lambda: Posterior.from_embedding(model, rows[:upto]))  # noqa: B023
            parts["posterior"].append(used)
            parts["search"].append(
                cpu(lambda: search(posterior, pairs="all", backend=backend))[0]  # noqa: B023
            )
        row = {f"{name} ms": 1e3 * float(np.median(times)) for name, times in parts.items()}
        whole = np.sum([parts[name] for name in parts], axis=0)
        row["together ms (median)"] = 1e3 * float(np.median(whole))
        row["together ms (90 %)"] = 1e3 * float(np.quantile(whole, 0.9))
        result.append({"backend": backend, **row})
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no n = 1000")
    quick = parser.parse_args().quick
    _kernel("numba")
    rounds = 7 if quick else 31
    with threadpool_limits(1):
        scores, differences = [], {}
        for n_items in (85, 90):
            rows, difference = throughput(n_items, rounds, n_loop=50 if quick else 200)
            scores += rows
            differences[n_items] = difference
        columns = ["n", "method", "queries per CPU-s", "× Salmon's way", "× salmon-triplets"]
        table(scores, columns, "Queries scored per CPU-second (d = 2, t-STE, one thread)")
        print(f"largest difference of the scores, ours − (Salmon's + head entropy): {differences}")
        times = search_times((30, 90, 200, 300) if quick else (30, 90, 200, 300, 1000), rounds)
        columns = ["n", "queries", "backend", "threads", "CPU ms", "wall ms"]
        table(times, columns, "Exhaustive search: every head, every pair of feet")
        turns = update_turn(rounds)
        table(turns, list(turns[0]), "One turn of the worker: 90 items, 3,000 answers, 10 new")
    write(
        "query_search",
        {
            "quick": quick,
            "throughput": scores,
            "score_difference": differences,
            "exhaustive": times,
            "turn": turns,
        },
    )


if __name__ == "__main__":
    main()
