"""Coins are private, fresh, and never derived from shared keys."""

import numpy as np
import pytest

import hushbit as hb
from hushbit.wire.coins import coin_source

KEY = hb.RoundKey(bytes(32), 1)


def test_the_default_is_the_operating_system() -> None:
    assert isinstance(coin_source(None), hb.OsCoins)


def test_os_coins_are_fresh_for_every_ballot() -> None:
    users = KEY.users(range(50))
    coins = hb.OsCoins()
    drawn = np.concatenate([coins.keys(users), coins.keys(users)])
    assert drawn.shape == (100, 8)
    assert len(np.unique(drawn, axis=0)) == 100


def test_os_coins_come_from_os_urandom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda size: bytes(range(32)) * (size // 32))
    drawn = hb.OsCoins().keys(KEY.users([1, 2]))
    assert drawn.astype("<u4").tobytes() == bytes(range(32)) * 2


def test_two_encodings_of_one_update_differ_by_default() -> None:
    mechanism = hb.CPA(dim=400, epsilon_per_bit=0.5, radius=1.0)
    first, second = (mechanism.encode(np.zeros(400), KEY.user(1)) for _ in range(2))
    assert first.payload != second.payload


def test_seeded_coins_repeat_in_a_second_run_and_never_within_one() -> None:
    first, second = hb.SeededCoins(4), hb.SeededCoins(4)
    users = KEY.users(range(6))
    together = first.keys(users)
    apart = np.concatenate([second.keys(users[:2]), second.keys(users[2:])])
    assert (together == apart).all()
    assert len(np.unique(np.concatenate([together, first.keys(users)]), axis=0)) == 12
    assert (together != hb.SeededCoins(5).keys(users)).any()


def test_simulation_coins_depend_on_seed_round_and_user_alone() -> None:
    coins, again = hb.SimulationCoins(4), hb.SimulationCoins(4)
    users = KEY.users([5, 6, 7])
    assert (coins.keys(users) == again.keys(users)).all()
    assert (coins.keys(users[1:]) == coins.keys(users)[1:]).all()
    other_round = hb.RoundKey(bytes(32), 2).users([5, 6, 7])
    other_secret = hb.RoundKey(b"x" * 32, 1).users([5, 6, 7])
    assert (coins.keys(users) != coins.keys(other_round)).any(axis=1).all()
    assert (coins.keys(users) == coins.keys(other_secret)).all()
    assert (coins.keys(users) != hb.SimulationCoins(5).keys(users)).any(axis=1).all()
    assert (coins.keys(users) != hb.SeededCoins(4).keys(users)).any(axis=1).all()


def test_coins_are_never_the_keys() -> None:
    users = KEY.users(range(20))
    shared = {row.tobytes() for row in users.keys}
    for coins in (hb.OsCoins(), hb.SeededCoins(0), hb.SimulationCoins(0)):
        assert not shared & {row.tobytes() for row in coins.keys(users)}


@pytest.mark.parametrize(
    "coins",
    [
        KEY,
        KEY.user(1),
        KEY.users([1]),
        bytes(32),
        b"",
        7,
        "seed",
        np.zeros(8, np.uint32),
        np.random.default_rng(1),
        hb.OsCoins,
        lambda users: None,
        True,
        [],
    ],
    ids=lambda coins: type(coins).__name__,
)
def test_keys_and_seeds_are_refused_as_coins(coins: object) -> None:
    mechanism = hb.CPA(dim=2, epsilon_per_bit=0.5, radius=1.0)
    with pytest.raises(hb.InvalidInput, match="cannot serve as private coins"):
        mechanism.encode([0.0, 0.0], KEY.user(1), coins)
    with pytest.raises(hb.InvalidInput, match="cannot serve as private coins"):
        mechanism.encode_many([[0.0, 0.0]], KEY.users([1]), coins)


@pytest.mark.parametrize("seed", [-1, 1.0, True, "1", None])
def test_wrong_seeds_are_refused(seed: object) -> None:
    for kind in (hb.SeededCoins, hb.SimulationCoins):
        with pytest.raises(hb.InvalidInput, match="seed"):
            kind(seed)  # type: ignore[arg-type]


def test_reprs_name_the_seed() -> None:
    assert repr(hb.SeededCoins(3)) == "SeededCoins(3)"
    assert repr(hb.SimulationCoins(3)) == "SimulationCoins(3)"
