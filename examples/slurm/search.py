"""A search on the Ray cluster that this process is started in; see docs/ray.md.

Environment: STORE, a directory or URL that all machines reach; THREADS, CPUs of each worker. There are as many
workers as the cluster has room for.
"""

import os

import numpy as np
import torch

from hopyard.backend import RayBackend
from hopyard.storage import open_store
from hopyard.torch import TorchEstimator
from hopyard.tune import RandomSearch, hp_choice, hp_loguniform


def estimator_gen_fn(params):
    model = torch.nn.Sequential(
        torch.nn.Linear(20, params["width"]), torch.nn.ReLU(), torch.nn.Linear(params["width"], 2)
    )
    return TorchEstimator(
        model=model,
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        loss=torch.nn.CrossEntropyLoss(),
        metrics=["accuracy"],
        batch_size=32,
    )


rng = np.random.default_rng(0)
features = rng.standard_normal((2_000, 20)).astype(np.float32)
data = {"features": features, "label": (features[:, :10].sum(axis=1) > 0).astype(np.int64)}

search = RandomSearch(
    backend=RayBackend(threads_per_worker=int(os.environ.get("THREADS", "1"))),
    store=open_store(os.environ.get("STORE", "experiments/slurm")),
    estimator_gen_fn=estimator_gen_fn,
    search_space={"width": hp_choice([16, 32, 64]), "lr": hp_loguniform(-3, -1)},
    num_models=8,
    num_epochs=3,
    evaluation_metric="accuracy",
)
model = search.fit(data)
print(f"best: {model.params}, accuracy {max(model.get_history()['val_accuracy']):.3f}")
print(model.run.traffic())
