"""What does a codec save, what does it cost, and does training get faster with it?

(a) Codecs by themselves. Gradients of a ResNet-style network (2.8 million weights, width 64) on
CIFAR-10, the mean over a batch of 128, are taken before training, and after each of a few epochs of
SGD on part of the data. For every codec the script reports, of the layers that the estimators
compress (matrices and convolutions of at least 1024 entries),

bytes     of a gradient's payloads, headers included, and the share of the bytes of float32
ms        to encode and to decode on one core, the fastest of a few times
variance  ‖ĝ − g‖² / ‖g‖² of single draws, and what theory expects, mean over the gradients

and on a vector of four million normal numbers the speed of encoding and decoding in megabytes of
float32 per second and core. Variance is what an unbiased codec costs in convergence; for those
that are biased it is the error before error feedback.

(b) Training on CIFAR-10 with two ranks (--ranks), each a Dask worker in a network namespace, whose
network is slow (``tc tbf``; --bandwidth): seconds and bytes to an accuracy, and the loss, with SGD,
Atomo, QSGD and TernGrad as the papers configured them (one norm for a whole layer) and as they are
today, the largest 2 % with error feedback, and PowerSGD. Each has its own step size, the power of
two with the least loss on rows that are new at the end of one epoch, much as in D.4 of the
dissertation; it falls to a tenth after two thirds of the epochs; no momentum, as in 3.3.5. The runs
that tune are on the same ranks, without the limit. One seed: small differences are noise. Where a
codec loses, the table says so. If others use the processors meanwhile, nothing is published. Needs
root; iproute2 is installed if it is missing and apt-get can do it. The namespaces have no way out,
and are removed at the end, after Ctrl-C, too. --cache FILE keeps finished runs, so that it can be
stopped and continue.

Data: --data DIR with cifar10_small.npz. On two quiet cores (a) is estimated to take about 6 minutes
and (b) about 50 with two ranks; with --quick each a few minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from _common import NoDataError, console, output_path, parser, write
from _compression_codecs import codecs_alone
from _compression_training import RANKS, inside
from _compression_verdict import disturbed, evidence, judged, show
from _namespace_cluster import found_inside, leave_properly
from _namespaces import why_not

TRAINING = "compression_training.py"  # gives the results of (b) their own file


def main() -> None:
    made = parser(__doc__ or "")
    made.add_argument("--only", choices=("a", "b"), help="only one of the two parts")
    made.add_argument(
        "--bandwidth", type=float, default=20.0, metavar="MBIT", help="of (b), in Mb/s; default 20"
    )
    made.add_argument("--ranks", type=int, default=RANKS, help=f"of (b); default {RANKS}")
    made.add_argument("--inside", nargs=2, metavar=("TAG", "FILE"), help=argparse.SUPPRESS)
    args = made.parse_args()
    if args.output is not None and args.only is None:
        made.error("--output is one file: say with --only which part is to go there.")
    try:
        if args.inside:
            part_b_inside(args)
            return
        if args.only != "b":
            part_a(args)
        if args.only != "a":
            part_b(args)
    except NoDataError as error:
        sys.exit(str(error))


def part_a(args: argparse.Namespace) -> None:
    """Measure codecs by themselves."""
    results = codecs_alone(data=args.data, quick=args.quick)
    write(output_path(args, __file__), __file__, **results)


def part_b(args: argparse.Namespace) -> None:
    """Train in namespaces, and say what came out."""
    reason = why_not()
    if reason is not None:
        console.print(f"{reason} Training was not measured.")
        return
    options = ["--bandwidth", str(args.bandwidth), "--ranks", str(args.ranks)]
    options += [*(["--quick"] if args.quick else [])]
    for name in ("data", "cache"):
        if (path := getattr(args, name)) is not None:
            options += [f"--{name}", str(path)]
    results = found_inside(__file__, args.ranks, *options)
    settings = results["settings"]
    rows = judged(results["rows"], settings["target"], settings["test_rows"])
    show(rows, settings)
    if (busy := disturbed(results["rows"])) and not args.quick:
        sys.exit(
            f"Other processes used the processors while {', '.join(busy)} trained: no result is "
            "written. Delete these rows from the cache, and run it again on an idle machine."
        )
    name = TRAINING if args.ranks == RANKS else TRAINING.replace(".py", f"_{args.ranks}.py")
    path = output_path(args, name)
    write(path, __file__, settings, rows=rows, evidence=evidence(rows, settings))


def part_b_inside(args: argparse.Namespace) -> None:
    """Do the training; this runs in a namespace."""
    leave_properly()
    tag, file = args.inside
    results = inside(
        tag, count=args.ranks, data=args.data, quick=args.quick,
        bandwidth=1e6 * args.bandwidth, cache=args.cache,
    )  # fmt: skip
    Path(file).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
