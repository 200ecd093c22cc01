"""Predict time, traffic and price of a run on few and on many workers, before renting any.

Run it with ``python examples/plan.py [picture.png]``.
"""

# %% What one worker needs for an example, and a schedule of batch sizes
import sys

from accelerando import plot
from accelerando.batch_size import GeoDamp
from accelerando.cost import Network, compare, plan

planned = plan(
    GeoDamp(initial=256, delay=60, factor=5),
    n_examples=50_000,
    max_epochs=200,
    max_batch_size=5120,
    parameters=2_750_000,
    seconds_per_example=0.00073,  # accelerando.cost.measure(net, X, y) measures it
    network=Network(bandwidth=10e9, latency=50e-6),
    max_workers=16,
    price_per_worker_hour=0.526,
)
print(f"{planned.updates:,} updates, at most {planned.peak_workers} workers at a time")
frame = planned.frame().iloc[[0, 60, 120, 180]]
print(frame[["epoch", "batch_size", "workers", "seconds"]].round(1).to_string(index=False))

# %% The same run with other limits on the number of workers
found = compare(planned, workers=[1, 2, 4, 8, 16, 40])
print(found.sentence())

# %% As a figure
figure = plot.plan(found)
if len(sys.argv) > 1:
    figure.savefig(sys.argv[1])
