"""The headline claims of the four papers, and how to read from results what was found."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from _sampler_settings import OLDER, is_current

YES, PARTLY, NO, NOT_YET = "yes", "partly", "**no**", "not measured yet"
VERDICTS = (YES, PARTLY, NO, NOT_YET)

ADADAMP = "Sievert, *Training machine learning models faster with Dask* (AdaDamp)"
DISSERTATION = "Sievert, *Accelerating active machine learning* (dissertation)"
AVERAGING = "Jiang and Agrawal, *Adaptive periodic averaging* (ADPSGD)"
TAMING = "Mai et al., *Taming hyper-parameters in deep learning systems* (KungFu, CROSSBOW)"
PAPERS = (ADADAMP, DISSERTATION, AVERAGING, TAMING)


class Measured(NamedTuple):
    """What was found here, and whether it is what was claimed."""

    text: str
    verdict: str


class Claim(NamedTuple):
    """One headline claim.

    ``script`` is the benchmark in ``benchmarks/`` that looks at it, and ``read`` turns its results
    into what the page says; both are None while there is no such benchmark.
    """

    key: str
    paper: str
    claim: str
    reported: str
    script: str | None = None
    read: Callable[[Any], Measured] | None = None


# -- readers: results of one benchmark to a sentence -----------------------------------------------


def _server(results: Any) -> Measured:
    cases = sorted({row["case"] for row in results["rows"]}, reverse=True)
    said, all_slower = [], True
    for case in cases:
        verdicts = [one for one in results["verdicts"] if one["case"] == case]
        times = [one["times_faster_than_server"] for one in verdicts]
        if None in times:  # the server reads no images from files
            continue
        sizes = ", ".join(str(one["batch_size"]) for one in verdicts)
        said.append(f"{case}: {', '.join(f'{t:.1f}' for t in times)} times at batch {sizes}")
        all_slower = all_slower and min(times) > 1.0
    text = "an update is faster than through a parameter server on two cores, " + "; ".join(said)
    return Measured(text, YES if all_slower else PARTLY)


def _table_1(_: Any) -> Measured:
    from accelerando.batch_size import GeoDamp
    from accelerando.cost import plan

    runs = [(128, 128), (128, 640), (128, 3200), (128, 16_000), (256, 5120)]
    found = [
        plan(
            GeoDamp(initial=initial, delay=60, factor=5),
            n_examples=50_000,
            max_epochs=200,
            max_batch_size=largest,
            parameters=2_750_000,
            seconds_per_example=0.0,
        ).updates
        for initial, largest in runs
    ]
    exact = found == [78_200, 34_520, 29_480, 29_240, 14_960]
    return Measured("updates " + "; ".join(f"{n:,}" for n in found), YES if exact else NO)


def _table_2(_: Any) -> Measured:
    from accelerando.batch_size import GeoDamp
    from accelerando.cost import plan

    reported = {128: 121.7, 640: 73.6, 3200: 67.7, 16_000: 67.7}
    minutes = {
        largest: plan(
            GeoDamp(initial=128, delay=60, factor=5),
            n_examples=50_000,
            max_epochs=200,
            max_batch_size=largest,
            max_workers=125,
            parameters=2_750_000,
            seconds_per_example=121.7 * 60 / 10_000_000,
            network="decentralized-moderate",
        ).seconds
        / 60
        for largest in reported
    }
    worst = max(abs(minutes[size] / reported[size] - 1) for size in reported)
    text = ", ".join(f"{minutes[size]:.0f} (reported {reported[size]:.0f})" for size in reported)
    return Measured(
        f"from its network and its time on one worker the model predicts {text} minutes: the rest "
        "is overhead of the simulation that grows with the workers",
        PARTLY if worst > 0.1 else YES,
    )


def _workers(results: Any) -> Measured:
    rows = results["rows"]
    constant, most = rows[0], rows[-1]
    said = "; ".join(
        f"{row['schedule']}: {row['updates']:,} updates, {row['accuracy']:.1f} %" for row in rows
    )
    alike = all(row["as_accurate"] for row in rows)
    return Measured(
        f"on up to {results['settings']['max_workers']} ranks of a machine with two cores, "
        f"{results['settings']['epochs']} epochs of Fashion-MNIST: {said}; "
        f"{constant['updates'] / most['updates']:.2f} times fewer updates"
        f"{'' if alike else ', and not all as accurate'}. Two cores cannot show the time",
        PARTLY,
    )


def _noise_scale(results: Any) -> Measured:
    def compared(reached: Any) -> tuple[float, float, int]:
        """Return seconds and updates in units of the small batch's, and in how many seeds."""
        middle = {}
        for name in ("static small", "adaptive"):
            there = [run for run in reached[name] if run["seconds"] is not None]
            for what in ("seconds", "updates"):
                values = sorted(run[what] for run in there)
                middle[name, what] = values[len(values) // 2] if values else math.inf
        seconds, updates = (
            middle["adaptive", what] / middle["static small", what]
            for what in ("seconds", "updates")
        )
        return seconds, updates, len(there)

    seeds, facts, good, fewer = results["settings"]["seeds"], [], [], []
    for accuracy, reached in (("shared_target", "reached_shared"), ("target", "reached")):
        seconds, updates, there = compared(results[reached])
        where = "" if there == seeds else f" (in {there} of {seeds} seeds; in the others never)"
        facts.append(
            f"to {results[accuracy]:.1%} {seconds:.2f} of the seconds and {updates:.2f} of the "
            f"updates of batch 256{where}"
            if there
            else f"to {results[accuracy]:.1%} never"
        )
        good.append(seconds < 0.9 and there == seeds)
        fewer.append(updates < 1.0)
    return Measured(
        f"on two ranks of one machine, {seeds} seeds: {'; '.join(facts)}",
        YES if all(good) else PARTLY if any(good) or any(fewer) else NO,
    )


def _fashion(results: Any) -> Measured:
    rows = {row["method"]: row for row in results["fashion"]["rows"]}
    updates = {name: rows[name]["updates_ratio_at_target"] for name in ("RadaDamp", "GeoDamp")}
    epochs = {name: rows[name]["epochs_ratio_at_target"] for name in ("RadaDamp", "GeoDamp")}
    facts = "; ".join(
        f"{name} {updates[name]:.2f} of its twin's updates in {epochs[name]:.2f} of its epochs"
        for name in updates
    )
    good = all(value < 0.75 for value in updates.values()) and all(
        value < 1.25 for value in epochs.values()
    )
    epochs_run = results["fashion"]["settings"]["epochs"]
    seeds = results["fashion"]["settings"]["seeds"]
    return Measured(
        f"{facts} (to the twin's accuracy; {epochs_run} epochs in place of "
        f"{results['fashion']['settings']['original_epochs']}, {seeds} seed)",
        YES if good else NO,
    )


def _synthetic(results: Any) -> Measured:
    ratio = {(row["within"], row["what"]): row["ratio"] for row in results["synthetic"]["verdicts"]}
    updates = ratio[0.01, "updates: AdaDamp / gradient descent"]
    epochs = ratio[0.01, "epochs: AdaDamp / SGD"]
    coarse = ratio[0.1, "epochs: AdaDamp / SGD"]
    return Measured(
        f"{updates:.1f} times the updates of gradient descent; {coarse:.2f} times the epochs of "
        f"SGD to within 10 % of the best loss, {epochs:.1f} times to within 1 %",
        YES if updates < 3 and epochs < 1.25 else PARTLY if updates < 3 else NO,
    )


def _hyperband_serial(results: Any) -> Measured:
    found = results["results"]
    random = found["random, 19 models"]["calls_to_random_final"]
    ours = found["Hyperband, score first"]["calls_to_random_final"]
    return Measured(
        f"the accuracy at which random search ends is reached with {ours:,} calls in place of "
        f"{random:,}",
        YES if ours < random / 2 else NO,
    )


def _hyperband_priority(results: Any) -> Measured:
    rows = [row for row in results["summary"] if row["workers"] == 4 and row["goal"] != "all"]
    ratios = [row["ratio"] for row in rows]
    return Measured(
        f"4 workers: {min(ratios):.2f} to {max(ratios):.2f} of the time of first in, first out, "
        f"for {len(rows)} accuracies",
        YES if max(ratios) < 0.6 else PARTLY,
    )


def _hyperband_scaling(results: Any) -> Measured:
    rows = {row["workers"]: row for row in results["results"]["Algorithm 1"]["replays"]}
    at = {n: rows[n]["speedup"] for n in (8, 16, 24) if n in rows}
    return Measured(
        "speed-up "
        + ", ".join(f"{value:.1f} on {n}" for n, value in at.items())
        + f" workers; {rows[8]['minutes']:.0f} minutes on 8",
        YES if rows[8]["minutes"] < 15 and at[16] > 12 else PARTLY,
    )


def _older(runs: Iterable[Mapping[str, Any]]) -> str:
    """Return a remark if ARR has other settings now than in one of these runs."""
    return "" if is_current(runs) else f" ({OLDER})"


def _active(results: Any) -> Measured:
    rows = {row["sampler"]: row for row in results["summary"] if row["fit"] == "t-STE"}
    arr, greedy = rows["ARR"]["distance 4 ÷ Random"], rows["Greedy"]["distance 4 ÷ Random"]
    plain = rows["Greedy, no head entropy"]["distance 4 ÷ Random"]
    return Measured(
        f"ARR {arr:.2f}, Greedy {greedy:.2f} of the answers of Random (simulated crowd, "
        f"{rows['ARR']['seeds']} seeds). Greedy is as poor as reported only with the score that "
        f"leaves out the head's entropy: {plain:.2f}"
        + _older(results["runs"]["eggs"]["ARR"].values()),
        PARTLY if arr < 0.6 else NO,
    )


def _served(results: Any) -> Measured:
    rows = {
        row["goal"]: row["ARR / Random"]
        for row in results["rows"]
        if row["counted"] == "first time" and row["fit"] == "t-STE"
    }
    facts = ", ".join(f"{value:.2f} to {goal}" for goal, value in rows.items())
    half = [value <= 0.5 for value in rows.values()]
    return Measured(
        f"ARR / Random answers through the running service: {facts}"
        + _older(run for run in results["runs"] if run["sampler"] == "ARR"),
        YES if all(half) else PARTLY if any(half) else NO,
    )


def _codecs_alone(_: Any) -> Measured:
    # What training says comes with its own file, which has an entry for the evidence page.
    return Measured("bytes, time and variance of single gradients only", NOT_YET)


def _human(results: Any) -> Measured:
    parts, worst, ratios = [], [], []
    for name, case in sorted(results["cases"].items()):
        rows = {row["sampler"]: row for row in case["summary"] if row["fit"] == "auto"}
        new, old = rows["ARR"], rows["ARR 0.2"]
        seeds = len(case["runs"]["ARR"]["auto"])
        low, high = new["range at the end"]
        kind = case["crowd"].split(":")[0]
        worst.append(new["worst difference"])
        ratios.append(new["answers ÷ Random"])
        parts.append(
            f"{name} ({kind}, {seeds} seeds): ARR {new['answers ÷ Random']:.2f} of the answers of "
            f"Random in the upper third of accuracies ({new['least']:.2f} to {new['most']:.2f}), "
            f"at worst {new['worst difference']:+.1f} points from Random, accuracy {low:.3f} to "
            f"{high:.3f} at the end; version 0.2 {old['answers ÷ Random']:.2f}, at worst "
            f"{old['worst difference']:+.1f} points"
            + _older(
                {"settings": case.get("settings", {}).get(seed)}
                for seed in case["runs"]["ARR"]["auto"]
            )
        )
    verdict = YES if min(worst) >= -0.5 and max(ratios) <= 0.6 else PARTLY
    if min(worst) < -0.5 and min(ratios) > 1.0:
        verdict = NO
    return Measured("; ".join(parts), verdict)


def _trust(results: Any) -> Measured:
    rows = [row for row in results["rows"] if row["replaced"] == 0.16]
    clean = results["rows"][0]["reliability"]
    facts = ", ".join(
        f"{row['by']} {row['equal weights']:.3f} with equal weights, {row['reliability']:.3f} "
        f"({row['reliability range'][0]:.3f} to {row['reliability range'][1]:.3f}) with "
        f"reliability, AUC {row['AUC']:.2f}"
        for row in rows
    )
    behind = max(row["below clean data"] for row in rows)
    good = behind <= 0.5 and min(row["AUC"] for row in rows) >= 0.95
    return Measured(
        f"{results['source']}, 16 % of the people replaced, accuracy {clean:.3f} with nobody "
        f"replaced: {facts}",
        YES if good else PARTLY,
    )


def _queries(results: Any) -> Measured:
    rows = {
        row["method"]: row["queries per CPU-s"] for row in results["throughput"] if row["n"] == 85
    }
    loop, vector, ours = rows["NEXT's way (loop)"], rows["Salmon's way"], rows["ours, numpy"]
    return Measured(
        f"85 items, queries per CPU-second: {loop:,.0f} one by one, {vector:,.0f} vectorised, "
        f"{ours:,.0f} here",
        YES if vector > 10 * loop else NO,
    )


# -- the claims ------------------------------------------------------------------------------------

CLAIMS = (
    Claim(
        "adadamp-updates",
        ADADAMP,
        "Growing batches need a fraction of the model updates in the same epochs",
        "78,200 updates with a constant batch, 34,520, 29,480, 29,240 and 14,960 with growing "
        "ones; Wide-ResNet 16-4, CIFAR-10, 200 epochs (Table 1)",
        "",
        _table_1,
    ),
    Claim(
        "adadamp-accuracy",
        ADADAMP,
        "They reach the same accuracy as decaying the learning rate",
        "about equal curves over epochs; Wide-ResNet 16-4, CIFAR-10, one run each (Figure 3)",
        "batch_growth.py",
        _fashion,
    ),
    Claim(
        "adadamp-minutes",
        ADADAMP,
        "With all-reduce and workers that follow the batch, training takes 45 to 74 minutes in "
        "place of 122",
        "121.7; 73.6; 67.7; 67.7; 45.1 minutes, simulated at 54 Gb/s (Table 2)",
        "",
        _table_2,
    ),
    Claim(
        "adadamp-workers",
        ADADAMP,
        "When workers follow the batch, the time of an update does not grow with it",
        "time roughly proportional to updates; simulated, up to 125 workers (Figure 4)",
        "workers_follow_batch.py",
        _workers,
    ),
    Claim(
        "adadamp-server",
        ADADAMP,
        "All-reduce in place of a parameter server removes most of the overhead",
        "107.2 against 67.7 minutes for 3.2k (Table 2, simulated)",
        "cluster_overhead.py",
        _server,
    ),
    Claim(
        "cost-model",
        ADADAMP,
        "Training time can be simulated from time per example, network and architecture",
        "used for Table 2; not checked against real runs",
        "cost_model.py",
    ),
    Claim(
        "adaptive-sgd",
        DISSERTATION,
        "Adaptive batches need about the updates of gradient descent and the epochs of SGD",
        "“not far from” gradient descent in updates, “nearly the same” data as SGD; linear network "
        "on synthetic data (Figure 3.2)",
        "batch_growth.py",
        _synthetic,
    ),
    Claim(
        "radadamp",
        DISSERTATION,
        "RadaDamp and GeoDamp need far fewer updates than their twins that decay the rate",
        "“far fewer” updates, similar epochs; CNN on Fashion-MNIST (Figure 3.3)",
        "batch_growth.py",
        _fashion,
    ),
    Claim(
        "hyperband-serial",
        DISSERTATION,
        "Hyperband finds a good model with less work than random search",
        "higher accuracy at equal epochs; synthetic data, 200 runs (Figure 2.3a)",
        "hyperband_serial.py",
        _hyperband_serial,
    ),
    Claim(
        "hyperband-priority",
        DISSERTATION,
        "Training high scorers first halves the time to a given score",
        "about a factor of 2, 4 workers (Figure 2.3b)",
        "hyperband_priority.py",
        _hyperband_priority,
    ),
    Claim(
        "hyperband-scaling",
        DISSERTATION,
        "Hyperband's speed-up is about the number of workers up to 16",
        "under 15 minutes on 8 workers, saturating between 16 and 24; recorded run of an "
        "auto-encoder, replayed (Figure 2.5b)",
        "hyperband_scaling.py",
        _hyperband_scaling,
    ),
    Claim(
        "atomo",
        DISSERTATION,
        "QSGD and ATOMO train faster than sending whole gradients, with similar accuracy",
        "“significantly” faster; ResNet-18, SVHN (Figure 3.10)",
        "compression.py",
        _codecs_alone,
    ),
    Claim(
        "atomo-rivals",
        DISSERTATION,
        "ATOMO trains up to twice as fast as QSGD and three times as fast as TernGrad",
        "“up to a factor of 2× and 3× respectively” (Section 3.3.5)",
        "compression.py",
        _codecs_alone,
    ),
    Claim(
        "arr",
        DISSERTATION,
        "ARR needs fewer answers than random sampling; Greedy does not",
        "1,800 against 4,500 answers to a mean distance of 4 (0.40); 90 alien eggs, a real crowd, "
        "10 runs (Figure 4.5)",
        "active_vs_random.py",
        _active,
    ),
    Claim(
        "arr-served",
        DISSERTATION,
        "The saving survives in a running service, where answers arrive while the model is behind",
        "as above, on Salmon with a crowd",
        "serve_active.py",
        _served,
    ),
    Claim(
        "arr-human",
        DISSERTATION,
        "The saving holds for the answers of people, whatever the items",
        "“almost always no worse than random”; 2 to 3 times fewer answers (Salmon's documentation)",
        "human_replay.py",
        _human,
    ),
    Claim(
        "trust",
        DISSERTATION,
        "Answers of careless people do little harm",
        "not measured there",
        "trust.py",
        _trust,
    ),
    Claim(
        "queries",
        DISSERTATION,
        "Scoring queries in one sweep lets many more be searched than one by one",
        "about 10,000 queries in 50 ms against at most 60 with NEXT, 167 times as many; 85 items "
        "(Figure 4.3)",
        "query_search.py",
        _queries,
    ),
    Claim(
        "adpsgd-accuracy",
        AVERAGING,
        "Adaptive averaging is more accurate than a constant period with no more communication",
        "GoogLeNet 93.49 against 93.08 %, VGG16 92.17 against 91.29 %; CIFAR-10, batch 2048 "
        "(Table I)",
        "averaging_quality.py",
    ),
    Claim(
        "adpsgd-time",
        AVERAGING,
        "It is faster than averaging gradients in every update",
        "1.14 to 1.27 times at 100 Gb/s, 1.46 to 1.95 times at 10 Gb/s; 16 P100 GPUs",
        "averaging_speed.py",
    ),
    Claim(
        "adpsgd-qsgd",
        AVERAGING,
        "It converges faster than 8-bit QSGD with half of its communication",
        "smaller loss, higher accuracy; CIFAR-10 and ImageNet (Figures 4, 5, 7)",
        "averaging_speed.py",
    ),
    Claim(
        "crossbow",
        TAMING,
        "Several small-batch replicas, averaged, train faster than one",
        "4 replicas: 1.4 times the throughput, 14 epochs in place of 30, 3.2 times faster to 80 %; "
        "ResNet-32, one Titan X (Figure 3)",
        "replicas.py",
    ),
    Claim(
        "noise-scale",
        TAMING,
        "A batch that follows the gradient noise scale reaches an accuracy sooner than a fixed one",
        "32 % faster than batch 256 to 72 %; ResNet-32, CIFAR-10, 4 Titan X (Figure 5)",
        "noise_scale_policy.py",
        _noise_scale,
    ),
)
