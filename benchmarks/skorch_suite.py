"""How many of skorch's own tests pass with skorch's classes, and with ours.

The tests are those of the installed skorch; nothing is copied. The table lists every test that
passes with skorch and fails with our classes, with the reason why that is allowed. ``--quick``
runs our classes only. The script ends with an error if there is a difference without a reason.
"""

from __future__ import annotations

import sys
from collections import Counter

from rich.table import Table

from _common import console, output_path, parser, write
from _skorch_suite import DIFFERENT, FAIL_WITH_SKORCH, LEFT_OUT, differences, run


def main() -> None:
    args = parser(__doc__ or "", data=False, cache=False).parse_args()
    ours = run(ours=True, whole=True)
    theirs = None if args.quick else run(ours=False, whole=True)
    counts = {"accelerando": dict(Counter(ours.values()))}
    passed = Counter(ours.values())["passed"]
    if theirs is not None:
        counts["skorch"] = dict(Counter(theirs.values()))
        total = counts["skorch"]["passed"]
        both = sum(theirs[name] == ours.get(name) == "passed" for name in theirs)
        console.print(
            f"skorch's classes pass {total:,} of skorch's tests here; ours pass {both:,} of these."
        )
    else:
        console.print(f"Our classes pass {passed:,} of skorch's tests.")
    console.print(
        f"Not counted: {len(FAIL_WITH_SKORCH)} tests that fail with skorch's classes here, and "
        f"{Counter(ours.values())['skipped']} that skip themselves."
    )
    for name, reason in LEFT_OUT.items():
        console.print(f"Not run with either library: {name} ({reason}).")
    table = Table("test", "reason", title="tests that may fail with our classes")
    for name, reason in DIFFERENT.items():
        table.add_row(name, reason)
    console.print(table)
    wrong = differences(ours)
    write(
        output_path(args, __file__),
        __file__,
        {"left out": LEFT_OUT},
        counts=counts,
        different=DIFFERENT,
        unexpected=wrong,
    )
    if wrong:
        sys.exit(f"Differences without a reason: {wrong}")


if __name__ == "__main__":
    main()
