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

(b) Training on CIFAR-10 with two ranks, each a Dask worker in a network namespace, whose network is
slow (``tc tbf``; --bandwidth): seconds and bytes to an accuracy, with SGD, Atomo, QSGD, TernGrad
and PowerSGD. Each has its own step size, the power of two with the least loss on rows that are new
at the end of one epoch, much as in D.4 of the dissertation; no momentum, as in 3.3.5. The runs that
tune are on the same two ranks, without the limit. One seed: small differences are noise. Where a
codec loses, the table says so. Needs root; iproute2 is installed if it is missing and apt-get can
do it. The namespaces have no way out, and are removed at the end, after Ctrl-C, too. --cache FILE
keeps finished runs, so that it can be stopped and continue.

Data: --data DIR with cifar10_small.npz. On two quiet cores (a) is estimated to take about 6 minutes
and (b) about 20; with --quick each less than two.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from _common import NoDataError, console, output_path, parser, write
from _compression_codecs import codecs_alone
from _compression_training import RANKS, inside
from _compression_verdict import evidence, judged, show
from _namespace_cluster import found_inside, leave_properly
from _namespaces import why_not

TRAINING = "compression_training.py"  # gives the results of (b) their own file


def main() -> None:
    made = parser(__doc__ or "")
    made.add_argument("--only", choices=("a", "b"), help="only one of the two parts")
    made.add_argument(
        "--bandwidth", type=float, default=20.0, metavar="MBIT", help="of (b), in Mb/s; default 20"
    )
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
    options = ["--bandwidth", str(args.bandwidth), *(["--quick"] if args.quick else [])]
    for name in ("data", "cache"):
        if (path := getattr(args, name)) is not None:
            options += [f"--{name}", str(path)]
    results = found_inside(__file__, RANKS, *options)
    settings = results["settings"]
    rows = judged(results["rows"], settings["target"], settings["test_rows"])
    show(rows, settings)
    path = output_path(args, TRAINING)
    write(path, __file__, settings, rows=rows, evidence=evidence(rows, settings))


def part_b_inside(args: argparse.Namespace) -> None:
    """Do the training; this runs in a namespace."""
    leave_properly()
    tag, file = args.inside
    results = inside(
        tag, data=args.data, quick=args.quick, bandwidth=1e6 * args.bandwidth, cache=args.cache
    )
    Path(file).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
