"""The evidence page says what the results say, and nothing else."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def evidence(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("evidence")


@pytest.fixture
def claims(evidence):
    return importlib.import_module("evidence_claims")


def test_the_page_is_current(evidence):
    same = evidence.PAGE.read_text() == evidence.page()
    assert same, "Run `python docs/evidence.py` and commit docs/evidence.md."


def test_all_four_papers_have_claims_with_keys_of_their_own(evidence):
    assert {claim.paper for claim in evidence.CLAIMS} == set(evidence.PAPERS)
    assert len({claim.key for claim in evidence.CLAIMS}) == len(evidence.CLAIMS)


def test_every_script_exists(evidence):
    scripts = [claim.script for claim in evidence.CLAIMS if claim.script]
    assert [name for name in scripts if not (ROOT / "benchmarks" / name).exists()] == []


def test_without_results_it_says_so(evidence, tmp_path):
    text = evidence.page(tmp_path)
    measured = [claim for claim in evidence.CLAIMS if claim.script != ""]
    assert text.count(f"| {evidence.NOT_YET} |") == len(measured)


def test_results_that_appear_later_are_taken_up(evidence, tmp_path):
    entry = {"measured": "1.5 times at 1 Gb/s", "verdict": "yes"}
    content = {"command": "python benchmarks/averaging.py", "evidence": {"adpsgd-time": entry}}
    (tmp_path / "averaging.json").write_text(json.dumps(content))
    line = next(
        line for line in evidence.page(tmp_path).splitlines() if "1.5 times at 1 Gb/s" in line
    )
    assert line.endswith("| 1.5 times at 1 Gb/s | yes | `python benchmarks/averaging.py` |")


def test_results_without_a_reader_are_pointed_at(evidence, tmp_path, monkeypatch):
    unread = [claim._replace(read=None) for claim in evidence.CLAIMS if claim.script]
    monkeypatch.setattr(evidence, "CLAIMS", unread)
    (tmp_path / "workers_follow_batch.json").write_text('{"rows": []}')
    assert "see `benchmarks/results/workers_follow_batch.json`" in evidence.page(tmp_path)


@pytest.mark.parametrize(("key", "verdict"), [("nobody-claims-it", "yes"), ("atomo", "splendid")])
def test_evidence_for_nothing_is_refused(evidence, tmp_path, key, verdict):
    entry = {key: {"measured": "x", "verdict": verdict}}
    (tmp_path / "x.json").write_text(json.dumps({"command": "python x.py", "evidence": entry}))
    with pytest.raises(ValueError, match=r"x\.json: evidence must map a claim"):
        evidence.page(tmp_path)


def test_the_noise_scale_is_judged_by_seconds(claims):
    def reached(*adaptive):
        small = [{"epochs": 9, "updates": 900, "seconds": 90.0}] * 3
        found = [{"epochs": 9, "updates": updates, "seconds": s} for s, updates in adaptive]
        return {"static small": small, "adaptive": found}

    def judged(shared, own):
        told = {"target": 0.9, "shared_target": 0.8, "settings": {"seeds": 3}}
        return claims._noise_scale({**told, "reached": own, "reached_shared": shared})

    fast, slow = reached(*[(60.0, 300)] * 3), reached(*[(95.0, 950)] * 3)
    never, some = reached(*[(None, None)] * 3), reached((60.0, 300), (60.0, 300), (None, None))
    assert judged(fast, fast).verdict == claims.YES
    assert judged(fast, never).verdict == claims.PARTLY
    assert judged(fast, some).verdict == claims.PARTLY
    assert "in 2 of 3 seeds" in judged(fast, some).text
    assert judged(reached(*[(90.0, 300)] * 3), slow).verdict == claims.PARTLY
    assert judged(slow, slow).verdict == claims.NO
    assert judged(never, never).verdict == claims.NO


def test_a_worse_result_changes_the_verdict(evidence, claims):
    results = json.loads((evidence.RESULTS / "hyperband_serial.json").read_text())
    assert claims._hyperband_serial(results).verdict == claims.YES
    results["results"]["Hyperband, score first"]["calls_to_random_final"] = 10**6
    assert claims._hyperband_serial(results).verdict == claims.NO


# -- what benchmarks say about claims by themselves ------------------------------------------------


def test_codecs_by_themselves_do_not_tell_whether_training_gets_faster(evidence, tmp_path):
    (tmp_path / "compression.json").write_text('{"codecs": {}}')
    line = next(line for line in evidence.page(tmp_path).splitlines() if "QSGD and ATOMO" in line)
    assert f"single gradients only | {evidence.NOT_YET} | `python benchmarks/compr" in line


@pytest.fixture
def benchmark_of(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


def run_of(method, epoch_seconds, *accuracies):
    return {
        "method": method,
        "accuracies": list(accuracies),
        "epoch_seconds": [epoch_seconds] * len(accuracies),
        "epoch_bytes": [1000] * len(accuracies),
    }


SETTINGS = {"target": 0.4, "ranks": 2, "bandwidth": 2e7, "seeds": 1, "epochs": 3, "test_rows": 2000}


@pytest.mark.parametrize(
    ("atomo", "qsgd", "verdict"),
    [
        (run_of("Atomo(2)", 1.0, 0.2, 0.3, 0.5), run_of("QSGD(4)", 2.0, 0.3, 0.5, 0.5), "yes"),
        (run_of("Atomo(2)", 9.0, 0.2, 0.3, 0.5), run_of("QSGD(4)", 2.0, 0.3, 0.5, 0.5), "partly"),
        (run_of("Atomo(2)", 1.0, 0.2, 0.3, 0.5), run_of("QSGD(4)", 2.0, 0.3, 0.4, 0.4), "partly"),
        (run_of("Atomo(2)", 9.0, 0.2, 0.3, 0.5), run_of("QSGD(4)", 1.0, 0.1, 0.1, 0.1), "**no**"),
    ],
    ids=["both faster", "one slower", "one less accurate", "none"],
)
def test_what_training_with_codecs_says(evidence, benchmark_of, tmp_path, atomo, qsgd, verdict):
    verdicts = benchmark_of("_compression_verdict")
    rows = [run_of("SGD", 5.0, 0.3, 0.5, 0.5), atomo, qsgd]
    judged = verdicts.judged(rows, 0.4, 2000)
    assert judged[0]["to_target"] == pytest.approx({"epochs": 1.5, "seconds": 7.5, "bytes": 1500})
    content = {"command": "python x.py", "evidence": verdicts.evidence(judged, SETTINGS)}
    assert content["evidence"]["atomo"]["verdict"] == verdict
    (tmp_path / "x.json").write_text(json.dumps(content))
    measured, _ = evidence.facts(tmp_path)["atomo"]  # it is a claim, and a verdict
    never = "TernGrad not at all, TopK not at all, PowerSGD not at all"
    assert measured.text.endswith(f"{never}; 1 seed, 3 epochs")


@pytest.mark.parametrize(
    ("qsgd", "terngrad", "verdict"),
    [(2.0, 3.0, "yes"), (2.0, 2.0, "partly"), (1.2, 1.2, "partly"), (0.8, 0.9, "**no**")],
)
def test_what_atomo_is_against_its_rivals_of_the_papers(benchmark_of, qsgd, terngrad, verdict):
    verdicts = benchmark_of("_compression_verdict")
    rows = [
        run_of("SGD", 9.0, 0.5),
        run_of("Atomo(share=0.06)", 1.0, 0.5),
        run_of("QSGD(4), paper", qsgd, 0.5),
        run_of("TernGrad, paper", terngrad, 0.5),
        run_of("QSGD(4)", 0.5, 0.5),
    ]
    judged = verdicts.judged(rows, 0.4, 2000)
    said = verdicts.evidence(judged, SETTINGS)["atomo-rivals"]
    assert said["verdict"] == verdict
    assert f"QSGD: {qsgd:.2f} times (0.50 as it is today)" in said["measured"]
    never = verdicts.judged([*rows[:2], run_of("QSGD(4), paper", 1.0, 0.1)], 0.4, 2000)
    said = verdicts.evidence(never, SETTINGS)["atomo-rivals"]
    assert said["verdict"] == "yes"
    assert "the paper's did not get there" in said["measured"]
    none = verdicts.judged([rows[0], rows[2]], 0.4, 2000)
    assert verdicts.evidence(none, SETTINGS)["atomo-rivals"]["verdict"] == "**no**"


def test_times_of_a_busy_machine_are_noticed(benchmark_of):
    rows = [{"method": "a", "processors_taken_by_others": 0.1}]
    rows.append({"method": "b", "processors_taken_by_others": 0.9})
    assert benchmark_of("_compression_verdict").disturbed(rows) == ["b"]


def test_step_sizes_are_searched_downhill(benchmark_of):
    walk = benchmark_of("_training_common").walk
    losses = {-4: 3.0, -3: 2.0, -2: 1.0, -1: 0.5, 0: 9.0}
    assert walk(losses.__getitem__, -3, -4, 0) == (-1, {k: losses[k] for k in (-3, -2, -1, 0)})
    assert walk(losses.__getitem__, 0, -4, 0) == (-1, {k: losses[k] for k in (0, -1, -2)})
    assert walk(losses.__getitem__, -1, -1, -1) == (-1, {-1: 0.5})


@pytest.mark.parametrize(("worst", "verdict"), [(0.2, "yes"), (0.5, "partly")])
def test_what_the_cost_model_says(evidence, benchmark_of, tmp_path, worst, verdict):
    rows = [{"bandwidth": 1e8, "error": e} for e in (0.1, -0.1, worst)]
    said = benchmark_of("cost_model").evidence(rows)
    (tmp_path / "x.json").write_text(json.dumps({"command": "python x.py", "evidence": said}))
    measured, _ = evidence.facts(tmp_path)["cost-model"]
    assert measured.text.endswith(f"at 100 Mb/s: median error 10 %, largest {100 * worst:.0f} %")
    assert measured.verdict == verdict


def test_the_first_update_of_an_epoch_counts_as_the_others(benchmark_of):
    steady = benchmark_of("_training_common").steady_seconds
    ends, epochs = np.array([9.0, 10.0, 13.0, 20.0, 21.0, 24.0]), np.array([1, 1, 1, 2, 2, 2])
    assert steady(ends, epochs, np.mean).tolist() == [2, 1, 3, 2, 1, 3]
    assert steady(ends[:-1], epochs[:-1]).tolist() == [1, 1, 3, 1, 1]


# -- averaging on limited networks ---------------------------------------------------------------


@pytest.mark.parametrize("share", [0.25, 0.56])
def test_the_bandwidth_is_found_even_if_much_is_hidden_behind_computing(benchmark_of, share):
    calibrated = benchmark_of("_averaging_speed").calibrated

    def update_seconds(bandwidth):
        return 0.02 if bandwidth is None else 0.02 + max(0.0, 2e6 / bandwidth - 0.004)

    bandwidth, tried = calibrated(share, 2e6, update_seconds)
    assert 1 - 0.02 / update_seconds(bandwidth) == pytest.approx(share, abs=0.01)
    assert tried[-1][0] == bandwidth


def speed_rows(adaptive, compute=0.015, between=(), **others):
    between = dict(between)
    seconds = {"FULLSGD": 20.0, "CPSGD p = 8": 16.0, "DDP + PowerSGD(2)": 17.0}
    rows = []
    for share, faster in zip((0.25, 0.56), adaptive, strict=True):
        for way, whole in {**seconds, "ADPSGD": 20.0 / faster, "QSGD 8 bits": 18.0}.items():
            row = {"share": share, "way": way, "bandwidth": 1e8, "synchronisations": 100}
            row |= {
                "seconds": whole,
                "whole_seconds": whole * between.get(way, 1),
                "loss": 0.5,
                "accuracy": 0.6,
            }
            update = 0.015 / (1 - share) if way == "FULLSGD" else 0.015
            row |= {"update_seconds": update, "wire_bytes": 1000, "counted_bytes": 1000}
            row["compute"] = compute
            rows.append({**row, **others.get(way, {})})
    return rows


@pytest.mark.parametrize(
    ("adaptive", "compute", "between", "verdict"),
    [
        ((1.28, 1.96), 0.015, 1.0, "yes"),
        ((1.28, 1.5), 0.015, 1.0, "partly"),
        ((1.28, 1.96), 0.010, 1.0, "partly"),
        ((1.28, 1.96), 0.015, 1.1, "partly"),
        ((1.28, 1.96), 0.015, 1.3, "**no**"),
        ((0.9, 1.96), 0.015, 1.0, "**no**"),
    ],
    ids=["both", "one", "on too slow a network", "late", "too late", "slower"],
)
def test_what_averaging_on_slow_networks_says(
    evidence, benchmark_of, tmp_path, adaptive, compute, between, verdict
):
    bench = benchmark_of("averaging_speed")
    table = bench.summary(speed_rows(adaptive, compute, between={"ADPSGD": between}))
    faster = [row["times_faster"] for row in table if row["way"] == "ADPSGD"]
    assert faster == pytest.approx(adaptive)
    said = bench.evidence(table, {"ranks": 2, "epochs": 64})
    (tmp_path / "x.json").write_text(json.dumps({"command": "python x.py", "evidence": said}))
    measured, _ = evidence.facts(tmp_path)["adpsgd-time"]
    assert measured.verdict == verdict
    assert f"{adaptive[0]:.2f} times in the updates" in measured.text


@pytest.mark.parametrize(
    ("adaptive", "verdict"),
    [
        ({"loss": 0.4, "accuracy": 0.7, "counted_bytes": 500}, "yes"),
        ({"loss": 0.6, "accuracy": 0.7, "counted_bytes": 500}, "partly"),
        ({"loss": 0.6, "accuracy": 0.5, "counted_bytes": 900}, "**no**"),
    ],
    ids=["better in all", "in two", "in none"],
)
def test_what_averaging_says_about_qsgd(evidence, benchmark_of, tmp_path, adaptive, verdict):
    bench = benchmark_of("averaging_speed")
    table = bench.summary(speed_rows((1.3, 2.0), ADPSGD=adaptive))
    said = bench.evidence(table, {"ranks": 2, "epochs": 64})
    (tmp_path / "x.json").write_text(json.dumps({"command": "python x.py", "evidence": said}))
    measured, _ = evidence.facts(tmp_path)["adpsgd-qsgd"]
    assert measured.verdict == verdict


# -- replicas ------------------------------------------------------------------------------------


def replicas_run(rate, *accuracies):
    epochs = [1000 / rate] * len(accuracies)
    style = {"own": 0.9, "central": 0.0, "pull": 1.0}
    about = {"step_size": 0.1, "style": style, "replicas": 2}
    return {"accuracies": accuracies, "epoch_seconds": epochs, "rows_per_second": rate, **about}


@pytest.mark.parametrize(
    ("rate", "accuracies", "verdict"),
    [
        (150.0, (0.805, 0.81), "yes"),
        (150.0, (0.7, 0.81), "partly"),
        (150.0, (0.7, 0.7), "partly"),
        (90.0, (0.7, 0.81), "**no**"),
    ],
    ids=["both", "throughput", "target not reached", "none"],
)
def test_what_replicas_say(evidence, benchmark_of, tmp_path, rate, accuracies, verdict):
    bench = benchmark_of("_replicas_verdict")
    runs = {
        "one replica": [replicas_run(100.0, 0.6, 0.8, best) for best in (0.80, 0.81, 0.82)],
        "auto": [replicas_run(rate, *accuracies)] * 3,
    }
    target = bench.target_of(runs["one replica"])
    assert target == pytest.approx(0.805)
    one, _ = rows = bench.summary(runs, target)
    assert (one["reached"], one["epochs"], one["seconds"]) == (2, pytest.approx(2.5), 25.0)
    said = bench.evidence(rows, target, {"data": "Fashion-MNIST", "processors": 2})
    (tmp_path / "x.json").write_text(json.dumps({"command": "python x.py", "evidence": said}))
    measured, _ = evidence.facts(tmp_path)["crossbow"]
    assert measured.text.startswith("auto (2): ")
    assert measured.verdict == verdict


def test_what_half_of_the_seeds_did_not_reach_is_not_reached(benchmark_of):
    middle = benchmark_of("_replicas_verdict").middle
    assert middle([1.0, None, 3.0]) == 3.0
    assert middle([1.0, None, None]) is None


def test_human_answers_have_ranges_over_seeds_and_a_verdict_by_the_targets(claims):
    def case(worst, ratio):
        row = {"fit": "auto", "worst difference": worst, "answers ÷ Random": ratio}
        row |= {"least": 0.3, "most": 0.7, "range at the end": [0.81, 0.84]}
        return {
            "crowd": "oracle replay: all",
            "summary": [row | {"sampler": name} for name in ("ARR", "ARR 0.2")],
            "runs": {"ARR": {"auto": {"0": [], "1": []}}},
        }

    good = claims._human({"cases": {"eggs": case(-0.4, 0.6)}})
    assert good.verdict == claims.YES
    assert "oracle replay, 2 seeds" in good.text
    assert "(0.30 to 0.70)" in good.text
    assert "accuracy 0.810 to 0.840" in good.text
    both = {"eggs": case(-0.4, 0.6), "shoes": case(-0.1, 0.9)}
    assert claims._human({"cases": both}).verdict == claims.PARTLY
    assert claims._human({"cases": {"eggs": case(-0.6, 1.1)}}).verdict == claims.NO


def test_trust_is_judged_at_sixteen_percent(claims):
    def rows(behind, auc):
        row = {"replaced": 0.16, "by": "uniform", "equal weights": 0.8, "reliability": 0.84}
        row |= {"reliability range": [0.83, 0.85], "below clean data": behind, "AUC": auc}
        return {"source": "people", "rows": [row | {"replaced": 0.0}, row]}

    assert claims._trust(rows(0.5, 0.95)).verdict == claims.YES
    assert claims._trust(rows(0.6, 0.95)).verdict == claims.PARTLY
    assert claims._trust(rows(0.1, 0.94)).verdict == claims.PARTLY
