"""Run by the interpreter of Ray's own environment: its ASHA on sleeping models."""

import json
import os
import sys
import tempfile
import time

import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from _search_model import Sleeper

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"


class Trainable(tune.Trainable):
    def setup(self, config):
        self.model = Sleeper(config["quality"], config["seconds"])
        self.X = np.zeros((100, 2))

    def step(self):
        self.model.partial_fit(self.X)
        return {"score": self.model.score(self.X)}

    def reset_config(self, new_config):  # lets Ray use an actor for more than one model
        self.setup(new_config)
        return True

    def save_checkpoint(self, path):
        return None

    def load_checkpoint(self, checkpoint):
        return None


def main(workers: int, seconds: float, max_iter: int) -> None:
    ray.init(num_cpus=workers, log_to_driver=False, include_dashboard=False)
    scheduler = ASHAScheduler(
        metric="score", mode="max", max_t=max_iter, grace_period=1, reduction_factor=3
    )
    tuner = tune.Tuner(
        tune.with_resources(Trainable, {"cpu": 1}),
        param_space={"quality": tune.uniform(0, 1), "seconds": seconds},
        tune_config=tune.TuneConfig(scheduler=scheduler, num_samples=81, reuse_actors=True),
        run_config=tune.RunConfig(verbose=0, storage_path=tempfile.mkdtemp()),
    )
    start = time.perf_counter()
    results = tuner.fit()
    wall = time.perf_counter() - start
    calls = sum(result.metrics["training_iteration"] for result in results)
    print(json.dumps({"wall": wall, "calls": int(calls)}))
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
