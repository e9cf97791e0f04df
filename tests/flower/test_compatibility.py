"""What apps and Flower itself bring along: NumPyClient, types of weights, other strategies."""

import ast
import importlib.util
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedProx,
)

import hushbit as hb
from flower.parts import OPEN, LocalGrid, add, federation, policy, record, run, strategy, values
from hushbit.errors import InvalidInput
from hushbit.flower import refusals
from hushbit.flower.client import HushbitMod

SOURCES = Path(hb.__file__).parent / "flower"
PUBLIC = ("flwr", "flwr.app", "flwr.clientapp", "flwr.clientapp.typing", "flwr.serverapp")
KEYS = {"arrayrecord_key": "fitins.parameters", "configrecord_key": "fitins.config"}


@pytest.mark.parametrize("place", sorted(SOURCES.glob("*.py")), ids=lambda place: place.stem)
def test_only_public_modules_of_flower_are_imported(place: Path) -> None:
    for node in ast.walk(ast.parse(place.read_text())):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            allowed = (*PUBLIC, "flwr.serverapp.strategy")
            assert name.partition(".")[0] != "flwr" or name in allowed, name


def test_the_error_code_is_that_of_flower() -> None:
    from flwr.common.constant import ErrorCode

    assert refusals.MOD_FAILED_PRECONDITION == ErrorCode.MOD_FAILED_PRECONDITION


class Adding(NumPyClient):
    """A NumPyClient that adds a number, and freezes the last array in its own way."""

    def fit(self, parameters: Any, config: Any) -> Any:
        assert "server-round" in config
        return [one + np.float32(0.25) for one in parameters], 7, {"loss": 0.5, "text": "x"}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        return 0.75, 7, {"accuracy": 0.9}


def numpy_apps(folder: Path, count: int, **limits: Any) -> dict[int, ClientApp]:
    apps = {}
    for at in range(count):
        (folder / str(at)).mkdir()
        mine = policy(folder / str(at), **(OPEN | limits))
        apps[100 + at] = ClientApp(lambda _: Adding().to_client(), mods=[HushbitMod(mine)])
    return apps


def test_a_numpy_client_keeps_metrics_evaluation_and_frozen_arrays(tmp_path: Path) -> None:
    listed = {"metrics": ("loss", "accuracy"), "metric_replies_per_day": 10}
    grid = LocalGrid(numpy_apps(tmp_path, 2, **listed))
    model = {"head.w": np.zeros((2, 3), np.float32), "body.w": np.ones(4, np.float32)}
    made = strategy(optimizer=FedAvg(**KEYS), evaluate_users=True, frozen=["body.*"])
    result = run(grid, made, model=model)
    assert result.train_metrics_clientapp[1]["accepted"] == 2
    assert result.train_metrics_clientapp[1]["users_loss"] == 0.5
    found = result.evaluate_metrics_clientapp[1]
    assert (found["loss"], found["accuracy"]) == (0.75, pytest.approx(0.9))
    assert np.allclose(values(result)["head.w"], 0.25)
    assert np.array_equal(values(result)["body.w"], model["body.w"])


def test_float16_weights_keep_their_type(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [add(0.25), add(0.5)], **OPEN))
    result = run(grid, strategy(), model={"w": np.ones(40, np.float16)})
    assert values(result)["w"].dtype == np.float16
    assert np.allclose(values(result)["w"], 1.375)


def bfloat16(values: np.ndarray) -> Array:
    """An array as packages with a bfloat16 of their own store it, by the upper half of float32."""
    halves = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view("V2")
    buffer = io.BytesIO()
    np.save(buffer, halves)
    return Array("bfloat16", halves.shape, "numpy.ndarray", buffer.getvalue())


def test_bfloat16_weights_are_read_as_float32(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [add(0.25), add(0.5)], **OPEN))
    initial = ArrayRecord({"w": bfloat16(np.full((5, 8), 1.5)), "b": Array(np.zeros(3))})
    found = strategy().start(grid, initial, num_rounds=2)
    assert values(found)["w"].dtype == np.float32
    assert np.allclose(values(found)["w"], 1.5 + 2 * 0.375)


def test_the_error_for_fedprox_states_where_its_parameter_belongs() -> None:
    with pytest.raises(InvalidInput, match=r"train_config=ConfigRecord\(\{'proximal-mu': 0.25\}\)"):
        strategy(optimizer=FedProx(proximal_mu=0.25))
    assert ConfigRecord({"proximal-mu": 0.25})


WRAPPERS = (
    lambda inner: DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 1.0, 2),
    lambda inner: DifferentialPrivacyClientSideFixedClipping(inner, 1.0, 1.0, 2),
    lambda inner: DifferentialPrivacyServerSideAdaptiveClipping(inner, 1.0, 100),
    lambda inner: DifferentialPrivacyClientSideAdaptiveClipping(inner, 1.0, 100),
)


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_differential_privacy_of_flower_around_it_is_refused(
    tmp_path: Path, monkeypatch: Any, wrap: Any
) -> None:
    """No request is sent.

    The constructors of Flower's wrappers, from 1.38 to 1.42, only store the strategy. They read no
    attribute of it and call no method, so it cannot object before the run starts.
    """
    grid = LocalGrid(federation(tmp_path, [add(0.25)] * 2, **OPEN))
    sent: list[Any] = []
    monkeypatch.setattr(grid, "push_messages", lambda messages: sent.extend(messages) or [])
    made = strategy()
    wrapped = wrap(made)
    assert wrapped.strategy is made
    with pytest.raises(InvalidInput, match="differential privacy wrappers"):
        wrapped.start(grid, record({"w": np.ones(40, np.float32)}), num_rounds=1)
    assert not sent
    with pytest.raises(InvalidInput, match="optimizer must be"):
        strategy(optimizer=wrap(FedAvg()))


def test_a_relative_secret_is_beside_the_app(tmp_path: Path, monkeypatch: Any) -> None:
    place = tmp_path / "server_app.py"
    place.write_text("from hushbit.flower import load_secret\nfound = load_secret('secret.key')\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    spec = importlib.util.spec_from_file_location("some_server_app", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (tmp_path / "secret.key").read_bytes() == module.found
    assert "some_server_app" not in sys.modules
