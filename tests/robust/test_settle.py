"""The compiled round decides as the rules do one by one, on chance and on scores at their edges."""

import numpy as np
import pytest

from hushbit import CPA, RoundKey, SeededCoins
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.robust.filter import _by_many_rounds, few, halves, judge, ruled
from hushbit.robust.filtered import accepted_only, filtered_tally
from hushbit.robust.humps import halved, middle_of, still_in
from hushbit.robust.memory import Memory
from hushbit.robust.pulls import unmask
from hushbit.robust.rules import STEPS_BACK, TOLERATED, Rule
from hushbit.robust.settle import against_others

RULE = Rule()


class Given:
    """Pulls whose every look is the same."""

    dim, reach, edge = 1, 10.0, 0.2

    def __init__(self, scores):
        self.scores, self.users = scores, scores.shape[1]

    def look(self, above, below, way):
        return self.scores


def drawn(rng, users, kind):
    """Numbers of users: one hump, two, a tail at the edge of the rules, whole numbers, zeros."""
    share = rng.uniform(0, 0.5)
    some, noise = rng.uniform(size=users) < share, rng.normal(size=users)
    if kind == "two humps":
        return noise + rng.choice([-1, 1]) * rng.uniform(5, 50) * some + rng.normal(0, 4)
    if kind == "tail":
        edge = rng.choice([TOLERATED, RULE.share])
        count = min(users, max(0, round(users * edge) + int(rng.integers(-2, 3))))
        noise = np.abs(noise)
        noise[:count] = -STEPS_BACK - rng.choice([0.0, 1e-9, 3.0], count)
        return noise
    if kind == "whole":
        return rng.integers(-9, 9, users).astype(np.float64)
    if kind == "wide":
        return rng.normal(0, rng.uniform(1, 30), users)
    return noise if kind == "noise" else np.zeros(users)


KINDS = ("noise", "two humps", "tail", "whole", "wide", "zeros")


def case(seed):
    """A look, a memory and loaded coins; the look mostly one in which nobody stands out."""
    rng = np.random.default_rng(seed)
    users = int(rng.integers(20, 400))
    usual = ("noise", "noise", "whole", "zeros")
    look = np.stack([drawn(rng, users, rng.choice(usual if seed % 8 else KINDS)) for _ in range(3)])
    rounds = rng.choice([0.0, 0.5, 1.0, 10.0], users)
    sums = [drawn(rng, users, rng.choice(KINDS)) * np.sqrt(np.maximum(rounds, 1)) for _ in range(2)]
    gone = rng.uniform(size=users) < rng.choice([0.0, 0.3, 0.6])
    gone |= (sums[0] < -4) & (rng.uniform() < 0.5)
    coins = rng.uniform(size=users) < rng.choice([0.0, 0.0, 0.1, 0.6])
    everyone = np.ones(users, dtype=np.bool_)
    return look, Memory(*sums, rounds, rng.normal(size=users), gone, everyone), coins


def same(one, other):
    assert one.accepted.dtype == np.bool_
    assert (one.accepted == other.accepted).all()
    for name in ("reach", "coins", "minds", "against", "removed"):
        assert getattr(one, name) == getattr(other, name), name
    for name, part in vars(one.memory).items():
        assert (part == getattr(other.memory, name)).all(), name


@pytest.mark.parametrize("batch", range(4))
def test_a_compiled_round_equals_the_rules_one_by_one(batch):
    found, by_memory = 0, 0
    for seed in range(300 * batch, 300 * (batch + 1)):
        look, memory, coins = case(seed)
        pulls, way = Given(look), np.ones(1)
        loaded = coins if few(coins) else coins & False
        sides = halves(memory, loaded)
        verdict = judge(pulls, RULE, loaded, memory, way)
        same(verdict, ruled(pulls, RULE, loaded, memory, way, sides, look))
        found += verdict.against > 0
        by_memory += bool((verdict.memory.gone & ~memory.gone).any())
    assert found > 30  # or the cases would show nothing
    assert by_memory > 30


def test_sums_at_the_very_edges_are_judged_as_by_the_rules():
    """Rounds of one noise or less, so that sums are compared as they are."""
    limits, found = {users: RULE.limits(users, 1.0, 0.5) for users in range(20, 301)}, 0
    for seed in range(600):
        rng = np.random.default_rng(seed)
        users = int(rng.choice([100, 200, rng.integers(20, 300)]))  # 3 % of some are whole numbers
        sums = [drawn(rng, users, rng.choice(KINDS)) for _ in range(2)]
        present, gone = rng.uniform(size=(2, users)) < [[0.8], [rng.choice([0.0, 0.3])]]
        present[0] = True
        noise = np.sqrt(rounds := rng.choice([1.0, 4.0], users, p=[0.1, 0.9]))
        memory = Memory(*(noise * part for part in sums), rounds, sums[0], gone, present)
        exact = _by_many_rounds(memory, present, RULE, 0.5)
        made = against_others(memory.mean, memory.way, rounds, present, gone, limits[users])
        assert (made == exact).all()
        found += bool(exact.any())
    assert 100 < found < 500


def test_medians_halves_and_who_stays_are_those_of_their_definitions():
    rng = np.random.default_rng(0)
    for number in range(400):
        users = int(rng.integers(1, 80))
        values = drawn(rng, users, KINDS[number % len(KINDS)]) * 10.0 ** rng.integers(-200, 200)
        present = rng.uniform(size=users) < rng.uniform(0.1, 1)
        present[rng.integers(users)] = True
        inside = np.sort(values[present])
        assert middle_of(values, present) == inside[inside.size // 2]
        above, below = halved(values, present)
        assert (above == present & (values > inside[inside.size // 2])).all()
        assert (below == present & ~above).all()
        coins, gone = rng.uniform(size=(2, users)) < rng.uniform(0, 0.8, size=(2, 1))
        out = coins | gone
        stay = ~out if few(out) else ~coins if few(coins) else np.ones_like(coins)
        assert (still_in(coins, gone) == stay).all()


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan, 1e308, -1e308])
def test_a_median_stays_within_its_arrays_whatever_the_numbers(wrong):
    values = np.array([wrong, 1.0, -1e308, 1e308, 2.0])
    assert middle_of(values, np.array([False, True, False, False, True])) == 2.0
    middle_of(values, np.ones(5, dtype=np.bool_))


def test_rows_of_another_width_are_refused_before_any_kernel_reads_them():
    key, wide, narrow = RoundKey(bytes(32), 1), CPA(9000, 0.5, 0.02), CPA(100, 0.5, 0.02)
    keys = key.users(np.arange(30))
    ballots = narrow.encode_many(np.zeros((30, 100)), keys, SeededCoins(0))
    with pytest.raises(RefusedBallot):
        unmask(wide, ballots, key)
    with pytest.raises(InvalidInput, match="shape"):
        wide.absorb(wide.empty_counters(True), ballots.payload, keys)


def test_users_who_come_back_are_counted_once_they_have_been_looked_at():
    """Found before, and with the others now: their ballots are in no half until the next round."""
    users, key = 300, RoundKey(bytes(32), 1)
    mechanism = CPA(5000, 0.5, 0.02)
    ballots = mechanism.encode_many(
        np.zeros((users, 5000)), key.users(np.arange(users)), SeededCoins(0)
    )
    sums, gone = np.full(users, 8.0), np.arange(users) < 100
    everyone = np.ones(users, dtype=np.bool_)
    memory = Memory(sums, sums, np.ones(users), np.arange(users) - 150.0, gone, everyone)
    way = np.ones(5000)
    tally, verdict = filtered_tally(mechanism, ballots, key, memory=memory, way=way)
    assert not verdict.accepted[gone].any()
    assert verdict.memory.gone[gone].mean() < 0.05
    tally, verdict = filtered_tally(mechanism, ballots, key, memory=verdict.memory, way=way)
    assert verdict.accepted[gone].mean() > 0.95
    plain = mechanism.tally(key, histogram=False)
    plain.add_many(accepted_only(ballots, verdict.accepted))
    assert (tally.counters["stage 0"] == plain.counters["stage 0"]).all()
