"""Reference runs in this process: codecs, each of which steps with what would be decoded."""

from __future__ import annotations

from accelerando import compress
from tests.reference.pieces import Wide, add, classifier, problem

RUNS = {}


def more_bits(signals):
    return {"bits": 2 + signals.epoch}


# As functions: some may be gone in a later version, and the test then skips their runs.
CODECS = {
    "QSGD": lambda: compress.QSGD(bits=4, norm=2.0),
    "QSGD, one bucket, other norm": lambda: compress.QSGD(bits=2, bucket=None, norm=float("inf")),
    "QSGD, elias": lambda: compress.QSGD(bits=2, bucket=None, norm=2.0, coding="elias"),
    "TernGrad": compress.TernGrad,
    "TernGrad, buckets": lambda: compress.TernGrad(bucket=256),
    "LqQuantize": lambda: compress.LqQuantize(q=2.0),
    "LqQuantize, q=1, buckets": lambda: compress.LqQuantize(q=1.0, bucket=128),
    "Atomo": lambda: compress.Atomo(budget=3),
    "Atomo, exact": lambda: compress.Atomo(budget=2, method="exact"),
    "Atomo, randomized": lambda: compress.Atomo(budget=2, method="randomized"),
    "Atomo, entries": lambda: compress.Atomo(budget=100, atoms="entries"),
    "Atomo, fourier": lambda: compress.Atomo(budget=100, atoms="fourier"),
    "TopK": lambda: compress.TopK(0.1),
    "TopK, error feedback": lambda: compress.ErrorFeedback(compress.TopK(0.1)),
    "SignSGD, error feedback": lambda: compress.ErrorFeedback(compress.SignSGD()),
    "RandomK": lambda: compress.RandomK(0.3),
    "RandomK, error feedback": lambda: compress.ErrorFeedback(compress.RandomK(0.3, rescale=False)),
    "Adaptive": lambda: compress.Adaptive(compress.QSGD(bits=1, norm=2.0), more_bits),
}
# The redesign may delete these (and nothing else).
MAY_GO = (
    "QSGD, elias",
    "SignSGD, error feedback",
    "RandomK",
    "RandomK, error feedback",
    "Adaptive",
)


def compressed(codec, **params):
    return classifier(Wide, compression=codec, **{"lr": 0.2, "max_epochs": 2, **params})


WIDE = {"n": 61, "inputs": 32}
for name, make in CODECS.items():
    add(RUNS, "codec", name, lambda client, make=make: compressed(make()).fit(*problem(**WIDE)))
add(
    RUNS,
    "codec",
    "QSGD, float32, BatchNorm, micro-batches",
    lambda client: compressed(
        compress.QSGD(bits=4, norm=2.0),
        module__double=False,
        module__norm=True,
        micro_batch_size="auto",
    ).fit(*problem(**WIDE, dtype="float32")),
)
