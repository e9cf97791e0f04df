"""Tallies: adding and merging are exact and commute; invalid ballots change nothing."""

import itertools
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hushbit as hb
from hushbit.wire.ballot import Ballots
from tally.tally_samples import BALLOTS, KEY, MECHANISMS, USERS, full, state


@pytest.mark.parametrize("name", MECHANISMS)
@settings(max_examples=15)
@given(st.permutations(range(USERS)), st.lists(st.integers(0, USERS), max_size=4), st.randoms())
def test_any_order_split_and_grouping_gives_the_same_counters(
    name: str, order: list[int], cuts: list[int], random: "st.randoms"
) -> None:
    edges = [0, *sorted(cuts), USERS]
    tallies = []
    for first, last in itertools.pairwise(edges):
        tally, part = MECHANISMS[name].tally(KEY), [BALLOTS[name][u] for u in order[first:last]]
        if random.random() < 0.5:
            tally.add_many(part)
        else:
            for ballot in part:
                tally.add(ballot)
        tallies.append(tally)
    while len(tallies) > 1:
        left, right = tallies.pop(random.randrange(len(tallies))), random.choice(tallies)
        right.merge(left)
    assert state(tallies[0]) == state(full(name))


@pytest.mark.parametrize("name", MECHANISMS)
def test_merge_commutes_and_the_empty_tally_is_neutral(name: str) -> None:
    def part(first: int, last: int) -> hb.Tally:
        tally = MECHANISMS[name].tally(KEY)
        tally.add_many(BALLOTS[name][first:last])
        return tally

    one, two = part(0, 10), part(10, USERS)
    one.merge(part(10, USERS))
    two.merge(part(0, 10))
    assert state(one) == state(two) == state(full(name))
    one.merge(MECHANISMS[name].tally(KEY))
    empty = MECHANISMS[name].tally(KEY)
    empty.merge(two)
    assert state(one) == state(empty) == state(two)


def changed(ballot: hb.Ballot, **parts: object) -> hb.Ballot:
    values = {
        "fingerprint": ballot.fingerprint,
        "round": ballot.round,
        "user": 1000,
        "bits": ballot.bits,
        "payload": ballot.payload,
    }
    return hb.Ballot(**(values | parts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"fingerprint": bytes(8)}, "mechanism"),
        ({"round": 4}, "round"),
        ({"bits": 12}, "length"),
        ({"bits": 3}, "length"),
        ({"payload": b"\x01"}, "length"),
        ({"payload": b"\x01\x01\x01"}, "length"),
        ({"payload": b"\x01\x08"}, "padding"),
        ({"user": 5}, "duplicate"),
    ],
)
def test_refusals_change_nothing(parts: dict[str, object], reason: str) -> None:
    good = BALLOTS["two"][0]
    for many in (False, True):
        tally = full("two")
        before = state(tally)
        bad = changed(good, **parts)
        with pytest.raises(hb.RefusedBallot) as caught:
            tally.add_many([changed(good, user=999), bad]) if many else tally.add(bad)
        assert caught.value.reason == reason
        assert len(str(caught.value)) > 20
        assert state(tally) == before
        tally.add(changed(good))
        assert tally.count == USERS + 1


def test_ballots_of_another_run_are_refused() -> None:
    """Runs have other keys, so the words of their ballots differ."""
    mechanism = hb.CPA(14, 0.5, 1.0)
    keys = [hb.RoundKey(bytes(32), 2, run=run) for run in (b"one", b"two")]
    tally = mechanism.tally(keys[0])
    wrong = mechanism.encode([0.0] * 14, keys[1].user(9))
    for add in (lambda: tally.add(wrong), lambda: tally.add_many(Ballots.stack([wrong]))):
        with pytest.raises(hb.RefusedBallot) as caught:
            add()
        assert caught.value.reason == "run"
    assert tally.count == 0
    tally.add(mechanism.encode([0.0] * 14, keys[0].user(9)))
    with pytest.raises(hb.InvalidInput, match="runs"):
        tally.merge(mechanism.tally(keys[1]))
    assert tally.count == 1


def test_padding_inside_a_nested_ballot() -> None:
    ballot = BALLOTS["nested"][0]
    raw = bytearray(ballot.payload)
    raw[1] |= 0x08  # eleven blocks: bits 3.. of the first stage's second byte are unused
    with pytest.raises(hb.RefusedBallot) as caught:
        MECHANISMS["nested"].tally(KEY).add(changed(ballot, payload=bytes(raw)))
    assert caught.value.reason == "padding"


def test_duplicates_within_a_batch_across_batches_and_after_a_merge() -> None:
    ballots = BALLOTS["two"]
    tally = MECHANISMS["two"].tally(KEY)
    with pytest.raises(hb.RefusedBallot, match="user 3 appears twice"):
        tally.add_many([ballots[3], ballots[4], ballots[3]])
    twice = Ballots.stack([ballots[1], ballots[1]])
    with pytest.raises(hb.RefusedBallot, match="twice"):
        tally.add_many(twice)
    assert tally.count == 0
    tally.add_many(ballots[:10])
    other = MECHANISMS["two"].tally(KEY)
    other.add_many(ballots[9:])
    before = state(tally), state(other)
    with pytest.raises(hb.RefusedBallot, match="user 9 has already voted"):
        tally.merge(other)
    with pytest.raises(hb.RefusedBallot, match="already"):
        tally.merge(tally)
    assert (state(tally), state(other)) == before
    fresh = MECHANISMS["two"].tally(KEY)
    fresh.add_many(ballots[10:])
    tally.merge(fresh)
    for user in (0, 9, 10, USERS - 1):
        with pytest.raises(hb.RefusedBallot, match=f"user {user} has already voted"):
            tally.add(ballots[user])
    assert state(tally) == state(full("two"))


@pytest.mark.parametrize("wrong", [None, 5, b"HB", "ballot", (b for b in ()), {1: 2}, {3}])
def test_only_ballots_are_added(wrong: object) -> None:
    tally = full("two")
    before = state(tally)
    for add in (tally.add, tally.add_many):
        with pytest.raises(hb.InvalidInput):
            add(wrong)  # type: ignore[arg-type]
    with pytest.raises(hb.InvalidInput):
        tally.add_many([BALLOTS["two"][0], wrong])  # type: ignore[list-item]
    assert state(tally) == before
    tally.add_many([])
    assert state(tally) == before


def test_ballots_without_mac_do_not_enter_by_a_merge() -> None:
    mechanism, key = hb.CPA(14, 0.5, 1.0), hb.RoundKey(bytes(32), 2)
    strict, open_to_all = mechanism.tally(key, require_mac=True), mechanism.tally(key)
    open_to_all.add(mechanism.encode([0.0] * 14, key.user(9)))
    with pytest.raises(hb.InvalidInput, match="require_mac=True"):
        strict.merge(open_to_all)
    assert strict.count == 0
    open_to_all.merge(strict)
    assert open_to_all.count == 1


def test_tallies_that_cannot_be_merged_are_refused() -> None:
    tally = full("two")
    before = state(tally)
    other_round = MECHANISMS["two"].tally(hb.RoundKey(bytes(range(32)), 4))
    other_secret = MECHANISMS["two"].tally(hb.RoundKey(bytes(32), 3))
    for wrong in (None, MECHANISMS["four"].tally(KEY), other_round, other_secret, {}):
        with pytest.raises(hb.InvalidInput):
            tally.merge(wrong)  # type: ignore[arg-type]
    assert state(tally) == before
    with pytest.raises(hb.InvalidInput, match="histogram"):
        full("four").merge(MECHANISMS["four"].tally(KEY, histogram=False))
    for wrong in (b"key", None, KEY.user(1)):
        with pytest.raises(hb.InvalidInput, match="RoundKey"):
            MECHANISMS["two"].tally(wrong)  # type: ignore[arg-type]


def test_file_of_ballots_without_mac_does_not_enter_a_strict_tally(tmp_path: Path) -> None:
    mechanism, key = hb.CPA(10, 0.5, 1.0), hb.RoundKey(secret=bytes(32), round=1)
    files = {}
    for required in (False, True):
        tally = mechanism.tally(key, require_mac=required)
        ballot = mechanism.encode([0.0] * 10, key.user(1), hb.SeededCoins(1))
        tally.add(hb.Ballot.from_bytes(ballot.to_bytes(key.user(1))))
        files[required] = tmp_path / f"{required}.tally"
        tally.save(files[required])
    with pytest.raises(hb.InvalidInput, match="without a MAC"):
        mechanism.tally(key, require_mac=True).load(files[False])
    for file, required in ((files[True], True), (files[True], False), (files[False], False)):
        loaded = mechanism.tally(key, require_mac=required)
        loaded.load(file)
        assert loaded.count == 1


def test_a_wrong_argument_of_add_names_the_reader_of_ballots() -> None:
    with pytest.raises(hb.InvalidInput, match=r"add takes a Ballot .*from_bytes.*; got bytes"):
        full("two").add(BALLOTS["two"][0].to_bytes())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_pickled_tally_goes_on_counting(name: str) -> None:
    tally = MECHANISMS[name].tally(KEY)
    tally.add_many(BALLOTS[name][:2])
    again = pickle.loads(pickle.dumps(tally))
    assert state(again) == state(tally)
    again.add_many(BALLOTS[name][2:])
    assert state(again) == state(full(name))
