"""Make the reference runs and write ``expected.json``.

Run it three times with the version whose results are to be kept: a run whose tensors differ
between two recordings is kept without its hash, and compared to 1e-12 from then on::

    PYTHONPATH=<old>/src:. python -m tests.reference.record --fresh
    PYTHONPATH=<old>/src:. python -m tests.reference.record
    PYTHONPATH=<old>/src:. python -m tests.reference.record
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from tests.reference import runs
from tests.reference.summary import differences, fingerprint, summarize

FILE = Path(__file__).parent / "expected.json"
HASHES = ("module_sha256", "optimizer_sha256")


def read() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def write(content: dict[str, Any]) -> None:
    lines = [
        f"{json.dumps(name)}: {json.dumps(run, separators=(',', ':'))}"
        for name, run in sorted(content["runs"].items())
    ]
    head = {key: value for key, value in content.items() if key != "runs"}
    body = ",\n".join(lines)
    FILE.write_text(f'{json.dumps(head)[:-1]}, "runs": {{\n{body}\n}}}}\n')


def merge(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """Keep of two recordings what both say."""
    if before is None:
        return now
    exact = before.get("exact", True)
    if not differences(before, now, tolerance=None if exact else 1e-12):
        return before
    kept = {key: value for key, value in before.items() if key not in HASHES}
    for table in ("updates", "epochs"):  # which ranks took part is not fixed when workers die
        kept[table] = {
            name: column
            for name, column in kept[table].items()
            if not differences({table: {name: column}}, now, tolerance=1e-12)
        }
    return {**kept, "exact": False}


def record(names: list[str], client: Any, content: dict[str, Any]) -> None:
    for name in names:
        began = time.perf_counter()
        now = summarize(runs.fit(name, client))
        if "WorkersForThroughput" in name:
            del now["updates"]["workers"]  # it follows a clock
        if name.startswith("killed"):  # when the other ranks notice is not fixed
            now = {key: value for key, value in now.items() if key not in HASHES}
            now["exact"] = False
            for column in ("ranks", "bytes"):
                del now["updates"][column]
        content["runs"][name] = merge(content["runs"].get(name), now)
        exact = content["runs"][name].get("exact", True)
        print(f"{time.perf_counter() - began:6.2f} s {'exact' if exact else '1e-12'} {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="forget earlier recordings")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--local", action="store_true", help="without the runs on a cluster")
    parser.add_argument("--cluster", action="store_true", help="only the runs on a cluster")
    given = parser.parse_args()
    content = {"fingerprint": fingerprint(), "runs": {}}
    if FILE.exists() and (given.only or not given.fresh):
        content = read()
    if given.fresh:
        content["runs"] = {k: v for k, v in content["runs"].items() if given.only not in k}
    if not given.cluster:
        record([name for name in runs.LOCAL if given.only in name], None, content)
    remote = [name for name in runs.CLUSTER if given.only in name]
    if remote and not given.local:
        with runs.cluster_runs.cluster() as client:
            record(remote, client, content)
    write(content)
    print(f"{len(content['runs'])} runs, {FILE.stat().st_size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
