"""Gain of each fast path of local training over the general torch path, on the model it serves.

    python benchmarks/training.py [--repeats 9] [--threads 1] [--json]

Both paths compute the same round in turns; the gain is the ratio of the median CPU seconds. Random
images of the data set's shape are used, since only the time matters.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hushbit.kernels import threads
from hushbit.lab.sim import fast_steps, models, training
from hushbit.lab.sim.optimizers import ConstantRate, Optimizer
from hushbit.lab.sim.partition import Federation

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
PLAIN, KEPT_MOMENTUM = Optimizer(), Optimizer(momentum=0.5, keep_state=True)


@dataclass(frozen=True)
class Case:
    """A fast path, the model and round that use it, and the function that selects it."""

    path: str
    model: str
    shape: tuple[int, int, int]
    users: int
    samples: int
    module: Any
    selector: str
    optimizer: Optimizer = PLAIN
    evaluate: bool = False


CASES = (
    Case("linear SGD step", "linear", MNIST, 1024, 5, fast_steps, "supports_linear_sgd"),
    Case(
        "momentum step",
        "linear",
        MNIST,
        512,
        5,
        fast_steps,
        "supports_momentum_step",
        KEPT_MOMENTUM,
    ),
    Case(
        "momentum step",
        "mlp",
        MNIST,
        512,
        5,
        fast_steps,
        "supports_momentum_step",
        KEPT_MOMENTUM,
    ),
    Case("shared gradients", "cnn2", MNIST, 256, 5, training, "supports_shared_gradients"),
    Case("shared gradients", "cnn3", CIFAR, 16, 16, training, "supports_shared_gradients"),
    Case("conv_pool_relu", "cnn2", MNIST, 256, 5, models, "supports_conv_pool_relu"),
    Case(
        "shared logits",
        "cnn2",
        MNIST,
        2000,
        1,
        training,
        "supports_shared_gradients",
        evaluate=True,
    ),
    Case(
        "shared logits",
        "cnn3",
        CIFAR,
        500,
        1,
        training,
        "supports_shared_gradients",
        evaluate=True,
    ),
)


@contextmanager
def switched_off(case: Case) -> Iterator[None]:
    """Let the function that selects the fast path answer no."""
    selector = getattr(case.module, case.selector)
    setattr(case.module, case.selector, lambda *_: False)
    try:
        yield
    finally:
        setattr(case.module, case.selector, selector)


def job_of(case: Case) -> Callable[[], None]:
    """The round of local training, or the evaluation, that is timed."""
    rng = np.random.default_rng(0)
    samples = case.users * case.samples
    images = rng.integers(0, 256, (samples, *case.shape), dtype=np.uint8)
    labels = rng.integers(0, 10, samples)
    model = models.build_model(case.model, case.shape, 10)
    params = model.init(0)
    if case.evaluate:
        return lambda: training.evaluate(model, params, images, labels) and None
    parts = np.arange(samples).reshape(case.users, -1)
    federation = Federation.of(images, labels, parts)
    settings = training.LocalSettings(ConstantRate(0.03), optimizer=case.optimizer)
    state = training.fresh_state(model.dim, federation.users, settings)

    def run() -> None:
        for _ in training.local_updates(
            model,
            params,
            federation,
            np.arange(case.users),
            settings,
            round_number=0,
            seed=0,
            state=state,
        ):
            pass

    return run


def cpu_seconds(job: Callable[[], None]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    job()
    return time.process_time() - start


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Median seconds of both paths, taken in turns after one untimed call of each."""
    job = job_of(case)
    fast, general = [], []
    for number in range(repeats + 1):
        fast.append(cpu_seconds(job))
        with switched_off(case):
            general.append(cpu_seconds(job))
        if number == 0:  # compiles kernels
            fast.clear()
            general.clear()
    quick, slow = statistics.median(fast), statistics.median(general)
    return {
        "path": case.path,
        "model": case.model,
        "what": f"{case.users} images" if case.evaluate else f"{case.users} x {case.samples}",
        "fast_ms": 1e3 * quick,
        "general_ms": 1e3 * slow,
        "gain": slow / quick,
    }


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--repeats", type=int, default=9)
    asked.add_argument("--threads", type=int, default=1)
    asked.add_argument("--json", action="store_true")
    options = asked.parse_args()
    torch.set_num_threads(options.threads)
    threads.set_threads(options.threads)
    rows = [measure(case, options.repeats) for case in CASES]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'path':18}{'model':8}{'users x samples':>16}{'fast':>12}{'general':>12}{'gain':>7}")
    for row in rows:
        print(
            f"{row['path']:18}{row['model']:8}{row['what']:>16}{row['fast_ms']:9.1f} ms"
            f"{row['general_ms']:9.1f} ms{row['gain']:7.2f}"
        )


if __name__ == "__main__":
    main()
