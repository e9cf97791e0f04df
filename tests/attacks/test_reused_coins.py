"""Private coins are never used twice: the attack on two norm votes, and all draws of a ballot.

Two votes on the norm that share a flip reveal their XOR without noise: the server learns whether
the norm lies between two levels, whatever the epsilon.
"""

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hushbit as hb
from hushbit.mechanism import Mechanism
from hushbit.wrappers import NormVote

KEY = hb.RoundKey(bytes(range(32)), 1)
BALLOTS = 4000
SIGMAS = 6.0
EPSILON = 0.5
PROGRAM = """
import sys, warnings
sys.modules["numba"] = None
sys.path[:0] = {path!r}
warnings.simplefilter("ignore")
import recorded_draws
recorded_draws.main()
"""


def two_votes(inner: Mechanism) -> Mechanism:
    return NormVote(NormVote(inner, 1.0, EPSILON), 2.0, EPSILON)


def three_votes(inner: Mechanism) -> Mechanism:
    return NormVote(hb.Rotated(two_votes(inner)), 3.0, EPSILON)


def votes_apart(inner: Mechanism) -> Mechanism:
    return hb.Rotated(NormVote(hb.Rotated(NormVote(inner, 1.0, EPSILON)), 2.0, EPSILON))


def bits_of(mechanism: Mechanism, update: np.ndarray) -> np.ndarray:
    """The bits of many ballots of one update, under one key."""
    keys = KEY.users([7] * BALLOTS)
    coins = hb.SeededCoins(5).keys(keys)
    payload, _ = mechanism.encode_payload(np.tile(update, (BALLOTS, 1)), keys, coins)
    return np.unpackbits(payload, axis=1, bitorder="little")[:, : mechanism.payload_bits]


@pytest.mark.parametrize("compose", [two_votes, three_votes, votes_apart])
def test_the_xor_of_two_votes_is_as_noisy_as_two_flips(
    compose: Callable[[Mechanism], Mechanism],
) -> None:
    """P(XOR is the truth) = p² + (1 - p)²; a shared flip would make it 1."""
    mechanism = compose(hb.CPA(2, EPSILON, 1.0))
    truth = math.exp(EPSILON) / (1 + math.exp(EPSILON))
    expected = truth**2 + (1 - truth) ** 2
    for norm, levels in itertools.product((0.5, 1.5, 2.5), itertools.combinations((1, 2, 3), 2)):
        votes = bits_of(mechanism, np.array([norm, 0.0]))[:, 2:]
        if max(levels) > votes.shape[1]:
            continue
        first, second = (votes[:, level - 1] for level in levels)
        between = (norm <= levels[0]) != (norm <= levels[1])
        right = ((first ^ second) == between).mean()
        assert abs(right - expected) < SIGMAS * math.sqrt(expected * (1 - expected) / BALLOTS)


@pytest.mark.parametrize("compose", [two_votes, three_votes, votes_apart])
@pytest.mark.parametrize(
    "inner",
    [
        hb.CPA(4, EPSILON, 1.0),
        hb.CPA(4, EPSILON, 1.0, points=4),
        hb.NestedCPA(4, EPSILON, 1.0, stages=(2, 2), rounding="nearest"),
        hb.Subset(hb.CPA(4, EPSILON, 1.0), 3),
    ],
    ids=repr,
)
def test_no_two_bits_of_a_ballot_share_a_coin(
    compose: Callable[[Mechanism], Mechanism], inner: Mechanism
) -> None:
    """The bits of one update under one key differ by coins only, so they are not correlated."""
    bits = bits_of(compose(inner), np.array([0.3, -0.7, 0.1, 0.5])).astype(float)
    bits = bits[:, bits.std(axis=0) > 0]  # without the padding of a stage
    correlation = np.corrcoef(bits.T) - np.eye(bits.shape[1])
    assert bits.shape[1] > 4
    assert np.abs(correlation).max() < SIGMAS / math.sqrt(BALLOTS)


def test_no_position_of_the_coins_is_drawn_twice() -> None:
    """Every kind of mechanism in wrappers, and all compositions of wrappers up to depth 4."""
    path = [str(Path(__file__).parents[1]), *sys.path]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(path=path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert len(found) > 90
    for mechanism, draws, twice in found:
        assert draws > 0, mechanism
        assert twice == [], mechanism


def test_every_ballot_has_new_coins() -> None:
    """Also ballots of one user in one round, in two tiers."""
    tiers = hb.Tiers(hb.CPA(64, 0.5, 1.0), two_votes(hb.CPA(64, 0.5, 1.0)))
    seen = {
        tiers.encode(np.zeros(64), KEY.user(1), tier=tier).payload[:8]
        for tier in (0, 1)
        for _ in range(50)
    }
    assert len(seen) == 100
