"""The whole story: search the hyper-parameters of a net with growing batches on a cluster.

``python examples/search_on_a_cluster.py [tcp://scheduler:8786]``: two workers here by default.
"""

import sys
from contextlib import nullcontext

from dask.distributed import Client, LocalCluster
from scipy.stats import loguniform
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from accelerando import NeuralNetClassifier
from accelerando.batch_size import GeoDamp
from accelerando.cost import compare, replan
from accelerando.search import HyperbandSearchCV

SPACE = {
    "lr": loguniform(1e-2, 1),
    "batch_size__initial": [16, 32, 64],
    "batch_size__delay": [1, 2, 4],
}


def main(client: Client) -> None:
    X, y = load_digits(return_X_y=True)
    X, y = (X[:900] / 16).astype("float32"), y[:900]
    X, X_test, y, y_test = train_test_split(X, y, stratify=y, random_state=0)
    net = NeuralNetClassifier(
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        criterion=nn.CrossEntropyLoss,
        optimizer__momentum=0.9,
        batch_size=GeoDamp,  # a class: its settings are searched like any other parameter
        max_epochs=1,  # of one call; the search decides how many calls a model is worth
        train_split=None,
        random_state=0,
        verbose=0,
    )
    # Search: many models train at once, one per worker, the most promising ones first.
    search = HyperbandSearchCV(net, SPACE, max_iter=9, random_state=0, client=client).fit(X, y)
    best = {name: f"{value:.3g}" for name, value in search.best_params_.items()}
    print(f"best of {len(search.cv_results_['params'])} models: {best}")

    # Train the best one for longer, on all workers together, and look at data kept back.
    net.set_params(**search.best_params_, max_epochs=5, client=client, examples_per_worker=64)
    net.fit(X, y)
    print(f"accuracy on the test set: {net.score(X_test, y_test):.3f}")

    # What would the same run take on other machines?
    planned = replan(net.updates_frame(), workers=1, parameters=4_810, examples_per_worker=64)
    print(compare(planned, workers=[1, 2, 4]).sentence())


if __name__ == "__main__":
    local = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    given = nullcontext(sys.argv[1]) if len(sys.argv) > 1 else LocalCluster(**local)
    with given as cluster, Client(cluster) as client:
        main(client)
