"""Mechanisms, their ballots and full tallies, for the tests of tallies and their files."""

import numpy as np

import hushbit as hb

KEY = hb.RoundKey(bytes(range(32)), 3)
MECHANISMS = {
    "two": hb.CPA(dim=11, epsilon_per_bit=0.5, radius=1.0),
    "four": hb.CPA(dim=11, epsilon_per_bit=0.5, radius=1.0, points=4),
    "odd": hb.CPA(dim=11, epsilon_per_bit=0.5, radius=1.0, points=3),
    "nested": hb.NestedCPA(dim=11, epsilon_per_bit=0.5, radius=1.0, stages=(2, 4)),
    "dither": hb.CPA(dim=11, epsilon_per_bit=0.5, radius=1.0, points=4, rounding="subtractive"),
    "subset": hb.Subset(hb.CPA(dim=11, epsilon_per_bit=0.5, radius=1.0), report=4),
}
USERS = 24
BALLOTS = {
    name: m.encode_many(
        np.random.default_rng(1).normal(0, 0.5, (USERS, 11)),
        KEY.users(range(USERS)),
        hb.SeededCoins(1),
    )
    for name, m in MECHANISMS.items()
}


def state(tally: hb.Tally) -> tuple[object, ...]:
    """Counters, voters and count of a tally, for comparison."""
    counters = {name: array.tobytes() for name, array in tally.counters.items()}
    return counters, tally.voters.users().tolist(), tally.count


def full(name: str) -> hb.Tally:
    """A tally of all ballots of a mechanism."""
    tally = MECHANISMS[name].tally(KEY)
    tally.add_many(BALLOTS[name])
    return tally
