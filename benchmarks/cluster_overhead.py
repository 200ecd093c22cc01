"""What does an update cost on a Dask cluster, over PyTorch's own DDP started by hand?

Seconds of one update of the same model, optimizer and global batch on two processors, by

ddp          two processes of one thread started by hand, DistributedDataParallel, gloo: the floor
accelerando  NeuralNetClassifier(client=...) on a LocalCluster of two workers of one thread
server       the data flow of the AdaDamp paper on such a cluster: a master holds the model and
             sends it to every worker, the workers send their gradients back, the master makes the
             update; each of it a Dask task
one process  a loop written by hand with two threads: is it worth distributing at all?

All four gather the rows of each batch from arrays in memory, in one global shuffle per epoch. In
the case ``images`` the rows are PNG files, read and augmented by processes of PyTorch's DataLoader,
as many in every way: two. The parameter server has none, and is left out there. The
processes live through the whole benchmark. The ways take turns, in an order shuffled anew each
round; a turn is a stretch of updates whose first ones are left out. Its time is the median over the
rest of the seconds between one update's end and the next one's, the same for all. Ratios are taken
within a round; printed is their median. The mean over the stretch is written down as well: a
median does not see what happens once per epoch.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from distributed import Client, wait
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import accelerando
from _cluster_common import OtherLoad, local_cluster
from _common import (
    Cache,
    NoDataError,
    cnn,
    console,
    count_parameters,
    fashion_mnist,
    mlp,
    output_path,
    parser,
    print_table,
    write,
)
from _images import ImageFiles, color_cnn, paint

LR, MOMENTUM = 0.01, 0.9
BATCHES = (64, 256, 1024, 4096)
RANKS = 2
LOADERS = 2  # processes that read images, over all ranks
FLOOR, OURS, SERVER, ALONE = "ddp", "accelerando", "server", "one process"
DISTURBED = 0.05  # processors used by others, above which a round does not count
SERVER_FACTOR = 10  # how many times faster than the parameter server, at batch 64


class Case(NamedTuple):
    """A data set and a model; every process has its own copy."""

    name: str
    x: torch.Tensor
    y: torch.Tensor
    model: Callable[[], nn.Module]
    files: ImageFiles | None = None  # read by processes of a loader, in place of `x` and `y`

    @property
    def rows(self) -> int:
        return len(self.x) if self.files is None else len(self.files)


class Stretch(NamedTuple):
    """Updates to make: the first `skip` are not timed."""

    batch: int
    skip: int
    updates: int

    def epochs(self, rows: int) -> int:
        """Return the epochs that have at least this many updates."""
        per_epoch = -(-rows // self.batch)
        return -(-(self.skip + self.updates) // per_epoch)


Way = Callable[[Case, Stretch], list[float]]  # returns seconds, one per timed update


def batches(n: int, batch: int, seed: int) -> Iterator[torch.Tensor]:
    """Yield the rows of one batch after the other, epoch after epoch, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(n, generator=generator)
        yield from order.split(batch)


def model_and_optimizer(case: Case) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = case.model()
    return model, torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)


# -- native DDP, and one process alone: loops written by hand in their own processes ------------


def by_hand(case: Case, stretch: Stretch, rank: int, ranks: int) -> list[float]:
    """Train as PyTorch's tutorial on DDP does; return the time of each timed update."""
    model, optimizer = model_and_optimizer(case)
    net = DistributedDataParallel(model) if ranks > 1 else model
    ends, total = [], 0.0
    for x, y in shares(case, stretch, rank, ranks):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
        ends.append(time.perf_counter())
    return np.diff(ends[stretch.skip - 1 :]).tolist()


def shares(case: Case, stretch: Stretch, rank: int, ranks: int) -> Iterator[Any]:
    """Yield a rank's share of each batch, from memory or from a loader's processes."""
    chosen = itertools.islice(batches(case.rows, stretch.batch, 0), stretch.skip + stretch.updates)
    mine = (rows.tensor_split(ranks)[rank] for rows in chosen)
    if case.files is None:
        return ((case.x[rows], case.y[rows]) for rows in mine)
    order = [rows.tolist() for rows in mine]
    return iter(DataLoader(case.files, batch_sampler=order, num_workers=LOADERS // ranks))


def serve(
    rank: int, ranks: int, threads: int, store: str, cases: list[Case], connection: Connection
) -> None:
    """Be one rank: make the stretches that come through the connection until None comes."""
    torch.set_num_threads(threads)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    known = {case.name: case for case in cases}
    connection.send("ready")
    while (order := connection.recv()) is not None:
        name, stretch = order
        connection.send(by_hand(known[name], Stretch(*stretch), rank, ranks))
    if ranks > 1:
        dist.destroy_process_group()


@contextlib.contextmanager
def processes(ranks: int, threads: int, cases: list[Case]) -> Iterator[Way]:
    """Start processes that train by hand; yield a way to train."""
    context = mp.get_context("spawn")
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(threads)  # read when torch is imported
    with tempfile.TemporaryDirectory() as folder:
        started, connections = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            args = (rank, ranks, threads, str(Path(folder) / "store"), cases, theirs)
            process = context.Process(target=serve, args=args)  # a daemon can have no loader
            process.start()
            started.append(process)
            connections.append(ours)
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
        for connection in connections:
            connection.recv()

        def run(case: Case, stretch: Stretch) -> list[float]:
            for connection in connections:
                connection.send((case.name, tuple(stretch)))
            times = [connection.recv() for connection in connections]
            return times[0]

        try:
            yield run
        finally:
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.send(None)
            for process in started:
                process.join(10)
                if process.is_alive():
                    process.kill()


# -- accelerando on Dask ---------------------------------------------------------------------------


def on_dask(case: Case, stretch: Stretch, client: Client) -> list[float]:
    """Train with the estimator on both workers; the ranks' own clock tells the times."""
    net = accelerando.NeuralNetClassifier(
        case.model,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.SGD,
        optimizer__momentum=MOMENTUM,
        lr=LR,
        batch_size=stretch.batch,
        max_epochs=stretch.epochs(case.rows),
        train_split=None,
        random_state=0,
        verbose=0,
        client=client,
        examples_per_worker=stretch.batch // RANKS,
        min_workers=RANKS,
        max_workers=RANKS,
        **({} if case.files is None else {"iterator_train__num_workers": LOADERS // RANKS}),
    )
    if case.files is None:
        net.fit(case.x.numpy(), case.y.numpy())
    else:
        net.fit(case.files, None)
    frame = net.updates_frame()
    timed = slice(stretch.skip - 1, stretch.skip + stretch.updates)
    assert (frame["ranks"].iloc[timed] == RANKS).all(), "timed while not all ranks trained"
    return np.diff(frame["seconds"].to_numpy()[timed]).tolist()


# -- the AdaDamp paper's parameter server in Dask tasks --------------------------------------------
#
# "Architecture" of the paper: (1) the master broadcasts the model to every worker, (2) the workers
# calculate gradients, (3) they communicate them back to the master, (4) the master updates the
# model; Dask carries out all of it. The master is one of the workers, as in the authors' code: the
# model and its optimizer are the result of the update task, and Dask sends them to whoever needs
# them. (The driver as the master, with scatter(broadcast=True) and gather, was tried once on a busy
# machine: slower for the dense network, 49 against 40 ms at batch 64; as fast for the convolutional
# one at 64, 106 against 109 ms; faster for it at 1024, 1.1 against 1.4 s.)
# What else their code does is left out, because it is not in the paper and would only slow it
# down: it scatters the data anew in each epoch, fetches rows one by one, deep-copies the model.


Tensors = list[torch.Tensor]
Model = tuple[Tensors, Tensors]  # parameters, momentum


def server_gradient(
    model: Model,
    data: tuple[torch.Tensor, torch.Tensor],
    rows: torch.Tensor,
    build: Callable[[], nn.Module],
) -> tuple[Tensors, float]:
    """Sum the gradients, and the losses, of a worker's share of the batch."""
    module, (x, y) = _skeleton(build), data
    for own, sent in zip(module.parameters(), model[0], strict=True):
        own.data, own.grad = sent, None
    loss = nn.functional.cross_entropy(module(x[rows]), y[rows], reduction="sum")
    loss.backward()
    return [p.grad for p in module.parameters()], loss.item()  # type: ignore[misc]


def server_update(model: Model, sums: list[tuple[Tensors, float]], rows: int) -> Model:
    """Make a step of SGD with momentum. Results of tasks must not be changed: it makes new ones."""
    parts = zip(*(gradients for gradients, _ in sums), strict=True)
    means = [torch.stack(part).sum(0) / rows for part in parts]
    momentum = [old * MOMENTUM + new for old, new in zip(model[1], means, strict=True)]
    return [p - LR * step for p, step in zip(model[0], momentum, strict=True)], momentum


_skeletons: dict[str, nn.Module] = {}


def _skeleton(build: Callable[[], nn.Module]) -> nn.Module:
    """Build the module once per worker; the parameters that came are put into it."""
    key = repr(build)
    if key not in _skeletons:
        _skeletons[key] = build()
    return _skeletons[key]


class Server:
    """The parameter server; the data are sent to the workers once per case."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.data: dict[str, Any] = {}

    def __call__(self, case: Case, stretch: Stretch) -> list[float]:
        submit = partial(self.client.submit, pure=False)
        workers = sorted(self.client.scheduler_info(n_workers=-1)["workers"])
        if case.name not in self.data:
            self.data[case.name] = self.client.scatter((case.x, case.y), broadcast=True)
        parameters = [p.detach() for p in model_and_optimizer(case)[0].parameters()]
        start: Model = (parameters, [torch.zeros_like(p) for p in parameters])
        model = self.client.scatter(start, workers=workers[:1])
        ends = []
        for rows in itertools.islice(
            batches(len(case.x), stretch.batch, 0), stretch.skip + stretch.updates
        ):
            gradients = [
                submit(
                    server_gradient, model, self.data[case.name], part, case.model, workers=[worker]
                )
                for part, worker in zip(rows.tensor_split(RANKS), workers, strict=True)
            ]
            model = submit(server_update, model, gradients, len(rows), workers=workers[:1])
            wait(model)
            ends.append(time.perf_counter())
        return np.diff(ends[stretch.skip - 1 :]).tolist()


# -- timing ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def ways(names: list[str], cases: list[Case]) -> Iterator[dict[str, Way]]:
    """Start the processes that each way needs, all at once: idle ones only wait for a message."""
    with contextlib.ExitStack() as stack:
        made: dict[str, Way] = {}
        for name in names:
            if name == FLOOR:
                made[name] = stack.enter_context(processes(RANKS, 1, cases))
            elif name == ALONE:
                made[name] = stack.enter_context(processes(1, RANKS, cases))
            elif name == SERVER:
                made[name] = Server(stack.enter_context(local_cluster(RANKS)))
            else:
                made[name] = partial(on_dask, client=stack.enter_context(local_cluster(RANKS)))
        yield made


def measure(
    case: Case, batch: int, made: dict[str, Way], rounds: int, seconds: float, patience: float
) -> dict[str, Any]:
    """Let the ways take turns; return seconds per update and ratios to the floor.

    If there were not enough quiet rounds after `patience` seconds, the least disturbed ones of
    those tried have to do; the row tells how disturbed they were.
    """
    stretches = {
        name: _stretch(case, batch, way, seconds / (2 if name == SERVER else 1))
        for name, way in made.items()
        if case.files is None or name != SERVER
    }
    order = list(stretches)
    shuffle = random.Random(0).shuffle
    tried: list[tuple[float, dict[str, list[float]]]] = []
    began = time.monotonic()
    while True:
        shuffle(order)
        others = OtherLoad()
        times = {name: made[name](case, stretches[name]) for name in order}
        tried.append((others.taken(), times))
        quiet = sum(taken <= DISTURBED for taken, _ in tried)
        late = time.monotonic() - began > patience
        if quiet == rounds or (late and len(tried) >= rounds):
            break
    kept = sorted(tried, key=lambda one: one[0])[:rounds]
    row: dict[str, Any] = {
        "case": case.name,
        "batch_size": batch,
        "rows": case.rows,
        "parameters": count_parameters(case.model()),
        "updates_timed": {name: stretch.updates for name, stretch in stretches.items()},
        "rounds": rounds,
        "rounds_tried": len(tried),
        "processors_taken": [taken for taken, _ in kept],
    }
    for what, summary in (("median", np.median), ("mean", np.mean)):
        of = {name: [float(summary(times[name])) for _, times in kept] for name in order}
        row[f"{what}_seconds"] = of
        ratios = {name: np.array(of[name]) / np.array(of[FLOOR]) for name in order}
        row[f"{what}_ratio"] = {name: float(np.median(r)) for name, r in ratios.items()}
        row[f"{what}_ratio_range"] = {
            name: [float(r.min()), float(r.max())] for name, r in ratios.items()
        }
    return row


def _stretch(case: Case, batch: int, way: Way, seconds: float) -> Stretch:
    """Return a stretch of about this many seconds; trying that out warms everything up."""
    once = float(np.median(way(case, Stretch(batch, 3, 3))))
    updates = int(np.clip(seconds / once, 5, 2000))
    return Stretch(batch, max(3, updates // 10), updates)


# -- verdict ---------------------------------------------------------------------------------------


def most_allowed(batch: int) -> float:
    """Return the target for accelerando's ratio to native DDP."""
    return 1.15 if batch < 256 else 1.05


def verdict(row: dict[str, Any]) -> dict[str, Any]:
    """Say for one row which targets are met; None where a way was not timed."""
    batch, ratio = row["batch_size"], row["median_ratio"]
    ours, server = ratio.get(OURS), ratio.get(SERVER)
    faster = server / ours if server and ours else None
    return {
        "case": row["case"],
        "batch_size": batch,
        "allowed": most_allowed(batch),
        "ratio": ours,
        "within": None if ours is None else ours <= most_allowed(batch),
        "times_faster_than_server": faster,
        "fast_enough": None if faster is None or batch != 64 else faster >= SERVER_FACTOR,
    }


def report(rows: list[dict[str, Any]], verdicts: list[dict[str, Any]], names: list[str]) -> None:
    others = [name for name in names if name != FLOOR]
    print_table(
        f"Milliseconds per update on {RANKS} processors (median over rounds), and ratio to native "
        "DDP (median over rounds, range)",
        [
            "case",
            "batch",
            *names,
            *(f"{name} / {FLOOR}" for name in others),
            "target",
            f"{SERVER} / {OURS}",
            "target",
            "verdict",
            "taken by others",
        ],
        [
            [
                row["case"],
                row["batch_size"],
                *(_milliseconds(row, name) for name in names),
                *(_ratio(row, name) for name in others),
                f"≤ {judged['allowed']}",
                _number(judged["times_faster_than_server"]),
                f"≥ {SERVER_FACTOR}" if judged["fast_enough"] is not None else None,
                _words(judged),
                f"{np.median(row['processors_taken']):.2f}",
            ]
            for row, judged in zip(rows, verdicts, strict=True)
        ],
    )


def _milliseconds(row: dict[str, Any], name: str) -> str | None:
    seconds = row["median_seconds"].get(name)
    return None if seconds is None else f"{1e3 * np.median(seconds):.3g}"


def _ratio(row: dict[str, Any], name: str) -> str | None:
    if name not in row["median_ratio_range"]:
        return None
    low, high = row["median_ratio_range"][name]
    return f"{row['median_ratio'][name]:.2f} ({low:.2f}–{high:.2f})"


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def _words(judged: dict[str, Any]) -> str | None:
    if judged["within"] is None:
        return None
    missed = [
        word
        for word, met in (("DDP", judged["within"]), ("server", judged["fast_enough"]))
        if met is False
    ]
    return f"MISSED: {', '.join(missed)}" if missed else "met"


# -- data and arguments ----------------------------------------------------------------------------


def make_cases(args: argparse.Namespace, folder: Path) -> tuple[list[Case], str]:
    """Return the cases, and where the images come from; `folder` is for files."""
    try:
        images = fashion_mnist(args.data)
        x, y, source = images.x_train, images.y_train, "Fashion-MNIST"
    except NoDataError as error:
        if args.data is not None:
            raise SystemExit(str(error)) from None
        # How long an update takes does not depend on what is in the pictures.
        source = "random images of Fashion-MNIST's size"
        console.print(f"{error} Timing {source} instead.")
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(20_480, 1, 28, 28, generator=generator)
        y = torch.randint(10, (20_480,), generator=generator)
    n = 8_192 if args.quick else 20_480
    x, y = x[:n].clone(), y[:n].clone()
    cases = [
        Case("fashion-mlp", x, y, partial(mlp, 784, 128, 64, 10)),
        Case("fashion-cnn", x, y, cnn),
    ]
    if "images" in args.case:
        nothing = torch.zeros(0)
        files = paint(folder, 1024 if args.quick else 4096)
        cases.append(Case("images", nothing, nothing, color_cnn, files))
    return [case for case in cases if case.name in args.case], source


def arguments() -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument("--rounds", type=int, help="timed rounds (default: 7, quick: 3)")
    names = ("fashion-mlp", "fashion-cnn", "images")
    made.add_argument("--case", nargs="+", choices=names, default=names, help="some cases")
    made.add_argument("--batch", nargs="+", type=int, help="some batch sizes")
    made.add_argument(
        "--way",
        nargs="+",
        choices=(OURS, SERVER, ALONE),
        default=[OURS, SERVER, ALONE],
        help="what to compare with native DDP (default: all)",
    )
    made.add_argument(
        "--patience",
        type=float,
        help="seconds to wait for quiet rounds in each case (default: 60, quick: 3)",
    )
    args = made.parse_args()
    args.rounds = args.rounds or (3 if args.quick else 7)
    args.batch = args.batch or ((64, 256) if args.quick else BATCHES)
    args.patience = args.patience or (3 if args.quick else 60)
    return args


def main() -> None:
    args = arguments()
    cache = Cache(args.cache)
    names = [FLOOR, *args.way]
    seconds = 0.4 if args.quick else 1.0
    rows, earlier = [], []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cases, source = make_cases(args, folder)
        made: dict[str, Way] = {}
        for case, batch in itertools.product(cases, args.batch):
            if case.files is not None and batch > case.rows // 4:
                continue
            key = f"{case.name}/{batch}"
            if key not in cache:
                made = made or stack.enter_context(ways(names, cases))
                cache[key] = measure(case, batch, made, args.rounds, seconds, args.patience)
            else:
                earlier.append(key)
            rows.append(cache[key])
    verdicts = [verdict(row) for row in rows]
    report(rows, verdicts, names)
    settings = {
        "quick": args.quick,
        "optimizer": f"SGD, lr {LR}, momentum {MOMENTUM}",
        "ranks": f"{RANKS} processes of 1 thread; one process: {RANKS} threads",
        "rounds": args.rounds,
        "seconds_per_turn": f"about {seconds}; {SERVER}: half of that",
        "images": source,
        "files": f"PNG files of 48 x 48 pixels, read by {LOADERS} processes in each way",
        "timed": "between the ends of two updates; the first tenth (at least 3) is left out",
        "rounds_kept": "the quietest of those tried, by processors_taken",
        "processors_taken": "by processes of others, in each round kept",
        "dtype": "float32",
        "measured_in_an_earlier_call": earlier,
    }
    write(output_path(args, __file__), __file__, settings, rows=rows, verdicts=verdicts)


if __name__ == "__main__":
    main()
