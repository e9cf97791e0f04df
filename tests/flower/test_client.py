"""The client mod: what it sends, refuses and charges."""

import json
import math
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.clientapp.mod import fixedclipping_mod, message_size_mod

import hushbit as hb
from flower.parts import context, policy, shifting_app, train_message
from hushbit import baselines
from hushbit.errors import InvalidInput
from hushbit.flower import client
from hushbit.flower.client import HushbitMod
from hushbit.flower.records import read_ballot, request_entries
from hushbit.registry import description_text

MODEL = {"w": np.zeros((3, 4), np.float32), "b": np.ones(2, np.float32)}
CPA = hb.CPA(14, 1.0, 0.05)
ROUND = hb.RoundKey(bytes(32), 2, b"run")
FEDAVG = {"mechanisms": ("FedAvg",), "epsilon_per_bit": math.inf, "allow_unproven": True}


def add(amount: float) -> Any:
    return lambda arrays: {
        k: v + v.dtype.type(amount) if v.dtype.kind == "f" else v + 1 for k, v in arrays.items()
    }


def ask(
    folder: Path,
    mechanism: hb.Mechanism = CPA,
    model: Any = MODEL,
    frozen: Any = (),
    shift: Any = None,
    more_mods: Any = (),
    entries: Any = None,
    round_key: hb.RoundKey | None = None,
    **changes: Any,
) -> Message:
    """The reply of a new process to a request, by default of a new run."""
    app = shifting_app(shift or add(0.01), [HushbitMod(policy(folder, **changes)), *more_mods])
    round_key = round_key or hb.RoundKey(bytes(32), 2, secrets.token_bytes(16))
    asked = request_entries(description_text(mechanism), round_key.user(9), frozen)
    return app(train_message(model, asked | (entries or {})), context())


def decoded(mechanism: hb.Mechanism, reply: Message) -> np.ndarray:
    tally = mechanism.tally(ROUND, require_mac=True)
    tally.add(read_ballot(reply.content, 1000))
    return mechanism.estimate(tally).mean


def reason(reply: Message) -> str:
    return str(reply.error.reason).partition(":")[0]


def spent(folder: Path) -> int:
    ledger = folder / "ledger.db"
    return len(hb.Ledger.open(ledger).entries()) if ledger.exists() else 0


def test_the_reply_is_one_ballot_and_nothing_else(tmp_path: Path) -> None:
    reply = ask(tmp_path)
    assert list(reply.content) == ["ballot"]
    ballot = read_ballot(reply.content, 100)
    assert (ballot.fingerprint, ballot.round, ballot.user) == (CPA.fingerprint, 2, 9)
    assert ballot.bits == 14
    [entry] = hb.Ledger.open(tmp_path / "ledger.db").entries("me")
    assert (entry.round, entry.mechanism, entry.cost) == (2, "CPA", hb.Cost(((1.0, 14),)))


def test_the_ballot_encodes_the_update(tmp_path: Path) -> None:
    mechanism = hb.CPA(14, math.inf, 0.05, rounding="nearest")
    signs = np.where(np.arange(14) % 3 == 0, -0.01, 0.01).astype(np.float32)

    def shift(arrays: Any) -> Any:
        return {"w": arrays["w"] + signs[:12].reshape(3, 4), "b": arrays["b"] + signs[12:]}

    limits = {"epsilon_per_bit": math.inf, "allow_unproven": True, "roundings": ("nearest",)}
    reply = ask(tmp_path, mechanism, shift=shift, round_key=ROUND, **limits)
    assert np.array_equal(np.sign(decoded(mechanism, reply)), np.sign(signs))


@pytest.mark.parametrize(
    ("mechanism", "changes"),
    [
        (hb.CPA(14, 1.5, 0.05), {}),
        (hb.CPA(14, math.inf, 0.05), {}),
        (CPA, {"epsilon_per_message": 5.0}),
        (CPA, {"mechanisms": ("NestedCPA",)}),
        (hb.Rotated(CPA), {}),
        (baselines.FedAvg(14), FEDAVG | {"epsilon_per_bit": 1.0}),
        (baselines.FedAvg(14), FEDAVG | {"allow_unproven": False}),
        (CPA, {"budget": 10.0, "delta": 0.0}),
    ],
)
def test_a_request_that_exceeds_the_policy_is_refused_without_a_charge(
    tmp_path: Path, mechanism: hb.Mechanism, changes: Any
) -> None:
    reply = ask(tmp_path, mechanism, **changes)
    assert reply.has_error()
    assert spent(tmp_path) == 0


def test_a_refused_request_is_not_trained(tmp_path: Path) -> None:
    def never(_: Any) -> Any:
        pytest.fail("a refused request must not train")

    assert ask(tmp_path, hb.CPA(14, 2.0, 0.05), shift=never).has_error()


def test_a_mechanism_that_is_not_listed_or_does_not_fit_is_not_built(tmp_path: Path) -> None:
    def never(_: Any) -> Any:
        pytest.fail("a refused request must not train")

    magic = {"hushbit-mechanism": '{"mechanism":"Magic","dim":14}'}
    reply = ask(tmp_path, shift=never, entries=magic)
    assert reply.error.reason == "version: this client has no mechanism named Magic"
    newer = {"hushbit-mechanism": json.dumps(hb.CPA(14, 1.0, 0.05).description | {"newer": 1})}
    reply = ask(tmp_path, shift=never, entries=newer)
    assert reply.error.reason == "version: this client has no parameter named 'newer'"
    reply = ask(tmp_path, hb.CPA(15, 1.0, 0.05), shift=never)
    assert reply.error.reason.startswith("configuration: the server's mechanism encodes 15 entries")


def test_requests_that_the_policy_allows_are_accepted(tmp_path: Path) -> None:
    allowed = FEDAVG | {"mechanisms": ("FedAvg", "Rotated/CPA", "SignRR")}
    for mechanism in (baselines.FedAvg(14), hb.Rotated(CPA), baselines.SignRR(14, 1.0, 0.1)):
        assert not ask(tmp_path, mechanism, **allowed).has_error()
    assert not ask(tmp_path, CPA, epsilon_per_message=14.0, delta=0.0).has_error()


def test_the_budget_is_kept_between_restarts(tmp_path: Path) -> None:
    limits = {"budget": 30.0, "delta": 0.0}
    answers = [ask(tmp_path, **limits).has_error() for _ in range(3)]
    assert answers == [False, False, True]
    assert spent(tmp_path) == 2
    assert reason(ask(tmp_path, budget=20.0, delta=0.0)) == "budget"


def test_a_client_without_budget_does_not_train(tmp_path: Path) -> None:
    limits = {"budget": 30.0, "delta": 0.0}
    for _ in range(2):
        assert not ask(tmp_path, **limits).has_error()

    def never(_: Any) -> Any:
        pytest.fail("a client without budget must not train")

    reply = ask(tmp_path, shift=never, **limits)
    assert reply.error.reason == "budget: the client's budget is spent"
    assert spent(tmp_path) == 2


def test_a_budget_for_exactly_two_ballots_allows_two(tmp_path: Path) -> None:
    answers = [ask(tmp_path, budget=28.0, delta=0.0).has_error() for _ in range(3)]
    assert answers == [False, False, True]


def test_a_refusal_is_logged_on_one_line(tmp_path: Path, monkeypatch: Any) -> None:
    logged: list[str] = []
    monkeypatch.setattr(client, "log", lambda _, text, *more: logged.append(text % more))
    name = '{"mechanism":"Magic\\nINFO : sending private bits","dim":14}'
    assert ask(tmp_path, entries={"hushbit-mechanism": name}).has_error()
    assert "Magic\\nINFO" in logged[-1]
    assert "\n" not in logged[-1]


def test_a_server_cannot_change_the_policy(tmp_path: Path) -> None:
    entries = {"epsilon_per_bit": 99.0, "hushbit-policy": "loose.toml", "budget": 1e9}
    assert ask(tmp_path, hb.CPA(14, 2.0, 0.05), entries=entries).has_error()


@pytest.mark.parametrize(
    "entries",
    [
        {"hushbit-key": b"short"},
        {"hushbit-key": "text"},
        {"hushbit-mechanism": "{}"},
        {"hushbit-mechanism": 3},
        {"hushbit-mechanism": description_text(hb.CPA(15, 1.0, 0.05))},
        {"hushbit-frozen": "w"},
        {"hushbit-frozen": '["*"]'},
        {"hushbit-frozen": ["w"]},
    ],
)
def test_invalid_requests_are_refused(tmp_path: Path, entries: Any) -> None:
    assert reason(ask(tmp_path, entries=entries)) in ("configuration", "policy")
    assert spent(tmp_path) == 0


def test_a_train_message_without_a_request_is_refused(tmp_path: Path) -> None:
    app = shifting_app(add(0.01), [HushbitMod(policy(tmp_path))])
    assert app(train_message(MODEL, {"lr": 0.1}), context()).has_error()


def test_the_client_clips_to_the_norm_of_its_policy(tmp_path: Path) -> None:
    fedavg = baselines.FedAvg(14)
    reply = ask(tmp_path, fedavg, shift=add(3.0), l2_clip=0.5, round_key=ROUND, **FEDAVG)
    assert np.linalg.norm(decoded(fedavg, reply)) == pytest.approx(0.5, rel=1e-5)


def test_integer_and_frozen_arrays_are_not_encoded(tmp_path: Path) -> None:
    model = {
        "fc.weight": np.zeros((3, 4), np.float32),
        "bn.running_mean": np.zeros(2, np.float32),
        "bn.num_batches_tracked": np.array(3),
        "scale": np.array(1.0, np.float64),
    }
    assert not ask(tmp_path, hb.CPA(15, 1.0, 0.05), model=model).has_error()
    frozen = hb.CPA(13, 1.0, 0.05)
    assert not ask(tmp_path, frozen, model=model, frozen=["*.running_*"]).has_error()


def test_other_mods_can_be_used(tmp_path: Path) -> None:
    entries = {"clipping_norm": 0.001}
    mods = [fixedclipping_mod, message_size_mod]
    fedavg = baselines.FedAvg(14)
    reply = ask(tmp_path, fedavg, more_mods=mods, entries=entries, round_key=ROUND, **FEDAVG)
    assert np.linalg.norm(decoded(fedavg, reply)) == pytest.approx(0.001, rel=1e-3)
    outside = shifting_app(add(0.01), [message_size_mod, HushbitMod(policy(tmp_path))])
    later = hb.RoundKey(bytes(32), 3, b"run").user(9)
    asked = train_message(MODEL, request_entries(description_text(CPA), later, ()))
    assert not outside(asked, context()).has_error()


def test_the_received_message_is_not_changed(tmp_path: Path) -> None:
    app = shifting_app(add(0.01), [HushbitMod(policy(tmp_path))])
    message = train_message(MODEL, request_entries(description_text(CPA), ROUND.user(9), ()))
    name = message.object_id
    assert read_ballot(app(message, context()).content, 100).bits == 14
    assert message.object_id == name


def test_coins_come_from_the_operating_system(tmp_path: Path, monkeypatch: Any) -> None:
    wide = hb.CPA(2000, 0.1, 0.05)
    model = {"w": np.zeros(2000, np.float32)}
    bits = {read_ballot(ask(tmp_path, wide, model=model).content, 999).payload for _ in range(3)}
    assert len(bits) == 3
    source = (Path(hb.__file__).parent / "flower" / "client.py").read_text()
    assert "OsCoins()" in source
    for path in (Path(hb.__file__).parent / "flower").glob("*.py"):
        assert "SeededCoins" not in path.read_text()
        assert "SimulationCoins" not in path.read_text()


def test_no_ballot_is_sent_if_the_ledger_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a ledger")
    text = "configuration: the client cannot answer; its log has the reason"
    assert ask(tmp_path).error.reason == text


def test_the_mod_requires_a_policy() -> None:
    for wrong in (None, 3, {"epsilon_per_bit": 1.0}):
        with pytest.raises(InvalidInput):
            HushbitMod(wrong)
