"""Data and training of the app: softmax regression in NumPy."""

import numpy as np
from sklearn.datasets import load_digits

TEST_SAMPLES = 360


def load_digits_in_order() -> tuple[np.ndarray, np.ndarray]:
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    return (bunch.data[order] / 16).astype(np.float32), bunch.target[order]


def load_data(partition: int, partitions: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits_in_order()
    mine = slice(TEST_SAMPLES + partition, None, partitions)
    return images[mine], labels[mine]


def initial_model() -> list[np.ndarray]:
    return [np.zeros((64, 10), np.float32), np.zeros(10, np.float32)]


def probabilities(model: list[np.ndarray], images: np.ndarray) -> np.ndarray:
    scores = images @ model[0] + model[1]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def train(
    model: list[np.ndarray], images: np.ndarray, labels: np.ndarray, rate: float
) -> list[np.ndarray]:
    for _ in range(5):
        error = probabilities(model, images) - np.eye(10, dtype=np.float32)[labels]
        slope = [images.T @ error / len(labels), error.mean(axis=0)]
        model = [one - np.float32(rate) * change for one, change in zip(model, slope, strict=True)]
    return model


def test(model: list[np.ndarray], images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    found = probabilities(model, images)
    loss = -np.log(found[np.arange(len(labels)), labels] + 1e-9).mean()
    return float(loss), float((found.argmax(axis=1) == labels).mean())
