"""Local training of own modules as a Task, compared with the built-in models of the same layers.

    python benchmarks/task.py [--repeats 9] [--threads 1] [--json]

Both compute the same round in turns, on the same random images of MNIST's shape: one step of SGD on
five samples of each user. The ratio is that of the median CPU seconds, built-in over own: 1 is
equally fast, 0.5 takes twice the time.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hushbit.kernels import threads
from hushbit.lab.sim.models import build_model
from hushbit.lab.sim.optimizers import ConstantRate
from hushbit.lab.sim.partition import Federation
from hushbit.lab.sim.task import Task
from hushbit.lab.sim.training import LocalSettings, evaluate, local_updates, normalised

SHAPE, CLASSES, SAMPLES, TEST = (1, 28, 28), 10, 5, 2000
USERS = {"linear": 1024, "cnn2": 256}


class CNN2(nn.Module):
    """The layers of the built-in model cnn2."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 6, 5)
        self.fc1, self.fc2 = nn.Linear(96, 50), nn.Linear(50, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, CLASSES)),
    "cnn2": CNN2,
}


def jobs(name: str) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """Training and evaluation, each by the built-in model and by the task."""
    users, rng = USERS[name], np.random.default_rng(0)
    images = rng.integers(0, 256, (users * SAMPLES + TEST, *SHAPE), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, len(images))
    test, settings = slice(users * SAMPLES, None), LocalSettings(ConstantRate(0.03))
    parts, everyone = np.arange(users * SAMPLES).reshape(users, -1), np.arange(users)
    model, federation = build_model(name, SHAPE, CLASSES), Federation.of(images, labels, parts)
    params, when = model.init(0), {"round_number": 0, "seed": 0}
    pixels = normalised(images, model.pixel_range)
    task = Task(
        MODULES[name],
        F.cross_entropy,
        parts,
        (pixels[test], labels[test]),
        data=(pixels, labels),
    )

    def drain(chunks: Any) -> None:
        for _ in chunks:
            pass

    return {
        "training": (
            lambda: drain(local_updates(model, params, federation, everyone, settings, **when)),
            lambda: drain(task.local_updates(params, everyone, settings, **when)),
        ),
        "evaluation": (
            lambda: evaluate(model, params, images[test], labels[test]) and None,
            lambda: task.evaluate(params) and None,
        ),
    }


def cpu_seconds(job: Callable[[], None]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    job()
    return time.process_time() - start


def measure(model: str, what: str, pair: Any, repeats: int) -> dict[str, Any]:
    """Medians of both, taken in turns after one untimed call of each."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(repeats + 1):
        for job, kept in zip(pair, times, strict=True):
            spent = cpu_seconds(job)
            if number:  # the first call compiles kernels
                kept.append(spent)
    built_in, own = (statistics.median(kept) for kept in times)
    return {"model": model, "what": what, "ratio": built_in / own}


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--repeats", type=int, default=9)
    asked.add_argument("--threads", type=int, default=1)
    asked.add_argument("--json", action="store_true")
    options = asked.parse_args()
    torch.set_num_threads(options.threads)
    threads.set_threads(options.threads)
    rows = [
        measure(name, what, pair, options.repeats)
        for name in MODULES
        for what, pair in jobs(name).items()
    ]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print("speed of an own module, built-in model = 1")
    for row in rows:
        print(f"{row['model']:8}{row['what']:12}{row['ratio']:6.2f}")


if __name__ == "__main__":
    main()
