"""Model and data of the app."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

TEST_SAMPLES = 360


def load_digits_in_order() -> tuple[np.ndarray, np.ndarray]:
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    return bunch.data[order] / 16, bunch.target[order]


def load_data(partition: int, partitions: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits_in_order()
    mine = slice(TEST_SAMPLES + partition, None, partitions)
    return images[mine], labels[mine]


def create_model(local_epochs: int) -> LogisticRegression:
    model = LogisticRegression(max_iter=local_epochs, warm_start=True)
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = np.zeros((10, 64)), np.zeros(10)
    return model


def get_model_params(model: LogisticRegression) -> list[np.ndarray]:
    return [model.coef_, model.intercept_]


def set_model_params(model: LogisticRegression, params: list[np.ndarray]) -> None:
    model.coef_, model.intercept_ = (np.array(one) for one in params)
