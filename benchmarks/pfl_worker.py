"""Timed rounds of pfl on stored data, in an environment of its own; see pfl_round.py.

python pfl_worker.py DATA.npz ROUNDS THREADS [USERS]   ->   one JSON line
"""

import importlib.metadata
import json
import resource
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel


class Linear(torch.nn.Linear):
    """A linear layer from 784 to 10 with the loss method that pfl calls."""

    def loss(self, images, labels, is_eval=False):
        return F.cross_entropy(self(images), labels)

    def metrics(self, images, labels, is_eval=True):
        return {}


class Times(TrainingProcessCallback):
    """Records wall and CPU time after every round."""

    def __init__(self):
        self.marks = [(time.perf_counter(), time.process_time())]

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.marks.append((time.perf_counter(), time.process_time()))
        return False, Metrics()


def main():
    file, rounds, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if threads:
        torch.set_num_threads(threads)
    stored = np.load(file)
    share = slice(None, int(sys.argv[4]) if len(sys.argv) > 4 else None)
    images = torch.from_numpy(stored["images"][share])  # (users, samples, 784), float32
    labels = torch.from_numpy(stored["labels"][share])
    users, samples = labels.shape
    data = FederatedDataset(
        lambda user: Dataset([images[int(user)], labels[int(user)]]),
        get_user_sampler("minimize_reuse", list(range(users))),
    )
    net = Linear(784, 10)
    model = PyTorchModel(
        net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    times = Times()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=10**6,
            train_cohort_size=users,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(
            local_learning_rate=float(stored["rate"]), local_num_epochs=1, local_batch_size=samples
        ),
        None,
        callbacks=[times],
    )
    wall, cpu = (np.diff([mark[part] for mark in times.marks])[1:] for part in (0, 1))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps(
            {
                "wall": wall.min(),
                "cpu": cpu.min(),
                "cpu_median": float(np.median(cpu)),
                "wall_median": float(np.median(wall)),
                "users": users,
                "peak_mb": peak,
                "pfl": importlib.metadata.version("pfl"),
                "torch": torch.__version__,
            }
        )
    )


main()
